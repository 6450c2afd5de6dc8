package facts

import "testing"

// An address counts until it is judged, also while it is under way, and twice if something changes
// about it meanwhile.
func TestAnAddressCountsUntilItIsJudged(t *testing.T) {
	f, _ := newFacts(t)
	p, n := connectNode(t, f, "n1")
	snapshotOf(t, f, p, n, pod(2, "10.0.0.1"))
	f.judgeAll()
	waiting := func(when string, want int) {
		t.Helper()
		got := 0
		for _, q := range f.queues {
			got += q.Len()
		}
		if got != want {
			t.Errorf("%s: got %d addresses that are not judged, want %d", when, got, want)
		}
	}
	waiting("all is judged", 0)
	change := func(addr string) *Queue {
		deltaOf(t, f, p, n, assignedMessage(2, addr))
		for _, q := range f.queues {
			if q.Len() > 0 {
				return q
			}
		}
		t.Fatal("nothing is to be judged")
		return nil
	}
	q := change("10.0.0.2")
	waiting("it waits", 1)
	item := q.Next()
	waiting("it is under way", 1)
	again := assignedMessage(2, "10.0.0.2")
	again.Claims[0].Count = 2
	deltaOf(t, f, p, n, again)
	waiting("something changes meanwhile", 2)
	item.Finish()
	waiting("it waits for the second time", 1)
	q.Take(item.Address).Finish()
	waiting("all is judged again", 0)
	item = q.Take(item.Address)
	waiting("its time has come", 1)
	item.Finish()
	waiting("it is judged", 0)
}
