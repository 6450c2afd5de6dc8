package verdict

import (
	"slices"
	"strings"
)

// tunnels are the kinds of devices that carry frames to other nodes, in the terms of rtnetlink.
var tunnels = []string{
	"ipip", "sit", "ip6tnl", "vxlan", "geneve", "gre", "gretap", "ip6gre", "ip6gretap", "erspan", "ip6erspan", "wireguard", "bareudp", "vti", "vti6", "xfrm",
}

// Tunnel returns the tunnel kind of a device in the terms of rtnetlink, or the name of a device
// through which an IPAM reaches pods (ipam.IPAM.PodDevice); empty if it is neither.
func (i *Interface) Tunnel() string {
	switch {
	case slices.Contains(tunnels, i.Kind):
		return i.Kind
	case i.PodDevice:
		return i.Name
	}
	return ""
}

// WithoutNeighbours reports whether the interface is a tunnel without hardware addresses, such as those of WireGuard and of
// programs that connect machines to a mesh (tun): nobody asks there who has an address.
func (i *Interface) WithoutNeighbours() bool {
	return i.MAC == "" && (i.Tunnel() != "" || i.Kind == "tun" || i.Kind == "ppp")
}

// Outside returns a frame that shows that the owner is a machine outside with a MAC of the node that the frame entered; nil if
// there is none.
func (o *Owner) Outside() *Claim {
	if i := slices.IndexFunc(o.Claims, func(c *Claim) bool { return c.FromOutside }); i >= 0 && o.Namespace == nil && o.Guest() == NoGuest {
		return o.Claims[i]
	}
	return nil
}

// isBridge reports whether an interface is a bridge.
func (i *Interface) isBridge() bool {
	return i.Kind == "bridge" || i.Kind == "" && i.Link != nil && i.Link.Kind == Bridge && i.Link.Name == i.Name && !i.Uplink
}

// MadeByEngine reports whether the name of a bridge is one that docker, podman or libvirt uses.
// Such bridges have the same range on every node.
func MadeByEngine(name string) bool {
	id, own := strings.CutPrefix(name, "br-")
	return name == "docker0" || own && len(id) == 12 && strings.Trim(id, "0123456789abcdef") == "" ||
		strings.HasPrefix(name, "podman") || strings.HasPrefix(name, "cni-podman") || strings.HasPrefix(name, "virbr")
}

// isPodPort reports whether the other end of an interface is in another namespace. Some plugins
// give such a port the address of a gateway.
func (i *Interface) isPodPort() bool { return i.Peer != 0 && !i.Uplink }
