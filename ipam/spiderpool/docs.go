package spiderpool

import (
	_ "embed"

	"github.com/ipwitness/ipwitness/ipam"
)

//go:embed runbooks.md
var runbooks string

var docs = ipam.Docs{
	Supported: []ipam.Supported{{
		What: "Spiderpool (`SpiderIPPool`, `SpiderEndpoint`)",
		State: "by its interface: CRDs that we rewrote, in a real API server. Only addresses of macvlan and ipvlan devices are compared with pools without `multusName`. " +
			"A `multusName` with a namespace is expected to be the name of the CNI network, as Spiderpool itself writes it",
		Evidence: "`TestSpiderpool`, `TestGarbageCollectionOfSpiderpoolIsPredicted`, `TestResourcesOfARealAPI`, `TestChurnOfRecordsIsSilent` (500 pods)",
	}},
	Plan:     &ipam.Plan{InUseUnallocated: "by hand", BookedElsewhere: "by hand", Leaked: "by hand"},
	Runbooks: runbooks,
}
