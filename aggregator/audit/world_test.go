package audit_test

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

const start = verdict.Stamp(1_700_000_000_000_000_000)

// world is a handful of nodes with their tables: what an aggregator would know.
type world struct {
	policy     verdict.Policy
	addr       netip.Addr
	now        verdict.Stamp
	namespaces []*verdict.Namespace
	interfaces []*verdict.Interface
	links      map[string]*verdict.Link
	claims     []*verdict.Claim
	conflicts  []verdict.Memory
	nodes      map[string]*verdict.Node
	pods       map[string]*verdict.PodObject
	known      verdict.Stamp // until when pods are; 0 for now
	listed     bool          // pods that are not there are absent

	allocations []*verdict.Allocation
	pools       []*verdict.Pool
	past        []verdict.Past
	uncovered   []string // nodes that no agent reports for
}

func newWorld(addr string) *world {
	return &world{
		policy: verdict.Policy{
			Cluster: "test", Settle: time.Second, StaleAfter: 5 * time.Minute,
			NodeTimeout: 5 * time.Minute, HandoverGrace: 10 * time.Second, MigrationGrace: time.Minute,
		},
		addr: netip.MustParseAddr(addr), now: start,
		links: map[string]*verdict.Link{}, nodes: map[string]*verdict.Node{},
	}
}

// input returns the case as an aggregator would make it.
func (w *world) input() *verdict.Case {
	c := &verdict.Case{
		Address: w.addr, Now: w.now, Claims: w.claims, Conflicts: w.conflicts,
		Stations: w.interfaces, IPAM: verdict.IPAM{Pools: w.pools, Past: w.past},
		Sight: verdict.Sight{Covered: len(w.uncovered) == 0, PodsKnownUntil: cmp.Or(w.known, w.now)},
	}
	for _, ns := range w.namespaces {
		nested := slices.ContainsFunc(w.namespaces, func(own *verdict.Namespace) bool {
			return own.Record == verdict.OwnRecord && own.Node != ns.Node && own.Node.Boot == ns.Node.Boot && own.Node.Netns == ns.Netns
		})
		c.Namespaces = append(c.Namespaces, verdict.NamespaceFacts{Namespace: ns, Nested: nested, Pod: w.pods[ns.Who.Workload().UID]})
	}
	for _, n := range w.nodes {
		f := verdict.NodeFacts{Node: n.Key(), Covered: w.covered(n.Name)}
		for _, p := range w.pools {
			if p.Node == n {
				f.Pools = append(f.Pools, p)
			}
		}
		c.Nodes = append(c.Nodes, f)
	}
	for _, al := range w.allocations {
		c.Allocations = append(c.Allocations, verdict.AllocationFacts{
			Allocation: al, Object: w.podNamed(al.Namespace, al.Pod), Covered: al.Node != "" && w.covered(al.Node),
			Sandbox: al.ContainerID != "" && slices.ContainsFunc(w.namespaces, func(ns *verdict.Namespace) bool { return ns.Who.Workload().ContainerID == al.ContainerID }),
		})
	}
	return c
}

// podNamed is what was entered by hand, and Absent where pods are listed.
func (w *world) podNamed(namespace, name string) *verdict.PodObject {
	for _, p := range w.pods {
		if p.Namespace == namespace && p.Name == name {
			return p
		}
	}
	if w.listed && name != "" {
		return &verdict.PodObject{Absent: true}
	}
	return nil
}

func (w *world) covered(node string) bool {
	return len(w.uncovered) == 0 || !slices.Contains(w.uncovered, node)
}

func (w *world) node(name string) *verdict.Node {
	if w.nodes[name] == nil {
		w.nodes[name] = &verdict.Node{Name: name, Boot: "boot-" + name, Netns: "1", Epoch: 1}
	}
	return w.nodes[name]
}

// host is the node's own namespace.
func (w *world) host(node string) *verdict.Namespace {
	n := w.node(node)
	for _, ns := range w.namespaces {
		if ns.Node == n && ns.Record == verdict.OwnRecord {
			return ns
		}
	}
	return w.namespace(node, verdict.OwnRecord, "1", verdict.Workload{Kind: verdict.Host, Name: node})
}

func (w *world) namespace(node string, record uint32, netns string, who verdict.Workload) *verdict.Namespace {
	ns := &verdict.Namespace{Node: w.node(node), Record: record, Netns: netns, Who: who.Who()}
	ns.ID = verdict.OwnerID(ns.Node, record, netns)
	w.namespaces = append(w.namespaces, ns)
	return ns
}

func pod(name string) verdict.Workload {
	return verdict.Workload{Kind: verdict.Pod, Namespace: "default", Name: name, UID: "uid-" + name, Source: "cni-result"}
}

func (w *world) link(node, name string, kind verdict.LinkKind, routed bool) *verdict.Link {
	key := node + "/" + name
	if w.links[key] == nil {
		w.links[key] = &verdict.Link{Node: w.node(node), Name: name, Kind: kind, Routed: routed}
	}
	return w.links[key]
}

// iface enters an interface with what differs from a pod's veth.
func (w *world) iface(ns *verdict.Namespace, i verdict.Interface) *verdict.Interface {
	i.Namespace = ns
	if i.Name == "" {
		i.Name = "eth0"
	}
	if i.Index == 0 {
		i.Index = uint32(len(w.interfaces) + 2)
	}
	w.interfaces = append(w.interfaces, &i)
	return &i
}

// veth is a pod's interface on a link, and the node's end of it.
func (w *world) veth(ns *verdict.Namespace, mac string, l *verdict.Link) (inside, port *verdict.Interface) {
	host := w.host(ns.Node.Name)
	name := "veth" + ns.Netns
	inside = w.iface(ns, verdict.Interface{MAC: verdict.MAC(mac), Attachment: verdict.Peer, Link: l, HostInterface: name})
	port = w.iface(host, verdict.Interface{
		Name: name, MAC: verdict.MAC("H" + mac), Attachment: verdict.Own, Link: l, Peer: ns.Record,
	})
	return inside, port
}

func (w *world) claim(c verdict.Claim) *verdict.Claim {
	c.Count, c.First, c.Last = 1, w.now, w.now
	c.Begun, c.Seen, c.Read = w.now, w.now, w.now
	if c.Kind == verdict.Assigned && c.AssignedAt == 0 {
		c.AssignedAt = w.now
	}
	w.claims = append(w.claims, &c)
	return &c
}

func (w *world) assigned(i *verdict.Interface) *verdict.Claim {
	return w.claim(verdict.Claim{Kind: verdict.Assigned, Interface: i, PrefixLength: 24})
}

func (w *world) drop(claims ...*verdict.Claim) {
	w.claims = slices.DeleteFunc(w.claims, func(c *verdict.Claim) bool { return slices.Contains(claims, c) })
}

func (w *world) after(d time.Duration) *world {
	w.now = w.now.Add(d)
	return w
}

// judge judges and keeps the conflicts for the next time, as an aggregator does.
func (w *world) judge() verdict.Judgement {
	out := w.policy.Judge(w.input())
	w.conflicts = slices.DeleteFunc(w.conflicts, func(m verdict.Memory) bool {
		return slices.ContainsFunc(out.Ended, func(e verdict.Ended) bool { return e.ID == m.ID })
	})
	for _, c := range out.Conflicts {
		if i := slices.IndexFunc(w.conflicts, func(old verdict.Memory) bool { return old.ID == c.ID }); i >= 0 {
			w.conflicts[i] = c.Memory()
		} else {
			w.conflicts = append(w.conflicts, c.Memory())
		}
	}
	return out
}

// device has a node itself have the address.
func (w *world) device(node, name, kind string) *verdict.Interface {
	linkKind := verdict.Uplink
	if kind == "bridge" {
		linkKind = verdict.Bridge
	}
	l := w.link(node, name, linkKind, kind == "bridge")
	i := w.iface(w.host(node), verdict.Interface{
		Name: name, Kind: kind, MAC: verdict.MAC("dev" + name[:3]), Attachment: verdict.Own, Link: l, Uplink: kind == "",
	})
	if kind == "" {
		i.Kind, i.Peer = "veth", 77 // a cable to another namespace, as in a lab
	}
	w.assigned(i)
	return i
}
