package tests

import (
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"

	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// vip is a virtual address on the LAN that (*cluster).shared creates.
const vip = "192.0.2.50"

// keepalived starts a real keepalived on a node. It moves vip by VRRP, and does not take the address
// back from another node (nopreempt).
func (l *lab) keepalived() *exec.Cmd {
	l.t.Helper()
	return l.keepalivedOf(vip)
}

// keepalivedOf starts a real keepalived that moves an address.
func (l *lab) keepalivedOf(addr string) *exec.Cmd {
	l.t.Helper()
	write(l.t, l.Path("/run/keepalived.conf"), fmt.Sprintf(`global_defs {
  router_id %[1]s
  vrrp_version 3
}
vrrp_instance vip {
  state BACKUP
  nopreempt
  interface eth0
  virtual_router_id 51
  priority %[2]d
  advert_int 0.2
  virtual_ipaddress {
    %[3]s/32 dev eth0
  }
}
`, l.name, 150-l.number, addr))
	// setsid makes its processes a group.
	cmd := l.Command("setsid", "keepalived", "--dont-fork", "--vrrp", "--use-file", "/run/keepalived.conf", "--pid", "/run/keepalived.pid", "--vrrp_pid", "/run/vrrp.pid")
	if err := l.Start(cmd); err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { endGroup(cmd, syscall.SIGKILL) })
	return cmd
}

// moves runs a program that agents take for one that moves virtual addresses, and waits until that is reported.
func (c *cluster) moves(name string) {
	c.t.Helper()
	for _, l := range c.nodes {
		cmd := l.Command("sh", "-c", "cp \"$(command -v sleep)\" /run/"+name+" && exec /run/"+name+" 1000")
		if err := l.Start(cmd); err != nil {
			c.t.Fatal(err)
		}
		c.t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		c.awaitProgram(l.name, name, false)
	}
}

// endGroup ends a program and its children with a signal, and waits for the program.
func endGroup(cmd *exec.Cmd, by syscall.Signal) {
	_ = syscall.Kill(-cmd.Process.Pid, by)
	_ = cmd.Wait()
}

// has waits until the kernel of exactly one of the nodes has vip.
func (c *cluster) has(n *lab) {
	c.t.Helper()
	wait.Until(c.t, n.name+" alone to have "+vip, func() bool {
		for _, other := range c.nodes {
			out, err := other.Run("ip -br -4 addr show dev eth0")
			if err != nil {
				c.t.Fatal(err)
			}
			if strings.Contains(out, vip+"/") != (other == n) {
				return false
			}
		}
		return true
	})
}

// killedKeepalived returns a cluster in which a keepalived was killed and left vip behind, after the
// other one took it over. The agents know which of them runs.
func killedKeepalived(t *testing.T) *cluster {
	t.Helper()
	c := newCluster(t, 2, "--handover-grace", "2s")
	c.shared()
	first := c.nodes[0].keepalived()
	c.has(c.nodes[0])
	c.nodes[1].keepalived()
	c.awaitProgram("node1", "keepalived", false)
	c.awaitProgram("node2", "keepalived", false)
	endGroup(first, syscall.SIGKILL)
	c.awaitProgram("node1", "keepalived", true)
	return c
}

// awaitProgram waits until an agent has reported the program that moves virtual addresses.
func (c *cluster) awaitProgram(node, name string, ended bool) {
	c.t.Helper()
	wait.Until(c.t, fmt.Sprintf("%s to have %s, ended %t", node, name, ended), func() bool {
		n := c.nodeCalled(node)
		return n.GetVipProgram() == name && n.GetVipProgramEnded() == ended
	})
}

func TestKeepalivedHandsOverAndIsKilled(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2, "--handover-grace", "3s")
	c.shared()
	one, two := c.nodes[0], c.nodes[1]
	first := one.keepalived()
	c.has(one)
	second := two.keepalived()
	c.evidence(vip, "node1", "ASSIGNED eth0", "ANNOUNCED node2/eth0")
	// Hand-overs in both directions.
	endGroup(first, syscall.SIGTERM)
	c.has(two)
	c.wantHolders(map[string][]string{vip: {"node2/node2"}, "192.0.2.1": {"node1/node1"}, "192.0.2.2": {"node2/node2"}})
	first = one.keepalived()
	endGroup(second, syscall.SIGTERM)
	c.has(one)
	c.wantHolders(map[string][]string{vip: {"node1/node1"}, "192.0.2.1": {"node1/node1"}, "192.0.2.2": {"node2/node2"}})
	two.keepalived()
	c.wantOnlyPlanted()

	c.awaitProgram("node1", "keepalived", false)
	c.awaitProgram("node2", "keepalived", false)
	endGroup(first, syscall.SIGKILL)
	c.wantConflict(vip, confirmed, "split-brain", "node1 | node2", "LINK node1/eth0", "node node1 itself", "node node2 itself")
	c.wantCause(vip, "split-brain")
	wait.Until(t, "the remedy to name the node that keeps the address", func() bool {
		remedy := c.only(vip).GetRemedy()
		return len(remedy) > 1 && len(remedy[0].GetChoice()) == 0
	})
	for _, a := range c.only(vip).GetRemedy() {
		if a.GetNode() == "node2" || len(a.GetChoice()) > 0 {
			t.Errorf("got the step %v, want none that concerns the healthy node", a)
		}
	}
	one.sh(commandOn(t, c.only(vip).GetRemedy(), "node1"))
	c.watch.await("the conflict to be resolved", inState(vip, ipwitnessv1.Conflict_RESOLVED))
	c.has(two)
}

// Incident 64, acassen/keepalived#2091: the virtual address is node1's own one. keepalived there has no other address to send from,
// so that the one on node2 becomes master. The virtual address of the pair is then another one.
func TestIncidentTheVirtualAddressIsThatOfANode(t *testing.T) {
	t.Parallel()
	const own = "192.0.2.1"
	c := newCluster(t, 2)
	c.shared()
	i := c.incident(64)
	var both []*exec.Cmd
	for _, n := range c.nodes {
		both = append(both, n.keepalivedOf(own))
		c.awaitProgram(n.name, "keepalived", false)
	}
	i.conflicted(own, "unknown")
	if remedy := c.only(own).GetRemedy(); len(remedy) == 0 || len(remedy[0].GetChoice()) != 3 {
		t.Errorf("got remedy %v, want the choice which of them changes", remedy)
	}
	for n, cmd := range both {
		endGroup(cmd, syscall.SIGTERM)
		c.nodes[n].keepalived()
	}
	i.remedied()
	c.has(c.nodes[0])
	c.wantOnlyPlanted(own)
}

// commandOn returns the only command of a remedy that is to be run on a node.
func commandOn(t *testing.T, remedy []*ipwitnessv1.Action, node string) (command string) {
	t.Helper()
	for _, a := range remedy {
		if a.GetNode() != node || a.GetCommand() == "" {
			continue
		}
		if command != "" {
			t.Fatalf("got several commands on %s: %v", node, remedy)
		}
		command = a.GetCommand()
	}
	if command == "" {
		t.Fatalf("got no command on %s: %v", node, remedy)
	}
	return command
}

// vips is a cluster with two nodes on one LAN, and a Kubernetes API in which controllers assign vip to
// a node.
type vips struct {
	*cluster
	api *api
	// silence has the functions that end the programs that speak, by node.
	silence map[string]func()
}

// newVIPs creates such a cluster. The nodes remain on one LAN only while frames show it, so they
// announce their own addresses until the test ends.
func newVIPs(t *testing.T) *vips {
	t.Helper()
	h := newHost(t)
	a, kubeconfig := serveAPI(t, h)
	v := &vips{newAggregatorOn(t, h, "--handover-grace", "3s", "--stale-after", "10s", "--kubeconfig", kubeconfig), a, map[string]func(){}}
	for _, name := range []string{"node1", "node2"} {
		a.put(t, "nodes", "", name, "{}")
		v.addNode(name)
	}
	v.awaitNodes(v.nodes...)
	v.shared()
	talks(t, func() {
		for _, n := range v.nodes {
			n.announce("/eth0", fmt.Sprintf("192.0.2.%d", n.number))
		}
	})
	return v
}

// kubeVIP has kube-vip elect a node.
func (v *vips) kubeVIP(node string) {
	v.t.Helper()
	v.api.put(v.t, "services", "shop", "web", `{"metadata": {"annotations": {"kube-vip.io/vipHost": "`+node+`"}},
		"spec": {"type": "LoadBalancer"}, "status": {"loadBalancer": {"ingress": [{"ip": "`+vip+`"}]}}}`)
}

// metallb has a speaker of MetalLB announce the Service. The speaker that did so before deletes its
// object.
func (v *vips) metallb(node string) {
	v.t.Helper()
	v.api.put(v.t, "services", "shop", "web", `{"spec": {"type": "LoadBalancer"}, "status": {"loadBalancer": {"ingress": [{"ip": "`+vip+`"}]}}}`)
	v.api.put(v.t, "servicel2statuses", "metallb-system", "l2-"+node, `{"status": {"node": "`+node+`", "serviceName": "web", "serviceNamespace": "shop", "interfaces": [{"name": "eth0"}]}}`)
	for _, other := range v.nodes {
		if other.name != node && v.api.has("servicel2statuses", "l2-"+other.name) {
			v.api.drop("servicel2statuses", "l2-"+other.name)
		}
	}
}

// egressIP has OVN-Kubernetes assign vip to a node, and another address to the other one.
func (v *vips) egressIP(node, other string) {
	v.t.Helper()
	v.api.put(v.t, "egressips", "", "prod", `{"spec": {"egressIPs": ["`+vip+`", "192.0.2.51"]}, "status": {"items": [{"node": "`+node+`", "egressIP": "`+vip+`"}, {"node": "`+other+`", "egressIP": "192.0.2.51"}]}}`)
}

// says makes a program on a node announce vip and answer a request for it once, although no kernel
// has it.
func (v *vips) says(node string) {
	v.t.Helper()
	n := v.nodes[slices.IndexFunc(v.nodes, func(n *lab) bool { return n.name == node })]
	n.announce("/eth0", vip)
	n.answer(vip)
}

// speaks makes a program on a node announce vip and answer requests for it until it is silent.
func (v *vips) speaks(node string) {
	v.t.Helper()
	v.silence[node] = talks(v.t, func() { v.says(node) })
}

// silent ends the program on a node that speaks.
func (v *vips) silent(node string) { v.silence[node]() }

// answer makes a program on a node answer a request for an address.
func (l *lab) answer(addr string) {
	l.t.Helper()
	l.arp("/eth0", 2, l.mac("/eth0"), addr, "192.0.2.77")
}

// heldElsewhere returns the nodes of the findings vip-held-elsewhere, by address.
func (v *vips) heldElsewhere() (found []string) {
	v.t.Helper()
	for _, f := range v.findings("?kind=vip-held-elsewhere") {
		found = append(found, f.GetAddress()+" "+strings.Join(f.GetNodes(), ","))
	}
	return found
}

// wantHeldElsewhere waits for the findings.
func (v *vips) wantHeldElsewhere(want ...string) {
	v.t.Helper()
	wait.Until(v.t, fmt.Sprintf("vip-held-elsewhere %q", want), func() bool { return slices.Equal(v.heldElsewhere(), want) })
}

func TestVirtualAddressesOfControllers(t *testing.T) {
	t.Parallel()
	t.Run("kube-vip", func(t *testing.T) {
		t.Parallel()
		v := newVIPs(t)
		one, two := v.nodes[0], v.nodes[1]
		take := func(n *lab) { n.sh("ip addr add " + vip + "/32 dev eth0"); n.announce("/eth0", vip) }
		v.kubeVIP("node1")
		take(one)
		v.evidence(vip, "node1", "ASSIGNED eth0", "ANNOUNCED node2/eth0")
		// A hand-over.
		take(two)
		v.kubeVIP("node2")
		one.sh("ip addr del " + vip + "/32 dev eth0")
		v.wantOnlyPlanted()
		if got := v.heldElsewhere(); len(got) > 0 {
			t.Errorf("after a hand-over: got %q, want no finding", got)
		}
		// The new leader does not take the address yet, and then both have it.
		v.kubeVIP("node1")
		v.wantHeldElsewhere(vip + " node2")
		v.wantOnlyPlanted() // the finding is no conflict
		take(one)
		v.wantHeldElsewhere(vip + " node2,node1")
		v.wantConflict(vip, confirmed, "split-brain", "node1 | node2", "LINK node1/eth0", "node node1 itself", "node node2 itself")
		two.sh(commandOn(t, v.only(vip).GetRemedy(), "node2"))
		v.watch.await("the conflict to be resolved", inState(vip, ipwitnessv1.Conflict_RESOLVED))
		v.wantHeldElsewhere()
		v.has(one)
	})
	t.Run("MetalLB", func(t *testing.T) {
		t.Parallel()
		v := newVIPs(t)
		v.metallb("node1")
		v.speaks("node1")
		v.evidence(vip, "node1", "ANNOUNCED node2/eth0", "ANSWERED node2/eth0")
		// A hand-over: the speakers overlap for a moment.
		v.silent("node1")
		v.metallb("node2")
		v.speaks("node2")
		v.says("node1")
		v.evidence(vip, "node2", "ANNOUNCED node1/eth0", "ANSWERED node1/eth0")
		v.wantOnlyPlanted()
		if got := v.heldElsewhere(); len(got) > 0 {
			t.Errorf("after a hand-over: got %q, want no finding", got)
		}
		// The old speaker goes on.
		v.speaks("node1")
		v.wantHeldElsewhere(vip + " node1,node2")
		v.watch.await("the conflict to be confirmed", inState(vip, confirmed))
		// It ends.
		v.silent("node1")
		v.wantHeldElsewhere()
	})
	t.Run("EgressIP", func(t *testing.T) {
		t.Parallel()
		v := newVIPs(t)
		one, two := v.nodes[0], v.nodes[1]
		v.egressIP("node1", "node2")
		silence := talks(t, func() { one.answer(vip); two.answer("192.0.2.51") })
		v.evidence(vip, "node1", "ANSWERED node2/eth0")
		v.evidence("192.0.2.51", "node2", "ANSWERED node1/eth0")
		v.wantOnlyPlanted()
		if got := v.heldElsewhere(); len(got) > 0 {
			t.Errorf("two addresses on two nodes: got %q, want no finding", got)
		}
		v.egressIP("node2", "node1")
		v.wantHeldElsewhere(vip+" node1", "192.0.2.51 node2")
		v.wantOnlyPlanted()
		i := v.incident(27)
		i.foretold("vip-held-elsewhere", vip)
		i.found("vip-held-elsewhere", vip)
		// When ovnkube-node starts, it removes the addresses that are not assigned to its node.
		silence()
		talks(t, func() { two.answer(vip); one.answer("192.0.2.51") })
		v.wantHeldElsewhere()
		i.remedied("kubectl delete pods -A -l app=ovnkube-node --field-selector spec.nodeName=node1")
	})
}

// A keepalived in a namespace is killed and leaves the address behind; the one that takes over was started a moment ago.
func TestKeepalivedInANamespaceIsKilled(t *testing.T) {
	t.Parallel()
	const addr = "10.9.0.100"
	l := newLab(t, "--handover-grace", "2s")
	l.sh("ip link add br0 type bridge", "ip link set br0 up", "ip addr add 10.9.0.1/24 dev br0")
	l.sh("mkdir /run/bin", "cp /bin/sleep /run/bin/keepalived")
	run := func(name, program string) *exec.Cmd {
		cmd := l.Command("ip", "netns", "exec", name, program, "1000")
		if err := l.Start(cmd); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		return cmd
	}
	for i, name := range []string{"old", "new"} {
		l.pod(name, fmt.Sprintf("10.9.0.1%d/24", i+1))
		l.sh("ip link set v" + name + " master br0")
		run(name, "sleep")
	}
	first := run("old", "/run/bin/keepalived")
	l.assign("old", addr+"/24")
	wait.Until(t, "the program in the namespace to be seen", func() bool {
		owners := l.owners("?address=" + addr)
		return len(owners) == 1 && owners[0].GetWorkload().GetVipProgram() == "keepalived"
	})
	run("new", "/run/bin/keepalived")
	_ = first.Process.Kill()
	_ = first.Wait()
	l.assign("new", addr+"/24")
	l.watch.await("the conflict to be confirmed", inState(addr, confirmed))
	c := l.only(addr)
	if c.GetRule() != "split-brain" || c.GetCause() != "split-brain" {
		t.Errorf("got rule %s and cause %s, want split-brain", c.GetRule(), c.GetCause())
	}
	command := commandOn(t, c.GetRemedy(), "node1")
	if want := "ip netns exec old ip addr del " + addr + "/24 dev eth0"; command != want {
		t.Fatalf("got command %q, want %q", command, want)
	}
	l.sh(command)
	l.watch.await("the conflict to be resolved", inState(addr, ipwitnessv1.Conflict_RESOLVED))
}
