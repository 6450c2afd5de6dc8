package verdict_test

import (
	"testing"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/tests/verdicttest"
)

// These tests cover rows of situations.md that need devices which not every kernel supports. The
// tests of the agent cover how it reports such devices; these tests cover the verdict.

func TestT4IPVLANPodsOfOneParent(t *testing.T) {
	w := newWorld("192.168.1.100")
	eth0 := w.Uplink("n1")
	// ipvlan children have the hardware address of their parent.
	a := w.Assigned(w.Child("a", "uplkn1", eth0.Link))
	b := w.Assigned(w.Child("b", "uplkn1", eth0.Link))
	w.want(t, verdict.Suspected, verdict.RuleAssignedTwice, verdict.LinkScope, "n1/eth0")
	w.after(time.Second).Read(a, b)
	w.want(t, verdict.Confirmed, verdict.RuleAssignedTwice, verdict.LinkScope, "n1/eth0")
}

func TestT4PodOnAVLANAndAMachineOnIt(t *testing.T) {
	w := newWorld("192.168.1.100")
	eth0 := w.Uplink("n1")
	vlan10 := w.Link("n1", "eth0.10", verdict.Uplink, false)
	own := w.Assigned(w.Child("a", "baaaaa", vlan10))
	machine := w.Wire(eth0, "ttrang")
	machine.Link, machine.VLAN = vlan10, 10
	w.want(t, verdict.Suspected, verdict.RuleAssignedAndWire, verdict.LinkScope, "n1/eth0.10")
	w.after(time.Second).Read(own)
	w.Seen(machine)
	w.want(t, verdict.Confirmed, verdict.RuleAssignedAndWire, verdict.LinkScope, "n1/eth0.10")
}

func TestL14BondWhosePortsHaveTheirOwnMACs(t *testing.T) {
	w := newWorld("192.168.1.10")
	l := w.Link("n1", "bond0", verdict.Uplink, false)
	bond := w.Interface(w.Host("n1"), verdict.Interface{Name: "bond0", MAC: "eth0e0", Attachment: verdict.Own, Link: l})
	own := w.Assigned(bond)
	for _, port := range []string{"eth0", "eth1"} {
		w.Interface(w.Host("n1"), verdict.Interface{Name: port, MAC: verdict.MAC(port + port[2:]), Attachment: verdict.Own, Link: l, Uplink: true})
	}
	// Frames that one port sends come back through the other port, before and after a fail-over.
	ports := w.Interfaces[len(w.Interfaces)-2:]
	w.Wire(ports[0], string(ports[1].MAC))
	w.Wire(ports[1], string(ports[0].MAC))
	w.wantNone(t)
	w.after(time.Second).Read(own)
	if out := w.wantNone(t); len(out.Owners) != 1 || len(out.Owners[0].Claims) != 3 {
		t.Errorf("got owners %+v, want the node with three claims", out.Owners)
	}
	w.wantRule(t, verdict.RuleOneNamespace)
}

func TestL14BondOfAMachineOutsideFailsOver(t *testing.T) {
	w := newWorld("192.168.1.20")
	eth0 := w.Uplink("n1")
	w.Wire(eth0, "bond-a")
	w.after(time.Second).Wire(eth0, "bond-b") // fail_over_mac=active: one change of the MAC
	w.wantNone(t)
	w.wantRule(t, verdict.RuleMACChanged)
}

func TestL15IPVLANPodsShareOneMAC(t *testing.T) {
	w := newWorld("192.168.1.100")
	eth0 := w.Uplink("n1")
	for _, name := range []string{"x", "y", "z"} {
		w.Child(name, "uplkn1", eth0.Link)
	}
	own := w.Child("a", "uplkn1", eth0.Link)
	w.Assigned(own)
	second := w.Interface(w.Host("n1"), verdict.Interface{Name: "eth1", MAC: "eth1e1", Attachment: verdict.Own, Link: eth0.Link, Uplink: true})
	w.Wire(second, "uplkn1") // the same frames, seen by another interface on the LAN
	out := w.wantNone(t)
	if len(out.Owners) != 1 || out.Owners[0].Workload().Name != "a" || len(out.Owners[0].Claims) != 2 {
		t.Errorf("got owners %+v, want a with both claims", out.Owners)
	}
	w.wantRule(t, verdict.RuleOneOwner)
}

func TestL17PortsOfOneBridgeInDifferentVLANs(t *testing.T) {
	w := newWorld("10.0.0.5")
	for i, vlan := range []string{"cni0.10", "cni0.20"} {
		inside, _ := w.Veth(w.Namespace("n1", uint32(i+2), "10"+vlan, verdicttest.Pod(vlan)), "pod-"+vlan, w.Link("n1", vlan, verdict.Bridge, false))
		w.Assigned(inside)
	}
	w.wantNone(t)
	w.wantRule(t, verdict.RuleDifferentLinks)

	inside, _ := w.Veth(w.Namespace("n1", 4, "104", verdicttest.Pod("c")), "pod-cc", w.Link("n1", "cni0.10", verdict.Bridge, false))
	w.Assigned(inside)
	w.want(t, verdict.Suspected, verdict.RuleAssignedTwice, verdict.LinkScope, "n1/cni0.10")
}
