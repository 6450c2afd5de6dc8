package ovnkubernetes

import (
	_ "embed"

	"github.com/ipwitness/ipwitness/ipam"
)

//go:embed runbooks.md
var runbooks string

var docs = ipam.Docs{
	Supported: []ipam.Supported{{
		What:     "OVN-Kubernetes (`IPAMClaim`)",
		State:    "by its interface: a CRD that we rewrote, in a real API server. Only claims of one network with the same address are found",
		Evidence: "`TestIPAMClaims`, `TestResourcesOfARealAPI`",
	}},
	Runbooks: runbooks,
}
