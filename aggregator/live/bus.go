package live

import (
	"math"
	"sync"
	"time"
)

const (
	// BusSize is the number of events that a subscriber may be behind.
	BusSize = 1024
	// BusWeight is the total weight that the events in the ring may have.
	BusWeight = 16 << 10
	// leastKept is the number of events that are kept regardless of their weight.
	leastKept = 8
	// LingerFor is how long events are kept after the last subscriber has left, so that it can
	// resume.
	LingerFor = time.Minute
	// atOnce is the number of events that Since returns at a time: a subscriber that is not
	// reading keeps them in memory.
	atOnce = 16
)

// Latest is greater than every revision.
const Latest = math.MaxUint64

// A Ring keeps the latest events of one kind. Each event gets a sequence number, called a revision. A
// subscriber is a position in the ring: a slow one loses events, and no publisher or subscriber waits for another one. Use NewBus.
type Ring[E any] struct {
	weigh func(*E) int

	mu sync.Mutex
	// next is the revision of the next event. The ring has the events from first on.
	next, first uint64
	ring        []E
	weight      int // of all events in the ring
	// changed is closed at the next event; nil while no subscriber waits.
	changed     chan struct{}
	subscribers int
	leftAt      time.Time // when the last subscriber left
}

// NewBus returns a bus. weigh returns the weight of an event, which must be at least 1.
func NewBus[E any](weigh func(*E) int) *Ring[E] {
	return &Ring[E]{weigh: weigh, next: 1, first: 1}
}

// Offer publishes the event that make returns if there is a subscriber or was one recently.
// Otherwise the event only gets a revision, and earlier ones expire.
func (b *Ring[E]) Offer(make func() E) {
	if b.Wanted() {
		b.Publish(make())
	}
}

// Wanted reports whether there is a subscriber or was one recently. If not, it assigns a revision to
// an unpublished event, like Offer.
func (b *Ring[E]) Wanted() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.subscribers > 0 || !b.leftAt.IsZero() && time.Since(b.leftAt) < LingerFor {
		return true
	}
	b.next++
	b.first, b.ring, b.weight = b.next, nil, 0
	return false
}

// Publish sends an event to all subscribers. Nothing that it points to may change afterwards.
func (b *Ring[E]) Publish(e E) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ring == nil {
		b.ring = make([]E, BusSize)
	}
	weight := b.weigh(&e)
	for held := b.next - b.first; held == BusSize || held >= leastKept && b.weight+weight > BusWeight; held-- {
		var none E
		oldest := &b.ring[b.first%BusSize]
		b.weight -= b.weigh(oldest)
		*oldest = none
		b.first++
	}
	b.ring[b.next%BusSize] = e
	b.weight += weight
	b.next++
	if b.changed != nil {
		close(b.changed)
		b.changed = nil
	}
}

// Join adds a subscriber, so that Offer publishes events. The subscriber must call Leave.
func (b *Ring[E]) Join() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.subscribers++
}

// Leave removes a subscriber.
func (b *Ring[E]) Leave() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.subscribers--
	b.leftAt = time.Now()
}

// Subscribers returns the number of subscribers that have joined.
func (b *Ring[E]) Subscribers() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.subscribers
}

// Revision returns the revision of the next event: state that is read now has all events before
// it, if each change of state is made before its event is published.
func (b *Ring[E]) Revision() uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.next
}

// Since appends some of the events from a revision on and before another one, and returns the
// revision after them. If some of them have expired, it appends none and returns how many are lost.
// If there are no such events yet, changed is closed at the next event.
func (b *Ring[E]) Since(from, before uint64, into []E) (events []E, next, lost uint64, changed <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if from < b.first {
		return into, b.next, b.first - from, nil
	}
	for end := min(before, b.next); from < end && len(into) < atOnce; from++ {
		into = append(into, b.ring[from%BusSize])
	}
	if from == b.next && len(into) == 0 {
		if b.changed == nil {
			b.changed = make(chan struct{})
		}
		changed = b.changed
	}
	return into, from, 0, changed
}

// Holds reports whether all events since a revision are known.
func (b *Ring[E]) Holds(revision uint64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return revision >= b.first && revision <= b.next
}
