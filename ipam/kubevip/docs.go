package kubevip

import (
	_ "embed"

	"github.com/ipwitness/ipwitness/ipam"
)

//go:embed runbooks.md
var runbooks string

var docs = ipam.Docs{
	Supported: []ipam.Supported{{
		What:     "kube-vip: the nodes of virtual addresses (its Lease, and the annotation of Services); no allocations",
		State:    "by its interface: objects that we rewrote, and addresses and frames as the program sets and sends them",
		Evidence: "`TestKubeVIP`, `TestVirtualAddressesOfControllers`",
	}},
	Runbooks: runbooks,
}
