package live

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func newBus() *Ring[int] { return NewBus(func(*int) int { return 1 }) }

func TestTheOldestEventsAreForgotten(t *testing.T) {
	b := newBus()
	for range BusSize + 10 {
		b.Publish(0)
	}
	if b.Holds(10) || !b.Holds(11) || !b.Holds(b.Revision()) || b.Holds(b.Revision()+1) {
		t.Errorf("got first %d next %d", b.first, b.next)
	}
	if events, next, lost, _ := b.Since(5, Latest, nil); len(events) != 0 || lost != 6 || next != b.Revision() {
		t.Errorf("got %d events, %d lost, next %d, want 6 lost and %d", len(events), lost, next, b.Revision())
	}
	events, next, _, _ := b.Since(11, Latest, nil)
	if len(events) == 0 || next != 11+uint64(len(events)) {
		t.Errorf("got %d events and next %d", len(events), next)
	}
	if events, _, _, changed := b.Since(b.Revision(), Latest, nil); len(events) != 0 || changed == nil {
		t.Error("got no channel to wait on")
	}
}

func TestEventsAreReadUpToARevision(t *testing.T) {
	b := newBus()
	for i := range 5 {
		b.Publish(i)
	}
	events, next, lost, changed := b.Since(2, 4, nil)
	if len(events) != 2 || events[0] != 1 || events[1] != 2 || next != 4 || lost != 0 || changed != nil {
		t.Errorf("got %v next %d lost %d", events, next, lost)
	}
	if events, next, _, changed := b.Since(4, 4, nil); len(events) != 0 || next != 4 || changed != nil {
		t.Errorf("got %v next %d, want nothing to wait for as there are more events", events, next)
	}
}

func TestASubscriberIsWoken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBus()
		var got []int
		var group sync.WaitGroup
		for range 3 {
			group.Go(func() {
				_, next, _, changed := b.Since(b.Revision(), Latest, nil)
				<-changed
				events, _, _, _ := b.Since(next, Latest, nil)
				b.mu.Lock()
				got = append(got, events...)
				b.mu.Unlock()
			})
		}
		synctest.Wait()
		b.Publish(7)
		group.Wait()
		if len(got) != 3 || got[0] != 7 {
			t.Errorf("got %v, want 7 for each subscriber", got)
		}
	})
}

func TestTheRingIsBoundedByWeight(t *testing.T) {
	b := NewBus(func(e *int) int { return 1 + *e })
	for range 2000 {
		b.Publish(200)
	}
	held := 0
	for i := range b.ring {
		if b.ring[i] != 0 {
			held += b.weigh(&b.ring[i])
		}
	}
	if held != b.weight || held > BusWeight || held < BusWeight-201 {
		t.Errorf("got a weight of %d, counted as %d, want almost %d", held, b.weight, BusWeight)
	}
	if _, _, lost, _ := b.Since(1, Latest, nil); lost != b.first-1 || b.Holds(b.first-1) {
		t.Errorf("got %d lost, want %d", lost, b.first-1)
	}
	for range 2000 {
		b.Publish(BusWeight)
	}
	if b.next-b.first != leastKept {
		t.Errorf("got %d events, want the last %d", b.next-b.first, leastKept)
	}
}

func TestEventsAreMadeForSubscribersOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBus()
		made := 0
		offer := func() {
			b.Offer(func() int { made++; return made })
		}
		offer()
		if made != 0 || b.ring != nil || b.Revision() != 2 || b.Holds(1) {
			t.Errorf("got %d events made and revision %d without a subscriber", made, b.Revision())
		}
		b.Join()
		token := b.Revision()
		if offer(); made != 1 || b.Subscribers() != 1 {
			t.Errorf("got %d events made for %d subscribers", made, b.Subscribers())
		}
		b.Leave()
		time.Sleep(LingerFor - time.Second)
		if offer(); made != 2 || !b.Holds(token) {
			t.Errorf("got %d events made, want one for a subscriber that may come back", made)
		}
		time.Sleep(time.Second)
		if offer(); made != 2 || b.Holds(token) || b.Subscribers() != 0 {
			t.Errorf("got %d events made after the subscriber stayed away", made)
		}
	})
}
