package agent

import (
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ipwitness/ipwitness/agent/wake"
	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// reader is what one aggregator has not been sent of the table yet. It is no
// log: changes of one record coalesce until they are taken, so that memory is
// bounded by what exists and no final state is lost. There is one while a
// stream is open: what happens while there is none is in the snapshot that the
// next one begins with.
//
// Claims are taken in batches: what changed before a question is answered is
// then sent within a bounded number of messages, however much changes meanwhile. Claims to
// important addresses come first, so that in a flood a duplicate does not wait behind the
// flood's claims: at the head of a batch, and, if they change later, in the next message.
type reader struct {
	table *table
	wake  chan struct{} // holds one token while there may be something to take

	// The rest is of the table's lock.
	namespaces changes[uint32]
	links      changes[string]
	interfaces changes[interfaceKey]
	pools      changes[poolKey]
	allocated  changes[allocationKey]
	claims     changes[claimKey]
	urgent     changes[claimKey] // claims to important addresses
	status     bool              // the status was not sent
	resync     bool              // a snapshot is to begin
	inside     bool              // a snapshot has begun

	batch   []claimChange // claims that are being sent: the next is the last
	answers questions     // to be answered with the end of the batch, or of the snapshot
	asked   questions     // and with that of the next
}

// claimChange is one claim of a batch.
type claimChange struct {
	key      claimKey
	received time.Time
}

// questions are what the aggregator wants to be answered.
type questions struct {
	checks []uint64
	ping   uint64 // 0: none
}

// maxChecks is how many checks may wait for their answers. The oldest is
// forgotten then, and asked again.
const maxChecks = 1024

// add adds later ones.
func (q *questions) add(later questions) {
	q.checks = append(q.checks, later.checks...)
	if n := len(q.checks); n > maxChecks {
		q.checks = slices.Delete(q.checks, 0, n-maxChecks)
	}
	if later.ping != 0 {
		q.ping = later.ping
	}
}

func (q *questions) none() bool { return len(q.checks) == 0 && q.ping == 0 }

// changes are the keys of records of one kind that changed since they were
// taken, each with the time that its oldest change was received.
type changes[K comparable] struct {
	dirty map[K]time.Time
	grown bool // dirty was large: walking it stays as slow as it was then
	lost  bool // there were too many: a snapshot is due
}

const (
	// large is from how many keys on a map of changes is not used again.
	large = 256
	// spareChanges is how many keys of records that are gone may wait beside
	// those of all that live. A snapshot is cheaper than more of them.
	spareChanges = 65536
)

// mark notes a change, as long as there are no more than most.
func (c *changes[K]) mark(k K, received time.Time, most int) {
	if _, ok := c.dirty[k]; ok || c.lost {
		return
	}
	if len(c.dirty) >= most {
		c.reset()
		c.lost = true
		return
	}
	c.dirty[k] = received
	c.grown = c.grown || len(c.dirty) > large
}

func (c *changes[K]) reset() {
	c.dirty, c.grown, c.lost = map[K]time.Time{}, false, false
}

// emptied is told when all changes were taken.
func (c *changes[K]) emptied() {
	if c.grown {
		c.reset()
	}
}

// take walks changed keys and takes them, as long as there is room.
func (c *changes[K]) take(room *int) func(yield func(K) bool) {
	return func(yield func(K) bool) {
		for k := range c.dirty {
			if *room <= 0 {
				return
			}
			*room--
			delete(c.dirty, k)
			if !yield(k) {
				return
			}
		}
		c.emptied()
	}
}

// attach makes a reader, which begins with a snapshot.
func (t *table) attach() *reader {
	r := &reader{table: t, wake: make(chan struct{}, 1), resync: true}
	r.namespaces.reset()
	r.links.reset()
	r.interfaces.reset()
	r.pools.reset()
	r.allocated.reset()
	r.claims.reset()
	r.urgent.reset()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.readers = append(slices.Clone(t.readers), r)
	t.namespaces.changes = append(t.namespaces.changes, &r.namespaces)
	t.links.changes = append(t.links.changes, &r.links)
	t.interfaces.changes = append(t.interfaces.changes, &r.interfaces)
	t.pools.changes = append(t.pools.changes, &r.pools)
	t.allocated.changes = append(t.allocated.changes, &r.allocated)
	t.claims.changes = append(t.claims.changes, &r.claims)
	t.claims.urgent = append(t.claims.urgent, &r.urgent)
	return r
}

// detach has the table keep nothing for the reader any more.
func (r *reader) detach() {
	t := r.table
	t.mu.Lock()
	defer t.mu.Unlock()
	t.readers = without(slices.Clone(t.readers), r)
	t.namespaces.changes = without(t.namespaces.changes, &r.namespaces)
	t.links.changes = without(t.links.changes, &r.links)
	t.interfaces.changes = without(t.interfaces.changes, &r.interfaces)
	t.pools.changes = without(t.pools.changes, &r.pools)
	t.allocated.changes = without(t.allocated.changes, &r.allocated)
	t.claims.changes = without(t.claims.changes, &r.claims)
	t.claims.urgent = without(t.claims.urgent, &r.urgent)
}

func without[T comparable](list []T, one T) []T {
	return slices.DeleteFunc(list, func(x T) bool { return x == one })
}

// again has a snapshot begin, once the present one is complete.
func (r *reader) again() {
	r.table.mu.Lock()
	r.resync = true
	r.table.mu.Unlock()
	wake.Poke(r.wake)
}

// ask has questions answered once all that changed before is sent.
func (r *reader) ask(q questions) {
	r.table.mu.Lock()
	r.asked.add(q)
	r.table.mu.Unlock()
	wake.Poke(r.wake)
}

// maxRecords bounds one message, so that it stays far below gRPC's 4 MiB.
const maxRecords = 4096

// urgentShare is which part of a message claims to important addresses take, at most,
// that changed while a batch is sent.
const urgentShare = 8

// take gives the next message: changes since the last, and answers, at most
// maxRecords records. It gives nil where there is nothing to say.
func (r *reader) take(now time.Time) *ipwitnessv1.ReportRequest {
	t := r.table
	t.mu.Lock()
	defer t.mu.Unlock()
	m := &ipwitnessv1.ReportRequest{}
	lost := r.namespaces.lost || r.links.lost || r.interfaces.lost || r.pools.lost || r.allocated.lost || r.claims.lost || r.urgent.lost
	if lost || r.resync && !r.inside {
		m.SnapshotBegin = true
		r.begin(now)
	}
	room := maxRecords

	// What a record refers to travels before it, or with it.
	for k := range r.namespaces.take(&room) {
		if v, ok := t.namespaces.live[k]; ok {
			m.Namespaces = append(m.Namespaces, v)
		} else {
			m.Namespaces = append(m.Namespaces, &ipwitnessv1.NamespaceRecord{Id: k, Gone: true})
		}
	}
	for k := range r.links.take(&room) {
		if v, ok := t.links.live[k]; ok {
			m.Links = append(m.Links, v)
		} else {
			m.Links = append(m.Links, &ipwitnessv1.LinkRecord{Name: k, Gone: true})
		}
	}
	for k := range r.interfaces.take(&room) {
		if v, ok := t.interfaces.live[k]; ok {
			m.Interfaces = append(m.Interfaces, v)
		} else {
			m.Interfaces = append(m.Interfaces, &ipwitnessv1.InterfaceRecord{Namespace: k.namespace, Index: uint32(k.index), Gone: true})
		}
	}
	for k := range r.pools.take(&room) {
		if v, ok := t.pools.live[k]; ok {
			m.Pools = append(m.Pools, v)
		} else {
			m.Pools = append(m.Pools, &ipwitnessv1.PoolRecord{Ipam: k.ipam, Name: k.name, Gone: true})
			r.forgetPool(k)
		}
	}
	for k := range r.allocated.take(&room) {
		if v, ok := t.allocated.live[k]; ok {
			m.Allocations = append(m.Allocations, v)
		} else {
			m.Allocations = append(m.Allocations, &ipwitnessv1.AllocationRecord{Ipam: k.pool.ipam, Pool: k.pool.name, Address: k.addr.AsSlice(), Gone: true})
		}
	}
	r.takeClaims(m, room, now)
	if r.status {
		m.Status, r.status = t.status, false
	}
	if len(m.Namespaces)+len(m.Links)+len(m.Interfaces)+len(m.Pools)+len(m.Allocations)+len(m.Claims)+len(m.Checked) == 0 &&
		m.Status == nil && m.Pong == nil && !m.SnapshotBegin && !m.SnapshotEnd {
		return nil
	}
	return m
}

// takeClaims adds claims to a message that has room for so many, and the answers
// that are due. No room says that there may be more of what claims refer to.
func (r *reader) takeClaims(m *ipwitnessv1.ReportRequest, room int, now time.Time) {
	if len(r.batch) > 0 { // else they are the next batch
		room -= r.takeUrgent(m, room/urgentShare, now) // most is for the batch: answers wait for it
	}
	for ; room > 0; room-- {
		if len(r.batch) == 0 {
			if r.inside {
				m.SnapshotEnd, r.inside, r.batch = true, false, nil
				r.answer(m, now)
				return
			}
			r.answer(m, now)
			if !r.next() {
				return
			}
			if len(r.batch) == 0 {
				r.answer(m, now)
				return
			}
		}
		c := r.batch[len(r.batch)-1]
		r.batch = r.batch[:len(r.batch)-1]
		held := r.table.claims.live[c.key]
		if held == nil && r.inside {
			continue // a snapshot has no need to say what is gone, or says it after its end
		}
		delete(r.claims.dirty, c.key) // what it is now is said now
		delete(r.urgent.dirty, c.key)
		m.Claims = append(m.Claims, claimRecord(c.key, held, now, c.received))
	}
}

// takeUrgent adds claims to important addresses that changed since the batch was made, as
// many as there is room for, and returns how many.
func (r *reader) takeUrgent(m *ipwitnessv1.ReportRequest, room int, now time.Time) (taken int) {
	for k, received := range r.urgent.dirty {
		if taken == room {
			return taken
		}
		delete(r.urgent.dirty, k)
		m.Claims = append(m.Claims, claimRecord(k, r.table.claims.live[k], now, received))
		taken++
	}
	r.urgent.emptied()
	return taken
}

// answer answers what was asked before the batch, or the snapshot, that has been sent.
func (r *reader) answer(m *ipwitnessv1.ReportRequest, now time.Time) {
	m.Checked = append(m.Checked, r.answers.checks...)
	if r.answers.ping != 0 {
		m.Pong = &ipwitnessv1.Pong{Id: r.answers.ping, SentAt: timestamppb.New(now)}
	}
	r.answers = questions{}
}

// next makes a batch of all that changed, and says whether there was anything.
func (r *reader) next() bool {
	if len(r.claims.dirty)+len(r.urgent.dirty) == 0 && r.asked.none() {
		return false
	}
	r.answers, r.asked = r.asked, questions{}
	if cap(r.batch) > large {
		r.batch = nil
	}
	for _, c := range []*changes[claimKey]{&r.claims, &r.urgent} { // the last one is sent first
		for k, received := range c.dirty {
			r.batch = append(r.batch, claimChange{k, received})
		}
		clear(c.dirty)
		c.emptied()
	}
	return true
}

// begin makes everything due that lives.
func (r *reader) begin(now time.Time) {
	t := r.table
	r.resync, r.inside = false, true
	all(&r.namespaces, t.namespaces.live, now)
	all(&r.links, t.links.live, now)
	all(&r.interfaces, t.interfaces.live, now)
	all(&r.pools, t.pools.live, now)
	all(&r.allocated, t.allocated.live, now)
	r.claims.reset()
	r.urgent.reset()
	r.batch = make([]claimChange, 0, len(t.claims.live))
	for _, important := range []bool{false, true} { // the last one is sent first
		for k := range t.claims.live {
			if t.isImportant(k) == important {
				r.batch = append(r.batch, claimChange{k, now})
			}
		}
	}
	r.status = t.status != nil
	// The snapshot says what the batch would have said, and the next one.
	r.answers.add(r.asked)
	r.asked = questions{}
}

// all marks everything that lives, and forgets what is gone: a snapshot has no
// need to say so.
func all[K comparable, V any](c *changes[K], live map[K]V, now time.Time) {
	c.reset()
	for k := range live {
		c.mark(k, now, len(live))
	}
}

// forget drops what is not sent yet of a namespace that has ended: its end says it.
func (r *reader) forget(namespace uint32) {
	maps.DeleteFunc(r.interfaces.dirty, func(k interfaceKey, _ time.Time) bool { return k.namespace == namespace })
	for _, c := range []*changes[claimKey]{&r.claims, &r.urgent} {
		maps.DeleteFunc(c.dirty, func(k claimKey, _ time.Time) bool { return k.at.namespace == namespace })
	}
	r.batch = slices.DeleteFunc(r.batch, func(c claimChange) bool { return c.key.at.namespace == namespace })
}

// forgetPool drops what is not sent yet of the allocations of a pool whose end is
// being told: it is theirs. Not before: a pool that is there again until then is
// told as one that changed, and then each end of an allocation counts.
func (r *reader) forgetPool(k poolKey) {
	maps.DeleteFunc(r.allocated.dirty, func(a allocationKey, _ time.Time) bool { return a.pool == k })
}
