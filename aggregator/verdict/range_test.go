package verdict_test

import (
	"math"
	"net/netip"
	"testing"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
)

// span parses a range such as "10.0.0.1-10.0.0.9".
func span(text string) ipam.Range {
	for i, c := range text {
		if c == '-' {
			return ipam.Range{First: netip.MustParseAddr(text[:i]), Last: netip.MustParseAddr(text[i+1:])}
		}
	}
	return ipam.RangeOf(netip.MustParsePrefix(text))
}

func TestRangeContains(t *testing.T) {
	for addr, want := range map[string]bool{
		"10.0.0.4": false, "10.0.0.5": true, "10.0.0.7": true, "10.0.0.9": true, "10.0.0.10": false, "::a00:7": false, "::ffff:10.0.0.7": false,
	} {
		if got := span("10.0.0.5-10.0.0.9").Contains(netip.MustParseAddr(addr)); got != want {
			t.Errorf("%s: got %t, want %t", addr, got, want)
		}
	}
	if span("::-::ffff").Contains(netip.MustParseAddr("0.0.0.1")) {
		t.Error("got an IPv4 address in a range of IPv6")
	}
}

func TestThePrefixOfARange(t *testing.T) {
	for text, want := range map[string]string{
		"10.0.0.0-10.0.0.15": "10.0.0.0/28", "10.0.0.1-10.0.0.14": "10.0.0.0/28", "10.0.0.7-10.0.0.7": "10.0.0.7/32",
		"10.0.127.255-10.0.128.0": "10.0.0.0/16", "fd00::1-fd00::1ff": "fd00::/119",
	} {
		if got := span(text).Prefix(); got != netip.MustParsePrefix(want) {
			t.Errorf("%s: got %s, want %s", text, got, want)
		}
	}
}

func TestRangesOverlap(t *testing.T) {
	for _, test := range []struct{ a, b, common string }{
		{"10.0.0.1-10.0.0.9", "10.0.0.9-10.0.0.20", "10.0.0.9-10.0.0.9"},
		{"10.0.0.1-10.0.0.9", "10.0.0.10-10.0.0.20", ""},
		{"10.0.0.1-10.0.0.9", "10.0.0.3-10.0.0.5", "10.0.0.3-10.0.0.5"},
		{"10.0.0.1-10.0.0.9", "10.0.0.1-10.0.0.9", "10.0.0.1-10.0.0.9"},
		{"10.0.0.3-10.0.0.9", "10.0.0.1-10.0.0.5", "10.0.0.3-10.0.0.5"},
		{"0.0.0.0-255.255.255.255", "::-::ffff:ffff", ""},
	} {
		a, b := span(test.a), span(test.b)
		if got := a.Overlaps(b); got != (test.common != "") || got != b.Overlaps(a) {
			t.Errorf("%s and %s overlap: got %t", a, b, got)
		}
		if test.common == "" {
			continue
		}
		if want := span(test.common); a.Common(b) != want || b.Common(a) != want {
			t.Errorf("%s and %s: got %s and %s in common, want %s", a, b, a.Common(b), b.Common(a), want)
		}
	}
}

func TestSizesOfRanges(t *testing.T) {
	for text, want := range map[string]uint64{
		"fd00::1-fd00::1:0:0:0":                   1 << 48,
		"fd00::1-fd00:0:0:1::":                    math.MaxUint64,     // one too many for a uint64
		"fd00::2-fd00:0:0:1::":                    math.MaxUint64,     // 2^64-1
		"fd00::3-fd00:0:0:1::":                    math.MaxUint64 - 1, // borrows from the upper half
		"fd00::ffff:ffff:ffff:ffff-fd00:0:0:1::":  2,
		"fd00::ffff:ffff:ffff:ffff-fd00:0:0:1::1": 3,
		"fd00::-fd00::ffff:ffff:ffff:fffe":        math.MaxUint64,
		"fd00::1-fd00:0:0:2::":                    math.MaxUint64,
		"10.0.0.255-10.0.1.0":                     2,
		"10.255.255.255-11.0.0.1":                 3,
		"fd00::-fd00:0:0:1:8000::":                math.MaxUint64,
		"fd00::ff:ffff-fd00::100:0":               2,
	} {
		if got := span(text).Size(); got != want {
			t.Errorf("%s: got %d, want %d", text, got, want)
		}
	}
}

func TestSizesOfPools(t *testing.T) {
	p := verdict.Pool{
		Pool: ipam.Pool{
			Ranges: []ipam.Range{span("10.0.0.1-10.0.0.4"), span("10.0.1.1-10.0.1.2"), span("fd00::1-fd00::8")},
			Gateways: []netip.Addr{
				netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.9.9"), netip.MustParseAddr("fd00::1"), netip.MustParseAddr("fd00::2"),
			},
		},
	}
	if all, four, six := p.Size(), p.SizeOf(true), p.SizeOf(false); all != 11 || four != 5 || six != 6 {
		t.Errorf("got %d, %d of IPv4 and %d of IPv6, want 11, 5 and 6 without the gateways", all, four, six)
	}
	twice := verdict.Pool{Pool: ipam.Pool{Ranges: []ipam.Range{span("10.0.0.1-10.0.0.4"), span("10.0.0.1-10.0.0.2")}, Gateways: p.Gateways[:1]}}
	if got := twice.Size(); got != 5 {
		t.Errorf("got %d, want 5: a gateway counts once, even if two ranges have it", got)
	}
	p.Grows = true
	if got := p.Size(); got != 0 {
		t.Errorf("got %d of a pool that grows, want 0", got)
	}
	huge := verdict.Pool{Pool: ipam.Pool{Ranges: []ipam.Range{span("fd00::/64"), span("10.0.0.0/24")}, Gateways: []netip.Addr{netip.MustParseAddr("10.0.0.1")}}}
	if got := huge.Size(); got != math.MaxUint64 {
		t.Errorf("got %d, want the largest number: two ranges together have more addresses", got)
	}
	full := verdict.Pool{Pool: ipam.Pool{Ranges: []ipam.Range{span("fd00::/64")}, Gateways: []netip.Addr{netip.MustParseAddr("fd00::1")}}}
	if got := full.Size(); got != math.MaxUint64 {
		t.Errorf("got %d, want the largest number: it stands for more than that", got)
	}
}

func TestPoolContainsItsAllocations(t *testing.T) {
	p := verdict.Pool{
		Pool: ipam.Pool{
			Ranges:   []ipam.Range{span("10.0.0.1-10.0.0.4"), span("10.0.1.1-10.0.1.2")},
			Gateways: []netip.Addr{netip.MustParseAddr("10.0.1.1")},
		},
	}
	for addr, want := range map[string]bool{"10.0.0.1": true, "10.0.0.5": false, "10.0.1.1": false, "10.0.1.2": true} {
		if got := p.Contains(netip.MustParseAddr(addr)); got != want {
			t.Errorf("%s: got %t, want %t", addr, got, want)
		}
	}
}

func TestAPoolServesNetworks(t *testing.T) {
	for _, test := range []struct {
		pool            verdict.Pool
		network         string
		serves, unknown bool
	}{
		{verdict.Pool{Pool: ipam.Pool{Served: ipam.Served{Network: "a"}}}, "a", true, false},
		{verdict.Pool{Pool: ipam.Pool{Served: ipam.Served{Network: "a"}}}, "b", false, false},
		{verdict.Pool{Pool: ipam.Pool{Served: ipam.Served{Networks: []string{"a", "b"}}}}, "b", true, false},
		{verdict.Pool{Pool: ipam.Pool{Served: ipam.Served{Networks: []string{"a", "b"}}}}, "c", false, false},
		{verdict.Pool{Pool: ipam.Pool{Served: ipam.Served{Network: "a", Networks: []string{"b"}}}}, "a", true, false},
		{verdict.Pool{}, "a", false, true},
		{verdict.Pool{}, "", false, true},
	} {
		if serves, unknown := test.pool.Serves(test.network); serves != test.serves || unknown != test.unknown {
			t.Errorf("%+v for %q: got %t, %t, want %t, %t", test.pool, test.network, serves, unknown, test.serves, test.unknown)
		}
	}
}

func TestPoolsCompete(t *testing.T) {
	for why, test := range map[string]struct {
		change func(a, b *verdict.Pool)
		want   bool
	}{
		"both are routed":                           {want: true},
		"they are of one network":                   {change: func(_, b *verdict.Pool) { b.Network = "a" }},
		"the first one has no configuration":        {change: func(a, _ *verdict.Pool) { a.Config = "" }},
		"the second one has no configuration":       {change: func(_, b *verdict.Pool) { b.Config = "" }},
		"only the first is routed":                  {change: func(_, b *verdict.Pool) { b.Routed = false }},
		"only the second is routed":                 {change: func(a, _ *verdict.Pool) { a.Routed = false }},
		"neither is routed, and no device is known": {change: func(a, b *verdict.Pool) { a.Routed, b.Routed = false, false }},
		"neither is routed, on one bridge": {change: func(a, b *verdict.Pool) {
			a.Routed, b.Routed, a.Device, b.Device = false, false, "br0", "br0"
		}, want: true},
		"neither is routed, on two bridges": {change: func(a, b *verdict.Pool) {
			a.Routed, b.Routed, a.Device, b.Device = false, false, "br0", "br1"
		}},
		"no address in common": {change: func(_, b *verdict.Pool) { b.Ranges = []ipam.Range{span("10.0.9.0/24")} }},
	} {
		a := verdict.Pool{Pool: ipam.Pool{Served: ipam.Served{Network: "a"}, Config: "a.conf", Wiring: ipam.Wiring{Routed: true}, Ranges: []ipam.Range{span("10.0.7.0/24"), span("10.0.0.0/24")}}}
		b := verdict.Pool{Pool: ipam.Pool{Served: ipam.Served{Network: "b"}, Config: "b.conf", Wiring: ipam.Wiring{Routed: true}, Ranges: []ipam.Range{span("10.0.8.0/24"), span("10.0.0.128/25")}}}
		if test.change != nil {
			test.change(&a, &b)
		}
		if got := a.Competes(&b.Pool); got != test.want || b.Competes(&a.Pool) != got {
			t.Errorf("%s: got %t, want %t both ways", why, got, test.want)
		}
		if x, y := a.Overlap(&b.Pool); test.want && (x != a.Ranges[1] || y != b.Ranges[1]) {
			t.Errorf("%s: got %s and %s, want the ranges that overlap", why, x, y)
		}
	}
}
