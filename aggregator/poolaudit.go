package aggregator

import (
	"net/netip"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/ipwitness/ipwitness/aggregator/facts"
	"github.com/ipwitness/ipwitness/aggregator/index"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// poolAudits is what is found of pools as a whole.
type poolAudits struct {
	wake chan struct{}
	// inOrder has the places of all pools in the list.
	inOrder *index.Set[poolPlace]
	// looking is held while the findings of pools are made.
	looking sync.Mutex

	mu sync.Mutex
	of map[*facts.Pool]*poolAudit
	// looked are the pools of which something changed, since when there are any, due those that
	// are looked at again at a time.
	looked []*facts.Pool
	since  verdict.Stamp
	due    map[*facts.Pool]verdict.Stamp
}

// poolAudit is what is found of one pool.
type poolAudit struct {
	// leaked counts the allocations that are found to be held by nobody.
	leaked facts.Tally
	// atRisk are the addresses in use that it takes for free.
	atRisk map[netip.Addr]risk
	growth growth
	// told is when its own findings were made.
	told   verdict.Stamp
	looked bool
}

// risk is an address in use that a pool takes for free.
type risk struct {
	// pod is set if a pod has it, holder names its owner.
	pod    bool
	holder string
	// onNode is set if its owner is on the pool's own node, assigned is when the kernel there gave
	// it to the owner.
	onNode   bool
	assigned verdict.Stamp
}

func newPoolAudits() poolAudits {
	return poolAudits{wake: make(chan struct{}, 1), inOrder: index.NewSet(poolPlace.less), of: make(map[*facts.Pool]*poolAudit), due: make(map[*facts.Pool]verdict.Stamp)}
}

// changed has the pool's own findings made when what is being done is judged.
func (a *poolAudits) changed(p *facts.Pool, now verdict.Stamp) {
	if p.Ended {
		return
	}
	a.inOrder.Put(poolPlaceOf(p))
	a.mu.Lock()
	defer a.mu.Unlock()
	a.lookAt(p, now)
}

// lookAt is changed; a.mu is held.
func (a *poolAudits) lookAt(p *facts.Pool, now verdict.Stamp) *poolAudit {
	one := a.of[p]
	if one == nil {
		one = &poolAudit{atRisk: make(map[netip.Addr]risk)}
		a.of[p] = one
	}
	if !one.looked {
		one.looked = true
		if len(a.looked) == 0 {
			a.since = now
		}
		a.looked = append(a.looked, p)
	}
	return one
}

// ended forgets the place of a pool that is no more or is going to have another name.
func (a *poolAudits) ended(p *facts.Pool) { a.inOrder.Delete(poolPlaceOf(p)) }

// atRisk returns the addresses in use that a pool takes for free.
func (s *store) atRisk(p *facts.Pool) []netip.Addr {
	a := &s.pools
	a.mu.Lock()
	defer a.mu.Unlock()
	var addrs []netip.Addr
	if one := a.of[p]; one != nil {
		for addr := range one.atRisk {
			addrs = append(addrs, addr)
		}
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	return addrs
}

// count keeps what a pool's own findings say of its addresses: there is set while f is, first
// if it was not before.
func (a *poolAudits) count(p *facts.Pool, f *verdict.Finding, there, first bool, now verdict.Stamp) {
	if p == nil || f.Kind != verdict.FindingInUseUnallocated && f.Kind != verdict.FindingLeaked {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	one := a.lookAt(p, now)
	switch {
	case f.Kind == verdict.FindingInUseUnallocated && there:
		one.atRisk[f.Address] = riskOf(p, f.Owners)
	case f.Kind == verdict.FindingInUseUnallocated:
		delete(one.atRisk, f.Address)
	case first:
		one.leaked[facts.Family(f.Address)]++
	case !there:
		one.leaked[facts.Family(f.Address)]--
	}
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// atStake keeps who has an address that a pool takes for free: also others than its finding is about.
func (a *poolAudits) atStake(p *facts.Pool, f *verdict.Finding, owners []verdict.Owner, now verdict.Stamp) {
	if p == nil || f.Kind != verdict.FindingInUseUnallocated {
		return
	}
	is := riskOf(p, owners)
	a.mu.Lock()
	defer a.mu.Unlock()
	if one := a.of[p]; one != nil && one.atRisk[f.Address] != is {
		a.lookAt(p, now).atRisk[f.Address] = is
	}
}

func riskOf(p *facts.Pool, owners []verdict.Owner) (r risk) {
	for i := range owners {
		o := &owners[i]
		if !o.Assigned {
			continue
		}
		r.pod = r.pod || o.Workload().Kind == verdict.Pod
		if r.holder == "" && (p.Node == nil || o.Node == p.Node.Rec) {
			r.holder = o.Call()
		}
		if p.Node != nil && o.Node == p.Node.Rec {
			if at := o.AssignedAt(); !r.onNode || at < r.assigned {
				r.onNode, r.assigned = true, at
			}
		}
	}
	return r
}

// use is how full a pool is. The facts are held.
func (s *store) use(p *facts.Pool) verdict.PoolUse {
	scarce, size := p.Scarce()
	use := verdict.PoolUse{Size: size, Allocated: uint64(p.Allocated.Of(scarce))}
	if scarce != facts.Families {
		use.Family = [facts.Families]string{"IPv4", "IPv6"}[scarce]
	}
	s.pools.mu.Lock()
	defer s.pools.mu.Unlock()
	if one := s.pools.of[p]; one != nil {
		use.Leaked = uint64(one.leaked.Of(scarce))
		if rate := one.growth.rate(s.clock(), p.Allocated, scarce); rate > 0 && use.Size > use.Allocated {
			use.ExhaustedIn = float64(use.Size-use.Allocated) / rate
		}
	}
	return use
}

// growth is how full a pool was, a minute apart, for the last hour.
type growth struct {
	samples []sample
}

type sample struct {
	at        verdict.Stamp
	allocated facts.Tally
}

// see notes how full the pool is before it changes.
func (g *growth) see(now verdict.Stamp, allocated facts.Tally) {
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
func (g *growth) rate(now verdict.Stamp, allocated facts.Tally, family int) float64 {
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
	lasted, grown := now.Sub(first.at), allocated.Of(family)-first.allocated.Of(family)
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
	// maxExhaustion is as far as is looked ahead.
	maxExhaustion = 365 * 24 * time.Hour
)

// collectFor is how long it is waited for more changes while addresses are judged.
const collectFor = 20 * time.Millisecond

// ringPools makes the findings of pools that are due, and of those of which something changed
// though no message came.
func (s *store) ringPools() verdict.Stamp {
	a := &s.pools
	a.mu.Lock()
	at := a.since.Add(collectFor)
	wait := len(a.looked) > 0 && s.clock() < at
	a.mu.Unlock()
	if wait && s.shards.Waiting() > 0 {
		return at
	}
	return s.lookAtPools()
}

// lookAtPools makes the findings of pools of which something changed, and of those that are due.
// It returns when the next one is; 0 for never.
func (s *store) lookAtPools() (next verdict.Stamp) {
	a := &s.pools
	a.mu.Lock()
	idle := len(a.looked)+len(a.due) == 0
	a.mu.Unlock()
	if idle {
		return 0
	}
	a.looking.Lock()
	defer a.looking.Unlock()
	now := s.clock()
	a.mu.Lock()
	some := a.looked
	a.looked = nil
	for p, at := range a.due {
		if at <= now {
			delete(a.due, p)
			if one := a.of[p]; one != nil && !one.looked {
				some = append(some, p)
			}
		}
	}
	for _, p := range some {
		a.of[p].looked = false
	}
	a.mu.Unlock()
	for _, p := range some {
		s.lookAtPool(p, now)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, at := range a.due {
		if next == 0 || at < next {
			next = at
		}
	}
	return next
}

// rested has the pools looked at of which something changed.
func (a *poolAudits) rested() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.looked) > 0 {
		select {
		case a.wake <- struct{}{}:
		default:
		}
	}
}

// arm has a pool looked at again.
func (a *poolAudits) arm(p *facts.Pool, at verdict.Stamp) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if was, set := a.due[p]; !set || at < was {
		a.due[p] = at
	}
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// lookAtPool makes a pool's own findings, but not too often.
func (s *store) lookAtPool(p *facts.Pool, now verdict.Stamp) {
	s.facts.RLock()
	defer s.facts.RUnlock()
	a := &s.pools
	a.mu.Lock()
	one := a.of[p]
	if p.Ended {
		delete(a.of, p)
		delete(a.due, p)
		a.mu.Unlock()
		return
	}
	one.growth.see(now, p.Allocated)
	told := one.told
	a.mu.Unlock()
	if next := told.Add(poolPause); told != 0 && now < next && !s.newlyLost(p) {
		a.arm(p, next)
		return
	}
	a.mu.Lock()
	one.told = now
	a.mu.Unlock()
	s.checkPool(p, now)
}

// checkPool makes a pool's own findings. The facts are held.
func (s *store) checkPool(p *facts.Pool, now verdict.Stamp) {
	use := s.use(p)
	s.poolFinding(p, verdict.FindingIPAMStateLost, verdict.Critical, s.lost(p), use)
	s.poolFinding(p, verdict.FindingIPAMUnreadable, verdict.Warning, p.Rec.Problem != "" && p.Rec.State != verdict.PoolMissing, use)
	share := float64(use.Allocated) / float64(max(use.Size, 1))
	full := use.Size > 0 && (share >= nearlyFull || share >= halfFull && use.ExhaustedIn > 0 && use.ExhaustedIn < soon.Seconds())
	s.poolFinding(p, verdict.FindingPoolExhaustion, verdict.Warning, full, use)
	if use.ExhaustedIn > 0 {
		s.pools.arm(p, now.Add(poolEvery))
	}
}

// lost reports whether all that the pool has given was lost, and some of it is in use. Of
// the cluster's pools nobody says so: one that has nothing of several that pods have has.
// Cilium's records are not what is read of it.
func (s *store) lost(p *facts.Pool) bool {
	a := &s.pools
	a.mu.Lock()
	defer a.mu.Unlock()
	one := a.of[p]
	if one == nil || len(one.atRisk) == 0 {
		return false
	}
	return p.Rec.State == verdict.PoolMissing || p.Node != nil && p.Rec.LostAt != 0 && one.outlived(p.Rec.LostAt) ||
		p.Node == nil && p.Rec.IPAM != verdict.Cilium && p.Allocated.Of(facts.Families) == 0 && one.severalOfPods()
}

// severalOfPods reports whether pods have several of the addresses that are at risk: what
// nodes have themselves nobody gave them.
func (a *poolAudit) severalOfPods() bool {
	n := 0
	for _, r := range a.atRisk {
		if r.pod {
			n++
		}
	}
	return n > 1
}

// lostWithin is how long after its record an address may be assigned, which was lost in
// between.
const lostWithin = time.Minute

// outlived reports whether somebody had an address that is at risk when the records were
// lost, by the clock of the node. Some that were lost may never come back, as nobody has
// them any more: what is wrong with others later has another reason.
func (a *poolAudit) outlived(lostAt verdict.Stamp) bool {
	for _, r := range a.atRisk {
		if r.onNode && r.assigned <= lostAt.Add(lostWithin) {
			return true
		}
	}
	return false
}

// newlyLost reports whether that is not told yet.
func (s *store) newlyLost(p *facts.Pool) bool {
	return s.lost(p) && s.findings.said(verdict.FindingID(s.policy.Cluster, verdict.FindingIPAMStateLost, p.Rec.Subject())) == nil
}

func (s *store) poolFinding(p *facts.Pool, kind string, severity verdict.Severity, is bool, use verdict.PoolUse) {
	id := verdict.FindingID(s.policy.Cluster, kind, p.Rec.Subject())
	if !is {
		s.findings.drop(id)
		return
	}
	out := &pb.Finding{Id: id, Kind: kind, Severity: pb.Finding_Severity(severity), Pool: s.poolProto(p)}
	var addrs []netip.Addr
	var names []string
	if kind == verdict.FindingIPAMStateLost {
		addrs = s.atRisk(p)
		addrs = addrs[:min(len(addrs), maxTold)]
		for _, a := range addrs {
			out.Addresses = append(out.Addresses, a.String())
			names = append(names, s.pools.holder(p, a))
		}
	}
	if p.Node != nil {
		out.Nodes = []string{p.Node.Rec.Name}
	}
	setTold(out, verdict.TellPool(kind, &p.Rec, use, addrs, names))
	s.findings.put(out)
}

// holder names who holds an address of a pool that it takes for free.
func (a *poolAudits) holder(p *facts.Pool, addr netip.Addr) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.of[p].atRisk[addr].holder
}

func (s *store) dropPoolFindings(p *facts.Pool) {
	for _, kind := range []string{verdict.FindingIPAMStateLost, verdict.FindingIPAMUnreadable, verdict.FindingPoolExhaustion} {
		s.findings.drop(verdict.FindingID(s.policy.Cluster, kind, p.Rec.Subject()))
	}
}

// poolProto is a pool in the contract's form. The facts are held.
func (s *store) poolProto(p *facts.Pool) *pb.Pool {
	use := s.use(p)
	out := &pb.Pool{
		Ipam: p.Rec.IPAM, Name: p.Rec.Name, Network: p.Rec.Network, State: pb.Pool_State(p.Rec.State),
		Size: use.Size, Allocated: use.Allocated, Leaked: use.Leaked,
	}
	if p.Node != nil {
		out.Node = p.Node.Rec.Name
	}
	for _, r := range p.Rec.Ranges {
		out.Ranges = append(out.Ranges, r.String())
	}
	if use.ExhaustedIn > 0 {
		out.ExhaustedIn = durationpb.New(time.Duration(min(use.ExhaustedIn, maxExhaustion.Seconds()) * float64(time.Second)))
	}
	return out
}
