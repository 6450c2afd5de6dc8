// This file describes the networks of podman with netavark: the addresses that podman has given to
// the containers of root, and the names of the containers. It reads files, and does not use podman's
// socket.

package containers

import (
	"github.com/ipwitness/ipwitness/ipam"
)

// PodmanName is the name of podman in the API.
const PodmanName = "podman"

const podmanTitle = "podman"

// Podman describes podman.
var Podman = ipam.IPAM{
	Name: PodmanName, Title: podmanTitle,
	Traits:    ipam.Traits{Engine: true},
	Files:     newPodman,
	PoolTitle: func(p *ipam.Pool, node string) string { return poolTitle(podmanTitle, p, node) },
	Repair:    podmanRepair,
}
