package aggregator

import (
	"context"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/ipwitness/ipwitness/aggregator/audit"
	"github.com/ipwitness/ipwitness/aggregator/explain"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// maxTold is how many nodes are named in one finding.
const maxTold = 1000

// audited makes known what the audit of an address found and what is over. The facts are held.
func (s *store) audited(owners []verdict.Owner, found, before []verdict.Finding, contested bool) {
	// First what is over: with the name of its node, a finding gets another id.
	for i := range before {
		f := &before[i]
		if !f.Waiting && !slices.ContainsFunc(found, func(now verdict.Finding) bool { return now.ID == f.ID && !now.Waiting }) {
			s.endFinding(f.ID, contested)
		}
	}
	for i := range found {
		if f := &found[i]; !f.Waiting {
			s.tellFinding(f)
			s.pools.atStake(s.facts.Pool(f.Pool), f, owners, s.clock())
		}
	}
}

// tellFinding makes a finding known, if it says something new. The facts are held.
func (s *store) tellFinding(f *verdict.Finding) {
	one := *f
	now, was, news := s.findings.put(&one)
	if !news {
		return
	}
	s.pools.count(s.facts.Pool(f.Pool), &one, true, was == nil, s.clock())
	out := event{typ: added, matter: matterOf(s.whole(&one)), finding: s.findingProto(now, false)}
	if was != nil {
		out.typ, out.found = updated, matterOf(s.whole(was.Finding))
	}
	s.findings.events.Publish(out)
}

// endFinding tells that a finding is over: it may have become a conflict. The facts are held.
func (s *store) endFinding(id string, superseded bool) {
	over := s.findings.leave(id)
	if over == nil {
		return
	}
	s.pools.count(s.facts.Pool(over.Pool), over.Finding, false, false, s.clock())
	last := matterOf(s.whole(over.Finding))
	s.findings.events.Publish(event{typ: removed, finding: s.findingProto(over, superseded), matter: last, found: last})
}

// findingProto is a finding in the contract's form, and whether it has become a conflict. The facts
// are held.
func (s *store) findingProto(f *found, superseded bool) *pb.Finding {
	a := s.whole(f.Finding)
	out := &pb.Finding{
		Kind: a.Kind, Address: f.place.address, Id: a.ID, Severity: pb.Finding_Severity(a.Severity),
		DetectedAt: timestamp(f.since), Runbook: explain.Runbook(a.Kind), Owners: ownersProto(a.Address, a.Owners, s.ownerProto),
	}
	var use verdict.PoolUse
	if p := s.facts.Pool(a.Pool); p != nil {
		use = s.use(p)
		out.Pool = poolProto(&p.Rec, use)
	} else if a.Stock != nil {
		out.Pool = poolProto(a.Pool, a.Stock.Use)
	}
	told := explain.Finding(a, use)
	if superseded {
		told = told.Superseded()
	}
	out.Summary, out.Evidence, out.Remedy = told.Summary, told.Evidence, adviceProto(told.Remedy)
	for _, fix := range told.Fixes {
		out.Fixes = append(out.Fixes, &pb.Fix{Node: fix.Node, What: fix.What, Command: fix.Command, Manual: fix.Manual})
	}
	for _, addr := range audit.Addresses(a) {
		out.Addresses = append(out.Addresses, addr.String())
	}
	for _, al := range a.Allocations {
		out.Allocations = append(out.Allocations, allocationProto(al))
	}
	nodes := audit.Nodes(a)
	out.Nodes = nodes[:min(len(nodes), maxTold)]
	return out
}

// adviceProto converts the actions for a finding to the format of the API.
func adviceProto(actions []explain.Action) []*pb.Action {
	out := make([]*pb.Action, 0, len(actions))
	for _, a := range actions {
		do := &pb.Action{Text: a.Text, Command: a.Command, Node: a.Node}
		for _, alt := range a.Choice {
			do.Choice = append(do.Choice, &pb.Alternative{When: alt.When, Actions: adviceProto(alt.Actions)})
		}
		out = append(out, do)
	}
	return out
}

// poolProto is a pool in the contract's form, with how full it is.
func poolProto(p *verdict.Pool, use verdict.PoolUse) *pb.Pool {
	out := &pb.Pool{
		Ipam: p.IPAM, Name: p.Name, Network: p.Network, State: pb.Pool_State(p.State),
		Size: use.Size, Allocated: use.Allocated, Leaked: use.Leaked,
	}
	if p.Node != nil {
		out.Node = p.Node.Name
	}
	for _, r := range p.Ranges {
		out.Ranges = append(out.Ranges, r.String())
	}
	if use.ExhaustedIn > 0 {
		out.ExhaustedIn = durationpb.New(time.Duration(min(use.ExhaustedIn, maxExhaustion.Seconds()) * float64(time.Second)))
	}
	return out
}

// maxExhaustion is as far as is looked ahead.
const maxExhaustion = 365 * 24 * time.Hour

// announceFindings has findings told as Kubernetes Events until ctx ends.
func (s *store) announceFindings(ctx context.Context) {
	s.accountOf(ctx, "Kubernetes Events", s.findings.events, func(e *event) {
		if e.finding != nil {
			s.kube.AnnounceFinding(e.finding, e.typ == removed)
		}
	})
}
