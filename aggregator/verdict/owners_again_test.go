package verdict_test

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/tests/verdicttest"
)

func TestWireOnlyOwnersEnd(t *testing.T) {
	w := newWorld("10.0.0.5")
	c := w.Wire(w.Uplink("n1"), externalMAC)
	stale, gone := verdicttest.Start.Add(w.Policy.StaleAfter), verdicttest.Start.Add(2*w.Policy.StaleAfter)
	for _, test := range []struct {
		after   time.Duration
		state   verdict.State
		again   verdict.Stamp
		expired bool
	}{
		{0, verdict.Live, stale, false},
		{w.Policy.StaleAfter - 1, verdict.Live, stale, false},
		{1, verdict.Stale, gone, false},
		{w.Policy.StaleAfter - 1, verdict.Stale, gone, false},
		{1, verdict.Stale, 0, true},
	} {
		out := w.after(test.after).judge()
		if o := out.Owners[0]; o.State != test.state || out.Again != test.again || slices.Contains(out.Expired, c) != test.expired {
			t.Errorf("%s later: got state %d, again %d, expired %v, want %+v", w.Now.Sub(verdicttest.Start), o.State, out.Again, out.Expired, test)
		}
	}
}

// A neighbour table may keep an owner alive for longer than its frames do.
func TestOwnersAreJudgedAgainWhenTheirFramesAreOld(t *testing.T) {
	for _, test := range []struct {
		name  string
		build func(w *world, uplinks []*verdict.Interface)
		want  time.Duration
	}{
		{"one frame", func(w *world, uplinks []*verdict.Interface) { w.Wire(uplinks[0], externalMAC) }, 5 * time.Minute},
		{"frames on two nodes", func(w *world, uplinks []*verdict.Interface) {
			w.Wire(uplinks[0], externalMAC)
			w.after(time.Minute).Wire(uplinks[1], externalMAC)
		}, 6 * time.Minute},
		{"frames on two nodes, of which the first one is silent", func(w *world, uplinks []*verdict.Interface) {
			w.Wire(uplinks[0], externalMAC)
			w.after(time.Minute).Wire(uplinks[1], externalMAC)
			w.Node("n1").Unheard = true
		}, 7 * time.Minute},
		{"a frame on a node that is silent", func(w *world, uplinks []*verdict.Interface) {
			w.Wire(uplinks[0], externalMAC)
			w.Node("n1").Unheard = true
		}, 7 * time.Minute},
		{"no frame that counts", func(w *world, uplinks []*verdict.Interface) { w.Wire(uplinks[0], externalMAC).Source = other }, 7 * time.Minute},
	} {
		w := newWorld("10.0.0.5")
		uplinks := verdicttest.OnLAN(w.World, "n1", "n2")
		test.build(w, uplinks)
		w.Now = verdicttest.Start.Add(2 * time.Minute)
		w.Claim(verdict.Claim{Kind: verdict.Believed, Interface: uplinks[1], Frame: verdict.Frame{Link: uplinks[1].Link, MAC: externalMAC}})
		for range 2 {
			slices.Reverse(w.Claims)
			if out := w.Policy.Judge(w.Case()); len(out.Owners) != 1 || out.Again.Sub(verdicttest.Start) != test.want {
				t.Errorf("%s: got %d owners, again after %s, want one and %s", test.name, len(out.Owners), out.Again.Sub(verdicttest.Start), test.want)
			}
		}
	}
}

func TestClaimsAreOrdered(t *testing.T) {
	w := newWorld("fd00::5")
	l := w.Link("n1", "br0", verdict.Bridge, false)
	ns := w.Namespace("n1", 2, "2", verdicttest.Pod("a"))
	first, port := w.Veth(ns, "baaaaa", l)
	second, _ := w.Veth(ns, "bbbbbb", l)
	second.Name = "net1"
	want := []*verdict.Claim{
		w.Assigned(first), w.Assigned(second), w.Assigned(w.Interface(ns, verdict.Interface{Name: "lo", Attachment: verdict.Local})),
		w.Wire(port, "baaaaa"), w.Wire(port, "bbbbbb"), w.Wire(port, "bbbbbb"), w.Wire(port, "bbbbbb"), w.Wire(port, "bbbbbb"),
		w.Wire(port, "baaaaa"),
	}
	want[5].NoOverride = true
	want[6].InnerVLAN = 3
	want[7].VLAN = 2
	want[8].Kind = verdict.Answered
	for range 2 {
		slices.Reverse(w.Claims)
		if got := w.Policy.Judge(w.Case()).Owners[0].Claims; !slices.Equal(got, want) {
			t.Errorf("got claims %+v, want %+v", got, want)
		}
	}
}

func TestARangeIsDeclaredShared(t *testing.T) {
	p := verdict.Policy{Shared: []verdict.Shared{{Prefix: netip.MustParsePrefix("10.1.0.0/24")}, {Prefix: netip.MustParsePrefix("10.0.0.0/24")}}}
	for text, want := range map[string]bool{
		"10.0.0.0/24": true, "10.0.0.7-10.0.0.9": true, "10.0.0.0-10.0.1.0": false, "9.255.255.255-10.0.0.7": false, "10.9.0.0/24": false,
	} {
		if got := p.DeclaresShared(span(text)); got != want {
			t.Errorf("%s: got %t, want %t", text, got, want)
		}
	}
}

// span parses a range such as "10.0.0.1-10.0.0.9".
func span(text string) ipam.Range {
	for i, c := range text {
		if c == '-' {
			return ipam.Range{First: netip.MustParseAddr(text[:i]), Last: netip.MustParseAddr(text[i+1:])}
		}
	}
	return ipam.RangeOf(netip.MustParsePrefix(text))
}
