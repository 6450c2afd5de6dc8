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
		State: "by its interface: CiliumNode, CiliumEndpoint for what pods have, and CiliumEndpointSlice for pods without a CiliumEndpoint " +
			"(`ces-controller-mode=slim` with `disable-endpoint-crd`). Without both, its pools stay `READING`. Of CiliumPodIPPool (multi-pool) the CIDRs are read, " +
			"to find pools that overlap; the addresses are those of the CiliumNodes",
		Evidence: "`TestCilium`, `TestEndpointSlices`, `TestPodIPPools`, `TestChurnOfRecordsIsSilent` and `TestChurnOfResourcesHasNoFindings` (500 pods), `TestPoolsOfCiliumThatOverlapAreFound`, `TestIPAMsOfARealAPI`, `TestIncident13OneRangeOfAMultiPoolOnTwoNodes`, `TestIncident11CiliumListsAnAddressThatAzureHasGivenToAPod`",
	}},
	Plan: &ipam.Plan{
		InUseUnallocated: "by hand",
		BookedElsewhere:  "deletes the CiliumEndpoint of a pod that is gone",
		Leaked:           "the same",
	},
	Runbooks: runbooks,
}
