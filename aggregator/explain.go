package aggregator

import (
	"cmp"
	"context"
	"math"
	"net/netip"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/ipwitness/ipwitness/aggregator/audit"
	"github.com/ipwitness/ipwitness/aggregator/casefile"
	"github.com/ipwitness/ipwitness/aggregator/explain"
	"github.com/ipwitness/ipwitness/aggregator/index"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// Explain says why an address is, or is not, in conflict.
func (w witness) Explain(_ context.Context, q *pb.ExplainRequest) (*pb.ExplainResponse, error) {
	addr, err := parseAddress(q.GetAddress())
	if err != nil {
		return nil, err
	}
	out, c := w.store.explain(addr, q.GetCase())
	if c != nil {
		file, err := casefile.Encode(&casefile.File{Version: w.version, Policy: &w.store.policy, Case: c})
		if err != nil {
			return nil, status.Error(codes.ResourceExhausted, err.Error())
		}
		out.Case = &structpb.Struct{}
		if err := out.Case.UnmarshalJSON(file); err != nil {
			return nil, status.Error(codes.Internal, err.Error())
		}
	}
	return out, nil
}

// explain says why an address is, or is not, in conflict. If withCase is set, it also returns a copy
// of the case: encoding it takes too long to hold the facts.
func (s *store) explain(addr netip.Addr, withCase bool) (out *pb.ExplainResponse, copied *verdict.Case) {
	s.facts.RLock()
	defer s.facts.RUnlock()
	a := index.AddressOf(addr)
	c := s.facts.Builder().Explained(a)
	coverage := s.coverageNow()
	c.Incomplete = coverage.GetIncomplete()
	conflicts := s.shards.Conflicts.Of(a)
	for i := range conflicts {
		c.Conflicts = append(c.Conflicts, conflicts[i].Memory())
	}
	c.Past, c.Before = s.shards.Conflicts.Remembered(a)
	if withCase {
		copied = casefile.Copy(c)
	}
	out = explanationProto(&s.policy, s.policy.Explain(c), s.ownerProto)
	for _, one := range latestFirst(conflicts) {
		out.Conflicts = append(out.Conflicts, s.conflictProto(&one))
	}
	out.Coverage = coverage
	return out, copied
}

// Judge judges a case from a file and explains the judgement as Explain does. It leaves out what
// only an aggregator knows: acknowledgements, what Kubernetes says besides the case, and all but
// the course and the owners of conflicts that were over before.
func Judge(f *casefile.File) *pb.ExplainResponse {
	owner := func(a netip.Addr, o *verdict.Owner, all []verdict.Owner) *pb.Owner {
		out := ownerProto(f.Policy, a, o, all)
		out.Intended = intendedProto(missing(a, o))
		return out
	}
	out := explanationProto(f.Policy, f.Policy.Explain(f.Case), owner)
	judged := f.Policy.Judge(f.Case)
	for _, c := range latestFirst(judged.Conflicts) {
		told := explain.Conflict(f.Policy, &c)
		out.Conflicts = append(out.Conflicts, conflictProto(&c, &told, ownersProto(c.Address, c.Owners, owner)))
	}
	for _, m := range f.Case.Conflicts {
		if slices.ContainsFunc(judged.Conflicts, func(c verdict.Conflict) bool { return c.ID == m.ID }) {
			continue
		}
		for _, over := range judged.Ended {
			if over.ID == m.ID {
				m.Phase, m.ResolvedAt = verdict.Resolved, over.At
			}
		}
		c := courseProto(f.Case.Address, &m.Identity, &m.Course)
		for _, member := range m.Owners {
			if i := slices.IndexFunc(judged.Owners, func(o verdict.Owner) bool { return o.ID == member.ID }); i >= 0 {
				c.Owners = append(c.Owners, owner(f.Case.Address, &judged.Owners[i], judged.Owners))
			} else {
				c.Owners = append(c.Owners, goneProto(f.Case.Address, &member))
			}
		}
		c.Summary = explain.Remembered(f.Case.Address, &m)
		out.Conflicts = append(out.Conflicts, c)
	}
	out.Coverage = &pb.Coverage{Incomplete: f.Case.Incomplete}
	return out
}

// missing returns the addresses that an owner of an address was meant to have and has not, as far
// as a case tells: whether it has other addresses of its pod is not known.
func missing(a netip.Addr, o *verdict.Owner) []audit.Meant {
	speaks := slices.ContainsFunc(o.Claims, func(c *verdict.Claim) bool { return c.Wire() && !c.Weak() })
	return slices.DeleteFunc(audit.Intended(o), func(m audit.Meant) bool {
		if m.Address == a {
			return speaks || o.Assigned && m.Source == audit.SourceKubernetes
		}
		return m.Source == audit.SourceKubernetes
	})
}

// goneProto returns an owner that was in a conflict and does not hold the address any more.
func goneProto(a netip.Addr, m *verdict.Member) *pb.Owner {
	o := verdict.Owner{Pod: m.Orphaned}
	if !m.External {
		o.Namespace = &verdict.Namespace{Who: m.Who}
	}
	return &pb.Owner{Address: addressText(a), Node: m.Node, Mac: m.MAC.String(), Workload: workloadProto(&o), State: pb.Owner_GONE}
}

// explanationProto returns an explanation in the format of the API.
func explanationProto(p *verdict.Policy, why verdict.Explanation, owner func(netip.Addr, *verdict.Owner, []verdict.Owner) *pb.Owner) *pb.ExplainResponse {
	told := explain.Address(p, &why)
	out := &pb.ExplainResponse{
		Address: why.Address.String(), Summary: told.Summary, Scope: scopeProto(why.Kind, why.Scope),
		Owners: ownersProto(why.Address, why.Owners, owner),
	}
	for _, step := range told.Steps {
		out.Steps = append(out.Steps, &pb.ExplainResponse_Step{
			Rule: step.Rule, Scope: scopeProto(step.Scope.Kind, step.Scope.Text()), Applied: step.Applied, Reason: step.Reason,
		})
	}
	return out
}

// latestFirst returns the active conflicts, then the others by when they were resolved.
func latestFirst(conflicts []verdict.Conflict) []verdict.Conflict {
	latest := func(c *verdict.Conflict) verdict.Stamp {
		if c.Active() {
			return math.MaxInt64
		}
		return c.ResolvedAt
	}
	return slices.SortedFunc(slices.Values(conflicts), func(a, b verdict.Conflict) int {
		return cmp.Or(cmp.Compare(latest(&b), latest(&a)), cmp.Compare(a.ID, b.ID))
	})
}
