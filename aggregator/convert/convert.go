// Package convert makes the messages of the API from facts and judgements: owners, conflicts,
// findings, nodes, pools. Package explain provides the words. The opposite direction, from the
// messages of agents to facts, is in package facts.
package convert

import (
	"net/netip"
	"slices"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ipwitness/ipwitness/aggregator/acknowledge"
	"github.com/ipwitness/ipwitness/aggregator/explain"
	"github.com/ipwitness/ipwitness/aggregator/facts"
	"github.com/ipwitness/ipwitness/aggregator/findings"
	"github.com/ipwitness/ipwitness/aggregator/kube"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// Converter makes messages that need more than the value that they describe. All fields are
// required, but Kubernetes is nil if there is none to ask. Its methods are called with the facts
// held.
type Converter struct {
	Facts            *facts.Facts
	Kubernetes       *kube.Cluster
	Findings         *findings.Findings
	Acknowledgements *acknowledge.Acknowledgements
}

// timestamp returns a time in the format of the API; nil for none.
func timestamp(s verdict.Stamp) *timestamppb.Timestamp {
	if s <= 0 {
		return nil
	}
	return &timestamppb.Timestamp{Seconds: int64(s) / 1e9, Nanos: int32(int64(s) % 1e9)}
}

// timestamps caches the times that repeat within one message, so that they share a record.
type timestamps struct {
	at    [4]verdict.Stamp
	proto [4]*timestamppb.Timestamp
	count int
}

// of returns a time in the format of the API.
func (t *timestamps) of(s verdict.Stamp) *timestamppb.Timestamp {
	if i := slices.Index(t.at[:t.count], s); i >= 0 {
		return t.proto[i]
	}
	made := timestamp(s)
	if t.count < len(t.at) {
		t.at[t.count], t.proto[t.count] = s, made
		t.count++
	}
	return made
}

// Scope returns a scope in the format of the API; nil for none.
func Scope(kind verdict.ScopeKind, name string) *pb.Scope {
	if kind == 0 {
		return nil
	}
	return &pb.Scope{Kind: pb.Scope_Kind(kind), Name: name}
}

// Owner returns an owner in the format of the API. all are the owners of the address.
func (s *Converter) Owner(a netip.Addr, o *verdict.Owner, all []verdict.Owner) *pb.Owner {
	out := Owner(s.Facts.Policy, a, o, all)
	out.Intended = intendedProto(s.Findings.Intended.Lacking(o))
	return out
}

// Owner returns an owner in the format of the API, without its intended addresses. all are the
// owners of the address.
func Owner(p *verdict.Policy, a netip.Addr, o *verdict.Owner, all []verdict.Owner) *pb.Owner {
	var times timestamps
	out := &pb.Owner{
		Address: addressText(a), Scope: Scope(o.Scope.Kind, o.Scope.Text()), Node: o.Node.Name,
		Mac: o.MAC.String(), Netns: netns(o),
		Workload: workloadProto(o),
		State:    pb.Owner_State(o.State), Excluded: explain.Exclusion(p, o, all),
		AssignedAt: times.of(o.AssignedAt()),
		Evidence:   make([]*pb.Evidence, 0, len(o.Claims)),
	}
	if i := o.Interface; o.Namespace != nil && i.Namespace.ID == o.ID {
		out.Interface, out.HostInterface = i.Name, i.HostInterface
	} else {
		out.HostInterface = i.Name // the port its frames enter by
	}
	var first, last verdict.Stamp
	for _, c := range o.Claims {
		if c.First != 0 && (first == 0 || c.First < first) {
			first = c.First
		}
		last = max(last, c.Last)
		mac, macText := c.MAC, out.Mac
		if mac == "" {
			mac = c.Interface.MAC
		}
		if mac != o.MAC {
			macText = mac.String()
		}
		out.Evidence = append(out.Evidence, &pb.Evidence{
			Kind: pb.Evidence_Kind(c.Kind), FirstSeen: times.of(c.First), LastSeen: times.of(c.Last),
			Count: c.Count, Witness: c.Node().Name + "/" + c.Interface.Name, Mac: macText,
			NoOverride: c.NoOverride,
		})
	}
	out.FirstSeen, out.LastSeen = times.of(first), times.of(last)
	return out
}

// netns returns the inode of an owner's namespace, or the number that its agent gave it.
func netns(o *verdict.Owner) string {
	switch {
	case o.Namespace == nil:
		return ""
	case o.Namespace.Netns != "":
		return o.Namespace.Netns
	}
	return "#" + o.Namespace.ID[len(o.Namespace.Node.Boot)+1:]
}

// Owners returns the owners of an address in the format of the API.
func Owners(a netip.Addr, owners []verdict.Owner, proto func(netip.Addr, *verdict.Owner, []verdict.Owner) *pb.Owner) []*pb.Owner {
	out := make([]*pb.Owner, 0, len(owners))
	for i := range owners {
		out = append(out, proto(a, &owners[i], owners))
	}
	return out
}

// Conflict returns a conflict in the format of the API.
func (s *Converter) Conflict(c *verdict.Conflict) *pb.Conflict {
	told := explain.Conflict(s.Facts.Policy, c)
	out := Conflict(c, &told, Owners(c.Address, c.Owners, s.Owner))
	out.Acknowledgement = s.Acknowledgements.Of(c.ID)
	out.Related = s.related(out)
	if !c.Expected() {
		out.Diagnosis = diagnosisProto(told.Diagnosis, s.kubernetesOf(c, out.Related))
	}
	return out
}

// Conflict returns a conflict in the format of the API, without what only an aggregator
// knows about it.
func Conflict(c *verdict.Conflict, told *explain.ToldConflict, owners []*pb.Owner) *pb.Conflict {
	out := Course(c.Address, &c.Identity, &c.Course)
	out.Cause, out.Summary, out.Remedy = c.Cause, told.Summary, adviceProto(told.Remedy)
	out.Owners, out.Order = owners, c.Order
	out.Because, out.Excluded, out.Allocations = told.Because, exclusionsProto(told.Excluded), allocationsProto(c.Allocations)
	if !c.Expected() {
		out.Runbook = explain.Runbook(c.Cause)
		out.Diagnosis = diagnosisProto(told.Diagnosis, explain.Kubernetes{})
	}
	return out
}

// Course returns the remembered course of a conflict about an address in the format of the API.
func Course(a netip.Addr, id *verdict.Identity, c *verdict.Course) *pb.Conflict {
	return &pb.Conflict{
		Id: id.ID, Episode: id.Episode, Address: a.String(), Scope: Scope(id.Kind, id.Scope),
		State: pb.Conflict_State(c.Phase), Rule: c.Rule, LinkProof: pb.LinkProof_Kind(c.LinkProof),
		DetectedAt: timestamp(c.DetectedAt), ConfirmedAt: timestamp(c.ConfirmedAt), ResolvedAt: timestamp(c.ResolvedAt),
	}
}

// Node returns a node in the format of the API.
func (s *Converter) Node(n *facts.Node) *pb.Node {
	state := pb.Node_LIVE
	if n.Rec.Unheard {
		state = pb.Node_UNHEARD
	}
	problems := slices.Concat(n.Status.GetProblems(), s.nameProblem(n), s.placeProblem(n), floodProblems(n))
	if u := n.Status.GetUnparsed(); u != nil {
		if text := explain.Unparsed(u.GetTags(), u.GetExtensions(), u.GetOptions()); text != "" {
			problems = append(problems, text)
		}
	}
	problems = append(problems, s.memoryProblem(n)...)
	if n.Excess() > 0 {
		problems = append(problems, explain.TooManyClaims(n.Excess(), facts.MaxClaims))
	}
	if len(n.Corrections) > 0 {
		problems = append(problems, explain.Corrected(n.Corrections))
	}
	out := &pb.Node{
		Name: n.Rec.Name, State: state, Version: n.Version, Kernel: n.Kernel, BootId: n.ID.Boot, Netns: n.ID.Netns,
		Wire: n.Status.GetWire(), Ports: uint32(n.Ports), Claims: uint32(n.Claims()),
		Namespaces: uint32(n.Namespaces()), LostEvents: n.Status.GetLostEvents(), Problems: problems,
		ConnectedAt: timestamp(n.ConnectedAt), LastHeard: timestamp(n.LastHeard), Runtime: n.Status.GetRuntime(),
		Flooding:   flooding(n),
		Incomplete: n.Incomplete(), LeftOut: uint64(n.LeftOut().Records + n.LeftOut().Wire + n.Excess()),
	}
	if n.Rec.SkewKnown {
		out.Skew = durationpb.New(n.Rec.Skew)
	}
	if n.Peer != nil {
		if lag, known := n.Peer.Lag(s.Facts.Clock()); known {
			out.Lag = durationpb.New(lag)
		}
	}
	return out
}

// addressText returns an address in the format of the API; empty for an invalid address.
func addressText(a netip.Addr) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}
