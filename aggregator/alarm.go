package aggregator

import (
	"container/heap"
	"context"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// alarm is when an entry is to be judged again, a node is out of time, or, without
// either, a generation of stitches is over.
type alarm struct {
	at    verdict.Stamp
	entry *entry
	node  *node
	// index is the place in the heap plus one; 0 while it is not set.
	index int
}

// alarms is a heap of alarms, the next one first.
type alarms []*alarm

func (a alarms) Len() int           { return len(a) }
func (a alarms) Less(i, k int) bool { return a[i].at < a[k].at }

func (a alarms) Swap(i, k int) {
	a[i], a[k] = a[k], a[i]
	a[i].index, a[k].index = i+1, k+1
}

// Push is for container/heap.
func (a *alarms) Push(x any) {
	one := x.(*alarm)
	*a = append(*a, one)
	one.index = len(*a)
}

// Pop is for container/heap.
func (a *alarms) Pop() any {
	last := len(*a) - 1
	one := (*a)[last]
	(*a)[last] = nil
	*a = (*a)[:last]
	one.index = 0
	return one
}

// arm sets an alarm. One that is set to ring sooner stays as it is: it rings
// for nothing once, and then it is set anew. So a claim that is seen again and
// again costs nothing here.
func (s *store) arm(a *alarm, at verdict.Stamp) {
	switch {
	case a.index == 0:
		a.at = at
		heap.Push(&s.alarms, a)
	case at < a.at:
		a.at = at
		heap.Fix(&s.alarms, a.index-1)
	default:
		return
	}
	if a.index == 1 {
		select {
		case s.wake <- struct{}{}:
		default:
		}
	}
}

func (s *store) disarm(a *alarm) {
	if a.index != 0 {
		heap.Remove(&s.alarms, a.index-1)
	}
}

// run rings the alarms until ctx ends.
func (s *store) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-s.wake:
		}
		timer.Reset(s.ring())
	}
}

// ring judges what is due and says how long nothing will be.
func (s *store) ring() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.clock()
	s.forget(now)
	base := len(s.touched)
	for len(s.alarms) > 0 && s.alarms[0].at <= now {
		a := heap.Pop(&s.alarms).(*alarm)
		switch {
		case a.node != nil:
			s.timeOut(a.node)
		case a.entry != nil:
			s.touch(a.entry)
		default:
			s.rotate()
		}
	}
	s.judgeTouched(base, received{})
	if len(s.alarms) == 0 {
		return time.Hour
	}
	return max(0, s.alarms[0].at.Sub(s.clock()))
}
