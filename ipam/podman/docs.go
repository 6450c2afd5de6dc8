package podman

import (
	_ "embed"

	"github.com/ipwitness/ipwitness/ipam"
)

//go:embed runbooks.md
var runbooks string

var docs = ipam.Docs{
	Supported: []ipam.Supported{{
		What:     "podman with netavark (root's containers, IPAM driver host-local)",
		State:    "**tested** with podman 4.3.1 and netavark 1.4.0 (Debian). Rootless containers, another storage, and addresses from DHCP are not read; podman with CNI plugins is read as CNI",
		Evidence: "`ipam/podman`, `TestPodmanThatLostItsRecordsIsForetoldAndItsRemedyLeavesOneOwner`",
	}},
	Mounts: []ipam.Mount{
		{
			Files: "`/run/containers/networks/ipam.db`: allocations", Mount: "`/run`",
			Without: "the audit of podman: duplicates are not predicted",
		},
		{
			Files: "`/var/lib/containers/storage/*-containers`: names of containers", Mount: "`/var/lib`",
			Without: "the names of podman's containers",
		},
		{
			Files: "`/etc/containers/networks`: ranges of networks", Mount: "`/etc/containers`, if podman is used",
			Without: "the audit of podman's networks other than `podman`",
		},
	},
	Plan:     &ipam.Plan{InUseUnallocated: "by hand", BookedElsewhere: "by hand", Leaked: "by hand"},
	Runbooks: runbooks,
}
