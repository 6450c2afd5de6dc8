package judge

import (
	"container/heap"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/index"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

func TestTimersFireInOrder(t *testing.T) {
	w := &worker{entries: map[index.Address]*entry{}}
	r := rand.New(rand.NewPCG(1, 2))
	entries, want := make([]entry, 50), make([]verdict.Stamp, 50)
	for range 1000 {
		i, at := r.IntN(len(entries)), 1+verdict.Stamp(r.IntN(1000))
		if r.IntN(10) == 0 {
			w.disarm(&entries[i])
			want[i] = 0
			continue
		}
		w.arm(&entries[i], at)
		if want[i] == 0 || at < want[i] {
			want[i] = at
		}
	}
	for i := range entries {
		if entries[i].again != want[i] {
			t.Errorf("got %d, want %d: the soonest time since it was disarmed", entries[i].again, want[i])
		}
	}
	want = slices.DeleteFunc(want, func(at verdict.Stamp) bool { return at == 0 })
	slices.Sort(want)
	var got []verdict.Stamp
	for len(w.timers) > 0 {
		got = append(got, heap.Pop(&w.timers).(*entry).again)
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %d, want %d", got, want)
	}
}

func TestTheOldestConflictsAreForgottenFirst(t *testing.T) {
	c := NewConflicts()
	for i := range verdict.Stamp(KeepResolved + 5) {
		c.addResolved(conflictPlace{at: 1 + i})
	}
	at := func(places []conflictPlace) (all []verdict.Stamp) {
		for _, p := range places {
			all = append(all, p.at)
		}
		return all
	}
	if got := at(c.takeOld(0)); !slices.Equal(got, []verdict.Stamp{1, 2, 3, 4, 5}) {
		t.Errorf("got %d, want the ones above the limit", got)
	}
	day := verdict.Stamp(24 * time.Hour)
	if got := at(c.takeOld(day + 5)); got != nil {
		t.Errorf("got %d, want none before a day is over", got)
	}
	if got := at(c.takeOld(day + 7)); !slices.Equal(got, []verdict.Stamp{6, 7}) {
		t.Errorf("got %d, want those from a day ago", got)
	}
}
