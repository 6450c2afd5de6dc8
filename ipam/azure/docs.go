package azure

import (
	_ "embed"

	"github.com/ipwitness/ipwitness/ipam"
)

//go:embed runbooks.md
var runbooks string

var docs = ipam.Docs{
	Supported: []ipam.Supported{{
		What:     "Azure CNI (`azure-vnet-ipam`, `azure-vnet`, `azure-cns`)",
		State:    "by its interface: the format of its files is restated from its sources. None of its programs ran. The database `azure-cns.db` of newer versions (`StateStoreBackend: bolt`) is read",
		Evidence: "`ipam/azure`, `TestAzureCNSThatForgetsPodsIsPredicted`, `TestAzureVnetIPAMAndAnotherIPAMOfTheNodeAreCompared`, `TestChurnOfRecordsIsSilent` (500 pods)",
	}},
	Mounts: []ipam.Mount{
		{
			Files: "`/run/azure-vnet-ipam.json`, `/run/azure-vnet.json`, `/run/azure-cns/azure-endpoints.json`: allocations", Mount: "`/run`",
			Without: "the audit of Azure CNI: duplicates are not predicted",
		},
		{
			Files: "`/var/lib/azure-network/azure-cns.db`: allocations of newer versions of azure-cns", Mount: "`/var/lib`",
			Without: "the audit of these: the files from before count, which may be out of date",
		},
	},
	Plan:     &ipam.Plan{InUseUnallocated: "by hand", BookedElsewhere: "by hand", Leaked: "by hand"},
	Runbooks: runbooks,
}
