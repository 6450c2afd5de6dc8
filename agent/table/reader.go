package table

import (
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// A Reader has the changes that were not sent to one aggregator yet. It is not a log: changes
// of one record coalesce until they are taken, so that memory is bounded by the number of
// records and no final state is lost. A reader lives as long as its stream. The next stream
// begins with a snapshot, which includes everything that changed in between.
//
// Claims are taken in batches. Everything that changed before a question is therefore sent
// within a bounded number of messages, and the answer follows, even if much changes meanwhile.
// Claims to important addresses come first, so that a duplicate does not wait behind the
// claims of a flood. They are at the head of a batch, and if they change later, they are in
// the next message.
type Reader struct {
	table *Table
	wake  chan struct{} // holds one token while there may be something to take

	// The lock of the table protects the rest.
	namespaces changes[uint32]
	links      changes[string]
	interfaces changes[InterfaceKey]
	pools      changes[PoolKey]
	allocated  changes[AllocationKey]
	beliefs    changes[BeliefKey]
	claims     changes[ClaimKey]
	urgent     changes[ClaimKey] // claims to important addresses
	status     bool              // the status must be sent
	resync     bool              // a snapshot must begin
	inside     bool              // a snapshot has begun

	batch   []claimChange // claims that are being sent; the last one is next
	answers Questions     // answered at the end of the current batch or snapshot
	asked   Questions     // answered at the end of the next one
}

type claimChange struct {
	key      ClaimKey
	received time.Time
}

// Questions are the questions of an aggregator that wait for an answer.
type Questions struct {
	Checks []uint64
	Ping   uint64 // 0 if none
	// Beliefs are the answers to questions about neighbour tables.
	Beliefs []*ipwitnessv1.BeliefAnswer
}

// maxChecks limits the checks that wait for their answers. Beyond it, the oldest check is
// dropped, and the aggregator repeats it.
const maxChecks = 1024

// maxBeliefs limits the answers about neighbour tables that wait. Beyond it, the oldest one is dropped.
const maxBeliefs = 16

func (q *Questions) add(later Questions) {
	q.Checks = append(q.Checks, later.Checks...)
	if n := len(q.Checks); n > maxChecks {
		q.Checks = slices.Delete(q.Checks, 0, n-maxChecks)
	}
	q.Beliefs = append(q.Beliefs, later.Beliefs...)
	q.Beliefs = q.Beliefs[max(0, len(q.Beliefs)-maxBeliefs):]
	if later.Ping != 0 {
		q.Ping = later.Ping
	}
}

// changes has the keys of changed records of one kind, each with the time of the oldest change
// that was not taken yet.
type changes[K comparable] struct {
	dirty map[K]time.Time
	grown bool // dirty was large; maps do not shrink, and iterating over a large one stays slow
	lost  bool // there were too many changes, so a snapshot must be sent
}

const (
	// large is the number of keys above which a map of changes is not reused.
	large = 256
	// spareChanges limits the keys of removed records, in addition to the keys of all live
	// records. Beyond that, a snapshot is cheaper.
	spareChanges = 65536
)

// mark records a change. If there are more than most changes, a snapshot must be sent instead. Before the first
// snapshot, changes need not be recorded.
func (c *changes[K]) mark(k K, received time.Time, most int) {
	if _, ok := c.dirty[k]; ok || c.lost || c.dirty == nil {
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

// emptied is called after all changes were taken.
func (c *changes[K]) emptied() {
	if c.grown {
		c.reset()
	}
}

// take adds the current state of changed records to a message, while there is room. gone returns the message for one
// that was removed.
func take[K comparable, V any](into *[]V, c *changes[K], live map[K]V, room *int, gone func(K) V) {
	for k := range c.dirty {
		if *room <= 0 {
			return
		}
		*room--
		delete(c.dirty, k)
		v, ok := live[k]
		if !ok {
			v = gone(k)
		}
		*into = append(*into, v)
	}
	c.emptied()
}

// Attach returns a new reader, which starts with a snapshot.
func (t *Table) Attach() *Reader {
	r := &Reader{table: t, wake: make(chan struct{}, 1), resync: true}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.readers = append(slices.Clone(t.readers), r)
	return r
}

// Detach ends the reader. The table collects no more changes for it.
func (r *Reader) Detach() {
	t := r.table
	t.mu.Lock()
	defer t.mu.Unlock()
	t.readers = slices.DeleteFunc(slices.Clone(t.readers), func(x *Reader) bool { return x == r })
}

// Wake returns a channel that holds one token while there may be something to take.
func (r *Reader) Wake() <-chan struct{} { return r.wake }

// Resync requests a snapshot, which begins after the current one is complete.
func (r *Reader) Resync() {
	r.table.mu.Lock()
	r.resync = true
	r.table.mu.Unlock()
	Poke(r.wake)
}

// Answer requests answers. They are sent after everything that changed before.
func (r *Reader) Answer(q Questions) {
	r.table.mu.Lock()
	r.asked.add(q)
	r.table.mu.Unlock()
	Poke(r.wake)
}

// maxRecords bounds one message, so that it stays far below gRPC's 4 MiB.
const maxRecords = 4096

// urgentShare is the part (1/urgentShare) of a message that claims to important addresses may
// use if they change while a batch is being sent.
const urgentShare = 8

// Take returns the next message, with at most maxRecords records: the changes since the
// previous message, and answers. It returns nil if there is nothing to send.
func (r *Reader) Take(now time.Time) *ipwitnessv1.ReportRequest {
	t := r.table
	t.mu.Lock()
	defer t.mu.Unlock()
	m := &ipwitnessv1.ReportRequest{}
	if t.clock.look(now) { // claims that were sent have times by the former clock
		for _, each := range t.readers {
			each.resync = true
			Poke(each.wake)
		}
	}
	lost := r.namespaces.lost || r.links.lost || r.interfaces.lost || r.pools.lost || r.allocated.lost || r.beliefs.lost || r.claims.lost || r.urgent.lost
	if lost || r.resync && !r.inside {
		m.SnapshotBegin = true
		r.begin(now)
	}
	room := maxRecords

	// A record is sent after the records that it refers to, or together with them.
	take(&m.Namespaces, &r.namespaces, t.Namespaces.live, &room, func(k uint32) *ipwitnessv1.NamespaceRecord {
		return &ipwitnessv1.NamespaceRecord{Id: k, Gone: true}
	})
	take(&m.Links, &r.links, t.Links.live, &room, func(k string) *ipwitnessv1.LinkRecord {
		return &ipwitnessv1.LinkRecord{Name: k, Gone: true}
	})
	take(&m.Interfaces, &r.interfaces, t.Interfaces.live, &room, func(k InterfaceKey) *ipwitnessv1.InterfaceRecord {
		return &ipwitnessv1.InterfaceRecord{Namespace: k.Namespace, Index: uint32(k.Index), Gone: true}
	})
	take(&m.Pools, &r.pools, t.Pools.live, &room, func(k PoolKey) *ipwitnessv1.PoolRecord {
		// This implies the end of its allocations. It does not earlier: if the pool comes back before, it is sent
		// as changed, and the end of each allocation must be sent.
		maps.DeleteFunc(r.allocated.dirty, func(a AllocationKey, _ time.Time) bool { return a.Pool == k })
		return &ipwitnessv1.PoolRecord{Ipam: k.IPAM, Name: k.Name, Gone: true}
	})
	take(&m.Allocations, &r.allocated, t.Allocations.live, &room, func(k AllocationKey) *ipwitnessv1.AllocationRecord {
		return &ipwitnessv1.AllocationRecord{Ipam: k.Pool.IPAM, Pool: k.Pool.Name, Address: k.Address.AsSlice(), Gone: true}
	})
	take(&m.Beliefs, &r.beliefs, t.Beliefs.live, &room, func(k BeliefKey) *ipwitnessv1.BeliefRecord {
		return &ipwitnessv1.BeliefRecord{Link: k.Link, Address: k.Address.AsSlice(), Mac: []byte(k.MAC), Gone: true}
	})
	r.takeClaims(m, room, now)
	if r.status && len(r.pools.dirty)+len(r.allocated.dirty) == 0 { // it says which records were read
		m.Status, r.status = t.status, false
	}
	if len(m.Namespaces)+len(m.Links)+len(m.Interfaces)+len(m.Pools)+len(m.Allocations)+len(m.Beliefs)+len(m.Claims)+len(m.Checked)+len(m.Answers) == 0 &&
		m.Status == nil && m.Pong == nil && !m.SnapshotBegin && !m.SnapshotEnd {
		return nil
	}
	return m
}

// takeClaims adds claims to a message with the given room, and the answers that are due. It
// adds nothing if there is no room, because records that claims refer to may be unsent.
func (r *Reader) takeClaims(m *ipwitnessv1.ReportRequest, room int, now time.Time) {
	// Claims to important addresses that changed since the batch was made come first. Most room is for the batch,
	// because answers wait for it.
	if urgent := room / urgentShare; len(r.batch) > 0 { // otherwise they are in the next batch
		for k, received := range r.urgent.dirty {
			if urgent == 0 {
				break
			}
			delete(r.urgent.dirty, k)
			m.Claims = append(m.Claims, r.table.claimRecord(k, r.table.claims.live[k], now, received))
			urgent, room = urgent-1, room-1
		}
		if len(r.urgent.dirty) == 0 {
			r.urgent.emptied()
		}
	}
	for ; room > 0; room-- {
		if len(r.batch) == 0 {
			if r.inside {
				m.SnapshotEnd, r.inside, r.batch = true, false, nil
				r.answer(m, now)
				return
			}
			r.answer(m, now)
			r.next()
			if len(r.batch) == 0 {
				r.answer(m, now)
				return
			}
		}
		c := r.batch[len(r.batch)-1]
		r.batch = r.batch[:len(r.batch)-1]
		held := r.table.claims.live[c.key]
		if held == nil && r.inside {
			continue // a snapshot does not list removed claims; later changes follow it
		}
		delete(r.claims.dirty, c.key) // this message has its current state
		delete(r.urgent.dirty, c.key)
		m.Claims = append(m.Claims, r.table.claimRecord(c.key, held, now, c.received))
	}
}

// answer answers the questions from before the batch or snapshot that has just been sent.
func (r *Reader) answer(m *ipwitnessv1.ReportRequest, now time.Time) {
	m.Checked, m.Answers = append(m.Checked, r.answers.Checks...), append(m.Answers, r.answers.Beliefs...)
	if r.answers.Ping != 0 {
		m.Pong = &ipwitnessv1.Pong{Id: r.answers.Ping, SentAt: timestamppb.New(now)}
	}
	r.answers = Questions{}
}

// next makes a batch of all changed claims, which may be none.
func (r *Reader) next() {
	r.answers, r.asked = r.asked, Questions{}
	if cap(r.batch) > large {
		r.batch = nil
	}
	for _, c := range []*changes[ClaimKey]{&r.claims, &r.urgent} { // the last one is sent first
		for k, received := range c.dirty {
			r.batch = append(r.batch, claimChange{k, received})
		}
		clear(c.dirty)
		c.emptied()
	}
}

// begin begins a snapshot, which contains all live records.
func (r *Reader) begin(now time.Time) {
	t := r.table
	r.resync, r.inside = false, true
	markAll(&r.namespaces, t.Namespaces.live, now)
	markAll(&r.links, t.Links.live, now)
	markAll(&r.interfaces, t.Interfaces.live, now)
	markAll(&r.pools, t.Pools.live, now)
	markAll(&r.allocated, t.Allocations.live, now)
	markAll(&r.beliefs, t.Beliefs.live, now)
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
	// The snapshot answers the questions of the batch that it replaces, and the waiting ones.
	r.answers.add(r.asked)
	r.asked = Questions{}
}

// markAll marks all live records. It forgets removed records, because a snapshot does not list
// them.
func markAll[K comparable, V any](c *changes[K], live map[K]V, now time.Time) {
	c.reset()
	for k := range live {
		c.mark(k, now, len(live))
	}
}
