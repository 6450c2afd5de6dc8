// Package spiderpool describes Spiderpool, an IPAM for underlay networks, which keeps its allocations
// in custom resources of the cluster.
//
// The format of the objects is that of Spiderpool 1.0
// (pkg/k8s/apis/spiderpool.spidernet.io/v2beta1: spiderippool_types.go, spiderendpoint_types.go).
package spiderpool

import (
	"strings"

	"github.com/ipwitness/ipwitness/ipam"
)

// IPAM describes Spiderpool.
var IPAM = ipam.IPAM{
	Name: "spiderpool", Title: "Spiderpool",
	Traits:   ipam.Traits{Secondary: true},
	PoolKind: Pools.Name,
	Objects:  newObjects,
	Repair:   ipam.Repair{Texts: ipam.ReadTexts("spiderpool/remedies.txt"), Words: words},
}

// words returns the values that the texts of remedies name: the name of the object that reserves the address.
func words(c *ipam.Case) map[string]any {
	return map[string]any{"reserved": "ip-" + strings.NewReplacer(".", "-", ":", "-").Replace(c.Address.StringExpanded())}
}
