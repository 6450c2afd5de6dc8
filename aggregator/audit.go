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

// audit compares what IPAM says of an address with who was judged to hold it, and
// makes known what is wrong.
func (s *store) audit(e *entry, in *verdict.Case, judged *verdict.Judgement) {
	if e.booking == nil && len(in.Pools) == 0 && len(judged.Spoofs) == 0 && !sharedInside(e.owners) {
		return
	}
	out := audit.Address(&s.policy, in, judged)
	if e.booking == nil && len(out.Findings) == 0 && len(out.Past) == 0 {
		return
	}
	b := e.booked()
	before := b.found
	b.vanished, b.past, b.found = nil, out.Past, out.Findings
	for i := range b.found {
		if f := &b.found[i]; !f.Waiting {
			s.tellFinding(e, f)
		}
	}
	for i := range before {
		if f := &before[i]; !f.Waiting && !slices.ContainsFunc(b.found, func(now verdict.Finding) bool { return now.ID == f.ID && !now.Waiting }) {
			s.endFinding(e, f)
		}
	}
	if out.Again != 0 {
		s.arm(e, out.Again)
	}
	e.unbooked()
}

// sharedInside tells whether an owner is none as its address is on a loopback or dummy
// device.
func sharedInside(owners []verdict.Owner) bool {
	return slices.ContainsFunc(owners, func(o verdict.Owner) bool { return o.ExcludedBy(verdict.RuleLoopbackOrDummy) })
}

func active(conflicts []verdict.Conflict) bool {
	return slices.ContainsFunc(conflicts, func(c verdict.Conflict) bool { return c.Active() })
}

// tellFinding makes a finding known, if it says something new. The entry is that of its address,
// nil for a finding that is not about one.
func (s *store) tellFinding(e *entry, f *verdict.Finding) {
	typ, news := s.findings.put(f)
	if !news {
		return
	}
	s.countFinding(e, f, typ == added)
	s.findings.hub.publish(event{typ: typ, finding: s.findingProto(s.findings.byID[f.ID], false)})
}

// endFinding tells that a finding about an address is over.
func (s *store) endFinding(e *entry, f *verdict.Finding) {
	over := s.findings.leave(f.ID)
	if over == nil {
		return
	}
	s.countFinding(e, f, false)
	s.findings.hub.publish(event{typ: removed, finding: s.findingProto(over, e != nil && active(e.conflicts()))})
}

// dropFinding tells that a finding is over that is not about an address.
func (s *store) dropFinding(id string) {
	if over := s.findings.leave(id); over != nil {
		s.findings.hub.publish(event{typ: removed, finding: s.findingProto(over, false)})
	}
}

// countFinding keeps what a pool's own findings say of its addresses.
func (s *store) countFinding(e *entry, f *verdict.Finding, first bool) {
	p := s.pools.byRec[f.Pool]
	if p == nil || e == nil {
		return
	}
	there := s.findings.byID[f.ID] != nil
	switch f.Kind {
	case verdict.FindingInUseUnallocated:
		if there {
			p.atRisk[e] = struct{}{}
		} else {
			delete(p.atRisk, e)
		}
	case verdict.FindingLeaked:
		switch {
		case first:
			p.leaked[audit.FamilyOf(f.Address)]++
		case !there:
			p.leaked[audit.FamilyOf(f.Address)]--
		}
	default:
		return
	}
	s.lookAt(p)
}

// findingProto is a finding in the contract's form, and whether it has become a conflict; s.mu is
// held.
func (s *store) findingProto(f *found, superseded bool) *pb.Finding {
	a := f.Finding
	if a.Spoof != nil {
		a = s.wholeSpoof(a)
	}
	out := &pb.Finding{
		Kind: a.Kind, Address: f.place.address, Id: a.ID, Severity: pb.Finding_Severity(a.Severity),
		DetectedAt: timestamp(f.since), Runbook: explain.Runbook(a.Kind), Owners: s.ownersProto(a.Address, a.Owners),
	}
	var use verdict.PoolUse
	if p := s.pools.byRec[a.Pool]; p != nil {
		use = s.use(p)
		out.Pool = poolProto(&p.rec, use)
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

// use is how full a pool is.
func (s *store) use(p *pool) verdict.PoolUse {
	return audit.Use(&p.rec, p.allocated, p.leaked, &p.growth, s.clock())
}

const (
	// poolPause is how often the findings of one pool are made at most.
	poolPause = 200 * time.Millisecond
	// poolEvery is when those of a pool that grows are made again.
	poolEvery = time.Minute
	// maxTold is how many nodes are named in one finding.
	maxTold = 1000
)

// lookAt has the pool's own findings made at the end of what is being done.
func (s *store) lookAt(p *pool) {
	if !p.ended && !p.looked {
		p.looked = true
		s.looked = append(s.looked, p)
	}
}

// lookAtPools makes the findings of pools of which something changed.
func (s *store) lookAtPools() {
	now := s.clock()
	for _, p := range s.looked {
		p.looked = false
		p.growth.See(now, p.allocated)
		if next := p.told.Add(poolPause); p.told != 0 && now < next && !s.newlyLost(p) {
			s.arm(p, next)
			continue
		}
		s.checkPool(p, now)
	}
	clear(s.looked)
	s.looked = s.looked[:0]
}

// checkPool makes a pool's own findings.
func (s *store) checkPool(p *pool, now verdict.Stamp) {
	if p.ended {
		return
	}
	p.told = now
	given := s.given(p)
	found := audit.Pool(&s.policy, given)
	for i := range found {
		s.tellFinding(nil, &found[i])
	}
	for _, kind := range audit.PoolKinds() {
		if !slices.ContainsFunc(found, func(f verdict.Finding) bool { return f.Kind == kind }) {
			s.dropFinding(audit.PoolID(&s.policy, kind, &p.rec))
		}
	}
	if given.Use.ExhaustedIn > 0 {
		s.arm(p, now.Add(poolEvery))
	}
}

// given is what a pool has given.
func (s *store) given(p *pool) audit.Given {
	rec := p.rec
	g := audit.Given{Pool: &rec, Use: s.use(p), Allocated: p.allocated.Of(audit.Both)}
	for e := range p.atRisk {
		g.AtRisk = append(g.AtRisk, audit.Risk{Address: e.addr, Owners: e.owners})
	}
	return g
}

// newlyLost tells whether it is not told yet that all that a pool has given was lost.
func (s *store) newlyLost(p *pool) bool {
	return audit.Lost(s.given(p)) && s.findings.said(audit.PoolID(&s.policy, verdict.FindingIPAMStateLost, &p.rec)) == nil
}

func (s *store) dropPoolFindings(p *pool) {
	for _, kind := range audit.PoolKinds() {
		s.dropFinding(audit.PoolID(&s.policy, kind, &p.rec))
	}
}

// announceFindings has findings told as Kubernetes Events until ctx ends.
func (s *store) announceFindings(ctx context.Context) {
	s.accountOf(ctx, "Kubernetes Events", s.findings.hub, func(e *event) {
		if e.finding != nil {
			s.kube.AnnounceFinding(e.finding, e.typ == removed)
		}
	})
}
