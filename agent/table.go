package agent

import (
	"net/netip"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ipwitness/ipwitness/agent/wake"
	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// ownNamespace is the record id of the agent's own namespace.
const ownNamespace uint32 = 1

// interfaceKey is the key of an interface record.
type interfaceKey struct {
	namespace uint32
	index     int32
}

// claimKey is the key of a claim record.
type claimKey struct {
	addr            netip.Addr
	kind            ipwitnessv1.Evidence_Kind
	at              interfaceKey
	mac             string // raw bytes; wire only
	vlan, innerVLAN uint16 // wire only
	noOverride      bool   // wire only
	source          string // wire only: the Ethernet source if it differs from mac
}

// poolKey is the key of a pool record.
type poolKey struct{ ipam, name string }

// allocationKey is the key of an allocation record.
type allocationKey struct {
	pool poolKey
	addr netip.Addr
}

// claim is what a claim record says beyond its key.
type claim struct {
	link      string // wire only
	network   string // rtnetlink only: the network, as a CNI result names it, that gave the address
	routed    bool   // wire only: the node itself routes to the sender for the address
	prefixLen uint8
	flags     uint32
	assigned  time.Time
	first     time.Time
	last      time.Time
	count     uint32

	key       claimKey // wire only
	atAddr    int      // wire only: its index in table.byAddr
	older     *claim   // wire only: its neighbours in a queue of its port
	newer     *claim
	inQueue   queueIndex // wire only
	seenAgain bool       // wire only: it was told more than once
}

// table is the agent's current state, and who reads it.
type table struct {
	mu         sync.Mutex
	namespaces records[uint32, *ipwitnessv1.NamespaceRecord]
	links      records[string, *ipwitnessv1.LinkRecord]
	interfaces records[interfaceKey, *ipwitnessv1.InterfaceRecord]
	pools      records[poolKey, *ipwitnessv1.PoolRecord]
	allocated  records[allocationKey, *ipwitnessv1.AllocationRecord]
	claims     records[claimKey, *claim]
	byAddr     map[netip.Addr][]*claim // of the wire
	byPort     map[int32]*portClaims   // wire claims, by port
	wire       int                     // claims of the wire
	leftOut    uint64                  // wire claims that found no room, or evicted another claim
	important  importance
	status     *ipwitnessv1.StatusRecord
	readers    []*reader // never changed in place
}

// records is one table of records, and what its readers have not taken of it.
type records[K comparable, V any] struct {
	live    map[K]V
	changes []*changes[K]

	// urgent takes the changes of keys that are important; nil where none are.
	urgent    []*changes[K]
	important func(K) bool

	// begun and ended are called with keys that come and go. They may be nil.
	begun, ended func(K)
}

func (r *records[K, V]) mark(k K, received time.Time) {
	readers := r.changes
	if r.important != nil && r.important(k) {
		readers = r.urgent
	}
	for _, c := range readers {
		c.mark(k, received, len(r.live)+spareChanges)
	}
}

func (r *records[K, V]) put(k K, v V, received time.Time) {
	if _, had := r.live[k]; !had && r.begun != nil {
		r.begun(k)
	}
	r.live[k] = v
	r.mark(k, received)
}

func (r *records[K, V]) remove(k K, received time.Time) {
	if _, ok := r.live[k]; ok {
		delete(r.live, k)
		r.mark(k, received)
		if r.ended != nil {
			r.ended(k)
		}
	}
}

func newRecords[K comparable, V any]() records[K, V] {
	return records[K, V]{live: map[K]V{}}
}

func newTable() *table {
	t := &table{
		namespaces: newRecords[uint32, *ipwitnessv1.NamespaceRecord](),
		links:      newRecords[string, *ipwitnessv1.LinkRecord](),
		interfaces: newRecords[interfaceKey, *ipwitnessv1.InterfaceRecord](),
		pools:      newRecords[poolKey, *ipwitnessv1.PoolRecord](),
		allocated:  newRecords[allocationKey, *ipwitnessv1.AllocationRecord](),
		claims:     newRecords[claimKey, *claim](),
		byAddr:     map[netip.Addr][]*claim{},
		byPort:     map[int32]*portClaims{},
		important:  importance{holders: map[netip.Addr]int{}},
	}
	t.claims.important = t.isImportant
	t.claims.begun, t.claims.ended = t.kernelClaims(t.holdImportant), t.kernelClaims(t.releaseImportant)
	t.allocated.begun = func(k allocationKey) { t.holdImportant(k.addr) }
	t.allocated.ended = func(k allocationKey) { t.releaseImportant(k.addr) }
	return t
}

// update runs fn with the table locked, and wakes the readers after it.
func (t *table) update(fn func()) {
	t.mu.Lock()
	fn()
	readers := t.readers
	t.mu.Unlock()
	for _, r := range readers {
		wake.Poke(r.wake)
	}
}

// seen adds a claim, or counts it again if it is known. Claims with the same
// key and content merge. It returns false if a wire claim finds no room, and
// the key of the claim that was evicted for it, if any. The caller holds the
// lock.
func (t *table) seen(k claimKey, c claim, received time.Time) (took bool, evicted []claimKey) {
	wire := isWire(k.kind)
	if old, ok := t.claims.live[k]; ok {
		c.first = old.first
		c.count += old.count
		c.key, c.atAddr, c.older, c.newer, c.inQueue = old.key, old.atAddr, old.older, old.newer, old.inQueue
		*old = c
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
	held := new(claim) // not &c: that would cost an allocation for each that is known, too
	*held = c
	if wire {
		held.key, held.atAddr = k, len(t.byAddr[k.addr])
		t.byAddr[k.addr] = append(t.byAddr[k.addr], held)
		t.wire++
		t.enqueue(held)
	}
	t.claims.put(k, held, received)
	return true, evicted
}

// setNetwork says which network gave the address of a known claim. That is no
// sighting of it. The caller holds the lock.
func (t *table) setNetwork(k claimKey, network string, received time.Time) {
	if c := t.claims.live[k]; c != nil && c.network != network {
		c.network = network
		t.claims.mark(k, received)
	}
}

// dropFrames removes the claims of the wire to an address that match, and gives
// their keys. The caller holds the lock.
func (t *table) dropFrames(addr netip.Addr, match func(claimKey) bool, received time.Time) (dropped []claimKey) {
	for _, c := range slices.Backward(t.byAddr[addr]) { // its place is taken by one that was looked at
		if match(c.key) {
			dropped = append(dropped, c.key)
			t.dropFrame(c, received)
		}
	}
	return dropped
}

// removeNamespace removes the record of a namespace whose interfaces and claims
// were removed before: its end is theirs, so they need not be told. The caller
// holds the lock.
func (t *table) removeNamespace(id uint32, received time.Time) {
	t.namespaces.remove(id, received)
	for _, r := range t.readers {
		r.forget(id)
	}
}

// claimsNow returns how many claims the table holds, and how many wire claims
// were left out.
func (t *table) claimsNow() (held int, leftOut uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.claims.live), t.leftOut
}

// setStatus puts the agent's health. The caller holds the lock.
func (t *table) setStatus(s *ipwitnessv1.StatusRecord) {
	t.status = s
	for _, r := range t.readers {
		r.status = true
	}
}

// claimRecord converts a claim for the wire; nil says that it is gone. received
// is when the change of it was.
func claimRecord(k claimKey, c *claim, now, received time.Time) *ipwitnessv1.ClaimRecord {
	r := &ipwitnessv1.ClaimRecord{
		Address:   k.addr.AsSlice(),
		Kind:      k.kind,
		Namespace: k.at.namespace,
		Index:     uint32(k.at.index),
		Mac:       []byte(k.mac),
		Vlan:      uint32(k.vlan),
		InnerVlan: uint32(k.innerVLAN),

		NoOverride: k.noOverride,
		Source:     []byte(k.source),
		Residence:  durationpb.New(max(now.Sub(received), 0)),
		Gone:       c == nil,
	}
	if c == nil {
		return r
	}
	r.Link = c.link
	r.Network = c.network
	r.Routed = c.routed
	r.PrefixLength = uint32(c.prefixLen)
	r.Flags = c.flags
	r.FirstSeen = timestamppb.New(c.first)
	r.LastSeen = timestamppb.New(c.last)
	r.Age = durationpb.New(max(now.Sub(c.last), 0)) // by the monotonic clock: both have its reading
	r.Count = c.count
	if !c.assigned.IsZero() {
		r.AssignedAt = timestamppb.New(c.assigned)
	}
	return r
}

// problemsNow returns the number of current problems.
func (t *table) problemsNow() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := len(t.status.GetProblems()) + len(t.status.GetFlooding())
	if u := t.status.GetUnparsed(); u.GetTags()+u.GetExtensions()+u.GetOptions() > 0 {
		n++
	}
	return n
}
