package agenttest

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/ipwitness/ipwitness/agent/table"
	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// Claim returns the key of claim i. Each claim has a different address.
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

// Networks returns the address, the kind and the network of each claim.
func Networks(t *table.Table) string {
	var all []string
	t.Update(func() {
		for key, c := range t.Claims() {
			all = append(all, fmt.Sprint(key.Address, " ", key.Kind, " ", c.Name))
		}
	})
	slices.Sort(all)
	return strings.Join(all, ", ")
}

// Workload returns the workload of the namespace with an inode, or nil if the table has none.
func Workload(t *table.Table, inode uint64) (w *ipwitnessv1.Workload) {
	t.Update(func() {
		for _, r := range t.Namespaces.All() {
			if r.GetNetns() == fmt.Sprint(inode) {
				w = r.GetWorkload()
			}
		}
	})
	return w
}
