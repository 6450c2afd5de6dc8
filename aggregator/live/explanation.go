package live

import (
	"net/netip"
	"slices"

	"github.com/ipwitness/ipwitness/aggregator/audit"
	"github.com/ipwitness/ipwitness/aggregator/explain"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// Explanation returns an explanation in the format of the API.
func Explanation(p *verdict.Policy, why verdict.Explanation, owner func(netip.Addr, *verdict.Owner, []verdict.Owner) *pb.Owner) *pb.ExplainResponse {
	text := explain.Address(p, &why)
	out := &pb.ExplainResponse{
		Address: why.Address.String(), Summary: text.Summary, Scope: Scope(why.Kind, why.Scope),
		Owners: Owners(why.Address, why.Owners, owner),
	}
	for _, step := range text.Steps {
		out.Steps = append(out.Steps, &pb.ExplainResponse_Step{
			Rule: step.Rule, Scope: Scope(step.Scope.Kind, step.Scope.Text()), Applied: step.Applied, Reason: step.Reason,
		})
	}
	return out
}

// CaseOwner returns an owner of a case in the format of the API, with its missing intended
// addresses as far as the case contains them. all are the owners of the address.
func CaseOwner(p *verdict.Policy, a netip.Addr, o *verdict.Owner, all []verdict.Owner) *pb.Owner {
	out := Owner(p, a, o, all)
	out.Intended = intendedProto(missing(a, o))
	return out
}

// missing returns the intended addresses that an owner lacks, as far as a case shows them. Whether
// the owner has the other addresses of its pod is unknown.
func missing(a netip.Addr, o *verdict.Owner) []audit.Meant {
	speaks := slices.ContainsFunc(o.Claims, func(c *verdict.Claim) bool { return c.Wire() && !c.Weak() })
	return slices.DeleteFunc(audit.Intended(o), func(m audit.Meant) bool {
		if m.Address == a {
			return speaks || o.Assigned && m.Source == audit.SourceKubernetes
		}
		return m.Source == audit.SourceKubernetes
	})
}

// Gone returns an owner that was in a conflict and no longer holds the address.
func Gone(a netip.Addr, m *verdict.Member) *pb.Owner {
	o := verdict.Owner{Pod: m.Orphaned}
	if !m.External {
		o.Namespace = &verdict.Namespace{Who: m.Who}
	}
	return &pb.Owner{Address: addressText(a), Node: m.Node, Mac: m.MAC.String(), Workload: workloadProto(&o), State: pb.Owner_GONE}
}
