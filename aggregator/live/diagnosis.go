package live

import (
	"github.com/ipwitness/ipwitness/aggregator/explain"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// diagnosisProto returns a diagnosis in the format of the API, with the information from Kubernetes.
func diagnosisProto(steps []explain.DiagnosisStep, says explain.Kubernetes) (out []*pb.DiagnosisStep) {
	for _, s := range explain.Diagnose(steps, says) {
		out = append(out, &pb.DiagnosisStep{Step: s.Step, Answer: s.Answer})
	}
	return out
}

func exclusionsProto(all []explain.Excluded) []*pb.Exclusion {
	var out []*pb.Exclusion
	for _, e := range all {
		out = append(out, &pb.Exclusion{Cause: e.Cause, Reason: e.Reason})
	}
	return out
}

func allocationsProto(all []*verdict.Allocation) []*pb.Allocation {
	var out []*pb.Allocation
	for _, al := range all {
		out = append(out, allocationProto(al))
	}
	return out
}

// allocationProto returns an allocation in the format of the API.
func allocationProto(al *verdict.Allocation) *pb.Allocation {
	out := &pb.Allocation{
		Ipam: al.Pool.IPAM, Pool: al.Pool.Name, Node: al.Node, Namespace: al.Namespace, Pod: al.Pod,
		ContainerId: al.ContainerID, Interface: al.Interface, Location: al.Location, AllocatedAt: timestamp(al.AllocatedAt),
		Mac: al.MAC, Hostname: al.Hostname,
	}
	if al.Node == "" && al.Pool.Node != nil && al.MAC == "" {
		out.Node = al.Pool.Node.Name // a node's own pool allocates for that node, except for DHCP clients
	}
	return out
}
