package aggregator

import (
	"container/heap"
	"context"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// alarm is when an entry is to be judged again, a node is out of time, a generation
// of stitches is over, a pool or the ranges of all are looked at again, or a namespace
// lacks an address that it was meant to have.
type alarm struct {
	at verdict.Stamp
	// index is the place in the heap plus one; 0 while it is not set.
	index int32
	// dirty tells of an entry that it is judged at the end of what is being done.
	dirty bool
}

func (a *alarm) set() bool { return a.index != 0 }

// ringing is what has an alarm.
type ringing interface{ clock() *alarm }

func (e *entry) clock() *alarm    { return &e.alarm }
func (n *node) clock() *alarm     { return &n.alarm }
func (r *rotation) clock() *alarm { return &r.alarm }

// alarms is a heap of what has its alarm set, the next one first.
type alarms []ringing

func (a alarms) Len() int           { return len(a) }
func (a alarms) Less(i, k int) bool { return a[i].clock().at < a[k].clock().at }

func (a alarms) Swap(i, k int) {
	a[i], a[k] = a[k], a[i]
	a[i].clock().index, a[k].clock().index = int32(i+1), int32(k+1)
}

// Push is for container/heap.
func (a *alarms) Push(x any) {
	one := x.(ringing)
	*a = append(*a, one)
	one.clock().index = int32(len(*a))
}

// Pop is for container/heap.
func (a *alarms) Pop() any {
	last := len(*a) - 1
	one := (*a)[last]
	(*a)[last] = nil
	*a = (*a)[:last]
	one.clock().index = 0
	return one
}

// arm sets an alarm. One that is set to ring sooner stays as it is: it rings
// for nothing once, and then it is set anew. So a claim that is seen again and
// again costs nothing here.
func (s *store) arm(r ringing, at verdict.Stamp) {
	a := r.clock()
	switch {
	case !a.set():
		a.at = at
		heap.Push(&s.alarms, r)
	case at < a.at:
		a.at = at
		heap.Fix(&s.alarms, int(a.index-1))
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

func (s *store) disarm(r ringing) {
	if a := r.clock(); a.set() {
		heap.Remove(&s.alarms, int(a.index-1))
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
	compare := false
	var late []*node
	for len(s.alarms) > 0 && s.alarms[0].clock().at <= now {
		switch r := heap.Pop(&s.alarms).(type) {
		case *node:
			late = append(late, r)
		case *entry:
			s.touch(r)
		case *rotation:
			s.rotate()
		case *pool:
			s.lookAt(r)
		case *overlaps:
			compare = true
		case *namespace:
			s.intend(r)
		}
	}
	s.timeOut(late)
	s.judgeTouched(base, received{})
	if compare {
		s.compareRanges() // gives up the lock: others use the stack of what is touched
	}
	wait := time.Hour
	if len(s.alarms) > 0 {
		wait = s.alarms[0].clock().at.Sub(s.clock())
	}
	if len(s.resolved) > 0 {
		wait = min(wait, s.resolved[0].at.Add(keepResolvedFor).Sub(s.clock()))
	}
	return max(0, wait)
}
