// Package churn has pods that come and go, and the custom resources that the programs of IPAMs write
// for them.
package churn

import (
	"math/rand/v2"
	"slices"
	"time"
)

// A Step is a change of one pod: its record or its address comes or goes.
type Step struct {
	At time.Duration
	// Pod is the number of the pod, and Address that of its address.
	Pod, Address int
	// Record is set if the record changes, and otherwise the address does. Comes is set if it comes.
	Record, Comes bool
}

// Steps returns the steps of pods that come and go with a few addresses, in order. Of the record and
// the address of a pod, either one may come and go first, up to slack before the other. The next pod
// gets the lowest free address, at once. The last pods stay.
func Steps(random *rand.Rand, pods, addresses, stay int, slack time.Duration) (steps []Step) {
	between := func(least, most time.Duration) time.Duration {
		return least + time.Duration(random.Int64N(int64(most-least)))
	}
	// A change is at a time, of the record and of the address.
	type change [2]time.Duration
	free := make([]change, addresses)
	var now time.Duration
	for pod := range pods {
		now += between(0, time.Second)
		begin := change{now, now + between(0, slack)}
		if random.IntN(2) == 0 {
			begin[0], begin[1] = begin[1], begin[0]
		}
		lowest := slices.IndexFunc(free, func(f change) bool { return f[0] < begin[0] && f[1] < begin[1] })
		if lowest < 0 {
			continue // as if the pod had waited for an address, and had been deleted
		}
		end := max(begin[0], begin[1]) + between(time.Millisecond, 40*time.Second)
		ends := change{end, end + between(0, slack)}
		if random.IntN(2) == 0 {
			ends[0], ends[1] = ends[1], ends[0]
		}
		if free[lowest] = ends; pod >= pods-stay {
			free[lowest] = change{1 << 62, 1 << 62}
		}
		for what, record := range []bool{true, false} {
			steps = append(steps, Step{begin[what], pod, lowest, record, true})
			if pod < pods-stay {
				steps = append(steps, Step{ends[what], pod, lowest, record, false})
			}
		}
	}
	slices.SortStableFunc(steps, func(a, b Step) int { return int(a.At - b.At) })
	return steps
}
