// Package cilium describes Cilium's IPAM. Its agent on each node keeps the allocations in memory,
// and writes them to custom resources of the cluster for others to read.
package cilium

import (
	"strings"
	"time"

	"github.com/ipwitness/ipwitness/ipam"
)

// Name is the name of Cilium in the API.
const Name = "cilium"

// IPAM describes Cilium.
var IPAM = ipam.IPAM{
	Name: Name, Title: "Cilium",
	PodDevice: "cilium_host", // a veth pair with both ends in the node
	Traits: ipam.Traits{
		Mirrored: true,
		// Cilium limits the rate at which it writes objects.
		StartDelay: 5 * time.Minute, EndDelay: 30 * time.Second,
		OwnNamespaces: true, // of its health endpoint
	},
	PoolTitle: func(p *ipam.Pool, node string) string {
		switch {
		case node != "":
		case strings.HasPrefix(p.Name, Pools.Name+" "):
			return "Cilium (" + p.Name + ")"
		default:
			return "Cilium (CiliumNode " + p.Name + ")"
		}
		return "Cilium on node " + node
	},
	Objects: newObjects,
	Repair:  repair,
}
