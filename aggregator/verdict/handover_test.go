package verdict_test

import (
	"cmp"
	"strings"
	"testing"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// onLAN gives each node an uplink and makes their links one, with proof.
func onLAN(w *world, nodes ...string) (uplinks []*verdict.Interface) {
	d := &verdict.Domain{}
	for _, n := range nodes {
		i := uplink(w, n)
		if d.Node == nil {
			d.Node, d.Name = i.Link.Node, i.Link.Name
		}
		i.Link.Domain, i.Link.Proven = d, d
		uplinks = append(uplinks, i)
	}
	return uplinks
}

func TestT8TwoNodesKeepAVirtualAddress(t *testing.T) {
	w := newWorld("192.168.1.200")
	lan := onLAN(w, "n1", "n2")
	a, b := w.assigned(lan[0]), w.assigned(lan[1])
	c := w.want(t, verdict.Suspected, verdict.RuleSplitBrain, verdict.LinkScope, "n1/eth0")
	if !strings.Contains(c.Summary, "handed over") && !strings.Contains(c.Summary, "hand an address over") {
		t.Errorf("got %q, want it to say that this may be a hand-over", c.Summary)
	}
	w.after(9*time.Second).read(a, b)
	w.want(t, verdict.Suspected, verdict.RuleSplitBrain, verdict.LinkScope, "n1/eth0")
	w.after(time.Second)
	if out := w.judge(); len(out.Check) != 2 {
		t.Fatalf("got check %v, want both nodes asked", out.Check)
	}
	w.read(a, b)
	c = w.want(t, verdict.Confirmed, verdict.RuleSplitBrain, verdict.LinkScope, "n1/eth0")
	if c.Cause != verdict.CauseSplitBrain || !strings.Contains(c.Summary, "10s later") || !strings.Contains(strings.Join(flat(c.Remedy), " "), "keepalived") {
		t.Errorf("got cause %s, %q, %q, want a split brain", c.Cause, c.Summary, c.Remedy)
	}
}

func TestL6VirtualAddressMovesInTime(t *testing.T) {
	w := newWorld("192.168.1.200")
	lan := onLAN(w, "n1", "n2")
	a := w.assigned(lan[0])
	w.judge()
	b := w.assigned(lan[1])
	w.want(t, verdict.Suspected, verdict.RuleSplitBrain, verdict.LinkScope, "n1/eth0")
	w.after(5 * time.Second).drop(a)
	w.want(t, verdict.Resolved, verdict.RuleSplitBrain, verdict.LinkScope, "n1/eth0")
	w.after(time.Minute).read(b)
	w.wantNone(t)
}

func TestL6BackupHasTheMACOfTheVirtualRouterToo(t *testing.T) {
	const mac = "\x00\x00\x5e\x00\x01\x33"
	w := newWorld("192.168.1.200")
	lan := onLAN(w, "n1", "n2")
	var vrrp []*verdict.Interface
	for i, n := range []string{"n1", "n2"} {
		vrrp = append(vrrp, w.iface(w.host(n), verdict.Interface{
			Name: "vrrp.51", MAC: mac, Attachment: verdict.Own, Link: lan[i].Link,
		}))
	}
	master := w.assigned(vrrp[0])
	seen := w.wire(lan[1], mac) // by the backup
	out := w.wantNone(t)
	if len(out.Owners) != 1 || len(out.Owners[0].Claims) != 2 || out.Owners[0].Node != w.node("n1") {
		t.Errorf("got owners %+v, want the master with a witness", out.Owners)
	}

	// The backup takes over. Before its kernel is heard, nobody is the sender.
	w.drop(master)
	w.wantNone(t)
	w.after(time.Second)
	w.assigned(vrrp[1])
	w.seen(seen)
	if out := w.wantNone(t); len(out.Owners) != 1 || out.Owners[0].Node != w.node("n2") {
		t.Errorf("got owners %+v, want the new master", out.Owners)
	}
}

func TestVirtualRouterOutsideHasTheGraceOfAHandOver(t *testing.T) {
	w := newWorld("192.168.1.200")
	lan := onLAN(w, "n1", "n2")
	pod := w.assigned(w.child("a", "baaaaa", lan[0].Link))
	router := w.wire(lan[1], "\x00\x00\x5e\x00\x01\x33")
	w.want(t, verdict.Suspected, verdict.RuleAssignedAndWire, verdict.LinkScope, "n1/eth0")
	w.after(2 * time.Second).read(pod)
	w.seen(router)
	w.want(t, verdict.Suspected, verdict.RuleAssignedAndWire, verdict.LinkScope, "n1/eth0")
	w.after(8 * time.Second).read(pod)
	w.seen(router)
	w.want(t, verdict.Confirmed, verdict.RuleAssignedAndWire, verdict.LinkScope, "n1/eth0")
}

func TestL7AnnouncersHandOver(t *testing.T) {
	w := newWorld("192.168.1.200")
	lan := onLAN(w, "n1", "n2", "n3")
	old := w.wire(lan[2], string(lan[0].MAC))
	w.wantNone(t)
	w.after(time.Second)
	next := w.wire(lan[2], string(lan[1].MAC))
	w.wantNone(t) // one change proves nothing
	w.after(time.Second)
	w.seen(old)
	w.want(t, verdict.Suspected, verdict.RuleSplitBrain, verdict.LinkScope, "n1/eth0")
	for range 20 { // the old one says no more
		w.after(time.Second)
		w.seen(next)
		w.want(t, verdict.Suspected, verdict.RuleSplitBrain, verdict.LinkScope, "n1/eth0")
	}
	out := w.judge()
	if want := old.Seen.Add(30 * time.Second); out.Again != want {
		t.Errorf("got again %v, want %v, when the old one has been silent for three graces", out.Again.Time(), want.Time())
	}
	w.after(10 * time.Second)
	w.seen(next)
	w.want(t, verdict.Resolved, verdict.RuleSplitBrain, verdict.LinkScope, "n1/eth0")
	w.wantRule(t, verdict.RuleHandedOver)
	w.wantNone(t)
}

func TestT8AnnouncersKeepAVirtualAddress(t *testing.T) {
	w := newWorld("192.168.1.200")
	lan := onLAN(w, "n1", "n2", "n3")
	one, two := w.wire(lan[2], string(lan[0].MAC)), w.wire(lan[2], string(lan[1].MAC))
	for range 12 {
		w.after(500 * time.Millisecond).seen(one)
		w.after(500 * time.Millisecond).seen(two)
		w.judge()
	}
	c := w.want(t, verdict.Confirmed, verdict.RuleSplitBrain, verdict.LinkScope, "n1/eth0")
	if strings.Contains(c.Summary, "kernels") {
		t.Errorf("got %q, want nothing of kernels: they do not have it", c.Summary)
	}
}

func TestLinkLocalAddressesMeetOnOtherNodesByTheWireOnly(t *testing.T) {
	for _, addr := range []string{"169.254.169.2", "fe80::1"} {
		w := newWorld(addr)
		lan := onLAN(w, "n1", "n2")
		a, b := w.assigned(lan[0]), w.assigned(lan[1])
		w.wantNone(t)
		seen := w.wire(lan[0], string(lan[1].MAC))
		w.want(t, verdict.Suspected, verdict.RuleSplitBrain, verdict.LinkScope, "n1/eth0")
		w.drop(a, b, seen)
	}
}

func TestAConflictIsNamedByTheFirstLinkOfItsOwners(t *testing.T) {
	w := newWorld("192.168.1.100")
	lan := onLAN(w, "n1", "n2", "n3")
	w.assigned(w.child("a", "baaaaa", lan[0].Link)).Interface.Namespace = w.namespace("n3", 7, "107", pod("a"))
	w.claims[0].Interface.Link = lan[2].Link
	three := w.namespace("n2", 8, "108", pod("b"))
	w.assigned(w.iface(three, verdict.Interface{MAC: "bbbbbb", Attachment: verdict.Lower, Link: lan[1].Link, HostInterface: "eth0"}))
	w.wire(lan[0], "baaaaa") // seen by an agent on n1
	w.want(t, verdict.Suspected, verdict.RuleAssignedTwice, verdict.LinkScope, "n2/eth0")
}

func TestAnotherNodesMACWitnessesWhatItHosts(t *testing.T) {
	w := newWorld("10.244.2.5")
	lan := onLAN(w, "n1", "n2")
	inside, _ := w.veth(w.namespace("n2", 2, "102", pod("a")), "baaaaa", w.link("n2", "v1", verdict.PointToPoint, false))
	own := w.assigned(inside)
	// n2 answers for its pod (proxy ARP), and n1 hears it.
	answer := w.wire(lan[0], string(lan[1].MAC))
	answer.Kind = verdict.Answered
	out := w.wantNone(t)
	if len(out.Owners) != 1 || len(out.Owners[0].Claims) != 2 {
		t.Errorf("got owners %+v, want the pod with a witness", out.Owners)
	}
	w.wantRule(t, verdict.RuleNodeMAC)

	// Another node that does so for it is reachable via, and no owner.
	w.drop(own)
	if out := w.wantNone(t); len(out.Owners) != 1 || out.Owners[0].Rule != verdict.RuleReachableVia {
		t.Errorf("got owners %+v, want a proxy", out.Owners)
	}
}

func TestOlderAssignmentComparesClocksByTheirSkew(t *testing.T) {
	for skew, older := range map[time.Duration]string{0: "a", 10 * time.Second: "b", 2 * time.Second: ""} {
		w := newWorld("10.244.0.5")
		w.policy.Networks = []verdict.Network{{Name: "pods", Prefixes: prefixes("10.244.0.0/16")}}
		for i, n := range []string{"n1", "n2"} {
			name := string(rune('a' + i))
			inside, _ := w.veth(w.namespace(n, 2, "102", pod(name)), "aaaaa"+name, w.link(n, "v1", verdict.PointToPoint, false))
			w.assigned(inside).AssignedAt = w.now.Add(time.Duration(i) * 2 * time.Second)
		}
		w.node("n1").SkewKnown, w.node("n2").SkewKnown = true, true
		w.node("n2").Skew = skew
		c := w.want(t, verdict.Suspected, verdict.RuleAssignedTwice, verdict.NetworkScope, "pods")
		if got := keeper(&c); got != older {
			t.Errorf("skew %s: got %q to keep the address, want %q", skew, got, older)
		}
	}
}

// keeper returns the name of the owner that is to keep the address, or the MAC of an external
// device; empty if that is undecided.
func keeper(c *verdict.Conflict) string {
	for i := range c.Owners {
		if o := &c.Owners[i]; o.ID == c.Keeper {
			if o.Namespace == nil {
				return o.MAC.String()
			}
			w := o.Workload()
			return cmp.Or(w.Name, w.ContainerID)
		}
	}
	return ""
}
