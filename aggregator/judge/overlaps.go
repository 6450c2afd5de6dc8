package judge

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/audit"
	"github.com/ipwitness/ipwitness/aggregator/facts"
	"github.com/ipwitness/ipwitness/aggregator/kube"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// Overlaps finds address ranges that overlap, on one node or across the cluster, and hardware addresses at
// several places.
type Overlaps struct {
	facts *facts.Facts
	kube  *kube.Cluster // nil if the API is not used
	set   *Set
	wake  signal

	mu sync.Mutex
	// at is when ranges are compared next; 0 for never.
	at verdict.Stamp
	// dirty has the nodes that changed. moved is set if the Kubernetes API reported a change that
	// affects all nodes.
	dirty map[*facts.Node]struct{}
	moved bool

	// ranges are the pod ranges of each node, and macs the hardware addresses that may be those of several
	// places; found has the IDs of the current findings, and begun when two places with one hardware
	// address were first found. Only the goroutine that calls run uses them.
	ranges map[*facts.Node][]verdict.Side
	macs   map[*facts.Node][]verdict.MAC
	found  map[string]struct{}
	begun  map[string]verdict.Stamp
}

// overlapPause is how long changes are collected before ranges are compared.
const overlapPause = 300 * time.Millisecond

// RangesChanged schedules a comparison of the ranges of a node or, if n is nil, of all nodes.
func (o *Overlaps) RangesChanged(n *facts.Node) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if n != nil {
		o.dirty[n] = struct{}{}
	} else {
		o.moved = true
	}
	if at := o.facts.Clock().Add(overlapPause); o.at == 0 || at < o.at {
		o.at = at
		o.wake.set()
	}
}

// Compares reports whether a comparison of the ranges of a node is scheduled.
func (o *Overlaps) Compares(n *facts.Node) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	_, scheduled := o.dirty[n]
	return scheduled
}

// sides returns the ranges from which a node assigns addresses to its pods. The caller holds the
// facts.
func (o *Overlaps) sides(n *facts.Node) []verdict.Side {
	var pools []*verdict.Pool
	used := poolsOf(n)
	for _, p := range used {
		pools = append(pools, p.Pool)
	}
	var subnets []audit.Subnet
	for _, sub := range n.Subnets() {
		subnets = append(subnets, audit.Subnet{Subnet: sub, Pods: n.PodsBehind(sub.Interface)})
	}
	return append(audit.Sides(n.Rec, pools, n.PodNetworks(), subnets), audit.OnLANs(n.Rec, used, subnets, n.LAN)...)
}

// run updates the findings about overlapping ranges if it is time, and returns when to call it
// again; 0 for never. The ranges of all nodes are compared only if one of them changed, because
// pods come and go often but rarely change the ranges of their node.
func (o *Overlaps) run() verdict.Stamp {
	o.mu.Lock()
	if o.at == 0 || o.at > o.facts.Clock() {
		defer o.mu.Unlock()
		return o.at
	}
	dirty, moved := o.dirty, o.moved
	o.dirty, o.moved, o.at = make(map[*facts.Node]struct{}), false, 0
	o.mu.Unlock()
	for n := range dirty {
		o.facts.RLock()
		if ranges := o.sides(n); !slices.EqualFunc(o.ranges[n], ranges, audit.SameSide) {
			o.ranges[n], moved = ranges, true
		}
		o.macs[n] = n.CommonMACs()
		o.facts.RUnlock()
	}
	o.facts.RLock()
	nodes := slices.Collect(o.facts.Nodes)
	maps.DeleteFunc(o.ranges, func(n *facts.Node, _ []verdict.Side) bool { return !slices.Contains(o.facts.At(n.ID.Place()), n) })
	maps.DeleteFunc(o.macs, func(n *facts.Node, _ []verdict.MAC) bool { return !slices.Contains(o.facts.At(n.ID.Place()), n) })
	var all, ofPools []verdict.Side
	var divided []*verdict.Pool
	if moved {
		all, ofPools = o.rangesOfNodes(nodes)
		for p := range o.facts.Pools {
			if len(p.Rec.Divided) > 0 {
				rec := p.Rec
				divided = append(divided, &rec)
			}
		}
	}
	o.facts.RUnlock()
	before := o.found
	o.found = make(map[string]struct{})
	if moved {
		o.publishAll(audit.Outside(o.facts.Policy, all))
		o.publishAll(audit.Ranges(o.facts.Policy, all))
		o.publishAll(audit.Ranges(o.facts.Policy, ofPools))
		o.publishAll(audit.Divided(o.facts.Policy, divided))
	} else {
		for id := range before {
			if f := o.set.finding(id); f != nil && f.Overlap != nil && (f.Kind == verdict.FindingPodCIDROverlap || f.Overlap.Sides[0].Source == verdict.SideDivided) {
				o.found[id] = struct{}{}
			}
		}
	}
	for _, n := range nodes {
		o.publishAll(o.compareNetworks(n))
	}
	again := o.compareMACs(nodes)
	o.facts.RLock()
	defer o.facts.RUnlock()
	for id := range before {
		if _, still := o.found[id]; !still {
			o.set.End(id, false)
		}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if again != 0 && (o.at == 0 || again < o.at) {
		o.at = again
	}
	return o.at
}

// publishAll publishes findings about overlaps.
func (o *Overlaps) publishAll(found []verdict.Finding) {
	if len(found) == 0 {
		return
	}
	o.facts.RLock()
	defer o.facts.RUnlock()
	for i := range found {
		o.found[found[i].ID] = struct{}{}
		o.set.Publish(&found[i])
	}
}

// rangesOfNodes returns the ranges that are compared across nodes. It omits disconnected nodes that
// Kubernetes no longer lists, because their ranges may have been assigned to other nodes. Ranges
// that Cilium allocates are compared only with each other, because Cilium need not use
// Node.spec.podCIDRs. The caller holds the facts.
func (o *Overlaps) rangesOfNodes(nodes []*facts.Node) (all, ofPools []verdict.Side) {
	names, known := o.kube.NodeNames()
	members := make(map[string][]string, len(names))
	for _, name := range names {
		members[facts.Label(name)] = append(members[facts.Label(name)], name)
	}
	agents := make(map[string][]*facts.Node, len(nodes))
	for _, n := range nodes {
		removed := known && n.Rec.Unheard && !slices.ContainsFunc(members[facts.Label(n.Name)], n.Rec.Called)
		if !n.Rec.TimedOut && !removed {
			agents[facts.Label(n.Name)] = append(agents[facts.Label(n.Name)], n)
			for i := range o.ranges[n] {
				if s := &o.ranges[n][i]; !o.allocated(s) {
					all = append(all, *s)
				}
			}
		}
	}
	for _, r := range o.kube.NodeRanges() {
		all = append(all, audit.NodeSpecSide(r.Node, r.Prefix))
	}
	for _, n := range o.kube.NodeAddresses() {
		if !slices.ContainsFunc(agents[facts.Label(n.Node)], func(agent *facts.Node) bool { return agent.Rec.Called(n.Node) }) {
			all = append(all, audit.ListedSide(n.Node, n.Address))
		}
	}
	for p := range o.facts.Pools {
		if p.Rec.OfNode() && (!known || slices.Contains(members[facts.Label(p.Rec.Name)], p.Rec.Name)) {
			ofPools = append(ofPools, audit.NodePoolSides(&p.Rec)...)
		}
	}
	return all, ofPools
}

// allocated reports whether a side is an address of a node on a LAN that a pool there has allocated, as for a node that is
// a container or a guest of another one. The caller holds the facts.
func (o *Overlaps) allocated(s *verdict.Side) bool {
	return s.Source == verdict.SideHeld && s.LAN != (verdict.LinkKey{}) && slices.ContainsFunc(o.facts.Allocators(s.Range.First), func(p *facts.Pool) bool {
		on := p.Node.LAN(p.Rec.Device)
		return on != nil && on.Key() == s.LAN && audit.AllocatesOnLAN(&p.Rec) && p.Rec.Contains(s.Range.First)
	})
}

// compareNetworks returns the findings about networks of one node whose addresses overlap.
func (o *Overlaps) compareNetworks(n *facts.Node) []verdict.Finding {
	o.facts.RLock()
	defer o.facts.RUnlock()
	if len(n.Pools) < 2 {
		return nil
	}
	return audit.Networks(o.facts.Policy, n.Rec, poolsOf(n))
}

// poolsOf returns the pools of a node. The caller holds the facts.
func poolsOf(n *facts.Node) (pools []audit.NodePool) {
	for _, p := range n.Pools {
		pools = append(pools, audit.NodePool{Pool: &p.Rec, VRF: n.VRF(p.Rec.Device), Used: p.Allocated.Of(audit.Both) > 0})
	}
	return pools
}
