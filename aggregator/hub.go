package aggregator

import (
	"net/netip"
	"sync"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

const (
	// ringSize is how many events a watcher may be behind.
	ringSize = 1024
	// ringWeight is how many owners the events in the ring may have in all, but
	// ringLeast events are kept however many theirs are.
	ringWeight = 16 << 10
	ringLeast  = 8
	// quietAfter is how long after the last watcher left events are still kept,
	// so that it can come back with its resume token.
	quietAfter = time.Minute
)

// watchType is what an event tells.
type watchType = pb.Watch_Type

const (
	added       = pb.Watch_ADDED
	updated     = pb.Watch_UPDATED
	removed     = pb.Watch_REMOVED
	nodeChanged = pb.Watch_NODE
)

// event is one change. All that it points to is never changed again.
type event struct {
	typ  watchType
	addr netip.Addr
	// What filters look at: before of updated ones only.
	holder, before holder
	owner          *pb.Owner
	conflict       *pb.Conflict
	node           *pb.Node
	finding        *pb.Finding
}

// holder is an owner with the name that its node had then.
type holder struct {
	owner verdict.Owner
	node  string
}

// weight is how much an event takes of the ring.
func (e *event) weight() int { return 1 + len(e.conflict.GetOwners()) }

// hub keeps the latest events of one kind in a ring. A watcher is a place in
// it: whoever is slow loses events, and nobody waits for anybody.
type hub struct {
	instance int64

	mu sync.Mutex
	// next is the revision that the next event gets; the ring has those from first on.
	next, first uint64
	ring        []event
	weight      int // of all events in the ring
	// changed is closed at the next event; nil while nobody waits.
	changed  chan struct{}
	watchers int
	leftAt   verdict.Stamp
}

func newHub(instance int64) *hub {
	return &hub{instance: instance, next: 1, first: 1}
}

// heard tells whether somebody watches, or did lately. What nobody hears is
// only counted: a token from before is too old then.
func (h *hub) heard(now verdict.Stamp) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.watchers > 0 || h.leftAt != 0 && h.leftAt.Add(quietAfter) > now {
		return true
	}
	h.next++
	h.first, h.ring, h.weight = h.next, nil, 0
	return false
}

func (h *hub) publish(e event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ring == nil {
		h.ring = make([]event, ringSize)
	}
	for held := h.next - h.first; held == ringSize || held >= ringLeast && h.weight+e.weight() > ringWeight; held-- {
		oldest := &h.ring[h.first%ringSize]
		h.weight -= oldest.weight()
		*oldest = event{}
		h.first++
	}
	h.ring[h.next%ringSize] = e
	h.weight += e.weight()
	h.next++
	if h.changed != nil {
		close(h.changed)
		h.changed = nil
	}
}

// join enters a watcher; leave takes it out again.
func (h *hub) join() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.watchers++
}

func (h *hub) leave(now verdict.Stamp) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.watchers--
	h.leftAt = now
}

// watching is how many watch.
func (h *hub) watching() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.watchers
}

// revision is where a watcher starts that has the present state.
func (h *hub) revision() uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.next
}

// holds tells whether all events from a revision on are still known.
func (h *hub) holds(from uint64) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return from >= h.first && from <= h.next
}

// since appends the events from a revision on and gives the revision after
// them. Lost is how many are not known any more; then there are no events. Where
// there is nothing new, changed is closed as soon as there is.
func (h *hub) since(from uint64, into []event) (events []event, next, lost uint64, changed <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if from < h.first {
		return into, h.next, h.first - from, nil
	}
	const atOnce = 16 // a subscriber that does not read keeps these in memory
	for ; from < h.next && len(into) < atOnce; from++ {
		into = append(into, h.ring[from%ringSize])
	}
	if len(into) == 0 {
		if h.changed == nil {
			h.changed = make(chan struct{})
		}
		changed = h.changed
	}
	return into, from, 0, changed
}
