package live

import (
	"net/netip"
	"slices"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ipwitness/ipwitness/aggregator/explain"
	"github.com/ipwitness/ipwitness/aggregator/facts"
	"github.com/ipwitness/ipwitness/aggregator/judge"
	"github.com/ipwitness/ipwitness/aggregator/kube"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// Converter creates messages that need more than the value that they describe. All fields are
// required, except that Kubernetes is nil if no Kubernetes API is configured. Its methods are called
// with the facts locked.
type Converter struct {
	Facts            *facts.Facts
	Kubernetes       *kube.Cluster
	Findings         *judge.Findings
	Acknowledgements *Acknowledgements
	Recorded         *Recorded
}

// timestamp returns a time in the format of the API, or nil if there is none.
func timestamp(s verdict.Stamp) *timestamppb.Timestamp {
	if s <= 0 {
		return nil
	}
	return &timestamppb.Timestamp{Seconds: int64(s) / 1e9, Nanos: int32(int64(s) % 1e9)}
}

// Scope returns a scope in the format of the API, or nil if there is none.
func Scope(kind verdict.ScopeKind, name string) *pb.Scope {
	if kind == 0 {
		return nil
	}
	return &pb.Scope{Kind: pb.Scope_Kind(kind), Name: name}
}

// Conflict returns a conflict in the format of the API.
func (s *Converter) Conflict(c *verdict.Conflict) *pb.Conflict {
	if c.Recalled {
		if out := s.recalled(c); out != nil {
			return out
		}
	}
	text := explain.Conflict(s.Facts.Policy, c)
	out := Conflict(c, &text, Owners(c.Address, c.Owners, s.Owner))
	out.Acknowledgement = s.Acknowledgements.Of(c.ID)
	out.Related = s.related(out)
	if !c.Expected() {
		out.Diagnosis = diagnosisProto(text.Diagnosis, s.kubernetesOf(c, out.Related))
	}
	return out
}

// Conflict returns a conflict in the format of the API, without the parts that need an aggregator.
func Conflict(c *verdict.Conflict, text *explain.ConflictText, owners []*pb.Owner) *pb.Conflict {
	out := Course(c.Address, &c.Identity, &c.Course)
	out.Cause, out.Summary, out.Remedy = c.Cause, text.Summary, adviceProto(text.Remedy)
	out.Owners, out.Order = owners, c.Order
	out.Because, out.Excluded, out.Allocations = text.Because, exclusionsProto(text.Excluded), allocationsProto(c.Allocations)
	if !c.Expected() {
		out.Runbook = explain.Runbook(c.Cause)
		out.Diagnosis = diagnosisProto(text.Diagnosis, explain.Kubernetes{})
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
		state = pb.Node_DISCONNECTED
	}
	problems := slices.Concat(n.Status.GetProblems(), s.nameProblem(n), s.placeProblem(n), s.tenantProblem(n), floodProblems(n))
	if u := n.Status.GetUnparsed(); u != nil {
		if text := explain.Unparsed(u.GetTags(), u.GetExtensions(), u.GetOptions()); text != "" {
			problems = append(problems, text)
		}
	}
	problems = append(problems, s.memoryProblem(n)...)
	if n.Excess() > 0 {
		problems = append(problems, explain.Text("too-many-claims", "dropped", n.Excess(), "limit", facts.MaxClaims))
	}
	if len(n.Corrections) > 0 {
		problems = append(problems, explain.Text("corrected", "fields", explain.Fields(n.Corrections)))
	}
	out := &pb.Node{
		Name: n.Rec.Name, State: state, Version: n.Version, Kernel: n.Kernel, BootId: n.ID.Boot, Netns: n.ID.Netns,
		Wire: n.Status.GetWire(), Ports: uint32(n.Ports), Claims: uint32(n.Claims()),
		Namespaces: uint32(n.Namespaces()), LostEvents: n.Status.GetLostEvents(), Problems: problems,
		ConnectedAt: timestamp(n.ConnectedAt), LastHeard: timestamp(n.LastHeard), Runtime: n.Status.GetRuntime(),
		Flooding:   flooding(n),
		VipProgram: n.Rec.VIPProgram, VipProgramEnded: n.Rec.VIPProgramEnded,
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
