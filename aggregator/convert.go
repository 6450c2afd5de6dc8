package aggregator

import (
	"fmt"
	"net/netip"
	"slices"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

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
	out := ownerProto(a, o)
	out.Intended = s.lacking(o)
	return out
}

// ownerProto returns an owner in the format of the API, without its intended addresses.
func ownerProto(a netip.Addr, o *verdict.Owner) *pb.Owner {
	out := &pb.Owner{
		Address: addressText(a), Scope: scopeProto(o.Scope.Kind, o.Scope.Text()), Node: o.Node.Name,
		Mac: o.MAC.String(), Netns: netns(o),
		Workload: workloadProto(o),
		State:    pb.Owner_State(o.State), Excluded: o.Excluded,
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

// ownersProto returns owners in the format of the API.
func ownersProto(a netip.Addr, owners []verdict.Owner, proto func(netip.Addr, *verdict.Owner) *pb.Owner) []*pb.Owner {
	out := make([]*pb.Owner, 0, len(owners))
	for i := range owners {
		out = append(out, proto(a, &owners[i]))
	}
	return out
}

// conflictProto is a conflict in the contract's form; s.mu is held.
func (s *store) conflictProto(c *verdict.Conflict) *pb.Conflict {
	out := conflictProto(c, s.ownerProto)
	out.Acknowledgement = s.acknowledged[c.ID].message()
	out.Related = s.related(out)
	if !c.Expected() {
		out.Diagnosis = diagnose(c.Diagnosis, out.Related, s.kubernetesOf(c))
	}
	return out
}

// conflictProto returns a conflict in the format of the API, without what only an aggregator
// knows about it.
func conflictProto(c *verdict.Conflict, owner func(netip.Addr, *verdict.Owner) *pb.Owner) *pb.Conflict {
	out := &pb.Conflict{
		Id: c.ID, Episode: c.Episode, Address: c.Address.String(), Scope: scopeProto(c.Kind, c.Scope),
		State: pb.Conflict_State(c.Phase), Cause: c.Cause, Rule: c.Rule, Summary: c.Summary, Remedy: remedyProto(c.Remedy),
		Owners:     ownersProto(c.Address, c.Owners, owner),
		DetectedAt: timestamp(c.DetectedAt), ConfirmedAt: timestamp(c.ConfirmedAt), ResolvedAt: timestamp(c.ResolvedAt),
		LinkProof: pb.LinkProof_Kind(c.LinkProof),
		Order:     c.Order,
		Because:   c.Because, Excluded: exclusionsProto(c.Excluded), Allocations: allocationsProto(c.Allocations),
	}
	if !c.Expected() {
		out.Runbook = verdict.Runbook(c.Cause)
		out.Diagnosis = diagnose(c.Diagnosis, nil, nil)
	}
	return out
}

// remedyProto converts actions to the format of the API.
func remedyProto(actions []verdict.Action) []*pb.Action {
	out := make([]*pb.Action, 0, len(actions))
	for _, a := range actions {
		do := &pb.Action{Text: a.Text, Command: a.Command, Node: a.Node}
		for _, alt := range a.Choice {
			do.Choice = append(do.Choice, &pb.Alternative{When: alt.When, Actions: remedyProto(alt.Actions)})
		}
		out = append(out, do)
	}
	return out
}

// nodeProto is a node in the contract's form; s.mu is held.
func (s *store) nodeProto(n *node) *pb.Node {
	state := pb.Node_LIVE
	if n.rec.Unheard {
		state = pb.Node_UNHEARD
	}
	problems := slices.Concat(n.status.GetProblems(), s.nameProblem(n), s.placeProblem(n), n.floodProblems(), unparsedProblem(n.status.GetUnparsed()), s.memoryProblem(n))
	if n.excess > 0 {
		problems = append(problems, fmt.Sprintf(
			"the aggregator left out %d reports of the wire: it takes %d claims of one node at most; exclude interfaces that are not to be watched",
			n.excess, maxClaims))
	}
	if len(n.corrected) > 0 {
		problems = append(problems, "some texts that it reported cannot be what they were said to be: "+n.corrected.text()+
			"; what does not belong in them is shown as \uFFFD, or left out: see whether something on the node has such a name, or whether the agent's credentials were stolen")
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

// unparsedProblem describes the frames that a node's observer could not parse; it returns
// nothing if there were none.
func unparsedProblem(u *pb.Unparsed) []string {
	var kinds []string
	for _, one := range []struct {
		frames uint64
		what   string
	}{
		{u.GetTags(), "under more VLAN tags than are read"},
		{u.GetExtensions(), "with more IPv6 extension headers than are read"},
		{u.GetOptions(), "with more NDP options than are read"},
	} {
		if one.frames > 0 {
			kinds = append(kinds, fmt.Sprintf("%d %s", one.frames, one.what))
		}
	}
	if len(kinds) == 0 {
		return nil
	}
	return []string{fmt.Sprintf("since the agent started, some frames were not read to the end (%s): their sender can hide claims to addresses in them; "+
		"ordinary hosts do not send such frames: capture them on the node's ports to find the sender", joined(kinds))}
}

// phaseWords are the states of a conflict in logs and metrics.
var phaseWords = map[verdict.Phase]string{
	verdict.Suspected: "suspected", verdict.Confirmed: "confirmed", verdict.Resolved: "resolved",
}
