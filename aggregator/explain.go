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

	"github.com/ipwitness/ipwitness/aggregator/casefile"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// Explain says why an address is, or is not, in conflict.
func (w witness) Explain(_ context.Context, q *pb.ExplainRequest) (*pb.ExplainResponse, error) {
	addr, err := parseAddress(q.GetAddress())
	if err != nil {
		return nil, err
	}
	out, file, err := w.store.explain(addr, q.GetCase(), w.version)
	if err != nil {
		return nil, status.Error(codes.ResourceExhausted, err.Error())
	}
	if file != nil {
		out.Case = &structpb.Struct{}
		if err := out.Case.UnmarshalJSON(file); err != nil {
			return nil, status.Error(codes.Internal, err.Error())
		}
	}
	return out, nil
}

// explain says why an address is, or is not, in conflict. If it is asked to, it also returns
// the case as a file.
func (s *store) explain(a netip.Addr, asFile bool, version string) (out *pb.ExplainResponse, file []byte, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.table.get(a)
	if e == nil {
		e = &entry{addr: a}
	}
	c := s.caseOf(e, true)
	if asFile {
		if file, err = casefile.Encode(&casefile.File{Version: version, Policy: &s.policy, Case: c}); err != nil {
			return nil, nil, err
		}
	}
	out = explanationProto(a, s.policy.Explain(c), s.ownerProto)
	for _, conflict := range latestFirst(c.Conflicts) {
		out.Conflicts = append(out.Conflicts, s.conflictProto(&conflict))
	}
	out.Coverage = s.coverageNow()
	return out, file, nil
}

// Judge judges a case from a file and explains the judgement as Explain does. It leaves out what
// only an aggregator knows: acknowledgements, and what Kubernetes says besides the case.
func Judge(f *casefile.File) *pb.ExplainResponse {
	out := explanationProto(f.Case.Address, f.Policy.Explain(f.Case), ownerProto)
	conflicts := f.Policy.Judge(f.Case).Conflicts
	for _, c := range f.Case.Conflicts {
		if !slices.ContainsFunc(conflicts, func(judged verdict.Conflict) bool { return judged.ID == c.ID }) {
			conflicts = append(conflicts, c)
		}
	}
	for _, c := range latestFirst(conflicts) {
		out.Conflicts = append(out.Conflicts, conflictProto(&c, ownerProto))
	}
	out.Coverage = &pb.Coverage{Incomplete: f.Case.Incomplete}
	return out
}

// explanationProto returns an explanation in the format of the API.
func explanationProto(a netip.Addr, why verdict.Explanation, owner func(netip.Addr, *verdict.Owner) *pb.Owner) *pb.ExplainResponse {
	out := &pb.ExplainResponse{
		Address: a.String(), Summary: why.Summary, Scope: scopeProto(why.Kind, why.Scope),
		Owners: ownersProto(a, why.Owners, owner),
	}
	for _, step := range why.Steps {
		out.Steps = append(out.Steps, &pb.ExplainResponse_Step{
			Rule: step.Rule, Scope: scopeProto(step.Kind, step.Scope), Applied: step.Applied, Reason: step.Reason,
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
