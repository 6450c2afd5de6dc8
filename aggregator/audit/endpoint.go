package audit

import (
	"slices"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
)

// endpointGrace is how long an EndpointSlice may list the address for its former pod after another pod has it: the
// controller follows the API within seconds.
const endpointGrace = 10 * time.Second

// auditEndpoints checks whether Services send packets for a pod that no longer has the address to the pod that has it. There
// is one finding for each former pod.
func (a *addressAudit) auditEndpoints() {
	endpoints := a.in.Endpoints
	if !a.in.EndpointsKnown { // only those that were reported, as long as they may be there
		endpoints = nil
		for _, b := range a.in.Before {
			if b.Kind == verdict.FindingEndpointOfFormerOwner && !b.Waiting {
				endpoints = append(endpoints, b.Endpoints...)
				a.again(a.in.Now.Add(endpointGrace))
			}
		}
	}
	for len(endpoints) > 0 {
		n := 1
		for n < len(endpoints) && endpoints[n].UID == endpoints[0].UID {
			n++
		}
		f := verdict.Finding{Kind: verdict.FindingEndpointOfFormerOwner, Severity: verdict.Critical, Endpoints: endpoints[:n:n]}
		if o := a.receiver(&endpoints[0]); o != nil {
			f.Owners = []verdict.Owner{*o}
			a.record(f, endpoints[0].UID+" ", endpointGrace)
		}
		endpoints = endpoints[n:]
	}
}

// receiver returns the pod that gets the packets for an endpoint of another pod; nil if there is none, or if it may be the
// right one. Both the kernel and the Kubernetes API must have the address for it: an address of another network is not the
// one that nodes send to.
func (a *addressAudit) receiver(e *ipam.Endpoint) (found *verdict.Owner) {
	for i := range a.judged.Owners {
		o := &a.judged.Owners[i]
		w := o.Workload()
		switch {
		case !o.Alive():
		case w.UID == e.UID, w.Namespace == e.Pod.Namespace && w.Name == e.Pod.Name, o.Pod != nil && o.Pod.UID == e.UID:
			return nil
		case !holds(o), o.Kind() != verdict.Pod, !o.PodLives(), o.Pod.HostNetwork, !slices.Contains(o.Pod.IPs, a.in.Address):
		case o.VirtualMachine() != "" || o.Pod.VirtualMachine != "": // its former pod may have run the same machine
		case o.State == verdict.Unheard && !a.reported(a.id(verdict.FindingEndpointOfFormerOwner, e.UID+" ")):
		case found == nil:
			found = o
		}
	}
	return found
}

func (a *addressAudit) reported(id string) bool {
	return slices.ContainsFunc(a.in.Before, func(b verdict.Finding) bool { return b.ID == id && !b.Waiting })
}
