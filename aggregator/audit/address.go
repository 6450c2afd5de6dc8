package audit

import (
	"slices"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

const (
	// endsWithin is how long a pod that has ended, or that somebody deleted, may hold an
	// address that its IPAM has freed: plugins free it first.
	endsWithin = 30 * time.Second
	// ciliumWithin is how long Cilium may take to tell of the end of an endpoint,
	// ciliumTells how long of a new one: it makes only so many objects in a second.
	ciliumWithin = 30 * time.Second
	ciliumTells  = 5 * time.Minute
	// toldWithin is how long what an IPAM has written into the Kubernetes API may be on
	// its way to us.
	toldWithin = 5 * time.Second
	// statusWithin is how long the Kubernetes API may have an address for a pod that
	// had it before its node was booted.
	statusWithin = 30 * time.Second
	// lookEvery is how often an address is audited again while the Kubernetes API is behind.
	lookEvery = time.Second
)

// A Result is what the audit of one address finds.
type Result struct {
	// Findings are what is wrong. Those that wait are not reported yet, because they may be over
	// in a moment.
	Findings []verdict.Finding
	// Past is what is to be remembered of the owners' allocations.
	Past []verdict.Past
	// Again is when to audit again though nothing changes; 0 for never.
	Again verdict.Stamp
}

// Address compares the owners of an address with what IPAM says, both ways. It finds the next
// duplicate: an address in use that IPAM considers free, or has allocated to another owner and
// frees when that one ends.
func Address(p *verdict.Policy, in *verdict.Case, judged *verdict.Judgement) Result {
	a := auditing{policy: p, in: in, judged: judged, contested: slices.ContainsFunc(judged.Conflicts, func(c verdict.Conflict) bool { return c.Active() })}
	a.past()
	for i := range judged.Owners {
		if o := &judged.Owners[i]; holds(o) {
			a.holder(o)
		}
	}
	for i := range in.Allocations {
		a.allocation(&in.Allocations[i])
	}
	a.twice()
	a.shared()
	a.spoofed()
	for a.together() {
	}
	return a.out
}

// together reports a waiting finding at once if another critical finding of the same pool and owner
// is already reported, as the next audit of the same facts would do. It reports whether it found one.
func (a *auditing) together() bool {
	for i := range a.out.Findings {
		f := &a.out.Findings[i]
		if f.Waiting && slices.ContainsFunc(a.out.Findings, func(b verdict.Finding) bool { return !b.Waiting && about(&b, f) && asBad(&b, f) }) {
			f.Waiting = false
			a.told(f)
			return true
		}
	}
	return false
}

// asBad reports whether two findings are critical and of the same pool.
func asBad(f, other *verdict.Finding) bool {
	return f.Pool.Is(other.Pool) && f.Severity == verdict.Critical && other.Severity == verdict.Critical
}

// told remembers a finding that does not wait.
func (a *auditing) told(f *verdict.Finding) {
	if len(f.Owners) == 1 && f.Kind != verdict.FindingDoubleAllocated {
		a.remember(f)
	}
	f.Past = a.out.Past
}

// auditing is one audit under way.
type auditing struct {
	policy *verdict.Policy
	in     *verdict.Case
	judged *verdict.Judgement
	// contested is set if there is an active conflict, which says more than a finding.
	contested bool
	out       Result
}

// holds tells whether an owner has the address by its kernel, and is compared.
func holds(o *verdict.Owner) bool {
	return o.Namespace != nil && o.Assigned && o.Alive() && o.Excluded == nil && o.Scope.Kind != 0
}

// holder compares who has the address with what IPAM says.
func (a *auditing) holder(o *verdict.Owner) {
	for _, p := range a.poolsOf(o) {
		if o.State == verdict.Unheard || p.Node != nil && p.Node.Unheard {
			a.keep(p, verdict.FindingInUseUnallocated, verdict.FindingBookedElsewhere)
			continue
		}
		if p.State != verdict.PoolKnown && p.State != verdict.PoolMissing {
			a.keep(p, verdict.FindingInUseUnallocated, verdict.FindingBookedElsewhere)
			continue
		}
		severity := verdict.Critical
		if p.IPAM == verdict.Cilium {
			severity = verdict.Warning // its objects tell what it has given, and it goes by what it knows itself
		}
		switch booked, others := a.booked(p, o); {
		case booked:
		case len(others) > 0:
			patience := a.patience(p, o)
			if patience <= toldWithin && slices.ContainsFunc(others, func(al *verdict.Allocation) bool { return al.Names(o) }) {
				patience = 0 // it is what is written for it
			}
			a.find(verdict.FindingBookedElsewhere, severity, p, o, others, max(a.policy.Settle, patience))
		case p.IPAM == verdict.Cilium:
			a.find(verdict.FindingInUseUnallocated, severity, p, o, nil, ciliumTells)
		default:
			a.find(verdict.FindingInUseUnallocated, severity, p, o, nil, a.patience(p, o))
		}
	}
}

// booked tells whether the pool has the address for an owner, and gives what it has
// for others.
func (a *auditing) booked(p *verdict.Pool, o *verdict.Owner) (booked bool, others []*verdict.Allocation) {
	for _, al := range a.in.Allocations {
		if !al.Pool.Is(p) {
			continue
		}
		if al.For(o) {
			booked = true
		} else {
			others = append(others, al.Allocation)
		}
	}
	return booked, others
}

// behind tells whether the Kubernetes API, which has the pool, was not heard since an
// owner has settled: what it says may be of before.
func (a *auditing) behind(p *verdict.Pool, o *verdict.Owner) bool {
	until := a.in.PodsKnownUntil
	return p.Node == nil && until != 0 && until < o.Begun().Add(a.policy.Settle)
}

// patience is how long an owner may hold an address that its pool takes for free:
// plugins free an address before they take it away, and what they write may be read
// later than what they do.
func (a *auditing) patience(p *verdict.Pool, o *verdict.Owner) time.Duration {
	switch {
	case o.Pod != nil && (o.Pod.DeletionTimestamp != 0 || o.Pod.Ended()):
		return endsWithin
	case p.IPAM == verdict.Cilium:
		return ciliumWithin
	case p.State == verdict.PoolMissing, p.LostHeard != 0 && o.Begun() < p.LostHeard:
		return 0 // no pod's end does that
	case p.Node == nil && o.Begun().Add(toldWithin) > a.in.Now:
		return max(a.policy.Settle, toldWithin) // what is written for it may be on its way
	}
	return a.policy.Settle
}

// poolsOf are the pools that will give the address of an owner to somebody else, if
// they take it for free.
func (a *auditing) poolsOf(o *verdict.Owner) (pools []*verdict.Pool) {
	var sure []*verdict.Pool
	networks := o.Networks()
	for _, p := range a.in.Pools {
		if p.Node != nil && !p.Node.Is(o.Node) || !p.Contains(a.in.Address) && !a.has(p) && len(p.Ranges) > 0 {
			continue
		}
		named, unknown := false, true
		for _, n := range networks {
			serves, nobody := p.Serves(n)
			named, unknown = named || serves, unknown && nobody
		}
		switch {
		case named:
			sure = append(sure, p)
		case len(networks) > 0 && !unknown && p.Node == nil && p.IPAM != verdict.Calico:
			// Another network's pool of the cluster: whether they meet is not known.
		case len(p.Ranges) > 0 && p.Meets(o):
			pools = append(pools, p)
		}
	}
	if len(sure) > 0 {
		pools = sure
	}
	i := slices.IndexFunc(pools, func(p *verdict.Pool) bool { booked, _ := a.booked(p, o); return booked })
	if i < 0 {
		return pools
	}
	// It is known which pool gave it. One of another IPAM of the cluster, or of another
	// realm, that has the address in its range is none that does: it is left over, say.
	by := pools[i]
	return slices.DeleteFunc(pools, func(p *verdict.Pool) bool { return p.Node == nil && (p.IPAM != by.IPAM || p.Realm != by.Realm) })
}

// has tells whether a pool has given the address: a range may be unknown.
func (a *auditing) has(p *verdict.Pool) bool {
	return slices.ContainsFunc(a.in.Allocations, func(al verdict.AllocationFacts) bool { return al.Pool.Is(p) })
}

// allocation looks whether somebody holds what IPAM has given.
func (a *auditing) allocation(al *verdict.AllocationFacts) {
	p := al.Pool
	if p.IPAM == verdict.KubernetesAPI || al.Purpose != "" || al.Nameless() {
		return
	}
	held := slices.ContainsFunc(a.judged.Owners, func(o verdict.Owner) bool {
		return o.Alive() && (p.Node == nil || o.Node.Is(p.Node))
	})
	if held || al.Sandbox {
		return // or its sandbox is there, with an interface that is down, or a guest that has the address
	}
	if pod := al.Object; pod != nil && !pod.Ended() && slices.Contains(pod.IPs, a.in.Address) {
		return // or its pod has it, as the API says: a guest that no id of a sandbox leads to
	}
	seen := a.in.Covered
	if p.Node != nil {
		seen = !p.Node.Unheard && covered(a.in, p.Node)
	}
	if p.State != verdict.PoolKnown || !seen {
		a.keep(p, verdict.FindingLeaked)
		a.again(a.in.Now.Add(a.policy.LeakedAfter)) // nothing of the address changes when all nodes are heard
		return
	}
	a.find(verdict.FindingLeaked, verdict.Warning, p, nil, []*verdict.Allocation{al.Allocation}, a.policy.LeakedAfter)
}

// covered reports whether an agent reports for a node and sees what is in its pods.
func covered(in *verdict.Case, n *verdict.Node) bool {
	return slices.ContainsFunc(in.Nodes, func(f verdict.NodeFacts) bool { return f.Node == n.Key() && f.Covered })
}

// twice looks whether IPAM has given the address twice.
func (a *auditing) twice() {
	all := a.in.Allocations
	for i := range all {
		for k := range all[i+1:] {
			al, other := &all[i], &all[i+1+k]
			if shares(al.Pool, other.Pool) && !same(al.Allocation, other.Allocation) && !a.leftBehind(al) && !a.leftBehind(other) {
				patience, severity := a.policy.Settle, verdict.Critical
				switch al.Pool.IPAM {
				case verdict.KubernetesAPI:
					patience = statusWithin
				case verdict.Cilium:
					patience, severity = ciliumWithin, verdict.Warning
				}
				a.find(verdict.FindingDoubleAllocated, severity, al.Pool, a.holderOf(al.Allocation, other.Allocation), []*verdict.Allocation{al.Allocation, other.Allocation}, patience)
				a.again(a.in.Now.Add(statusWithin)) // nothing of the address changes when one of the pods ends
				return
			}
		}
	}
}

// holderOf is who has the address of those that it was given to; nil for nobody.
func (a *auditing) holderOf(allocations ...*verdict.Allocation) *verdict.Owner {
	for i := range a.judged.Owners {
		if o := &a.judged.Owners[i]; holds(o) && slices.ContainsFunc(allocations, func(al *verdict.Allocation) bool { return al.For(o) }) {
			return o
		}
	}
	return nil
}

// leftBehind tells whether an allocation is for a pod that the Kubernetes API has no
// more: nobody will have the address by that.
func (a *auditing) leftBehind(al *verdict.AllocationFacts) bool {
	return al.Object != nil && al.Object.Absent && a.in.PodsKnownUntil > al.Heard.Add(a.policy.Settle)
}

// shares tells whether who has an address of one pool meets who has it of the other.
func shares(p, other *verdict.Pool) bool {
	switch {
	case p.IPAM != other.IPAM || !p.Node.Is(other.Node) || p.Realm != other.Realm:
		return false
	case p.Is(other), p.Node == nil && p.IPAM != verdict.Whereabouts:
		return true
	case p.Network != "" && p.Network == other.Network, p.Node == nil && p.Network == "" && other.Network == "":
		return true
	}
	return p.Routed && other.Routed
}

// shared looks whether several nodes answer on a wire for an address that they have on
// a loopback or dummy device: whoever asks gets one of them by chance.
func (a *auditing) shared() {
	var answering []verdict.Owner
	for _, o := range a.judged.Owners {
		if o.ExcludedBy(verdict.RuleLoopbackOrDummy) && o.Alive() && slices.ContainsFunc(o.Claims, func(c *verdict.Claim) bool { return c.Wire() && !c.Weak() }) {
			answering = append(answering, o)
		}
	}
	if len(answering) >= 2 {
		a.tell(verdict.Finding{Kind: verdict.FindingSharedAddressAnswered, Severity: verdict.Warning, Owners: answering}, "", a.policy.Settle)
	}
}

// spoofed adds the findings about addresses that others claim.
func (a *auditing) spoofed() {
	for i := range a.judged.Spoofs {
		s := a.judged.Spoofs[i]
		f := verdict.Finding{Kind: verdict.FindingAddressSpoofed, Severity: verdict.Critical, Owners: append([]verdict.Owner{s.Owner}, s.Victims...), Spoof: &s}
		a.tell(f, s.Port.Namespace.Node.Name+" "+s.Port.Name+" ", a.policy.Settle)
	}
}

// same tells whether two allocations are for the same, as far as both say who it is.
func same(al, other *verdict.Allocation) bool {
	switch {
	case al.ContainerID != "" && al.ContainerID == other.ContainerID:
		return true
	case al.Pod != "" && other.Pod != "":
		return al.Pod == other.Pod && al.Namespace == other.Namespace
	case al.ContainerID != "" && other.ContainerID != "":
		return false
	}
	return al.Node == other.Node
}

// find notes what is wrong with a pool's address.
func (a *auditing) find(kind string, severity verdict.Severity, p *verdict.Pool, o *verdict.Owner, allocations []*verdict.Allocation, patience time.Duration) {
	f := verdict.Finding{Kind: kind, Severity: severity, Pool: p, Allocations: allocations}
	if o != nil {
		f.Owners = []verdict.Owner{*o}
	}
	a.tell(f, p.Subject()+" ", patience)
}

// tell notes what is wrong: told once it has been so for long enough.
func (a *auditing) tell(f verdict.Finding, subject string, patience time.Duration) {
	f.Address, f.Since = a.in.Address, a.in.Now
	f.ID = a.id(f.Kind, subject)
	if slices.ContainsFunc(a.out.Findings, func(other verdict.Finding) bool { return other.ID == f.ID }) {
		return
	}
	for i := range a.in.Before {
		b := &a.in.Before[i]
		if b.ID == f.ID && about(b, &f) {
			f.Since = b.Since
		}
		if about(b, &f) && !b.Waiting && (b.ID == f.ID || asBad(b, &f)) {
			patience = 0 // what was told stays told, or becomes the next worse thing
		}
	}
	if a.contested && f.Kind != verdict.FindingAddressSpoofed {
		return
	}
	due := f.Since.Add(patience)
	if patience > 0 && len(f.Owners) == 1 && a.behind(f.Pool, &f.Owners[0]) {
		due = max(due, a.in.Now.Add(lookEvery))
	}
	if a.in.Now < due {
		f.Waiting = true
		a.again(due)
		f.Past = a.out.Past
	} else {
		a.told(&f)
	}
	a.out.Findings = append(a.out.Findings, f)
}

// about tells whether two findings of one id are about the same owner, where they are
// about one.
func about(f, other *verdict.Finding) bool {
	return len(f.Owners) == 0 || len(other.Owners) == 0 || f.Owners[0].ID == other.Owners[0].ID
}

// keep carries on what was found while nothing new can be known.
func (a *auditing) keep(p *verdict.Pool, kinds ...string) {
	for _, b := range a.in.Before {
		if !b.Pool.Is(p) || b.Waiting || !slices.Contains(kinds, b.Kind) || a.contested {
			continue
		}
		b.Pool, b.ID = p, a.id(b.Kind, p.Subject()+" ") // as it is now, and its node is called
		if !slices.ContainsFunc(a.out.Findings, func(f verdict.Finding) bool { return f.ID == b.ID }) {
			a.out.Findings = append(a.out.Findings, b)
		}
	}
}

// id returns the id of a finding about the address.
func (a *auditing) id(kind, subject string) string {
	return verdict.FindingID(a.policy.Cluster, kind, subject+a.in.Address.String())
}

func (a *auditing) again(at verdict.Stamp) {
	if a.out.Again == 0 || at < a.out.Again {
		a.out.Again = at
	}
}

// past carries on what is remembered of owners that are alive, and remembers which of
// their allocations vanished.
func (a *auditing) past() {
	for _, p := range a.in.Past {
		if slices.ContainsFunc(a.judged.Owners, func(o verdict.Owner) bool { return o.ID == p.Owner && o.Alive() }) {
			a.out.Past = append(a.out.Past, p)
		}
	}
	for _, al := range a.in.Vanished {
		if al.Pool.State != verdict.PoolKnown && al.Pool.State != verdict.PoolMissing || slices.ContainsFunc(a.in.Allocations, func(other verdict.AllocationFacts) bool { return same(al, other.Allocation) }) {
			continue // it is not known to be gone, or written elsewhere
		}
		for i := range a.judged.Owners {
			o := &a.judged.Owners[i]
			if !holds(o) || al.Pool.Node != nil && !al.Pool.Node.Is(o.Node) {
				continue
			}
			switch {
			case al.For(o):
				a.note(verdict.Past{Owner: o.ID, Kind: verdict.FindingInUseUnallocated, Allocation: al, Since: a.in.Now})
			case a.in.Now >= max(o.Begun(), al.Heard).Add(a.policy.Settle): // before that, it is of whom had the address before
				a.note(verdict.Past{Owner: o.ID, Kind: verdict.FindingBookedElsewhere, Allocation: al, Since: a.in.Now})
			}
		}
	}
}

// remember keeps what is wrong with an owner's address beside it.
func (a *auditing) remember(f *verdict.Finding) {
	past := verdict.Past{Owner: f.Owners[0].ID, Kind: f.Kind, Since: a.in.Now}
	if len(f.Allocations) > 0 {
		past.Allocation = f.Allocations[0]
	}
	a.note(past)
}

// mostPast is how much is remembered of one address.
const mostPast = 8

func (a *auditing) note(p verdict.Past) {
	for i := range a.out.Past {
		b := &a.out.Past[i]
		if b.Owner == p.Owner && b.Kind == p.Kind {
			if b.Allocation == nil {
				b.Allocation = p.Allocation
			}
			return
		}
	}
	if len(a.out.Past) < mostPast {
		a.out.Past = append(a.out.Past, p)
	}
}
