package audit

import (
	"net/netip"
	"strings"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// IntendedAfter is how long an address that the Kubernetes API has for a pod may be missing
// there. After a node was rebooted, the kubelet reports one pod after the other.
const IntendedAfter = 30 * time.Second

// SourceKubernetes is the source of what the Kubernetes API says.
const SourceKubernetes = "kubernetes"

// Meant is an address that an owner was meant to have, according to a source, on an interface.
type Meant struct {
	Address           netip.Addr
	Source, Interface string
}

// Intended returns the addresses that an owner was meant to have: those that its node reports as
// missing, and those of its pod in the Kubernetes API.
func Intended(o *verdict.Owner) (list []Meant) {
	if o.Namespace == nil || o.Pod != nil && o.Pod.RuntimeClass {
		return nil
	}
	for line := range strings.Lines(o.Namespace.Intended) {
		address, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		source, iface, _ := strings.Cut(rest, " ")
		if a, err := netip.ParseAddr(address); err == nil {
			list = append(list, Meant{a, source, iface})
		}
	}
	if o.Pod == nil || o.Pod.HostNetwork || o.Pod.Absent || o.Pod.Phase != "Running" {
		return list
	}
	for _, a := range o.Pod.IPs {
		list = append(list, Meant{Address: a, Source: SourceKubernetes})
	}
	return list
}

// Missing returns the findings about the addresses that an owner was meant to have and has not.
// since is when the owner's namespace was reported. A pod that is ending gives its addresses back
// first, and one that runs a virtual machine may have given them to that.
func Missing(p *verdict.Policy, o *verdict.Owner, missing []Meant, since, now verdict.Stamp) (out Result) {
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
