package aggregator

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// Two nodes that give their pods addresses of one range, and two networks of one node,
// make duplicates without any IPAM being wrong. Their ranges are known from
// Node.spec.podCIDRs, from what host-local is told to give, and from the addresses
// that nodes have on the bridges and veths of their pods.

// side is a range of addresses that one node gives.
type side struct {
	node string
	// rec is nil for a node as Kubernetes names it.
	rec *verdict.Node
	verdict.Range
	say verdict.Side
}

// same tells whether two are of one node, which Kubernetes may name otherwise than its
// agent does.
func (a *side) same(b *side) bool {
	switch {
	case a.node == b.node:
		return true
	case a.rec != nil && b.rec != nil:
		return idOf(a.rec).place() == idOf(b.rec).place() // as it was called before
	case a.rec != nil && b.rec == nil:
		return a.rec.Called(b.node)
	case a.rec == nil && b.rec != nil:
		return b.rec.Called(a.node)
	}
	return false
}

// sameSide tells whether two say the same.
func sameSide(a, b side) bool {
	return a.node == b.node && a.rec == b.rec && a.Range == b.Range &&
		a.say.Node == b.say.Node && a.say.Network == b.say.Network && a.say.Config == b.say.Config && a.say.Device == b.say.Device &&
		a.say.From == b.say.From && slices.Equal(a.say.Ranges, b.say.Ranges) && slices.Equal(a.say.Prefixes, b.say.Prefixes)
}

// overlaps are what is found of ranges, and when it is looked for again.
type overlaps struct {
	alarm alarm
	// dirty are the nodes of which something changed; moved tells that what Kubernetes
	// says of all did.
	dirty map[*node]struct{}
	moved bool
	// found are the ids of what was found.
	found map[string]struct{}
}

func (o *overlaps) clock() *alarm { return &o.alarm }

// overlapPause is how long changes are collected.
const overlapPause = 300 * time.Millisecond

// overlapped has ranges compared again: of a node, if it is one that changed.
func (s *store) overlapped(n *node) {
	if n != nil {
		if s.overlaps.dirty == nil {
			s.overlaps.dirty = make(map[*node]struct{})
		}
		s.overlaps.dirty[n] = struct{}{}
	} else {
		s.overlaps.moved = true
	}
	if !s.overlaps.alarm.set() {
		s.arm(&s.overlaps, s.clock().Add(overlapPause))
	}
}

// addressed has the ranges of a node compared again after it has an address more or
// less itself, or a pod has.
func (s *store) addressed(n *node, h *holding) {
	if h.Kind == verdict.Assigned && (h.port.rec.Attachment == verdict.Own || h.Network != "") {
		s.overlapped(n)
	}
	if h.Kind == verdict.Assigned && h.port.namespace.rec.Record == verdict.OwnRecord {
		s.touchDisputes(n)
	}
}

// sides are the ranges that a node gives its pods addresses of.
func (s *store) sides(n *node) (list []side) {
	networks := n.podNetworks()
	for _, p := range n.pools {
		if !p.rec.Routed || !networks[p.rec.Network] {
			continue
		}
		for _, r := range p.rec.Ranges {
			list = append(list, side{n.rec.Name, n.rec, r, verdict.Side{
				Node: n.rec.Name, Network: p.rec.Network, Config: p.rec.Config, Device: p.rec.Device, Ranges: p.rec.Ranges,
				From: "what " + p.rec.IPAM + " there is told to give",
			}})
		}
	}
	for _, sub := range s.subnets(n.rec) {
		r := verdict.RangeOf(sub.Prefix)
		if sub.LAN || sub.Prefix.Addr().IsLinkLocalUnicast() || n.gateway(sub.Prefix.Addr()) || !s.podsBehind(n, sub.Interface) ||
			slices.ContainsFunc(list, func(other side) bool { return other.Overlaps(r) }) {
			continue
		}
		list = append(list, side{n.rec.Name, n.rec, r, verdict.Side{
			Node: n.rec.Name, Device: sub.Interface.Name, Prefixes: []netip.Prefix{sub.Prefix.Masked()},
			From: "the address of " + sub.Interface.Name + " there",
		}})
	}
	return list
}

// gateway tells whether an address is one that a pool of the node leaves out.
func (n *node) gateway(a netip.Addr) bool {
	return slices.ContainsFunc(n.pools, func(p *pool) bool { return slices.Contains(p.rec.Gateways, a) })
}

// podNetworks are the CNI networks that gave pods of a node their addresses. What more a
// pod has (Multus) is often the same on each node.
func (n *node) podNetworks() map[string]bool {
	networks := make(map[string]bool)
	for ns := range n.namespaces.all() {
		if ns.rec.Record == verdict.OwnRecord || ns.rec.Who.Kind() != verdict.Pod {
			continue
		}
		for _, i := range ns.ifaces {
			for _, h := range i.holdings {
				if h.Kind == verdict.Assigned && h.Network != "" && i.rec.Name == verdict.FirstInterface {
					networks[h.Network] = true
				}
			}
		}
	}
	return networks
}

// podsBehind tells whether pods that CNI gave addresses are behind an interface of the
// node: on the ports of a bridge, or at the other end of a veth.
func (s *store) podsBehind(n *node, i *verdict.Interface) bool {
	is := func(record uint32) bool {
		ns := n.namespaces.get(record)
		return ns != nil && ns.rec.Who.Kind() == verdict.Pod && slices.ContainsFunc(ns.ifaces, func(inside *iface) bool {
			return inside.rec.Attachment == verdict.Peer && inside.rec.Name == verdict.FirstInterface && slices.ContainsFunc(inside.holdings, func(h *holding) bool {
				return h.Kind == verdict.Assigned && h.Network != ""
			})
		})
	}
	if i.Peer != 0 {
		return is(i.Peer)
	}
	if i.Kind != "bridge" || i.Link == nil {
		return false
	}
	own := n.namespaces.get(verdict.OwnRecord)
	return slices.ContainsFunc(own.ifaces, func(port *iface) bool {
		return port.rec.Link == i.Link && port.rec.Peer != 0 && is(port.rec.Peer)
	})
}

// leadsOut tells whether what is on a bridge with a port meets what is outside of the node.
func leadsOut(port *verdict.Interface) bool { return port.Uplink || port.Kind == "vlan" }

// compareRanges makes the findings about ranges that overlap. Pods come and go, and
// seldom change the ranges of their node: those of all are compared only if one did.
// Others get the lock now and then.
func (s *store) compareRanges() {
	dirty, moved := s.overlaps.dirty, s.overlaps.moved
	s.overlaps.dirty, s.overlaps.moved = nil, false
	looked := 0
	for n := range dirty {
		if ranges := s.sides(n); !slices.EqualFunc(n.ranges, ranges, sameSide) {
			n.ranges, moved = ranges, true
		}
		if looked++; looked%64 == 0 {
			s.mu.Unlock()
			s.mu.Lock()
		}
	}
	before := s.overlaps.found
	s.overlaps.found = make(map[string]struct{})
	if moved {
		s.compareNodes()
	} else {
		for id := range before {
			if s.findings.said(id).GetKind() == verdict.FindingPodCIDROverlap {
				s.overlaps.found[id] = struct{}{}
			}
		}
	}
	for _, n := range s.nodes {
		s.compareNetworks(n)
	}
	for id := range before {
		if _, still := s.overlaps.found[id]; !still {
			s.findings.drop(id)
		}
	}
}

// compareNodes looks for ranges that several nodes have. One that is silent, and that
// Kubernetes has no more, gives nothing: its range may be another one's now.
func (s *store) compareNodes() {
	var all []side
	names, known := s.kube.NodeNames()
	members := make(map[string][]string, len(names))
	for _, name := range names {
		members[label(name)] = append(members[label(name)], name)
	}
	for _, n := range s.nodes {
		removed := known && n.rec.Unheard && !slices.ContainsFunc(members[label(n.name)], n.rec.Called)
		if !n.rec.TimedOut && !removed {
			all = append(all, n.ranges...)
		}
	}
	for _, r := range s.kube.NodeRanges() {
		all = append(all, side{r.Node, nil, verdict.RangeOf(r.Prefix), verdict.Side{
			Node: r.Node, Prefixes: []netip.Prefix{r.Prefix}, From: "Node.spec.podCIDRs",
		}})
	}
	s.compareSides(all)

	// Cilium need not go by Node.spec.podCIDRs: its nodes are compared with each other.
	var cilium []side
	for _, p := range s.pools.byKey {
		if p.node != nil || p.rec.IPAM != verdict.Cilium || p.rec.Grows || known && !slices.Contains(members[label(p.rec.Name)], p.rec.Name) {
			continue
		}
		for _, r := range p.rec.Ranges {
			cilium = append(cilium, side{p.rec.Name, nil, r, verdict.Side{
				Node: p.rec.Name, Ranges: []verdict.Range{r}, Config: p.rec.Config, From: "spec.ipam.podCIDRs of its CiliumNode",
			}})
		}
	}
	s.compareSides(cilium)
}

// compareSides looks for ranges that several nodes have.
func (s *store) compareSides(all []side) {
	slices.SortFunc(all, func(a, b side) int {
		return cmp.Or(a.First.Compare(b.First), b.Last.Compare(a.Last), cmp.Compare(a.node, b.node), cmp.Compare(a.say.From, b.say.From))
	})
	for len(all) > 0 {
		// One group: all that are connected by common addresses.
		group, last := 1, all[0].Last
		for group < len(all) && all[group].First.BitLen() == last.BitLen() && all[group].First.Compare(last) <= 0 {
			if all[group].Last.Compare(last) > 0 {
				last = all[group].Last
			}
			group++
		}
		s.compareGroup(all[:group])
		all = all[group:]
	}
}

// compareGroup makes the finding about one group of ranges in order, each of which
// overlaps with one before it.
func (s *store) compareGroup(group []side) {
	var a, b *side
	var nodes []string
	for i := range group {
		for k := range i {
			if !group[k].same(&group[i]) && group[k].Overlaps(group[i].Range) {
				if a == nil {
					a, b = &group[k], &group[i]
				}
				for _, name := range []string{group[k].node, group[i].node} {
					if at, there := slices.BinarySearch(nodes, name); !there {
						nodes = slices.Insert(nodes, at, name)
					}
				}
				break
			}
		}
	}
	if a == nil {
		return
	}
	both := a.Common(b.Range)
	if s.policy.DeclaresShared(both) {
		return
	}
	out := &pb.Finding{
		Id: verdict.FindingID(s.policy.Cluster, verdict.FindingPodCIDROverlap, both.First.String()), Kind: verdict.FindingPodCIDROverlap,
		Severity: pb.Finding_CRITICAL, Address: both.String(), Nodes: nodes[:min(len(nodes), maxTold)],
	}
	setTold(out, verdict.TellOverlap(out.GetKind(), a.say, b.say))
	if len(nodes) > 2 {
		out.Summary += fmt.Sprintf(" In all, %d nodes have addresses in common.", len(nodes))
	}
	s.overlaps.found[out.GetId()] = struct{}{}
	s.findings.put(out)
}

// compareNetworks looks for networks of one node that have addresses in common.
func (s *store) compareNetworks(n *node) {
	for i, p := range n.pools {
		for _, other := range n.pools[i+1:] {
			if !p.rec.Competes(&other.rec) || n.vrf(p.rec.Device) != n.vrf(other.rec.Device) {
				continue
			}
			a, b := p, other
			if b.rec.Network < a.rec.Network {
				a, b = b, a
			}
			ra, rb := a.rec.Overlap(&b.rec)
			if s.policy.DeclaresShared(ra.Common(rb)) {
				continue
			}
			out := &pb.Finding{
				Id:   verdict.FindingID(s.policy.Cluster, verdict.FindingRangesOverlap, n.rec.Name+" "+a.rec.Network+" "+b.rec.Network),
				Kind: verdict.FindingRangesOverlap, Severity: pb.Finding_WARNING, Nodes: []string{n.rec.Name}, Address: ra.Common(rb).String(),
			}
			if a.allocated.of(families) == 0 || b.allocated.of(families) == 0 {
				out.Severity = pb.Finding_INFO // one of them is not used
			}
			setTold(out, verdict.TellOverlap(out.GetKind(), poolSide(n, a), poolSide(n, b)))
			s.overlaps.found[out.GetId()] = struct{}{}
			s.findings.put(out)
		}
	}
}

// vrf is the VRF that an interface of the node itself is in; empty for none.
func (n *node) vrf(name string) string {
	own := n.namespaces.get(verdict.OwnRecord)
	if own == nil || name == "" {
		return ""
	}
	for _, i := range own.ifaces {
		if i.rec.Name == name {
			return i.rec.VRF
		}
	}
	return ""
}

func poolSide(n *node, p *pool) verdict.Side {
	return verdict.Side{
		Node: n.rec.Name, Network: p.rec.Network, Config: p.rec.Config, Device: p.rec.Device, Ranges: p.rec.Ranges,
		From: "what " + p.rec.IPAM + " is told to give",
	}
}
