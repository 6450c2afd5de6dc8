package ipam_test

import (
	"math"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/ipwitness/ipwitness/ipam"
)

// span parses a range: a prefix, an address, or FIRST-LAST.
func span(text string) ipam.Range {
	if p, err := netip.ParsePrefix(text); err == nil {
		return ipam.RangeOf(p)
	}
	first, last, two := strings.Cut(text, "-")
	if !two {
		last = first
	}
	return ipam.Range{First: netip.MustParseAddr(first), Last: netip.MustParseAddr(last)}
}

// spans parses ranges, separated by spaces.
func spans(text string) (ranges []ipam.Range) {
	for field := range strings.FieldsSeq(text) {
		ranges = append(ranges, span(field))
	}
	return ranges
}

// addresses parses addresses, separated by spaces.
func addresses(text string) (all []netip.Addr) {
	for field := range strings.FieldsSeq(text) {
		all = append(all, netip.MustParseAddr(field))
	}
	return all
}

func TestParseAddress(t *testing.T) {
	for text, want := range map[string]string{
		"10.0.0.1": "10.0.0.1", "010.000.00.08": "10.0.0.8", "00010.1.2.3": "10.1.2.3", "::ffff:10.0.0.1": "10.0.0.1", "::ffff:010.0.0.01": "10.0.0.1",
		"fd00::01": "fd00::1", "": "", "10.0.0": "", "10.0.0.256": "", "0x0a.0.0.1": "", "10.0..1": "", "10.0.0.1.2": "", "x": "", "10.0.0.1/8": "",
	} {
		got := ""
		if a, err := ipam.ParseAddress(text); err == nil {
			got = a.String()
		}
		if got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}

func TestAddressesOfARange(t *testing.T) {
	for _, test := range []struct {
		text, inside, outside, prefix, written string
		size                                   uint64
	}{
		{"10.0.0.5-10.0.0.9", "10.0.0.5 10.0.0.7 10.0.0.9", "10.0.0.4 10.0.0.10 ::a00:7 ::ffff:10.0.0.7", "10.0.0.0/28", "10.0.0.5-10.0.0.9", 5},
		{"10.0.0.0-10.0.0.15", "10.0.0.0 10.0.0.15", "9.255.255.255 10.0.0.16", "10.0.0.0/28", "10.0.0.0/28", 16},
		{"10.0.127.255-10.0.128.0", "10.0.128.0", "10.0.128.1", "10.0.0.0/16", "10.0.127.255-10.0.128.0", 2},
		{"10.0.0.7", "10.0.0.7", "10.0.0.6 10.0.0.8", "10.0.0.7/32", "10.0.0.7/32", 1},
		{"0.0.0.0/0", "0.0.0.0 255.255.255.255", "::", "0.0.0.0/0", "0.0.0.0/0", 1 << 32},
		{"192.0.2.77/20", "192.0.0.0 192.0.15.255", "192.0.16.0", "192.0.0.0/20", "192.0.0.0/20", 4096},
		{"::-::ffff", "::1 ::ffff", "0.0.0.1 ::1:0", "::/112", "::/112", 1 << 16},
		{"fd00::1-fd00::1ff", "fd00::1", "fd00::200", "fd00::/119", "fd00::1-fd00::1ff", 511},
		{"fd00::ffff:ffff:ffff:ffff-fd00:0:0:1::1", "fd00:0:0:1::", "fd00::", "fd00::/63", "fd00::ffff:ffff:ffff:ffff-fd00:0:0:1::1", 3},
		{"fd00::3-fd00:0:0:1::", "fd00::3", "fd00::2", "fd00::/63", "fd00::3-fd00:0:0:1::", math.MaxUint64 - 1},
		{"fd00::1-fd00:0:0:1::", "fd00::1", "fd00::", "fd00::/63", "fd00::1-fd00:0:0:1::", math.MaxUint64}, // one too many for a uint64
		{"fd00::-fd00:0:0:1::", "fd00::", "fd00:0:0:1::1", "fd00::/63", "fd00::-fd00:0:0:1::", math.MaxUint64},
		{"fd00::/56", "fd00:0:0:ff::", "fd00:0:0:100::", "fd00::/56", "fd00::/56", math.MaxUint64},
	} {
		r := span(test.text)
		for _, a := range addresses(test.inside) {
			if !r.Contains(a) {
				t.Errorf("%s: got %s outside, want it inside", test.text, a)
			}
		}
		for _, a := range addresses(test.outside) {
			if r.Contains(a) {
				t.Errorf("%s: got %s inside, want it outside", test.text, a)
			}
		}
		if got := r.Prefix().String(); got != test.prefix {
			t.Errorf("%s: got prefix %s, want %s", test.text, got, test.prefix)
		}
		if got := r.String(); got != test.written {
			t.Errorf("%s: got %s, want %s", test.text, got, test.written)
		}
		if got := r.Size(); got != test.size {
			t.Errorf("%s: got %d addresses, want %d", test.text, got, test.size)
		}
	}
}

func TestCommonAddressesOfTwoRanges(t *testing.T) {
	for _, test := range []struct{ a, b, common, without string }{
		{"10.0.0.1-10.0.0.9", "10.0.0.9-10.0.0.20", "10.0.0.9", "10.0.0.1-10.0.0.8"},
		{"10.0.0.9-10.0.0.20", "10.0.0.1-10.0.0.9", "10.0.0.9", "10.0.0.10-10.0.0.20"},
		{"10.0.0.1-10.0.0.9", "10.0.0.10-10.0.0.20", "", "10.0.0.1-10.0.0.9"},
		{"10.0.0.10-10.0.0.20", "10.0.0.1-10.0.0.9", "", "10.0.0.10-10.0.0.20"},
		{"10.0.0.1-10.0.0.9", "10.0.0.3-10.0.0.5", "10.0.0.3-10.0.0.5", "10.0.0.1-10.0.0.2 10.0.0.6-10.0.0.9"},
		{"10.0.0.3-10.0.0.5", "10.0.0.1-10.0.0.9", "10.0.0.3-10.0.0.5", ""},
		{"10.0.0.1-10.0.0.9", "10.0.0.1-10.0.0.9", "10.0.0.1-10.0.0.9", ""},
		{"10.0.0.3-10.0.0.9", "10.0.0.1-10.0.0.5", "10.0.0.3-10.0.0.5", "10.0.0.6-10.0.0.9"},
		{"0.0.0.0/0", "::/96", "", "0.0.0.0/0"},
	} {
		a, b := span(test.a), span(test.b)
		if got := a.Overlaps(b); got != (test.common != "") || got != b.Overlaps(a) {
			t.Errorf("%s and %s: got overlap %t", a, b, got)
		}
		if test.common != "" && (a.Common(b) != span(test.common) || b.Common(a) != span(test.common)) {
			t.Errorf("%s and %s: got %s and %s in common, want %s", a, b, a.Common(b), b.Common(a), test.common)
		}
		if got, want := ipam.Without([]ipam.Range{a}, b), spans(test.without); !slices.Equal(got, want) {
			t.Errorf("%s without %s: got %s, want %s", a, b, got, want)
		}
	}
	if got, want := ipam.Without(spans("10.0.0.1-10.0.0.3 10.0.9.0/24 10.0.0.3-10.0.0.5"), span("10.0.0.3")), spans("10.0.0.1-10.0.0.2 10.0.9.0/24 10.0.0.4-10.0.0.5"); !slices.Equal(got, want) {
		t.Errorf("several ranges: got %s, want %s", got, want)
	}
}

func TestUnionOfRanges(t *testing.T) {
	for from, want := range map[string]string{
		"": "", "10.0.0.5 10.0.0.1": "10.0.0.1 10.0.0.5", "10.0.0.2 10.0.0.1": "10.0.0.1-10.0.0.2",
		"10.0.0.1-10.0.0.5 10.0.0.5-10.0.0.9": "10.0.0.1-10.0.0.9", "10.0.0.1-10.0.0.9 10.0.0.3-10.0.0.5": "10.0.0.1-10.0.0.9",
		"10.0.0.1-10.0.0.5 10.0.0.7 10.0.0.3-10.0.0.4": "10.0.0.1-10.0.0.5 10.0.0.7",
		"::/127 255.255.255.254/31 10.0.0.0/31":        "10.0.0.0/31 255.255.255.254/31 ::/127",
	} {
		if got := ipam.Union(spans(from)); !slices.Equal(got, spans(want)) {
			t.Errorf("%s: got %s, want %s", from, got, want)
		}
	}
	union := spans("10.0.0.1-10.0.0.5 10.0.0.8")
	for a, want := range map[string]bool{"10.0.0.0": false, "10.0.0.1": true, "10.0.0.3": true, "10.0.0.5": true, "10.0.0.6": false, "10.0.0.8": true, "10.0.0.9": false} {
		if got := ipam.Contain(union, netip.MustParseAddr(a)); got != want {
			t.Errorf("%s: got contained %t, want %t", a, got, want)
		}
	}
}

func TestUsableAddressesOfAPrefix(t *testing.T) {
	for prefix, want := range map[string]string{
		"10.0.0.5/24": "10.0.0.1-10.0.0.254", "10.0.0.4/30": "10.0.0.5-10.0.0.6", "10.0.0.4/31": "10.0.0.4-10.0.0.5", "10.0.0.4/32": "10.0.0.4", "fd00::/126": "fd00::1-fd00::2",
	} {
		if got := ipam.Usable(netip.MustParsePrefix(prefix)); got != span(want) {
			t.Errorf("%s: got %s, want %s", prefix, got, want)
		}
	}
}

func TestOffsets(t *testing.T) {
	for _, test := range []struct{ base, offset, address string }{
		{"10.0.0.4", "0", "10.0.0.4"},
		{"10.0.0.4", "3", "10.0.0.7"},
		{"10.0.0.255", "1", "10.0.1.0"},
		{"0.0.0.0", "4294967295", "255.255.255.255"},
		{"fd00::5", "0", "fd00::5"},
		{"fd00::5", "3", "fd00::8"},
		{"fd00::", "9223372036854775807", "fd00::7fff:ffff:ffff:ffff"},
		{"fd00::ffff:ffff:ffff:ffff", "2", "fd00:0:0:1::1"},
	} {
		base, a := netip.MustParseAddr(test.base), netip.MustParseAddr(test.address)
		if got, ok := ipam.OffsetOf(base, a); got != test.offset || !ok {
			t.Errorf("%s from %s: got offset %s, %t, want %s", a, base, got, ok, test.offset)
		}
		if got, ok := ipam.OffsetFrom(base, test.offset); got != a || !ok {
			t.Errorf("%s at offset %s: got %s, %t, want %s", base, test.offset, got, ok, a)
		}
	}
	for _, test := range []struct{ base, address string }{{"10.0.0.4", "10.0.0.3"}, {"10.0.0.4", "fd00::"}, {"fd00::1", "fd00::"}, {"::", "10.0.0.4"}, {"fd00::", "fd00::8000:0:0:0"}} {
		if got, ok := ipam.OffsetOf(netip.MustParseAddr(test.base), netip.MustParseAddr(test.address)); ok {
			t.Errorf("%s from %s: got offset %q, want none", test.address, test.base, got)
		}
	}
	if got, ok := ipam.OffsetOf(netip.Addr{}, netip.Addr{}); ok {
		t.Errorf("no address: got offset %s, want none", got)
	}
	for _, test := range []struct{ base, offset string }{
		{"255.255.255.255", "1"},
		{"10.0.0.4", "4294967296"},
		{"10.0.0.4", "18446744073709551615"},
		{"10.0.0.4", "18446744073709551616"},
		{"ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "1"},
		{"::", "9223372036854775808"},
		{"::", ""},
		{"::", "x"},
		{"::", "-1"},
		{"::", "1844674407370955161x"},
	} {
		if got, ok := ipam.OffsetFrom(netip.MustParseAddr(test.base), test.offset); ok || got.IsValid() {
			t.Errorf("%s at offset %q: got %s, want none", test.base, test.offset, got)
		}
	}
}

func TestParseRange(t *testing.T) {
	for text, want := range map[string]string{
		"10.0.0.7": "10.0.0.7/32", "10.0.0.0/24": "10.0.0.0/24", "10.0.0.1..10.0.0.9": "10.0.0.1-10.0.0.9", "fd00::1..fd00::2": "fd00::1-fd00::2",
		"": "error", "x": "error", "10.0.0.1..": "error", "10.0.0.9..10.0.0.1": "error", "10.0.0.1..fd00::1": "error", "10.0.0.1-10.0.0.9": "error",
	} {
		r, err := ipam.ParseRange(text, "..")
		got := "error"
		if err == nil {
			got = r.String()
		}
		if got != want {
			t.Errorf("%q: got %s, %v, want %s", text, got, err, want)
		}
	}
}
