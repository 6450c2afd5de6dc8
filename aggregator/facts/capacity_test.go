package facts

import (
	"fmt"
	"maps"
	"math"
	"net/netip"
	"strings"
	"testing"

	"github.com/ipwitness/ipwitness/aggregator/index"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/records"
)

// crowd returns a report of pods from a record number on, with two frames of each.
func crowd(first, count int) *pb.ReportRequest {
	m := &pb.ReportRequest{}
	for i := first; i < first+count; i++ {
		record := uint32(i)
		one := pod(record, netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}).String())
		w := one.Namespaces[1].Workload
		w.Uid, w.ContainerId = fmt.Sprintf("%08x-1111-2222-3333-444444444444", i), strings.Repeat("c", 56)+fmt.Sprintf("%08x", i)
		w.Source, w.Process, w.VirtualMachine = "cri", fmt.Sprintf("process%05d", i), fmt.Sprintf("machine%05d", i)
		one.Claims[0].Count = 2
		for _, kind := range []pb.Evidence_Kind{pb.Evidence_ANNOUNCED, pb.Evidence_USED} {
			frame := announced(record, netip.AddrFrom4([4]byte{10, 2, byte(i >> 8), byte(i)}).String(), records.MAC(record))
			frame.Kind = kind
			one.Claims = append(one.Claims, frame)
		}
		one.Namespaces = one.Namespaces[1:]
		m = records.Merge(m, one)
	}
	return m
}

// capacity is the room in a table, and how much of it is in use.
type capacity struct{ room, used int }

func slabCapacity[T any](s *slab[T]) capacity { return capacity{cap(s.items), len(s.items)} }

func tableCapacity(t *table) capacity { return capacity{t.slots.size(), t.used} }

// capacities returns the room in the tables of a node for records, and for finding them by a key.
func (t *tables) capacities() (slabs, indexes map[string]capacity) {
	slabs = map[string]capacity{
		"namespaces": slabCapacity(&t.namespaces), "interfaces": slabCapacity(&t.interfaces), "links": slabCapacity(&t.links), "claims": slabCapacity(&t.claims),
		"wires": slabCapacity(&t.wires), "histories": slabCapacity(&t.histories), "hardware": slabCapacity(&t.hardware),
	}
	indexes = map[string]capacity{
		"by record": tableCapacity(&t.byRecord), "by index": tableCapacity(&t.byIndex), "by name": tableCapacity(&t.byName), "holders": tableCapacity(&t.holders),
		"by MAC": tableCapacity(&t.byMAC), "by text": tableCapacity(&t.texts.byText),
	}
	return slabs, indexes
}

// A snapshot releases the memory that changes and a larger snapshot before it have left unused.
func TestASnapshotReleasesUnusedMemory(t *testing.T) {
	for count := 800; count < 1100; count += 50 { // tables grow in steps, so that some of these leave much unused
		s := newScene(t)
		a := s.joins("n1", "b1", 1)
		for i := range count {
			a.report(crowd(2+i, 1))
		}
		for _, left := range []int{count, 10} {
			a.snapshot(crowd(2, left))
			slabs, indexes := a.n.capacities()
			for name, c := range slabs {
				if c.room-c.used > max(2, c.used/8) {
					t.Errorf("%d of %d pods: got room for %d %s, want little more than %d", left, count, c.room, name, c.used)
				}
			}
			for name, c := range indexes {
				if c.used < left || c.room > c.used+c.used/2 || c.room < c.used*5/4 {
					t.Errorf("%d of %d pods: got %d slots %s for %d records", left, count, c.room, name, c.used)
				}
			}
			if texts := &a.n.texts.arena; texts.Cap()-texts.Len() > 256+texts.Len()/8 {
				t.Errorf("%d of %d pods: got room for %d bytes of texts, want little more than %d", left, count, texts.Cap(), texts.Len())
			}
		}
		s.check(t, "a small snapshot")
	}
}

// The room for the first message of a snapshot is made at once and is sufficient.
func TestRoomForASnapshotIsMadeAtOnce(t *testing.T) {
	m := records.Merge(&pb.ReportRequest{Namespaces: []*pb.NamespaceRecord{{Id: 1, Netns: "1"}}}, crowd(2, 1100))
	s := newScene(t)
	a, err := s.hello(&pb.Hello{Node: "n1", BootId: "b1", Netns: "1", Epoch: 1}, "")
	if err != nil {
		t.Fatal(err)
	}
	s.Update(func() { a.n.reserve(m) })
	slabs, indexes := a.n.capacities()
	other := newScene(t).joins("n1", "b1", 1, m)
	defer func() { // the room is made whenever a snapshot comes
		want, _ := a.n.capacities()
		if got, _ := other.n.capacities(); !maps.Equal(got, want) {
			t.Errorf("got room %v, want %v", got, want)
		}
	}()
	texts := a.n.texts.arena.Cap()
	if _, err := s.Snapshot(a.p, a.n, &Snapshot{Messages: once(m)}, func() {
		nowSlabs, nowIndexes := a.n.capacities()
		for name, c := range nowSlabs {
			if name != "histories" && name != "hardware" && (slabs[name].room != c.room || c.room > c.used+c.used/8) { // their number is not known before
				t.Errorf("got room for %d %s, and then for %d of %d", slabs[name].room, name, c.room, c.used)
			}
		}
		for name, c := range nowIndexes {
			if name != "by MAC" && (indexes[name].room != c.room || c.room > c.used*5/2) { // several interfaces have the same MAC
				t.Errorf("got %d slots %s, and then %d for %d", indexes[name].room, name, c.room, c.used)
			}
		}
		if got := &a.n.texts.arena; got.Cap() != texts || got.Cap() > got.Len()*5/4 {
			t.Errorf("got room for %d bytes of texts, and then for %d of %d", texts, got.Cap(), got.Len())
		}
	}); err != nil {
		t.Fatal(err)
	}
}

// Slots of a table take 2 bytes until a record needs more, and are spread over the whole table.
func TestSlotsOfATable(t *testing.T) {
	hash := func(i uint32) uint64 { return hashNumbers(uint64(i), 7) }
	var x table
	has := func(i uint32) bool { return x.find(hash(i), func(k uint32) bool { return k == i }) == i }
	for i := range uint32(100) {
		x.put(hash(i+1), i+1, hash)
	}
	x.put(hash(math.MaxUint16), math.MaxUint16, hash)
	x.reserve(1000, hash)
	if x.slots.wide != nil || x.slots.size() < 1250 || !has(100) || !has(math.MaxUint16) {
		t.Errorf("got %d slots, wide %t, for indexes of 16 bits", x.slots.size(), x.slots.wide != nil)
	}
	before := x.slots.size()
	if x.reserve(before*4/5, hash); x.slots.size() != before {
		t.Errorf("got %d slots, want %d as before: they are sufficient", x.slots.size(), before)
	}
	if x.trim(hash); x.slots.size() > 101*3/2 || !has(1) || !has(math.MaxUint16) {
		t.Errorf("got %d slots for %d records", x.slots.size(), x.used)
	}
	x.put(hash(math.MaxUint16+1), math.MaxUint16+1, hash)
	x.reserve(1000, hash)
	if x.slots.wide == nil || !has(100) || !has(math.MaxUint16+1) || has(math.MaxUint16+2) {
		t.Errorf("got wide slots %t for an index of 17 bits", x.slots.wide != nil)
	}
	for _, size := range []int{4, 100, 1 << 14} {
		if home(0, size) != 0 || home(math.MaxUint64, size) != size-1 || slot(0).home(size) != 0 || slotOf(math.MaxUint64, 1).home(size) != size-1 {
			t.Errorf("%d slots: got the last one at %d and %d", size, home(math.MaxUint64, size), slotOf(math.MaxUint64, 1).home(size))
		}
	}
}

// Records of all nodes are found in tables that are neither too full nor too empty.
func TestSlotsOfRefs(t *testing.T) {
	x := newRefs(func(k int) uint64 { return hashNumbers(uint64(k), 3) }, func(r ref) int { return int(r.index()) })
	const count = 100_000
	for i := range count {
		x.set(i+1, refOf(1, uint32(i+1)))
	}
	slots := 0
	for i := range x.parts {
		slots += len(x.parts[i].slots)
	}
	if x.len() != count || slots < count*5/4 || slots > count*8/5 {
		t.Errorf("got %d slots for %d of %d keys", slots, x.len(), count)
	}
}

// A slab reuses the indexes of removed records, and has no memory when it is empty.
func TestRoomInASlab(t *testing.T) {
	var s slab[uint64]
	for i := range uint64(10_000) {
		s.add(i)
		if len(s.live)*64 > len(s.items)+64 {
			t.Fatalf("got %d bits for %d records", len(s.live)*64, len(s.items))
		}
	}
	room := cap(s.items)
	for i := range uint32(5000) {
		s.remove(2*i + 2)
	}
	s.reserve(10_000)
	for i := range uint64(5000) {
		s.add(i)
	}
	if cap(s.items) != room || s.count != 10_000 {
		t.Errorf("got room for %d records after as many were removed and added, want %d", cap(s.items), room)
	}
	if s.reserve(15_000); cap(s.items) < 15_000 {
		t.Errorf("got room for %d records, want 15000", cap(s.items))
	}
	found := 0
	for i := range s.all {
		if found++; i == 0 || !s.has(i) {
			t.Fatalf("got index %d", i)
		}
	}
	if found != 10_000 {
		t.Errorf("got %d records, want 10000", found)
	}
	for i := range s.all {
		s.remove(i)
	}
	if cap(s.items)+cap(s.free)+cap(s.live) != 0 {
		t.Errorf("got room for %d records of an empty slab", cap(s.items))
	}
}

// A text takes as many bytes as are reserved for it.
func TestTextsTakeWhatIsReserved(t *testing.T) {
	var x texts
	for _, length := range []int{1, 127, 128, 129, 1<<14 - 1, 1 << 14, 1<<14 + 1} {
		before := x.arena.Len()
		x.put(strings.Repeat("x", length))
		if got := x.arena.Len() - before; got != stored(length) {
			t.Errorf("%d bytes: got %d reserved, want %d", length, stored(length), got)
		}
	}
}

// The list of a queue reuses its memory, unless there is much of it.
func TestMemoryOfAQueue(t *testing.T) {
	for count, want := range map[int]bool{100: true, 1 << 18: false} {
		var l list
		for range count {
			l.push(key("10.0.0.1"))
		}
		for range count {
			if _, ok := l.pop(); !ok {
				t.Fatal("got no address")
			}
		}
		if got := cap(l.addrs) >= count; got != want || len(l.addrs) != 0 {
			t.Errorf("%d addresses: got the memory kept %t, want %t", count, got, want)
		}
	}
	q := newQueue()
	for range 100 { // changes of an address that waits for its judgement
		q.touch(key("10.0.0.1"), newBatch(), func(index.Address) ([]verdict.Owner, bool) { return nil, false })
		q.release(key("10.0.0.1"), soon)
	}
	if got := len(q.soon.addrs); got != 1 {
		t.Errorf("got an address that waits listed %d times, want once", got)
	}
}
