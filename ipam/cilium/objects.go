package cilium

import "github.com/ipwitness/ipwitness/ipam"

// The custom resources of Cilium.
var (
	Nodes     = ipam.Kind{Group: "cilium.io", Version: "v2", Resource: "ciliumnodes", Name: "CiliumNode"}
	Endpoints = ipam.Kind{Group: "cilium.io", Version: "v2", Resource: "ciliumendpoints", Name: "CiliumEndpoint"}
)

func newObjects(ipam.Publisher) *ipam.Objects {
	return &ipam.Objects{Resources: []*ipam.Resource{
		{Kind: Nodes, Role: ipam.Needed, Lost: "which addresses Cilium gives is not known"},
		{Kind: Endpoints, Role: ipam.Needed, Lost: "what Cilium has given is not known"},
	}}
}
