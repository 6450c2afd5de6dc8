package kea

import (
	_ "embed"

	"github.com/ipwitness/ipwitness/ipam"
)

//go:embed runbooks.md
var runbooks string

var docs = ipam.Docs{
	Supported: []ipam.Supported{{
		What:     "Kea on a node with an agent (memfile: `kea-leases4.csv`, `kea-leases6.csv`, and the files of their cleanup; pools and reservations of `kea-dhcp4.conf`, `kea-dhcp6.conf`)",
		State:    "**tested**: the real DHCPv4 server 2.2 with real clients. DHCPv6 by its interface. Leases in a database are not read",
		Evidence: "`TestLeasesOfKea`, `TestPodsOfTheDHCPPluginOutliveTheirLeases`, `TestChurnOfADHCPServerIsSilent` (500 leases), `ipam/kea`",
	}},
	Mounts: []ipam.Mount{
		{Files: "`/var/lib/kea`: leases", Mount: "`/var/lib`", Without: "the audit of Kea. On Debian, only Kea's own user may read the directory: the agent needs `CAP_DAC_READ_SEARCH`, or an ACL"},
		{Files: "`/etc/kea`: pools and reservations", Mount: "in Kubernetes not mounted, unless `agent.hostPaths` has it", Without: "the pools: addresses without a lease are not predicted to be leased"},
	},
	Plan:     &ipam.Plan{InUseUnallocated: "by hand", BookedElsewhere: "by hand", Leaked: "nothing: a lease stays while its client is switched off"},
	Runbooks: runbooks,
}
