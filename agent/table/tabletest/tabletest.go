// Package tabletest has what tests of other packages need of a table.
package tabletest

import (
	"net/netip"
	"time"

	"github.com/ipwitness/ipwitness/agent/table"
	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// Claim returns the key of claim i. Each number has an address of its own.
func Claim(i int) table.ClaimKey {
	addr := netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
	return table.ClaimKey{Address: addr, Kind: ipwitnessv1.Evidence_ASSIGNED, At: table.InterfaceKey{Namespace: 2, Index: 2}}
}

// Follow returns a reader that has taken everything in the table.
func Follow(t *table.Table) *table.Reader {
	r := t.Attach()
	for r.Take(time.Now()) != nil {
	}
	return r
}
