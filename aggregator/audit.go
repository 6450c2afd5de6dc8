package aggregator

import (
	"context"
	"net/netip"
	"slices"

	"github.com/ipwitness/ipwitness/aggregator/shard"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// audited makes known what the audit of an address found and what is over. The facts are held.
func (s *store) audited(addr netip.Addr, owners []verdict.Owner, found, before []verdict.Finding, contested bool) {
	// First what is over: with the name of its node, a finding gets another id.
	for i := range before {
		f := &before[i]
		if !f.Waiting && !slices.ContainsFunc(found, func(now verdict.Finding) bool { return now.ID == f.ID && !now.Waiting }) {
			s.endFinding(f, contested)
		}
	}
	for i := range found {
		if f := &found[i]; !f.Waiting {
			s.tellFinding(f)
			s.pools.atStake(s.facts.Pool(f.Pool), f, owners, s.clock())
		}
	}
}

// tellFinding makes a finding of the audit known, if it says something new. The facts are held.
func (s *store) tellFinding(f *verdict.Finding) {
	one := *f
	now, was, changed := s.findings.tell(&one)
	if !changed {
		return
	}
	s.pools.count(s.facts.Pool(f.Pool), &one, true, was == nil, s.clock())
	out := event{typ: added}
	if was != nil {
		out.typ, out.found = updated, s.findingProto(was)
	}
	out.finding = s.findingProto(now)
	s.findings.events.Publish(out)
}

func sameFinding(a, b *verdict.Finding) bool {
	return a != nil && a.Severity == b.Severity && a.Pool == b.Pool && sameSpoof(a.Spoof, b.Spoof) &&
		slices.Equal(a.Allocations, b.Allocations) &&
		slices.EqualFunc(a.Owners, b.Owners, func(a, b verdict.Owner) bool { return a.ID == b.ID && !shard.OwnerChanged(&a, &b) })
}

// sameSpoof reports whether two spoofs are equal for a subscriber. A higher frame count is no
// change.
func sameSpoof(a, b *verdict.Spoof) bool {
	return a == nil && b == nil || a != nil && b != nil && slices.Equal(a.MACs, b.MACs)
}

// addressText returns an address in the format of the API; empty for an invalid address.
func addressText(a netip.Addr) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}

// endFinding tells that a finding of the audit is over: it may have become a conflict.
func (s *store) endFinding(f *verdict.Finding, contested bool) {
	over := s.findings.leave(f.ID)
	if over == nil {
		return
	}
	say := s.findingProto(over)
	s.pools.count(s.facts.Pool(f.Pool), f, false, false, s.clock())
	if contested {
		say.Summary = "It has become a conflict. Before: " + say.GetSummary()
	}
	s.findings.events.Publish(event{typ: removed, finding: say, found: say})
}

// findingProto is a finding in the contract's form; the facts are held.
func (s *store) findingProto(f *found) *pb.Finding {
	if f.inWord != nil {
		return f.inWord
	}
	a := f.audit
	if a.Spoof != nil {
		a = s.wholeSpoof(a)
	}
	p := s.facts.Pool(a.Pool)
	var use verdict.PoolUse
	if p != nil {
		use = s.use(p)
	}
	told := s.policy.Tell(a, use)
	out := &pb.Finding{
		Kind: a.Kind, Address: addressText(a.Address), Id: a.ID, Severity: pb.Finding_Severity(a.Severity),
		DetectedAt: timestamp(f.since), Runbook: verdict.Runbook(a.Kind), Owners: s.ownersProto(a.Address, a.Owners),
	}
	setTold(out, told)
	if a.Spoof != nil {
		for _, addr := range a.Spoof.Addresses {
			out.Addresses = append(out.Addresses, addr.String())
		}
	}
	for _, al := range a.Allocations {
		out.Allocations = append(out.Allocations, allocationProto(al))
	}
	for i := range a.Owners {
		if name := a.Owners[i].Node.Name; !slices.Contains(out.Nodes, name) {
			out.Nodes = append(out.Nodes, name)
		}
	}
	if a.Pool != nil {
		if n := a.Pool.Node; n != nil && !slices.Contains(out.Nodes, n.Name) {
			out.Nodes = append(out.Nodes, n.Name)
		}
		if p != nil {
			out.Pool = s.poolProto(p)
		}
	}
	return out
}

// setTold enters what is told of a finding in words.
func setTold(out *pb.Finding, told verdict.Told) {
	out.Summary, out.Evidence, out.Remedy = told.Summary, told.Evidence, remedyProto(told.Remedy)
	for _, fix := range told.Fixes {
		out.Fixes = append(out.Fixes, &pb.Fix{Node: fix.Node, What: fix.What, Command: fix.Command, Manual: fix.Manual})
	}
}

// announceFindings has findings told as Kubernetes Events until ctx ends.
func (s *store) announceFindings(ctx context.Context) {
	s.accountOf(ctx, "Kubernetes Events", s.findings.events, func(e *event) {
		if e.finding != nil {
			s.kube.AnnounceFinding(e.finding, e.typ == removed)
		}
	})
}
