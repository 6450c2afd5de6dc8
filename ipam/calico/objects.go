package calico

import "github.com/ipwitness/ipwitness/ipam"

// The custom resources of Calico.
var (
	Pools        = kind("ippools", "IPPool")
	Blocks       = kind("ipamblocks", "IPAMBlock")
	Affinities   = kind("blockaffinities", "BlockAffinity")
	Handles      = kind("ipamhandles", "IPAMHandle")
	Reservations = kind("ipreservations", "IPReservation")
)

func kind(resource, name string) ipam.Kind {
	return ipam.Kind{Group: "crd.projectcalico.org", Version: "v1", Resource: resource, Name: name}
}

// native returns the kind of the same objects in the group that newer versions of Calico use. Like
// Calico itself (UsingV3CRDs in libcalico-go/lib/backend/k8s), ipwitness uses it only if
// crd.projectcalico.org is not served at all. Otherwise Calico's own API server serves this group,
// from the objects of crd.projectcalico.org.
func native(k ipam.Kind) ipam.Kind {
	k.Group, k.Version = "projectcalico.org", "v3"
	return k
}

func newObjects(ipam.Publisher) *ipam.Objects {
	return &ipam.Objects{Resources: []*ipam.Resource{
		{Kind: Pools, Alternative: native(Pools), Role: ipam.Needed, Lost: "which addresses Calico gives is not known"},
		{Kind: Blocks, Alternative: native(Blocks), Role: ipam.Needed, Lost: "what Calico has given is not known"},
		{Kind: Affinities, Alternative: native(Affinities), Role: ipam.Extra, Lost: "blocks of Calico that are bound to nodes which do not exist are not known"},
		{Kind: Handles, Alternative: native(Handles), Role: ipam.Extra, Lost: "handles of Calico that no block has are not known"},
		{Kind: Reservations, Alternative: native(Reservations), Role: ipam.Extra, Lost: "addresses that Calico keeps back (IPReservation) count as those that it gives"},
	}}
}
