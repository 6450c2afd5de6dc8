package whereabouts

import "github.com/ipwitness/ipwitness/ipam"

// The custom resources of whereabouts and of the networks that use it.
var (
	Pools        = ipam.Kind{Group: "whereabouts.cni.cncf.io", Version: "v1alpha1", Resource: "ippools", Name: "IPPool"}
	Reservations = ipam.Kind{Group: "whereabouts.cni.cncf.io", Version: "v1alpha1", Resource: "overlappingrangeipreservations", Name: "OverlappingRangeIPReservation"}
	Networks     = ipam.Kind{Group: "k8s.cni.cncf.io", Version: "v1", Resource: "network-attachment-definitions", Name: "NetworkAttachmentDefinition"}
)

func newObjects(ipam.Publisher) *ipam.Objects {
	return &ipam.Objects{Resources: []*ipam.Resource{
		{Kind: Pools, Role: ipam.Needed, Lost: "what whereabouts has given is not known"},
		{Kind: Reservations, Lost: "what whereabouts has given in overlapping ranges is not known"},
		{Kind: Networks, Lost: "which networks whereabouts serves, and which parts of its ranges it leaves out, is not known"},
	}}
}
