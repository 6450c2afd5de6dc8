package audit

import (
	"cmp"
	"slices"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/podips"
)

const (
	// endGrace is how long a pod that has ended or is being deleted may have an address that its
	// IPAM has freed. Plugins free an address before they remove it from the pod.
	endGrace = 30 * time.Second
	// recordDelay is how long it may take until the aggregator receives the record for a new owner,
	// and how long a pod whose end is not known may have an address after its record was removed. On
	// an overloaded node, both take a second or two.
	recordDelay = 5 * time.Second
	// statusDelay is how long the Kubernetes API may list an address for a pod that had it before
	// its node rebooted.
	statusDelay = 30 * time.Second
	// orphanGrace is how long the sandbox of a deleted pod may have its address: a kubelet ends the sandbox of a pod that
	// was force-deleted within seconds, and of all others before it deletes the pod.
	orphanGrace = 5 * time.Second
	// refusedAfter is how long a Service may have no endpoints before it is reported that nodes refuse packets for the
	// address of a node.
	refusedAfter = time.Minute
	// recheckInterval is the interval at which an address is audited again while the Kubernetes API
	// lags behind.
	recheckInterval = time.Second
)

// A Result is the result of the audit of one address.
type Result struct {
	// Findings are the problems. Those that are waiting are not reported yet, because they may
	// disappear by themselves.
	Findings []verdict.Finding
	// Past has the states to remember of the owners' allocations.
	Past []verdict.Past
	// Former are the former owners to remember.
	Former []verdict.Former
	// Again is when to audit again even if nothing changes; 0 for never.
	Again verdict.Stamp
}

// Address compares the owners of an address with the records of IPAMs, and the records with the
// owners. It finds duplicates in advance: an address in use that IPAM considers free, or that IPAM
// has allocated to another holder and will free together with that holder.
func Address(p *verdict.Policy, in *verdict.Case, judged *verdict.Judgement) Result {
	a := addressAudit{policy: p, in: in, judged: judged, contested: len(judged.Conflicts) > 0 || slices.ContainsFunc(in.Conflicts, func(m verdict.Memory) bool {
		return m.Active() && !slices.ContainsFunc(judged.Ended, func(e verdict.Ended) bool { return e.ID == m.ID })
	})}
	a.past()
	a.auditIdentities()
	for i := range judged.Owners {
		if o := &judged.Owners[i]; compared(o) {
			a.auditOwner(o)
		}
	}
	for i := range in.Allocations {
		a.auditAllocation(&in.Allocations[i])
	}
	a.auditDoubleAllocation()
	a.auditAssignments()
	a.auditShared()
	a.auditAnswers()
	a.auditSubnets()
	a.auditServices()
	a.auditServicePools()
	a.auditOrphans()
	a.auditSpoofs()
	a.auditCopies()
	a.auditRefused()
	a.auditReuse()
	a.auditBeliefs()
	a.auditEndpoints()
	// A waiting finding is reported at once if another critical finding of the same pool and owner is already
	// reported. Otherwise only the next audit of the same facts would report it.
	for found := true; found; {
		found = false
		for i := range a.out.Findings {
			f := &a.out.Findings[i]
			if f.Waiting && slices.ContainsFunc(a.out.Findings, func(b verdict.Finding) bool { return !b.Waiting && about(&b, f) && bothCritical(&b, f) }) {
				f.Waiting, found = false, true
				a.rememberReported(f)
			}
		}
	}
	return a.out
}

func bothCritical(f, other *verdict.Finding) bool {
	return f.Pool.Is(other.Pool) && f.Severity == verdict.Critical && other.Severity == verdict.Critical
}

// rememberReported adds a finding that is reported to the past of the owner, if it is about a record.
func (a *addressAudit) rememberReported(f *verdict.Finding) {
	if f.Pool != nil && f.Pool.Services == "" && (f.Kind == verdict.FindingInUseUnallocated || f.Kind == verdict.FindingBookedElsewhere) {
		a.remember(f)
	}
	f.Past = a.out.Past
}

type addressAudit struct {
	policy *verdict.Policy
	in     *verdict.Case
	judged *verdict.Judgement
	// contested is set if there is an active conflict, which replaces most findings.
	contested bool
	out       Result
}

// compared reports whether an owner is alive and compared with others.
func compared(o *verdict.Owner) bool { return o.Alive() && o.Excluded == nil && o.Scope.Kind != 0 }

// holds reports whether the owner of a namespace has the address and is compared.
func holds(o *verdict.Owner) bool { return o.Namespace != nil && o.Has() && compared(o) }

// concerns reports whether an owner has an address of a pool. A DHCP server gives addresses to machines that are known from the
// wire only, and to machines outside of its node; a pool of addresses of a LAN may give away one that such a machine uses. The
// guest of a virtual machine has the address that the pool gave to the machine's pod, or to its pod before the migration.
func concerns(p *verdict.Pool, o *verdict.Owner) bool {
	switch {
	case p.Leases:
		return compared(o) && p.Meets(o)
	case p.Node != nil && o.Kind() == verdict.External:
		return AllocatesOnLAN(p) && uses(o, 0) && p.Meets(o)
	case p.Secondary && p.Node == nil && o.InGuest():
		return compared(o)
	}
	return holds(o) && (p.Node == nil || p.Node.Is(o.Node))
}

// auditOwner compares an owner of the address with the records of IPAMs.
func (a *addressAudit) auditOwner(o *verdict.Owner) {
	if _, orphan := a.orphaned(o); orphan {
		return // auditOrphans does it
	}
	for _, p := range a.poolsOf(o) {
		if !upToDate(p, o) || o.InGuest() && o.Pod != nil && o.Pod.Migrating {
			a.keep(p, verdict.FindingInUseUnallocated, verdict.FindingBookedElsewhere)
			continue
		}
		severity := severityOf(p)
		if o.Kind() == verdict.External && !p.Leases {
			severity = verdict.Warning // a range as wide as the LAN has many machines in it
		}
		kept := a.keptBack(p)
		switch booked, others := a.allocated(p, o); {
		case kept != nil: // not for the owner, but because of it or of another one with the address
			a.recordOf(verdict.FindingInUseUnallocated, verdict.Warning, p, o, []*verdict.Allocation{kept}, cmp.Or(p.StartDelay, a.patience(p, o)))
		case booked, a.misidentified(others...):
		case len(others) > 0:
			patience := a.patience(p, o)
			if patience <= recordDelay && slices.ContainsFunc(others, func(al *verdict.Allocation) bool { return al.Names(o) }) {
				patience = 0 // the record is already the one for this owner
			}
			f := verdict.Finding{Kind: verdict.FindingBookedElsewhere, Severity: severity, Pool: p, Allocations: others, Owners: []verdict.Owner{*o}}
			if rightful := a.holderOf(others...); rightful != nil {
				f.Owners = append(f.Owners, *rightful)
			}
			a.record(f, p.Subject()+" ", max(a.policy.Settle, patience))
		case p.Partial: // the record for the owner may be one that cannot be read
			a.keep(p, verdict.FindingInUseUnallocated)
		default:
			a.recordOf(verdict.FindingInUseUnallocated, severity, p, o, nil, cmp.Or(p.StartDelay, a.patience(p, o)))
		}
	}
}

// upToDate reports whether the records of a pool and the address of an owner are up to date.
func upToDate(p *verdict.Pool, o *verdict.Owner) bool {
	return o.State != verdict.Unheard && (p.Node == nil || !p.Node.Unheard) && (p.State == ipam.Known || p.State == ipam.Missing)
}

// severityOf returns the severity of a record in the pool that is wrong about a live owner.
func severityOf(p *verdict.Pool) verdict.Severity {
	if p.Mirrored {
		return verdict.Warning
	}
	return verdict.Critical
}

// allocated reports whether the pool has the address for an owner, and returns its allocations for
// others.
func (a *addressAudit) allocated(p *verdict.Pool, o *verdict.Owner) (booked bool, others []*verdict.Allocation) {
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

// keptBack returns the record by which a DHCP server keeps the address back because it was found in use; nil if there is none,
// or another record of the pool.
func (a *addressAudit) keptBack(p *verdict.Pool) (kept *verdict.Allocation) {
	for _, al := range a.in.Allocations {
		switch {
		case !al.Pool.Is(p):
		case al.KeptUntil == 0:
			return nil
		default:
			kept = al.Allocation
		}
	}
	return kept
}

// behind reports whether the Kubernetes API, which stores the pool, was last synchronised before
// the settle time of an owner was over. Its records may then be outdated.
func (a *addressAudit) behind(p *verdict.Pool, o *verdict.Owner) bool {
	until := a.in.PodsKnownUntil
	return p.Node == nil && until != 0 && until < o.Begun().Add(a.policy.Settle)
}

// patience returns how long an owner may have an address that its pool considers free. Plugins free
// an address before they remove it, and records may arrive later than claims. That includes the
// first record of a pool, whose directory is missing until then.
func (a *addressAudit) patience(p *verdict.Pool, o *verdict.Owner) time.Duration {
	switch {
	case o.Pod != nil && (o.Pod.DeletionTimestamp != 0 || o.Pod.Ended()):
		return endGrace
	case o.InGuest():
		return max(a.policy.Settle, recordDelay) // its former pod ends after the migration, and its record may be moved
	case p.EndDelay != 0:
		return p.EndDelay
	case p.LostHeard != 0 && o.Begun() < p.LostHeard:
		return 0 // the end of a pod does not cause that
	case slices.ContainsFunc(a.out.Past, func(past verdict.Past) bool {
		return past.Owner == o.ID && past.Kind == verdict.FindingInUseUnallocated && past.Allocation != nil && past.Allocation.Pool.Is(p)
	}): // the pool had a record for the owner that was removed
		return max(a.policy.Settle, recordDelay)
	case o.Begun().Add(recordDelay) > a.in.Now:
		a.again(o.Begun().Add(recordDelay)) // its patience is over then
		return max(a.policy.Settle, recordDelay)
	}
	return a.policy.Settle
}

// poolsOf returns the pools that may allocate the address of an owner again if they consider it
// free.
func (a *addressAudit) poolsOf(o *verdict.Owner) (pools []*verdict.Pool) {
	var sure, listed []*verdict.Pool
	networks := o.Networks()
	for _, p := range a.in.Pools {
		if p.Assigns || !concerns(p, o) || !p.Contains(a.in.Address) && !a.has(p) && len(p.Ranges) > 0 {
			continue
		}
		named, unknown := false, true
		for _, n := range networks {
			serves, unsure := p.Serves(n)
			named, unknown = named || serves, unknown && unsure
		}
		switch {
		case named, len(p.Ranges) > 0 && p.OfTenant(o):
			sure = append(sure, p)
		case p.Single && p.Node == nil && o.OnNode(p.Name) && p.Meets(o):
			// The IPAM allocates exactly this address on this node, even if another one has done so.
			listed = append(listed, p)
		case a.names(p, o):
			pools = append(pools, p)
		case len(networks) > 0 && !unknown && p.Node == nil:
			// A cluster-wide pool of another network: it is not known whether their addresses meet.
		case len(p.Ranges) > 0 && p.Meets(o):
			pools = append(pools, p)
		}
	}
	if len(sure) > 0 {
		pools = append(sure, slices.DeleteFunc(pools, func(p *verdict.Pool) bool { return !replaces(p, sure, o) })...)
	}
	pools = append(pools, listed...)
	i := slices.IndexFunc(pools, func(p *verdict.Pool) bool {
		booked, _ := a.allocated(p, o)
		return booked && p.IPAM != podips.IPAM.Name
	})
	if i < 0 {
		return pools
	}
	// The pool that allocated the address is known. Cluster-wide pools of another IPAM or realm
	// whose ranges contain the address are not concerned; they may be left over.
	by := pools[i]
	return slices.DeleteFunc(pools, func(p *verdict.Pool) bool {
		return p.Node == nil && (p.IPAM != by.IPAM || p.Realm != by.Realm) && !slices.Contains(listed, p)
	})
}

// replaces reports whether a pool may be the one that the network of an owner has under a new name. It has no records of the
// addresses that pods got under the former name, which no file configures any more. If both networks are configured, Networks
// compares them.
func replaces(p *verdict.Pool, former []*verdict.Pool, o *verdict.Owner) bool {
	l := o.Interface.Link
	wired := p.Wires(o) || p.Plugin == "ptp" && l != nil && l.Kind == verdict.PointToPoint
	return p.Node != nil && p.Config != "" && wired &&
		slices.ContainsFunc(former, func(f *verdict.Pool) bool { return f.Node.Is(p.Node) && f.IPAM == p.IPAM }) &&
		!slices.ContainsFunc(former, func(f *verdict.Pool) bool { return f.Competes(&p.Pool) })
}

// names reports whether a pool has allocated the address to the owner by name, so that it serves the
// owner even if it is not known whether their scopes meet.
func (a *addressAudit) names(p *verdict.Pool, o *verdict.Owner) bool {
	return slices.ContainsFunc(a.in.Allocations, func(al verdict.AllocationFacts) bool { return al.Pool.Is(p) && al.Names(o) && al.For(o) })
}

// has reports whether a pool has allocated the address, which matters if its range is not known.
func (a *addressAudit) has(p *verdict.Pool) bool {
	return slices.ContainsFunc(a.in.Allocations, func(al verdict.AllocationFacts) bool { return al.Pool.Is(p) })
}

func (a *addressAudit) auditAllocation(al *verdict.AllocationFacts) {
	p := al.Pool
	if p.Status || p.Leases || p.Assigns || al.Purpose != "" || al.Kept || al.Nameless() {
		return
	}
	held := slices.ContainsFunc(a.judged.Owners, func(o verdict.Owner) bool {
		return o.Alive() && (p.Node == nil || o.Node.Is(p.Node))
	})
	if held || al.Sandbox {
		return // the sandbox exists; its interface may be down, or a guest has the address
	}
	if pod := al.Object; pod != nil && !pod.Ended() && slices.Contains(pod.IPs, a.in.Address) {
		return // the API lists the address; the sandbox may have an unknown ID
	}
	seen := a.in.Covered
	if p.Node != nil { // its agent reports, and can see into its pods
		seen = !p.Node.Unheard && slices.ContainsFunc(a.in.Nodes, func(f verdict.NodeFacts) bool { return f.Node == p.Node.Key() && f.Covered })
	}
	if p.State != ipam.Known || !seen {
		a.keep(p, verdict.FindingLeaked)
		a.again(a.in.Now.Add(a.policy.LeakedAfter)) // the next audit is due even if no fact changes, because agents may be connected again
		return
	}
	if all := a.sameRecords(al); all[0] == al.Allocation {
		a.recordOf(verdict.FindingLeaked, verdict.Warning, p, nil, all, a.policy.LeakedAfter)
	}
}

// sameRecords returns the allocations for the holder of one: an IPAM may have several files or objects
// with them.
func (a *addressAudit) sameRecords(al *verdict.AllocationFacts) (all []*verdict.Allocation) {
	for i := range a.in.Allocations {
		other := a.in.Allocations[i].Allocation
		if other == al.Allocation || !other.Nameless() && sameScope(al.Pool, other.Pool) && sameHolder(al.Allocation, other) {
			all = append(all, other)
		}
	}
	return all
}

// auditDoubleAllocation checks whether IPAM has allocated the address twice, or two Services have it with a common port.
func (a *addressAudit) auditDoubleAllocation() {
	all := a.in.Allocations
	for i := range all {
		for k := range all[i+1:] {
			al, other := &all[i], &all[i+1+k]
			if al.Service != nil && other.Service != nil && al.Service.Clashes(other.Service) {
				a.recordOf(verdict.FindingDoubleAllocated, verdict.Warning, al.Pool, nil, []*verdict.Allocation{al.Allocation, other.Allocation}, a.policy.Settle)
				continue
			}
			if sameScope(al.Pool, other.Pool) && !sameHolder(al.Allocation, other.Allocation) && !a.leftBehind(al) && !a.leftBehind(other) && !a.misidentified(al.Allocation, other.Allocation) {
				patience := cmp.Or(al.Pool.EndDelay, a.policy.Settle)
				severity := severityOf(al.Pool)
				if al.Pool.Status && (al.Pod == "" || other.Pod == "") { // Node objects, one of which may be left over
					severity = verdict.Warning
				}
				a.recordOf(verdict.FindingDoubleAllocated, severity, al.Pool, a.holderOf(al.Allocation, other.Allocation), []*verdict.Allocation{al.Allocation, other.Allocation}, patience)
				a.again(a.in.Now.Add(statusDelay)) // the end of one of the pods does not trigger an audit
				return
			}
		}
	}
}

// holderOf returns the owner that one of the allocations is for; nil if there is none.
func (a *addressAudit) holderOf(allocations ...*verdict.Allocation) *verdict.Owner {
	for i := range a.judged.Owners {
		if o := &a.judged.Owners[i]; holds(o) && slices.ContainsFunc(allocations, func(al *verdict.Allocation) bool { return al.For(o) }) {
			return o
		}
	}
	return nil
}

// leftBehind reports whether an allocation is for a pod that no longer exists in the Kubernetes
// API, so that no other owner will use it.
func (a *addressAudit) leftBehind(al *verdict.AllocationFacts) bool {
	return !al.Kept && al.Object != nil && al.Object.Absent && a.in.PodsKnownUntil > al.Heard.Add(a.policy.Settle)
}

// sameScope reports whether addresses of two pools are in the same scope.
func sameScope(p, other *verdict.Pool) bool {
	switch {
	case p.IPAM != other.IPAM || !p.Node.Is(other.Node) || p.Realm != other.Realm, p.Assigns:
		return false
	case p.Leases:
		return p.Device == other.Device
	case p.Is(other), p.Node == nil && !p.Secondary:
		return true
	case p.Network != "" && p.Network == other.Network, p.Node == nil && p.Network == "" && other.Network == "":
		return true
	}
	return p.Routed && other.Routed
}

// auditShared checks whether several owners answer for the address on a link on which none of them has it, unless they are in
// conflict. A client then reaches one of them by chance.
func (a *addressAudit) auditShared() {
	answering := a.in.AnswerTogether(a.judged.Owners, a.in.Now.Add(-a.policy.StaleAfter))
	if len(answering) == 0 || slices.ContainsFunc(answering, func(o verdict.Owner) bool {
		return slices.ContainsFunc(a.judged.Conflicts, func(c verdict.Conflict) bool { return c.Owner(o.ID) != nil })
	}) {
		return
	}
	for _, o := range answering {
		for _, c := range o.Claims {
			if ends := c.Seen.Add(a.policy.StaleAfter); c.Wire() && ends > a.in.Now {
				a.again(ends)
			}
		}
	}
	a.record(verdict.Finding{Kind: verdict.FindingSharedAddressAnswered, Severity: verdict.Warning, Owners: answering}, "", a.policy.Settle)
}

// auditAnswers checks whether a node answers for an address on a link on which another owner has it, or an owner that
// has it on a loopback or dummy device uses it there as the sender of ARP requests, unless both are in a confirmed conflict.
// A node also misleads neighbours if it answers as a proxy for an owner that is behind another proxy, and so does a program or
// a device that answers for an owner which answers there itself.
func (a *addressAudit) auditAnswers() {
	fresh := a.in.Now.Add(-a.policy.StaleAfter)
	since := fresh
	if !a.in.Address.Is4() { // with IPv6, the kernel takes an address of the interface
		since = a.in.Now
	}
	for i := range a.judged.Owners {
		o := &a.judged.Owners[i]
		if !o.Alive() || !o.WouldAnswer() && !o.ExcludedBy(verdict.RuleReachableVia) {
			continue
		}
		wronged, severity, patience := []verdict.Owner{*o}, verdict.Warning, a.policy.Settle/2
		for k := range a.judged.Owners {
			r := &a.judged.Owners[k]
			if k == i || !compared(r) {
				continue
			}
			c := o.AnswersFor(r, since)
			if c == nil { // the address may just have moved
				if c = o.Misleads(r, a.judged.Owners, fresh); c != nil {
					patience = a.policy.HandoverGrace
				}
			}
			if c == nil {
				c = o.RespondsFor(r, fresh, a.reported(a.id(verdict.FindingAnsweredByAnother, o.ID+" ")))
				if c != nil && c.Seen < max(c.Begun, r.Begun()).Add(a.policy.Settle) {
					c = nil // one answer may be that of the time before the other owner had the address
				}
			}
			if c != nil && (c.Answer.By == verdict.ByNeighbour && a.several(o) || c.Wire() && a.spoofs(o)) {
				continue // the entry may be that of one of them; the frame is address-spoofed
			}
			if c != nil && !a.rivals(o, r) {
				if c.Wire() {
					a.again(c.Seen.Add(a.policy.StaleAfter))
				}
				if wronged = append(wronged, *r); c.Answer.Filter == 0 && (c.Kind != verdict.Answered || o.WouldAnswer()) {
					severity = verdict.Critical
				}
			}
		}
		if len(wronged) > 1 {
			f := verdict.Finding{Kind: verdict.FindingAnsweredByAnother, Severity: severity, Owners: wronged}
			a.record(f, o.ID+" ", patience)
		}
	}
}

// spoofs reports whether frames of an owner claim the address of another one whose own port they do not enter.
func (a *addressAudit) spoofs(o *verdict.Owner) bool {
	return o.Namespace != nil && slices.ContainsFunc(a.judged.Spoofs, func(s verdict.Spoof) bool { return s.Sender.ID == o.ID && len(s.Victims) > 0 })
}

// several reports whether several owners other than the given one have the address.
func (a *addressAudit) several(than *verdict.Owner) bool {
	n := 0
	for i := range a.judged.Owners {
		if o := &a.judged.Owners[i]; o != than && compared(o) {
			n++
		}
	}
	return n > 1
}

// listed returns the record of a pod or node that has the address according to the Kubernetes API, if no kernel is known to
// have it: there is no agent on that node. It returns nil if there is none.
func (a *addressAudit) listed() *verdict.Allocation {
	if slices.ContainsFunc(a.judged.Owners, func(o verdict.Owner) bool { return holds(&o) }) {
		return nil
	}
	for _, al := range a.in.Allocations {
		if al.Pool.IPAM == podips.IPAM.Name {
			return al.Allocation
		}
	}
	return nil
}

// auditServices checks whether nodes redirect packets for the address of an owner to the endpoints of a Service. A
// node's own address as an external or load balancer address is intended (a gateway by externalIPs, the load balancer of
// k3s), but without endpoints nodes refuse packets for it.
func (a *addressAudit) auditServices() {
	for i := range a.in.Allocations {
		al := &a.in.Allocations[i]
		if al.Service == nil {
			continue
		}
		var taken []verdict.Owner
		severity, patience := verdict.Critical, a.policy.Settle
		pooled := al.Service.Field == ipam.Ingress && slices.ContainsFunc(a.in.ServicePools, func(p *verdict.Pool) bool { return p.Services == ipam.Ingress })
		for k := range a.judged.Owners {
			o, s := &a.judged.Owners[k], al.Service
			switch inRange := s.Field == ipam.ClusterIP; {
			case pooled && uses(o, al.Heard):
				severity = verdict.Warning // such as the router: speakers of the load balancer have no kernel that uses it
			case !holds(o), o.Kind() != verdict.Host && o.Pod == nil, !inRange && s.Endpoints == ipam.OwnEndpoint:
				continue
			case o.Kind() == verdict.Host && !inRange:
				assigned := slices.ContainsFunc(a.in.Allocations, func(al verdict.AllocationFacts) bool { return al.Pool.Assigns && !o.OnNode(al.Node) })
				switch {
				case (pooled || s.Field == ipam.Ingress && assigned) && a.internal(o.Node):
					severity = verdict.Warning
				case pooled: // a virtual address; the Kubernetes API may list the addresses of the node later
					a.again(a.in.Now.Add(statusDelay))
					continue
				case s.Field == ipam.ExternalIP && s.Endpoints == ipam.NoEndpoints:
					severity, patience = verdict.Warning, refusedAfter
				default:
					continue
				}
			}
			taken = append(taken, *o)
		}
		f := verdict.Finding{
			Kind: verdict.FindingAnsweredByAnother, Severity: severity, Pool: al.Pool, Allocations: []*verdict.Allocation{al.Allocation}, Owners: taken,
		}
		listed := a.listed()
		switch inRange := al.Service.Field == ipam.ClusterIP; {
		case len(taken) > 0:
		case listed == nil, !inRange && !pooled && listed.Pod == "", !inRange && al.Service.Endpoints == ipam.OwnEndpoint:
			continue
		default:
			f.Allocations, patience = append(f.Allocations, listed), listed.Pool.EndDelay
			if !inRange && listed.Pod == "" {
				f.Severity = verdict.Warning
			}
		}
		a.record(f, al.Location+" ", patience)
	}
}

// internal reports whether the Kubernetes API has the address as one of a node.
func (a *addressAudit) internal(n *verdict.Node) bool {
	return slices.ContainsFunc(a.in.Nodes, func(f verdict.NodeFacts) bool { return f.Internal && f.Node == n.Key() })
}

// uses reports whether a device without an agent has used the address since then, as the sender of its own requests.
func uses(o *verdict.Owner, since verdict.Stamp) bool {
	return o.Kind() == verdict.External && compared(o) && slices.ContainsFunc(o.Claims, func(c *verdict.Claim) bool { return c.Kind == verdict.Used && c.Seen >= since })
}

// auditServicePools checks whether a Service may get the address of an owner: an owner whose kernel has it, or a device
// without an agent that uses it. Those that only answer may have answered for a Service. A load balancer may have the
// address of a node on purpose.
func (a *addressAudit) auditServicePools() {
	if slices.ContainsFunc(a.in.Allocations, func(al verdict.AllocationFacts) bool {
		return al.Service != nil || al.Pool.Assigns
	}) {
		return // a Service has it
	}
	for _, p := range a.in.ServicePools {
		if a.in.PodsKnownUntil == 0 || p.State == ipam.Unreadable || p.State == ipam.Stale {
			a.keep(p, verdict.FindingInUseUnallocated, verdict.FindingBookedElsewhere)
			continue
		}
		i := slices.IndexFunc(a.judged.Owners, func(o verdict.Owner) bool { return holds(&o) || uses(&o, 0) })
		listed := a.listed()
		f := verdict.Finding{Kind: verdict.FindingInUseUnallocated, Severity: verdict.Critical, Pool: p}
		patience, node := max(a.policy.Settle, recordDelay), false
		for _, al := range a.in.Allocations {
			if al.Pool.Is(p) {
				f.Kind, f.Allocations = verdict.FindingBookedElsewhere, append(f.Allocations, al.Allocation)
			}
		}
		switch {
		case i >= 0:
			f.Owners = []verdict.Owner{a.judged.Owners[i]}
			node = f.Owners[0].Kind() == verdict.Host || listed != nil && listed.Pod == ""
		case listed != nil && len(f.Allocations) == 0:
			f.Allocations = []*verdict.Allocation{listed}
			patience, node = listed.Pool.EndDelay, listed.Pod == ""
		default:
			continue
		}
		if p.Services == ipam.Ingress && node {
			f.Severity = verdict.Warning
		}
		a.record(f, p.Subject()+" ", patience)
	}
}

// orphaned reports whether an owner is the sandbox of a pod that has ended or no longer exists, and returns the finding
// about it from before. A Kubernetes API that does not respond, or is not known to be complete yet, cannot contradict what
// it said.
func (a *addressAudit) orphaned(o *verdict.Owner) (before *verdict.Finding, is bool) {
	if !holds(o) || o.Kind() != verdict.Pod || a.in.Address.IsLinkLocalUnicast() {
		return nil, false
	}
	i := slices.IndexFunc(a.in.Before, func(b verdict.Finding) bool {
		return b.Kind == verdict.FindingOrphanedSandbox && b.Owners[0].ID == o.ID
	})
	if i >= 0 {
		before = &a.in.Before[i]
	}
	return before, o.Orphaned || before != nil && !before.Waiting && !o.PodLives()
}

// auditOrphans checks whether the sandbox of a pod that has ended or no longer exists has the address. The finding is
// critical, and names the pool, if the IPAM has freed the address already.
func (a *addressAudit) auditOrphans() {
	for i := range a.judged.Owners {
		o := &a.judged.Owners[i]
		before, is := a.orphaned(o)
		if !is {
			continue
		}
		now := *o
		if !o.Orphaned {
			now.Orphaned, now.Pod = true, cmp.Or(o.Pod, before.Owners[0].Pod)
		}
		f := verdict.Finding{Kind: verdict.FindingOrphanedSandbox, Severity: verdict.Warning, Owners: []verdict.Owner{now}}
		unread := a.in.Unread && before != nil && before.Pool != nil && before.Pool.Node == nil // perhaps the pool is not read yet
		for _, p := range a.poolsOf(o) {
			booked, others := a.allocated(p, o)
			was := before != nil && before.Pool.Is(p)
			unread = unread && !was
			switch free := !booked && (len(others) > 0 || !p.Partial); {
			case f.Pool != nil:
			case upToDate(p, o) && free:
				f.Pool, f.Allocations, f.Severity = p, others, severityOf(p)
			case !upToDate(p, o) && was:
				f.Pool, f.Allocations, f.Severity = p, before.Allocations, before.Severity
			}
		}
		if unread {
			continue // the finding from before the start stays as it was
		}
		patience := orphanGrace
		if now.Pod != nil && now.Pod.Ended() {
			patience = endGrace
		}
		a.record(f, o.ID+" ", patience)
	}
}

// rivals reports whether two owners are in one confirmed conflict.
func (a *addressAudit) rivals(o, other *verdict.Owner) bool {
	in := func(c *verdict.Conflict, id string) bool {
		return slices.ContainsFunc(c.Owners, func(o verdict.Owner) bool { return o.ID == id })
	}
	return slices.ContainsFunc(a.judged.Conflicts, func(c verdict.Conflict) bool { return c.Phase == verdict.Confirmed && in(&c, o.ID) && in(&c, other.ID) })
}

// auditSpoofs adds the findings about claims of other senders to the address.
func (a *addressAudit) auditSpoofs() {
	for i := range a.judged.Spoofs {
		s := a.judged.Spoofs[i]
		f := verdict.Finding{Kind: verdict.FindingAddressSpoofed, Severity: verdict.Critical, Owners: append([]verdict.Owner{s.Owner}, s.Victims...), Spoof: &s}
		a.record(f, s.Port.Namespace.Node.Name+" "+s.Port.Name+" ", a.policy.Settle)
	}
}

// sameHolder reports whether two allocations are for the same holder, as far as both name it.
func sameHolder(al, other *verdict.Allocation) bool {
	switch {
	case al.Nameless() || other.Nameless(): // it reserves the address for any holder
		return true
	case al.ContainerID != "" && al.ContainerID == other.ContainerID:
		return true
	case al.MAC != "" && other.MAC != "":
		return al.MAC == other.MAC
	case al.Pod != "" && other.Pod != "":
		return al.Pod == other.Pod && al.Namespace == other.Namespace
	case al.ContainerID != "" && other.ContainerID != "":
		return false
	}
	return al.Node == other.Node
}

func (a *addressAudit) recordOf(kind string, severity verdict.Severity, p *verdict.Pool, o *verdict.Owner, allocations []*verdict.Allocation, patience time.Duration) {
	f := verdict.Finding{Kind: kind, Severity: severity, Pool: p, Allocations: allocations}
	if o != nil {
		f.Owners = []verdict.Owner{*o}
	}
	a.record(f, p.Subject()+" ", patience)
}

// record records a problem. It is reported once it has lasted for longer than patience.
func (a *addressAudit) record(f verdict.Finding, subject string, patience time.Duration) {
	f.Address, f.Since = a.in.Address, a.in.Now
	f.ID = cmp.Or(f.ID, a.id(f.Kind, subject))
	if slices.ContainsFunc(a.out.Findings, func(other verdict.Finding) bool { return other.ID == f.ID }) {
		return
	}
	for i := range a.in.Before {
		b := &a.in.Before[i]
		if b.ID == f.ID && about(b, &f) {
			f.Since = b.Since
		}
		if about(b, &f) && !b.Waiting && (b.ID == f.ID || bothCritical(b, &f)) {
			patience = 0 // a reported problem stays reported, even if it turns into another critical one
		}
	}
	if a.replaced(f.Kind) {
		return
	}
	due := f.Since.Add(patience)
	if patience > 0 && (len(f.Owners) == 1 || f.Kind == verdict.FindingBookedElsewhere) {
		switch o := &f.Owners[0]; {
		case f.Pool != nil && a.behind(f.Pool, o):
			due = max(due, a.in.Now.Add(recheckInterval))
		case silentSince(o, due):
			due = max(due, a.in.Now.Add(patience))
		}
	}
	if a.in.Now < due {
		f.Waiting = true
		a.again(due)
		f.Past = a.out.Past
	} else {
		a.rememberReported(&f)
	}
	a.out.Findings = append(a.out.Findings, f)
}

// replaced reports whether a conflict replaces findings of a kind.
func (a *addressAudit) replaced(kind string) bool {
	return a.contested && kind != verdict.FindingAddressSpoofed && kind != verdict.FindingVIPHeldElsewhere && kind != verdict.FindingAnsweredByAnother
}

// silentSince reports whether an owner is known from the wire only, and no frame of it was seen after
// the given time. A machine that has given its address up sends nothing that says so.
func silentSince(o *verdict.Owner, at verdict.Stamp) bool {
	return !o.Assigned && !slices.ContainsFunc(o.Claims, func(c *verdict.Claim) bool { return c.Wire() && c.Seen > at })
}

// about reports whether two findings concern the same owner, or at least one of them concerns none.
func about(f, other *verdict.Finding) bool {
	return len(f.Owners) == 0 || len(other.Owners) == 0 || f.Owners[0].ID == other.Owners[0].ID
}

// keep keeps the earlier findings of a pool while its state is not known.
func (a *addressAudit) keep(p *verdict.Pool, kinds ...string) {
	for _, b := range a.in.Before {
		if !b.Pool.Is(p) || b.Waiting || !slices.Contains(kinds, b.Kind) || a.replaced(b.Kind) {
			continue
		}
		b.Pool, b.ID = p, a.id(b.Kind, p.Subject()+" ") // use the current record of the pool, whose node may have been renamed
		if !slices.ContainsFunc(a.out.Findings, func(f verdict.Finding) bool { return f.ID == b.ID }) {
			a.out.Findings = append(a.out.Findings, b)
		}
	}
}

func (a *addressAudit) id(kind, subject string) string {
	return verdict.FindingID(a.policy.Cluster, kind, subject+a.in.Address.String())
}

func (a *addressAudit) again(at verdict.Stamp) {
	if a.out.Again == 0 || at < a.out.Again {
		a.out.Again = at
	}
}

// past keeps the remembered states of live owners, and remembers which of their allocations have
// vanished.
func (a *addressAudit) past() {
	for _, p := range a.in.Past {
		if slices.ContainsFunc(a.judged.Owners, func(o verdict.Owner) bool { return o.ID == p.Owner && o.Alive() }) {
			a.out.Past = append(a.out.Past, p)
		}
	}
	for _, al := range a.in.Vanished {
		if al.Pool.Assigns && al.Pool.State == ipam.Known {
			for i := range a.judged.Owners {
				if o := &a.judged.Owners[i]; o.OnNode(al.Node) {
					a.note(verdict.Past{Owner: o.ID, Kind: verdict.FindingVIPHeldElsewhere, Allocation: al, Since: a.in.Now})
				}
			}
		}
		if al.Pool.Assigns || al.Service != nil || al.Pool.State != ipam.Known && al.Pool.State != ipam.Missing || slices.ContainsFunc(a.in.Allocations, func(other verdict.AllocationFacts) bool { return sameHolder(al, other.Allocation) }) {
			continue // it may still exist, or has moved to another record
		}
		for i := range a.judged.Owners {
			o := &a.judged.Owners[i]
			had := al.Pool.Leases && o.HasMAC(al.MAC) // that its link is the server's may be known only later
			if !had && !concerns(al.Pool, o) {
				continue
			}
			switch {
			case had, al.For(o):
				a.note(verdict.Past{Owner: o.ID, Kind: verdict.FindingInUseUnallocated, Allocation: al, Ended: a.ended(al), Since: a.in.Now})
			case a.in.Now >= max(o.Begun(), al.Heard).Add(a.policy.Settle): // an earlier allocation may have been for a previous owner
				a.note(verdict.Past{Owner: o.ID, Kind: verdict.FindingBookedElsewhere, Allocation: al, Since: a.in.Now})
			}
		}
	}
}

// ended returns when an allocation that has vanished ended, if it is a DHCP lease that was not renewed; 0 otherwise.
func (a *addressAudit) ended(al *verdict.Allocation) verdict.Stamp {
	n := al.Pool.Node
	if al.Expires == 0 || n == nil || a.in.Now < al.Expires.Add(-n.Skew-n.SkewWithin) {
		return 0
	}
	return al.Expires
}

// remember adds the problem with an owner's address to its past.
func (a *addressAudit) remember(f *verdict.Finding) {
	past := verdict.Past{Owner: f.Owners[0].ID, Kind: f.Kind, Since: a.in.Now}
	if len(f.Allocations) > 0 {
		past.Allocation = f.Allocations[0]
	}
	a.note(past)
}

// maxPast is the largest number of past states that are remembered of one address.
const maxPast = 8

func (a *addressAudit) note(p verdict.Past) {
	for i := range a.out.Past {
		b := &a.out.Past[i]
		if b.Owner == p.Owner && b.Kind == p.Kind {
			if p.Kind == verdict.FindingInUseUnallocated && p.Allocation != nil && p.Allocation.Expires != 0 {
				*b = p // clients get new leases
				return
			}
			if b.Allocation == nil || p.Kind == verdict.FindingVIPHeldElsewhere {
				b.Allocation = p.Allocation
			}
			if p.Kind == verdict.FindingVIPHeldElsewhere {
				b.Since = p.Since
			}
			return
		}
	}
	if len(a.out.Past) < maxPast {
		a.out.Past = append(a.out.Past, p)
	}
}
