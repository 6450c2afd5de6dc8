package verdict

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/ipwitness/ipwitness/ipam"
)

// How an owner got its address, according to CNI results, container runtimes and IPAMs.

// network returns the CNI network that assigned the address to an owner; empty if none is known.
func (o *Owner) network() string {
	if names := o.Networks(); len(names) > 0 {
		return names[0]
	}
	return ""
}

// givenByRuntime reports whether the container runtime assigned the address to the owner and no CNI
// network is known.
func (o *Owner) givenByRuntime() bool {
	return o.network() == "" && slices.ContainsFunc(o.Claims, func(c *Claim) bool { return o.networkOf(c) == NetworkOfRuntime })
}

// An Intent is an address that a namespace was meant to have and does not have.
type Intent struct {
	Address netip.Addr
	// Source says so. Interface should have the address; it is empty if the source does not name it.
	Source, Interface string
	// Network is the network that assigned the address, like that of a Claim.
	Network string
}

// Intents returns the addresses that the namespace was meant to have and does not have.
func (ns *Namespace) Intents() (all []Intent) {
	if ns == nil {
		return nil
	}
	for line := range strings.Lines(ns.Intended) {
		w := append(strings.Split(strings.TrimSuffix(line, "\n"), " "), "", "", "")
		if a, err := netip.ParseAddr(w[0]); err == nil {
			all = append(all, Intent{a, w[1], w[2], w[3]})
		}
	}
	return all
}

// intent returns the source that meant a namespace to have an address that its kernel does not have; zero if there
// is none. A guest behind the namespace's port may have the address.
func (ns *Namespace) intent(a netip.Addr) Intent {
	for _, i := range ns.Intents() {
		if i.Address == a {
			return i
		}
	}
	return Intent{}
}

// served returns what gave an owner the address if a network stack outside of its kernel has it, such as that of gVisor:
// the kernel lacks what the namespace was given, and the namespace announces the address, or answers for it, through its own
// port. Frames from before the kernel lost an address have ended with it. The guest of a virtual machine may have been migrated.
func (j *attribution) served(o *Owner, e *evidence) *Intent {
	if o.Namespace == nil || o.Namespace.Intended == "" || e.configured() || j.in.runsMachine(o.Namespace) {
		return nil
	}
	var newest *Claim
	for _, c := range o.Claims {
		if (c.Kind == Announced || c.Kind == Answered) && !c.Weak() && o.behind(c) && j.fresh(c) && (newest == nil || c.Seen > newest.Seen) {
			newest = c
		}
	}
	i := o.Namespace.intent(j.in.Address)
	if newest == nil || i.Source == "" {
		return nil
	}
	if !newest.Node().Unheard {
		j.again(newest.Seen.Add(j.policy.StaleAfter))
	}
	return &Intent{i.Address, strings.Clone(i.Source), strings.Clone(i.Interface), strings.Clone(i.Network)}
}

// match is how well an allocation matches an owner.
type match uint8

const (
	noMatch match = iota
	possibleMatch
	certainMatch
)

// matches returns whether an allocation is for an owner. It returns possibleMatch if one of them is
// not identified well enough.
func (al *Allocation) matches(o *Owner) match {
	w := o.Workload()
	switch p := al.Pool; {
	case al.MAC != "":
		return al.leasedTo(o)
	case o.Namespace == nil:
		return possibleMatch
	case p.Node != nil && !p.Node.Is(o.Node), al.Node != "" && !o.OnNode(al.Node):
		return noMatch
	case al.Nameless():
		return possibleMatch
	case al.Purpose != "" && (w.Kind == Host || al.ofEndpoint(w)):
		return certainMatch
	case al.Purpose != "" || w.Kind == Host:
		return noMatch
	case al.ContainerID != "" && al.ContainerID == w.ContainerID:
		return certainMatch
	case al.Pod != "" && w.Kind == Pod && w.Name != "":
		if al.Names(o) {
			return certainMatch
		}
		return noMatch
	case al.ContainerID != "" && w.ContainerID != "":
		return noMatch
	}
	return possibleMatch
}

// leasedTo returns whether a DHCP server has leased an address to an owner. It identifies clients by
// their hardware addresses on its link.
func (al *Allocation) leasedTo(o *Owner) match {
	p := al.Pool
	near := o.Node.Is(p.Node) || o.Interface.Link != nil && o.Interface.Link.Domain != nil
	for _, c := range o.Claims {
		near = near || c.Node().Is(p.Node)
	}
	if near && slices.ContainsFunc(o.Claims, func(c *Claim) bool {
		if c.Wire() {
			return c.MAC.String() == al.MAC
		}
		return c.Interface.MAC.String() == al.MAC
	}) {
		return certainMatch
	}
	return noMatch
}

// matches returns whether an allocation is for an owner of the conflict. An allocation that
// certainly is for one owner is for no other one.
func (q *inquiry) matches(al *Allocation, o *Owner) match {
	b := al.matches(o)
	if b == possibleMatch && slices.ContainsFunc(q.owners, func(other *Owner) bool { return other != o && al.matches(other) == certainMatch }) {
		return noMatch
	}
	return b
}

// allocationsOf returns the allocations of the address in a pool.
func (q *inquiry) allocationsOf(p *Pool) (all []*Allocation) {
	for _, al := range q.allocations {
		if al.Pool.Is(p) {
			all = append(all, al)
		}
	}
	return all
}

// bestMatch returns how well the best allocation of the address in a pool, or in any pool if p is
// nil, matches an owner.
func (q *inquiry) bestMatch(p *Pool, o *Owner) (most match) {
	for _, al := range q.allocations {
		if p == nil || al.Pool.Is(p) {
			most = max(most, q.matches(al, o))
		}
	}
	return most
}

// pastOf returns the past of an owner with a kind; nil if there is none.
func (q *inquiry) pastOf(o *Owner, kind string) *Past {
	for i := range q.in.Past {
		if p := &q.in.Past[i]; p.Owner == o.ID && p.Kind == kind {
			return p
		}
	}
	return nil
}

// vanishedRecord returns the owner's own allocation that has vanished; nil if none is known.
func (q *inquiry) vanishedRecord(o *Owner) *Past {
	if p := q.pastOf(o, FindingInUseUnallocated); p != nil && p.Allocation != nil && p.Allocation.matches(o) == certainMatch {
		return p
	}
	return nil
}

// given reports whether an IPAM, a runtime or Kubernetes is known to have given the owner the
// address.
func (q *inquiry) given(o *Owner) bool {
	return o.network() != "" || o.givenByRuntime() || o.Namespace.intent(q.c.Address).Source != "" ||
		q.bestMatch(nil, o) == certainMatch || q.vanishedRecord(o) != nil
}

// fixed returns, for each owner, the configuration that fixes the address for it; nil if an owner is not known to have one.
func (q *inquiry) fixed() (facts []Fact) {
	for _, o := range q.owners {
		i := slices.IndexFunc(q.allocations, func(al *Allocation) bool { return al.Pool.Engine && al.FixedIn != "" && al.matches(o) == certainMatch })
		if i < 0 {
			return nil
		}
		facts = append(facts, Fact{Kind: FactFixed, Owners: ids(o), Text: q.allocations[i].FixedIn})
	}
	return facts
}

// gave reports whether a pool assigned the address to an owner, according to CNI results, the
// container runtime and the pool's own records. A DHCP server gives addresses to other nodes, too, but only
// its records say so.
func (q *inquiry) gave(p *Pool, o *Owner) bool {
	if o.Namespace == nil {
		return false
	}
	if past := q.vanishedRecord(o); past != nil && past.Allocation.Pool.Is(p) {
		return true
	}
	if q.bestMatch(p, o) == certainMatch {
		return true
	}
	if p.Node != nil && !p.Node.Is(o.Node) || p.OfNode() && !o.OnNode(p.Name) {
		return false
	}
	if slices.ContainsFunc(q.allocations, func(al *Allocation) bool {
		return (al.Pool.IPAM != p.IPAM || al.Pool.Realm != p.Realm) && q.matches(al, o) == certainMatch
	}) {
		return false // another pool assigned it
	}
	if !p.Contains(q.c.Address) && len(q.allocationsOf(p)) == 0 {
		return false
	}
	networks := o.Networks()
	for _, n := range networks {
		if serves, unknown := p.Serves(n); serves || unknown && p.Meets(o) {
			return true
		}
	}
	return len(networks) == 0 && o.givenByRuntime() && p.Meets(o)
}

// sourceFacts returns the fact that tells how an owner got the address; nil if that is not known.
func (q *inquiry) sourceFacts(o *Owner) []Fact {
	source := o.Namespace.intent(q.c.Address).Source
	switch {
	case o.network() != "":
		return []Fact{{Kind: FactGivenByNetwork, Owners: ids(o), Network: o.network()}}
	case o.givenByRuntime():
		return []Fact{{Kind: FactGivenByRuntime, Owners: ids(o)}}
	case source != "":
		return []Fact{{Kind: FactMeant, Owners: ids(o), Text: source}}
	}
	for _, al := range q.allocations {
		if al.matches(o) == certainMatch {
			return []Fact{{Kind: FactAllocated, Owners: ids(o), Pool: al.Pool.Label()}}
		}
	}
	if past := q.vanishedRecord(o); past != nil {
		return []Fact{{Kind: FactWasAllocated, Owners: ids(o), Pool: past.Allocation.Pool.Label()}}
	}
	return nil
}

// record returns the fact with a pool's records of the address.
func (q *inquiry) record(p *Pool) Fact {
	f := Fact{Kind: FactRecord, Pool: p.Label(), State: p.State}
	if p.State == ipam.Unreadable {
		f.Text = p.Problem
	}
	for _, al := range q.allocationsOf(p) {
		r := Record{Holder: al.holder(), At: al.AllocatedAt}
		for _, o := range q.owners {
			if al.matches(o) == certainMatch {
				r.Owner = o.ID
				break
			}
		}
		f.Records = append(f.Records, r)
	}
	return f
}

// pods reports whether one of the owners is a pod or is known to have been given the address.
func (q *inquiry) pods() bool {
	return slices.ContainsFunc(q.owners, func(o *Owner) bool { return o.Kind() == Pod || q.given(o) })
}
