package facts

import (
	"cmp"
	"iter"
	"net/netip"
	"slices"
	"strconv"

	"github.com/ipwitness/ipwitness/aggregator/index"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	ipams "github.com/ipwitness/ipwitness/ipam/registry"
)

// This file makes records of package verdict. Its callers hold the lock.

// idOf returns the identity of the owner that a namespace is.
func (n *Node) idOf(ns uint32) string {
	one := n.namespaces.at(ns)
	var few [128]byte
	id := append(append(few[:0], n.ID.Boot...), '/')
	switch {
	case one.flags.has(inode):
		id = strconv.AppendUint(id, one.number, 10)
	case one.flags.has(named):
		id = append(id, n.texts.get(text(one.number))...) //nolint:gosec // the number is a text
	default:
		id = append(append(id, n.ID.Netns...), '/')
		id = append(strconv.AppendUint(id, one.number, 10), '/')
		id = strconv.AppendUint(id, uint64(one.record), 10)
	}
	return string(id)
}

// whoOf returns the workload of a namespace. It refers to the memory of the node's texts.
func (n *Node) whoOf(ns uint32) verdict.Who {
	return verdict.Who(n.texts.get(n.namespaces.at(ns).who))
}

// fillNamespace makes the record of a namespace.
func (n *Node) fillNamespace(ns uint32, out *verdict.Namespace) *verdict.Namespace {
	one := n.namespaces.at(ns)
	*out = verdict.Namespace{Node: n.Rec, Who: n.whoOf(ns), Intended: n.texts.get(one.intended), Record: one.record, ID: n.idOf(ns)}
	if one.flags.has(inode | named) {
		out.Netns = out.ID[len(n.ID.Boot)+1:] // shares the memory of ID
	}
	return out
}

// fillLink makes the record of a link.
func (n *Node) fillLink(l uint32, out *verdict.Link) *verdict.Link {
	one := n.links.at(l)
	*out = verdict.Link{Node: n.Rec, Name: n.texts.get(one.name), Kind: one.kind, Routed: one.flags.has(routed), Distributed: one.flags.has(distributed), CarrierLost: one.lost}
	if one.flags.has(joined) {
		j := n.joints[l]
		out.Domain, out.Proven, out.BothWays = j.Domain(BySight), j.Domain(ByProof), j.Domain(BothWays)
	}
	return out
}

// fillInterface makes the record of an interface, with the given records of its namespace and link.
func (n *Node) fillInterface(i uint32, ns *verdict.Namespace, l *verdict.Link, out *verdict.Interface) *verdict.Interface {
	one, t := n.interfaces.at(i), &n.texts
	*out = verdict.Interface{
		Namespace: ns, Link: l, Name: t.get(one.name), MAC: t.macOf(one.mac), HostInterface: n.host(i), VRF: n.vrf(i),
		Index: one.index, Peer: one.peer(), Attachment: one.attachment, Uplink: one.flags.has(uplink), Tap: one.flags.has(tapped), Macvtap: n.guestHas(i), Hairpin: one.flags.has(hairpin), NoARP: one.flags.has(noARP), PVLAN: one.flags.has(pvlan), Kind: t.get(one.kind),
	}
	out.PodDevice = out.Attachment == verdict.Own && ipams.WithPodDevice(out.Name) != nil
	return out
}

// guestHas reports whether an interface is a macvtap device that the node does not use itself: it has no address of its own there.
func (n *Node) guestHas(i uint32) bool {
	if !n.interfaces.at(i).flags.has(macvtap) {
		return false
	}
	for c := range n.on(i) {
		if n.claims.at(c).isUsed() {
			return false
		}
	}
	return true
}

// isUsed reports whether a claim is an address of a kernel that the kernel did not make by itself.
func (c *claim) isUsed() bool {
	return c.kind == verdict.Assigned && !c.addr.Addr().IsLinkLocalUnicast()
}

// NamespaceOf returns the namespace with a record number; nil if there is none.
func (n *Node) NamespaceOf(record uint32) *verdict.Namespace {
	ns := n.namespace(record)
	if ns == 0 {
		return nil
	}
	return n.fillNamespace(ns, new(verdict.Namespace))
}

// record returns the record of an interface with its namespace and link.
func (n *Node) record(i uint32) *verdict.Interface {
	one := n.interfaces.at(i)
	var l *verdict.Link
	if one.link != 0 {
		l = n.fillLink(one.link, new(verdict.Link))
	}
	return n.fillInterface(i, n.fillNamespace(one.namespace, new(verdict.Namespace)), l, new(verdict.Interface))
}

// SinceOf returns when the namespace with a record number was first reported.
func (n *Node) SinceOf(record uint32) verdict.Stamp {
	if ns := n.namespace(record); ns != 0 {
		return n.namespaces.at(ns).since
	}
	return 0
}

// InterfacesOf returns the interfaces of the namespace with a record number.
func (n *Node) InterfacesOf(record uint32) (all []*verdict.Interface) {
	if ns := n.namespace(record); ns != 0 {
		for i := range n.inside(ns) {
			all = append(all, n.record(i))
		}
	}
	return all
}

// HasInterfaces reports whether the namespace with a record number has interfaces.
func (n *Node) HasInterfaces(record uint32) bool {
	ns := n.namespace(record)
	return ns != 0 && n.namespaces.at(ns).ifaces != 0
}

// RecordOf returns the record number of the namespace with an ID; 0 if there is none.
func (n *Node) RecordOf(id string) uint32 {
	for ns := range n.namespaces.all {
		if n.idOf(ns) == id {
			return n.namespaces.at(ns).record
		}
	}
	return 0
}

// Behind returns the namespace at the other end of an interface of the node itself; nil if it is
// not known.
func (n *Node) Behind(index uint32) *verdict.Namespace {
	if port := n.iface(verdict.OwnRecord, index); port != 0 && n.interfaces.at(port).peer() != 0 {
		return n.NamespaceOf(n.interfaces.at(port).peer())
	}
	return nil
}

// OnLink returns the namespaces that have an interface on a link, except for one, in order.
func (f *Facts) OnLink(l *verdict.Link, except *verdict.Namespace) (found []*verdict.Namespace) {
	if l == nil || f.Node(l.Node) == nil {
		return nil
	}
	n := f.Node(l.Node)
	at := n.link(l.Name)
	for i := range n.interfaces.all {
		one := n.interfaces.at(i)
		port := one.peer() != 0 && l.Kind != verdict.PointToPoint // the namespace behind it is on the link, not the port
		if at == 0 || one.link != at || port {
			continue
		}
		ns := n.fillNamespace(one.namespace, new(verdict.Namespace))
		if (except == nil || ns.ID != except.ID) && !slices.ContainsFunc(found, func(other *verdict.Namespace) bool { return other.Record == ns.Record }) {
			found = append(found, ns)
		}
	}
	slices.SortFunc(found, func(a, b *verdict.Namespace) int { return cmp.Compare(a.Record, b.Record) })
	return found
}

// claimsTo yields the claims to an address, with their nodes. Nested iterators would be allocated for each address.
func (f *Facts) claimsTo(a index.Address) iter.Seq2[*Node, uint32] {
	return func(yield func(*Node, uint32) bool) {
		r, others := f.addresses.first(a)
		for r != 0 {
			n := f.nodes[r.node()]
			for c := r.index(); c != 0; c = n.claims.at(c).alike {
				if !yield(n, c) {
					return
				}
			}
			if len(others) == 0 {
				return
			}
			r, others = others[0], others[1:]
		}
	}
}

// Holds reports whether the kernel of an owner has an address.
func (f *Facts) Holds(id string, a index.Address) bool {
	for n, c := range f.claimsTo(a) {
		if one := n.claims.at(c); one.kind == verdict.Assigned && n.idOf(n.interfaces.at(one.port).namespace) == id {
			return true
		}
	}
	return false
}

// WiredOrFailed reports whether there is a wire claim to an address, or one of a failed detection of duplicates.
func (f *Facts) WiredOrFailed(a index.Address) bool {
	for n, c := range f.claimsTo(a) {
		if one := n.claims.at(c); one.wire() != 0 || one.kind == verdict.DADFailed {
			return true
		}
	}
	return false
}

// Claimed reports whether there is a claim to an address.
func (f *Facts) Claimed(a index.Address) bool {
	r, _ := f.addresses.first(a)
	return r != 0
}

// NodesOf returns the nodes that have a claim to an address.
func (f *Facts) NodesOf(a index.Address) (nodes []*Node) {
	for r := range f.addresses.all(a) {
		nodes = append(nodes, f.nodes[r.node()])
	}
	return nodes
}

// Subnets returns the addresses of a node itself, with their prefixes.
func (n *Node) Subnets() []verdict.Subnet {
	return n.subnets(func(netip.Prefix) bool { return true })
}

// subnets returns the addresses of a node itself for whose prefixes wanted returns true.
func (n *Node) subnets(wanted func(netip.Prefix) bool) (list []verdict.Subnet) {
	own := n.own()
	if own == 0 {
		return nil
	}
	for i := range n.inside(own) {
		one := n.interfaces.at(i)
		if one.attachment == verdict.Local || one.claims == 0 {
			continue
		}
		lan := false
		if n.texts.get(one.kind) == "bridge" {
			for port := range n.inside(own) {
				lan = lan || n.interfaces.at(port).link == one.link && n.leadsOut(port)
			}
		}
		var rec *verdict.Interface
		for c := range n.on(i) {
			claim := n.claims.at(c)
			subnet := netip.PrefixFrom(claim.addr.Addr(), int(claim.prefix))
			if claim.kind != verdict.Assigned || !wanted(subnet) {
				continue
			}
			if rec == nil {
				rec = n.record(i)
			}
			list = append(list, verdict.Subnet{Prefix: subnet, Interface: rec, LAN: lan})
		}
	}
	return list
}

// stitches returns the evidence that the links of the claims' domains are one.
func (b *Builder) stitches() (all []verdict.Stitch) {
	var domains []*verdict.Domain
	for _, c := range b.c.Claims {
		for _, l := range []*verdict.Link{c.Link, c.Interface.Link} {
			if l != nil && l.Domain != nil && !slices.Contains(domains, l.Domain) {
				domains = append(domains, l.Domain)
				all = append(all, b.facts.topology.Stitches(l.Domain, b.facts.linkRecord)...)
			}
		}
	}
	return all
}

// linkRecord returns the record of a link of the topology.
func (f *Facts) linkRecord(j *Link) *verdict.Link {
	n, l := f.linkOf(j)
	return n.fillLink(l, new(verdict.Link))
}

// Before returns the owners of an address before the changes that have not been judged, if these
// owners were derived. The caller holds the lock.
func (f *Facts) Before(a index.Address) (owners []verdict.Owner, derived bool) {
	return f.queue(a).before(a)
}

// PodNetworks returns the CNI networks of the first interfaces of a node's pods, with the addresses that
// they have from each. Networks of further interfaces (Multus) are often the same on each node.
func (n *Node) PodNetworks() map[string][]netip.Addr {
	networks := make(map[string][]netip.Addr)
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
					network := n.texts.get(one.network)
					networks[network] = append(networks[network], one.addr.Addr())
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
	if i := n.device(name); i != 0 {
		return n.vrf(i)
	}
	return ""
}

// LAN returns the domain that the link of an interface of the node itself is proven to share with links of other nodes;
// nil if there is no proof.
func (n *Node) LAN(name string) *verdict.Domain {
	if i := n.device(name); i != 0 && n.interfaces.at(i).link != 0 {
		return n.joints[n.interfaces.at(i).link].Domain(ByProof)
	}
	return nil
}

// device returns the interface of the node itself that has a name; 0 if there is none.
func (n *Node) device(name string) uint32 {
	if own := n.own(); own != 0 && name != "" {
		for i := range n.inside(own) {
			if n.texts.get(n.interfaces.at(i).name) == name {
				return i
			}
		}
	}
	return 0
}

// Intends reports whether, according to its agent, a namespace lacks addresses that it was meant to
// have.
func (n *Node) Intends(record uint32) bool {
	ns := n.namespace(record)
	return ns != 0 && n.namespaces.at(ns).intended != 0
}
