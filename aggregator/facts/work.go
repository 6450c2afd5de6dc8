package facts

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/index"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// A Batch has the addresses touched by one message or one other change. They are not judged while
// the batch is open, because its change is incomplete.
type Batch struct {
	addrs []index.Address
	// left is the number of addresses that have not been judged, plus one while the batch is open.
	left atomic.Int64
	done chan struct{}
	// at is when the message was received; 0 if the latency is not measured. residence is how long
	// its change was in the agent.
	at        verdict.Stamp
	residence time.Duration
	// pods is set if the Kubernetes API changed pods with the addresses. republish is set if conflicts
	// must be published even if they do not change.
	pods, republish bool
	// listed is set for the snapshot of a node.
	listed bool
}

func newBatch() *Batch {
	b := &Batch{done: make(chan struct{})}
	b.left.Store(1)
	return b
}

// Done returns a channel that is closed when all addresses have been judged.
func (b *Batch) Done() <-chan struct{} { return b.done }

func (b *Batch) less() {
	if b.left.Add(-1) == 0 {
		close(b.done)
	}
}

// fewAddresses is the largest size of a batch that is judged before larger ones.
const fewAddresses = 64

// An Item is an address to be judged.
type Item struct {
	Address index.Address
	// Before are the owners before the first change, if Derived is set.
	Before  []verdict.Owner
	Derived bool
	// Vanished has the allocations that ended since the last judgement.
	Vanished []*verdict.Allocation
	// Pods is set if the Kubernetes API changed pods with the address.
	Pods bool
	// Republish is set if the conflicts of the address must be published again.
	Republish bool
	// New is set if the address was not known before.
	New bool
	// Listed is set if a snapshot changed the address. It is then not known when the change happened.
	Listed bool
	// At and Residence are those of the message with the first change.
	At        verdict.Stamp
	Residence time.Duration

	queue   *Queue // the queue that it was taken from
	held    int    // number of open batches with the address
	batches []*Batch
	listed  urgency
	// sightings are the wire claims by which the owners were known at the last judgement. They are
	// valid if looked is set.
	sightings []sighting
	looked    bool
}

// sighting is a wire claim by which an owner is known.
type sighting struct {
	owner string
	claim ref
}

// urgency determines the list of a queue that has an item.
type urgency uint8

const (
	unlisted urgency = iota
	later
	soon
)

// Touched reports whether something about the address has changed. Otherwise, it is judged because
// a timer has expired.
func (i *Item) Touched() bool { return len(i.batches) > 0 }

// Finish marks an item that was taken from its queue as judged.
func (i *Item) Finish() {
	i.queue.finished()
	for _, b := range i.batches {
		b.less()
	}
}

// A Queue has the addresses that one goroutine must judge, each of them once. Addresses of small
// batches come first.
type Queue struct {
	mu          sync.Mutex
	items       map[index.Address]*Item
	soon, later list
	wake        chan struct{}
	// taken is the number of items that have been taken but not finished.
	taken int
}

// list is a queue of addresses.
type list struct {
	addrs []index.Address
	next  int
}

func (l *list) push(a index.Address) { l.addrs = append(l.addrs, a) }

func (l *list) pop() (a index.Address, ok bool) {
	if l.next == len(l.addrs) {
		return a, false
	}
	a = l.addrs[l.next]
	if l.next++; l.next == len(l.addrs) {
		if l.addrs, l.next = l.addrs[:0], 0; cap(l.addrs) > 1<<16 {
			l.addrs = nil
		}
	}
	return a, true
}

func newQueue() *Queue {
	return &Queue{items: make(map[index.Address]*Item), wake: make(chan struct{}, 1)}
}

// Wake returns a channel that is signalled when there may be an address to judge.
func (q *Queue) Wake() <-chan struct{} { return q.wake }

// Len returns the number of addresses that have not been judged. An address that changed during its
// judgement counts twice.
func (q *Queue) Len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.items) + q.taken
}

func (q *Queue) finished() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.taken--
}

// take removes an item from the queue. The caller holds the lock.
func (q *Queue) take(item *Item) *Item {
	delete(q.items, item.Address)
	item.queue = q
	q.taken++
	return item
}

// touch adds an address to a batch. derive returns the owners before the change, if a subscriber
// needs them. It is called only if they are not known already.
func (q *Queue) touch(a index.Address, b *Batch, derive func(index.Address) ([]verdict.Owner, bool)) *Item {
	q.mu.Lock()
	defer q.mu.Unlock()
	item := q.items[a]
	if item == nil {
		item = &Item{Address: a, At: b.at, Residence: b.residence}
		q.items[a] = item
	}
	if !item.Derived {
		item.Before, item.Derived = derive(a)
	}
	if last := len(item.batches) - 1; last < 0 || item.batches[last] != b {
		item.batches = append(item.batches, b)
		item.held++
		b.left.Add(1)
		b.addrs = append(b.addrs, a)
	}
	item.Pods, item.Republish, item.Listed = item.Pods || b.pods, item.Republish || b.republish, item.Listed || b.listed
	return item
}

// release lists an address of a closed batch.
func (q *Queue) release(a index.Address, how urgency) {
	q.mu.Lock()
	item := q.items[a]
	if item.held--; item.listed >= how {
		q.mu.Unlock()
		return
	}
	if item.listed = how; how == soon {
		q.soon.push(a)
	} else {
		q.later.push(a)
	}
	q.mu.Unlock()
	q.stir()
}

// stir wakes the queue's goroutine.
func (q *Queue) stir() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// Next returns the next item; nil if there is none. From this call to the end of the judgement, the
// caller holds the lock of the facts for reading, so that nothing changes in between.
func (q *Queue) Next() *Item {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, of := range []struct {
		list *list
		how  urgency
	}{{&q.soon, soon}, {&q.later, later}} {
		for {
			a, ok := of.list.pop()
			if !ok {
				break
			}
			item := q.items[a]
			if item == nil || item.listed != of.how {
				continue // it is in the other list, or was taken from there
			}
			item.listed = unlisted
			if item.held > 0 {
				continue // it is listed again when the batch is closed
			}
			return q.take(item)
		}
	}
	return nil
}

// Take takes the item of an address, whether it is queued or not. It returns nil if an open batch
// has the address, which is judged later. The caller holds the lock as for Next.
func (q *Queue) Take(a index.Address) *Item {
	q.mu.Lock()
	defer q.mu.Unlock()
	item := q.items[a]
	switch {
	case item == nil:
		item = &Item{Address: a}
	case item.held > 0:
		return nil
	}
	return q.take(item)
}

// before returns the owners of an address before the changes that have not been judged, if these
// owners were derived.
func (q *Queue) before(a index.Address) (owners []verdict.Owner, derived bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if item := q.items[a]; item != nil {
		return item.Before, item.Derived
	}
	return nil, false
}
