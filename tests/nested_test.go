package tests

import (
	"fmt"
	"testing"

	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// inner creates a namespace that a veth connects with a bridge in another one.
func (l *lab) inner(name, outer, bridge string, addrs ...string) {
	l.t.Helper()
	if err := l.Namespace(name); err != nil {
		l.t.Fatal(err)
	}
	l.sh(
		fmt.Sprintf("ip -n %s link add p%s type veth peer name eth0 netns %s", outer, name, name),
		fmt.Sprintf("ip -n %s link set p%s master %s up", outer, name, bridge),
		fmt.Sprintf("ip -n %s link set eth0 up", name))
	l.assign(name, addrs...)
}

// bridge creates a bridge in a namespace.
func (l *lab) bridge(ns, name string, addrs ...string) {
	l.t.Helper()
	l.sh(fmt.Sprintf("ip -n %s link add %s type bridge", ns, name), fmt.Sprintf("ip -n %s link set %s up", ns, name))
	for _, a := range addrs {
		l.sh(fmt.Sprintf("ip -n %s addr add %s dev %s", ns, a, name))
	}
}

// Incident 47, moby/moby#40989: two tasks of Docker Swarm have one address on an overlay network, whose bridge and
// VXLAN device are in a namespace of their own.
func TestIncidentAnOverlayNetworkGivesAnAddressTwice(t *testing.T) {
	t.Parallel()
	const endpoint, task, gateway = "10.6.6.3", "10.6.6.2", "10.6.6.1"
	c := newCluster(t, 2)
	i := c.incident(47)
	// As dockerd names the namespaces of a network: a counter, and the id of the network.
	docker := func(n *lab, file, name string) {
		n.sh("mkdir -p /run/docker/netns", "touch /run/docker/netns/"+file, "mount --bind /run/netns/"+name+" /run/docker/netns/"+file)
	}
	overlay := func(n *lab, counter int, id string) string {
		name := fmt.Sprint("overlay", counter)
		if err := n.Namespace(name); err != nil {
			t.Fatal(err)
		}
		n.bridge(name, "br0", gateway+"/24")
		docker(n, fmt.Sprintf("%d-%s", counter, id), name)
		return name
	}
	for k, n := range c.nodes {
		net0 := overlay(n, 1+9*k, "emdf5fejxq"[:10-k])
		n.inner(fmt.Sprint("lb", k), net0, "br0", []string{endpoint, "10.6.6.6"}[k]+"/24")
		docker(n, "lb_emdf5fejx", fmt.Sprint("lb", k))
		n.inner(fmt.Sprint("task", k), net0, "br0", fmt.Sprintf("10.6.6.1%d/24", k))
	}
	// Networks of two swarms may have the same range.
	n := c.nodes[1]
	other := overlay(n, 20, "yjbm3a1twd")
	n.inner("other", other, "br0", "10.6.6.6/24", "10.6.6.10/24")
	c.awaitOwners(gateway, 3)
	c.awaitOwners("10.6.6.6", 2)
	c.wantOnlyPlanted()

	c.nodes[0].assign("task0", endpoint+"/24")
	c.wantConflict(endpoint, ipwitnessv1.Conflict_CONFIRMED, "assigned-twice", "lb0 | task0", "LINK node1/overlay@emdf5fej")
	c.nodes[0].assign("task0", task+"/24")
	n.assign("task1", task+"/24")
	i.conflicted(task, "unknown")
	c.wantConflict(task, ipwitnessv1.Conflict_CONFIRMED, "assigned-twice", "task0 | task1", "NETWORK overlay@emdf5fej")
	const del = "ip -n task1 addr del " + task + "/24 dev eth0"
	n.sh(del)
	i.remedied(del)
}

// Bridges in namespaces of a node are links like any other; those of other nodes on the machine are not the node's.
func TestTwinsOnABridgeInsideANamespace(t *testing.T) {
	t.Parallel()
	const twins, rootless, separate = "172.20.0.5", "172.20.0.7", "172.20.0.6"
	const one, two = "cni-6b2a4a5c-1f0e-4ad8-9c3b-0d5c6ad1a001", "cni-6b2a4a5c-1f0e-4ad8-9c3b-0d5c6ad1a002" // as a runtime names them
	l := newLab(t)
	for i, outer := range []string{one, two} {
		if err := l.Namespace(outer); err != nil {
			t.Fatal(err)
		}
		l.sh(fmt.Sprintf("ip link add v%d type veth peer name eth0 netns %s", i, outer))
		l.bridge(outer, "br0", "172.20.0.1/24")
	}
	l.inner("a", one, "br0", twins+"/24", separate+"/24")
	l.inner("b", one, "br0", "172.20.0.2/24")
	l.inner("c", two, "br0", separate+"/24", "172.20.0.3/24")
	l.awaitOwners(separate, 2)
	// These are on a switch that does not belong to the node.
	if err := l.Namespace("switch"); err != nil {
		t.Fatal(err)
	}
	l.bridge("switch", "br0")
	for _, name := range []string{"f", "g"} {
		l.inner(name, "switch", "br0", "172.20.2.5/24")
	}
	l.wantOnlyPlanted()

	l.assign("b", twins+"/24")
	l.watch.await("twins", between(twins, ipwitnessv1.Conflict_CONFIRMED, "a | b"))
	l.assign("a", "172.20.0.1/24") // the bridge's
	l.watch.await("twin of the bridge", inState("172.20.0.1", ipwitnessv1.Conflict_CONFIRMED))
	// Nested once more.
	l.bridge("b", "br9")
	l.inner("h", "b", "br9", rootless+"/24")
	l.inner("i", "b", "br9", rootless+"/24")
	l.watch.await("twins two levels below", between(rootless, ipwitnessv1.Conflict_CONFIRMED, "h | i"))
	l.sh("ip netns del i")
	l.watch.await("the end of one of them", inState(rootless, ipwitnessv1.Conflict_RESOLVED))
	l.sh("ip -n " + one + " link del br0")
	l.watch.await("the end of the link", inState(twins, ipwitnessv1.Conflict_RESOLVED))
}

// Nothing of the networks of rootless containers leads to the node; they belong to another user namespace. The
// agents of all tests see them, so that no other test runs meanwhile.
func TestTwinsOfRootlessContainers(t *testing.T) {
	slow(t) // and not beside others: their agents would see these namespaces, too
	const addr = "10.89.0.5"
	l := newLab(t)
	cmd := l.Command("unshare", "--user", "--map-root-user", "--net", "--mount", "--pid", "--fork", "--kill-child=KILL", "sh", "-euc", `
		mount -t tmpfs t /run
		mkdir /run/netns
		ip link add podman1 type bridge
		ip link set podman1 up
		for c in a b; do
			ip netns add $c
			ip link add v$c type veth peer name eth0 netns $c
			ip link set v$c master podman1 up
			ip -n $c addr add 10.89.0.5/24 dev eth0
			ip -n $c link set eth0 up
			ip netns exec $c sleep 1000 &
		done
		wait`)
	if err := l.Start(cmd); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	l.watch.await("twins", inState(addr, ipwitnessv1.Conflict_CONFIRMED))
	if got := l.only(addr).GetOwners(); len(got) != 2 || l.only(addr).GetScope().GetKind() != ipwitnessv1.Scope_LINK {
		t.Errorf("got %v, want two owners on a link", l.only(addr))
	}
}

// A container may bridge its own interface with those of the containers that it runs.
func TestContainersBehindABridgePortAreNamespacesOfTheNode(t *testing.T) {
	t.Parallel()
	const twins = "10.9.0.11"
	const outer = "cni-6b2a4a5c-1f0e-4ad8-9c3b-0d5c6ad1a001" // as a runtime names it
	l := newLab(t)
	l.sh("ip link add br0 type bridge", "ip link set br0 up", "ip addr add 10.9.0.1/24 dev br0")
	if err := l.Namespace(outer); err != nil {
		t.Fatal(err)
	}
	l.sh("ip link add vouter type veth peer name eth0 netns "+outer, "ip link set vouter master br0 up", "ip -n "+outer+" link set eth0 up")
	l.bridge(outer, "br1", "10.9.0.2/24")
	l.sh("ip -n " + outer + " link set eth0 master br1")
	l.inner("in1", outer, "br1", twins+"/24")
	l.inner("in2", outer, "br1", "10.9.0.12/24")
	l.pod("web", "10.9.0.13/24")
	l.sh("ip link set vweb master br0")
	for _, from := range [][2]string{{"in1", twins}, {"in2", "10.9.0.12"}, {"web", "10.9.0.13"}} {
		l.ask(from[0], from[1], "10.9.0.99")
	}
	l.awaitOwner(twins, "in1")
	l.awaitOwner("10.9.0.12", "in2")
	l.wantOnlyPlanted()
	l.awaitFindings()
	l.assign("web", twins+"/24")
	l.watch.await("twins", between(twins, ipwitnessv1.Conflict_CONFIRMED, "in1 | web"))
}
