package live

import (
	"context"
	"net/netip"

	"github.com/ipwitness/ipwitness/aggregator/facts"
	"github.com/ipwitness/ipwitness/aggregator/index"
	"github.com/ipwitness/ipwitness/aggregator/journal"
	"github.com/ipwitness/ipwitness/ipam"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// Agents keep frames for as long as they count. Those of an owner that gave its address up before the start would make a
// duplicate of an address that was handed over or is used again.

// mostOwners is the number of owners from before the start that are compared with what their nodes report. More would push out
// what is known about owners that leave later.
const mostOwners = 1 << 16

// readDepartures takes over which owners have left while frames of them still count.
func (r *Recall) readDepartures(ctx context.Context) error {
	var left []facts.Departure
	err := r.Journal.Events(ctx, &journal.Query{
		Kind: pb.Event_OWNER, Since: r.Facts.Clock().Add(-r.Facts.Policy.StaleAfter).Time(),
	}, func(e *pb.Event) bool {
		if d, ok := departure(e.GetOwner()); ok && e.GetType() == pb.Watch_REMOVED {
			d.At = facts.Stamp(e.GetTime())
			left = append(left, d)
		}
		return len(left) < mostOwners
	})
	if err == nil && left != nil {
		r.Judge(r.Facts.RecallDepartures(left))
	}
	return err
}

// readOwners takes over which owners there were whose frames reach other nodes. Those that their nodes do not report again
// have left. There may be millions of owners, whose reading takes seconds.
func (r *Recall) readOwners(ctx context.Context) error {
	var all []facts.Departure
	err := r.Journal.At(ctx, pb.Event_OWNER, r.Facts.Clock().Time(), ipam.Range{}, journal.Position{}, func(e *pb.Event, _ journal.Position) bool {
		o := e.GetOwner()
		if d, ok := departure(o); ok && (o.GetHostInterface() == "" || o.GetScope().GetKind() == pb.Scope_LINK) {
			all = append(all, d)
		}
		return len(all) < mostOwners
	})
	if err == nil && all != nil {
		r.Judge(r.Facts.RecallDepartures(all))
	}
	return err
}

// departure returns that a recorded owner has left; false if its kernel never had the address, or its MAC identifies no owner.
func departure(o *pb.Owner) (d facts.Departure, ok bool) {
	a, err := netip.ParseAddr(o.GetAddress())
	mac := parseMAC(o.GetMac())
	if err != nil || o.GetAssignedAt() == nil || mac.Shared() {
		return d, false
	}
	return facts.Departure{Address: index.AddressOf(a), Node: o.GetNode(), MAC: mac}, true
}
