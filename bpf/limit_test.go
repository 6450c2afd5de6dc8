package bpf

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// The limits that newLimited sets. No token is refilled during a test.
const (
	testInterval      = time.Hour
	testPeakBurst     = 10
	testSustained     = 20
	testRepeatedBurst = 4
)

// newLimited loads an Observer that limits the loopback interface.
func newLimited(tb testing.TB) *Observer {
	tb.Helper()
	o := newObserver(tb, func(spec *ebpf.CollectionSpec) {
		for name, value := range map[string]uint64{
			observeVarPeakIntervalNs:      uint64(testInterval),
			observeVarPeakBurst:           testPeakBurst,
			observeVarSustainedIntervalNs: uint64(testInterval),
			observeVarSustainedBurst:      testSustained,
			observeVarRepeatedBurst:       testRepeatedBurst,
			observeVarRefusedNs:           uint64(time.Hour),
		} {
			if err := spec.Variables[name].Set(value); err != nil {
				tb.Fatalf("set %s: %v", name, err)
			}
		}
	})
	if _, err := o.addPort(loopback); err != nil {
		tb.Fatal(err)
	}
	return o
}

// random returns the n-th frame of a flood. Each frame has a different address and MAC.
func random(n int) []byte {
	return reply(MAC{2, 0, 0, byte(n >> 16), byte(n >> 8), byte(n)}, netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)}), addrB)
}

// countReported runs frames and counts those that are reported. All others must be limited.
func (o *Observer) countReported(tb testing.TB, frames ...[]byte) (reported int) {
	tb.Helper()
	for _, frame := range frames {
		switch got := o.runFor(tb, frame); got {
		case ResultEvent:
			reported++
		case ResultLimited:
		default:
			tb.Fatalf("got %s, want %s or %s", got, ResultEvent, ResultLimited)
		}
	}
	return reported
}

func frames(of func(int) []byte, from, to int) (out [][]byte) {
	for n := from; n < to; n++ {
		out = append(out, of(n))
	}
	return out
}

// refill adds tokens to the buckets of the loopback interface, by moving the time at
// which they are full.
func (o *Observer) refill(tb testing.TB, peak, sustained uint64) {
	tb.Helper()
	var p observePort
	if err := o.objects.Ports.Lookup(uint32(loopback), &p); err != nil {
		tb.Fatal("look up port: ", err)
	}
	for full, tokens := range map[*uint64]uint64{
		&p.Important.Peak: peak, &p.Important.Sustained: sustained, &p.Other.Peak: peak, &p.Other.Sustained: sustained,
	} {
		*full -= min(*full, tokens*uint64(testInterval))
	}
	if err := o.objects.Ports.Put(uint32(loopback), &p); err != nil {
		tb.Fatal("change port: ", err)
	}
}

func (o *Observer) wantLimited(tb testing.TB, want uint64) {
	tb.Helper()
	got, err := o.Limited(loopback)
	if err != nil {
		tb.Fatal(err)
	}
	if counted := o.counts(tb)[ARP][ResultLimited]; got != want || counted != want {
		tb.Errorf("got %d limited frames of the port and %d in all, want %d", got, counted, want)
	}
}

func TestFloodOfMadeUpAddressesIsLimitedAndCounted(t *testing.T) {
	o := newLimited(t)
	const flood, want = 100, testPeakBurst - testRepeatedBurst
	if got := o.countReported(t, frames(random, 0, flood)...); got != want {
		t.Errorf("got %d of %d new bindings reported, want %d", got, flood, want)
	}
	o.wantLimited(t, flood-want)
	for n := range want { // a reported binding uses no further token
		if got := o.runFor(t, random(n)); got != ResultKnown {
			t.Errorf("binding %d again: got %s, want %s", n, got, ResultKnown)
		}
	}
	// Refused bindings are not stored among the known ones.
	var reported observeReported
	key := observeBinding{Ifindex: loopback, Addr: netip.MustParseAddr("10.0.0.99").As16(), Sha: MAC{2, 0, 0, 0, 0, 99}}
	if err := o.objects.Bindings.Lookup(&key, &reported); !errors.Is(err, ebpf.ErrKeyNotExist) {
		t.Errorf("look up a binding that was refused: got %v, want %v", err, ebpf.ErrKeyNotExist)
	}
}

func TestImportantAddressIsReportedDuringAFlood(t *testing.T) {
	o := newLimited(t)
	o.countReported(t, frames(random, 0, 100)...)
	if err := o.SetImportant(addrA, true); err != nil {
		t.Fatal(err)
	}
	claimant := func(n int) []byte { return reply(MAC{2, 1, 0, 0, 0, byte(n)}, addrA, addrB) }
	if got := o.countReported(t, frames(claimant, 0, 100)...); got != testPeakBurst {
		t.Errorf("got %d of 100 claimants of an important address reported, want %d", got, testPeakBurst)
	}
	// Important bindings do not use tokens of the others.
	o.refill(t, 1, 1)
	if got := o.countReported(t, frames(random, 100, 110)...); got != 1 {
		t.Errorf("got %d made-up bindings reported after one token was refilled, want 1", got)
	}
	if err := o.SetImportant(addrA, false); err != nil {
		t.Fatal(err)
	}
	if got := o.runFor(t, claimant(101)); got != ResultLimited {
		t.Errorf("got %s for an address that is no longer important, want %s", got, ResultLimited)
	}
	if err := o.SetImportant(addrA, false); err != nil {
		t.Errorf("again: got %v, want no error", err)
	}
}

// Nobody can choose bindings that share a slot of the refusals.
func TestHashesHaveARandomSeed(t *testing.T) {
	requireRoot(t)
	seeds := map[uint64]bool{}
	for range 2 {
		o, err := Load()
		if err != nil {
			t.Fatal(err)
		}
		var seed uint64
		err = o.objects.HashSeed.Get(&seed)
		if seeds[seed] = true; err != nil || o.Close() != nil {
			t.Fatal(err)
		}
	}
	if len(seeds) != 2 || seeds[0] {
		t.Errorf("got seeds %v, want two different ones", seeds)
	}
}

func TestRepeatedBindingIsReportedDuringAFlood(t *testing.T) {
	o := newLimited(t)
	o.countReported(t, frames(random, 0, 100)...)
	repeated := reply(macA, addrA, addrB)
	if got := o.runFor(t, repeated); got != ResultLimited {
		t.Fatalf("the first time: got %s, want %s", got, ResultLimited)
	}
	// There are more refusals than the map has room for, and the earlier entries stay.
	for n := 100; n < 100_000; n++ {
		o.run(t, random(n))
	}
	o.wantLimited(t, 100_000-testPeakBurst+testRepeatedBurst+1)
	if got := o.runFor(t, repeated); got != ResultEvent {
		t.Errorf("the second time: got %s, want %s", got, ResultEvent)
	}
	if got := o.countReported(t, frames(random, 50, 100)...); got != testRepeatedBurst-1 {
		t.Errorf("got %d other repeated bindings reported, want %d", got, testRepeatedBurst-1)
	}
}

// User space would otherwise handle a storm of more bindings than the limit one event at a time.
func TestRefusedBindingsTakeTokensInBatches(t *testing.T) {
	const interval, tick = 10 * time.Millisecond, 1 << 26 // TOKENS_EVERY
	o := newObserver(t, func(spec *ebpf.CollectionSpec) {
		for name, value := range map[string]uint64{
			observeVarPeakIntervalNs: uint64(interval), observeVarPeakBurst: testPeakBurst, observeVarRepeatedBurst: testRepeatedBurst,
		} {
			if err := spec.Variables[name].Set(value); err != nil {
				t.Fatalf("set %s: %v", name, err)
			}
		}
	})
	if _, err := o.addPort(loopback); err != nil {
		t.Fatal(err)
	}
	now := func() int64 {
		var ts unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_MONOTONIC_COARSE, &ts); err != nil {
			t.Fatal(err)
		}
		return ts.Nano() / tick
	}
	refused := map[int64]int{} // frames of bindings that had been refused before, by tick
	before := map[int]bool{}
	for n, end := 0, now()+100; len(refused) < 4 && now() < end; n++ {
		binding := n / 2 % 1000 // each frame comes twice
		at := now()
		got := o.runFor(t, random(binding))
		if now() != at {
			continue
		}
		switch {
		case got == ResultEvent && refused[at] > 20: // some of them share a slot of the refusals
			t.Fatal("a binding was reported after all tokens of the batch had been taken")
		case got == ResultLimited && before[binding]:
			refused[at]++
		case got == ResultLimited:
			before[binding] = true
		}
	}
	if len(refused) < 4 {
		t.Errorf("got repeated bindings refused in %d batches, want 4", len(refused))
	}
}

func TestLimitsEndWithTime(t *testing.T) {
	o := newLimited(t)
	flooded := 0
	for _, step := range []struct {
		what            string
		peak, sustained uint64 // refilled tokens
		want            int
	}{
		{"at first", 0, 0, testPeakBurst - testRepeatedBurst},
		{"at once", 0, 0, 0},
		{"when 3 of each came back", 3, 3, 3},
		{"when 2 of the peak rate came back", 2, 0, 2},
		{"when the peak rate allows all", 1 << 10, 0, testPeakBurst - testRepeatedBurst},
		{"when the sustained rate is exhausted", 1 << 10, 0, 2},
		{"when 1 of the sustained rate came back", 1 << 10, 1, 1},
		{"long after", 1 << 11, 1 << 11, testPeakBurst - testRepeatedBurst},
	} {
		o.refill(t, step.peak, step.sustained)
		if got := o.countReported(t, frames(random, flooded, flooded+50)...); got != step.want {
			t.Errorf("%s: got %d reported, want %d", step.what, got, step.want)
		}
		flooded += 50
	}
}

func TestPortIsLimitedAsLongAsTheObserverIsAttached(t *testing.T) {
	forEachMode(t, func(t *testing.T, attach func(*Observer, int) (*Attachment, error), _ Mode) {
		o := newObserver(t)
		c := connect(t)
		if _, err := o.Limited(c.ifindex); err == nil {
			t.Error("got limited frames of an interface that is not watched, want an error")
		}
		a, err := attach(o, c.ifindex)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := o.Limited(c.ifindex); err != nil || got != 0 {
			t.Errorf("got %d limited frames, %v, want none", got, err)
		}
		if _, err := attach(o, c.ifindex); err == nil {
			t.Error("attached twice, want an error")
		}
		if _, err := o.Limited(c.ifindex); err != nil {
			t.Errorf("after a second attempt: got %v, want no error", err)
		}
		if err := a.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := o.Limited(c.ifindex); err == nil {
			t.Error("got limited frames of an interface that is no longer watched, want an error")
		}
	})
}

func TestImportantAddressHasRoomInTheRingDuringAFlood(t *testing.T) {
	o := newObserver(t, func(spec *ebpf.CollectionSpec) {
		if err := spec.Variables[observeVarPeakBurst].Set(uint64(1 << 20)); err != nil {
			t.Fatal(err)
		}
	})
	if _, err := o.addPort(loopback); err != nil {
		t.Fatal(err)
	}
	if err := o.SetImportant(addrA, true); err != nil {
		t.Fatal(err)
	}
	const most = 1 << 20 / 64 // number of events that fit in the ring
	for n := range most {
		o.run(t, random(n))
	}
	counts := o.counts(t)[ARP]
	if reported, lost := counts[ResultEvent], counts[ResultLost]; reported == 0 || reported > most/2+1 || reported+lost != most {
		t.Errorf("got %d reported and %d lost of %d unread frames, want at most half reported, and the rest lost", reported, lost, most)
	}
	if got := o.runFor(t, reply(macA, addrA, addrB)); got != ResultEvent {
		t.Errorf("got %s for an important address, want %s", got, ResultEvent)
	}
}
