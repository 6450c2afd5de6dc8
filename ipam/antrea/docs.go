package antrea

import (
	_ "embed"

	"github.com/ipwitness/ipwitness/ipam"
)

//go:embed runbooks.md
var runbooks string

var docs = ipam.Docs{
	Supported: []ipam.Supported{{
		What: "Antrea (`IPPool`)",
		State: "by its interface: CRDs that we rewrote, in a real API server. Pools of different VLANs are different networks. " +
			"The pods that ask for no IPPool have addresses of host-local",
		Evidence: "`TestAntrea`, `TestResourcesOfARealAPI`, `TestChurnOfRecordsIsSilent` (500 pods)",
	}},
	Plan: &ipam.Plan{
		InUseUnallocated: "restarts the holder, as with Calico",
		BookedElsewhere:  "the same",
		Leaked:           "by hand",
	},
	Runbooks: runbooks,
}
