// Package spiderpool describes Spiderpool, an IPAM for underlay networks, which keeps its allocations
// in custom resources of the cluster.
//
// The format of the objects is that of Spiderpool 1.0
// (pkg/k8s/apis/spiderpool.spidernet.io/v2beta1: spiderippool_types.go, spiderendpoint_types.go).
package spiderpool

import "github.com/ipwitness/ipwitness/ipam"

// Name is the name of Spiderpool in the API.
const Name = "spiderpool"

// IPAM describes Spiderpool.
var IPAM = ipam.IPAM{
	Name: Name, Title: "Spiderpool",
	Traits:    ipam.Traits{Secondary: true},
	PoolTitle: func(p *ipam.Pool, _ string) string { return "Spiderpool (SpiderIPPool " + p.Name + ")" },
	Objects:   newObjects,
	Repair:    repair,
}
