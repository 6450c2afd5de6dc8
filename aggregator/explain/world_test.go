package explain_test

import (
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/tests/verdicttest"
)

const start = verdicttest.Start

// assigned returns the claim of a kernel that has an address.
func assigned(i *verdict.Interface) *verdict.Claim {
	return &verdict.Claim{
		Kind: verdict.Assigned, Interface: i, PrefixLength: 24, Flags: verdict.FlagPermanent, Count: 1, Times: verdict.Times{First: start, Last: start, AssignedAt: start, Begun: start, Seen: start, Read: start},
	}
}
