package convert

import (
	"net/netip"

	"github.com/ipwitness/ipwitness/aggregator/explain"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// Explanation returns an explanation in the format of the API.
func Explanation(p *verdict.Policy, why verdict.Explanation, owner func(netip.Addr, *verdict.Owner, []verdict.Owner) *pb.Owner) *pb.ExplainResponse {
	told := explain.Address(p, &why)
	out := &pb.ExplainResponse{
		Address: why.Address.String(), Summary: told.Summary, Scope: Scope(why.Kind, why.Scope),
		Owners: Owners(why.Address, why.Owners, owner),
	}
	for _, step := range told.Steps {
		out.Steps = append(out.Steps, &pb.ExplainResponse_Step{
			Rule: step.Rule, Scope: Scope(step.Scope.Kind, step.Scope.Text()), Applied: step.Applied, Reason: step.Reason,
		})
	}
	return out
}
