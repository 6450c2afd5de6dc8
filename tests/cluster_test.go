package tests

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"

	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/netlab"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// cluster is an aggregator on its own machine, and nodes that report to it. The embedded lab is the
// aggregator's machine, where queries run.
type cluster struct {
	*lab
	nodes  []*lab
	flags  []string // flags of the aggregator
	cables int      // number of cables to nodes
}

// newCluster starts an aggregator and the given number of nodes, called node1 and so on, each with
// its agent, and waits until they are connected.
func newCluster(t *testing.T, nodes int, args ...string) *cluster {
	t.Helper()
	c := newAggregator(t, args...)
	for i := range nodes {
		c.addNode(fmt.Sprintf("node%d", i+1))
	}
	c.awaitNodes(c.nodes...)
	return c
}

// newAggregator starts an aggregator without agents.
func newAggregator(t *testing.T, args ...string) *cluster {
	t.Helper()
	return newAggregatorAt(t, newHost(t), args...)
}

// newAggregatorAt starts an aggregator without agents on a host.
func newAggregatorAt(t *testing.T, h *netlab.Host, args ...string) *cluster {
	t.Helper()
	c := &cluster{lab: &lab{Host: h, service: &service{at: h}, t: t}, flags: args}
	c.serve()
	return c
}

// serve starts the aggregator.
func (c *cluster) serve() {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), patience)
	defer cancel()
	p, err := c.Aggregator(ctx, binary, c.flags...)
	if err != nil {
		c.t.Fatal(err)
	}
	killed(c.t, "the aggregator", p)
	// The labs of all nodes query the new aggregator from now on.
	c.program, c.watch = p, watchConflicts(c.t, p)
}

// addNode creates a node, connects it to the aggregator and starts its agent.
func (c *cluster) addNode(name string) *lab {
	c.t.Helper()
	n := c.addMachine(newHost(c.t), name, len(c.nodes)+1)
	n.boot(n.number)
	n.report(c)
	return n
}

// addMachine makes a host a node without an agent.
func (c *cluster) addMachine(h *netlab.Host, name string, number int) *lab {
	h.InOrder = true
	n := &lab{Host: h, service: c.service, t: c.t, name: name, number: number}
	c.nodes = append(c.nodes, n)
	return n
}

// boot gives the node a boot ID of its own. Otherwise all nodes have that of the one kernel.
func (l *lab) boot(id int) {
	l.t.Helper()
	if err := l.Boot(bootID(id)); err != nil {
		l.t.Fatal(err)
	}
}

func bootID(id int) string { return fmt.Sprintf("b007%04d-0000-4000-8000-000000000000", id) }

// report starts the agent of a node. The node has a point-to-point cable to each aggregator, so
// that the management network does not join links.
func (l *lab) report(to ...*cluster) {
	l.t.Helper()
	var args []string
	for _, c := range to {
		args = append(args, "--aggregator", l.managed(c)+":9640")
	}
	l.witness(args...)
}

// witness starts the agent of a node, and keeps its arguments for a restart.
func (l *lab) witness(args ...string) {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(l.t.Context(), patience)
	defer cancel()
	l.args = args
	p, err := l.Agent(ctx, binary, append([]string{"--node", l.name, "--exclude-interfaces", "mgmt*"}, args...)...)
	if err != nil {
		l.t.Fatal(err)
	}
	killed(l.t, "the agent of "+l.name, p)
	l.agent = p
}

// managed connects a node to an aggregator, and returns the aggregator's address on that cable.
func (l *lab) managed(c *cluster) string {
	l.t.Helper()
	near, far := fmt.Sprintf("mgmt%d", len(l.lines)+1), fmt.Sprintf("node%d", c.cables+1)
	if err := l.Cable(near, c.Host, far); err != nil {
		l.t.Fatal(err)
	}
	// The addresses must differ between the nodes of one aggregator and between the aggregators of
	// one node.
	server := netip.AddrFrom4([4]byte{198, 18, byte(len(l.lines)), byte(2 * c.cables)})
	client := server.Next()
	c.cables++
	c.sh(fmt.Sprintf("ip addr add %s peer %s dev %s", server, client, far))
	l.sh(fmt.Sprintf("ip addr add %s peer %s dev %s", client, server, near))
	l.lines = append(l.lines, line{c, far})
	return server.String()
}

// line is the far end of a node's management cable.
type line struct {
	to     *cluster
	ifname string
}

// cut disconnects a node's management cables at the far end: no frames pass, and the node does not
// notice. mend connects them again.
func (l *lab) cut()  { l.t.Helper(); l.plugged("down") }
func (l *lab) mend() { l.t.Helper(); l.plugged("up") }

func (l *lab) plugged(state string) {
	l.t.Helper()
	for _, m := range l.lines {
		m.to.sh("ip link set " + m.ifname + " " + state)
	}
}

// awaitNodes waits until the agents of nodes are connected.
func (c *cluster) awaitNodes(nodes ...*lab) {
	c.t.Helper()
	for _, n := range nodes {
		c.awaitNode(n.name, ipwitnessv1.Node_LIVE)
	}
}

// awaitNode waits until a node is in a state.
func (c *cluster) awaitNode(name string, state ipwitnessv1.Node_State) {
	c.t.Helper()
	wait.Until(c.t, fmt.Sprintf("%s to be %s", name, state), func() bool {
		return slices.ContainsFunc(c.allNodes(), func(n *ipwitnessv1.Node) bool {
			return n.GetName() == name && n.GetState() == state
		})
	})
}

// allNodes lists the nodes that the aggregator knows.
func (c *cluster) allNodes() []*ipwitnessv1.Node {
	c.t.Helper()
	nodes, err := c.program.Nodes(c.t.Context())
	if err != nil {
		c.t.Fatal(err)
	}
	return nodes
}

// plant plants a duplicate on every node. Once it is confirmed, everything that the nodes reported
// a settle time earlier has been judged, too.
func (c *cluster) plant() {
	c.t.Helper()
	var seeds []string
	for _, n := range c.nodes {
		seeds = append(seeds, n.plantUnconfirmed())
	}
	for _, addr := range seeds {
		c.grown(addr)
	}
}

// wantOnlyPlanted plants duplicates, and fails if any other conflict is or was confirmed, except
// for the given addresses.
func (c *cluster) wantOnlyPlanted(addrs ...string) {
	c.t.Helper()
	c.plant()
	c.wantConfirmed(addrs...)
}

// join connects a node's eth0 to the switch and gives it an address, and a MAC that identifies the
// node in texts.
func (n *lan) join(node *lab, addr string) (port string) {
	n.t.Helper()
	port = n.cable(node, "eth0")
	node.sh(fmt.Sprintf("ip link set eth0 address 02:00:00:00:0e:%02x", node.number), "ip addr add "+addr+" dev eth0")
	return port
}

// shared creates an external LAN, 192.0.2.0/24, and connects all nodes to it: node1 has 192.0.2.1,
// and so on. The nodes receive each other's frames, and so the aggregator knows that it is one LAN.
func (c *cluster) shared() *lan {
	c.t.Helper()
	out := newLAN(c.t)
	for _, n := range c.nodes {
		out.join(n, fmt.Sprintf("192.0.2.%d/24", n.number))
		n.ports(1)
	}
	c.meet()
	return out
}

// meet makes the nodes receive each other's frames on eth0, in 192.0.2.0/24.
func (c *cluster) meet() {
	c.t.Helper()
	for _, n := range c.nodes {
		own := fmt.Sprintf("192.0.2.%d", n.number)
		n.announce("/eth0", own)
		for _, other := range c.nodes {
			if other != n {
				c.seen(own, other.name+"/eth0")
			}
		}
	}
}

// seen waits until an address was seen on the wire at a port, given as NODE/IFACE.
func (c *cluster) seen(addr, witness string) {
	c.t.Helper()
	wait.Until(c.t, fmt.Sprintf("%s to be seen by %s", addr, witness), func() bool {
		return slices.ContainsFunc(c.owners("?address="+addr), func(o *ipwitnessv1.Owner) bool {
			return slices.ContainsFunc(o.GetEvidence(), func(e *ipwitnessv1.Evidence) bool {
				return e.GetKind() != ipwitnessv1.Evidence_ASSIGNED && e.GetWitness() == witness
			})
		})
	})
}

// add creates pods by a plugin.
func add(t *testing.T, network *netlab.CNI, pods ...string) {
	t.Helper()
	for _, pod := range pods {
		if err := network.Add(pod); err != nil {
			t.Fatal(err)
		}
	}
}

// wantHolders waits until the aggregator reports exactly these owners of these addresses, each as
// NODE/NAME. NAME is the workload with its namespace, or the MAC of an external device. An empty
// list means that nobody holds the address. Addresses that the lab itself needs are ignored:
// management cables, planted duplicates and link-local addresses.
func (c *cluster) wantHolders(want map[string][]string) {
	c.t.Helper()
	text := func(holders map[string][]string) string {
		var lines []string
		for addr, names := range holders {
			if len(names) > 0 {
				lines = append(lines, addr+" "+strings.Join(slices.Sorted(slices.Values(names)), " | "))
			}
		}
		return strings.Join(slices.Sorted(slices.Values(lines)), "\n")
	}
	var got string
	defer func() {
		if c.t.Failed() {
			c.t.Logf("holders: got\n%s\nwant\n%s", got, text(want))
		}
	}()
	wait.Until(c.t, "exactly the right owners", func() bool {
		holders := map[string][]string{}
		for _, o := range c.everyOwner() {
			addr := netip.MustParseAddr(o.GetAddress())
			if o.GetExcluded() != "" || o.GetState() != ipwitnessv1.Owner_LIVE || addr.IsLinkLocalUnicast() ||
				plantedAddresses.Contains(addr) || management.Contains(addr) {
				continue
			}
			holders[addr.String()] = append(holders[addr.String()], o.GetNode()+"/"+nameOf(o))
		}
		got = text(holders)
		return got == text(want)
	})
}

// management contains the addresses of the cables to aggregators.
var management = netip.MustParsePrefix("198.18.0.0/15")

// nameOf returns the name that tests use for an owner.
func nameOf(o *ipwitnessv1.Owner) string {
	w := o.GetWorkload()
	switch {
	case w.GetKind() == ipwitnessv1.Workload_EXTERNAL:
		return o.GetMac()
	case w.GetNamespace() != "":
		return w.GetNamespace() + "/" + w.GetName()
	}
	return w.GetName()
}

// everyOwner lists all owners that the aggregator knows.
func (c *cluster) everyOwner() (all []*ipwitnessv1.Owner) {
	c.t.Helper()
	for token := ""; ; {
		var m ipwitnessv1.ListOwnersResponse
		if err := c.program.Get(c.t.Context(), "/v1/owners?page_size=10000&page_token="+token, &m); err != nil {
			c.t.Fatal(err)
		}
		all = append(all, m.GetOwners()...)
		if token = m.GetNextPageToken(); token == "" {
			return all
		}
	}
}

// wantActive waits until the active conflicts, except for planted ones, are exactly these, each
// given as ADDRESS STATE.
func (c *cluster) wantActive(want ...string) {
	c.t.Helper()
	var got []string
	defer func() {
		if c.t.Failed() {
			c.t.Logf("conflicts: got %q, want %q", got, want)
		}
	}()
	slices.Sort(want)
	wait.Until(c.t, "exactly the right conflicts", func() bool {
		got = nil
		for token, more := "", true; more; more = token != "" {
			var m ipwitnessv1.ListConflictsResponse
			if err := c.program.Get(c.t.Context(), "/v1/conflicts?page_size=10000&page_token="+token, &m); err != nil {
				c.t.Fatal(err)
			}
			for _, conflict := range m.GetConflicts() {
				if !isPlanted(conflict) {
					got = append(got, fmt.Sprint(conflict.GetAddress(), " ", conflict.GetState()))
				}
			}
			token = m.GetNextPageToken()
		}
		slices.Sort(got)
		return slices.Equal(got, want)
	})
}

// again stops the agent of a node by SIGTERM, and starts it with the same arguments.
func (l *lab) again() {
	l.t.Helper()
	if _, err := l.agent.Stop(); err != nil {
		l.t.Errorf("agent of %s: %v", l.name, err)
	}
	l.witness(l.args...)
}

// pause suspends the agent of a node, and goOn resumes it.
func (l *lab) pause()        { l.t.Helper(); l.signal(syscall.SIGSTOP) }
func (l *lab) awaitChanges() { l.t.Helper(); l.signal(syscall.SIGCONT) }
