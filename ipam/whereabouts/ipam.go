// Package whereabouts describes whereabouts, an IPAM for secondary networks, which keeps its
// allocations in custom resources of the cluster.
package whereabouts

import "github.com/ipwitness/ipwitness/ipam"

// Name is the name of whereabouts in the API.
const Name = "whereabouts"

// IPAM describes whereabouts.
var IPAM = ipam.IPAM{
	Name: Name, Title: "whereabouts",
	Traits:   ipam.Traits{Secondary: true},
	PoolKind: Pools.Name,
	Objects:  newObjects,
	Repair:   ipam.Repair{Texts: ipam.ReadTexts("whereabouts/remedies.txt"), Words: words, Rebuild: true},
}
