// Package tests tests complete paths with real kernels, real CNI plugins and real servers. Every
// test builds its hosts from network namespaces of its own.
package tests

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/netlab"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// patience is the longest time that a test waits for a condition.
var patience = wait.Patience()

// binary is the path of ipwitness: IPWITNESS_BIN (for example a race build), or one built once for
// all tests.
var binary = os.Getenv("IPWITNESS_BIN")

func TestMain(m *testing.M) {
	code, err := func() (int, error) {
		if binary != "" {
			return m.Run(), nil
		}
		dir, err := os.MkdirTemp("", "ipwitness-test")
		if err != nil {
			return 1, err
		}
		defer func() { _ = os.RemoveAll(dir) }()
		if binary, err = netlab.Build(dir); err != nil {
			return 1, err
		}
		return m.Run(), nil
	}()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(code)
}

// slow skips a test in short mode, which make test uses. A slow test floods, waits for minutes, or
// needs an image, a package or a Prometheus. make test-all runs slow tests.
func slow(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("slow: run make test-all")
	}
}

// lab is a host and the ipwitness that runs on it.
type lab struct {
	*netlab.Host
	*service
	t     *testing.T
	agent *netlab.Program // `ipwitness run`, or `ipwitness-agent`

	// With several nodes: the name and the number of the node, from 1.
	name   string
	number int
	args   []string // arguments of the agent
	lines  []line   // cables to the aggregators
	hosts  string   // file that is the node's /etc/hosts, if it has one of its own
}

// service is the ipwitness that answers queries: that of the host, or an aggregator that several
// hosts share.
type service struct {
	at      *netlab.Host // host on which it runs
	program *netlab.Program
	watch   *watch
}

// newHost creates a host that is deleted when the test ends.
func newHost(t *testing.T) *netlab.Host {
	t.Helper()
	if err := netlab.Possible(); err != nil {
		if os.Getenv("IPWITNESS_ROOT_TESTS") != "" {
			t.Fatal("IPWITNESS_ROOT_TESTS is set: ", err)
		}
		t.Skip(err, ": run make test")
	}
	h, err := netlab.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.Close)
	return h
}

// newLab creates a host and starts ipwitness on it.
func newLab(t *testing.T, args ...string) *lab {
	t.Helper()
	return startLab(t, newHost(t), args...)
}

func startLab(t *testing.T, h *netlab.Host, args ...string) *lab {
	t.Helper()
	l := &lab{Host: h, t: t}
	l.start(append([]string{"--node", "node1"}, args...)...)
	return l
}

// start starts `ipwitness run`.
func (l *lab) start(args ...string) {
	l.t.Helper()
	l.launch(l.Command(binary, append([]string{"run"}, args...)...))
}

// launch starts a command that finally executes `ipwitness run`.
func (l *lab) launch(cmd *exec.Cmd) {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(l.t.Context(), patience)
	defer cancel()
	p, err := l.Launch(ctx, cmd)
	if err != nil {
		l.t.Fatal(err)
	}
	killed(l.t, "ipwitness", p)
	l.agent, l.service = p, &service{at: l.Host, program: p, watch: watchConflicts(l.t, p)}
}

// spoofers contains the names of the tests in which a workload answers for another one.
var spoofers sync.Map

// killed kills a program when the test ends, and logs its last output if the test failed. Only in
// the tests in spoofers may the program report a spoofer.
func killed(t *testing.T, name string, p *netlab.Program) {
	t.Cleanup(func() {
		test, _, _ := strings.Cut(t.Name(), "/")
		if _, meant := spoofers.Load(test); !meant {
			for line := range strings.Lines(p.Log.String()) {
				if strings.Contains(line, "kind=address-spoofed ") || strings.Contains(line, "kind=mac-cloned ") {
					t.Errorf("%s reports a false spoof: %s", name, line)
				}
			}
		}
		if t.Failed() {
			said := strings.Split(p.Log.String(), "\n")
			t.Logf("%s said:\n%s", name, strings.Join(said[max(0, len(said)-40):], "\n"))
		}
		p.Kill()
	})
}

// sh runs command lines inside the host.
func (l *lab) sh(lines ...string) {
	l.t.Helper()
	for _, line := range lines {
		if _, err := l.Run("%s", line); err != nil {
			l.t.Fatal(err)
		}
	}
}

// cni configures a network that uses real plugins.
func (l *lab) cni(conflist string) *netlab.CNI {
	l.t.Helper()
	c, err := l.CNI(conflist)
	if err != nil {
		l.t.Fatal(err)
	}
	return c
}

// pod creates a named namespace with a veth to the host. The end in the pod has the addresses, and
// the host's end is called vNAME.
func (l *lab) pod(name string, addrs ...string) {
	l.t.Helper()
	if err := l.Namespace(name); err != nil {
		l.t.Fatal(err)
	}
	l.sh(
		fmt.Sprintf("ip link add v%s type veth peer name eth0 netns %s", name, name),
		fmt.Sprintf("ip link set v%s up", name),
		fmt.Sprintf("ip -n %s link set eth0 up", name))
	l.assign(name, addrs...)
}

// assign gives a pod addresses, without duplicate address detection.
func (l *lab) assign(name string, addrs ...string) {
	l.t.Helper()
	for _, a := range addrs {
		nodad := ""
		if strings.Contains(a, ":") {
			nodad = " nodad"
		}
		l.sh(fmt.Sprintf("ip -n %s addr add %s dev eth0%s", name, a, nodad))
	}
}

// plantedAddresses contains the addresses of the duplicates that plant creates.
var plantedAddresses = netip.MustParsePrefix("198.51.100.0/24")

// planted is the first planted duplicate of a host without a number.
const planted = "198.51.100.1"

// plant creates a true duplicate on the host and waits until it is confirmed. This proves that
// everything that was reported a settle time earlier has been judged, too.
func (l *lab) plant() { l.t.Helper(); l.plantAs("plant") }

func (l *lab) plantAs(name string) {
	l.t.Helper()
	l.seed(name, l.plantedAddress(1))
	l.grown(l.plantedAddress(1))
}

// plantNext plants another duplicate. Its confirmation proves that claims repeated since the
// previous one have been judged, too.
func (l *lab) plantNext() {
	l.t.Helper()
	l.grown(l.plantUnconfirmed())
}

// plantedAddress returns the address of the n-th planted duplicate of the host.
func (l *lab) plantedAddress(n int) string { return fmt.Sprintf("198.51.100.%d", 10*l.number+n) }

// plantUnconfirmed creates the next duplicate and returns its address, without waiting for the conflict.
func (l *lab) plantUnconfirmed() string {
	l.t.Helper()
	n := 1
	for len(l.watch.find(l.plantedAddress(n))) != 0 {
		n++
	}
	l.seed(fmt.Sprintf("plant%d-", 10*l.number+n), l.plantedAddress(n))
	return l.plantedAddress(n)
}

func (l *lab) seed(name, addr string) {
	l.t.Helper()
	l.pod(name+"1", addr+"/32")
	l.pod(name+"2", addr+"/32")
}

func (l *lab) grown(addr string) {
	l.t.Helper()
	l.watch.await("the planted duplicate to be confirmed", inState(addr, ipwitnessv1.Conflict_CONFIRMED))
}

// wantOnlyPlanted plants a duplicate, and fails if any other conflict is or was confirmed, except
// for the given addresses.
func (l *lab) wantOnlyPlanted(addrs ...string) {
	l.t.Helper()
	l.plant()
	l.wantConfirmed(addrs...)
}

// wantConfirmed fails if a conflict is or was confirmed, except for planted duplicates and the
// given addresses.
func (l *lab) wantConfirmed(addrs ...string) {
	l.t.Helper()
	for _, c := range l.watch.all() {
		if c.GetConfirmedAt() != nil && !slices.Contains(addrs, c.GetAddress()) && !isPlanted(c) {
			l.t.Errorf("a look-alike was confirmed: %v", c)
		}
	}
}

func isPlanted(c *ipwitnessv1.Conflict) bool {
	return plantedAddresses.Contains(netip.MustParseAddr(c.GetAddress()))
}

// owners lists the owners that match a query string of the REST API.
func (l *lab) owners(query string) []*ipwitnessv1.Owner {
	l.t.Helper()
	var m ipwitnessv1.ListOwnersResponse
	if err := l.program.Get(l.t.Context(), "/v1/owners"+query, &m); err != nil {
		l.t.Fatal(err)
	}
	return m.GetOwners()
}

// node returns the state of the host's agent.
func (l *lab) node() *ipwitnessv1.Node {
	l.t.Helper()
	nodes, err := l.program.Nodes(l.t.Context())
	if err != nil {
		l.t.Fatal(err)
	}
	if l.name != "" {
		nodes = slices.DeleteFunc(nodes, func(n *ipwitnessv1.Node) bool { return n.GetName() != l.name })
	}
	if len(nodes) != 1 {
		l.t.Fatalf("nodes called %q: got %v, want one", l.name, nodes)
	}
	return nodes[0]
}

// explain returns the explanation for an address.
func (l *lab) explain(addr string) *ipwitnessv1.ExplainResponse {
	l.t.Helper()
	var m ipwitnessv1.ExplainResponse
	if err := l.program.Get(l.t.Context(), "/v1/explain?address="+addr, &m); err != nil {
		l.t.Fatal(err)
	}
	return &m
}

// awaitOwner waits until an address has exactly one owner with the given name. The name may be
// known later than the address.
func (l *lab) awaitOwner(addr, name string) {
	l.t.Helper()
	wait.Until(l.t, fmt.Sprintf("%s to be the owner of %s", name, addr), func() bool {
		got := l.awaitOwners(addr, 1)
		return got[0].GetWorkload().GetName() == name
	})
}

// awaitPod waits until an address has exactly one owner, which is known to be a pod. The name alone
// may come from the namespace's file, before the CNI result is known.
func (l *lab) awaitPod(addr, name string) {
	l.t.Helper()
	wait.Until(l.t, fmt.Sprintf("pod %s to be the owner of %s", name, addr), func() bool {
		w := l.awaitOwners(addr, 1)[0].GetWorkload()
		return w.GetKind() == ipwitnessv1.Workload_POD && w.GetName() == name
	})
}

// awaitOwners waits until an address has n owners.
func (l *lab) awaitOwners(addr string, n int) []*ipwitnessv1.Owner {
	l.t.Helper()
	var got []*ipwitnessv1.Owner
	wait.Until(l.t, fmt.Sprintf("%d owners of %s", n, addr), func() bool {
		got = slices.DeleteFunc(l.owners("?address="+addr), func(o *ipwitnessv1.Owner) bool { return o.GetExcluded() != "" })
		return len(got) == n
	})
	return got
}

// watch collects the conflicts from conflicts:watch.
type watch struct {
	t       *testing.T
	mu      sync.Mutex
	byID    map[string]*ipwitnessv1.Conflict
	events  []netlab.Event
	changed chan struct{}
	ended   error
}

func watchConflicts(t *testing.T, p *netlab.Program) *watch {
	t.Helper()
	w := &watch{t: t, byID: map[string]*ipwitnessv1.Conflict{}, changed: make(chan struct{}, 1)}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan struct{})
	go func() {
		defer close(done)
		err := p.WatchConflicts(ctx, func(e netlab.Event) bool {
			w.mu.Lock()
			w.events = append(w.events, e)
			if c := e.GetConflict(); c != nil {
				w.byID[c.GetId()] = c
			}
			w.mu.Unlock()
			w.wake()
			return true
		})
		w.mu.Lock()
		w.ended = err
		w.mu.Unlock()
		w.wake()
	}()
	t.Cleanup(func() { cancel(); <-done })
	return w
}

func (w *watch) wake() {
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

// all returns every conflict that was reported.
func (w *watch) all() []*ipwitnessv1.Conflict {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []*ipwitnessv1.Conflict
	for _, c := range w.byID {
		out = append(out, c)
	}
	return out
}

// await waits until a condition holds for the reported conflicts.
func (w *watch) await(what string, cond func([]*ipwitnessv1.Conflict) bool) {
	w.t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	for {
		all := w.all()
		if cond(all) {
			return
		}
		w.mu.Lock()
		ended := w.ended
		w.mu.Unlock()
		if ended != nil {
			w.t.Fatalf("watch ended while waiting for %s: %v", what, ended)
		}
		select {
		case <-w.changed:
		case <-deadline.C:
			w.t.Fatalf("timed out waiting for %s: conflicts are %v", what, all)
		}
	}
}

// find returns the conflicts of an address.
func (w *watch) find(addr string) (out []*ipwitnessv1.Conflict) {
	for _, c := range w.all() {
		if c.GetAddress() == addr {
			out = append(out, c)
		}
	}
	return out
}

// reportedStates returns the states in which the conflicts of an address were reported, in order.
func (w *watch) reportedStates(addr string) (states []ipwitnessv1.Conflict_State) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range w.events {
		if e.GetConflict().GetAddress() == addr {
			states = append(states, e.GetConflict().GetState())
		}
	}
	return states
}

// inState returns the condition that an address has a conflict in the state.
func inState(addr string, state ipwitnessv1.Conflict_State) func([]*ipwitnessv1.Conflict) bool {
	return func(all []*ipwitnessv1.Conflict) bool {
		return slices.ContainsFunc(all, func(c *ipwitnessv1.Conflict) bool {
			return c.GetAddress() == addr && c.GetState() == state
		})
	}
}

// between returns the condition that an address has a conflict in the state, and that its owners
// have these names. A pod is known as a pod only when its plugin has ended and the caller has
// written the result, which on a busy machine is after the conflict is confirmed.
func between(addr string, state ipwitnessv1.Conflict_State, owners string) func([]*ipwitnessv1.Conflict) bool {
	return func(all []*ipwitnessv1.Conflict) bool {
		return slices.ContainsFunc(all, func(c *ipwitnessv1.Conflict) bool {
			return c.GetAddress() == addr && c.GetState() == state && ownerNames(c) == owners
		})
	}
}

// ownerNames returns the sorted names of a conflict's workloads.
func ownerNames(c *ipwitnessv1.Conflict) string {
	var out []string
	for _, o := range c.GetOwners() {
		name := o.GetWorkload().GetName()
		if ns := o.GetWorkload().GetNamespace(); ns != "" {
			name = ns + "/" + name
		}
		out = append(out, name)
	}
	slices.Sort(out)
	return strings.Join(out, " | ")
}

// only returns the only conflict of an address.
func (l *lab) only(addr string) *ipwitnessv1.Conflict {
	l.t.Helper()
	all := l.watch.find(addr)
	if len(all) != 1 {
		l.t.Fatalf("conflicts of %s: got %v, want one", addr, all)
	}
	return all[0]
}

// podAddress returns the n-th address that host-local allocates from 10.244.0.0/16.
func podAddress(n int) string {
	a := netip.MustParseAddr("10.244.0.1")
	for range n {
		a = a.Next()
	}
	return a.String()
}

// sysctl sets kernel variables in a pod, or on the host itself if pod is empty. Each is written
// net/…=VALUE.
func (l *lab) sysctl(pod string, settings ...string) {
	l.t.Helper()
	for _, s := range settings {
		name, value, _ := strings.Cut(s, "=")
		set := []string{"sh", "-c", fmt.Sprintf("echo %s >/proc/sys/%s", value, name)}
		if pod != "" {
			set = append([]string{"ip", "netns", "exec", pod}, set...)
		}
		if _, err := l.Output(l.Command(set[0], set[1:]...)); err != nil {
			l.t.Fatal(err)
		}
	}
}

// in runs fn in the namespace of a pod, or of the host itself if pod is empty.
func (l *lab) in(pod string, fn func() error) {
	l.t.Helper()
	do := l.Do
	if pod != "" {
		p, err := l.Pod(pod)
		if err != nil {
			l.t.Fatal(err)
		}
		defer p.Close()
		do = p.Do
	}
	if err := do(fn); err != nil {
		l.t.Fatal(err)
	}
}

// ask sends a datagram, so that the kernel of a pod (or of the host, if pod is empty) sends an ARP
// request with the given source for an address that nobody has.
func (l *lab) ask(pod, source, addr string) {
	l.t.Helper()
	l.in(pod, func() error {
		c, err := net.DialUDP("udp", &net.UDPAddr{IP: net.ParseIP(source)}, &net.UDPAddr{IP: net.ParseIP(addr), Port: 9})
		if err != nil {
			return err
		}
		defer func() { _ = c.Close() }()
		_, err = c.Write([]byte("?"))
		return err
	})
}

// resolve makes the kernel of a pod (or of the host, if pod is empty) resolve an address on an
// interface, as before sending. It sends no datagram: a datagram may be answered, and the answering
// host would resolve in turn.
func (l *lab) resolve(pod, dev, addr string) {
	l.t.Helper()
	in := ""
	if pod != "" {
		in = " -n " + pod
	}
	l.sh(fmt.Sprintf("ip%s neigh flush to %s dev %s", in, addr, dev), fmt.Sprintf("ip%s neigh replace %s dev %s use", in, addr, dev))
}

// knows waits until the neighbour table of a pod (or of the host, if pod is empty) has a MAC for an
// address, because a request of the kernel was answered.
func (l *lab) knows(pod, addr, mac string) {
	l.t.Helper()
	l.knowsAfter(func() {}, pod, addr, mac)
}

// knowsAfter is like knows, but repeats the action that leads to it.
func (l *lab) knowsAfter(do func(), pod, addr, mac string) {
	l.t.Helper()
	in := ""
	if pod != "" {
		in = " -n " + pod
	}
	wait.Until(l.t, fmt.Sprintf("%q to know %s at %s", pod, addr, mac), func() bool {
		do()
		out, err := l.Run("ip%s neigh show %s", in, addr)
		return err == nil && strings.Contains(out, "lladdr "+mac)
	})
}

// wantConflict waits until an address has a conflict in the state between these owners, whose names
// may be known later. It checks the scope and the rule of the conflict, and that the summary
// contains the names.
func (l *lab) wantConflict(addr string, state ipwitnessv1.Conflict_State, rule, owners, scope string, named ...string) {
	l.t.Helper()
	l.watch.await(fmt.Sprintf("%s to be %s between %s", addr, state, owners), between(addr, state, owners))
	c := l.only(addr)
	if got := fmt.Sprint(c.GetScope().GetKind(), " ", c.GetScope().GetName()); got != scope {
		l.t.Errorf("scope of %s: got %s, want %s", addr, got, scope)
	}
	if c.GetRule() != rule {
		l.t.Errorf("rule for %s: got %s, want %s", addr, c.GetRule(), rule)
	}
	wantWords(l.t, c.GetSummary(), named...)
	if len(c.GetRemedy()) == 0 {
		l.t.Errorf("conflict of %s has no remedy", addr)
	}
}

// wantNone fails if an address has or had a conflict.
func (l *lab) wantNone(addrs ...string) {
	l.t.Helper()
	for _, addr := range addrs {
		if c := l.watch.find(addr); len(c) != 0 {
			l.t.Errorf("conflict of %s: got %v, want none", addr, c)
		}
	}
}
