package judge

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/audit"
	"github.com/ipwitness/ipwitness/aggregator/index"
	"github.com/ipwitness/ipwitness/aggregator/kube"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/calico"
)

// doubtful returns a world with a finding from before the start. awaits is called whenever it is asked whether
// facts about it are awaited.
func doubtful(t *testing.T, awaits func(w *world, one *verdict.Finding) bool) (*world, *verdict.Finding) {
	w := newWorld(t, nil)
	one := &verdict.Finding{ID: "1", Kind: verdict.FindingAnsweredByAnother, Address: netip.MustParseAddr("10.0.0.1")}
	w.awaits = func(*verdict.Finding) bool { return awaits(w, one) }
	w.Recall([]*Found{{Finding: one, Place: PlaceOf(one)}})
	return w, one
}

func TestAFindingThatIsFoundAgainWhileItsEndIsDecidedLasts(t *testing.T) {
	w, one := doubtful(t, func(w *world, one *verdict.Finding) bool {
		w.Publish(one)
		return false
	})
	if w.decide(); w.Get(one.ID) == nil || len(w.ended) != 0 {
		t.Errorf("got %v and the end of %v, want the finding", w.Get(one.ID), w.ended)
	}
}

func TestAFindingThatEndsTwiceIsNotDoubtful(t *testing.T) {
	w, one := doubtful(t, func(w *world, one *verdict.Finding) bool {
		w.conclude(one.ID, false)
		return true
	})
	w.End(one.ID, false)
	if w.decide(); !slices.Equal(w.ended, []string{one.ID}) || w.Undecided() != 0 {
		t.Errorf("got the end of %v and %d undecided, want one end", w.ended, w.Undecided())
	}
}

func TestNothingIsKeptOfAPoolThatIsRemoved(t *testing.T) {
	w := newWorld(t, nil)
	p := kube.IPAMChange{Pool: &verdict.Pool{Pool: ipam.Pool{IPAM: calico.IPAM.Name, Name: "p", State: ipam.Known}}}
	w.facts.IPAMChanged([]kube.IPAMChange{p})
	w.Pools.check()
	if len(w.audits) != 1 {
		t.Fatalf("got %d audits, want that of the pool", len(w.audits))
	}
	p.Gone = true
	w.facts.IPAMChanged([]kube.IPAMChange{p})
	if len(w.audits)+len(w.Pools.due) != 0 {
		t.Errorf("got %d audits of which %d are due, want none", len(w.audits), len(w.Pools.due))
	}
}

func TestAChangeOfRangesDoesNotWaitForAnotherComparison(t *testing.T) {
	w := newWorld(t, nil)
	soon := w.facts.Clock().Add(2 * overlapPause)
	w.at = soon.Add(time.Hour)
	if w.RangesChanged(nil); w.at > soon {
		t.Errorf("got a comparison at %v, want one before %v", w.at, soon)
	}
}

func TestAPortThatReturnsSolicitationsIsOneFinding(t *testing.T) {
	w := newWorld(t, nil)
	one := func(id, address, source string) (index.Address, []verdict.Finding) {
		a := netip.MustParseAddr(address)
		return index.AddressOf(a), []verdict.Finding{{ID: id, Kind: verdict.FindingIntendedNotObserved, Address: a, Source: source}}
	}
	global, g := one("port", "fd00:7::a", audit.SourceLooped)
	local, l := one("port", "fe80::a", audit.SourceLooped)
	left, r := one("left", "fd00:7::b", audit.SourceRivalLeft) // a look-alike
	w.Audited(local, nil, l, nil, false)
	w.Audited(global, nil, g, nil, false)
	w.Audited(left, nil, r, nil, false)
	if f := w.Get("port"); len(w.All()) != 2 || f.Address != g[0].Address || !slices.Equal(audit.Addresses(f.Finding), []netip.Addr{g[0].Address, l[0].Address}) {
		t.Errorf("got %d findings, one of them %+v, want one of both addresses", len(w.All()), f)
	}
	w.Audited(global, nil, g, g, false)
	w.Audited(global, nil, nil, g, false)
	if f := w.Get("port"); f == nil || f.Address != l[0].Address || f.Addresses != nil || len(w.ended) != 0 {
		t.Errorf("got %+v and the end of %v, want that about the address that is left", f, w.ended)
	}
	w.Audited(left, nil, nil, r, false)
	w.Audited(local, nil, nil, l, false)
	if !slices.Equal(w.ended, []string{"left", "port"}) || len(w.parts) != 0 {
		t.Errorf("got the end of %v, want those of both", w.ended)
	}
}

// A finding about several addresses from before the start is not told piece by piece while they are judged.
func TestAFindingAboutSeveralAddressesIsToldAsAWholeAfterAStart(t *testing.T) {
	global, local, late := netip.MustParseAddr("fd00:7::a"), netip.MustParseAddr("fe80::a"), netip.MustParseAddr("fd00:7::b")
	part := func(a netip.Addr) []verdict.Finding {
		return []verdict.Finding{{ID: "port", Kind: verdict.FindingIntendedNotObserved, Address: a, Source: audit.SourceLooped}}
	}
	for name, test := range map[string]struct {
		found []netip.Addr
		want  [][]netip.Addr
	}{
		"both last":                   {[]netip.Addr{local, global}, [][]netip.Addr{{global, local}}},
		"one has become well":         {[]netip.Addr{local}, [][]netip.Addr{{local}}},
		"both have become well":       {nil, nil},
		"there is one more (at once)": {[]netip.Addr{local, global, late}, [][]netip.Addr{{global, local}, {global, late, local}}},
	} {
		w := newWorld(t, nil)
		awaits := true
		w.awaits = func(*verdict.Finding) bool { return awaits }
		one := part(global)[0]
		one.Addresses = []netip.Addr{global, local}
		w.Recall([]*Found{{Finding: &one, Place: PlaceOf(&one)}})
		w.changed = nil
		for _, a := range test.found {
			w.Audited(index.AddressOf(a), nil, part(a), nil, false)
		}
		if w.decide(); len(w.ended) > 0 {
			t.Errorf("%s: got an end before the facts are complete", name)
		}
		awaits = false
		w.decide()
		if !slices.EqualFunc(w.changed, test.want, slices.Equal[[]netip.Addr]) || (len(w.ended) == 0) == (test.want == nil) || w.Undecided() != 0 {
			t.Errorf("%s: got %v and %d ends, want %v", name, w.changed, len(w.ended), test.want)
		}
	}
}
