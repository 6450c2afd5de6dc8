// Package table has everything that the agent knows: records of namespaces, links, interfaces,
// pools, allocations and claims, and the changes that each aggregator was not sent yet.
//
// It does not know where records come from, and contains no streams.
package table

import (
	"iter"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// OwnNamespace is the record id of the agent's own namespace.
const OwnNamespace uint32 = 1

// InterfaceKey is the key of an interface record.
type InterfaceKey struct {
	Namespace uint32
	Index     int32
}

// ClaimKey is the key of a claim record.
type ClaimKey struct {
	Address         netip.Addr
	Kind            ipwitnessv1.Evidence_Kind
	At              InterfaceKey
	MAC             string // raw bytes; wire only
	VLAN, InnerVLAN uint16 // wire only
	NoOverride      bool   // wire only
	Source          string // wire only: the Ethernet source if it differs from MAC
}

// PoolKey is the key of a pool record.
type PoolKey struct{ IPAM, Name string }

// AllocationKey is the key of an allocation record.
type AllocationKey struct {
	Pool    PoolKey
	Address netip.Addr
}

// BeliefKey is the key of a belief record.
type BeliefKey struct {
	Link    string
	Address netip.Addr
	MAC     string // raw bytes
}

// Network is a network that assigned an address to an interface.
type Network struct {
	Name       string // in a CNI result
	TakenAlong bool   // the interface had the address as a device of the node
}

// Claim is the content of a claim record, without its key.
type Claim struct {
	Link         string // wire only
	Network             // rtnetlink only: the network that assigned the address; the interface of an Answer
	Answer       ipwitnessv1.ClaimRecord_Answer
	Filter       ipwitnessv1.ClaimRecord_Filter
	Routed       bool // the node itself routes the address to the sender; rtnetlink: to the holder
	Peer         bool // rtnetlink: the IPv4 address has a peer
	PrefixLength uint8
	Flags        uint32
	Assigned     time.Time
	First        time.Time
	Last         time.Time
	Count        uint32
}

// entry is a claim in the table. Its own fields are used for wire claims only.
type entry struct {
	Claim
	key       ClaimKey
	atAddr    int    // its index in table.byAddr
	older     *entry // neighbours in a queue of its port
	newer     *entry
	inQueue   queueIndex
	seenAgain bool // the claim was reported more than once
}

// Table is the agent's current state, and its readers.
type Table struct {
	mu          sync.Mutex
	Namespaces  Records[uint32, *ipwitnessv1.NamespaceRecord]
	Links       Records[string, *ipwitnessv1.LinkRecord]
	Interfaces  Records[InterfaceKey, *ipwitnessv1.InterfaceRecord]
	Pools       Records[PoolKey, *ipwitnessv1.PoolRecord]
	Allocations Records[AllocationKey, *ipwitnessv1.AllocationRecord]
	Beliefs     Records[BeliefKey, *ipwitnessv1.BeliefRecord]
	claims      Records[ClaimKey, *entry]
	byAddr      map[netip.Addr][]*entry // wire claims only
	byPort      map[int32]*portClaims   // wire claims, by port
	wire        int                     // number of wire claims
	leftOut     uint64                  // wire claims that were refused or evicted
	important   importance
	status      *ipwitnessv1.StatusRecord
	readers     []*Reader // never changed in place
	clock       clock
}

// Records has the records of one kind.
type Records[K comparable, V any] struct {
	live map[K]V
	// table has the readers, and of returns the changes that a reader has not taken yet.
	table *Table
	of    func(*Reader) *changes[K]

	// urgent is of for the changes of important keys. Both are nil if no key can be important.
	urgent    func(*Reader) *changes[K]
	important func(K) bool

	// begun and ended are called with added and removed keys. They may be nil.
	begun, ended func(K)
}

func (r *Records[K, V]) mark(k K, received time.Time) {
	of := r.of
	if r.important != nil && r.important(k) {
		of = r.urgent
	}
	for _, reader := range r.table.readers {
		of(reader).mark(k, received, len(r.live)+spareChanges)
	}
}

// Put adds or replaces a record. The caller holds the lock of the table.
func (r *Records[K, V]) Put(k K, v V, received time.Time) {
	if _, had := r.live[k]; !had && r.begun != nil {
		r.begun(k)
	}
	r.live[k] = v
	r.mark(k, received)
}

// Remove removes a record, if there is one. The caller holds the lock of the table.
func (r *Records[K, V]) Remove(k K, received time.Time) {
	if _, ok := r.live[k]; ok {
		delete(r.live, k)
		r.mark(k, received)
		if r.ended != nil {
			r.ended(k)
		}
	}
}

// Get returns the record with a key, or the zero value if there is none.
func (r *Records[K, V]) Get(k K) V { return r.live[k] }

// All yields all records.
func (r *Records[K, V]) All() iter.Seq2[K, V] { return maps.All(r.live) }

func newRecords[V any, K comparable](t *Table, of func(*Reader) *changes[K]) Records[K, V] {
	return Records[K, V]{live: map[K]V{}, table: t, of: of}
}

// New returns an empty table.
func New() *Table {
	now := time.Now()
	t := &Table{
		byAddr: map[netip.Addr][]*entry{}, byPort: map[int32]*portClaims{}, important: importance{holders: map[netip.Addr]int{}},
		clock: clock{began: now, ahead: []ahead{{}}, looked: now, slept: asleep(), asleep: asleep},
	}
	t.Namespaces = newRecords[*ipwitnessv1.NamespaceRecord](t, func(r *Reader) *changes[uint32] { return &r.namespaces })
	t.Links = newRecords[*ipwitnessv1.LinkRecord](t, func(r *Reader) *changes[string] { return &r.links })
	t.Interfaces = newRecords[*ipwitnessv1.InterfaceRecord](t, func(r *Reader) *changes[InterfaceKey] { return &r.interfaces })
	t.Pools = newRecords[*ipwitnessv1.PoolRecord](t, func(r *Reader) *changes[PoolKey] { return &r.pools })
	t.Allocations = newRecords[*ipwitnessv1.AllocationRecord](t, func(r *Reader) *changes[AllocationKey] { return &r.allocated })
	t.Beliefs = newRecords[*ipwitnessv1.BeliefRecord](t, func(r *Reader) *changes[BeliefKey] { return &r.beliefs })
	t.claims = newRecords[*entry](t, func(r *Reader) *changes[ClaimKey] { return &r.claims })
	t.claims.urgent = func(r *Reader) *changes[ClaimKey] { return &r.urgent }
	t.claims.important = t.isImportant
	t.claims.begun, t.claims.ended = ofKernelClaims(t.holdImportant), ofKernelClaims(t.releaseImportant)
	t.Allocations.begun = func(k AllocationKey) { t.holdImportant(k.Address) }
	t.Allocations.ended = func(k AllocationKey) { t.releaseImportant(k.Address) }
	return t
}

// Update runs fn with the table locked, and then wakes the readers.
func (t *Table) Update(fn func()) {
	t.mu.Lock()
	fn()
	readers := t.readers
	t.mu.Unlock()
	for _, r := range readers {
		Poke(r.wake)
	}
}

// Add adds a claim, or increases its count if it is known. Claims with the same key and
// content are merged. took is false if there is no room for a wire claim. evicted has the key
// of the claim that was evicted for it, if any. The caller holds the lock.
func (t *Table) Add(k ClaimKey, c Claim, received time.Time) (took bool, evicted []ClaimKey) {
	wire := IsWire(k.Kind)
	if old, ok := t.claims.live[k]; ok {
		c.First = old.First
		c.Count += old.Count
		old.Claim = c
		if wire {
			old.seenAgain = true
			t.enqueue(old)
		}
		t.claims.mark(k, received)
		return true, nil
	}
	if wire {
		if took, evicted = t.makeRoom(k, received); !took {
			return false, nil
		}
	}
	held := &entry{Claim: c}
	if wire {
		held.key, held.atAddr = k, len(t.byAddr[k.Address])
		t.byAddr[k.Address] = append(t.byAddr[k.Address], held)
		t.wire++
		t.enqueue(held)
	}
	t.claims.Put(k, held, received)
	return true, evicted
}

// Describe sets the network that assigned the address of a known claim, and whether the node routes
// the address to its holder. The claim does not count as seen again. The caller holds the lock.
func (t *Table) Describe(k ClaimKey, network Network, routed bool, received time.Time) {
	if c := t.claims.live[k]; c != nil && (c.Network != network || c.Routed != routed) {
		c.Network, c.Routed = network, routed
		t.claims.mark(k, received)
	}
}

// Claim returns the content of a claim; zero if there is none. The caller holds the lock.
func (t *Table) Claim(k ClaimKey) Claim {
	if c := t.claims.live[k]; c != nil {
		return c.Claim
	}
	return Claim{}
}

// RemoveClaim removes a claim that did not come from the wire. The caller holds the lock.
func (t *Table) RemoveClaim(k ClaimKey, received time.Time) { t.claims.Remove(k, received) }

// Claims yields all claims. The caller holds the lock.
func (t *Table) Claims() iter.Seq2[ClaimKey, *Claim] {
	return func(yield func(ClaimKey, *Claim) bool) {
		for k, c := range t.claims.live {
			if !yield(k, &c.Claim) {
				return
			}
		}
	}
}

// WireClaimsTo yields the wire claims to an address. The caller holds the lock.
func (t *Table) WireClaimsTo(addr netip.Addr) iter.Seq2[ClaimKey, *Claim] {
	return func(yield func(ClaimKey, *Claim) bool) {
		for _, c := range t.byAddr[addr] {
			if !yield(c.key, &c.Claim) {
				return
			}
		}
	}
}

// RemoveWire removes matching wire claims to an address, and returns their keys. The caller
// holds the lock.
func (t *Table) RemoveWire(addr netip.Addr, match func(ClaimKey) bool, received time.Time) (dropped []ClaimKey) {
	for _, c := range slices.Backward(t.byAddr[addr]) { // backwards, because dropFrame moves the last claim to the place of c
		if match(c.key) {
			dropped = append(dropped, c.key)
			t.dropFrame(c, received)
		}
	}
	return dropped
}

// RemoveNamespace removes the record of a namespace whose interfaces and claims were already
// removed. Its end implies theirs, so they are not sent. The caller holds the lock.
func (t *Table) RemoveNamespace(id uint32, received time.Time) {
	t.Namespaces.Remove(id, received)
	for _, r := range t.readers {
		maps.DeleteFunc(r.interfaces.dirty, func(k InterfaceKey, _ time.Time) bool { return k.Namespace == id })
		for _, c := range []*changes[ClaimKey]{&r.claims, &r.urgent} {
			maps.DeleteFunc(c.dirty, func(k ClaimKey, _ time.Time) bool { return k.At.Namespace == id })
		}
		r.batch = slices.DeleteFunc(r.batch, func(c claimChange) bool { return c.key.At.Namespace == id })
	}
}

// Attached returns the number of attached readers.
func (t *Table) Attached() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.readers)
}

// Size returns the number of claims in the table, and of wire claims that were left out.
func (t *Table) Size() (held int, leftOut uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.claims.live), t.leftOut
}

// Status returns the agent's health; nil before it is set. The caller holds the lock.
func (t *Table) Status() *ipwitnessv1.StatusRecord { return t.status }

// SetStatus sets the agent's health. The caller holds the lock.
func (t *Table) SetStatus(s *ipwitnessv1.StatusRecord) {
	t.status = s
	for _, r := range t.readers {
		r.status = true
	}
}

// claimRecord returns the message for a claim whose change was received at the given time. A
// nil claim was removed.
func (t *Table) claimRecord(k ClaimKey, c *entry, now, received time.Time) *ipwitnessv1.ClaimRecord {
	r := &ipwitnessv1.ClaimRecord{
		Address: k.Address.AsSlice(), Kind: k.Kind, Namespace: k.At.Namespace, Index: uint32(k.At.Index),
		Mac: []byte(k.MAC), Vlan: uint32(k.VLAN), InnerVlan: uint32(k.InnerVLAN), NoOverride: k.NoOverride, Source: []byte(k.Source),
		Residence: durationpb.New(max(now.Sub(received), 0)), Gone: c == nil,
	}
	if c == nil {
		return r
	}
	r.Link, r.Network, r.TakenAlong, r.Routed, r.Peer, r.PrefixLength, r.Flags = c.Link, c.Name, c.TakenAlong, c.Routed, c.Peer, uint32(c.PrefixLength), c.Flags
	r.Answer, r.Filter = c.Answer, c.Filter
	r.FirstSeen, r.LastSeen, r.Count = t.clock.stamp(c.First), t.clock.stamp(c.Last), c.Count
	r.Age = durationpb.New(max(now.Sub(c.Last), 0)) // by the monotonic clock, because both times have its reading
	if !c.Assigned.IsZero() {
		r.AssignedAt = t.clock.stamp(c.Assigned)
	}
	return r
}

// Problems returns the number of current problems.
func (t *Table) Problems() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := len(t.status.GetProblems()) + len(t.status.GetFlooding())
	if u := t.status.GetUnparsed(); u.GetTags()+u.GetExtensions()+u.GetOptions() > 0 {
		n++
	}
	return n
}

// IsWire reports whether claims of a kind come from the wire.
func IsWire(kind ipwitnessv1.Evidence_Kind) bool {
	switch kind {
	case ipwitnessv1.Evidence_ANNOUNCED, ipwitnessv1.Evidence_ANSWERED, ipwitnessv1.Evidence_USED:
		return true
	}
	return false
}
