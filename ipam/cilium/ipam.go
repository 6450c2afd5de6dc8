// Package cilium describes Cilium's IPAM. Its agent on each node keeps the allocations in memory,
// and writes them to custom resources of the cluster for others to read.
package cilium

import (
	"cmp"
	"strings"
	"time"

	"github.com/ipwitness/ipwitness/ipam"
)

// IPAM describes Cilium.
var IPAM = ipam.IPAM{
	Name: "cilium", Title: "Cilium",
	PodDevice: "cilium_host", // a veth pair with both ends in the node
	Traits: ipam.Traits{
		Mirrored: true,
		// Cilium limits the rate at which it writes objects.
		StartDelay: 5 * time.Minute, EndDelay: 30 * time.Second,
		OwnNamespaces: true, // of its health endpoint
	},
	PoolKind: Nodes.Name,
	Objects:  newObjects,
	Repair:   ipam.Repair{Texts: ipam.ReadTexts("cilium/remedies.txt"), Words: words},
}

// words returns the values that the texts of remedies name: the node of the holder, that of the allocation, and whether
// the allocation is recorded in a CiliumEndpointSlice only.
func words(c *ipam.Case) map[string]any {
	where, recorded, copied := cmp.Or(c.Node, "?"), cmp.Or(c.Node, c.Allocation.Node, "?"), ""
	if h := c.Holder; h != nil {
		where = cmp.Or(h.KubernetesNode, h.Node)
	}
	if strings.HasPrefix(c.Allocation.Location, Slices.Resource+" ") {
		copied = "yes"
	}
	return map[string]any{"where": where, "recorded": recorded, "copied": copied}
}
