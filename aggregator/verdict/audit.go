package verdict

import (
	"slices"
	"strings"
	"time"
)

// The audit compares what IPAM says of an address with who holds it, both ways. It
// finds the next duplicate: an address in use that IPAM takes for free, or has for
// somebody else and will free with that.

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
)

// Audit is what the audit of one address finds.
type Audit struct {
	// Findings are what is wrong. Those that wait are not told yet: they may be over
	// in a moment.
	Findings []Finding
	Past     []Past
	// Again is when to audit again though nothing changes; 0 for never.
	Again Stamp
}

// Audit compares the owners of an address, as Judge found them, with what IPAM says.
func (p *Policy) Audit(in *Case, judged *Judgement) Audit {
	a := auditing{policy: p, in: in, judged: judged, contested: slices.ContainsFunc(judged.Conflicts, func(c Conflict) bool { return c.Active() })}
	a.past()
	for i := range judged.Owners {
		if o := &judged.Owners[i]; o.holds() {
			a.holder(o)
		}
	}
	for i := range in.Allocations {
		a.allocation(&in.Allocations[i])
	}
	a.twice()
	a.shared()
	a.spoofed()
	return a.out
}

// auditing is one audit under way.
type auditing struct {
	policy *Policy
	in     *Case
	judged *Judgement
	// contested is set if there is an active conflict, which says more than a finding.
	contested bool
	out       Audit
}

// holds tells whether an owner has the address by its kernel, and is compared.
func (o *Owner) holds() bool {
	return o.Namespace != nil && o.Assigned && o.Alive() && o.Excluded == "" && o.Scope.Kind != 0
}

// networks are those that gave the owner its address, as CNI results name them.
func (o *Owner) networks() (names []string) {
	for _, c := range o.Claims {
		if c.Kind == Assigned && c.Network != "" && c.Network != networkOfCRI && !slices.Contains(names, c.Network) {
			names = append(names, c.Network)
		}
	}
	return names
}

// networkOfCRI stands for a network of which only the container runtime tells.
const networkOfCRI = "cri"

// holder compares who has the address with what IPAM says.
func (a *auditing) holder(o *Owner) {
	for _, p := range a.poolsOf(o) {
		if o.State == Unheard || p.Node != nil && p.Node.Unheard {
			a.keep(p, FindingInUseUnallocated, FindingBookedElsewhere)
			continue
		}
		if p.State != PoolKnown && p.State != PoolMissing {
			a.keep(p, FindingInUseUnallocated, FindingBookedElsewhere)
			continue
		}
		severity := Critical
		if p.IPAM == Cilium {
			severity = Warning // its objects tell what it has given, and it goes by what it knows itself
		}
		switch booked, others := a.booked(p, o); {
		case booked:
		case len(others) > 0:
			patience := a.patience(p, o)
			if patience <= toldWithin && slices.ContainsFunc(others, func(al *Allocation) bool { return al.named(o) }) {
				patience = 0 // it is what is written for it
			}
			a.find(FindingBookedElsewhere, severity, p, o, others, max(a.policy.Settle, patience))
		case p.IPAM == Cilium:
			a.find(FindingInUseUnallocated, severity, p, o, nil, ciliumTells)
		default:
			a.find(FindingInUseUnallocated, severity, p, o, nil, a.patience(p, o))
		}
	}
}

// booked tells whether the pool has the address for an owner, and gives what it has
// for others.
func (a *auditing) booked(p *Pool, o *Owner) (booked bool, others []*Allocation) {
	for _, al := range a.in.Allocations {
		if !al.Pool.is(p) {
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
func (a *auditing) behind(p *Pool, o *Owner) bool {
	until := a.in.PodsKnownUntil
	return p.Node == nil && until != 0 && until < o.Begun().Add(a.policy.Settle)
}

// patience is how long an owner may hold an address that its pool takes for free:
// plugins free an address before they take it away, and what they write may be read
// later than what they do.
func (a *auditing) patience(p *Pool, o *Owner) time.Duration {
	switch {
	case o.Pod != nil && (o.Pod.DeletionTimestamp != 0 || o.Pod.ended()):
		return endsWithin
	case p.IPAM == Cilium:
		return ciliumWithin
	case p.State == PoolMissing, p.LostHeard != 0 && o.Begun() < p.LostHeard:
		return 0 // no pod's end does that
	case p.Node == nil && o.Begun().Add(toldWithin) > a.in.Now:
		return max(a.policy.Settle, toldWithin) // what is written for it may be on its way
	}
	return a.policy.Settle
}

// poolsOf are the pools that will give the address of an owner to somebody else, if
// they take it for free.
func (a *auditing) poolsOf(o *Owner) (pools []*Pool) {
	var sure []*Pool
	networks := o.networks()
	for _, p := range a.in.Pools {
		if p.Node != nil && !p.Node.is(o.Node) || !p.Contains(a.in.Address) && !a.has(p) && len(p.Ranges) > 0 {
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
		case len(networks) > 0 && !unknown && p.Node == nil && p.IPAM != Calico:
			// Another network's pool of the cluster: whether they meet is not known.
		case len(p.Ranges) > 0 && p.meets(o):
			pools = append(pools, p)
		}
	}
	if len(sure) > 0 {
		pools = sure
	}
	i := slices.IndexFunc(pools, func(p *Pool) bool { booked, _ := a.booked(p, o); return booked })
	if i < 0 {
		return pools
	}
	// It is known which pool gave it. One of another IPAM of the cluster, or of another
	// realm, that has the address in its range is none that does: it is left over, say.
	by := pools[i]
	return slices.DeleteFunc(pools, func(p *Pool) bool { return p.Node == nil && (p.IPAM != by.IPAM || p.Realm != by.Realm) })
}

// has tells whether a pool has given the address: a range may be unknown.
func (a *auditing) has(p *Pool) bool {
	return slices.ContainsFunc(a.in.Allocations, func(al AllocationFacts) bool { return al.Pool.is(p) })
}

// meets tells whether who gets an address of the pool meets an owner that has it from
// somebody else.
func (p *Pool) meets(o *Owner) bool {
	switch i := o.Interface; {
	case p.Node == nil && p.IPAM != Whereabouts: // routed in the whole cluster
		return o.Scope.Kind >= NodeScope && !o.inVRF() && (!p.Asked || o.kind() != Host) && !madeByDocker(i.Name) && (i.Link == nil || !madeByDocker(i.Link.Name))
	case p.Node == nil: // on some link: that of its pods
		return o.kind() != Host && i.Attachment == Lower
	case p.Device != "" && i.Link != nil && i.Link.Name == p.Device, p.Device != "" && i.HostInterface == p.Device:
		return true
	default:
		return p.Routed && o.Scope.Kind >= NodeScope && !o.inVRF()
	}
}

// inVRF tells whether an owner is in a VRF: it meets only what is in that, too.
func (o *Owner) inVRF() bool { return o.Scope.Kind == NodeScope && o.Scope.Name != "" }

// sameNode tells whether a name that an IPAM or Kubernetes has for a node is that of
// an owner's.
func (o *Owner) sameNode(name string) bool {
	return o.Pod != nil && o.Pod.Node != "" && o.Pod.Node == name || o.Node.Called(name)
}

// Called tells whether a name that somebody else has for a node may be the node's: in
// capitals, or with a domain or without.
func (n *Node) Called(name string) bool {
	own, _, _ := strings.Cut(n.Name, "@")
	short, long := strings.ToLower(own), strings.ToLower(name)
	if len(short) > len(long) {
		short, long = long, short
	}
	return short == long || short != "" && strings.HasPrefix(long, short+".")
}

// For tells whether an allocation is for an owner, as far as both say who they are.
func (al *Allocation) For(o *Owner) bool {
	w := o.Workload()
	switch {
	case al.Node != "" && !o.sameNode(al.Node):
		return false
	case al.nameless():
		return true
	case al.Purpose != "" || w.Kind == Host:
		return al.Purpose != "" && (w.Kind == Host || al.ofEndpoint(w))
	case al.ContainerID != "" && al.ContainerID == w.ContainerID:
		return true
	case al.Pod != "" && w.Kind == Pod && w.Name != "":
		return al.named(o)
	case al.ContainerID != "" && w.sandbox() != "":
		return false
	}
	return true // neither says
}

// named tells whether an allocation is for the pod of an owner, on whatever node.
func (al *Allocation) named(o *Owner) bool {
	w := o.Workload()
	return w.Kind == Pod && al.Pod != "" && al.Pod == w.Name && al.Namespace == w.Namespace
}

// nameless tells whether an allocation does not say for whom it is: nobody else gets it
// all the same, as with a file that somebody made for host-local to leave an address out.
func (al *Allocation) nameless() bool {
	return al.Purpose == "" && al.ContainerID == "" && al.Pod == ""
}

// ofEndpoint tells whether an allocation may be for a namespace of Cilium's own: its
// health endpoint is in one that is no pod's.
func (al *Allocation) ofEndpoint(w Workload) bool {
	return al.Pool.IPAM == Cilium && w.Kind == Unknown
}

// sandbox is the id that IPAM was given for a workload; empty where it is not known: the
// one that a cgroup tells may be another container's.
func (w Workload) sandbox() string {
	source := w.Source
	for word := range strings.SplitSeq(w.Sources, ",") {
		if field, from, _ := strings.Cut(word, "="); field == "containerId" {
			source = from
		}
	}
	if source == "cgroup" || source == "process" {
		return ""
	}
	return w.ContainerID
}

// allocation looks whether somebody holds what IPAM has given.
func (a *auditing) allocation(al *AllocationFacts) {
	p := al.Pool
	if p.IPAM == KubernetesAPI || al.Purpose != "" || al.nameless() {
		return
	}
	held := slices.ContainsFunc(a.judged.Owners, func(o Owner) bool {
		return o.Alive() && (p.Node == nil || o.Node.is(p.Node))
	})
	if held || al.Sandbox {
		return // or its sandbox is there, with an interface that is down, or a guest that has the address
	}
	if pod := al.Object; pod != nil && !pod.ended() && slices.Contains(pod.IPs, a.in.Address) {
		return // or its pod has it, as the API says: a guest that no id of a sandbox leads to
	}
	covered := a.in.Covered
	if p.Node != nil {
		covered = !p.Node.Unheard && a.in.node(p.Node).Covered
	}
	if p.State != PoolKnown || !covered {
		a.keep(p, FindingLeaked)
		a.again(a.in.Now.Add(a.policy.LeakedAfter)) // nothing of the address changes when all nodes are heard
		return
	}
	a.find(FindingLeaked, Warning, p, nil, []*Allocation{al.Allocation}, a.policy.LeakedAfter)
}

// twice looks whether IPAM has given the address twice.
func (a *auditing) twice() {
	all := a.in.Allocations
	for i := range all {
		for k := range all[i+1:] {
			al, other := &all[i], &all[i+1+k]
			if al.Pool.shares(other.Pool) && !al.same(other.Allocation) && !a.leftBehind(al) && !a.leftBehind(other) {
				patience, severity := a.policy.Settle, Critical
				switch al.Pool.IPAM {
				case KubernetesAPI:
					patience = statusWithin
				case Cilium:
					patience, severity = ciliumWithin, Warning
				}
				a.find(FindingDoubleAllocated, severity, al.Pool, a.holderOf(al.Allocation, other.Allocation), []*Allocation{al.Allocation, other.Allocation}, patience)
				a.again(a.in.Now.Add(statusWithin)) // nothing of the address changes when one of the pods ends
				return
			}
		}
	}
}

// holderOf is who has the address of those that it was given to; nil for nobody.
func (a *auditing) holderOf(allocations ...*Allocation) *Owner {
	for i := range a.judged.Owners {
		if o := &a.judged.Owners[i]; o.holds() && slices.ContainsFunc(allocations, func(al *Allocation) bool { return al.For(o) }) {
			return o
		}
	}
	return nil
}

// leftBehind tells whether an allocation is for a pod that the Kubernetes API has no
// more: nobody will have the address by that.
func (a *auditing) leftBehind(al *AllocationFacts) bool {
	return al.Object != nil && al.Object.Absent && a.in.PodsKnownUntil > al.Heard.Add(a.policy.Settle)
}

// shares tells whether who has an address of one pool meets who has it of the other.
func (p *Pool) shares(other *Pool) bool {
	switch {
	case p.IPAM != other.IPAM || !p.Node.is(other.Node) || p.Realm != other.Realm:
		return false
	case p.is(other), p.Node == nil && p.IPAM != Whereabouts:
		return true
	case p.Network != "" && p.Network == other.Network, p.Node == nil && p.Network == "" && other.Network == "":
		return true
	}
	return p.Routed && other.Routed
}

// shared looks whether several nodes answer on a wire for an address that they have on
// a loopback or dummy device: whoever asks gets one of them by chance.
func (a *auditing) shared() {
	var answering []Owner
	for _, o := range a.judged.Owners {
		if o.Rule == RuleLoopbackOrDummy && o.Alive() && slices.ContainsFunc(o.Claims, func(c *Claim) bool { return c.Wire() && !c.Weak() }) {
			answering = append(answering, o)
		}
	}
	if len(answering) >= 2 {
		a.tell(Finding{Kind: FindingSharedAddressAnswered, Severity: Warning, Owners: answering}, "", a.policy.Settle)
	}
}

// same tells whether two allocations are for the same, as far as both say who it is.
func (al *Allocation) same(other *Allocation) bool {
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
func (a *auditing) find(kind string, severity Severity, p *Pool, o *Owner, allocations []*Allocation, patience time.Duration) {
	f := Finding{Kind: kind, Severity: severity, Pool: p, Allocations: allocations}
	if o != nil {
		f.Owners = []Owner{*o}
	}
	a.tell(f, p.Subject()+" ", patience)
}

// tell notes what is wrong: told once it has been so for long enough.
func (a *auditing) tell(f Finding, subject string, patience time.Duration) {
	f.Address, f.Since = a.in.Address, a.in.Now
	f.ID = a.id(f.Kind, subject)
	if slices.ContainsFunc(a.out.Findings, func(other Finding) bool { return other.ID == f.ID }) {
		return
	}
	for i := range a.in.Before {
		b := &a.in.Before[i]
		if b.ID == f.ID && b.about(&f) {
			f.Since = b.Since
		}
		if b.about(&f) && !b.Waiting && (b.ID == f.ID || b.Pool.is(f.Pool) && b.Severity == Critical && f.Severity == Critical) {
			patience = 0 // what was told stays told, or becomes the next worse thing
		}
	}
	if a.contested && f.Kind != FindingAddressSpoofed {
		return
	}
	due := f.Since.Add(patience)
	if patience > 0 && len(f.Owners) == 1 && a.behind(f.Pool, &f.Owners[0]) {
		due = max(due, a.in.Now.Add(askEvery))
	}
	if a.in.Now < due {
		f.Waiting = true
		a.again(due)
	} else if len(f.Owners) == 1 && f.Kind != FindingDoubleAllocated {
		a.remember(&f)
	}
	f.Past = a.out.Past
	a.out.Findings = append(a.out.Findings, f)
}

// about tells whether two findings of one id are about the same owner, where they are
// about one.
func (f *Finding) about(other *Finding) bool {
	return len(f.Owners) == 0 || len(other.Owners) == 0 || f.Owners[0].ID == other.Owners[0].ID
}

// Subject is what a pool is called in ids of findings.
func (p *Pool) Subject() string {
	if p.Node != nil {
		return p.IPAM + " " + p.Name + " " + p.Node.Name
	}
	return p.IPAM + " " + p.Name
}

// keep carries on what was found while nothing new can be known.
func (a *auditing) keep(p *Pool, kinds ...string) {
	for _, b := range a.in.Before {
		if !b.Pool.is(p) || b.Waiting || !slices.Contains(kinds, b.Kind) || a.contested {
			continue
		}
		b.Pool, b.ID = p, a.id(b.Kind, p.Subject()+" ") // as it is now, and its node is called
		if !slices.ContainsFunc(a.out.Findings, func(f Finding) bool { return f.ID == b.ID }) {
			a.out.Findings = append(a.out.Findings, b)
		}
	}
}

// id returns the id of a finding about the address.
func (a *auditing) id(kind, subject string) string {
	return FindingID(a.policy.Cluster, kind, subject+a.in.Address.String())
}

func (a *auditing) again(at Stamp) {
	if a.out.Again == 0 || at < a.out.Again {
		a.out.Again = at
	}
}

// past carries on what is remembered of owners that are alive, and remembers which of
// their allocations vanished.
func (a *auditing) past() {
	for _, p := range a.in.Past {
		if slices.ContainsFunc(a.judged.Owners, func(o Owner) bool { return o.ID == p.Owner && o.Alive() }) {
			a.out.Past = append(a.out.Past, p)
		}
	}
	for _, al := range a.in.Vanished {
		if al.Pool.State != PoolKnown && al.Pool.State != PoolMissing || slices.ContainsFunc(a.in.Allocations, func(other AllocationFacts) bool { return al.same(other.Allocation) }) {
			continue // it is not known to be gone, or written elsewhere
		}
		for i := range a.judged.Owners {
			o := &a.judged.Owners[i]
			if !o.holds() || al.Pool.Node != nil && !al.Pool.Node.is(o.Node) {
				continue
			}
			switch {
			case al.For(o):
				a.note(Past{Owner: o.ID, Kind: FindingInUseUnallocated, Allocation: al, Since: a.in.Now})
			case a.in.Now >= max(o.Begun(), al.Heard).Add(a.policy.Settle): // before that, it is of whom had the address before
				a.note(Past{Owner: o.ID, Kind: FindingBookedElsewhere, Allocation: al, Since: a.in.Now})
			}
		}
	}
}

// remember keeps what is wrong with an owner's address beside it.
func (a *auditing) remember(f *Finding) {
	past := Past{Owner: f.Owners[0].ID, Kind: f.Kind, Since: a.in.Now}
	if len(f.Allocations) > 0 {
		past.Allocation = f.Allocations[0]
	}
	a.note(past)
}

// mostPast is how much is remembered of one address.
const mostPast = 8

func (a *auditing) note(p Past) {
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
