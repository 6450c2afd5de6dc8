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
