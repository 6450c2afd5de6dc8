package aggregator

import (
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/ipwitness/ipwitness/aggregator/facts"
	"github.com/ipwitness/ipwitness/aggregator/index"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// What one namespace may have at most: more than any that is real.
const (
	maxSources  = 32
	maxIntended = 256
	maxWord     = facts.MaxWord // bytes of a field, source or interface in them
)

// sourceKubernetes is the source of what the Kubernetes API says.
const sourceKubernetes = "kubernetes"

// sourcesProto unpacks what sources packed.
func sourcesProto(packed string) map[string]string {
	if packed == "" {
		return nil
	}
	fields := map[string]string{}
	for word := range strings.SplitSeq(packed, ",") {
		field, source, _ := strings.Cut(word, "=")
		fields[field] = source
	}
	return fields
}

// intendedProto unpacks what intended packed.
func intendedProto(packed string) (list []*pb.Intended) {
	if packed == "" {
		return nil
	}
	for line := range strings.SplitSeq(packed, "\n") {
		address, rest, _ := strings.Cut(line, " ")
		source, iface, _ := strings.Cut(rest, " ")
		list = append(list, &pb.Intended{Address: address, Source: source, Interface: iface})
	}
	return list
}

// workloadProto is who an owner is, with what the Kubernetes API says of it.
func workloadProto(o *verdict.Owner) *pb.Workload {
	w := verdict.Workload{Kind: verdict.External}
	if o.Namespace != nil {
		w = o.Namespace.Who.Workload()
	}
	out := &pb.Workload{
		Kind: pb.Workload_Kind(w.Kind), Namespace: w.Namespace, Name: w.Name, Uid: w.UID,
		ContainerId: w.ContainerID, Source: w.Source, Process: w.Process, ProcessId: w.PID, ProcessEnded: w.Ended,
		VirtualMachine: w.VirtualMachine, Sources: sourcesProto(w.Sources),
	}
	p := o.Pod
	if p == nil {
		return out
	}
	says := map[string]string{}
	fill := func(field string, at *string, value string) {
		if *at == "" && value != "" {
			*at, says[field] = value, sourceKubernetes
		}
	}
	fill("namespace", &out.Namespace, p.Namespace)
	fill("name", &out.Name, p.Name)
	fill("uid", &out.Uid, p.UID)
	fill("virtualMachine", &out.VirtualMachine, p.VirtualMachine)
	fill("phase", &out.Phase, p.Phase)
	if p.Controller != "" {
		out.Controller = &pb.Controller{Kind: p.ControllerKind, Name: p.Controller}
		says["controller"] = sourceKubernetes
	}
	if p.DeletionTimestamp != 0 {
		out.DeletionTimestamp = timestamp(p.DeletionTimestamp)
		says["deletionTimestamp"] = sourceKubernetes
	}
	if out.Orphaned = o.Orphaned; out.Orphaned {
		says["orphaned"] = sourceKubernetes
	}
	if out.Sources == nil {
		out.Sources = says
	} else {
		maps.Copy(out.Sources, says)
	}
	return out
}

// lacking are the addresses that an owner was meant to have and has not: what its
// node tells, and those of its pod in the Kubernetes API. The facts are held.
func (s *store) lacking(o *verdict.Owner) []*pb.Intended {
	if o.Namespace == nil || o.Pod != nil && o.Pod.RuntimeClass {
		return nil
	}
	list := slices.DeleteFunc(intendedProto(o.Namespace.Intended), func(i *pb.Intended) bool {
		a, err := netip.ParseAddr(i.GetAddress())
		return err == nil && s.speaks(o.ID, a)
	})
	if o.Pod == nil || o.Pod.HostNetwork || o.Pod.Absent || o.Pod.Phase != "Running" {
		return list
	}
	for _, a := range o.Pod.IPs {
		if !s.facts.Holds(o.ID, index.AddressOf(a)) && !s.speaks(o.ID, a) {
			list = append(list, &pb.Intended{Address: a.String(), Source: sourceKubernetes})
		}
	}
	return list
}

// speaks reports whether the wire shows an address with an owner: a guest in it, or a
// network stack that is no kernel's (gVisor), may have it.
func (s *store) speaks(id string, addr netip.Addr) bool {
	a := index.AddressOf(addr)
	if !s.facts.Wired(a) {
		return false
	}
	b := s.builder()
	defer s.giveBack(b)
	return slices.ContainsFunc(s.policy.Judge(b.Case(a, false)).Owners, func(o verdict.Owner) bool {
		return o.ID == id && slices.ContainsFunc(o.Claims, func(c *verdict.Claim) bool { return c.Wire() && !c.Weak() })
	})
}
