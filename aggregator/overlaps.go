package aggregator

import (
	"slices"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/audit"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

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
}

// sides are the ranges that a node gives its pods addresses of.
func (s *store) sides(n *node) []verdict.Side {
	var subnets []audit.Subnet
	for _, sub := range s.subnets(n.rec) {
		subnets = append(subnets, audit.Subnet{Subnet: sub, Pods: s.podsBehind(n, sub.Interface)})
	}
	return audit.Sides(n.rec, s.poolsOf(n.rec), n.podNetworks(), subnets)
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
		if ranges := s.sides(n); !slices.EqualFunc(n.ranges, ranges, audit.SameSide) {
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
			if f := s.findings.said(id); f != nil && f.Kind == verdict.FindingPodCIDROverlap {
				s.overlaps.found[id] = struct{}{}
			}
		}
	}
	for _, n := range s.nodes {
		s.compareNetworks(n)
	}
	for id := range before {
		if _, still := s.overlaps.found[id]; !still {
			s.dropFinding(id)
		}
	}
}

// compareNodes looks for ranges that several nodes have. One that is silent, and that
// Kubernetes has no more, gives nothing: its range may be another one's now.
func (s *store) compareNodes() {
	var all []verdict.Side
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
		all = append(all, audit.NodeSpecSide(r.Node, r.Prefix))
	}
	s.overlap(audit.Ranges(&s.policy, all))

	// Cilium need not go by Node.spec.podCIDRs: its nodes are compared with each other.
	var cilium []verdict.Side
	for _, p := range s.pools.byKey {
		if p.node == nil && p.rec.IPAM == verdict.Cilium && !p.rec.Grows && (!known || slices.Contains(members[label(p.rec.Name)], p.rec.Name)) {
			cilium = append(cilium, audit.CiliumSides(&p.rec)...)
		}
	}
	s.overlap(audit.Ranges(&s.policy, cilium))
}

// overlap makes findings about overlaps known.
func (s *store) overlap(found []verdict.Finding) {
	for i := range found {
		s.overlaps.found[found[i].ID] = struct{}{}
		s.tellFinding(nil, &found[i])
	}
}

// compareNetworks looks for networks of one node that have addresses in common.
func (s *store) compareNetworks(n *node) {
	if len(n.pools) < 2 {
		return
	}
	var pools []audit.NodePool
	for _, p := range n.pools {
		pools = append(pools, audit.NodePool{Pool: &p.rec, VRF: n.vrf(p.rec.Device), Used: p.allocated.Of(audit.Both) > 0})
	}
	s.overlap(audit.Networks(&s.policy, n.rec, pools))
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
