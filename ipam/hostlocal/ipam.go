// Package hostlocal describes host-local, the IPAM plugin of containernetworking/plugins, which
// keeps a file for each allocated address on the node.
package hostlocal

import "github.com/ipwitness/ipwitness/ipam"

// Name is the name of host-local in the API.
const Name = "host-local"

// IPAM describes host-local.
var IPAM = ipam.IPAM{
	Name: Name, Title: "host-local",
	Files:     newSource,
	PoolTitle: ipam.TitleOnNodes("host-local"),
	Repair:    repair,
}
