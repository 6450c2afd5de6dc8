package live

import (
	"strings"

	"github.com/ipwitness/ipwitness/aggregator/audit"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// intendedProto converts intended addresses to the format of the API.
func intendedProto(all []verdict.Intent) []*pb.Intended {
	return each(all, func(m verdict.Intent) *pb.Intended {
		return &pb.Intended{Address: m.Address.String(), Source: m.Source, Interface: m.Interface, Network: m.Network}
	})
}

// workloadProto returns the workload of an owner, with its data from the Kubernetes API.
func workloadProto(o *verdict.Owner) *pb.Workload {
	w := verdict.Workload{Kind: verdict.External}
	if o.Namespace != nil {
		w = o.Namespace.Who.Workload()
	}
	says := make(map[string]string)
	if w.Sources != "" {
		for word := range strings.SplitSeq(w.Sources, ",") {
			field, source, _ := strings.Cut(word, "=")
			says[field] = source
		}
	}
	out := &pb.Workload{
		Kind: pb.Workload_Kind(w.Kind), Namespace: w.Namespace, Name: w.Name, Uid: w.UID, ContainerId: w.ContainerID, Source: w.Source, Sources: says,
		VirtualMachine: w.VirtualMachine, Process: w.Process, ProcessId: w.PID, ProcessEnded: w.Ended, Idle: w.Idle, MayForward: w.MayForward,
		VipProgram: w.VIPProgram, VipProgramEnded: w.VIPProgramEnded,
	}
	p := o.Pod
	if p == nil {
		return out
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
	return out
}
