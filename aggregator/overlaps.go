package aggregator

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/facts"
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
		return facts.IDOf(a.rec).Place() == facts.IDOf(b.rec).Place() // as it was called before
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
	ranges map[*facts.Node][]side
	found  map[string]struct{}
}

func newOverlaps() overlaps {
	return overlaps{wake: make(chan struct{}, 1), dirty: make(map[*facts.Node]struct{}), ranges: make(map[*facts.Node][]side), found: make(map[string]struct{})}
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

// sides are the ranges that a node gives its pods addresses of.
func (s *store) sides(n *facts.Node) (list []side) {
	networks := n.Ranges().PodNetworks()
	for _, p := range n.Pools {
		if !p.Rec.Routed || !networks[p.Rec.Network] {
			continue
		}
		for _, r := range p.Rec.Ranges {
			list = append(list, side{n.Rec.Name, n.Rec, r, verdict.Side{
				Node: n.Rec.Name, Network: p.Rec.Network, Config: p.Rec.Config, Device: p.Rec.Device, Ranges: p.Rec.Ranges,
				From: "what " + p.Rec.IPAM + " there is told to give",
			}})
		}
	}
	for _, sub := range n.Subnets() {
		r := verdict.RangeOf(sub.Prefix)
		if sub.LAN || sub.Prefix.Addr().IsLinkLocalUnicast() || n.Ranges().Gateway(sub.Prefix.Addr()) || !n.Ranges().PodsBehind(sub.Interface) ||
			slices.ContainsFunc(list, func(other side) bool { return other.Overlaps(r) }) {
			continue
		}
		list = append(list, side{n.Rec.Name, n.Rec, r, verdict.Side{
			Node: n.Rec.Name, Device: sub.Interface.Name, Prefixes: []netip.Prefix{sub.Prefix.Masked()},
			From: "the address of " + sub.Interface.Name + " there",
		}})
	}
	return list
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
		if ranges := s.sides(n); !slices.EqualFunc(o.ranges[n], ranges, sameSide) {
			o.ranges[n], moved = ranges, true
		}
		s.facts.RUnlock()
	}
	s.facts.RLock()
	nodes := slices.Collect(s.facts.Nodes)
	maps.DeleteFunc(o.ranges, func(n *facts.Node, _ []side) bool { return !slices.Contains(s.facts.At(n.ID.Place()), n) })
	var all, cilium []side
	if moved {
		all, cilium = s.rangesOfNodes(nodes)
	}
	s.facts.RUnlock()
	before := o.found
	o.found = make(map[string]struct{})
	if moved {
		s.compareSides(all)
		s.compareSides(cilium)
	} else {
		for id := range before {
			if s.findings.said(id).GetKind() == verdict.FindingPodCIDROverlap {
				o.found[id] = struct{}{}
			}
		}
	}
	for _, n := range nodes {
		s.facts.RLock()
		s.compareNetworks(n)
		s.facts.RUnlock()
	}
	for id := range before {
		if _, still := o.found[id]; !still {
			s.findings.drop(id)
		}
	}
	return 0
}

// rangesOfNodes are the ranges that nodes have, by which they are compared. One that is silent, and
// that Kubernetes has no more, gives nothing: its range may be another one's now. The facts are
// held.
func (s *store) rangesOfNodes(nodes []*facts.Node) (all, cilium []side) {
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
		all = append(all, side{r.Node, nil, verdict.RangeOf(r.Prefix), verdict.Side{
			Node: r.Node, Prefixes: []netip.Prefix{r.Prefix}, From: "Node.spec.podCIDRs",
		}})
	}
	// Cilium need not go by Node.spec.podCIDRs: its nodes are compared with each other.
	for p := range s.facts.Pools {
		if p.Node != nil || p.Rec.IPAM != verdict.Cilium || p.Rec.Grows || known && !slices.Contains(members[facts.Label(p.Rec.Name)], p.Rec.Name) {
			continue
		}
		for _, r := range p.Rec.Ranges {
			cilium = append(cilium, side{p.Rec.Name, nil, r, verdict.Side{
				Node: p.Rec.Name, Ranges: []verdict.Range{r}, Config: p.Rec.Config, From: "spec.ipam.podCIDRs of its CiliumNode",
			}})
		}
	}
	return all, cilium
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
func (s *store) compareNetworks(n *facts.Node) {
	for i, p := range n.Pools {
		for _, other := range n.Pools[i+1:] {
			if !p.Rec.Competes(&other.Rec) || n.Ranges().VRF(p.Rec.Device) != n.Ranges().VRF(other.Rec.Device) {
				continue
			}
			a, b := p, other
			if b.Rec.Network < a.Rec.Network {
				a, b = b, a
			}
			ra, rb := a.Rec.Overlap(&b.Rec)
			if s.policy.DeclaresShared(ra.Common(rb)) {
				continue
			}
			out := &pb.Finding{
				Id:   verdict.FindingID(s.policy.Cluster, verdict.FindingRangesOverlap, n.Rec.Name+" "+a.Rec.Network+" "+b.Rec.Network),
				Kind: verdict.FindingRangesOverlap, Severity: pb.Finding_WARNING, Nodes: []string{n.Rec.Name}, Address: ra.Common(rb).String(),
			}
			if a.Allocated.Of(facts.Families) == 0 || b.Allocated.Of(facts.Families) == 0 {
				out.Severity = pb.Finding_INFO // one of them is not used
			}
			setTold(out, verdict.TellOverlap(out.GetKind(), poolSide(n, a), poolSide(n, b)))
			s.overlaps.found[out.GetId()] = struct{}{}
			s.findings.put(out)
		}
	}
}

func poolSide(n *facts.Node, p *facts.Pool) verdict.Side {
	return verdict.Side{
		Node: n.Rec.Name, Network: p.Rec.Network, Config: p.Rec.Config, Device: p.Rec.Device, Ranges: p.Rec.Ranges,
		From: "what " + p.Rec.IPAM + " is told to give",
	}
}
