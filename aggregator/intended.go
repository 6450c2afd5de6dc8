package aggregator

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// intendedAfter is how long an address that the Kubernetes API has for a pod may be
// missing there before that is told: after a node was booted, kubelet tells of one pod
// after the other which addresses it has now.
const intendedAfter = 30 * time.Second

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
		s.arm(ns, s.clock().Add(intendedAfter))
	}
}

// compareBools orders false before true.
func compareBools(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
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
	if o.Namespace == nil || o.Assigned && o.Namespace.Intended == "" {
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
	switch {
	case ns.ended:
		s.inherit(ns)
	case len(ns.ifaces) == 0:
	case ns.rec.Node.Unheard:
		return // what was found stays found
	default:
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

// lacks are the findings about a namespace. A pod that is ending gives its addresses
// back first, and one that runs a virtual machine may have given them to that.
func (s *store) lacks(ns *namespace) (list []verdict.Finding) {
	p := s.podObject(ns.rec)
	if p != nil && (p.Absent || p.DeletionTimestamp != 0 || p.Phase == "Succeeded" || p.Phase == "Failed" || p.VirtualMachine != "") ||
		ns.rec.Who.Workload().VirtualMachine != "" {
		return nil
	}
	inside := slices.MinFunc(ns.ifaces, func(a, b *iface) int {
		return cmp.Or(compareBools(a.rec.Attachment == verdict.Local, b.rec.Attachment == verdict.Local), cmp.Compare(a.rec.Index, b.rec.Index))
	}).rec
	o := verdict.Owner{ID: ns.rec.ID, Node: ns.rec.Node, Namespace: ns.rec, Interface: inside, MAC: inside.MAC, State: verdict.Live, Pod: p}
	for _, missing := range s.lacking(&o) {
		if missing.GetSource() == sourceKubernetes {
			if due := max(ns.since, p.Heard).Add(intendedAfter); s.clock() < due {
				s.arm(ns, due)
				continue
			}
		}
		a, err := netip.ParseAddr(missing.GetAddress())
		if err != nil {
			continue
		}
		list = append(list, verdict.Finding{
			ID:   verdict.FindingID(s.policy.Cluster, verdict.FindingIntendedNotObserved, ns.rec.ID+" "+a.String()),
			Kind: verdict.FindingIntendedNotObserved, Severity: verdict.Warning, Address: a, Owners: []verdict.Owner{o},
			Source: missing.GetSource(), Since: s.clock(),
		})
	}
	return list
}

// endLacks ends the findings about a namespace that has ended, once the message is applied that
// says so.
func (s *store) endLacks(ns *namespace) {
	ns.ended = true
	if len(ns.lacks) > 0 {
		s.arm(ns, s.clock())
	}
}

// inherit gives the findings about a namespace that has ended to the same one under another
// number: an agent that was started anew counts anew.
func (s *store) inherit(ns *namespace) {
	n := s.nodes[idOf(ns.rec.Node)]
	if n == nil {
		return
	}
	for other := range n.namespaces.all() {
		if other.rec.ID == ns.rec.ID {
			other.lacks, ns.lacks = append(other.lacks, ns.lacks...), nil
			s.arm(other, s.clock())
			return
		}
	}
}
