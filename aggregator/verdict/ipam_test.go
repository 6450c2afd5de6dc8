package verdict_test

import (
	"net/netip"
	"testing"

	"github.com/ipwitness/ipwitness/ipam"
)

func TestRanges(t *testing.T) {
	for _, test := range []struct {
		first, last, text string
		size              uint64
	}{
		{"10.0.0.0", "10.0.0.255", "10.0.0.0/24", 256},
		{"10.0.0.1", "10.0.0.254", "10.0.0.1-10.0.0.254", 254},
		{"10.0.0.7", "10.0.0.7", "10.0.0.7/32", 1},
		{"0.0.0.0", "255.255.255.255", "0.0.0.0/0", 1 << 32},
		{"fd00::", "fd00::ffff:ffff:ffff:ffff", "fd00::/64", 1<<64 - 1},
		{"::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "::/0", 1<<64 - 1},
		{"fd00::1", "fd00::10", "fd00::1-fd00::10", 16},
	} {
		r := ipam.Range{First: netip.MustParseAddr(test.first), Last: netip.MustParseAddr(test.last)}
		if r.String() != test.text || r.Size() != test.size {
			t.Errorf("got %s with %d addresses, want %s with %d", r, r.Size(), test.text, test.size)
		}
	}
}

func TestOffsetsOfAddresses(t *testing.T) {
	for _, test := range []struct {
		base, addr, want string
		ok               bool
	}{
		{"10.0.0.0", "10.0.0.0", "0", true},
		{"10.0.0.0", "10.0.1.2", "258", true},
		{"10.0.0.5", "10.0.0.4", "", false},
		{"10.0.0.0", "fd00::1", "", false},
		{"fd00::", "fd00::ffff:ffff:ffff:ffff", "18446744073709551615", true},
		{"fd00::", "fd00:0:0:1::", "18446744073709551616", true},
		{"fd00::ffff", "fd00:0:0:2::", "36893488147419037697", true},
		{"::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "340282366920938463463374607431768211455", true},
	} {
		if got, ok := ipam.OffsetOf(netip.MustParseAddr(test.base), netip.MustParseAddr(test.addr)); got != test.want || ok != test.ok {
			t.Errorf("%s from %s: got %q, %t, want %q, %t", test.addr, test.base, got, ok, test.want, test.ok)
		}
	}
	if got, ok := ipam.OffsetOf(netip.Addr{}, netip.Addr{}); ok {
		t.Errorf("got offset %q of no address", got)
	}
}
