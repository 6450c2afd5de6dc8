package aggregator

import (
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/ipwitness/ipwitness/aggregator/audit"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// What one namespace may have at most: more than any that is real.
const (
	maxSources  = 32
	maxIntended = 256
	maxWord     = 64 // bytes of a field, source or interface in them
)

// sources packs where the fields of a workload are from.
func sources(fields map[string]string) string {
	if len(fields) == 0 {
		return ""
	}
	words := make([]string, 0, len(fields))
	for field, source := range fields {
		if len(field) <= maxWord && len(source) <= maxWord && !strings.ContainsAny(field+source, "=,") {
			words = append(words, field+"="+source)
		}
	}
	slices.Sort(words)
	return strings.Join(words, ",")
}

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

// intended packs the addresses that a namespace was meant to have and has not.
func intended(list []*pb.Intended) string {
	if len(list) == 0 {
		return ""
	}
	lines := make([]string, 0, len(list))
	for _, i := range list {
		a, err := parseAddress(i.GetAddress())
		if err != nil || len(i.GetSource()) > maxWord || len(i.GetInterface()) > maxWord || strings.ContainsAny(i.GetSource()+i.GetInterface(), " \n") {
			continue
		}
		lines = append(lines, a.String()+" "+i.GetSource()+" "+i.GetInterface())
	}
	slices.Sort(lines)
	return strings.Join(slices.Compact(lines), "\n")
}

// intendedProto converts intended addresses to the format of the API.
func intendedProto(all []audit.Meant) (list []*pb.Intended) {
	for _, m := range all {
		list = append(list, &pb.Intended{Address: m.Address.String(), Source: m.Source, Interface: m.Interface})
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
			*at, says[field] = value, audit.SourceKubernetes
		}
	}
	fill("namespace", &out.Namespace, p.Namespace)
	fill("name", &out.Name, p.Name)
	fill("uid", &out.Uid, p.UID)
	fill("virtualMachine", &out.VirtualMachine, p.VirtualMachine)
	fill("phase", &out.Phase, p.Phase)
	if p.Controller != "" {
		out.Controller = &pb.Controller{Kind: p.ControllerKind, Name: p.Controller}
		says["controller"] = audit.SourceKubernetes
	}
	if p.DeletionTimestamp != 0 {
		out.DeletionTimestamp = timestamp(p.DeletionTimestamp)
		says["deletionTimestamp"] = audit.SourceKubernetes
	}
	if out.Orphaned = o.Orphaned; out.Orphaned {
		says["orphaned"] = audit.SourceKubernetes
	}
	if out.Sources == nil {
		out.Sources = says
	} else {
		maps.Copy(out.Sources, says)
	}
	return out
}

// lacking are the addresses that an owner was meant to have and has not. s.mu is held.
func (s *store) lacking(o *verdict.Owner) []audit.Meant {
	return slices.DeleteFunc(audit.Intended(o), func(m audit.Meant) bool {
		return s.speaks(o.ID, m.Address) || m.Source == audit.SourceKubernetes && s.holds(o.ID, m.Address)
	})
}

// holds tells whether an owner has an address by its kernel.
func (s *store) holds(id string, a netip.Addr) bool {
	e := s.table.get(a)
	return e != nil && slices.ContainsFunc(e.holdings, func(h *holding) bool {
		return h.Kind == verdict.Assigned && h.Interface.Namespace.ID == id
	})
}

// speaks tells whether the wire shows an address with an owner: a guest in it, or a
// network stack that is no kernel's (gVisor), may have it.
func (s *store) speaks(id string, a netip.Addr) bool {
	e := s.table.get(a)
	if e == nil {
		return false
	}
	o := e.owner(id)
	return o != nil && slices.ContainsFunc(o.Claims, func(c *verdict.Claim) bool { return c.Wire() && !c.Weak() })
}
