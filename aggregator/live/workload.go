package live

import (
	"maps"
	"strings"

	"github.com/ipwitness/ipwitness/aggregator/audit"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// intendedProto converts intended addresses to the format of the API.
func intendedProto(all []audit.Meant) []*pb.Intended {
	return each(all, func(m audit.Meant) *pb.Intended {
		return &pb.Intended{Address: m.Address.String(), Source: m.Source, Interface: m.Interface}
	})
}

// workloadProto returns the workload of an owner, with its data from the Kubernetes API.
func workloadProto(o *verdict.Owner) *pb.Workload {
	return new(maker).workload(new(pb.Workload), o)
}

// workload fills in the workload of an owner, with its data from the Kubernetes API.
func (m *maker) workload(out *pb.Workload, o *verdict.Owner) *pb.Workload {
	w := verdict.Workload{Kind: verdict.External}
	if o.Namespace != nil {
		w = o.Namespace.Who.Workload()
	}
	out.Kind, out.Namespace, out.Name, out.Uid = pb.Workload_Kind(w.Kind), w.Namespace, w.Name, w.UID
	if m.packed != w.Sources {
		m.packed, m.sources = w.Sources, nil
		if w.Sources != "" {
			m.sources = make(map[string]string)
			for word := range strings.SplitSeq(w.Sources, ",") {
				field, source, _ := strings.Cut(word, "=")
				m.sources[field] = source
			}
		}
	}
	out.ContainerId, out.Source, out.Sources, out.VirtualMachine = w.ContainerID, w.Source, m.sources, w.VirtualMachine
	out.Process, out.ProcessId, out.ProcessEnded, out.Idle, out.MayForward = w.Process, w.PID, w.Ended, w.Idle, w.MayForward
	out.VipProgram, out.VipProgramEnded = w.VIPProgram, w.VIPProgramEnded
	p := o.Pod
	if p == nil {
		return out
	}
	says := maps.Clone(out.Sources) // other messages may share the map
	if says == nil {
		says = map[string]string{}
	}
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
	out.Sources = says
	return out
}
