package dnsmasq

import (
	_ "embed"

	"github.com/ipwitness/ipwitness/ipam"
)

//go:embed runbooks.md
var runbooks string

var docs = ipam.Docs{
	Supported: []ipam.Supported{{
		What:     "dnsmasq on a node with an agent: `dnsmasq.leases`, libvirt's `*.status`, LXD and Incus; reservations (`dhcp-host`, `dnsmasq.hosts`)",
		State:    "**tested**: the real program 2.90 with real clients. The files of libvirt, LXD and Incus are restated from their sources. Ranges are known if a configuration file has them, and not if only the command line of an administrator's own start has them",
		Evidence: "`TestDHCPServerGivesAwayAFixedAddress`, `TestDHCPServerThatLosesItsLeasesGivesThemAgain`, `TestMachineOnALANWithoutALeaseIsPredicted`, `TestChurnOfADHCPServerIsSilent`, `ipam/dnsmasq`",
	}},
	Mounts: []ipam.Mount{
		{Files: "`/var/lib/misc/dnsmasq.leases`, `/var/lib/libvirt/dnsmasq`, `/var/lib/lxd/networks`, `/var/lib/incus/networks`: leases and reservations", Mount: "`/var/lib`", Without: "the audit of dnsmasq: duplicates are not predicted, and a fixed address is not recognised as such"},
		{Files: "`/etc/dnsmasq.conf`, `/etc/dnsmasq.d`: ranges and reservations", Mount: "in Kubernetes not mounted, unless `agent.hostPaths` has `/etc/dnsmasq.d`", Without: "the ranges: addresses without a lease are not predicted to be leased"},
		{Files: "`/var/snap/lxd/common/lxd/networks`: leases of LXD from a snap", Mount: "in Kubernetes not mounted, unless `agent.hostPaths` has it", Without: "the audit of its leases"},
	},
	Plan:     &ipam.Plan{InUseUnallocated: "by hand", BookedElsewhere: "by hand", Leaked: "nothing: a lease stays while its client is switched off"},
	Runbooks: runbooks,
}
