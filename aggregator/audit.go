package aggregator

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// audit compares what IPAM says of an address with who was judged to hold it, and
// makes known what is wrong.
func (s *store) audit(e *entry, in *verdict.Case, judged *verdict.Judgement) {
	if e.booking == nil && len(in.Pools) == 0 && len(judged.Spoofs) == 0 && !sharedInside(e.owners) {
		return
	}
	out := s.policy.Audit(in, judged)
	if e.booking == nil && len(out.Findings) == 0 && len(out.Past) == 0 {
		return
	}
	b := e.booked()
	before := b.found
	if active(e.conflicts()) && !slices.Equal(b.past, out.Past) {
		s.touch(e) // the cause of the conflict may follow from it
	}
	b.vanished, b.past, b.found = nil, out.Past, out.Findings
	// First what is over: with the name of its node, a finding gets another id.
	for i := range before {
		if f := &before[i]; !f.Waiting && !slices.ContainsFunc(b.found, func(now verdict.Finding) bool { return now.ID == f.ID && !now.Waiting }) {
			s.endFinding(e, f)
		}
	}
	for i := range b.found {
		if f := &b.found[i]; !f.Waiting {
			s.tellFinding(e, f)
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
	return slices.ContainsFunc(owners, func(o verdict.Owner) bool { return o.Rule == verdict.RuleLoopbackOrDummy })
}

func active(conflicts []verdict.Conflict) bool {
	return slices.ContainsFunc(conflicts, func(c verdict.Conflict) bool { return c.Active() })
}

// tellFinding makes a finding of the audit known, if it says something new.
func (s *store) tellFinding(e *entry, f *verdict.Finding) {
	place := findingPlace{f.Kind, addressText(f.Address), f.ID}
	was := s.findings.byID[f.ID]
	typ, since := added, s.clock()
	if was != nil {
		typ, since = updated, was.since
		if sameFinding(was.audit, f) {
			was.audit = f // the same, with the newest of its owners
			return
		}
	}
	now := &found{place: place, since: since, audit: f}
	s.findings.enter(now)
	s.countFinding(e, f, was == nil)
	s.findings.hub.publish(event{typ: typ, finding: s.findingProto(now)})
}

func sameFinding(a, b *verdict.Finding) bool {
	return a != nil && a.Severity == b.Severity && a.Pool == b.Pool && sameSpoof(a.Spoof, b.Spoof) &&
		slices.Equal(a.Allocations, b.Allocations) &&
		slices.EqualFunc(a.Owners, b.Owners, func(a, b verdict.Owner) bool { return a.ID == b.ID && !ownerChanged(&a, &b) })
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

// endFinding tells that a finding of the audit is over.
func (s *store) endFinding(e *entry, f *verdict.Finding) {
	over := s.findings.leave(f.ID)
	if over == nil {
		return
	}
	say := s.findingProto(over)
	if e != nil {
		s.countFinding(e, f, false)
		if active(e.conflicts()) {
			say.Summary = "It has become a conflict. Before: " + say.GetSummary()
		}
	}
	s.findings.hub.publish(event{typ: removed, finding: say})
}

// countFinding keeps what a pool's own findings say of its addresses.
func (s *store) countFinding(e *entry, f *verdict.Finding, first bool) {
	p := s.pools.byRec[f.Pool]
	if p == nil {
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
			p.leaked[family(f.Address)]++
		case !there:
			p.leaked[family(f.Address)]--
		}
	default:
		return
	}
	s.lookAt(p)
}

// findingProto is a finding in the contract's form; s.mu is held.
func (s *store) findingProto(f *found) *pb.Finding {
	if f.inWord != nil {
		return f.inWord
	}
	a := f.audit
	if a.Spoof != nil {
		a = s.wholeSpoof(a)
	}
	p := s.pools.byRec[a.Pool]
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

// poolProto is a pool in the contract's form; s.mu is held.
func (s *store) poolProto(p *pool) *pb.Pool {
	use := s.use(p)
	out := &pb.Pool{
		Ipam: p.rec.IPAM, Name: p.rec.Name, Network: p.rec.Network, State: pb.Pool_State(p.rec.State),
		Size: use.Size, Allocated: use.Allocated, Leaked: use.Leaked,
	}
	if p.node != nil {
		out.Node = p.node.rec.Name
	}
	for _, r := range p.rec.Ranges {
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
	scarce, size := p.scarce()
	use := verdict.PoolUse{Size: size, Allocated: uint64(p.allocated.of(scarce)), Leaked: uint64(p.leaked.of(scarce))}
	if scarce != families {
		use.Family = [families]string{"IPv4", "IPv6"}[scarce]
	}
	if rate := p.growth.rate(s.clock(), p.allocated, scarce); rate > 0 && use.Size > use.Allocated {
		use.ExhaustedIn = float64(use.Size-use.Allocated) / rate
	}
	return use
}

// growth is how full a pool was, a minute apart, for the last hour.
type growth struct {
	samples []sample
}

type sample struct {
	at        verdict.Stamp
	allocated tally
}

// see notes how full the pool is before it changes.
func (g *growth) see(now verdict.Stamp, allocated tally) {
	if n := len(g.samples); n > 0 && now.Sub(g.samples[n-1].at) < time.Minute {
		return
	}
	g.samples = append(g.samples, sample{now, allocated})
	for len(g.samples) > 1 && now.Sub(g.samples[1].at) > time.Hour {
		g.samples = g.samples[1:]
	}
}

// rate is by how many addresses of a family the pool grows in a second; 0 where that
// cannot be told.
func (g *growth) rate(now verdict.Stamp, allocated tally, family int) float64 {
	if len(g.samples) == 0 {
		return 0
	}
	first := g.samples[0]
	for _, s := range g.samples {
		if now.Sub(s.at) <= time.Hour {
			break
		}
		first = s
	}
	lasted, grown := now.Sub(first.at), allocated.of(family)-first.allocated.of(family)
	if lasted < time.Minute || grown <= 0 {
		return 0
	}
	return float64(grown) / lasted.Seconds()
}

const (
	// poolPause is how often the findings of one pool are made at most.
	poolPause = 200 * time.Millisecond
	// poolEvery is when those of a pool that grows are made again.
	poolEvery = time.Minute
	// nearlyFull is how much of a pool may be given before that is told, halfFull if it
	// is to be full soon.
	nearlyFull = 0.9
	halfFull   = 0.5
	soon       = time.Hour
	// maxTold is how many addresses are named in one finding.
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
		p.growth.see(now, p.allocated)
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
	use := s.use(p)
	s.poolFinding(p, verdict.FindingIPAMStateLost, verdict.Critical, p.lost(), use)
	s.poolFinding(p, verdict.FindingIPAMUnreadable, verdict.Warning, p.rec.Problem != "" && p.rec.State != verdict.PoolMissing, use)
	share := float64(use.Allocated) / float64(max(use.Size, 1))
	full := use.Size > 0 && (share >= nearlyFull || share >= halfFull && use.ExhaustedIn > 0 && use.ExhaustedIn < soon.Seconds())
	s.poolFinding(p, verdict.FindingPoolExhaustion, verdict.Warning, full, use)
	if use.ExhaustedIn > 0 {
		s.arm(p, now.Add(poolEvery))
	}
}

// lost tells whether all that the pool has given was lost, and some of it is in use. Of
// the cluster's pools nobody says so: one that has nothing of several that pods have has.
// Cilium's records are not what is read of it.
func (p *pool) lost() bool {
	return len(p.atRisk) > 0 && (p.rec.State == verdict.PoolMissing || p.node != nil && p.rec.LostAt != 0 && p.outlived() ||
		p.node == nil && p.rec.IPAM != verdict.Cilium && p.allocated.of(families) == 0 && p.severalOfPods())
}

// severalOfPods tells whether pods have several of the addresses that are at risk: what
// nodes have themselves nobody gave them.
func (p *pool) severalOfPods() bool {
	n := 0
	for e := range p.atRisk {
		if slices.ContainsFunc(e.owners, func(o verdict.Owner) bool { return o.Assigned && o.Workload().Kind == verdict.Pod }) {
			n++
		}
	}
	return n > 1
}

// lostWithin is how long after its record an address may be assigned, which was lost in
// between.
const lostWithin = time.Minute

// outlived tells whether somebody had an address that is at risk when the records were
// lost, by the clock of the node. Some that were lost may never come back, as nobody has
// them any more: what is wrong with others later has another reason.
func (p *pool) outlived() bool {
	for e := range p.atRisk {
		for i := range e.owners {
			if o := &e.owners[i]; o.Assigned && o.Node == p.node.rec && o.AssignedAt() <= p.rec.LostAt.Add(lostWithin) {
				return true
			}
		}
	}
	return false
}

// newlyLost tells whether that is not told yet.
func (s *store) newlyLost(p *pool) bool {
	return p.lost() && s.findings.said(verdict.FindingID(s.policy.Cluster, verdict.FindingIPAMStateLost, p.rec.Subject())) == nil
}

func (s *store) poolFinding(p *pool, kind string, severity verdict.Severity, is bool, use verdict.PoolUse) {
	id := verdict.FindingID(s.policy.Cluster, kind, p.rec.Subject())
	if !is {
		s.findings.drop(id)
		return
	}
	out := &pb.Finding{Id: id, Kind: kind, Severity: pb.Finding_Severity(severity), Pool: s.poolProto(p)}
	var addrs []netip.Addr
	var names []string
	if kind == verdict.FindingIPAMStateLost {
		for e := range p.atRisk {
			addrs = append(addrs, e.addr)
		}
		slices.SortFunc(addrs, netip.Addr.Compare)
		addrs = addrs[:min(len(addrs), maxTold)]
		for _, a := range addrs {
			out.Addresses = append(out.Addresses, a.String())
			names = append(names, holderName(s.table.get(a), p))
		}
	}
	if p.node != nil {
		out.Nodes = []string{p.node.rec.Name}
	}
	setTold(out, verdict.TellPool(kind, &p.rec, use, addrs, names))
	s.findings.put(out)
}

// holderName names who holds an address of a pool.
func holderName(e *entry, p *pool) string {
	for i := range e.owners {
		if o := &e.owners[i]; o.Assigned && (p.node == nil || o.Node == p.node.rec) {
			return o.Call()
		}
	}
	return ""
}

func (s *store) dropPoolFindings(p *pool) {
	for _, kind := range []string{verdict.FindingIPAMStateLost, verdict.FindingIPAMUnreadable, verdict.FindingPoolExhaustion} {
		s.findings.drop(verdict.FindingID(s.policy.Cluster, kind, p.rec.Subject()))
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
