package verdict

import (
	"slices"
	"strings"
)

// tunnels are the kinds of devices that carry frames to other nodes, as rtnetlink names
// them.
var tunnels = []string{
	"ipip", "sit", "ip6tnl", "vxlan", "geneve", "gre", "gretap", "ip6gre", "ip6gretap", "erspan", "ip6erspan", "wireguard", "bareudp", "vti", "vti6", "xfrm",
}

// CiliumHost is the device by which Cilium reaches pods. It is known by its name: it is a veth
// pair with both ends in the node.
const CiliumHost = "cilium_host"

// Tunnel returns the kind of tunnel that a device is, as rtnetlink names it, or CiliumHost; empty
// for none.
func (i *Interface) Tunnel() string {
	switch {
	case slices.Contains(tunnels, i.Kind):
		return i.Kind
	case i.Name == CiliumHost:
		return CiliumHost
	}
	return ""
}

// bridge tells whether an interface is a bridge.
func (i *Interface) bridge() bool {
	return i.Kind == "bridge" || i.Kind == "" && i.Link != nil && i.Link.Kind == Bridge && i.Link.Name == i.Name && !i.Uplink
}

// MadeByEngine reports whether a bridge has the name of one that docker, podman or
// libvirt made: they have one range on every node.
func MadeByEngine(name string) bool {
	id, own := strings.CutPrefix(name, "br-")
	return name == "docker0" || own && len(id) == 12 && strings.Trim(id, "0123456789abcdef") == "" ||
		strings.HasPrefix(name, "podman") || strings.HasPrefix(name, "cni-podman") || strings.HasPrefix(name, "virbr")
}

// portOfPod tells whether the other end of an interface is in another namespace: a
// plugin gives such a port the address of a gateway.
func (i *Interface) portOfPod() bool { return i.Peer != 0 && !i.Uplink }
