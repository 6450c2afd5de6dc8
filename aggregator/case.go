package aggregator

import (
	"slices"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// caseOf returns everything that the judgement of an address needs. Its slices are only lent until
// the next call. A case that is to be explained has also what only people need to know.
func (s *store) caseOf(e *entry, explained bool) *verdict.Case {
	old := &s.lent
	c := &verdict.Case{
		Address: e.addr, Now: s.clock(), Conflicts: e.conflicts(), Pools: s.covering(e), Past: e.pastOf(),
		Claims: old.Claims[:0], Stations: old.Stations[:0], Namespaces: old.Namespaces[:0], Nodes: old.Nodes[:0],
		InPodCIDR: s.kube.InPodCIDR(e.addr), PodsKnownUntil: s.kube.KnownUntil(),
	}
	for _, h := range e.holdings {
		c.Claims = append(c.Claims, &h.Claim)
	}
	several := explained || s.several(e)
	s.addStations(c, e)
	s.addNamespaces(c, e)
	s.addAnswers(c, e)
	if b := e.booking; b != nil {
		c.Vanished, c.Before = b.vanished, b.found
		for _, al := range b.allocations {
			c.Allocations = append(c.Allocations, verdict.AllocationFacts{
				Allocation: &al.Allocation, Object: s.kube.PodNamed(al.Namespace, al.Pod),
				Sandbox: al.ContainerID != "" && s.sandboxes.get(verdict.Pack(al.ContainerID)) != nil,
				Covered: al.Node != "" && several && s.covered(al.Node),
			})
		}
	}
	if several || len(c.Allocations) > 0 {
		c.Covered = s.coveredAll()
	}
	s.addNodes(c, several)
	if explained {
		c.Incomplete = s.coverageNow().GetIncomplete()
		c.Stitches = s.stitchesOf(c.Claims)
	}
	s.lent = verdict.Case{Claims: c.Claims, Stations: c.Stations, Namespaces: c.Namespaces, Nodes: c.Nodes}
	return c
}

// several reports whether claims of the address may be of several owners, or a conflict is
// remembered. Owners may have one hardware address, too, where it is made from the address.
func (s *store) several(e *entry) bool {
	if e.dispute != nil {
		return true
	}
	for _, h := range e.holdings {
		first := e.holdings[0]
		mac := first.MAC
		if first.mac == nil {
			mac = first.Interface.MAC
		}
		switch {
		case h.Kind == verdict.DADFailed, h.mac == nil && h.Interface.Namespace.ID != first.Interface.Namespace.ID:
			return true
		case h.mac == nil:
		case h.MAC != mac, h.Interface.Peer != 0 && (first.mac != nil && h.port != first.port || first.mac == nil && h.Interface.Peer != first.Interface.Namespace.Record):
			return true
		default:
			if i := s.nodeOf(h).holders.get(mac); i != nil && i.alike != nil {
				return true
			}
		}
	}
	return false
}

// addStations adds the interfaces that have a hardware address which a claim names.
func (s *store) addStations(c *verdict.Case, e *entry) {
	type place struct {
		node *node
		mac  verdict.MAC
	}
	var few [8]place
	known := few[:0]
	for _, h := range e.holdings {
		for _, mac := range []verdict.MAC{h.MAC, h.Source} {
			n := s.nodeOf(h)
			if h.mac == nil || mac == "" || slices.Contains(known, place{n, mac}) {
				continue
			}
			first := n.holders.get(mac)
			if first == nil {
				continue
			}
			known = append(known, place{n, mac})
			for i := first; i != nil; i = i.alike {
				c.Stations = append(c.Stations, i.rec)
			}
		}
	}
	own := len(c.Stations)
	for _, h := range e.holdings {
		if h.mac == nil || h.Link == nil || h.Link.Domain == nil || h.MAC.Shared() {
			continue
		}
		a := s.macs[h.MAC]
		if a == nil {
			continue
		}
		for _, i := range a.holders {
			if i.Link.Domain == h.Link.Domain && !slices.Contains(c.Stations[own:], i) && !slices.Contains(known, place{s.nodes[idOf(i.Namespace.Node)], h.MAC}) {
				c.Stations = append(c.Stations, i)
			}
		}
	}
}

// addNamespaces adds the namespaces of claims and those behind the ports that frames entered by.
func (s *store) addNamespaces(c *verdict.Case, e *entry) {
	add := func(ns *verdict.Namespace, behind bool) {
		if slices.ContainsFunc(c.Namespaces, func(f verdict.NamespaceFacts) bool { return f.Namespace == ns }) {
			return
		}
		f := verdict.NamespaceFacts{Namespace: ns, Pod: s.podObject(ns)}
		if behind {
			f.Nested = ns.Netns != "" && s.places.get(nodeID{boot: ns.Node.Boot, netns: ns.Netns}) != nil
		}
		if f.Pod != nil || behind {
			c.Namespaces = append(c.Namespaces, f)
		}
	}
	for _, h := range e.holdings {
		if i := h.Interface; h.mac != nil && i.Peer != 0 {
			if ns := s.nodeOf(h).namespaces.get(i.Peer); ns != nil {
				add(ns.rec, true)
			}
		}
	}
	if s.kube == nil {
		return
	}
	for _, h := range e.holdings {
		add(h.Interface.Namespace, false)
	}
	for _, i := range c.Stations {
		add(i.Namespace, false)
	}
}

// addAnswers adds what senders answer for. That an interface has the hardware address need not tell
// who the sender is: several may have it by design.
func (s *store) addAnswers(c *verdict.Case, e *entry) {
	for _, h := range e.holdings {
		if h.Link == nil || !h.onlyAnswered() {
			continue
		}
		a := verdict.Answer{Link: h.Link.Key(), MAC: h.MAC}
		if !slices.ContainsFunc(c.Answers, func(other verdict.Answer) bool { return other.Link == a.Link && other.MAC == a.MAC }) {
			a.Addresses, a.Owners = s.answers(h.Link, h.MAC)
			c.Answers = append(c.Answers, a)
		}
	}
}

// addNodes adds the facts about the nodes of claims, of stations and of pools.
func (s *store) addNodes(c *verdict.Case, several bool) {
	add := func(rec *verdict.Node, pool bool) {
		if slices.ContainsFunc(c.Nodes, func(f verdict.NodeFacts) bool { return f.Node == rec.Key() }) {
			return
		}
		f := verdict.NodeFacts{Node: rec.Key(), InPodCIDR: c.InPodCIDR && s.kube.InPodCIDROf(rec.Name, c.Address)}
		if pool && len(c.Allocations) > 0 {
			n := s.nodes[idOf(rec)] // and not another one of its name
			f.Covered = n != nil && n.covers()
		}
		if several {
			f.Pools, f.Subnets = s.poolsOf(rec), s.subnets(rec)
		}
		if f.InPodCIDR || f.Covered || len(f.Pools)+len(f.Subnets) > 0 {
			c.Nodes = append(c.Nodes, f)
		}
	}
	for _, p := range c.Pools {
		if p.Node != nil {
			add(p.Node, true)
		}
	}
	if !several && !c.InPodCIDR {
		return
	}
	for _, claim := range c.Claims {
		add(claim.Node(), false)
	}
	for _, i := range c.Stations {
		add(i.Namespace.Node, false)
	}
}
