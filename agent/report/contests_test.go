package report

import (
	"log/slog"
	"net/netip"
	"testing"

	"github.com/ipwitness/ipwitness/tests/agenttest"
)

func TestAddressIsContestedWhileAnyAggregatorWantsIt(t *testing.T) {
	looked := map[netip.Addr]bool{}
	all := NewContests(slog.New(slog.DiscardHandler), func(addr netip.Addr, on bool) {
		if looked[addr] == on {
			t.Errorf("contest of %s: was set to %v twice", addr, on)
		}
		looked[addr] = on
	})
	addr := netip.MustParseAddr("10.0.0.1")
	want := func(on bool) {
		t.Helper()
		if looked[addr] != on {
			t.Errorf("contested: got %v, want %v", looked[addr], on)
		}
	}
	one, two := all.of(), all.of()
	one.set(addr, false)
	want(false)
	one.set(addr, true)
	one.set(addr, true)
	two.set(addr, true)
	want(true)
	one.set(addr, false)
	one.set(addr, false)
	want(true)
	one.set(addr, true)
	two.end()
	want(true)
	one.end()
	want(false)
	three := all.of()
	three.set(addr, true)
	want(true)
	three.end()
	want(false)
	if len(all.by) != 0 {
		t.Errorf("contests after all ended: got %v, want none", all.by)
	}
}

func TestContestsAreLimited(t *testing.T) {
	looked := 0
	log := &logged{more: make(chan struct{}, 1)}
	all := NewContests(slog.New(slog.NewTextHandler(log, nil)), func(netip.Addr, bool) { looked++ })
	wantLines := func(when string, want int) {
		t.Helper()
		if got := log.count("too many contested addresses"); got != want {
			t.Errorf("lines of the log %s: got %d, want %d", when, got, want)
		}
	}
	one := all.of()
	for i := range maxContests + 10 {
		one.set(agenttest.Claim(i).Address, true)
	}
	wantLines("after ten refusals", 1)
	if looked != maxContests || len(one.held) != maxContests {
		t.Errorf("contests: got %d, %d held, want %d", looked, len(one.held), maxContests)
	}
	one.set(agenttest.Claim(0).Address, false)
	one.set(agenttest.Claim(maxContests).Address, true)
	if _, held := one.held[agenttest.Claim(maxContests).Address]; !held {
		t.Error("an address was refused when there was room again")
	}
	one.set(agenttest.Claim(maxContests+1).Address, true)
	wantLines("after there was room meanwhile", 2)
}
