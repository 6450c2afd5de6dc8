package judge

import (
	"container/heap"
	"context"
	"sync"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/facts"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// Run judges addresses until ctx ends.
func (s *Shards) Run(ctx context.Context) {
	var group sync.WaitGroup
	for _, w := range s.workers {
		group.Go(func() { w.run(ctx) })
	}
	group.Wait()
}

// Settle judges all addresses that are due, and returns when more will be; 0 for never. It is used in place of Run if the time is that of a
// replay.
func (s *Shards) Settle() (next verdict.Stamp) {
	for _, w := range s.workers {
		for w.judgeSome() {
		}
		if len(w.timers) > 0 {
			next = Earlier(next, w.timers[0].again)
		}
	}
	s.Listener.Rested()
	return next
}

// Earlier returns the earlier one of two times, of which each may be 0 for never.
func Earlier(a, b verdict.Stamp) verdict.Stamp {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

func (w *worker) run(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for judged := false; ; {
		if w.judgeSome() {
			judged = true
			select {
			case <-ctx.Done():
				return
			default:
			}
			continue
		}
		if judged {
			judged = false
			w.shards.Listener.Rested()
		}
		rest := time.Hour
		if len(w.timers) > 0 && !w.waits {
			rest = max(0, w.timers[0].again.Sub(w.shards.Clock()))
		}
		timer.Reset(rest)
		select {
		case <-ctx.Done():
			return
		case <-w.queue.Wake():
		case <-w.wake:
		case <-timer.C:
		}
	}
}

// judgeSome judges a few addresses and reports whether there may be more.
func (w *worker) judgeSome() (more bool) {
	f := w.shards.Facts
	w.asideMu.Lock()
	aside := w.aside
	w.aside = nil
	w.asideMu.Unlock()
	f.RLock()
	for _, do := range aside {
		do()
	}
	for range judgedAtOnce {
		item := w.queue.Next()
		if item == nil {
			item = w.due()
		}
		if item == nil {
			break
		}
		more = true
		w.judgeSafely(item)
	}
	f.RUnlock()
	for _, e := range w.expired {
		f.Expire(e.item, e.claims)
	}
	clear(w.expired)
	w.expired = w.expired[:0]
	for _, item := range w.done {
		item.Finish()
	}
	clear(w.done)
	w.done = w.done[:0]
	return more
}

// due returns an item whose timer has expired; nil if there is none.
func (w *worker) due() *facts.Item {
	now := w.shards.Clock()
	w.waits = false
	for len(w.timers) > 0 && w.timers[0].again <= now {
		if w.waits = w.shards.Facts.Overdue(now); w.waits {
			return nil
		}
		e := heap.Pop(&w.timers).(*entry)
		e.again = 0
		if item := w.queue.Take(e.addr); item != nil {
			return item
		}
	}
	return nil
}

// judgeSafely judges one address. If the judgement panics, the address is recorded as unjudged, and
// others are judged as usual.
func (w *worker) judgeSafely(item *facts.Item) {
	w.done = append(w.done, item)
	defer func() {
		if r := recover(); r != nil {
			w.builder, w.verdicts = w.shards.Facts.Builder(), verdict.NewJudge(w.shards.Policy)
			w.shards.failed(item.Address, r)
		}
	}()
	w.judge(item)
	w.shards.judged(item.Address)
}
