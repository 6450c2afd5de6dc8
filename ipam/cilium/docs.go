package cilium

import (
	_ "embed"

	"github.com/ipwitness/ipwitness/ipam"
)

//go:embed runbooks.md
var runbooks string

var docs = ipam.Docs{
	Supported: []ipam.Supported{{
		What: "Cilium (cluster-pool; multi-pool; single addresses of clouds)",
		State: "by its interface: CiliumNode, and CiliumEndpoint for what pods have. Without CiliumEndpoints (`disable-endpoint-crd`), " +
			"its pools stay `READING`. CiliumPodIPPool is not read: the CiliumNodes have the ranges that it has given away",
		Evidence: "`TestCilium`, `TestIPAMsOfARealAPI`, `TestIncident13OneRangeOfAMultiPoolOnTwoNodes`, `TestIncident11CiliumListsAnAddressThatAzureHasGivenToAPod`",
	}},
	Plan: &ipam.Plan{
		InUseUnallocated: "by hand",
		BookedElsewhere:  "deletes the CiliumEndpoint of a pod that is gone",
		Leaked:           "the same",
	},
	Runbooks: runbooks,
}
