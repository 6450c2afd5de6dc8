package verdict_test

import (
	"testing"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/tests/verdicttest"
)

// Nobody on a LAN reaches an owner whose cable is out, unless its kernel answers by another card. On a bridge, owners still reach
// each other.
func TestALinkWithoutACarrierIsNotOnTheLAN(t *testing.T) {
	beside := func(w *world, lan []*verdict.Interface, domain *verdict.Domain) *verdict.Interface {
		link := w.Link("n1", "eth1", verdict.Uplink, false)
		link.Domain = domain
		return w.Interface(lan[0].Namespace, verdict.Interface{Name: "eth1", MAC: "beside", Attachment: verdict.Own, Link: link, Uplink: true})
	}
	for _, test := range []struct {
		name  string
		build func(w *world, lan []*verdict.Interface)
		want  []string
	}{
		{"frames from before", func(w *world, lan []*verdict.Interface) {
			w.Wire(lan[1], string(lan[0].MAC))
			w.Wire(lan[2], string(lan[0].MAC))
		}, nil},
		{"a declared network", func(w *world, _ []*verdict.Interface) { w.declare("lan 10.0.0.0/24") }, nil},
		{"its kernel would answer by another card on the LAN", func(w *world, lan []*verdict.Interface) {
			w.Claim(verdict.Claim{Kind: verdict.WouldAnswer, Interface: beside(w, lan, lan[0].Link.Domain), Network: "eth0", Answer: verdict.KernelAnswer{By: verdict.ByAddress}})
		}, []string{"LINK=n1/eth0 assigned-twice n1 n2"}},
		{"its kernel would answer by a card on another LAN", func(w *world, lan []*verdict.Interface) {
			w.Claim(verdict.Claim{Kind: verdict.WouldAnswer, Interface: beside(w, lan, nil), Network: "eth0", Answer: verdict.KernelAnswer{By: verdict.ByAddress}})
		}, nil},
		{"it has answered by another card", func(w *world, lan []*verdict.Interface) {
			second := beside(w, lan, lan[0].Link.Domain)
			lan[0].Link.Domain = nil
			answer(w, second, lan[2], second.MAC)
		}, []string{"LINK=n2/eth0 assigned-twice n1 n2"}},
		{"a device without an agent that only the node itself has seen", func(w *world, lan []*verdict.Interface) {
			w.Wire(lan[0], externalMAC)
		}, nil},
		{"a device without an agent that others see", func(w *world, lan []*verdict.Interface) {
			w.Wire(lan[2], externalMAC)
		}, []string{"LINK=n2/eth0 assigned-and-wire n2 " + externalMAC}},
		{"another node", func(w *world, lan []*verdict.Interface) {
			w.Assigned(lan[2])
		}, []string{"LINK=n2/eth0 assigned-twice n2 n3"}},
		{"a pod of the node", func(w *world, _ []*verdict.Interface) {
			inside, _ := w.on("n1", "cni0", true, "a")
			w.Assigned(inside)
		}, []string{"NODE=n1 assigned-twice n1 a"}},
		{"a child of the card", func(w *world, lan []*verdict.Interface) {
			w.Assigned(w.Child("a", "baaaaa", lan[0].Link))
		}, nil},
	} {
		w := newWorld("10.0.0.5")
		lan := verdicttest.OnLAN(w.World, "n1", "n2", "n3")
		lan[0].Link.CarrierLost = w.Now
		w.Assigned(lan[0])
		w.Assigned(lan[1])
		test.build(w, lan)
		w.wantConflicts(t, test.name, test.want...)
	}
}

// A bridge without an uplink to the LAN has no carrier to lose. One whose uplinks have no carrier keeps its ports.
func TestABridgeWhoseUplinkHasNoCarrier(t *testing.T) {
	w := newWorld("10.0.0.5")
	lan := verdicttest.OnLAN(w.World, "n1", "n2")
	lan[0].Link.Kind, lan[0].Link.CarrierLost = verdict.Bridge, w.Now
	for i, name := range []string{"a", "b"} {
		record := uint32(2 + i)
		inside, _ := w.Veth(w.Namespace("n1", record, name, verdicttest.Pod(name)), "pod-0"+name, lan[0].Link)
		w.Assigned(inside)
		w.Wire(lan[1], string(inside.MAC))
	}
	w.Assigned(lan[1])
	w.wantConflicts(t, "pods on the bridge, and another node", "LINK=n1/eth0 assigned-twice a b")
}

// The carrier of the first node is lost and comes back. Loose cables neither make nor hide a confirmed conflict.
func TestAConflictOutlastsACarrierThatIsLostForAMoment(t *testing.T) {
	w := newWorld("10.0.0.5")
	lan := verdicttest.OnLAN(w.World, "n1", "n2")
	w.Assigned(lan[0])
	w.Assigned(lan[1])
	plug := func() { lan[0].Link.CarrierLost = 0 }
	unplug := func() { lan[0].Link.CarrierLost = w.Now }
	read := func() { w.after(time.Minute).Read(w.Claims...) }

	unplug()
	w.wantNone(t)
	w.wantRule(t, verdict.RuleNoCarrier)
	plug()
	w.want(t, verdict.Suspected, verdict.RuleAssignedTwice, verdict.LinkScope, "n1/eth0")
	unplug()
	if c := w.want(t, verdict.Resolved, verdict.RuleAssignedTwice, verdict.LinkScope, "n1/eth0"); c.Ending.Kind != verdict.EndNoCarrier || c.Owner(c.Ending.Owner).Node.Name != "n1" {
		t.Errorf("got ending %+v, want that n1 has no carrier", c.Ending)
	}
	read()
	w.wantNone(t)

	plug()
	detected := w.Now
	w.want(t, verdict.Suspected, verdict.RuleAssignedTwice, verdict.LinkScope, "n1/eth0")
	read()
	w.want(t, verdict.Confirmed, verdict.RuleAssignedTwice, verdict.LinkScope, "n1/eth0")
	lasts := func(when string, silently bool) {
		t.Helper()
		if e := w.Policy.Explain(w.Case()); e.Lasting != silently {
			t.Errorf("%s: explained as lasting without being found: %t", when, e.Lasting)
		}
		out := w.judge()
		c := w.Conflict(verdict.ID(w.Policy.Cluster, verdict.LinkScope, "n1/eth0", w.Addr))
		if c.Phase != verdict.Confirmed || c.DetectedAt != detected || c.Episode != 2 || len(out.Ended) > 0 {
			t.Errorf("%s: got phase %d of episode %d since %v, ended %v, want the second one since %v to last", when, c.Phase, c.Episode, c.DetectedAt, out.Ended, detected)
		}
	}
	w.after(time.Second)
	unplug()
	lasts("without a carrier", true)
	if again := w.Policy.Judge(w.Case()).Again; again != w.Now.Add(30*time.Second) {
		t.Errorf("judged again at %v, want 30 s after the carrier was lost", again)
	}
	w.after(29 * time.Second)
	lasts("almost for long", true)
	plug()
	lasts("with a carrier again", false)
	unplug()
	w.after(29 * time.Second)
	lasts("without one again", true)
	w.after(time.Second)
	w.want(t, verdict.Resolved, verdict.RuleAssignedTwice, verdict.LinkScope, "n1/eth0")
	if w.Policy.Explain(w.Case()).Lasting {
		t.Error("a conflict that has ended is explained as lasting")
	}
}

// The conflict of three nodes goes on without the one whose cable is out, and is its own again with it.
func TestAConflictGoesOnWithoutTheNodeWhoseCableIsOut(t *testing.T) {
	w := newWorld("10.0.0.5")
	lan := verdicttest.OnLAN(w.World, "n1", "n2", "n3")
	for _, i := range lan {
		w.Assigned(i)
	}
	w.want(t, verdict.Suspected, verdict.RuleAssignedTwice, verdict.LinkScope, "n1/eth0")
	w.after(time.Minute).Read(w.Claims...)
	for _, lost := range []verdict.Stamp{0, w.Now, 0} {
		lan[0].Link.CarrierLost = lost
		want := 3
		if lost != 0 {
			want = 2
		}
		if c := w.want(t, verdict.Confirmed, verdict.RuleAssignedTwice, verdict.LinkScope, "n1/eth0"); len(c.Owners) != want {
			t.Errorf("got %d owners, want %d", len(c.Owners), want)
		}
	}
}
