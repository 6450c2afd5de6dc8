// Package episode tells the episodes of a conflict apart, in the same way in all replicas. It knows only the
// messages of the API.
//
// Each replica counts episodes and notes times for itself: one that was down or cut off from agents has
// another number of episodes, and has detected them later. So what must happen once for each episode is decided
// by what agents report.
package episode

import (
	"slices"
	"time"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// Began returns when an episode of a conflict began: when the second of its owners got the address, by the kernel
// of that owner's node. It is zero if no kernel tells: the second owner is a device outside of the nodes, of which
// agents know only since when they have observed it, or an owner from before a restart of the aggregator.
func Began(c *pb.Conflict) time.Time {
	type arrival struct {
		at     time.Time
		kernel bool
	}
	var all []arrival
	for _, o := range c.GetOwners() {
		switch {
		case o.GetAssignedAt() != nil:
			all = append(all, arrival{o.GetAssignedAt().AsTime(), true})
		case o.GetFirstSeen() != nil:
			all = append(all, arrival{o.GetFirstSeen().AsTime(), false})
		default:
			return time.Time{}
		}
	}
	slices.SortFunc(all, func(a, b arrival) int { return a.at.Compare(b.at) })
	if len(all) == 0 {
		return time.Time{}
	}
	second := all[min(1, len(all)-1)]
	if !second.kernel {
		return time.Time{}
	}
	return second.at.Truncate(time.Microsecond)
}

// jitter is the largest difference between two times at which one episode began: an agent computes when an address
// was assigned from the age of the address, and may get another time after a restart.
const jitter = 500 * time.Millisecond

// Same reports whether two times at which an episode began are those of the same one. It is false if one of them
// is not known.
func Same(a, b time.Time) bool { return !a.IsZero() && !b.IsZero() && a.Sub(b).Abs() <= jitter }
