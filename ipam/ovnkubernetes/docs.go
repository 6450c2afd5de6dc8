package ovnkubernetes

import (
	_ "embed"

	"github.com/ipwitness/ipwitness/ipam"
)

//go:embed runbooks.md
var runbooks string

var docs = ipam.Docs{
	Supported: []ipam.Supported{{
		What:     "OVN-Kubernetes (`IPAMClaim`; of `k8s.ovn.org/pod-networks` the default network)",
		State:    "by its interface: a CRD that we rewrote, in a real API server; annotations in its format. Only addresses that are allocated twice are found",
		Evidence: "`TestIPAMClaims`, `TestResourcesOfARealAPI`, `TestOVNKubernetesAllocatesAnAddressTwice`",
	}},
	Runbooks: runbooks,
}
