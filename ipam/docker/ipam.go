// Package docker describes the networks of docker: the addresses that dockerd has given to containers,
// and the names of the containers. It reads the files below docker's data root and does not use
// docker's socket.
package docker

import (
	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/engine"
)

// Name is the name of docker in the API.
const Name = "docker"

const title = "docker"

// IPAM describes docker.
var IPAM = ipam.IPAM{
	Name: Name, Title: title,
	Traits:    ipam.Traits{Engine: true},
	Files:     newSource,
	PoolTitle: func(p *ipam.Pool, node string) string { return engine.PoolTitle(title, p, node) },
	Repair:    repair,
}
