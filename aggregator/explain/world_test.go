package explain_test

import (
	"net/netip"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

const start = verdict.Stamp(1_700_000_000_000_000_000)

// world is a handful of nodes with namespaces, interfaces and links.
type world struct {
	nodes      map[string]*verdict.Node
	hosts      map[string]*verdict.Namespace
	links      map[string]*verdict.Link
	interfaces uint32
}

func newWorld() *world {
	return &world{nodes: map[string]*verdict.Node{}, hosts: map[string]*verdict.Namespace{}, links: map[string]*verdict.Link{}}
}

func (w *world) node(name string) *verdict.Node {
	if w.nodes[name] == nil {
		w.nodes[name] = &verdict.Node{Name: name, Boot: "boot-" + name, Netns: "1", Epoch: 1}
	}
	return w.nodes[name]
}

// host returns the node's own namespace.
func (w *world) host(node string) *verdict.Namespace {
	if w.hosts[node] == nil {
		w.hosts[node] = w.namespace(node, verdict.OwnRecord, "1", verdict.Workload{Kind: verdict.Host, Name: node})
	}
	return w.hosts[node]
}

func (w *world) namespace(node string, record uint32, netns string, who verdict.Workload) *verdict.Namespace {
	ns := &verdict.Namespace{Node: w.node(node), Record: record, Netns: netns, Who: who.Who()}
	ns.ID = verdict.OwnerID(ns.Node, record, netns)
	return ns
}

func (w *world) link(node, name string, kind verdict.LinkKind, routed bool) *verdict.Link {
	key := node + "/" + name
	if w.links[key] == nil {
		w.links[key] = &verdict.Link{Node: w.node(node), Name: name, Kind: kind, Routed: routed}
	}
	return w.links[key]
}

// iface returns an interface with what differs from a pod's veth.
func (w *world) iface(ns *verdict.Namespace, i verdict.Interface) *verdict.Interface {
	w.interfaces++
	i.Namespace, i.Index = ns, w.interfaces+1
	if i.Name == "" {
		i.Name = "eth0"
	}
	return &i
}

// veth returns a pod's interface on a link, and the node's end of it.
func (w *world) veth(ns *verdict.Namespace, mac string, l *verdict.Link) (inside, port *verdict.Interface) {
	name := "veth" + ns.Netns
	inside = w.iface(ns, verdict.Interface{MAC: verdict.MAC(mac), Attachment: verdict.Peer, Link: l, HostInterface: name})
	port = w.iface(w.host(ns.Node.Name), verdict.Interface{
		Name: name, MAC: verdict.MAC("H" + mac), Attachment: verdict.Own, Link: l, Peer: ns.Record,
	})
	return inside, port
}

// assigned returns the claim of a kernel that has an address.
func assigned(i *verdict.Interface) *verdict.Claim {
	return &verdict.Claim{
		Kind: verdict.Assigned, Interface: i, PrefixLength: 24, Count: 1, Times: verdict.Times{First: start, Last: start, AssignedAt: start, Begun: start, Seen: start, Read: start},
	}
}

func prefixes(texts ...string) (out []netip.Prefix) {
	for _, t := range texts {
		out = append(out, netip.MustParsePrefix(t))
	}
	return out
}
