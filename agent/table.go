package agent

import (
	"maps"
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
}

// claim is what a claim record says beyond its key. It is comparable: a claim
// that is put again unchanged is not sent again.
type claim struct {
	link      string // wire only
	source    string // wire only: the Ethernet source where it is not the sender hardware address
	prefixLen uint8
	flags     uint32
	assigned  time.Time
	first     time.Time
	last      time.Time
	count     uint32
}

// table is the agent's current state and what of it is not sent yet. It is no
// log: changes of one record coalesce until the reporter takes them, so that
// memory is bounded by what exists and no final state is lost.
type table struct {
	mu         sync.Mutex
	namespaces records[uint32, *ipwitnessv1.NamespaceRecord]
	links      records[string, *ipwitnessv1.LinkRecord]
	interfaces records[interfaceKey, *ipwitnessv1.InterfaceRecord]
	claims     records[claimKey, *claim]
	frames     map[netip.Addr][]claimKey // of the wire, by address
	perPort    map[int32]int             // claims of the wire, by port
	refused    uint32                    // claims of the wire that found their port full
	status     *ipwitnessv1.StatusRecord
	statusNew  bool
	checked    []uint64
	wake       chan struct{} // holds one token while there is something to take
}

// records is one table of records and the keys that changed since they were
// taken, each with the time that its oldest change was received.
type records[K comparable, V any] struct {
	live  map[K]V
	dirty map[K]time.Time
	grown bool // dirty was large: walking it stays as slow as it was then
}

func (r *records[K, V]) mark(k K, received time.Time) {
	if _, ok := r.dirty[k]; !ok {
		r.dirty[k] = received
	}
	r.grown = r.grown || len(r.dirty) > maxRecords
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

// all marks everything that lives, and forgets what is gone: a snapshot has no
// need to say so.
func (r *records[K, V]) all(now time.Time) {
	clear(r.dirty)
	for k := range r.live {
		r.mark(k, now)
	}
}

func newRecords[K comparable, V any]() records[K, V] {
	return records[K, V]{live: map[K]V{}, dirty: map[K]time.Time{}}
}

func newTable() *table {
	return &table{
		namespaces: newRecords[uint32, *ipwitnessv1.NamespaceRecord](),
		links:      newRecords[string, *ipwitnessv1.LinkRecord](),
		interfaces: newRecords[interfaceKey, *ipwitnessv1.InterfaceRecord](),
		claims:     newRecords[claimKey, *claim](),
		frames:     map[netip.Addr][]claimKey{},
		perPort:    map[int32]int{},
		wake:       make(chan struct{}, 1),
	}
}

// update runs fn with the table locked, and wakes the reporter after it.
func (t *table) update(fn func()) {
	t.mu.Lock()
	fn()
	t.mu.Unlock()
	poke(t.wake)
}

// maxPerPort is how many claims of the wire one port may make: enough for a
// large LAN behind an uplink, and not enough for one port to fill the table.
const maxPerPort = 8192

// poke puts a token into a channel that holds one, unless it is there.
func poke(ch chan<- struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// seen puts one claim, or counts it again where it is known. Claims of one key
// that say the same merge. It gives false where a claim of the wire finds its
// port full. The caller holds the lock.
func (t *table) seen(k claimKey, c claim, received time.Time) bool {
	if old, ok := t.claims.live[k]; ok {
		c.first = old.first
		c.count += old.count
		*old = c
		t.claims.mark(k, received)
		return true
	}
	if isWire(k.kind) {
		if t.perPort[k.at.index] >= maxPerPort {
			t.refused++
			return false
		}
		t.perPort[k.at.index]++
		t.frames[k.addr] = append(t.frames[k.addr], k)
	}
	t.claims.put(k, &c, received)
	return true
}

// dropFrames removes the claims of the wire to an address that match, and gives
// their keys. The caller holds the lock.
func (t *table) dropFrames(addr netip.Addr, match func(claimKey) bool, received time.Time) (dropped []claimKey) {
	rest := slices.DeleteFunc(t.frames[addr], func(k claimKey) bool {
		if !match(k) {
			return false
		}
		dropped = append(dropped, k)
		t.claims.remove(k, received)
		if t.perPort[k.at.index]--; t.perPort[k.at.index] == 0 {
			delete(t.perPort, k.at.index)
		}
		return true
	})
	if t.frames[addr] = rest; len(rest) == 0 {
		delete(t.frames, addr)
	}
	return dropped
}

// dropPort removes the claims of the wire by a port. The caller holds the lock.
func (t *table) dropPort(index int32, received time.Time) (dropped []claimKey) {
	if t.perPort[index] == 0 {
		return nil
	}
	for addr := range t.frames {
		dropped = append(dropped, t.dropFrames(addr, func(k claimKey) bool { return k.at.index == index }, received)...)
	}
	return dropped
}

// dropOld removes the claims of the wire that were last seen before a time. The
// caller holds the lock.
func (t *table) dropOld(before, received time.Time) (dropped []claimKey) {
	for addr := range t.frames {
		dropped = append(dropped, t.dropFrames(addr, func(k claimKey) bool { return t.claims.live[k].last.Before(before) }, received)...)
	}
	return dropped
}

// removeNamespace removes the record of a namespace whose interfaces and claims
// were removed before: its end is theirs, so they need not be told. The caller
// holds the lock.
func (t *table) removeNamespace(id uint32, received time.Time) {
	t.namespaces.remove(id, received)
	maps.DeleteFunc(t.interfaces.dirty, func(k interfaceKey, _ time.Time) bool { return k.namespace == id })
	maps.DeleteFunc(t.claims.dirty, func(k claimKey, _ time.Time) bool { return k.at.namespace == id })
}

// maxRecords bounds one message, so that it stays far below gRPC's 4 MiB.
const maxRecords = 4096

// take gives the changes since the last take, at most maxRecords of them, and
// says whether there are more. It gives nil where there is nothing.
func (t *table) take(now time.Time) (m *ipwitnessv1.ReportRequest, more bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	m = &ipwitnessv1.ReportRequest{}
	room := maxRecords

	// What a record refers to travels before it, or with it.
	for k := range takeKeys(&t.namespaces, &room) {
		if v, ok := t.namespaces.live[k]; ok {
			m.Namespaces = append(m.Namespaces, v)
		} else {
			m.Namespaces = append(m.Namespaces, &ipwitnessv1.NamespaceRecord{Id: k, Gone: true})
		}
	}
	for k := range takeKeys(&t.links, &room) {
		if v, ok := t.links.live[k]; ok {
			m.Links = append(m.Links, v)
		} else {
			m.Links = append(m.Links, &ipwitnessv1.LinkRecord{Name: k, Gone: true})
		}
	}
	for k := range takeKeys(&t.interfaces, &room) {
		if v, ok := t.interfaces.live[k]; ok {
			m.Interfaces = append(m.Interfaces, v)
		} else {
			m.Interfaces = append(m.Interfaces, &ipwitnessv1.InterfaceRecord{Namespace: k.namespace, Index: uint32(k.index), Gone: true})
		}
	}
	for k, received := range takeKeys(&t.claims, &room) {
		m.Claims = append(m.Claims, claimRecord(k, t.claims.live[k], now.Sub(received)))
	}
	if t.statusNew {
		m.Status, t.statusNew = t.status, false
	}
	more = room <= 0
	if !more {
		// A check is answered once all that it may have changed has been taken.
		m.Checked, t.checked = t.checked, nil
	}
	if room == maxRecords && m.Status == nil && m.Checked == nil {
		return nil, false
	}
	return m, more
}

// takeKeys walks changed keys and takes them, as long as there is room.
func takeKeys[K comparable, V any](r *records[K, V], room *int) func(yield func(K, time.Time) bool) {
	return func(yield func(K, time.Time) bool) {
		for k, received := range r.dirty {
			if *room <= 0 {
				return
			}
			*room--
			delete(r.dirty, k)
			if !yield(k, received) {
				return
			}
		}
		if r.grown {
			r.dirty, r.grown = map[K]time.Time{}, false
		}
	}
}

// snapshot makes everything due, for a stream that begins.
func (t *table) snapshot(now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.namespaces.all(now)
	t.links.all(now)
	t.interfaces.all(now)
	t.claims.all(now)
	t.statusNew = t.status != nil
	t.checked = nil // the stream that asked is gone
}

// claimsNow is how many claims the table holds, and how many it refused.
func (t *table) claimsNow() (held int, refused uint32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.claims.live), t.refused
}

// setStatus puts the agent's health. The caller holds the lock.
func (t *table) setStatus(s *ipwitnessv1.StatusRecord) {
	t.status, t.statusNew = s, true
}

// claimRecord converts a claim for the wire; nil says that it is gone.
func claimRecord(k claimKey, c *claim, residence time.Duration) *ipwitnessv1.ClaimRecord {
	r := &ipwitnessv1.ClaimRecord{
		Address:   k.addr.AsSlice(),
		Kind:      k.kind,
		Namespace: k.at.namespace,
		Index:     uint32(k.at.index),
		Mac:       []byte(k.mac),
		Vlan:      uint32(k.vlan),
		InnerVlan: uint32(k.innerVLAN),

		NoOverride: k.noOverride,
		Residence:  durationpb.New(residence),
		Gone:       c == nil,
	}
	if c == nil {
		return r
	}
	r.Link = c.link
	r.Source = []byte(c.source)
	r.PrefixLength = uint32(c.prefixLen)
	r.Flags = c.flags
	r.FirstSeen = timestamppb.New(c.first)
	r.LastSeen = timestamppb.New(c.last)
	r.Count = c.count
	if !c.assigned.IsZero() {
		r.AssignedAt = timestamppb.New(c.assigned)
	}
	return r
}

// problemsNow is what does not work, in words.
func (t *table) problemsNow() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.status.GetProblems()
}
