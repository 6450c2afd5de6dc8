package explain

import (
	"time"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam/advice"
)

// buildReused builds the text of the finding that an owner has an address that another owner had a
// moment before.
func buildReused(t *findingBuilder) {
	f, addr := t.f.Former, t.f.Address
	was, is := &f.Owner, t.owner
	t.Summary = capital(placed(is)) + " got " + addr.String() + " " + gapText(f.Gap()) + " " + placed(was) +
		" left it. Neighbour tables and NAT may still have the address for the former owner."
	t.State("%s had %s, with MAC %s, until %s by the clock of the aggregator.", capital(placed(was)), addr, was.MAC, stampText(f.Until))
	t.holding()
	t.Act(advice.Say("Leave %s as it is: it is the only owner of %s.", OwnerName(is), addr))
	if was.MAC != is.MAC {
		t.Act(advice.Say("If a host on the same link does not reach it, run `ip neigh show to %s` on that host. If the entry has MAC %s, it is that of the former owner: delete it with `ip neigh flush to %s`. The host then resolves the address again.",
			addr, was.MAC, addr))
	}
	t.Act(advice.Say("If requests to a Service of the former owner reach %s, run `conntrack -D -p tcp --state SYN_SENT --reply-src %s` on the nodes of the clients. It removes half-open connections only, which the clients then open again.",
		OwnerName(is), addr))
	if later := ipamOf(t.pool).Cooldown; later.Text != "" {
		t.Act(later)
	} else {
		t.Act(advice.Say("Have the IPAM wait for longer before it allocates an address again, if it has a setting for that. Otherwise give it a larger range: most IPAMs then take longer to come back to an address."))
	}
	t.Act(advice.Say("The finding ends by itself when %s no longer has the address, and %d minutes after it got the address at the latest.", OwnerName(is), verdict.ReusedFor/time.Minute))
}

// gapText says for how long an address was unused, as the beginning of a clause.
func gapText(gap time.Duration) string {
	switch {
	case gap == 0:
		return "just before"
	case gap < time.Second:
		return "less than a second after"
	}
	return secondsText(gap.Seconds()) + " after"
}
