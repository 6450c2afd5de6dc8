package tests

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/netlab"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// podChurn continuously moves addresses between pods on all nodes, and records the result.
type podChurn struct {
	t       *testing.T
	done    chan struct{}
	workers sync.WaitGroup
	changes []*atomic.Int64 // count, per node
	mu      sync.Mutex
	holders map[string][]string // set at the end; each NODE/POD
	err     error
}

// podChurn starts on all nodes: pods come and go, and take addresses of 10.244.7.0/27 from each
// other.
func (c *cluster) podChurn() *podChurn {
	u := &podChurn{t: c.t, done: make(chan struct{}), holders: map[string][]string{}}
	for _, n := range c.nodes {
		n.InOrder = false // creating pods in inode order would take longer with every pod
		changes := &atomic.Int64{}
		u.changes = append(u.changes, changes)
		u.workers.Go(func() {
			pods, err := churnPods(n, u.done, changes)
			u.mu.Lock()
			defer u.mu.Unlock()
			for _, p := range pods {
				for addr := range p.addrs {
					u.holders[addr] = append(u.holders[addr], n.name+"/"+p.name)
				}
				p.close()
			}
			if u.err == nil {
				u.err = err
			}
		})
	}
	c.t.Cleanup(func() { u.end() })
	return u
}

func (u *podChurn) end() {
	select {
	case <-u.done:
	default:
		close(u.done)
	}
	u.workers.Wait()
}

// awaitChanges waits until every node has made the given number of further changes.
func (u *podChurn) awaitChanges(changes int64) {
	u.t.Helper()
	for _, n := range u.changes {
		until := n.Load() + changes
		u.await(func() bool { return n.Load() >= until })
	}
}

func (u *podChurn) await(cond func() bool) {
	u.t.Helper()
	wait.Until(u.t, "changes on the nodes", func() bool {
		u.mu.Lock()
		defer u.mu.Unlock()
		return cond() || u.err != nil
	})
}

// stop ends the moves and returns the holders of each address, each as NODE/POD.
func (u *podChurn) stop() map[string][]string {
	u.t.Helper()
	u.end()
	if u.err != nil {
		u.t.Fatal(u.err)
	}
	return maps.Clone(u.holders)
}

// churnedPod is a pod that takes part in a podChurn.
type churnedPod struct {
	name   string
	pod    *netlab.Pod
	handle *netlink.Handle
	link   netlink.Link
	addrs  map[string]bool
}

func (p *churnedPod) close() {
	p.handle.Close()
	p.pod.Close()
}

// churnPods changes the pods of one node at random, from a fixed seed, until done is closed.
func churnPods(l *lab, done <-chan struct{}, changes *atomic.Int64) (pods []*churnedPod, err error) {
	const most, addresses = 5, 24
	r := rand.New(rand.NewPCG(7, uint64(l.number)))
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for i := 0; ; i++ {
		select {
		case <-done:
			return pods, nil
		case <-tick.C:
		}
		switch n := r.IntN(30); {
		case len(pods) < 2 || n == 0 && len(pods) < most:
			p, err := newStirred(l, fmt.Sprintf("t%d", i))
			if err != nil {
				return pods, err
			}
			pods = append(pods, p)
		case n == 1:
			at := r.IntN(len(pods))
			pods[at].close()
			if _, err := l.Run("ip netns del %s", pods[at].name); err != nil {
				return nil, err
			}
			pods = slices.Delete(pods, at, at+1)
		default:
			if err := pods[r.IntN(len(pods))].toggle(fmt.Sprintf("10.244.7.%d", 1+r.IntN(addresses))); err != nil {
				return pods, err
			}
		}
		changes.Add(1)
	}
}

func newStirred(l *lab, name string) (*churnedPod, error) {
	if err := l.Namespace(name); err != nil {
		return nil, err
	}
	for _, line := range []string{
		"ip link add v%s type veth peer name eth0 netns %[1]s", "ip link set v%s up", "ip -n %s link set eth0 up",
	} {
		if _, err := l.Run(line, name); err != nil {
			return nil, err
		}
	}
	pod, err := l.Pod(name)
	if err != nil {
		return nil, err
	}
	handle, err := netlink.NewHandleAt(netns.NsHandle(pod.Fd()), unix.NETLINK_ROUTE)
	if err != nil {
		pod.Close()
		return nil, err
	}
	p := &churnedPod{name: name, pod: pod, handle: handle, addrs: map[string]bool{}}
	if p.link, err = handle.LinkByName("eth0"); err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

// toggle adds the address, or removes it if the pod has it.
func (p *churnedPod) toggle(addr string) error {
	a, err := netlink.ParseAddr(addr + "/32")
	if err != nil {
		return err
	}
	if p.addrs[addr] {
		delete(p.addrs, addr)
		return p.handle.AddrDel(p.link, a)
	}
	p.addrs[addr] = true
	return p.handle.AddrAdd(p.link, a)
}

// wantExactly waits until the aggregator knows exactly these holders, and exactly one confirmed
// conflict for each address with two holders.
func (c *cluster) wantExactly(holders map[string][]string) {
	c.t.Helper()
	c.wantHolders(holders)
	var twice []string
	for addr, names := range holders {
		if len(names) > 1 {
			twice = append(twice, addr+" CONFIRMED")
		}
	}
	c.wantActive(twice...)
}

const twiceHeld = "10.244.9.9"

// duplicate creates a lasting duplicate on node1 and node2, and returns the ID of its conflict.
func (c *cluster) duplicate() (id string) {
	c.t.Helper()
	for i, n := range c.nodes[:2] {
		n.pod(fmt.Sprintf("p%d", i+1), twiceHeld+"/32")
	}
	c.watch.await("the duplicate to be confirmed", inState(twiceHeld, confirmed))
	return c.only(twiceHeld).GetId()
}

// wantSame checks that the conflict of the duplicate has the same ID and was never resolved.
func (c *cluster) wantSame(id string) {
	c.t.Helper()
	c.watch.await("the duplicate to be confirmed", inState(twiceHeld, confirmed))
	if got := c.only(twiceHeld); got.GetId() != id || got.GetEpisode() != 1 {
		c.t.Errorf("conflict of %s: got %s, episode %d, want %s, episode 1", twiceHeld, got.GetId(), got.GetEpisode(), id)
	}
	if reportedStates := c.watch.reportedStates(twiceHeld); slices.Contains(reportedStates, ipwitnessv1.Conflict_RESOLVED) {
		c.t.Errorf("reported states of %s: got %v, want none resolved", twiceHeld, reportedStates)
	}
}

// lasting returns the holders of the address of duplicate, and more.
func lasting(more map[string][]string) map[string][]string {
	all := map[string][]string{twiceHeld: {"node1/p1", "node2/p2"}}
	maps.Copy(all, more)
	return all
}

// pods declares the pod network.
const pods = "pods=10.244.0.0/16"

// unheard waits until a node and all its owners are disconnected.
func (c *cluster) unheard(n *lab) {
	c.t.Helper()
	c.awaitNode(n.name, ipwitnessv1.Node_DISCONNECTED)
	wait.Until(c.t, "no owner on "+n.name+" to be LIVE", func() bool {
		return !slices.ContainsFunc(c.everyOwner(), func(o *ipwitnessv1.Owner) bool {
			return o.GetNode() == n.name && o.GetState() == ipwitnessv1.Owner_LIVE && o.GetWorkload().GetKind() != ipwitnessv1.Workload_EXTERNAL
		})
	})
}

// leaves counts how often a node was reported as disconnected.
func (w *watch) leaves(name string) (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range w.events {
		if e.GetNode().GetName() == name && e.GetNode().GetState() == ipwitnessv1.Node_DISCONNECTED {
			n++
		}
	}
	return n
}

func TestNodeDisconnectedUntilItsAgentClosesTheConnection(t *testing.T) {
	slow(t)
	t.Parallel()
	c := newCluster(t, 2, "--network", pods)
	id := c.duplicate()
	u := c.podChurn()
	u.awaitChanges(50)
	n := c.nodes[0]
	n.cut()
	c.unheard(n)
	// Both ends have closed the connection, so the agent must connect again.
	wait.Until(t, "the agent to give the connection up", func() bool {
		return strings.Contains(n.agent.Log.String(), "cannot reach the aggregator")
	})
	u.awaitChanges(50)
	n.mend()
	c.awaitNodes(c.nodes...)
	u.awaitChanges(50)
	c.wantExactly(lasting(u.stop()))
	c.wantSame(id)
}

func TestAgentPausedDuringChurn(t *testing.T) {
	slow(t)
	t.Parallel()
	c := newCluster(t, 2, "--network", pods)
	id := c.duplicate()
	u := c.podChurn()
	for range 5 { // each interruption is too short to be noticed
		c.nodes[0].pause()
		u.awaitChanges(30)
		c.nodes[0].awaitChanges()
		u.awaitChanges(10)
	}
	c.nodes[0].pause()
	c.unheard(c.nodes[0])
	u.awaitChanges(100)
	c.nodes[0].awaitChanges()
	c.awaitNodes(c.nodes...)
	u.awaitChanges(100)
	c.wantExactly(lasting(u.stop()))
	c.wantSame(id)
}

func TestAgentRestartedDuringChurn(t *testing.T) {
	slow(t)
	t.Parallel()
	c := newCluster(t, 2, "--network", pods)
	id := c.duplicate()
	u := c.podChurn()
	u.awaitChanges(50)
	c.nodes[0].again()
	u.awaitChanges(50)
	c.nodes[1].agent.Kill()
	c.unheard(c.nodes[1])
	u.awaitChanges(50)
	c.nodes[1].witness(c.nodes[1].args...)
	c.awaitNodes(c.nodes...)
	u.awaitChanges(50)
	c.wantExactly(lasting(u.stop()))
	c.wantSame(id)
	if got := len(c.allNodes()); got != 2 {
		t.Errorf("nodes: got %v, want two", c.allNodes())
	}
}

func TestHalfOpenStreamIsTakenOver(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2, "--network", pods)
	id := c.duplicate()
	n := c.nodes[0]
	// The node loses its network and its agent. The aggregator's end of the connection stays open,
	// but would time out after some seconds, so prepare everything else first.
	n.pod("p3")
	n.pod("p4")
	at := n.managed(c)
	n.sh("ip link del mgmt1")
	n.agent.Kill()
	n.sh("ip netns del p1")
	n.assign("p3", "10.244.0.3/32")
	n.assign("p4", twiceHeld+"/32")
	n.witness("--aggregator", at+":9640")
	c.wantExactly(map[string][]string{twiceHeld: {"node1/p4", "node2/p2"}, "10.244.0.3": {"node1/p3"}})
	c.watch.await("the duplicate of p4 to be confirmed", inState(twiceHeld, confirmed))
	if got := c.only(twiceHeld); got.GetId() != id || got.GetEpisode() != 2 { // p1 had left before p4 came
		t.Errorf("conflict of %s: got %s, episode %d, want %s, episode 2", twiceHeld, got.GetId(), got.GetEpisode(), id)
	}
	if got := c.watch.leaves("node1"); got != 0 {
		t.Errorf("node1 was disconnected %d times, want never: a newer agent takes over", got)
	}
}

func TestNodeRebooted(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2, "--network", pods)
	one, two := c.nodes[0], c.nodes[1]
	out := newLAN(t)
	out.join(one, "192.0.2.1/24") // the network card identifies the machine
	one.ports(1)
	one.pod("old", "10.244.0.2/32")
	c.wantHolders(map[string][]string{"10.244.0.2": {"node1/old"}, "192.0.2.1": {"node1/node1"}})
	one.agent.Kill()
	one.Close()

	c.nodes = c.nodes[1:]
	one = c.addMachine(newHost(t), "node1", 1)
	one.boot(9)
	out.join(one, "192.0.2.1/24")
	one.report(c)
	c.awaitNode("node1", ipwitnessv1.Node_LIVE)
	one.pod("new", "10.244.0.3/32")
	two.pod("other", "10.244.0.2/32") // the address of the pod that has ended
	c.wantHolders(map[string][]string{"10.244.0.2": {"node2/other"}, "10.244.0.3": {"node1/new"}, "192.0.2.1": {"node1/node1"}})
	c.wantActive()
	c.wantOnlyPlanted()
	for _, n := range c.allNodes() {
		if n.GetName() == "node1" && n.GetBootId() != bootID(9) {
			t.Errorf("node1: got %v, want the new one", n)
		}
	}
}

func TestNodeRenamed(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2, "--network", pods)
	id := c.duplicate()
	c.nodes[0].name = "worker1"
	c.nodes[0].again()
	c.awaitNode("worker1", ipwitnessv1.Node_LIVE)
	c.wantExactly(map[string][]string{twiceHeld: {"node2/p2", "worker1/p1"}})
	c.wantSame(id)
	if nodes := c.allNodes(); len(nodes) != 2 || nodes[0].GetName() != "node2" {
		t.Errorf("nodes: got %v, want node2 and worker1", nodes)
	}
}

func TestTwoNodesWithOneName(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, "--network", pods)
	twin := c.addNode("node1")
	const long = "node1@b0070002"
	c.awaitNode("node1", ipwitnessv1.Node_LIVE)
	c.awaitNode(long, ipwitnessv1.Node_LIVE)
	c.nodes[0].pod("p1", "10.244.0.2/32")
	twin.pod("p2", "10.244.0.2/32")
	c.wantExactly(map[string][]string{"10.244.0.2": {"node1/p1", long + "/p2"}})
	wantWords(t, c.only("10.244.0.2").GetSummary(), "on node1", "on "+long)

	// The other twin continues alone.
	twin.agent.Kill()
	c.awaitNode(long, ipwitnessv1.Node_DISCONNECTED)
	c.awaitNode("node1", ipwitnessv1.Node_LIVE)
}

func TestTwoNodesWithOneNameAreAFinding(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1)
	findings := func() (of []*ipwitnessv1.Finding) {
		t.Helper()
		var m ipwitnessv1.ListFindingsResponse
		if err := c.program.Get(t.Context(), "/v1/findings", &m); err != nil {
			t.Fatal(err)
		}
		return slices.DeleteFunc(m.GetFindings(), func(f *ipwitnessv1.Finding) bool { return f.GetKind() != "duplicate-node-name" })
	}
	if got := findings(); len(got) != 0 {
		t.Errorf("findings: got %v, want none", got)
	}
	twin := c.addNode("node1")
	wait.Until(t, "the finding", func() bool { return len(findings()) == 1 })
	f := findings()[0]
	if names := slices.Sorted(slices.Values(f.GetNodes())); !slices.Equal(names, []string{"node1", "node1@b0070002"}) {
		t.Errorf("nodes of the finding: got %v, want node1 and node1@b0070002", names)
	}
	if f.GetId() == "" || f.GetSummary() == "" || len(f.GetRemedy()) == 0 || f.GetDetectedAt() == nil {
		t.Errorf("finding: got %v, want id, summary, remedy and time", f)
	}
	twin.name = "node2"
	twin.again()
	wait.Until(t, "the finding to end", func() bool { return len(findings()) == 0 })
}

func TestAgentWithTwoAggregators(t *testing.T) {
	t.Parallel()
	a, b := newAggregator(t, "--network", pods), newAggregator(t, "--network", pods)
	for i := range 2 {
		n := a.addMachine(newHost(t), fmt.Sprintf("node%d", i+1), i+1)
		n.boot(i + 1)
		n.report(a, b)
	}
	b.nodes = a.nodes
	a.awaitNodes(a.nodes...)
	b.awaitNodes(b.nodes...)
	id := a.duplicate()
	a.wantExactly(lasting(nil))
	b.wantExactly(lasting(nil))
	b.wantSame(id) // both aggregators give the conflict the same ID

	a.program.Kill()
	a.nodes[0].pod("p3", "10.244.0.3/32")
	b.wantExactly(lasting(map[string][]string{"10.244.0.3": {"node1/p3"}}))
	b.wantSame(id)
	for _, n := range b.nodes {
		if got := b.watch.leaves(n.name); got != 0 {
			t.Errorf("%s was disconnected %d times from the other aggregator", n.name, got)
		}
	}
	a.serve()
	a.wantExactly(lasting(map[string][]string{"10.244.0.3": {"node1/p3"}}))
	a.wantSame(id)
}

// leads makes a name lead to some aggregators, on a node that has cables to them.
func (l *lab) leads(name string, addresses ...string) {
	l.t.Helper()
	var lines strings.Builder
	for _, address := range addresses {
		fmt.Fprintf(&lines, "%s %s\n", address, name)
	}
	if err := os.WriteFile(l.hosts, []byte(lines.String()), 0o644); err != nil {
		l.t.Fatal(err)
	}
}

func TestReplicasOfAnAggregatorComeAndGo(t *testing.T) {
	t.Parallel()
	a, b := newAggregator(t, "--network", pods), newAggregator(t, "--network", pods)
	var ofA, ofB []string
	for i := range 2 {
		n := a.addMachine(newHost(t), fmt.Sprintf("node%d", i+1), i+1)
		n.boot(i + 1)
		n.hosts = filepath.Join(t.TempDir(), "hosts")
		ofA, ofB = append(ofA, n.managed(a)), append(ofB, n.managed(b))
		n.leads("aggregators", ofA[i])
		n.sh("mount --bind " + n.hosts + " /etc/hosts")
		n.witness("--aggregator", "aggregators:9640")
	}
	b.nodes = a.nodes
	a.awaitNodes(a.nodes...)
	id := a.duplicate()
	if got := b.allNodes(); len(got) != 0 {
		t.Fatalf("nodes of a replica that the name does not lead to: got %v, want none", got)
	}

	for i, n := range a.nodes {
		n.leads("aggregators", ofA[i], ofB[i])
	}
	b.awaitNodes(b.nodes...)
	b.wantExactly(lasting(nil))
	b.wantSame(id)

	a.program.Kill()
	for i, n := range a.nodes {
		n.leads("aggregators", ofB[i])
	}
	a.nodes[0].pod("p3", "10.244.0.3/32")
	b.wantExactly(lasting(map[string][]string{"10.244.0.3": {"node1/p3"}}))
	for _, n := range b.nodes {
		wait.Until(t, "the replica that is gone to be forgotten", func() bool {
			text, err := n.agent.Text(t.Context(), "/metrics")
			return err == nil && strings.Contains(text, `ipwitness_agent_aggregators{state="connected"} 1`) &&
				strings.Contains(text, `ipwitness_agent_aggregators{state="disconnected"} 0`)
		})
		if got := b.watch.leaves(n.name); got != 0 {
			t.Errorf("%s was disconnected %d times from the other replica", n.name, got)
		}
	}
}

func TestNodesAreListedWithTheirHealth(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2)
	said := strings.Fields(c.says("nodes"))
	for _, want := range []string{"node1", "node2", "LIVE"} {
		if !slices.Contains(said, want) {
			t.Errorf("ipwitness nodes: got %q, want %s in it", said, want)
		}
	}
	wait.Until(t, "a ping to be answered", func() bool {
		return !slices.ContainsFunc(c.allNodes(), func(n *ipwitnessv1.Node) bool { return n.GetLag() == nil || n.GetSkew() == nil })
	})

	watch := c.Command(binary, "nodes", "--watch")
	var reportedStates netlab.Log
	watch.Stdout, watch.Stderr = &reportedStates, &reportedStates
	if err := c.Start(watch); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = watch.Process.Kill()
		_ = watch.Wait()
	})
	rows := func(want ...string) func() bool { // rows of node2, in this order
		return func() bool {
			var got []string
			for line := range strings.Lines(reportedStates.String()) {
				if f := strings.Fields(line); len(f) > 3 && f[2] == "node2" {
					got = append(got, f[1]+" "+f[3])
				}
			}
			return slices.Equal(got, want)
		}
	}
	wait.Until(t, "the watch to begin", rows("ADDED LIVE"))
	c.nodes[1].agent.Kill()
	c.unheard(c.nodes[1])
	wantWords(t, c.says("nodes"), "DISCONNECTED")
	wait.Until(t, "the watch to tell of it", rows("ADDED LIVE", "UPDATED DISCONNECTED"))
	c.nodes[1].witness(c.nodes[1].args...)
	wait.Until(t, "the watch to tell that it is back", rows("ADDED LIVE", "UPDATED DISCONNECTED", "UPDATED LIVE"))
}
