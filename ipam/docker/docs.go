package docker

import (
	_ "embed"

	"github.com/ipwitness/ipwitness/ipam"
)

//go:embed runbooks.md
var runbooks string

var docs = ipam.Docs{
	Supported: []ipam.Supported{{
		What:     "docker (networks of the default IPAM driver)",
		State:    "**tested** with dockerd 20.10.24 (Debian). Swarm's overlay networks, other IPAM drivers, another data root, and rootless docker are not read",
		Evidence: "`ipam/docker`, `TestDockerContainersAreNamedAndAddressesSetByHandAreForetold`, `TestDockerThatLostARecordIsForetoldAndItsRemedyLeavesOneOwner`",
	}},
	Mounts: []ipam.Mount{{
		Files: "`/var/lib/docker/network/files/local-kv.db`: networks and allocations; `/var/lib/docker/containers/*/config.v2.json`: names of containers", Mount: "`/var/lib`",
		Without: "the names of docker's containers, and the audit of docker: duplicates are not predicted",
	}},
	Plan:     &ipam.Plan{InUseUnallocated: "by hand", BookedElsewhere: "by hand", Leaked: "by hand"},
	Runbooks: runbooks,
}
