package whereabouts

import (
	_ "embed"

	"github.com/ipwitness/ipwitness/ipam"
)

//go:embed runbooks.md
var runbooks string

var docs = ipam.Docs{
	Supported: []ipam.Supported{{
		What:     "whereabouts (custom resources)",
		State:    "by its interface: CRDs that we rewrote, in a real API server; real pods. Its etcd mode is not read",
		Evidence: "`TestWhereaboutsLeaksAfterACrashAndLosesRunningPods`, `TestChurnOfRecordsIsSilent` (500 pods)",
	}},
	Plan: &ipam.Plan{
		InUseUnallocated: "adds the allocation at its offset, if that is free, and the reservation beside it",
		BookedElsewhere:  "replaces both, if the other pod is gone",
		Leaked:           "removes both, if they still belong to that pod and sandbox",
	},
	Runbooks: runbooks,
}
