package facts

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/index"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// A Batch has the addresses that one message, or one other change, touched. None of them is judged
// while the batch is open, so that nobody sees half of a change.
type Batch struct {
	addrs []index.Address
	// left counts the addresses that are not judged yet, and the open batch itself.
	left atomic.Int64
	done chan struct{}
	// at is when the message was received; 0 if that is not measured. residence is how long its
	// change was in the agent.
	at        verdict.Stamp
	residence time.Duration
	// pods is set if the Kubernetes API said something of the pods behind the addresses, retell if
	// their conflicts are to be published even if they did not change.
	pods, retell bool
}

func newBatch() *Batch {
	b := &Batch{done: make(chan struct{})}
	b.left.Store(1)
	return b
}

// Done is closed when all addresses are judged.
func (b *Batch) Done() <-chan struct{} { return b.done }

func (b *Batch) less() {
	if b.left.Add(-1) == 0 {
		close(b.done)
	}
}

// fewAddresses is the number of addresses up to which a batch is judged before larger ones.
const fewAddresses = 64

// An Item is an address that is to be judged.
type Item struct {
	Address index.Address
	// Before are the owners before the first change, if Derived is set.
	Before  []verdict.Owner
	Derived bool
	// Vanished has the allocations that ended since the last judgement.
	Vanished []*verdict.Allocation
	// Pods is set if the Kubernetes API said something of the pods behind the address.
	Pods bool
	// Retell has the conflicts of the address published again.
	Retell bool
	// New is set if nothing was known of the address before.
	New bool
	// At and Residence are those of the message that first changed something.
	At        verdict.Stamp
	Residence time.Duration

	queue   *Queue // that it was taken from
	held    int    // open batches that touched it
	batches []*Batch
	listed  urgency
	// sightings are the wire claims by which the owners were known when the address was last
	// judged. They are valid if looked is set.
	sightings []sighting
	looked    bool
}

// sighting is a wire claim by which an owner is known.
type sighting struct {
	owner string
	claim ref
}

// urgency says in which list of a queue an item is.
type urgency uint8

const (
	unlisted urgency = iota
	later
	soon
)

// Touched reports whether something about the address changed. Otherwise it is judged because it is
// due.
func (i *Item) Touched() bool { return len(i.batches) > 0 }

// Finish marks an item that was taken from its queue as judged.
func (i *Item) Finish() {
	i.queue.finished()
	for _, b := range i.batches {
		b.less()
	}
}

// A Queue has the addresses that one goroutine is to judge: each once, however often it was
// touched. Addresses of small batches come first.
type Queue struct {
	mu          sync.Mutex
	items       map[index.Address]*Item
	soon, later list
	wake        chan struct{}
	// taken is the number of items that were taken and are not judged yet.
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

// Wake has a token when there may be something to judge.
func (q *Queue) Wake() <-chan struct{} { return q.wake }

// Len returns the number of addresses that are not judged yet. An address that something changed
// about while it was judged counts twice.
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

// take hands an item out. The caller holds the lock.
func (q *Queue) take(item *Item) *Item {
	delete(q.items, item.Address)
	item.queue = q
	q.taken++
	return item
}

// touch adds an address to a batch. derive returns the owners before the change, if a subscriber
// needs them; it is called only if they are not known already.
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
	item.Pods, item.Retell = item.Pods || b.pods, item.Retell || b.retell
	return item
}

// release lists an address of a batch that is closed.
func (q *Queue) release(a index.Address, how urgency) {
	q.mu.Lock()
	item := q.items[a]
	if item.held--; item.held > 0 || item.listed >= how {
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

// Next takes the next address that is to be judged; nil if there is none. The caller holds the
// lock of the facts for reading from here to the end of the judgement, so that nothing changes in
// between.
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

// Take takes one address, whether or not it is queued. It returns nil if an open batch has the
// address, which is then judged later. Its caller holds the lock as for Next.
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

// before returns the owners that an address had before changes that are not judged yet, if they
// were derived.
func (q *Queue) before(a index.Address) (owners []verdict.Owner, derived bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if item := q.items[a]; item != nil {
		return item.Before, item.Derived
	}
	return nil, false
}
