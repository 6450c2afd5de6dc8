// Package verdicttest provides worlds for the tests of verdict and of its users: a few nodes with
// everything that an aggregator knows about one address. It is for tests only.
package verdicttest

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/registry"
)

// Start is the initial time of a world.
const Start = verdict.Stamp(1_700_000_000_000_000_000)

// A World is a few nodes with everything that an aggregator knows about one address.
type World struct {
	Policy verdict.Policy
	Addr   netip.Addr
	Now    verdict.Stamp
	*Network
	Claims    []*verdict.Claim
	Conflicts []verdict.Conflict
	Answers   map[verdict.MAC][2]int
	Subnets   []verdict.Subnet
	Uncovered []string // nodes without an agent
	Internal  string   // the node whose InternalIP is the address
	Kubernetes

	Allocations []*verdict.Allocation
	Pools       []*verdict.Pool
	Past        []verdict.Past
}

// New returns a world without nodes.
func New(addr string) *World {
	return &World{
		Policy: verdict.Policy{
			Cluster: "test", Settle: time.Second, StaleAfter: 5 * time.Minute,
			NodeTimeout: 5 * time.Minute, HandoverGrace: 10 * time.Second, MigrationGrace: time.Minute,
		},
		Addr: netip.MustParseAddr(addr), Now: Start, Network: NewNetwork(),
	}
}

// Case returns the case that an aggregator would make.
func (w *World) Case() *verdict.Case {
	c := &verdict.Case{
		Address: w.Addr, Now: w.Now, Claims: w.Claims, Conflicts: w.memories(),
		Stations: w.Interfaces, IPAM: verdict.IPAM{Past: w.Past},
		Sight: verdict.Sight{
			InPodCIDR: w.PodCIDR.IsValid() && w.PodCIDR.Contains(w.Addr), Covered: len(w.Uncovered) == 0, PodsKnownUntil: cmp.Or(w.Known, w.Now),
			OneTenant: w.OneTenant,
		},
	}
	for _, p := range w.Pools {
		if p.Services != "" {
			c.ServicePools = append(c.ServicePools, p)
		} else {
			c.Pools = append(c.Pools, p)
		}
	}
	for _, ns := range w.Namespaces {
		nested := slices.ContainsFunc(w.Namespaces, func(own *verdict.Namespace) bool {
			return own.Record == verdict.OwnRecord && own.Node != ns.Node && own.Node.Boot == ns.Node.Boot && own.Node.Netns == ns.Netns
		})
		c.Namespaces = append(c.Namespaces, verdict.NamespaceFacts{Namespace: ns, Nested: nested, Pod: w.Pods[ns.Who.Workload().UID]})
	}
	for _, n := range w.Nodes {
		f := verdict.NodeFacts{Node: n.Key(), InPodCIDR: c.InPodCIDR && (w.PodCIDROf == "" || w.PodCIDROf == n.Name), Covered: w.covered(n.Name), Internal: n.Name == w.Internal}
		for _, p := range w.Pools {
			if p.Node == n {
				f.Pools = append(f.Pools, p)
			}
		}
		for _, s := range w.Subnets {
			if s.Interface.Namespace.Node == n {
				f.Subnets = append(f.Subnets, s)
			}
		}
		c.Nodes = append(c.Nodes, f)
	}
	for mac, count := range w.Answers {
		for _, claim := range w.Claims {
			c.Answers = append(c.Answers, verdict.Answer{Link: claim.Link.Key(), MAC: mac, Addresses: count[0], Owners: count[1]})
		}
	}
	for _, al := range w.Allocations {
		c.Allocations = append(c.Allocations, verdict.AllocationFacts{
			Allocation: al, Object: w.podNamed(al.Namespace, al.Pod), Covered: al.Node != "" && w.covered(al.Node),
			Sandbox: al.ContainerID != "" && slices.ContainsFunc(w.Namespaces, func(ns *verdict.Namespace) bool { return ns.Who.Workload().ContainerID == al.ContainerID }),
		})
	}
	return c
}

// memories returns the state of the conflicts for the next judgement.
func (w *World) memories() (all []verdict.Memory) {
	for i := range w.Conflicts {
		all = append(all, w.Conflicts[i].Memory())
	}
	return all
}

func (w *World) covered(node string) bool {
	return len(w.Uncovered) == 0 || !slices.Contains(w.Uncovered, node)
}

// Claim adds a claim that is made now.
func (w *World) Claim(c verdict.Claim) *verdict.Claim {
	c.Count, c.First, c.Last = 1, w.Now, w.Now
	c.Begun, c.Seen, c.Read = w.Now, w.Now, w.Now
	if c.Kind == verdict.Assigned && c.AssignedAt == 0 {
		c.AssignedAt = w.Now
	}
	w.Claims = append(w.Claims, &c)
	return &c
}

// Assigned adds a claim of a kernel that has the address on an interface.
func (w *World) Assigned(i *verdict.Interface) *verdict.Claim {
	return w.Claim(verdict.Claim{Kind: verdict.Assigned, Interface: i, PrefixLength: 24, Flags: verdict.FlagPermanent})
}

// Virtual adds a claim of a kernel that has the address as programs set virtual ones: with the prefix of a single host.
func (w *World) Virtual(i *verdict.Interface) *verdict.Claim {
	c := w.Assigned(i)
	c.PrefixLength = uint8(w.Addr.BitLen())
	return c
}

// Wire adds a claim of a frame that enters through a port.
func (w *World) Wire(port *verdict.Interface, mac string) *verdict.Claim {
	return w.Claim(verdict.Claim{Kind: verdict.Announced, Interface: port, Frame: verdict.Frame{Link: port.Link, MAC: verdict.MAC(mac)}})
}

// Seen records another frame of the claim.
func (w *World) Seen(c *verdict.Claim) { c.Before, c.Seen = c.Seen, w.Now }

// Read records that the kernel was read again and still has the claims.
func (w *World) Read(claims ...*verdict.Claim) {
	for _, c := range claims {
		c.Read = w.Now
	}
}

// Drop removes claims.
func (w *World) Drop(claims ...*verdict.Claim) {
	w.Claims = slices.DeleteFunc(w.Claims, func(c *verdict.Claim) bool { return slices.Contains(claims, c) })
}

// After advances the time.
func (w *World) After(d time.Duration) *World {
	w.Now = w.Now.Add(d)
	return w
}

// Judge judges the address and keeps its conflicts for the next judgement, as an aggregator does.
func (w *World) Judge() verdict.Judgement {
	out := w.Policy.Judge(w.Case())
	for i := range out.Ended {
		w.keep(w.Conflict(out.Ended[i].ID).End(&out.Ended[i], out.Owners))
	}
	for _, c := range out.Conflicts {
		w.keep(c)
	}
	return out
}

func (w *World) keep(c verdict.Conflict) {
	if old := w.Conflict(c.ID); old != nil {
		*old = c
		return
	}
	w.Conflicts = append(w.Conflicts, c)
}

// Conflict returns the conflict with an ID; nil if there is none.
func (w *World) Conflict(id string) *verdict.Conflict {
	if i := slices.IndexFunc(w.Conflicts, func(c verdict.Conflict) bool { return c.ID == id }); i >= 0 {
		return &w.Conflicts[i]
	}
	return nil
}

// Prefixes parses prefixes.
func Prefixes(texts ...string) (out []netip.Prefix) {
	for _, t := range texts {
		out = append(out, netip.MustParsePrefix(t))
	}
	return out
}

// Who returns a pod's workload with a sandbox.
func Who(name string) verdict.Workload {
	p := Pod(name)
	p.ContainerID = "container-" + name
	return p
}

// Within gives a workload on a node the address, on a bridge, or on a point-to-point veth if bridge
// is empty. If network is set, that CNI network gave the address.
func (w *World) Within(node, bridge, network string, of verdict.Workload) *verdict.Claim {
	ns := w.Namespace(node, uint32(len(w.Namespaces)+2), fmt.Sprint(100+len(w.Namespaces)), of)
	l := w.Link(node, "veth"+ns.Netns, verdict.PointToPoint, false)
	if bridge != "" {
		l = w.Link(node, bridge, verdict.Bridge, true)
	}
	inside, _ := w.Veth(ns, "\x02\x00\x00\x00\x01"+string(rune(len(w.Namespaces))), l)
	c := w.Assigned(inside)
	c.Network = network
	if bridge == "" {
		c.PrefixLength = 32
	}
	return c
}

// Device gives a node itself the address on a device.
func (w *World) Device(node, name, kind string) *verdict.Interface {
	linkKind := verdict.Uplink
	if kind == "bridge" {
		linkKind = verdict.Bridge
	}
	l := w.Link(node, name, linkKind, kind == "bridge")
	i := w.Interface(w.Host(node), verdict.Interface{
		Name: name, Kind: kind, MAC: verdict.MAC("dev" + name[:3]), Attachment: verdict.Own, Link: l, Uplink: kind == "",
	})
	if kind == "" {
		i.Kind, i.Peer = "veth", 77 // one end of a veth pair whose other end is in another namespace, as in a lab
	}
	w.Assigned(i)
	return i
}

// Pool adds a pool of a node, or of the whole cluster if node is empty.
func (w *World) Pool(of, node, network string, ranges ...string) *verdict.Pool {
	p := &verdict.Pool{Pool: ipam.Pool{IPAM: of, Traits: registry.Traits(of), Name: "/var/lib/cni/networks/" + network, Served: ipam.Served{Network: network}, State: ipam.Known, Wiring: ipam.Wiring{Routed: true}}}
	if node != "" {
		p.Node = w.Node(node)
	}
	if len(ranges) == 0 {
		ranges = []string{"10.244.0.1-10.244.255.254"}
	}
	for _, r := range ranges {
		from, to, _ := strings.Cut(r, "-")
		p.Ranges = append(p.Ranges, ipam.Range{First: netip.MustParseAddr(from), Last: netip.MustParseAddr(to)})
	}
	w.Pools = append(w.Pools, p)
	return p
}

// Books adds an allocation for a pod's sandbox.
func (w *World) Books(p *verdict.Pool, name string) *verdict.Allocation {
	al := &verdict.Allocation{Pool: p, Allocation: ipam.Allocation{Address: w.Addr, ContainerID: "container-" + name, Location: p.Name + "/" + w.Addr.String()}}
	w.Allocations = append(w.Allocations, al)
	return al
}

// Calico adds a Calico allocation for a pod on a node.
func (w *World) Calico(p *verdict.Pool, name, node string) *verdict.Allocation {
	al := &verdict.Allocation{Pool: p, Allocation: ipam.Allocation{Address: w.Addr, Namespace: "default", Pod: name, Node: node, ContainerID: "container-" + name}}
	w.Allocations = append(w.Allocations, al)
	return al
}

// Was adds a past state of the IPAM records for the owner of a claim.
func (w *World) Was(c *verdict.Claim, kind string, al *verdict.Allocation) {
	w.Past = append(w.Past, verdict.Past{Owner: c.Interface.Namespace.ID, Kind: kind, Allocation: al, Since: Start})
}

// Subnet adds an address with a prefix to an interface of a node.
func (w *World) Subnet(i *verdict.Interface, prefix string) {
	w.Subnets = append(w.Subnets, verdict.Subnet{Prefix: netip.MustParsePrefix(prefix), Interface: i})
}

// Bridge adds a bridge with a prefix to a node.
func (w *World) Bridge(node, name, prefix string) *verdict.Interface {
	i := w.Interface(w.Host(node), verdict.Interface{Name: name, Kind: "bridge", Attachment: verdict.Own, Link: w.Link(node, name, verdict.Bridge, true)})
	w.Subnet(i, prefix)
	return i
}

// OnLAN gives each node an uplink, and makes their links one with proof.
func OnLAN(w *World, nodes ...string) (uplinks []*verdict.Interface) {
	d := &verdict.Domain{}
	for _, n := range nodes {
		i := w.Uplink(n)
		if d.Node == nil {
			d.Node, d.Name = i.Link.Node, i.Link.Name
		}
		i.Link.Domain, i.Link.Proven, i.Link.BothWays = d, d, d
		uplinks = append(uplinks, i)
	}
	return uplinks
}

// Given gives a namespace an address of the pod network on a point-to-point veth.
func Given(w *World, ns *verdict.Namespace) *verdict.Claim {
	inside, _ := w.Veth(ns, "\x02\x00\x00\x00\x00"+ns.Netns[:1], w.Link(ns.Node.Name, "veth"+ns.Netns, verdict.PointToPoint, false))
	c := w.Assigned(inside)
	c.Network = "cni0"
	return c
}
