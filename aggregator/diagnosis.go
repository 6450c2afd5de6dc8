package aggregator

import (
	"fmt"
	"slices"
	"strings"

	"github.com/ipwitness/ipwitness/aggregator/kube"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// diagnosisSteps are the steps of a diagnosis by hand, in order.
var diagnosisSteps = []string{
	verdict.StepEvents, verdict.StepPods, verdict.StepCNIPlugin, verdict.StepIPAM, verdict.StepPodCIDRs, verdict.StepNewNodes,
}

// diagnose adds what Kubernetes says to what the verdict has answered. That it says
// nothing is an answer while it is heard from.
func diagnose(steps []verdict.DiagnosisStep, related []*pb.Related, kubernetes *pb.Kubernetes) []*pb.DiagnosisStep {
	answers := make(map[string]string, len(diagnosisSteps))
	for _, s := range steps {
		answers[s.Step] = s.Answer
	}
	var events, plugins, added []string
	for _, r := range related {
		switch {
		case r.GetKind() == "Event":
			events = append(events, sayEvent(r))
		case r.GetKind() == "Pod", r.GetReason() == "NoCNIPod":
			plugins = append(plugins, r.GetMessage())
		case r.GetKind() == "Node" && r.GetReason() == "Added":
			added = append(added, r.GetMessage())
		}
	}
	live := kubernetes.GetState() == pb.Kubernetes_LIVE
	answer := func(step string, found []string, nothing string, known bool) {
		switch {
		case len(found) > 0:
			answers[step] = sentences(found)
		case live && known:
			answers[step] = nothing
		}
	}
	answer(verdict.StepEvents, events, "The Kubernetes API tells of no event of the owners or of their nodes that would explain it.", !lacksEvents(kubernetes))
	answer(verdict.StepCNIPlugin, plugins, "No pod of a CNI plugin that is known as one is on the owners' nodes.", !full(related))
	answer(verdict.StepNewNodes, added, "None of the owners' nodes is new: the Kubernetes API tells of none that was added in the last hour.", !full(related))

	var out []*pb.DiagnosisStep
	for _, step := range diagnosisSteps {
		if answers[step] != "" {
			out = append(out, &pb.DiagnosisStep{Step: step, Answer: answers[step]})
		}
	}
	return out
}

// sayEvent tells of an event.
func sayEvent(r *pb.Related) string {
	about := r.GetName()
	if r.GetNamespace() != "" {
		about = r.GetNamespace() + "/" + about
	}
	times := ""
	if n := r.GetCount(); n > 1 {
		times = fmt.Sprintf(", %d times", n)
	}
	return fmt.Sprintf("%s of %s%s: %s", r.GetReason(), about, times, r.GetMessage())
}

// sentences puts texts one after the other.
func sentences(texts []string) string {
	out := make([]string, 0, len(texts))
	for _, t := range texts {
		t = strings.TrimSpace(t)
		if t == "" {
			continue
		}
		t = strings.ToUpper(t[:1]) + t[1:]
		if !strings.ContainsAny(t[len(t)-1:], ".?!") {
			t += "."
		}
		out = append(out, t)
	}
	return strings.Join(out, " ")
}

// lacksEvents tells whether events are not heard of.
func lacksEvents(kubernetes *pb.Kubernetes) bool {
	return slices.ContainsFunc(kubernetes.GetProblems(), func(p string) bool { return strings.Contains(p, "events") })
}

// full tells whether there may be more than what is told.
func full(related []*pb.Related) bool { return len(related) >= kube.MostRelated }

func exclusionsProto(all []verdict.Exclusion) []*pb.Exclusion {
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

// allocationProto is an allocation in the contract's form.
func allocationProto(al *verdict.Allocation) *pb.Allocation {
	out := &pb.Allocation{
		Ipam: al.Pool.IPAM, Pool: al.Pool.Name, Node: al.Node, Namespace: al.Namespace, Pod: al.Pod,
		ContainerId: al.ContainerID, Interface: al.Interface, Location: al.Location, AllocatedAt: timestamp(al.AllocatedAt),
	}
	if al.Node == "" && al.Pool.Node != nil {
		out.Node = al.Pool.Node.Name // it books for its own
	}
	return out
}
