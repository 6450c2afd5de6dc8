package facts

import (
	"cmp"
	"iter"
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
	*out = verdict.Link{Node: n.Rec, Name: n.texts.get(one.name), Kind: one.kind, Routed: one.flags.has(routed)}
	if one.flags.has(joined) {
		j := n.joints[l]
		out.Domain, out.Proven = j.Domain(BySight), j.Domain(ByProof)
	}
	return out
}

// fillInterface makes the record of an interface, with the given records of its namespace and link.
func (n *Node) fillInterface(i uint32, ns *verdict.Namespace, l *verdict.Link, out *verdict.Interface) *verdict.Interface {
	one, t := n.interfaces.at(i), &n.texts
	*out = verdict.Interface{
		Namespace: ns, Link: l, Name: t.get(one.name), MAC: t.macOf(one.mac), HostInterface: n.host(i), VRF: n.vrf(i),
		Index: one.index, Peer: one.peer(), Attachment: one.attachment, Uplink: one.flags.has(uplink), Tap: one.flags.has(tapped), Kind: t.get(one.kind),
	}
	out.PodDevice = out.Attachment == verdict.Own && ipams.WithPodDevice(out.Name) != nil
	return out
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
		if ns.ID != except.ID && !slices.ContainsFunc(found, func(other *verdict.Namespace) bool { return other.Record == ns.Record }) {
			found = append(found, ns)
		}
	}
	slices.SortFunc(found, func(a, b *verdict.Namespace) int { return cmp.Compare(a.Record, b.Record) })
	return found
}

// claimsTo yields the claims to an address, with their nodes.
func (f *Facts) claimsTo(a index.Address) iter.Seq2[*Node, uint32] {
	return func(yield func(*Node, uint32) bool) {
		for r := range f.addresses.all(a) {
			n := f.nodes[r.node()]
			for c := range n.same(r.index()) {
				if !yield(n, c) {
					return
				}
			}
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

// Wired reports whether there is a wire claim to an address.
func (f *Facts) Wired(a index.Address) bool {
	for n, c := range f.claimsTo(a) {
		if n.claims.at(c).wire() != 0 {
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
