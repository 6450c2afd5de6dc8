package egressip

import (
	_ "embed"

	"github.com/ipwitness/ipwitness/ipam"
)

//go:embed runbooks.md
var runbooks string

var docs = ipam.Docs{
	Supported: []ipam.Supported{{
		What:     "OVN-Kubernetes: the nodes of egress addresses (`EgressIP`); no allocations",
		State:    "by its interface: objects that we rewrote, and frames as the program sends them",
		Evidence: "`TestEgressIP`, `TestVirtualAddressesOfControllers`",
	}},
	Runbooks: runbooks,
}
