// This file describes the networks of docker: the addresses that dockerd has given to containers,
// and the names of the containers. It reads the files below docker's data root and does not use
// docker's socket.

package containers

import (
	"github.com/ipwitness/ipwitness/ipam"
)

// DockerName is the name of docker in the API.
const DockerName = "docker"

const dockerTitle = "docker"

// Docker describes docker.
var Docker = ipam.IPAM{
	Name: DockerName, Title: dockerTitle,
	Traits:    ipam.Traits{Engine: true},
	Files:     newDocker,
	PoolTitle: func(p *ipam.Pool, node string) string { return poolTitle(dockerTitle, p, node) },
	Repair:    dockerRepair,
}
