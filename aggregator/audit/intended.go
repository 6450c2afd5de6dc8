package audit

import (
	"strings"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// IntendedAfter is how long an address that the Kubernetes API lists may be missing in the pod.
// After a node has rebooted, the kubelet updates the status of its pods one by one.
const IntendedAfter = 30 * time.Second

// SourceKubernetes is the source of addresses that the Kubernetes API lists.
const SourceKubernetes = "kubernetes"

// The sources of an address that the kernel of its owner was told to use and does not use, because
// duplicate address detection failed.
const (
	// SourceLooped: a bridge returned the owner's own solicitation.
	SourceLooped = "looped"
	// SourceRivalLeft: the rival has left since. The kernel does not try again. SourceRivalSilent: no kernel
	// reported that the rival has left, but it is not seen with the address any longer.
	SourceRivalLeft   = "rival-left"
	SourceRivalSilent = "rival-silent"
)

// auditRefused looks for kernels that do not use the address although nobody else is known to have it.
func (a *addressAudit) auditRefused() {
	for i := range a.judged.Owners {
		o := &a.judged.Owners[i]
		if !compared(o) || !o.DADFailed() || o.Yielded() { // a client requests another address
			continue
		}
		f := verdict.Finding{Kind: verdict.FindingIntendedNotObserved, Severity: verdict.Warning, Owners: []verdict.Owner{*o}, Source: SourceRivalLeft}
		refusal := a.in.Refused(o, a.judged)
		switch rival := refusal.Rival; {
		case refusal.Looped:
			f.Source = SourceLooped
			f.ID = verdict.FindingID(a.policy.Cluster, f.Kind, o.Namespace.ID+" "+o.Interface.Name) // one for all addresses
		case rival == nil:
			continue
		default:
			if !refusal.GaveUp {
				f.Source = SourceRivalSilent
			}
			node := &verdict.Node{Name: rival.Node}
			was := verdict.Owner{ID: rival.ID, Node: node, MAC: rival.MAC, Interface: &verdict.Interface{}}
			if rival.External {
				was.Claims = []*verdict.Claim{{Kind: verdict.Announced, Interface: was.Interface, Frame: verdict.Frame{MAC: rival.MAC}}}
			} else {
				was.Namespace = &verdict.Namespace{Node: node, Who: rival.Who, ID: rival.ID, Netns: rival.ID[strings.LastIndexByte(rival.ID, '/')+1:]}
				was.Interface.Namespace = was.Namespace
			}
			f.Former = &verdict.Former{Until: refusal.Until, Owner: was}
		}
		a.record(f, o.Namespace.ID+" refused ", 0) // it is another finding than that of an address that is not there
	}
}

// Intended returns the addresses that an owner was meant to have: those that its agent reports as
// missing, and those that the Kubernetes API lists for its pod.
func Intended(o *verdict.Owner) (list []verdict.Intent) {
	if o.Namespace == nil || o.Pod != nil && o.Pod.RuntimeClass {
		return nil
	}
	list = o.Namespace.Intents()
	if o.Pod == nil || o.Pod.HostNetwork || o.Pod.Absent || o.Pod.Phase != "Running" {
		return list
	}
	for _, a := range o.Pod.IPs {
		list = append(list, verdict.Intent{Address: a, Source: SourceKubernetes})
	}
	for _, m := range o.Pod.Memberships {
		if m.Device {
			list = append(list, verdict.Intent{Address: m.Address, Source: SourceKubernetes, Interface: m.Interface})
		}
	}
	return list
}

// Missing returns the findings about the addresses that an owner was meant to have and does not
// have. since is when the owner's namespace was first reported. There are none for a pod that is
// ending, because it loses its addresses first, and for a virtual machine, which may have taken
// them over.
func Missing(p *verdict.Policy, o *verdict.Owner, missing []verdict.Intent, since, now verdict.Stamp) (out Result) {
	if pod := o.Pod; pod != nil && (pod.Absent || pod.DeletionTimestamp != 0 || pod.Ended()) || o.Workload().VirtualMachine != "" {
		return out
	}
	for _, m := range missing {
		if m.Source == SourceKubernetes {
			if due := max(since, o.Pod.Heard).Add(IntendedAfter); now < due {
				out.Again = due
				continue
			}
		}
		out.Findings = append(out.Findings, verdict.Finding{
			ID:   verdict.FindingID(p.Cluster, verdict.FindingIntendedNotObserved, o.Namespace.ID+" "+m.Address.String()),
			Kind: verdict.FindingIntendedNotObserved, Severity: verdict.Warning, Address: m.Address, Owners: []verdict.Owner{*o},
			Source: m.Source, Since: now,
		})
	}
	return out
}
