package aggregator

import (
	"slices"

	"github.com/ipwitness/ipwitness/aggregator/audit"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

func (ns *namespace) clock() *alarm { return &ns.alarm }

// lack has it looked at whether a namespace has all addresses that it was meant to
// have: soon for what its agent says, later for what the Kubernetes API does.
func (s *store) lack(ns *namespace) {
	if ns.rec.Record == verdict.OwnRecord {
		return
	}
	if ns.rec.Intended != "" || len(ns.lacks) > 0 {
		s.arm(ns, s.clock()) // once its interfaces are known, too
	}
	if p := s.podObject(ns.rec); p != nil && !p.HostNetwork && len(p.IPs) > 0 && !ns.alarm.set() {
		s.arm(ns, s.clock().Add(audit.IntendedAfter))
	}
}

// lackOf is lack after a namespace has an address more or less.
func (s *store) lackOf(h *holding) {
	if h.Kind == verdict.Assigned {
		s.lack(h.port.namespace)
	}
}

// lackOfSpeaker is lack after the wire shows an address with a namespace whose kernel
// does not have it, or shows it no more.
func (s *store) lackOfSpeaker(o *verdict.Owner) {
	if o.Namespace == nil || o.Assigned {
		return
	}
	if n := s.nodes[idOf(o.Namespace.Node)]; n != nil {
		if ns := n.namespaces.get(o.Namespace.Record); ns != nil {
			s.lack(ns)
		}
	}
}

// intend makes the findings about addresses that a namespace lacks.
func (s *store) intend(ns *namespace) {
	var now []verdict.Finding
	if !ns.ended && len(ns.ifaces) > 0 && !ns.rec.Node.Unheard {
		now = s.lacks(ns)
	}
	before := ns.lacks
	ns.lacks = now
	for i := range now {
		s.tellFinding(nil, &now[i])
	}
	for i := range before {
		if !slices.ContainsFunc(now, func(f verdict.Finding) bool { return f.ID == before[i].ID }) {
			s.endFinding(nil, &before[i])
		}
	}
}

// lacks are the findings about a namespace.
func (s *store) lacks(ns *namespace) []verdict.Finding {
	inside := ns.ifaces[0].rec
	for _, i := range ns.ifaces {
		if i.rec.Attachment != verdict.Local {
			inside = i.rec
			break
		}
	}
	o := verdict.Owner{
		ID: ns.rec.ID, Node: ns.rec.Node, Namespace: ns.rec, Interface: inside, MAC: inside.MAC, State: verdict.Live, Pod: s.podObject(ns.rec),
	}
	out := audit.Missing(&s.policy, &o, s.lacking(&o), ns.since, s.clock())
	if out.Again != 0 {
		s.arm(ns, out.Again)
	}
	return out.Findings
}

// endLacks ends the findings about a namespace that has ended.
func (s *store) endLacks(ns *namespace) {
	ns.ended = true
	s.disarm(ns)
	s.intend(ns)
}
