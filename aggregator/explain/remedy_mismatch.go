package explain

import (
	"cmp"
	"fmt"

	"github.com/ipwitness/ipwitness/ipam"
)

// mismatch builds the text of findings that an IPAM and the kernels disagree about an address.
type mismatch struct{ *findingBuilder }

// unallocated describes an address in use that IPAM considers free.
func (t mismatch) unallocated() {
	free := cmp.Or(ipamOf(t.pool).Free, fmt.Sprintf("%s considers it free and will allocate it to %s.", poolName(t.pool), poolNext(t.pool)))
	t.Summary = fmt.Sprintf("%s is held by %s, but %s", t.f.Address, t.holder(), free)
	t.holding()
	switch p := t.pool; {
	case p.State == ipam.Missing:
		t.State("%s has had no records at all%s.", poolBegin(p), poolLost("since", p))
	case p.LostAt != 0:
		t.State("%s has no record of the address. It lost %s at once%s.", poolBegin(p), plural(p.Lost, "record", "records"), poolLost("at", p))
	default:
		t.State("%s has no record of the address.", poolBegin(p))
	}
	t.history()
	t.fullness()
	remediesOf(t.findingBuilder).Reserve()
	t.closing()
}

// elsewhere describes an address in use that IPAM has allocated to another owner.
func (t mismatch) elsewhere() {
	t.Summary = fmt.Sprintf("%s is held by %s, but %s has allocated it to %s. %s",
		t.f.Address, t.holder(), poolName(t.pool), allocationName(t.allocation), t.elsewhereEnds())
	t.holding()
	t.allocations()
	t.history()
	t.fullness()
	remediesOf(t.findingBuilder).Reassign()
	t.closing()
}

// elsewhereEnds describes the consequence of a wrong allocation.
func (t mismatch) elsewhereEnds() string {
	own := t.owner != nil && t.allocation.Pod != "" && t.allocation.Namespace+"/"+t.allocation.Pod == t.ownerName()
	switch effects := ipamOf(t.pool).Effects; {
	case t.ofNode():
		return "As soon as that owner configures the address, it is a duplicate."
	case effects.WrongNode != "" && own:
		return effects.WrongNode
	case effects.Elsewhere != "":
		return effects.Elsewhere
	}
	return "When that owner ends, the address is freed and allocated to another pod while it is in use."
}

// leaked describes an address that IPAM has allocated to an owner that does not exist.
func (t mismatch) leaked() {
	t.Summary = fmt.Sprintf("%s has allocated %s to %s, but %s. No other pod can get it until it is freed.%s",
		poolBegin(t.pool), t.f.Address, allocationName(t.allocation), t.noHolder(), t.exhaustion())
	t.allocations()
	t.State("No kernel of the nodes that the pool serves has the address, according to their agents.")
	t.fullness()
	remediesOf(t.findingBuilder).Release()
	t.closing()
}

// noHolder states that the address has no holder, and since when.
func (t mismatch) noHolder() string {
	if t.f.Since == 0 {
		return "no live owner holds it"
	}
	return "no live owner has held it since " + stampText(t.f.Since)
}

// exhaustion says when the pool will run out of addresses, if that is soon.
func (t mismatch) exhaustion() string {
	switch {
	case t.use.Size > 0 && t.use.Allocated >= t.use.Size:
		return " The pool has none left."
	case t.use.ExhaustedIn > 0:
		return fmt.Sprintf(" At the rate of the last hour, the pool will have none left in %s.", secondsText(t.use.ExhaustedIn))
	}
	return ""
}
