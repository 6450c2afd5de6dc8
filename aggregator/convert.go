package aggregator

import (
	"net/netip"
	"slices"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ipwitness/ipwitness/aggregator/explain"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// The other way, from the contract to the verdict, is in ingest.go.

func timestamp(s verdict.Stamp) *timestamppb.Timestamp {
	if s <= 0 {
		return nil
	}
	return &timestamppb.Timestamp{Seconds: int64(s) / 1e9, Nanos: int32(int64(s) % 1e9)}
}

func scopeProto(kind verdict.ScopeKind, name string) *pb.Scope {
	if kind == 0 {
		return nil
	}
	return &pb.Scope{Kind: pb.Scope_Kind(kind), Name: name}
}

// ownerProto is an owner in the contract's form; s.mu is held.
func (s *store) ownerProto(a netip.Addr, o *verdict.Owner) *pb.Owner {
	out := &pb.Owner{
		Address: addressText(a), Scope: scopeProto(o.Scope.Kind, o.Scope.Text()), Node: o.Node.Name,
		Mac: o.MAC.String(), Netns: netns(o),
		Workload: workloadProto(o), Intended: intendedProto(s.lacking(o)),
		State: pb.Owner_State(o.State), Excluded: s.exclusion(a, o),
		AssignedAt: timestamp(o.AssignedAt()),
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
		mac := c.MAC
		if mac == "" {
			mac = c.Interface.MAC
		}
		out.Evidence = append(out.Evidence, &pb.Evidence{
			Kind: pb.Evidence_Kind(c.Kind), FirstSeen: timestamp(c.First), LastSeen: timestamp(c.Last),
			Count: c.Count, Witness: c.Node().Name + "/" + c.Interface.Name, Mac: mac.String(),
			NoOverride: c.NoOverride,
		})
	}
	out.FirstSeen, out.LastSeen = timestamp(first), timestamp(last)
	return out
}

// exclusion says why an owner of an address is not compared; s.mu is held.
func (s *store) exclusion(a netip.Addr, o *verdict.Owner) string {
	if o.Excluded == nil {
		return ""
	}
	var all []verdict.Owner
	if e := s.table.get(a); e != nil {
		all = e.owners
	}
	return explain.Exclusion(&s.policy, o, all)
}

// netns is the inode of an owner's namespace, or its number with the agent.
func netns(o *verdict.Owner) string {
	switch {
	case o.Namespace == nil:
		return ""
	case o.Namespace.Netns != "":
		return o.Namespace.Netns
	}
	return "#" + o.Namespace.ID[len(o.Namespace.Node.Boot)+1:]
}

func (s *store) ownersProto(a netip.Addr, owners []verdict.Owner) []*pb.Owner {
	out := make([]*pb.Owner, 0, len(owners))
	for i := range owners {
		out = append(out, s.ownerProto(a, &owners[i]))
	}
	return out
}

// conflictProto is a conflict in the contract's form; s.mu is held.
func (s *store) conflictProto(c *verdict.Conflict) *pb.Conflict {
	told := explain.Conflict(&s.policy, c)
	out := &pb.Conflict{
		Id: c.ID, Episode: c.Episode, Address: c.Address.String(), Scope: scopeProto(c.Kind, c.Scope),
		State: pb.Conflict_State(c.Phase), Cause: c.Cause, Rule: c.Rule, Summary: told.Summary, Remedy: adviceProto(told.Remedy),
		Owners:     s.ownersProto(c.Address, c.Owners),
		DetectedAt: timestamp(c.DetectedAt), ConfirmedAt: timestamp(c.ConfirmedAt), ResolvedAt: timestamp(c.ResolvedAt),
		Acknowledgement: s.acknowledged[c.ID].message(),
		LinkProof:       pb.LinkProof_Kind(c.LinkProof),
		Order:           c.Order,
		Because:         told.Because, Excluded: exclusionsProto(told.Excluded), Allocations: allocationsProto(c.Allocations),
	}
	out.Related = s.related(out)
	if !c.Expected() {
		out.Runbook = explain.Runbook(c.Cause)
		out.Diagnosis = diagnosisProto(told.Diagnosis, s.kubernetesOf(c, out.Related))
	}
	return out
}

// nodeProto is a node in the contract's form; s.mu is held.
func (s *store) nodeProto(n *node) *pb.Node {
	state := pb.Node_LIVE
	if n.rec.Unheard {
		state = pb.Node_UNHEARD
	}
	problems := slices.Concat(n.status.GetProblems(), s.nameProblem(n), s.placeProblem(n), n.floodProblems())
	if u := n.status.GetUnparsed(); u != nil {
		if text := explain.Unparsed(u.GetTags(), u.GetExtensions(), u.GetOptions()); text != "" {
			problems = append(problems, text)
		}
	}
	problems = append(problems, s.memoryProblem(n)...)
	if n.excess > 0 {
		problems = append(problems, explain.TooManyClaims(n.excess, maxClaims))
	}
	if len(n.corrected) > 0 {
		problems = append(problems, explain.Corrected(n.corrected.text()))
	}
	out := &pb.Node{
		Name: n.rec.Name, State: state, Version: n.version, Kernel: n.kernel, BootId: n.id.boot, Netns: n.id.netns,
		Wire: n.status.GetWire(), Ports: uint32(n.portCount), Claims: uint32(n.claims),
		Namespaces: uint32(n.namespaces.len()), LostEvents: n.status.GetLostEvents(), Problems: problems,
		ConnectedAt: timestamp(n.connectedAt), LastHeard: timestamp(n.lastHeard), Runtime: n.status.GetRuntime(),
		Flooding:   n.flooding(),
		Incomplete: n.incomplete(), LeftOut: uint64(n.leftOut.records + n.leftOut.wire + n.excess),
	}
	if n.rec.SkewKnown {
		out.Skew = durationpb.New(n.rec.Skew)
	}
	if n.session != nil {
		if lag, known := n.session.lag(s.clock()); known {
			out.Lag = durationpb.New(lag)
		}
	}
	return out
}

// phaseWords are the states of a conflict in logs and metrics.
var phaseWords = map[verdict.Phase]string{
	verdict.Suspected: "suspected", verdict.Confirmed: "confirmed", verdict.Resolved: "resolved",
}
