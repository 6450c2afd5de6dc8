package cilium

import (
	_ "embed"

	"github.com/ipwitness/ipwitness/ipam"
)

//go:embed runbooks.md
var runbooks string

var docs = ipam.Docs{
	Supported: []ipam.Supported{{
		What: "Cilium (cluster pool, CRDs)", State: "by its interface", Evidence: "`TestCilium`, `TestIPAMsOfARealAPI`",
	}},
	Plan: &ipam.Plan{
		InUseUnallocated: "by hand",
		BookedElsewhere:  "deletes the CiliumEndpoint of a pod that is gone",
		Leaked:           "the same",
	},
	Runbooks: runbooks,
}
