package verdicttest

import (
	"strconv"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam/registry"
)

// A Network is a few nodes with their namespaces, interfaces and links.
type Network struct {
	Nodes      map[string]*verdict.Node
	Namespaces []*verdict.Namespace
	Interfaces []*verdict.Interface
	Links      map[string]*verdict.Link
}

// NewNetwork returns a network without nodes.
func NewNetwork() *Network {
	return &Network{Links: map[string]*verdict.Link{}, Nodes: map[string]*verdict.Node{}}
}

// Node returns a node, and adds it if it does not exist.
func (n *Network) Node(name string) *verdict.Node {
	if n.Nodes[name] == nil {
		n.Nodes[name] = &verdict.Node{Name: name, Boot: "boot-" + name, Netns: "1", Epoch: 1}
	}
	return n.Nodes[name]
}

// Host returns the node's own namespace.
func (n *Network) Host(node string) *verdict.Namespace {
	of := n.Node(node)
	for _, ns := range n.Namespaces {
		if ns.Node == of && ns.Record == verdict.OwnRecord {
			return ns
		}
	}
	return n.Namespace(node, verdict.OwnRecord, "1", verdict.Workload{Kind: verdict.Host, Name: node})
}

// Namespace adds a network namespace.
func (n *Network) Namespace(node string, record uint32, netns string, who verdict.Workload) *verdict.Namespace {
	ns := &verdict.Namespace{Node: n.Node(node), Record: record, Netns: netns, Who: who.Who()}
	ns.ID = NamespaceID(ns.Node, record, netns)
	n.Namespaces = append(n.Namespaces, ns)
	return ns
}

// NamespaceID returns the identity of the owner that a namespace is, as package facts makes it. The boot ID and the inode identify
// a namespace for all agents on one kernel. Without an inode, only the record number of the agent
// does.
func NamespaceID(n *verdict.Node, record uint32, netns string) string {
	if netns != "" {
		return n.Boot + "/" + netns
	}
	return n.Boot + "/" + n.Netns + "/" + strconv.FormatUint(n.Epoch, 10) + "/" + strconv.FormatUint(uint64(record), 10)
}

// Link returns a link, and adds it if it does not exist.
func (n *Network) Link(node, name string, kind verdict.LinkKind, routed bool) *verdict.Link {
	key := node + "/" + name
	if n.Links[key] == nil {
		n.Links[key] = &verdict.Link{Node: n.Node(node), Name: name, Kind: kind, Routed: routed}
	}
	return n.Links[key]
}

// Interface adds an interface. Fields that are not set are those of a pod's veth.
func (n *Network) Interface(ns *verdict.Namespace, i verdict.Interface) *verdict.Interface {
	i.Namespace = ns
	if i.Name == "" {
		i.Name = "eth0"
	}
	if i.Index == 0 {
		i.Index = uint32(len(n.Interfaces) + 2)
	}
	i.PodDevice = registry.WithPodDevice(i.Name) != nil
	n.Interfaces = append(n.Interfaces, &i)
	return &i
}

// Veth adds a pod's interface on a link, and the node's end of it.
func (n *Network) Veth(ns *verdict.Namespace, mac string, l *verdict.Link) (inside, port *verdict.Interface) {
	host := n.Host(ns.Node.Name)
	name := "veth" + ns.Netns
	inside = n.Interface(ns, verdict.Interface{MAC: verdict.MAC(mac), Attachment: verdict.Peer, Link: l, HostInterface: name})
	port = n.Interface(host, verdict.Interface{
		Name: name, MAC: verdict.MAC("H" + mac), Attachment: verdict.Own, Link: l, Peer: ns.Record,
	})
	return inside, port
}

// Uplink adds an uplink of a node.
func (n *Network) Uplink(node string) *verdict.Interface {
	return n.Interface(n.Host(node), verdict.Interface{
		Name: "eth0", MAC: verdict.MAC("vplk" + node), Attachment: verdict.Own,
		Link: n.Link(node, "eth0", verdict.Uplink, false), Uplink: true,
	})
}

// Child adds a pod's macvlan or ipvlan device over an uplink.
func (n *Network) Child(name, mac string, parent *verdict.Link) *verdict.Interface {
	ns := n.Namespace("n1", uint32(len(n.Namespaces)+2), "10"+name, Pod(name))
	return n.Interface(ns, verdict.Interface{MAC: verdict.MAC(mac), Attachment: verdict.Lower, Link: parent, HostInterface: "eth0"})
}
