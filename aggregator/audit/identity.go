package audit

import (
	"slices"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
)

// auditIdentities checks whether the network enforces policies for the address as that of another pod than the one that has
// it. Both the kernel and the Kubernetes API must have the address for that pod, and the API must contradict the record.
func (a *addressAudit) auditIdentities() {
	for i := range a.judged.Owners {
		o := &a.judged.Owners[i]
		if !holds(o) || o.Kind() != verdict.Pod || o.Pod != nil && (!a.listedFor(o.Pod) || o.Pod.HostNetwork) || o.VirtualMachine() != "" || o.Pod != nil && o.Pod.VirtualMachine != "" {
			continue
		}
		reported := slices.ContainsFunc(a.in.Before, func(b verdict.Finding) bool {
			return b.Kind == verdict.FindingIdentityMismatch && b.Owners[0].ID == o.ID
		})
		var wrong []*verdict.Allocation
		for _, al := range a.in.Allocations {
			switch {
			case al.Identity == 0 || al.Names(o):
			case o.Pod == nil || al.Object == nil || o.State == verdict.Unheard || al.Pool.State != ipam.Known: // not known for now
				if reported {
					a.keep(al.Pool, verdict.FindingIdentityMismatch)
				}
			case !a.listedFor(al.Object):
				wrong = append(wrong, al.Allocation)
			default:
				a.again(a.in.Now.Add(statusDelay)) // the end of that pod does not trigger an audit
			}
		}
		if len(wrong) > 0 {
			a.recordOf(verdict.FindingIdentityMismatch, verdict.Critical, wrong[0].Pool, o, wrong, a.patience(wrong[0].Pool, o))
		}
	}
}

// listedFor reports whether the Kubernetes API has the address for a pod that has not ended.
func (a *addressAudit) listedFor(p *verdict.PodObject) bool {
	return !p.Absent && !p.Ended() && slices.Contains(p.IPs, a.in.Address)
}

// misidentified reports whether a finding says that the network takes the address for that of one of these allocations.
func (a *addressAudit) misidentified(allocations ...*verdict.Allocation) bool {
	return slices.ContainsFunc(a.out.Findings, func(f verdict.Finding) bool {
		return f.Kind == verdict.FindingIdentityMismatch && slices.ContainsFunc(f.Allocations, func(al *verdict.Allocation) bool {
			return slices.ContainsFunc(allocations, func(other *verdict.Allocation) bool {
				return al.Pool.IPAM == other.Pool.IPAM && sameHolder(al, other)
			})
		})
	})
}
