package verdict_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/tests/verdicttest"
)

// lanOfPods adds nodes with uplinks on one LAN, and a pod with the address on each. If proven is
// set, their links are proven to be one.
func lanOfPods(w *world, proven bool, nodes ...string) (uplinks []*verdict.Interface, claims []*verdict.Claim) {
	uplinks = verdicttest.OnLAN(w.World, nodes...)
	for i, n := range nodes {
		if !proven {
			uplinks[i].Link.Proven, uplinks[i].Link.BothWays = nil, nil
		}
		ns := w.Namespace(n, 2, "2"+n[1:], verdicttest.Pod("on-"+n))
		claims = append(claims, w.Assigned(w.Interface(ns, verdict.Interface{MAC: verdict.MAC("bpod0" + n[1:]), Attachment: verdict.Lower, Link: uplinks[i].Link})))
	}
	return uplinks, claims
}

// settled lets the settle time pass and all claims be witnessed again.
func (w *world) settled() verdict.Judgement {
	w.judge()
	w.after(w.Policy.HandoverGrace)
	for _, c := range w.Claims {
		w.Read(c)
		w.Seen(c)
	}
	return w.judge()
}

func TestAConflictOnOneLANNeedsAProof(t *testing.T) {
	for _, test := range []struct {
		name  string
		build func(w *world)
		phase verdict.Phase
		proof verdict.LinkProof
	}{
		{"links that are proven to be one", func(w *world) { lanOfPods(w, true, "n1", "n2") }, verdict.Confirmed, verdict.Proven},
		{"links that are not", func(w *world) { lanOfPods(w, false, "n1", "n2") }, verdict.Suspected, verdict.OneWay},
		{"links that are proven to be one with others", func(w *world) {
			uplinks, _ := lanOfPods(w, false, "n1", "n2")
			for _, i := range uplinks {
				i.Link.Proven = &verdict.Domain{Node: i.Link.Node, Name: "other"}
			}
		}, verdict.Suspected, verdict.OneWay},
		{"both are on one link of one node", func(w *world) {
			uplinks, _ := lanOfPods(w, false, "n1", "n2")
			w.Assigned(w.Child("third", "bthird", uplinks[0].Link))
		}, verdict.Confirmed, 0},
		{"one is an external device that the other one's node sees", func(w *world) {
			uplinks, claims := lanOfPods(w, false, "n1", "n2")
			w.Drop(claims[1])
			w.Wire(uplinks[0], externalMAC)
		}, verdict.Confirmed, 0},
		{"one is an external device that another node sees", func(w *world) {
			uplinks, claims := lanOfPods(w, false, "n1", "n2")
			w.Drop(claims[1])
			w.Wire(uplinks[1], externalMAC)
		}, verdict.Suspected, verdict.OneWay},
		{"one is an external device that another node sees, on links that are proven to be one", func(w *world) {
			uplinks, claims := lanOfPods(w, true, "n1", "n2")
			w.Drop(claims[1])
			w.Wire(uplinks[1], externalMAC)
		}, verdict.Confirmed, verdict.Proven},
		{"of two kernels, only one direction was seen", func(w *world) {
			uplinks, claims := lanOfPods(w, true, "n1", "n2", "n3")
			w.Drop(claims[2])
			uplinks[0].Link.BothWays = nil
			w.Wire(uplinks[2], externalMAC)
		}, verdict.Confirmed, verdict.Proven},
		{"one is an external device that speaks for another one on the other's link", func(w *world) {
			uplinks, claims := lanOfPods(w, false, "n1", "n2")
			w.Drop(claims[1])
			w.Wire(uplinks[1], externalMAC)
			w.Wire(uplinks[0], externalMAC).Source = other
		}, verdict.Suspected, verdict.OneWay},
		{"the other's node sees a frame of one", func(w *world) {
			uplinks, claims := lanOfPods(w, false, "n1", "n2")
			w.Wire(uplinks[1], string(claims[0].Interface.MAC))
		}, verdict.Suspected, verdict.OneWay},
		{"the other node sees a frame of an owner that has the address elsewhere", func(w *world) {
			uplinks, claims := lanOfPods(w, false, "n1", "n2")
			claims[0].Interface.Link = w.Link("n1", "br1", verdict.Bridge, false)
			w.Interface(claims[0].Interface.Namespace, verdict.Interface{Name: "net1", MAC: "bnet10", Attachment: verdict.Lower, Link: uplinks[0].Link})
			w.Wire(uplinks[1], "bnet10")
		}, verdict.Confirmed, 0},
		{"pods of one network that are on one LAN, too", func(w *world) {
			_, claims := lanOfPods(w, false, "n1", "n2")
			for _, c := range claims {
				c.Network = "lan"
			}
		}, verdict.Confirmed, 0},
		{"in a declared network", func(w *world) {
			w.declare("pods 10.0.0.0/8")
			lanOfPods(w, false, "n1", "n2")
		}, verdict.Confirmed, 0},
		{"a kernel that found a duplicate on a LAN", func(w *world) {
			_, claims := lanOfPods(w, false, "n1", "n2")
			claims[1].Kind, claims[1].Flags = verdict.DADFailed, verdict.FlagDADFailed
		}, verdict.Confirmed, verdict.OneWay},
		{"a kernel that found a duplicate of an unknown owner", func(w *world) {
			_, claims := lanOfPods(w, false, "n1", "n2")
			claims[1].Kind, claims[1].Flags = verdict.DADFailed, verdict.FlagDADFailed
			w.Drop(claims[0])
		}, verdict.Confirmed, 0},
	} {
		w := newWorld("10.0.0.5")
		test.build(w)
		if out := w.settled(); len(out.Conflicts) != 1 || out.Conflicts[0].Phase != test.phase || out.Conflicts[0].LinkProof != test.proof {
			t.Errorf("%s: got %+v, want phase %d and proof %d", test.name, out.Conflicts, test.phase, test.proof)
		}
	}
}

// Frames of the LAN enter the node behind the repeater, and the LAN sees the repeater's MAC only.
func TestL12RepeaterReplacesMACs(t *testing.T) {
	w := newWorld("10.0.0.5")
	uplinks, claims := lanOfPods(w, true, "n1", "n2", "n3")
	w.Drop(claims[1])
	w.Drop(claims[2])
	lan := uplinks[0].Link.BothWays
	uplinks[0].Link.BothWays = nil
	w.Wire(uplinks[1], externalMAC)
	w.Wire(uplinks[2], externalMAC)
	want := func(phase verdict.Phase, proof verdict.LinkProof) {
		t.Helper()
		if out := w.settled(); len(out.Conflicts) != 1 || out.Conflicts[0].Phase != phase || out.Conflicts[0].LinkProof != proof {
			t.Errorf("got %+v, want phase %d and proof %d", out.Conflicts, phase, proof)
		}
	}
	want(verdict.Suspected, verdict.OneWay)
	uplinks[0].Link.BothWays = lan // a frame of the node entered the others: the device is another owner
	want(verdict.Confirmed, verdict.Proven)
}

func TestAConflictIsSuspectedAgainWithoutItsProof(t *testing.T) {
	w := newWorld("10.0.0.5")
	uplinks, _ := lanOfPods(w, true, "n1", "n2")
	w.settled()
	for _, i := range uplinks {
		i.Link.Proven, i.Link.BothWays = nil, nil
	}
	if c := w.want(t, verdict.Suspected, verdict.RuleAssignedTwice, verdict.LinkScope, "n1/eth0"); c.LinkProof != verdict.OneWay || c.ConfirmedAt != 0 {
		t.Errorf("got proof %d, confirmed at %d, want it open", c.LinkProof, c.ConfirmedAt)
	}
}

// After a start, frames in one direction prove it again only after a time.
func TestAProofFromBeforeTheStartLasts(t *testing.T) {
	w := newWorld("10.0.0.5")
	uplinks, _ := lanOfPods(w, true, "n1", "n2")
	w.settled()
	w.Conflicts[0].Resumed = w.Now
	for _, i := range uplinks {
		i.Link.Proven, i.Link.BothWays = nil, nil
	}
	if c := w.want(t, verdict.Confirmed, verdict.RuleAssignedTwice, verdict.LinkScope, "n1/eth0"); c.LinkProof != verdict.Proven {
		t.Errorf("got proof %d, want that from before the start", c.LinkProof)
	}
	w.Now = w.Now.Add(verdict.ProofLasts * w.Policy.StaleAfter)
	for _, c := range w.Claims { // still there
		c.Seen = w.Now
	}
	if c := w.want(t, verdict.Suspected, verdict.RuleAssignedTwice, verdict.LinkScope, "n1/eth0"); c.LinkProof != verdict.OneWay {
		t.Errorf("got proof %d, want none after as long as a proof lasts", c.LinkProof)
	}
}

// Agents may report before it is known which conflicts there were before the start.
func TestAProofFromBeforeTheStartIsTakenOver(t *testing.T) {
	w := newWorld("10.0.0.5")
	uplinks, _ := lanOfPods(w, true, "n1", "n2")
	w.settled()
	was := w.Conflicts[0]
	for _, i := range uplinks {
		i.Link.Proven, i.Link.BothWays = nil, nil
	}
	w.Conflicts = nil
	now := w.want(t, verdict.Suspected, verdict.RuleAssignedTwice, verdict.LinkScope, "n1/eth0")
	if got := now.Continue(&was); got.Phase != verdict.Confirmed || got.LinkProof != verdict.Proven || got.ConfirmedAt != was.ConfirmedAt || got.Resumed != now.DetectedAt {
		t.Errorf("got %+v, want it confirmed and proven as before", got)
	}
}

// After the settle time, both sides must be witnessed on one link or on links that are proven to be
// one.
func TestBothOwnersAreWitnessedInTheirScope(t *testing.T) {
	for _, test := range []struct {
		name  string
		again func(w *world, uplinks []*verdict.Interface, pods []*verdict.Claim)
		phase verdict.Phase
	}{
		{"both kernels have it still", func(w *world, _ []*verdict.Interface, pods []*verdict.Claim) { w.Read(pods...) }, verdict.Confirmed},
		{"one kernel has it still", func(w *world, _ []*verdict.Interface, pods []*verdict.Claim) { w.Read(pods[0]) }, verdict.Suspected},
		{"one kernel has it still, and the other one's frame is seen", func(w *world, uplinks []*verdict.Interface, pods []*verdict.Claim) {
			w.Read(pods[0])
			w.Wire(uplinks[0], string(pods[1].Interface.MAC))
		}, verdict.Suspected},
		{"a disconnected node whose kernel had it", func(w *world, _ []*verdict.Interface, pods []*verdict.Claim) {
			w.Read(pods...)
			w.Node("n2").Unheard = true
		}, verdict.Suspected},
	} {
		w := newWorld("10.0.0.5")
		uplinks, pods := lanOfPods(w, true, "n1", "n2")
		w.judge()
		w.after(w.Policy.Settle)
		test.again(w, uplinks, pods)
		if c := w.judge().Conflicts[0]; c.Phase != test.phase {
			t.Errorf("%s: got phase %d, want %d", test.name, c.Phase, test.phase)
		}
	}
	for _, test := range []struct {
		name  string
		again func(w *world, c *verdict.Claim)
		phase verdict.Phase
	}{
		{"an external device is seen again", func(w *world, c *verdict.Claim) { w.Seen(c) }, verdict.Confirmed},
		{"an external device is not", func(*world, *verdict.Claim) {}, verdict.Suspected},
		{"an external device is seen by a node that is silent now", func(w *world, c *verdict.Claim) { w.Seen(c); w.Node("n2").Unheard = true }, verdict.Suspected},
		{"an external device speaks for another one", func(w *world, c *verdict.Claim) { w.Wire(c.Interface, externalMAC).Source = other }, verdict.Suspected},
	} {
		w := newWorld("10.0.0.5")
		uplinks, pods := lanOfPods(w, true, "n1", "n2")
		w.Drop(pods[1])
		c := w.Wire(uplinks[1], externalMAC)
		w.judge()
		w.after(w.Policy.Settle).Read(pods[0])
		test.again(w, c)
		if got := w.judge().Conflicts[0]; got.Phase != test.phase {
			t.Errorf("%s: got phase %d, want %d", test.name, got.Phase, test.phase)
		}
	}
}

// A node is asked to read an address again only if its kernel has the address.
func TestOnlyNodesWithTheAddressAreAskedToReadAgain(t *testing.T) {
	w := newWorld("10.0.0.5")
	uplinks, pods := lanOfPods(w, true, "n1", "n2")
	w.Wire(uplinks[0], string(pods[1].Interface.MAC))
	w.Assigned(w.Interface(pods[1].Interface.Namespace, verdict.Interface{Name: "net2", MAC: "bnet20", Attachment: verdict.Lower, Link: uplinks[1].Link}))
	w.Assigned(w.Interface(pods[0].Interface.Namespace, verdict.Interface{Name: "lo", Attachment: verdict.Local}))
	w.judge()
	out := w.after(w.Policy.Settle).judge()
	if !slices.Equal(out.Check, []*verdict.Node{w.Node("n1"), w.Node("n2")}) {
		t.Errorf("got checks of %v, want each node once", out.Check)
	}
	if out = w.after(time.Second - 1).judge(); len(out.Check) != 0 || out.Again != w.Now.Add(1) {
		t.Errorf("got checks of %v, next judgement %d later, want no check for a second", out.Check, out.Again.Sub(w.Now))
	}
	w.Node("n1").Unheard = true
	if out = w.after(1).judge(); !slices.Equal(out.Check, []*verdict.Node{w.Node("n2")}) {
		t.Errorf("got checks of %v, want n2, as n1 is silent", out.Check)
	}

	w = newWorld("10.0.0.5")
	uplinks, pods = lanOfPods(w, true, "n1", "n2")
	w.Drop(pods[1])
	w.Wire(uplinks[1], externalMAC)
	w.judge()
	w.after(w.Policy.Settle).Read(pods[0])
	if out := w.judge(); len(out.Check) != 0 || out.Conflicts[0].Asked != 0 {
		t.Errorf("got checks of %v at %d, want none: an external device cannot be checked", out.Check, out.Conflicts[0].Asked)
	}
}

// A conflict lasts as long as two of its owners have the address. What others have then is its next episode.
func TestAConflictOfOtherOwnersIsTheNextEpisode(t *testing.T) {
	w := newWorld("10.0.0.5")
	var claims []*verdict.Claim
	get := func(name string) {
		inside, _ := w.on("n1", "br0", false, name)
		claims = append(claims, w.Assigned(inside))
	}
	get("a")
	get("b")
	w.want(t, verdict.Suspected, verdict.RuleAssignedTwice, verdict.LinkScope, "n1/br0")
	w.after(w.Policy.Settle).Read(claims...)
	w.want(t, verdict.Confirmed, verdict.RuleAssignedTwice, verdict.LinkScope, "n1/br0")
	for _, test := range []struct {
		what    string
		leave   int
		get     []string
		episode uint32
	}{
		{"one leaves and another one comes", 1, []string{"c"}, 2},
		{"both leave and others come", 2, []string{"d", "e"}, 3},
		{"a third one comes", 0, []string{"f"}, 3},
		{"one of three leaves and another one comes", 1, []string{"g"}, 3},
		{"two of three leave and another one comes", 2, []string{"h"}, 4},
	} {
		before := w.Conflicts[0]
		w.after(time.Second).Drop(claims[:test.leave]...)
		claims = claims[test.leave:]
		for _, name := range test.get {
			get(name)
		}
		next := test.episode > before.Episode
		out := w.checked(t)
		if len(out.Conflicts) != 1 || out.Conflicts[0].Episode != test.episode {
			t.Fatalf("%s: got %+v, want episode %d", test.what, out.Conflicts, test.episode)
		}
		c := out.Conflicts[0]
		if ended := slices.ContainsFunc(out.Ended, func(e verdict.Ended) bool { return e.ID == c.ID && e.At == w.Now }); ended != next {
			t.Errorf("%s: got the end of the episode before %t, want %t", test.what, ended, next)
		}
		if next != (c.Phase == verdict.Suspected && c.DetectedAt == w.Now && c.ConfirmedAt == 0) {
			t.Errorf("%s: got phase %d, detected at %d, confirmed at %d, now is %d", test.what, c.Phase, c.DetectedAt, c.ConfirmedAt, w.Now)
		}
		w.after(w.Policy.Settle).Read(claims...)
		w.want(t, verdict.Confirmed, verdict.RuleAssignedTwice, verdict.LinkScope, "n1/br0")
	}
}

// The ID of an external device changes when its link is merged with others.
func TestAnExternalDeviceIsTheSameOnAWiderLink(t *testing.T) {
	for _, test := range []struct {
		name, then string
		phase      verdict.Phase
	}{{"the same device", externalMAC, verdict.Confirmed}, {"another device", other, verdict.Suspected}} {
		w := newWorld("10.0.0.5")
		port := w.Uplink("n1")
		w.Assigned(w.Child("a", "baaaaa", port.Link))
		device := w.Wire(port, externalMAC)
		w.settled()
		w.want(t, verdict.Confirmed, verdict.RuleAssignedAndWire, verdict.LinkScope, "n1/eth0")
		device.MAC = verdict.MAC(test.then)
		port.Link.Domain = &verdict.Domain{Node: w.Node("n0"), Name: "eth0"}
		w.want(t, test.phase, verdict.RuleAssignedAndWire, verdict.LinkScope, "n1/eth0")
	}

	// Pods are identified by their namespaces and not by their hardware addresses.
	w := newWorld("10.0.0.5")
	port := w.Uplink("n1")
	old := []*verdict.Claim{w.Assigned(w.Child("a", "baaaaa", port.Link)), w.Assigned(w.Child("b", "bbbbbb", port.Link))}
	w.settled()
	w.Drop(old...)
	w.Assigned(w.Child("c", "baaaaa", port.Link))
	w.Assigned(w.Child("d", "bbbbbb", port.Link))
	w.want(t, verdict.Suspected, verdict.RuleAssignedTwice, verdict.LinkScope, "n1/eth0")
}

func TestConflictsGoOnByThemselves(t *testing.T) {
	w := newWorld("10.0.0.5")
	for _, br := range []string{"br0", "br1"} {
		for _, name := range []string{"a", "b"} {
			inside, _ := w.on("n1", br, false, name+br)
			w.Assigned(inside)
		}
	}
	first := w.judge().Conflicts
	second := w.after(time.Millisecond).judge().Conflicts
	if len(first) != 2 || len(second) != 2 {
		t.Fatalf("got %d and %d conflicts, want 2", len(first), len(second))
	}
	for i := range first {
		if first[i].ID != second[i].ID || second[i].DetectedAt != verdicttest.Start || second[i].Episode != 1 {
			t.Errorf("got %s of %d, episode %d, want %s of %d", second[i].ID, second[i].DetectedAt, second[i].Episode, first[i].ID, verdicttest.Start)
		}
	}
}

func TestAConflictMovesWithItsOwners(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(w *world, a, b *verdict.Claim)
		same   bool
	}{
		{"to another link of that kind", func(w *world, a, b *verdict.Claim) {
			for _, c := range []*verdict.Claim{a, b} {
				c.Interface.Link = w.Link("n1", "br1", verdict.Bridge, false)
			}
		}, true},
		{"to the node", func(w *world, a, b *verdict.Claim) {
			for i, c := range []*verdict.Claim{a, b} {
				c.Interface.Link = w.Link("n1", "br"+string(rune('1'+i)), verdict.Bridge, true)
			}
		}, true},
		{"to another link, one of them, where it meets a third one", func(w *world, a, b *verdict.Claim) {
			b.Interface.Link = w.Link("n1", "br1", verdict.Bridge, false)
			inside, _ := w.on("n1", "br1", false, "c")
			w.Assigned(inside)
		}, false},
	} {
		w := newWorld("10.0.0.5")
		one, _ := w.on("n1", "br0", false, "a")
		two, _ := w.on("n1", "br0", false, "b")
		a, b := w.Assigned(one), w.Assigned(two)
		first := w.want(t, verdict.Suspected, verdict.RuleAssignedTwice, verdict.LinkScope, "n1/br0")
		test.change(w, a, b)
		c := w.judge().Conflicts[0]
		if same := c.ID == first.ID; same != test.same || !c.Active() || c.Episode != 1 || same && (c.Scope != first.Scope || c.Kind != first.Kind) {
			t.Errorf("%s: got %+v, want the same: %t", test.name, c, test.same)
		}
	}

	// A conflict is not continued in a narrower scope.
	w := newWorld("10.0.0.5")
	one, _ := w.on("n1", "br0", true, "a")
	two, _ := w.on("n1", "br0", true, "b")
	w.Assigned(one)
	w.Assigned(two)
	wide := w.want(t, verdict.Suspected, verdict.RuleAssignedTwice, verdict.NodeScope, "n1")
	w.Link("n1", "br0", verdict.Bridge, true).Routed = false
	out := w.judge().Conflicts
	if len(out) != 2 || out[0].ID == wide.ID || out[0].Kind != verdict.LinkScope || out[1].ID != wide.ID || out[1].Active() {
		t.Errorf("got %+v, want a new one on the link, and the wider one resolved", out)
	}
}

// Two conflicts whose owners come to overlap remain separate, even if their scopes are renamed.
func TestConflictsOfARenamedNodeStayApart(t *testing.T) {
	w := newWorld("10.0.0.5")
	one, _ := w.on("n1", "br0", true, "a")
	two, _ := w.on("n1", "br1", true, "b")
	w.Assigned(one)
	w.Wire(w.Interface(w.Host("n1"), verdict.Interface{Name: "eth0", MAC: "uplink", Attachment: verdict.Own, Link: one.Link, Uplink: true}), externalMAC)
	w.judge()
	w.Assigned(two)
	w.judge()
	w.Node("n1").Name = "n1@boot"
	w.judge()
	two.Link = one.Link // now three owners are on it
	for _, when := range []string{"at once", "later"} {
		var got []string
		for _, c := range w.judge().Conflicts {
			got = append(got, fmt.Sprint(c.Kind, " ", c.Scope, " ", len(c.Owners)))
		}
		if want := []string{"NODE n1 2", "LINK n1/br0 3"}; !slices.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", when, got, want)
		}
	}
}

func TestExternalDevicesAlternate(t *testing.T) {
	for _, test := range []struct {
		name   string
		within time.Duration
		change func(w *world, a, b *verdict.Claim)
		want   bool
	}{
		{"A-B-A", 10 * time.Second, nil, true},
		{"A-B-A, too slow", 10*time.Second + 1, nil, false},
		{"A-B-A, with a weak A", time.Second, func(_ *world, a, _ *verdict.Claim) { a.Source = other }, false},
		{"A-B-A, with a weak B", time.Second, func(_ *world, _, b *verdict.Claim) { b.NoOverride = true }, false},
		{"A-B", time.Second, func(_ *world, a, _ *verdict.Claim) { a.Before = 0 }, false},
		{"A with B at the same time", time.Second, func(_ *world, a, b *verdict.Claim) { b.Seen = a.Before }, false},
		{"A and then A with B at the same time", time.Second, func(_ *world, a, b *verdict.Claim) { b.Seen = a.Seen }, false},
	} {
		w := newWorld("10.0.0.5")
		port := w.Uplink("n1")
		a := w.Wire(port, externalMAC)
		w.after(time.Millisecond)
		b := w.Wire(port, other)
		w.after(test.within - time.Millisecond).Seen(a)
		if test.change != nil {
			test.change(w, a, b)
		}
		out := w.judge()
		if got := len(out.Conflicts) == 1; got != test.want {
			t.Errorf("%s: got conflicts %+v, want one: %t", test.name, out.Conflicts, test.want)
		}
		if test.want && (out.Conflicts[0].Rule != verdict.RuleExternalsAlternate || len(out.Check) != 0 || out.Again != b.Seen.Add(w.Policy.StaleAfter)) {
			t.Errorf("%s: got %+v, check %v, again %d, want no node asked, and again when one is stale", test.name, out.Conflicts, out.Check, out.Again)
		}
	}
}

func TestTheSettleTimeBeginsWithTheSecondOwner(t *testing.T) {
	w := newWorld("10.0.0.5")
	port := w.Uplink("n1")
	first := []*verdict.Claim{w.Assigned(w.Child("c", "bccccc", port.Link)), w.Assigned(w.Child("d", "bddddd", port.Link))}
	w.judge()
	// A third one comes before one of them leaves. The later one sorts first.
	w.after(time.Minute)
	later := w.Interface(w.Namespace("n1", 9, "1", verdicttest.Pod("b")), verdict.Interface{MAC: "bbbbbb", Attachment: verdict.Lower, Link: port.Link})
	b := w.Assigned(later)
	w.judge()
	w.Drop(first[1])
	w.after(w.Policy.Settle-1).Read(first[0], b)
	w.want(t, verdict.Suspected, verdict.RuleAssignedTwice, verdict.LinkScope, "n1/eth0")
	w.after(1).Read(first[0], b)
	w.want(t, verdict.Confirmed, verdict.RuleAssignedTwice, verdict.LinkScope, "n1/eth0")
}

func TestOwnersThatOnlyFramesShowAreOrderedByTheirFirstOne(t *testing.T) {
	for _, test := range []struct {
		name     string
		firsts   []verdict.Stamp // times of the external device's claims
		assigned verdict.Stamp
		order    []uint32
	}{
		{"it came first", []verdict.Stamp{verdicttest.Start}, verdicttest.Start + 5, []uint32{0, 1}},
		{"it came last", []verdict.Stamp{verdicttest.Start + 9}, verdicttest.Start + 5, []uint32{1, 0}},
		{"its second claim came first", []verdict.Stamp{verdicttest.Start + 9, verdicttest.Start}, verdicttest.Start + 5, []uint32{0, 1}},
		{"its first claim came first", []verdict.Stamp{verdicttest.Start, verdicttest.Start + 9}, verdicttest.Start + 5, []uint32{0, 1}},
		{"of one claim it is not known", []verdict.Stamp{verdicttest.Start + 9, 0}, verdicttest.Start + 5, []uint32{1, 0}},
	} {
		w := newWorld("10.0.0.5")
		port := w.Uplink("n1")
		w.Assigned(w.Child("a", "baaaaa", port.Link)).AssignedAt = test.assigned
		w.Claims[0].First = verdicttest.Start - 100 // the assignment may have been discovered only then
		for i, first := range test.firsts {
			c := w.Wire(port, externalMAC)
			c.VLAN, c.First = uint16(i), first
		}
		if c := w.judge().Conflicts[0]; !slices.Equal(c.Order, test.order) {
			t.Errorf("%s: got order %v, want %v", test.name, c.Order, test.order)
		}
	}
}

func TestAnOwnerBeginsWithItsFirstClaim(t *testing.T) {
	w := newWorld("10.0.0.5")
	port := w.Uplink("n1")
	w.Wire(port, externalMAC).VLAN = 2
	w.after(time.Second).Wire(port, externalMAC).VLAN = 1
	if o := w.judge().Owners[0]; o.Begun() != verdicttest.Start || o.Claims[0].Begun == verdicttest.Start {
		t.Errorf("got begun %d, want %d, that of its second claim", o.Begun(), verdicttest.Start)
	}
}

// The records of an earlier judgement belong to the caller and must not change.
func TestAJudgementChangesNoCase(t *testing.T) {
	w := newWorld("10.0.0.5")
	a, _ := twoPods(w, verdict.PointToPoint, false, [2]string{"baaaaa", "bbbbbb"})
	w.judge()
	w.Drop(a)
	out := w.Policy.Judge(w.Case())
	if len(out.Ended) != 1 || len(out.Conflicts) != 0 {
		t.Fatalf("got %d conflicts, of which %d ended, want the only one ended", len(out.Conflicts), len(out.Ended))
	}
	if ended := w.Conflicts[0].End(&out.Ended[0], out.Owners); ended.Owners[0].State != verdict.Gone || ended.Active() {
		t.Fatalf("got state %d and phase %d of the owner that left, want GONE and RESOLVED", ended.Owners[0].State, ended.Phase)
	}
	if got := w.Conflicts[0]; got.Owners[0].State != verdict.Live || got.Phase != verdict.Suspected {
		t.Errorf("got state %d and phase %d before, want them as they were", got.Owners[0].State, got.Phase)
	}
}
