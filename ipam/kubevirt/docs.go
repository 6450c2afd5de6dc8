package kubevirt

import (
	_ "embed"

	"github.com/ipwitness/ipwitness/ipam"
)

//go:embed runbooks.md
var runbooks string

var docs = ipam.Docs{
	Supported: []ipam.Supported{{
		What:     "KubeVirt: the nodes of virtual machines (`VirtualMachineInstance`); no allocations",
		State:    "by its interface: objects that we rewrote",
		Evidence: "`TestMachines`, `TestRightfulOwner`, `TestAddressOfAMigratedGuestIsForetold`",
	}},
	Runbooks: runbooks,
}
