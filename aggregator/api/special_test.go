package api_test

import (
	"strings"
	"testing"

	"github.com/ipwitness/ipwitness/aggregator/api"
)

func TestSpecialAddressesAreExplained(t *testing.T) {
	for _, test := range []struct{ address, want string }{
		{"127.0.0.1", "127.0.0.1 is a loopback address"},
		{"::1", "::1 is a loopback address"},
		{"224.0.0.251", "is a multicast address"},
		{"ff02::1%eth0", "No conflict: ff02::1 is a multicast address"},
		{"255.255.255.255", "is the broadcast address"},
		{"0.0.0.0", "has no address yet"},
		{"::", "has no address yet"},
		{"::ffff:10.0.0.1", "Ask for 10.0.0.1"},
		{"::ffff:127.0.0.1", "Ask for 127.0.0.1"},
		{"10.0.0.255", ""}, // may be that of a host
		{"169.254.1.1", ""},
		{"fe80::1", ""},
		{"nosuch", ""},
	} {
		got := api.ExplainSpecial(test.address)
		if (got != nil) != (test.want != "") || !strings.Contains(got.GetSummary(), test.want) {
			t.Errorf("%s: got %q, want %q", test.address, got.GetSummary(), test.want)
		}
	}
}
