package aggregator

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/audit"
	"github.com/ipwitness/ipwitness/aggregator/facts"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// overlaps are what is found of ranges, and when it is looked for again.
type overlaps struct {
	wake chan struct{}

	mu sync.Mutex
	// at is when it is looked for again, 0 for never.
	at verdict.Stamp
	// dirty are the nodes of which something changed; moved tells that what Kubernetes
	// says of all did.
	dirty map[*facts.Node]struct{}
	moved bool

	// Of the goroutine that compares: the ranges of the pods of nodes, and the ids of what was
	// found.
	ranges map[*facts.Node][]verdict.Side
	found  map[string]struct{}
}

func newOverlaps() overlaps {
	return overlaps{wake: make(chan struct{}, 1), dirty: make(map[*facts.Node]struct{}), ranges: make(map[*facts.Node][]verdict.Side), found: make(map[string]struct{})}
}

// overlapPause is how long changes are collected.
const overlapPause = 300 * time.Millisecond

// overlapped has ranges compared again: of a node, if it is one that changed.
func (s *store) overlapped(n *facts.Node) {
	o := &s.overlaps
	o.mu.Lock()
	defer o.mu.Unlock()
	if n != nil {
		o.dirty[n] = struct{}{}
	} else {
		o.moved = true
	}
	if o.at == 0 {
		o.at = s.clock().Add(overlapPause)
		select {
		case o.wake <- struct{}{}:
		default:
		}
	}
}

// take returns of what something changed, if it is time to look; else when it is.
func (o *overlaps) take(now verdict.Stamp) (dirty map[*facts.Node]struct{}, moved bool, at verdict.Stamp) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.at == 0 || o.at > now {
		return nil, false, o.at
	}
	dirty, moved = o.dirty, o.moved
	o.dirty, o.moved, o.at = make(map[*facts.Node]struct{}), false, 0
	return dirty, moved, 0
}

// sides are the ranges that a node gives its pods addresses of. The facts are held.
func (s *store) sides(n *facts.Node) []verdict.Side {
	var pools []*verdict.Pool
	for _, p := range n.Pools {
		pools = append(pools, &p.Rec)
	}
	var subnets []audit.Subnet
	for _, sub := range n.Subnets() {
		subnets = append(subnets, audit.Subnet{Subnet: sub, Pods: n.Ranges().PodsBehind(sub.Interface)})
	}
	return audit.Sides(n.Rec, pools, n.Ranges().PodNetworks(), subnets)
}

// compareRanges makes the findings about ranges that overlap, if it is time, and returns when to
// look again. Pods come and go, and seldom change the ranges of their node: those of all are
// compared only if one did.
func (s *store) compareRanges() verdict.Stamp {
	o := &s.overlaps
	dirty, moved, at := o.take(s.clock())
	if dirty == nil {
		return at
	}
	for n := range dirty {
		s.facts.RLock()
		if ranges := s.sides(n); !slices.EqualFunc(o.ranges[n], ranges, audit.SameSide) {
			o.ranges[n], moved = ranges, true
		}
		s.facts.RUnlock()
	}
	s.facts.RLock()
	nodes := slices.Collect(s.facts.Nodes)
	maps.DeleteFunc(o.ranges, func(n *facts.Node, _ []verdict.Side) bool { return !slices.Contains(s.facts.At(n.ID.Place()), n) })
	var all, cilium []verdict.Side
	if moved {
		all, cilium = s.rangesOfNodes(nodes)
	}
	s.facts.RUnlock()
	before := o.found
	o.found = make(map[string]struct{})
	if moved {
		s.tellOverlaps(audit.Ranges(&s.policy, all))
		s.tellOverlaps(audit.Ranges(&s.policy, cilium))
	} else {
		for id := range before {
			if f := s.findings.said(id); f != nil && f.Kind == verdict.FindingPodCIDROverlap {
				o.found[id] = struct{}{}
			}
		}
	}
	for _, n := range nodes {
		s.tellOverlaps(s.compareNetworks(n))
	}
	s.facts.RLock()
	defer s.facts.RUnlock()
	for id := range before {
		if _, still := o.found[id]; !still {
			s.endFinding(id, false)
		}
	}
	return 0
}

// tellOverlaps makes findings about overlaps known.
func (s *store) tellOverlaps(found []verdict.Finding) {
	if len(found) == 0 {
		return
	}
	s.facts.RLock()
	defer s.facts.RUnlock()
	for i := range found {
		s.overlaps.found[found[i].ID] = struct{}{}
		s.tellFinding(&found[i])
	}
}

// rangesOfNodes are the ranges that nodes have, by which they are compared. One that is silent, and
// that Kubernetes has no more, gives nothing: its range may be another one's now. Cilium need not go
// by Node.spec.podCIDRs: its nodes are compared with each other. The facts are held.
func (s *store) rangesOfNodes(nodes []*facts.Node) (all, cilium []verdict.Side) {
	names, known := s.kube.NodeNames()
	members := make(map[string][]string, len(names))
	for _, name := range names {
		members[facts.Label(name)] = append(members[facts.Label(name)], name)
	}
	for _, n := range nodes {
		removed := known && n.Rec.Unheard && !slices.ContainsFunc(members[facts.Label(n.Name)], n.Rec.Called)
		if !n.Rec.TimedOut && !removed {
			all = append(all, s.overlaps.ranges[n]...)
		}
	}
	for _, r := range s.kube.NodeRanges() {
		all = append(all, audit.NodeSpecSide(r.Node, r.Prefix))
	}
	for p := range s.facts.Pools {
		if p.Node == nil && p.Rec.IPAM == verdict.Cilium && !p.Rec.Grows && (!known || slices.Contains(members[facts.Label(p.Rec.Name)], p.Rec.Name)) {
			cilium = append(cilium, audit.CiliumSides(&p.Rec)...)
		}
	}
	return all, cilium
}

// compareNetworks looks for networks of one node that have addresses in common.
func (s *store) compareNetworks(n *facts.Node) []verdict.Finding {
	s.facts.RLock()
	defer s.facts.RUnlock()
	if len(n.Pools) < 2 {
		return nil
	}
	var pools []audit.NodePool
	for _, p := range n.Pools {
		pools = append(pools, audit.NodePool{Pool: &p.Rec, VRF: n.Ranges().VRF(p.Rec.Device), Used: p.Allocated.Of(audit.Both) > 0})
	}
	return audit.Networks(&s.policy, n.Rec, pools)
}
