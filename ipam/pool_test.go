package ipam_test

import (
	"math"
	"net/netip"
	"testing"

	"github.com/ipwitness/ipwitness/ipam"
)

func TestSizesOfPools(t *testing.T) {
	for _, test := range []struct {
		name, ranges, gateways string
		grows                  bool
		all, four, six         uint64
	}{
		{"no ranges", "", "10.0.0.1", false, 0, 0, 0},
		{"both families", "10.0.0.1-10.0.0.4 10.0.1.1-10.0.1.2 fd00::1-fd00::8", "10.0.0.1 10.0.9.9 fd00::1 fd00::2", false, 11, 5, 6},
		{"a gateway in two ranges", "10.0.0.1-10.0.0.4 10.0.0.1-10.0.0.2", "10.0.0.1", false, 5, 5, 0},
		{"only a gateway, twice", "10.0.0.1", "10.0.0.1 10.0.0.1", false, 0, 0, 0},
		{"more than the largest number", "fd00::/64 10.0.0.0/24", "10.0.0.1", false, math.MaxUint64, 255, math.MaxUint64},
		{"the largest number stands for more", "fd00::/64", "fd00::1", false, math.MaxUint64, 0, math.MaxUint64},
		{"a pool that grows", "10.0.0.0/24", "", true, 0, 0, 0},
	} {
		p := ipam.Pool{Ranges: spans(test.ranges), Gateways: addresses(test.gateways), Grows: test.grows}
		if all, four, six := p.Size(), p.SizeOf(true), p.SizeOf(false); all != test.all || four != test.four || six != test.six {
			t.Errorf("%s: got %d, %d of IPv4 and %d of IPv6, want %d, %d and %d", test.name, all, four, six, test.all, test.four, test.six)
		}
	}
}

func TestPoolContainsItsRangesWithoutGateways(t *testing.T) {
	p := ipam.Pool{Ranges: spans("10.0.0.1-10.0.0.4 10.0.1.1-10.0.1.2"), Gateways: addresses("10.0.1.1")}
	for a, want := range map[string]bool{"10.0.0.1": true, "10.0.0.5": false, "10.0.1.1": false, "10.0.1.2": true} {
		if got := p.Contains(netip.MustParseAddr(a)); got != want {
			t.Errorf("%s: got %t, want %t", a, got, want)
		}
	}
}

func TestNetworksThatAPoolServes(t *testing.T) {
	for _, test := range []struct {
		served          ipam.Served
		network         string
		serves, unknown bool
	}{
		{ipam.Served{Network: "a"}, "a", true, false},
		{ipam.Served{Network: "a"}, "b", false, false},
		{ipam.Served{Network: "a"}, "", false, false},
		{ipam.Served{Networks: []string{"a", "b"}}, "b", true, false},
		{ipam.Served{Networks: []string{"a", "b"}}, "c", false, false},
		{ipam.Served{Network: "a", Networks: []string{"b"}}, "a", true, false},
		{ipam.Served{}, "a", false, true},
		{ipam.Served{}, "", false, true},
	} {
		if serves, unknown := test.served.Serves(test.network); serves != test.serves || unknown != test.unknown {
			t.Errorf("%+v for %q: got %t, %t, want %t, %t", test.served, test.network, serves, unknown, test.serves, test.unknown)
		}
	}
}

func TestPoolsThatCompete(t *testing.T) {
	for name, test := range map[string]struct {
		change func(a, b *ipam.Pool)
		want   bool
	}{
		"both are routed":                           {func(_, _ *ipam.Pool) {}, true},
		"one network":                               {func(_, b *ipam.Pool) { b.Network = "a" }, false},
		"the first one has no configuration":        {func(a, _ *ipam.Pool) { a.Config = "" }, false},
		"the second one has no configuration":       {func(_, b *ipam.Pool) { b.Config = "" }, false},
		"only the first is routed":                  {func(_, b *ipam.Pool) { b.Routed = false }, false},
		"only the second is routed":                 {func(a, _ *ipam.Pool) { a.Routed = false }, false},
		"neither is routed, and no device is known": {func(a, b *ipam.Pool) { a.Routed, b.Routed = false, false }, false},
		"neither is routed, on one bridge":          {func(a, b *ipam.Pool) { a.Wiring, b.Wiring = ipam.Wiring{Device: "br0"}, ipam.Wiring{Device: "br0"} }, true},
		"neither is routed, on two bridges":         {func(a, b *ipam.Pool) { a.Wiring, b.Wiring = ipam.Wiring{Device: "br0"}, ipam.Wiring{Device: "br1"} }, false},
		"no address in common":                      {func(_, b *ipam.Pool) { b.Ranges = spans("10.0.9.0/24") }, false},
	} {
		a := ipam.Pool{Served: ipam.Served{Network: "a"}, Config: "a.conf", Wiring: ipam.Wiring{Routed: true}, Ranges: spans("10.0.7.0/24 10.0.0.0/24")}
		b := ipam.Pool{Served: ipam.Served{Network: "b"}, Config: "b.conf", Wiring: ipam.Wiring{Routed: true}, Ranges: spans("10.0.8.0/24 10.0.0.128/25")}
		test.change(&a, &b)
		if got := a.Competes(&b); got != test.want || b.Competes(&a) != got {
			t.Errorf("%s: got %t, want %t both ways", name, got, test.want)
		}
		if x, y := a.Overlap(&b); test.want && (x != a.Ranges[1] || y != b.Ranges[1]) {
			t.Errorf("%s: got %s and %s, want the ranges that overlap", name, x, y)
		}
	}
}
