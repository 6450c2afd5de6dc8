// Package podman describes the networks of podman with netavark: the addresses that podman has given to
// the containers of root, and the names of the containers. It reads files, and does not use podman's
// socket.
package podman

import (
	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/engine"
)

// Name is the name of podman in the API.
const Name = "podman"

const title = "podman"

// IPAM describes podman.
var IPAM = ipam.IPAM{
	Name: Name, Title: title,
	Traits:    ipam.Traits{Engine: true},
	Files:     newSource,
	PoolTitle: func(p *ipam.Pool, node string) string { return engine.PoolTitle(title, p, node) },
	Repair:    repair,
}
