// Package hostlocal describes host-local, the IPAM plugin of containernetworking/plugins, which
// keeps a file for each allocated address on the node.
package hostlocal

import (
	"strings"

	"github.com/ipwitness/ipwitness/ipam"
)

// Name is the name of host-local in the API.
const Name = "host-local"

// IPAM describes host-local.
var IPAM = ipam.IPAM{
	Name: Name, Title: "host-local",
	Files:  newSource,
	Repair: ipam.Repair{Texts: ipam.ReadTexts("hostlocal/remedies.txt"), Words: words, Rebuild: true},
}

func words(c *ipam.Case) map[string]any {
	dir := strings.TrimSuffix(c.Pool.Name, "/")
	absolute := ""
	if strings.HasPrefix(c.Pool.Name, "/") {
		absolute = "yes"
	}
	return map[string]any{"dir": dir, "file": dir + "/" + c.Address.String(), "absolute": absolute}
}
