package verdict

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Who gave an owner its address, as CNI results, container runtimes and IPAMs say.

// network is the CNI network that gave an owner the address; empty where none is known
// to have.
func (o *Owner) network() string {
	if names := o.Networks(); len(names) > 0 {
		return names[0]
	}
	return ""
}

// byRuntime tells whether the container runtime says that it gave the address, and
// nobody says more.
func (o *Owner) byRuntime() bool {
	return o.network() == "" && slices.ContainsFunc(o.Claims, func(c *Claim) bool { return c.Kind == Assigned && c.Network == networkOfCRI })
}

// meantBy is who meant an owner to have an address that its kernel does not have: what
// is behind its port may have it.
func (o *Owner) meantBy(a netip.Addr) string {
	if o.Namespace == nil {
		return ""
	}
	for line := range strings.Lines(o.Namespace.Intended) {
		if w := strings.Fields(line); len(w) > 1 && w[0] == a.String() {
			return w[1]
		}
	}
	return ""
}

// booking is how far an allocation is an owner's.
type booking uint8

const (
	notBooked booking = iota
	maybeBooked
	booked
)

// books tells whether an allocation is for an owner. It is maybe, where they do not
// say enough of whom they are about.
func (al *Allocation) books(o *Owner) booking {
	w := o.Workload()
	switch p := al.Pool; {
	case o.Namespace == nil:
		return maybeBooked
	case p.Node != nil && !p.Node.Is(o.Node), al.Node != "" && !o.OnNode(al.Node):
		return notBooked
	case al.Nameless():
		return maybeBooked
	case al.Purpose != "" && (w.Kind == Host || al.ofEndpoint(w)):
		return booked
	case al.Purpose != "" || w.Kind == Host:
		return notBooked
	case al.ContainerID != "" && al.ContainerID == w.ContainerID:
		return booked
	case al.Pod != "" && w.Kind == Pod && w.Name != "":
		if al.Pod == w.Name && al.Namespace == w.Namespace {
			return booked
		}
		return notBooked
	case al.ContainerID != "" && w.ContainerID != "":
		return notBooked
	}
	return maybeBooked
}

// books tells whether an allocation is for one of the owners: for nobody else, where
// it is sure for whom it is.
func (q *inquiry) books(al *Allocation, o *Owner) booking {
	b := al.books(o)
	if b == maybeBooked && slices.ContainsFunc(q.owners, func(other *Owner) bool { return other != o && al.books(other) == booked }) {
		return notBooked
	}
	return b
}

// allocationsOf are what a pool has of the address.
func (q *inquiry) allocationsOf(p *Pool) (all []*Allocation) {
	for _, al := range q.allocations {
		if al.Pool.Is(p) {
			all = append(all, al)
		}
	}
	return all
}

// bookedFor is how far an owner has the address by a pool, or by any where none is
// named.
func (q *inquiry) bookedFor(p *Pool, o *Owner) (most booking) {
	for _, al := range q.allocations {
		if p == nil || al.Pool.Is(p) {
			most = max(most, q.books(al, o))
		}
	}
	return most
}

// remembered is what is remembered of an owner: an allocation of a kind, or none.
func (q *inquiry) remembered(o *Owner, kind string) *Past {
	for i := range q.in.Past {
		if p := &q.in.Past[i]; p.Owner == o.ID && p.Kind == kind {
			return p
		}
	}
	return nil
}

// vanished is the owner's own allocation that is gone; nil for none that is known.
func (q *inquiry) vanished(o *Owner) *Past {
	if p := q.remembered(o, FindingInUseUnallocated); p != nil && p.Allocation != nil && p.Allocation.books(o) == booked {
		return p
	}
	return nil
}

// given tells whether it is known that somebody whose task it is gave an owner the
// address.
func (q *inquiry) given(o *Owner) bool {
	return o.network() != "" || o.byRuntime() || o.meantBy(q.c.Address) != "" ||
		q.bookedFor(nil, o) == booked || q.vanished(o) != nil
}

// gave tells whether a pool gave an owner the address, as far as CNI results, the
// container runtime and its own records say.
func (q *inquiry) gave(p *Pool, o *Owner) bool {
	if o.Namespace == nil || p.Node != nil && !p.Node.Is(o.Node) {
		return false
	}
	if past := q.vanished(o); past != nil && past.Allocation.Pool.Is(p) {
		return true
	}
	if q.bookedFor(p, o) == booked {
		return true
	}
	if slices.ContainsFunc(q.allocations, func(al *Allocation) bool {
		return (al.Pool.IPAM != p.IPAM || al.Pool.Realm != p.Realm) && q.books(al, o) == booked
	}) {
		return false // another one did
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
	return len(networks) == 0 && o.byRuntime() && p.Meets(o)
}

// gift says who gave an owner the address.
func (q *inquiry) gift(o *Owner) string {
	switch source := o.meantBy(q.c.Address); {
	case o.network() != "":
		return fmt.Sprintf("A CNI result says that network %s gave it to %s on node %s.", o.network(), o.name(), o.Node.Name)
	case o.byRuntime():
		return fmt.Sprintf("The container runtime says that it gave it to %s on node %s.", o.name(), o.Node.Name)
	case source != "":
		return fmt.Sprintf("It was meant for %s on node %s (%s).", o.name(), o.Node.Name, source)
	}
	for _, al := range q.allocations {
		if al.books(o) == booked {
			return capital(fmt.Sprintf("%s has it for %s on node %s.", callPool(al.Pool), o.name(), o.Node.Name))
		}
	}
	if past := q.vanished(o); past != nil {
		return capital(fmt.Sprintf("%s had it for %s on node %s.", callPool(past.Allocation.Pool), o.name(), o.Node.Name))
	}
	return ""
}

// record says what a pool has of the address.
func (q *inquiry) record(p *Pool) string {
	all := q.allocationsOf(p)
	switch {
	case p.State == PoolUnreadable:
		return capital(fmt.Sprintf("the records of %s cannot be read%s.", callPool(p), after(": ", p.Problem)))
	case p.State == PoolReading:
		return capital(fmt.Sprintf("the records of %s are being read.", callPool(p)))
	case p.State == PoolMissing:
		return capital(fmt.Sprintf("the records of %s are missing.", callPool(p)))
	case len(all) == 0:
		return capital(fmt.Sprintf("%s has no record of it.", callPool(p)))
	}
	words := make([]string, 0, len(all))
	alone, stale := "", ""
	if len(all) == 1 && len(q.owners) > 1 {
		alone = " alone"
	}
	for _, al := range all {
		words = append(words, q.whom(al)+alone+after(" since ", when(al.AllocatedAt)))
	}
	if p.State == PoolStale {
		stale = ", as far as it was heard from last"
	}
	return capital(fmt.Sprintf("%s has it for %s%s.", callPool(p), list(words), stale))
}

// whom says for whom an allocation is, by the name of an owner where it is one's.
func (q *inquiry) whom(al *Allocation) string {
	for _, o := range q.owners {
		if al.books(o) == booked {
			return o.name()
		}
	}
	return al.whom()
}

// whom says for whom an allocation is.
func (al *Allocation) whom() string {
	var who string
	switch {
	case al.Purpose != "":
		who = "the " + al.Purpose
	case al.Pod != "":
		who = "pod " + al.Namespace + "/" + al.Pod
	case al.ContainerID != "":
		who = "container " + shortID(al.ContainerID)
	default:
		who = "somebody"
	}
	if al.Node != "" {
		who += " on node " + al.Node
	}
	return who
}

// callPool names a pool in a sentence.
func callPool(p *Pool) string {
	name := "IPAM " + p.IPAM + " (" + p.Name
	if p.Network != "" {
		name += ", network " + p.Network
	}
	if p.Node != nil {
		return name + ", node " + p.Node.Name + ")"
	}
	return name + ")"
}

// rangesOf says what a pool gives addresses from.
func rangesOf(p *Pool) string {
	words := make([]string, 0, len(p.Ranges))
	for _, r := range p.Ranges {
		words = append(words, r.First.String()+" to "+r.Last.String())
	}
	if len(words) == 0 {
		return ""
	}
	return list(words)
}

// addrText is an address in words.
func addrText(a *netip.Addr) string { return a.String() }

// shortPool names a pool where there is little room.
func shortPool(p *Pool) string {
	if p.Node != nil {
		return p.IPAM + " on node " + p.Node.Name
	}
	return p.IPAM
}

// when is a moment as people read it; empty where it is not known.
func when(s Stamp) string {
	if s == 0 {
		return ""
	}
	return s.Time().Format("2006-01-02 15:04:05.000")
}

// after puts words before a text that is there.
func after(words, text string) string {
	if text == "" {
		return ""
	}
	return words + text
}
