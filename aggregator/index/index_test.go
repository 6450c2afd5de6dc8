package index

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"iter"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"testing"
)

// claim is an item as the aggregator has it: several of one address.
type claim struct {
	addr        Address
	node, claim uint32
}

func (c claim) compare(o claim) int {
	return cmp.Or(c.addr.Compare(o.addr), cmp.Compare(c.node, o.node), cmp.Compare(c.claim, o.claim))
}

func (c claim) less(o claim) bool { return c.compare(o) < 0 }

func newClaims() *Set[claim] { return NewSet(claim.less) }

func take[T any](n int, all iter.Seq[T]) (some []T) {
	for item := range all {
		if len(some) == n {
			break
		}
		some = append(some, item)
	}
	return some
}

var edges = []string{
	"0.0.0.0", "10.0.0.9", "10.0.0.10", "255.255.255.255", "::", "::1", "::ffff", "::1:0:0", "::fffe:ffff:ffff", "::1:0:0:0",
	"::ffff:ffff:ffff:ffff", "0:0:0:1::", "2001:db8::1", "fe80::1", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
}

func TestAddressesKeepTheirValueAndOrder(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	var all []netip.Addr
	for _, text := range edges {
		all = append(all, netip.MustParseAddr(text))
	}
	for range 200 {
		var b [16]byte
		binary.BigEndian.PutUint64(b[8:], random.Uint64()>>random.IntN(64))
		if random.IntN(2) == 0 {
			binary.BigEndian.PutUint64(b[:8], random.Uint64()>>random.IntN(64))
		}
		all = append(all, netip.AddrFrom16(b).Unmap(), netip.AddrFrom4([4]byte(b[12:])))
	}
	for _, a := range all {
		if got := AddressOf(a).Addr(); got != a {
			t.Errorf("got %s back, want %s", got, a)
		}
		for _, b := range all {
			x, y := AddressOf(a), AddressOf(b)
			if got, want := x.Compare(y), a.Compare(b); got != want || x.Less(y) != (want < 0) {
				t.Fatalf("got %d and %t for %s and %s, want %d", got, x.Less(y), a, b, want)
			}
		}
	}
	if a := AddressOf(netip.MustParseAddr("::ffff:10.0.0.1")).Addr(); a.String() != "10.0.0.1" {
		t.Errorf("got %s, want an IPv4 address without IPv6 notation", a)
	}
	if a := AddressOf(netip.MustParseAddr("fe80::1%eth0")).Addr(); a.String() != "fe80::1" {
		t.Errorf("got %s, want no zone", a)
	}
}

func TestAddressesAreSpreadEvenlyOverPartitions(t *testing.T) {
	const each = 200
	mac := func(i uint64) uint64 { return 0x0242_00ff_fe00_0000 | i }
	for name, address := range map[string]func(i uint64) Address{
		"IPv4 in sequence":    func(i uint64) Address { return Address{0, 10<<24 | i} },
		"first of each /24":   func(i uint64) Address { return Address{0, 10<<24 + i<<8 + 1} },
		"link-local by MAC":   func(i uint64) Address { return Address{0xfe80 << 48, mac(i)} },
		"first of each /64":   func(i uint64) Address { return Address{0xfd00<<48 | i, 1} },
		"IPv6 in sequence":    func(i uint64) Address { return Address{0xfd00 << 48, i} },
		"of nodes, ten apart": func(i uint64) Address { return Address{0xfd00<<48 | i/110, i % 110 * 10} },
	} {
		var count [Partitions]int
		for i := range uint64(each * Partitions) {
			count[address(i).Partition()]++
		}
		if least, most := slices.Min(count[:]), slices.Max(count[:]); least < each/2 || most > each*2 {
			t.Errorf("%s: got from %d to %d addresses in a partition, want about %d", name, least, most, each)
		}
	}
	// These are the numbers that other processes have.
	for text, want := range map[string]int{"10.244.1.5": 39, "fd00::5": 231} {
		if got := AddressOf(netip.MustParseAddr(text)).Partition(); got != want {
			t.Errorf("got partition %d of %s, want %d", got, text, want)
		}
	}
}

func TestASetIsLikeASortedSlice(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	one := func() claim {
		a := Address{0, random.Uint64N(50)}
		if random.IntN(3) == 0 {
			a = Address{random.Uint64N(3), random.Uint64N(50) << random.IntN(40)}
		}
		return claim{a, uint32(random.IntN(3)), uint32(random.IntN(3))}
	}
	x := newClaims()
	var want []claim
	type old struct {
		snapshot *Snapshot[claim]
		want     []claim
	}
	var taken []old
	for step := range 20_000 {
		item := one()
		at, there := slices.BinarySearchFunc(want, item, claim.compare)
		switch random.IntN(5) {
		case 0, 1:
			if got := x.Delete(item); got != there {
				t.Fatalf("step %d: deleted is %t, want %t", step, got, there)
			}
			if there {
				want = slices.Delete(want, at, at+1)
			}
		default:
			if x.Put(item); !there {
				want = slices.Insert(want, at, item)
			}
		}
		pivot := one()
		from, _ := slices.BinarySearchFunc(want, pivot, claim.compare)
		n := min(random.IntN(20), len(want)-from)
		if got := take(n, x.Snapshot().From(pivot)); !slices.Equal(got, want[from:from+n]) {
			t.Fatalf("step %d: from %v got %v, want %v", step, pivot, got, want[from:from+n])
		}
		if _, got := x.Get(pivot); got != slices.Contains(want, pivot) {
			t.Fatalf("step %d: got %t for %v", step, got, pivot)
		}
		if step%1000 == 0 {
			taken = append(taken, old{x.Snapshot(), slices.Clone(want)})
		}
	}
	taken = append(taken, old{x.Snapshot(), want})
	for _, was := range taken {
		if got := slices.Collect(was.snapshot.From(claim{})); !slices.Equal(got, was.want) {
			t.Errorf("got %d items of a snapshot, want its %d", len(got), len(was.want))
		}
	}
}

func TestAnEmptySetHasNothing(t *testing.T) {
	s := newClaims().Snapshot()
	if got := slices.Collect(s.From(claim{})); len(got) != 0 {
		t.Errorf("got %v", got)
	}
	if got := slices.Collect(s.From(claim{addr: Address{1, 1}})); len(got) != 0 {
		t.Errorf("got %v", got)
	}
}

func TestPutReplacesTheSameItem(t *testing.T) {
	type pair struct{ key, value int }
	s := NewSet(func(a, b pair) bool { return a.key < b.key })
	s.Put(pair{2, 1})
	before := s.Snapshot()
	s.Put(pair{2, 2})
	s.Put(pair{1, 1})
	if got, _ := s.Get(pair{2, 0}); got.value != 2 {
		t.Errorf("got %v", got)
	}
	if got := slices.Collect(s.Snapshot().From(pair{})); len(got) != 2 {
		t.Errorf("got %v, want two items", got)
	}
	if got := slices.Collect(before.From(pair{})); len(got) != 1 || got[0].value != 1 {
		t.Errorf("got %v of a snapshot, want its original items", got)
	}
}

// There are several writers, and readers walk meanwhile: a snapshot is in order and does not change.
func TestSnapshotsAreTakenWhileASetIsWritten(t *testing.T) {
	const writers, rounds, readers = 4, 300, 2
	x := newClaims()
	var group, reading sync.WaitGroup
	done := make(chan struct{})
	for w := range writers {
		group.Go(func() {
			for round := range rounds {
				for i := range uint64(512) {
					item := claim{addr: Address{0, i}}
					if item.addr.Partition()%writers != w {
						continue
					}
					if round%3 == 2 {
						x.Delete(item)
					} else {
						item.claim = uint32(round % 3)
						x.Put(item)
					}
				}
			}
		})
	}
	walked := 0
	var mu sync.Mutex
	for range readers {
		reading.Go(func() {
			for {
				s := x.Snapshot()
				first := slices.Collect(s.From(claim{}))
				if !slices.IsSortedFunc(first, claim.compare) {
					t.Error("a snapshot is not in order")
				}
				runtime.Gosched()
				if again := slices.Collect(s.From(claim{})); !slices.Equal(first, again) {
					t.Error("a snapshot has changed")
				}
				mu.Lock()
				walked += len(first)
				mu.Unlock()
				select {
				case <-done:
					return
				default:
				}
			}
		})
	}
	group.Wait()
	close(done)
	reading.Wait()
	if walked == 0 {
		t.Error("no snapshot had an item")
	}
}

func filled(n int) *Set[claim] {
	x := newClaims()
	for i := range n {
		x.Put(claim{addr: Address{0, uint64(10<<24 | i)}, node: uint32(i / 110)})
	}
	return x
}

const many = 1_100_000

func BenchmarkPut(b *testing.B) {
	x := filled(many)
	random := rand.New(rand.NewPCG(5, 6))
	b.ReportAllocs()
	for b.Loop() {
		i := random.IntN(many)
		x.Put(claim{addr: Address{0, uint64(10<<24 | i)}, node: uint32(i / 110)})
	}
}

func BenchmarkGet(b *testing.B) {
	x := filled(many)
	random := rand.New(rand.NewPCG(5, 6))
	b.ReportAllocs()
	for b.Loop() {
		i := random.IntN(many)
		if _, ok := x.Get(claim{addr: Address{0, uint64(10<<24 | i)}, node: uint32(i / 110)}); !ok {
			b.Fatal("not found")
		}
	}
}

func BenchmarkSnapshot(b *testing.B) {
	x := filled(many)
	b.ReportAllocs()
	for b.Loop() {
		x.Snapshot()
	}
}

// BenchmarkPutAfterSnapshot changes one item after each snapshot.
func BenchmarkPutAfterSnapshot(b *testing.B) {
	x := filled(many)
	random := rand.New(rand.NewPCG(5, 6))
	b.ReportAllocs()
	for b.Loop() {
		i := random.IntN(many)
		item := claim{addr: Address{0, uint64(10<<24 | i)}, node: uint32(i / 110)}
		x.Snapshot()
		x.Put(item)
	}
}

// BenchmarkFrom reads so many items from anywhere in the set.
func BenchmarkFrom(b *testing.B) {
	for _, n := range []int{1, 500, 1024} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			x := filled(many)
			random := rand.New(rand.NewPCG(5, 6))
			b.ReportAllocs()
			for b.Loop() {
				pivot := claim{addr: Address{0, uint64(10<<24 | random.IntN(many-n))}}
				if got := take(n, x.Snapshot().From(pivot)); len(got) != n {
					b.Fatalf("got %d items", len(got))
				}
			}
		})
	}
}

// BenchmarkAll walks all items.
func BenchmarkAll(b *testing.B) {
	x := filled(many)
	for b.Loop() {
		n := 0
		for range x.Snapshot().From(claim{}) {
			n++
		}
		if n != many {
			b.Fatalf("got %d items", n)
		}
	}
}

// BenchmarkHeap is how much memory an item takes.
func BenchmarkHeap(b *testing.B) {
	for b.Loop() {
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		x := filled(many)
		runtime.GC()
		runtime.ReadMemStats(&after)
		b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/many, "bytes/item")
		runtime.KeepAlive(x)
	}
}
