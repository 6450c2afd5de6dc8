package kubeovn

import (
	_ "embed"

	"github.com/ipwitness/ipwitness/ipam"
)

//go:embed runbooks.md
var runbooks string

var docs = ipam.Docs{
	Supported: []ipam.Supported{{
		What: "Kube-OVN (`Subnet`, `IP`, `Vip`)",
		State: "by its interface: CRDs that we rewrote, in a real API server. Each VPC is a network of its own, and so is each provider that is not OVN: " +
			"of those, only addresses that are allocated twice or leaked are found. Addresses of `IptablesEIP` and `OvnEip` are not read",
		Evidence: "`TestKubeOVN`, `TestTenantsOfKubeOVN`, `TestResourcesOfARealAPI`, `TestChurnOfRecordsIsSilent` (500 pods)",
	}},
	Plan: &ipam.Plan{
		InUseUnallocated: "restarts the holder, as with Calico",
		BookedElsewhere:  "restarts the holder, then deletes the IP object of the other pod if that is gone",
		Leaked:           "deletes the IP object of a pod that is gone",
	},
	Runbooks: runbooks,
}
