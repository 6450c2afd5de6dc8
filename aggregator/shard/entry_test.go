package shard

import (
	"testing"

	"github.com/ipwitness/ipwitness/aggregator/index"
)

func TestTimersRingInOrderAndSoonerOnesReplaceLater(t *testing.T) {
	w := &worker{entries: map[index.Address]*entry{}}
	a, b, c := &entry{}, &entry{}, &entry{}
	w.arm(a, 30)
	w.arm(b, 10)
	w.arm(c, 20)
	w.arm(a, 40) // stays
	w.arm(c, 5)
	w.disarm(b)
	if len(w.timers) != 2 || w.timers[0] != c || c.again != 5 || a.again != 30 || b.again != 0 {
		t.Errorf("got %d timers, first %d; a %d, b %d", len(w.timers), w.timers[0].again, a.again, b.again)
	}
}
