package verdict

import (
	"fmt"
	"slices"
)

// Causes that the records of an IPAM tell.

// bookedElsewhere: IPAM had the address for another node or pod than the one that held
// it, and freed it with that.
func (q *inquiry) bookedElsewhere() (r reason) {
	if !q.plain() {
		return reason{}
	}
	for _, o := range q.owners {
		if o.Namespace == nil || o.Kind() == Host || !q.rivalGiven(o) {
			continue
		}
		past := q.elsewhere(o)
		nodename := q.wrongNodename(o)
		if past == nil && nodename == "" {
			continue
		}
		r.wrong = append(r.wrong, o)
		if past != nil {
			al := past.Allocation
			r.pools = append(r.pools, al.Pool)
			r.short = fmt.Sprintf("IPAM had it for %s while %s had it, and freed it with that.", al.whom(), o.placed())
			r.fact("%s had it for %s while %s had it (known since %s).", callPool(al.Pool), al.whom(), o.placed(), when(past.Since))
		}
		if nodename != "" {
			if past == nil {
				r.short = fmt.Sprintf("Calico books the addresses of pods on node %s for node %s, and frees them with that.", o.Node.Name, nodename)
			}
			r.fact("/var/lib/calico/nodename on node %s says %s: Calico books the addresses of its pods for that node.", o.Node.Name, nodename)
		}
	}
	if r.fits() {
		for _, p := range r.about(q) {
			r.fact("%s", q.record(p))
		}
		return r
	}
	var nodes []string
	for _, o := range q.owners {
		if name := o.Node.CalicoNodename; name != "" && o.Namespace != nil {
			switch {
			case o.OnNode(name):
				nodes = append(nodes, o.Node.Name)
			case !q.ofCalico():
				return not("/var/lib/calico/nodename on node %s says %s, but no IPPool of Calico has the address", o.Node.Name, name)
			}
		}
	}
	for _, p := range q.pools {
		if p.Node == nil && p.State == PoolKnown && q.pods() {
			reason := not("as far as is remembered, %s never had it for another node or pod than its holder's", callPool(p))
			if len(nodes) > 0 {
				reason.not += fmt.Sprintf("; /var/lib/calico/nodename is right on %s", list(nodes))
			}
			return reason
		}
	}
	return reason{}
}

// about are the pools of a reason, or all that have records of the address.
func (r *reason) about(q *inquiry) []*Pool {
	var pools []*Pool
	for _, al := range q.allocations {
		if !slices.ContainsFunc(pools, al.Pool.Is) && (len(r.pools) == 0 || slices.ContainsFunc(r.pools, al.Pool.Is)) {
			pools = append(pools, al.Pool)
		}
	}
	return pools
}

// rivalGiven tells whether somebody else than an owner was given the address.
func (q *inquiry) rivalGiven(o *Owner) bool {
	return slices.ContainsFunc(q.owners, func(other *Owner) bool { return other != o && q.given(other) })
}

// elsewhere is what is remembered of an owner that IPAM had for somebody else: for
// nobody who has the address now, as IPAM has it for those rightly.
func (q *inquiry) elsewhere(o *Owner) *Past {
	past := q.remembered(o, FindingBookedElsewhere)
	if past == nil || past.Allocation == nil || q.vanished(o) != nil {
		return nil
	}
	al := past.Allocation
	for _, rival := range q.owners {
		if rival != o && al.books(rival) != notBooked {
			return nil
		}
	}
	if al.Node != "" && !o.OnNode(al.Node) {
		return past
	}
	for _, rival := range q.owners {
		if rival != o && rival.Begun() <= past.Since {
			return nil // both came first: who had the record is not known
		}
	}
	return past
}

// wrongNodename is the node that Calico's plugin books for on an owner's node, where
// that is another one; empty where it is right, or nothing of Calico's is concerned.
func (q *inquiry) wrongNodename(o *Owner) string {
	name := o.Node.CalicoNodename
	if name == "" || o.OnNode(name) || !q.ofCalico() || q.bookedFor(nil, o) == booked || q.vanished(o) != nil {
		return ""
	}
	return name
}

// ofCalico tells whether the address is Calico's to give.
func (q *inquiry) ofCalico() bool {
	return slices.ContainsFunc(q.pools, func(p *Pool) bool { return p.IPAM == Calico })
}

// stateLost: an IPAM gave the address twice, as it forgot that it had.
func (q *inquiry) stateLost() reason {
	if !q.plain() {
		return reason{}
	}
	var excluded reason
	for _, p := range q.pools {
		var mine []*Owner
		for _, o := range q.owners {
			if q.gave(p, o) {
				mine = append(mine, o)
			}
		}
		if len(mine) < 2 {
			if len(mine) == 1 && excluded.not == "" {
				excluded = not("%s gave it to %s alone, as far as is known", callPool(p), mine[0].name())
			}
			continue
		}
		r := q.forgotten(p, mine)
		if r.fits() {
			return r
		}
		excluded = r
	}
	if excluded.not != "" {
		return excluded
	}
	return q.noRecords()
}

// forgotten says of whom a pool has no record that it gave the address to.
func (q *inquiry) forgotten(p *Pool, mine []*Owner) (r reason) {
	if p.State == PoolReading {
		return open("the records of %s are still being read", callPool(p))
	}
	free := q.allocationsOf(p)
	var lost, unsure []*Owner
	for _, o := range mine {
		switch q.bookedFor(p, o) {
		case booked:
			free = slices.DeleteFunc(free, func(al *Allocation) bool { return al.books(o) == booked })
		case maybeBooked:
			unsure = append(unsure, o)
		default:
			lost = append(lost, o)
		}
	}
	if len(free) == 0 {
		lost, unsure = append(lost, unsure...), nil // all records are somebody else's
	}
	readable := p.State == PoolKnown || p.State == PoolMissing
	switch {
	case !readable && !q.oneNetwork(p, mine):
		return open("the records of %s cannot be read now%s", callPool(p), after(": ", p.Problem))
	case readable && len(lost) == 0 && len(unsure) <= len(free):
		return not("%s has it for %s", callPool(p), list(names(mine)))
	}
	for _, o := range lost {
		if o.Pod != nil && o.Pod.DeletionTimestamp != 0 {
			return not("%s is being deleted: plugins free an address before they take it away", o.name())
		}
	}
	r.pools = []*Pool{p}
	for _, o := range mine {
		if gift := q.gift(o); gift != "" {
			r.fact("%s", gift)
		}
	}
	r.fact("%s", q.record(p))
	switch {
	case !readable:
		r.fact("While its records are whole, %s gives no address of a network twice.", p.IPAM)
		r.short = fmt.Sprintf("Records of %s were lost: it gave the address twice.", shortPool(p))
	case len(lost) > 0 && len(lost) < len(mine):
		r.short = fmt.Sprintf("The record that %s had for %s is lost, so it gave the address out again.", shortPool(p), list(names(lost)))
	default:
		r.short = fmt.Sprintf("The record that %s had of it is lost, so it gave the address out again.", shortPool(p))
	}
	if p.LostAt != 0 {
		r.fact("All of its records were lost at %s%s.", when(p.LostAt), counted(p.Lost))
	}
	for _, o := range mine {
		if past := q.vanished(o); past != nil {
			r.fact("Its record of %s vanished at %s.", o.name(), when(past.Since))
		}
	}
	return r
}

// oneNetwork tells whether a pool of one node gave the address to all of some owners
// for one network: with whole records it cannot.
func (q *inquiry) oneNetwork(p *Pool, mine []*Owner) bool {
	network := mine[0].network()
	return p.IPAM == HostLocal && network != "" &&
		!slices.ContainsFunc(mine, func(o *Owner) bool { return o.network() != network })
}

// noRecords says that IPAM would have to be asked, and is not known.
func (q *inquiry) noRecords() reason {
	var given []*Owner
	for _, o := range q.owners {
		if q.given(o) {
			given = append(given, o)
		}
	}
	if len(given) < 2 || len(q.pools) > 0 && q.allKnown() {
		return reason{}
	}
	network := given[0].network()
	for _, o := range given {
		if o.network() != network || !o.Node.Is(given[0].Node) {
			network = ""
		}
	}
	because := ""
	if network != "" {
		because = fmt.Sprintf("both were given it by one network (%s), as when IPAM forgets; but ", network)
	}
	return open("%sno IPAM records of %s are known that have it", because, nodesOf(given))
}

// allKnown tells whether all pools that may have the address are known.
func (q *inquiry) allKnown() bool {
	return !slices.ContainsFunc(q.pools, func(p *Pool) bool { return p.State != PoolKnown })
}

// counted says how many records were lost.
func counted(n uint32) string {
	switch n {
	case 0:
		return ""
	case 1:
		return " (there was one)"
	}
	return fmt.Sprintf(" (there were %d)", n)
}

// names names owners.
func names(owners []*Owner) []string {
	words := make([]string, 0, len(owners))
	for _, o := range owners {
		words = append(words, o.name())
	}
	return words
}

// nodesOf names the nodes of owners.
func nodesOf(owners []*Owner) string {
	var words []string
	for _, o := range owners {
		if !slices.Contains(words, o.Node.Name) {
			words = append(words, o.Node.Name)
		}
	}
	if len(words) == 1 {
		return "node " + words[0]
	}
	return "nodes " + list(words)
}
