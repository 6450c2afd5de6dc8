package agent

import (
	"net/netip"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

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
	source          string // wire only: the Ethernet source where it is not mac
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

	key            claimKey // wire only
	atPort, atAddr int      // wire only: its places in the lists of table
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
	byPort     map[int32][]*claim      // of the wire
	wire       int                     // claims of the wire
	refused    uint32                  // claims of the wire that found no room
	status     *ipwitnessv1.StatusRecord
	readers    []*reader // never changed in place
}

// records is one table of records, and what its readers have not taken of it.
type records[K comparable, V any] struct {
	live    map[K]V
	changes []*changes[K]
}

func (r *records[K, V]) mark(k K, received time.Time) {
	for _, c := range r.changes {
		c.mark(k, received, len(r.live)+spareChanges)
	}
}

func (r *records[K, V]) put(k K, v V, received time.Time) {
	r.live[k] = v
	r.mark(k, received)
}

func (r *records[K, V]) remove(k K, received time.Time) {
	if _, ok := r.live[k]; ok {
		delete(r.live, k)
		r.mark(k, received)
	}
}

func newRecords[K comparable, V any]() records[K, V] {
	return records[K, V]{live: map[K]V{}}
}

func newTable() *table {
	return &table{
		namespaces: newRecords[uint32, *ipwitnessv1.NamespaceRecord](),
		links:      newRecords[string, *ipwitnessv1.LinkRecord](),
		interfaces: newRecords[interfaceKey, *ipwitnessv1.InterfaceRecord](),
		pools:      newRecords[poolKey, *ipwitnessv1.PoolRecord](),
		allocated:  newRecords[allocationKey, *ipwitnessv1.AllocationRecord](),
		claims:     newRecords[claimKey, *claim](),
		byAddr:     map[netip.Addr][]*claim{},
		byPort:     map[int32][]*claim{},
	}
}

// update runs fn with the table locked, and wakes the readers after it.
func (t *table) update(fn func()) {
	t.mu.Lock()
	fn()
	readers := t.readers
	t.mu.Unlock()
	for _, r := range readers {
		poke(r.wake)
	}
}

// What the wire may take of the table: it is the one source that anybody can
// fill. Beyond it claims are refused and counted; a frame that comes again
// later, when there is room, is taken.
const (
	// maxWire is as many bindings as the observer remembers.
	maxWire = 131072
	// maxPerPort is enough for the largest LAN behind an uplink.
	maxPerPort = 65536
	// portShare is what a port may always have, however full others are.
	portShare = 256
	// maxPerAddress is enough to say that an address is in dispute.
	maxPerAddress = 256
	// addressShare is what a port may always show of an address: other links,
	// such as those of other tenants, may have one that is full of claims.
	addressShare = 8
)

// poke puts a token into a channel that holds one, unless it is there.
func poke(ch chan<- struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// seen puts one claim, or counts it again where it is known. Claims of one key
// that say the same merge. It gives false where a claim of the wire finds no
// room. The caller holds the lock.
func (t *table) seen(k claimKey, c claim, received time.Time) bool {
	if old, ok := t.claims.live[k]; ok {
		c.first = old.first
		c.count += old.count
		c.key, c.atPort, c.atAddr = old.key, old.atPort, old.atAddr
		*old = c
		t.claims.mark(k, received)
		return true
	}
	wire := isWire(k.kind)
	if wire && !t.room(k) {
		t.refused++
		return false
	}
	held := new(claim) // not &c: that would cost an allocation for each that is known, too
	if wire {
		c.key, c.atPort, c.atAddr = k, len(t.byPort[k.at.index]), len(t.byAddr[k.addr])
		t.byPort[k.at.index] = append(t.byPort[k.at.index], held)
		t.byAddr[k.addr] = append(t.byAddr[k.addr], held)
		t.wire++
	}
	*held = c
	t.claims.put(k, held, received)
	return true
}

// setNetwork says which network gave the address of a known claim. That is no
// sighting of it. The caller holds the lock.
func (t *table) setNetwork(k claimKey, network string, received time.Time) {
	if c := t.claims.live[k]; c != nil && c.network != network {
		c.network = network
		t.claims.mark(k, received)
	}
}

// room says whether the table takes one more claim of the wire.
func (t *table) room(k claimKey) bool {
	onPort := len(t.byPort[k.at.index])
	if onPort >= maxPerPort || t.wire >= maxWire && onPort >= portShare {
		return false
	}
	if len(t.byAddr[k.addr]) < maxPerAddress {
		return true
	}
	have := 0
	for _, c := range t.byAddr[k.addr] {
		if c.key.at == k.at {
			have++
		}
	}
	return have < addressShare
}

// dropFrame removes one claim of the wire. The caller holds the lock.
func (t *table) dropFrame(c *claim, received time.Time) {
	t.claims.remove(c.key, received)
	t.wire--
	takeOut(t.byPort, c.key.at.index, c.atPort, func(c *claim, at int) { c.atPort = at })
	takeOut(t.byAddr, c.key.addr, c.atAddr, func(c *claim, at int) { c.atAddr = at })
}

// takeOut takes one claim out of a list, and puts the last one in its place.
func takeOut[K comparable](lists map[K][]*claim, k K, at int, moved func(*claim, int)) {
	list := lists[k]
	last := len(list) - 1
	list[at] = list[last]
	moved(list[at], at)
	list[last] = nil
	if lists[k] = list[:last]; last == 0 {
		delete(lists, k)
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

// dropPort removes the claims of the wire by a port. The caller holds the lock.
func (t *table) dropPort(index int32, received time.Time) (dropped []claimKey) {
	for list := t.byPort[index]; len(list) > 0; list = t.byPort[index] {
		c := list[len(list)-1]
		dropped = append(dropped, c.key)
		t.dropFrame(c, received)
	}
	return dropped
}

// dropOld removes the claims of the wire that were last seen before a time. The
// caller holds the lock.
func (t *table) dropOld(before, received time.Time) (dropped []claimKey) {
	for port := range t.byPort {
		for _, c := range slices.Backward(t.byPort[port]) {
			if c.last.Before(before) {
				dropped = append(dropped, c.key)
				t.dropFrame(c, received)
			}
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

// claimsNow is how many claims the table holds, and how many it refused.
func (t *table) claimsNow() (held int, refused uint32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.claims.live), t.refused
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

// problemsNow counts what does not work.
func (t *table) problemsNow() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := len(t.status.GetProblems())
	if u := t.status.GetUnparsed(); u.GetTags()+u.GetExtensions()+u.GetOptions() > 0 {
		n++
	}
	return n
}
