package metallb

import (
	_ "embed"

	"github.com/ipwitness/ipwitness/ipam"
)

//go:embed runbooks.md
var runbooks string

var docs = ipam.Docs{
	Supported: []ipam.Supported{{
		What:     "MetalLB, layer 2: the nodes that announce Services (`ServiceL2Status`, MetalLB 0.14.9 or newer); no allocations",
		State:    "by its interface: objects that we rewrote, and frames as the program sends them",
		Evidence: "`TestMetalLB`, `TestVirtualAddressesOfControllers`",
	}},
	Runbooks: runbooks,
}
