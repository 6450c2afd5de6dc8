package facts

import (
	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// PodNetworks returns the CNI networks of the first interfaces of a node's pods. Networks of
// further interfaces (Multus) are often the same on each node.
func (n *Node) PodNetworks() map[string]bool {
	networks := make(map[string]bool)
	for ns := range n.namespaces.all {
		if n.namespaces.at(ns).record == verdict.OwnRecord || n.whoOf(ns).Kind() != verdict.Pod {
			continue
		}
		for i := range n.inside(ns) {
			if n.texts.get(n.interfaces.at(i).name) != verdict.FirstInterface {
				continue
			}
			for c := range n.on(i) {
				if one := n.claims.at(c); one.kind == verdict.Assigned && one.network != 0 {
					networks[n.texts.get(one.network)] = true
				}
			}
		}
	}
	return networks
}

// PodsBehind reports whether pods with addresses from CNI are behind an interface of the node: on
// the ports of a bridge, or at the other end of a veth.
func (n *Node) PodsBehind(i *verdict.Interface) bool {
	if i.Peer != 0 {
		return n.isPod(i.Peer)
	}
	if i.Kind != "bridge" || i.Link == nil || n.own() == 0 {
		return false
	}
	l := n.link(i.Link.Name)
	for port := range n.inside(n.own()) {
		if one := n.interfaces.at(port); l != 0 && one.link == l && one.peer() != 0 && n.isPod(one.peer()) {
			return true
		}
	}
	return false
}

// isPod reports whether a namespace is a pod with an address from CNI.
func (n *Node) isPod(record uint32) bool {
	ns := n.namespace(record)
	if ns == 0 || n.whoOf(ns).Kind() != verdict.Pod {
		return false
	}
	for i := range n.inside(ns) {
		one := n.interfaces.at(i)
		if one.attachment != verdict.Peer || n.texts.get(one.name) != verdict.FirstInterface {
			continue
		}
		for c := range n.on(i) {
			if claim := n.claims.at(c); claim.kind == verdict.Assigned && claim.network != 0 {
				return true
			}
		}
	}
	return false
}

// VRF returns the VRF of an interface of the node itself; empty if it is in none.
func (n *Node) VRF(name string) string {
	if own := n.own(); own != 0 && name != "" {
		for i := range n.inside(own) {
			if n.texts.get(n.interfaces.at(i).name) == name {
				return n.vrf(i)
			}
		}
	}
	return ""
}

// Intends reports whether, according to its agent, a namespace lacks addresses that it was meant to
// have.
func (n *Node) Intends(record uint32) bool {
	ns := n.namespace(record)
	return ns != 0 && n.namespaces.at(ns).intended != 0
}
