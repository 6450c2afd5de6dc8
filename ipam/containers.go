package ipam

import (
	"net/netip"
	"strings"
)

// A ContainerSource is a FileSource that also knows the containers of an engine, such as docker.
type ContainerSource interface {
	FileSource
	// Containers returns the running containers. A container that has not changed is the same
	// pointer as before.
	Containers() []*Container
}

// A Container is a running container of an engine. It never changes.
type Container struct {
	// Engine is the name of the engine's IPAM.
	Engine   string
	ID, Name string
	// Netns is the path of the container's network namespace, as Host.Clean returns it; empty if it
	// is not known.
	Netns string
	// Given are the addresses that the engine has given the container, with its networks as
	// EngineNetwork returns them; nil if the engine does not record this apart from its IPAM.
	Given map[netip.Addr]string
}

// EngineNetwork returns the name of an engine's network among all networks of a node. No CNI network
// has such a name.
func EngineNetwork(engine, network string) string { return engine + ":" + network }

// CutEngine returns the engine and the engine's name of a network; false for a CNI network.
func CutEngine(network string) (engine, name string, ok bool) { return strings.Cut(network, ":") }
