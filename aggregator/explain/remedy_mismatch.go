package explain

import (
	"fmt"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// mismatch words the findings that an IPAM and the kernels differ about an address.
type mismatch struct{ *telling }

// unallocated: somebody has the address, and IPAM takes it for free.
func (t mismatch) unallocated() {
	t.told.Summary = fmt.Sprintf("%s is held by %s, and %s takes it for free: it will give it to %s.",
		t.f.Address, t.holder(), poolName(t.pool), poolNext(t.pool))
	if t.pool.IPAM == verdict.Cilium {
		t.told.Summary = fmt.Sprintf("%s is held by %s, and no CiliumEndpoint tells of that. If Cilium's agent does not know of it either, it gives the address to one of the next pods there.",
			t.f.Address, t.holder())
	}
	t.holding()
	switch p := t.pool; {
	case p.State == verdict.PoolMissing:
		t.evidence("%s has no records at all%s.", poolBegin(p), poolLost(p))
	case p.LostAt != 0:
		t.evidence("%s has no record of the address. It lost %s at once%s.", poolBegin(p), plural(p.Lost, "record", "records"), poolLost(p))
	default:
		t.evidence("%s has no record of the address.", poolBegin(p))
	}
	t.history()
	t.fullness()
	remediesOf(t.telling).reserve()
	t.closing()
}

// elsewhere: somebody has the address, and IPAM has it for somebody else.
func (t mismatch) elsewhere() {
	t.told.Summary = fmt.Sprintf("%s is held by %s, and %s has it booked for %s. %s",
		t.f.Address, t.holder(), poolName(t.pool), allocationName(t.booked), t.elsewhereEnds())
	t.holding()
	t.bookings()
	t.history()
	t.fullness()
	remediesOf(t.telling).rebook()
	t.closing()
}

// elsewhereEnds says what comes of a wrong booking.
func (t mismatch) elsewhereEnds() string {
	own := t.owner != nil && t.booked.Pod != "" && t.booked.Namespace+"/"+t.booked.Pod == t.ownerName()
	switch {
	case t.ofNode():
		return "As soon as that one is up with it, it is a duplicate."
	case t.pool.IPAM == verdict.Cilium:
		return "If Cilium's agent has it so, too, the address is freed with that one, and given to another pod while it is in use."
	case t.pool.IPAM == verdict.Calico && own:
		return "Calico's garbage collector takes such a booking for leaked and frees the address 15 minutes after it finds it (leakGracePeriod); then another pod gets the address."
	}
	return "When that one ends, the address is freed, and given to another pod while it is in use."
}

// leaked: IPAM has given the address to somebody who is not there.
func (t mismatch) leaked() {
	t.told.Summary = fmt.Sprintf("%s has %s booked for %s, and nobody alive holds it%s. No pod gets it while that is so.%s",
		poolBegin(t.pool), t.f.Address, allocationName(t.booked), t.since(), t.exhaustion())
	t.bookings()
	t.evidence("No kernel of a node that the pool serves has the address, by what their agents report.")
	t.fullness()
	remediesOf(t.telling).release()
	t.closing()
}

// exhaustion says when the pool has none left, where that is soon.
func (t mismatch) exhaustion() string {
	switch {
	case t.use.Size > 0 && t.use.Allocated >= t.use.Size:
		return " The pool has none left."
	case t.use.ExhaustedIn > 0:
		return fmt.Sprintf(" At the rate of the last hour the pool has none left in %s.", secondsText(t.use.ExhaustedIn))
	}
	return ""
}
