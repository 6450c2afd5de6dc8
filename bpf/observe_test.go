package bpf

import (
	"errors"
	"net/netip"
	"os"
	"slices"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
)

const loopback = 1 // the interface by which frames of BPF_PROG_TEST_RUN enter

// age moves the start of a binding's period into the past.
func (o *Observer) age(tb testing.TB, sha MAC, addr netip.Addr, by time.Duration) {
	tb.Helper()
	key := observeBinding{Ifindex: loopback, Addr: addr.As16(), Sha: sha, Source: sha}
	var reported observeReported
	if err := o.objects.Bindings.Lookup(&key, &reported); err != nil {
		tb.Fatal("look up binding: ", err)
	}
	// Subtracting a multiple of 256 ns keeps the bits of the kinds.
	reported.Period -= uint64(by) &^ 0xff
	if err := o.objects.Bindings.Put(&key, &reported); err != nil {
		tb.Fatal("change binding: ", err)
	}
}

// wantReported runs a frame that must be reported, and returns its event.
func (o *Observer) wantReported(tb testing.TB, frame []byte) Event {
	tb.Helper()
	if got := o.runFor(tb, frame); got != ResultEvent {
		tb.Fatalf("got %s, want %s", got, ResultEvent)
	}
	ev, ok := o.waiting(tb)
	if !ok {
		tb.Fatal("got no event, want one")
	}
	return ev
}

// wantSilent runs a frame that must not be reported.
func (o *Observer) wantSilent(tb testing.TB, frame []byte) {
	tb.Helper()
	if got := o.runFor(tb, frame); got != ResultKnown {
		tb.Errorf("got %s, want %s", got, ResultKnown)
	}
	if ev, ok := o.waiting(tb); ok {
		tb.Errorf("got event %+v, want none", ev)
	}
}

func TestKnownBindingIsSilentFor30Seconds(t *testing.T) {
	o := newObserver(t)
	frame := request(macA, addrA, addrB)
	o.wantReported(t, frame)
	o.wantSilent(t, frame)
	o.wantSilent(t, request(macA, addrA, netip.MustParseAddr("192.0.2.77")))
	o.age(t, macA, addrA, 29*time.Second)
	o.wantSilent(t, frame)
	o.age(t, macA, addrA, time.Second)
	if ev := o.wantReported(t, frame); ev.Frames != 4 {
		t.Errorf("got %d frames since the last event, want 4", ev.Frames)
	}
	o.wantSilent(t, frame)
}

func TestContestedAddressIsReportedEverySecond(t *testing.T) {
	o := newObserver(t)
	frame := reply(macA, addrA, addrB)
	o.wantReported(t, frame)
	if err := o.Contest(addrA, true); err != nil {
		t.Fatal(err)
	}
	o.wantSilent(t, frame)
	o.age(t, macA, addrA, time.Second)
	if ev := o.wantReported(t, frame); ev.Frames != 2 {
		t.Errorf("got %d frames since the last event, want 2", ev.Frames)
	}
	o.wantSilent(t, frame)

	if err := o.Contest(addrA, false); err != nil {
		t.Fatal(err)
	}
	o.age(t, macA, addrA, 2*time.Second)
	o.wantSilent(t, frame)
}

func TestContestAffectsOneAddress(t *testing.T) {
	o := newObserver(t)
	if err := o.Contest(addrB, true); err != nil {
		t.Fatal(err)
	}
	frame := reply(macA, addrA, addrB)
	o.wantReported(t, frame)
	o.age(t, macA, addrA, 2*time.Second)
	o.wantSilent(t, frame)
}

func TestEndingAnUnknownContestIsNoError(t *testing.T) {
	o := newObserver(t)
	if err := o.Contest(addrA, false); err != nil {
		t.Errorf("got %v, want no error", err)
	}
}

func TestFullContestTableSaysSo(t *testing.T) {
	o := newObserver(t, func(spec *ebpf.CollectionSpec) { spec.Maps[observeMapContested].MaxEntries = 1 })
	if err := o.Contest(addrA, true); err != nil {
		t.Fatal(err)
	}
	if err := o.Contest(addrA, true); err != nil {
		t.Errorf("again: got %v, want no error", err)
	}
	if err := o.Contest(addrB, true); err == nil {
		t.Error("got no error, want one about a full table")
	}
}

func TestEachKindIsReportedOnceInAPeriod(t *testing.T) {
	o := newObserver(t)
	used, answered, announced := request(macA, addrA, addrB), reply(macA, addrA, addrB), request(macA, addrA, addrA)
	for range 3 {
		for _, frame := range [][]byte{used, announced, answered} {
			o.wantReported(t, frame)
			o.wantSilent(t, used)
			o.wantSilent(t, frame)
		}
		for range 5 {
			o.wantSilent(t, used)
			o.wantSilent(t, answered)
			o.wantSilent(t, announced)
		}
		o.age(t, macA, addrA, 30*time.Second)
	}
}

func TestBindingsDifferByAddressMACsAndVLAN(t *testing.T) {
	o := newObserver(t)
	frames := [][]byte{
		request(macA, addrA, addrB),
		request(macB, addrA, addrB),
		request(macA, addrB, addrA),
		arpFrame{source: macB, op: 1, sha: macA, spa: addrA, tpa: addrB}.bytes(), // the Ethernet source is another host
		arpFrame{tags: []vlanTag{{0x8100, 10}}, op: 1, sha: macA, spa: addrA, tpa: addrB}.bytes(),
		arpFrame{tags: []vlanTag{{0x8100, 11}}, op: 1, sha: macA, spa: addrA, tpa: addrB}.bytes(),
		arpFrame{tags: []vlanTag{{0x8100, 10}, {0x8100, 11}}, op: 1, sha: macA, spa: addrA, tpa: addrB}.bytes(),
	}
	for _, frame := range frames {
		o.wantReported(t, frame)
	}
	for range 3 { // alternating without a pause
		for _, frame := range frames {
			o.wantSilent(t, frame)
		}
	}
}

func TestForgottenBindingIsReportedAgain(t *testing.T) {
	o := newObserver(t)
	frame := arpFrame{tags: []vlanTag{{0x88a8, 20}, {0x8100, 10}}, op: 1, sha: macA, spa: addrA, tpa: addrB}.bytes()
	if err := o.Forget(loopback, 20, 10, addrA, macA, macA); err != nil {
		t.Errorf("before it was seen: got %v, want no error", err)
	}
	o.wantReported(t, frame)
	if err := o.Forget(loopback, 20, 0, addrA, macA, macA); err != nil {
		t.Errorf("another one: got %v, want no error", err)
	}
	o.wantSilent(t, frame)
	if err := o.Forget(loopback, 20, 10, addrA, macA, macA); err != nil {
		t.Fatal(err)
	}
	if ev := o.wantReported(t, frame); ev.Frames != 1 {
		t.Errorf("got %d frames since the last event, want 1", ev.Frames)
	}
}

func TestFramesLostToAFullRingAreReportedLater(t *testing.T) {
	o := newObserver(t, func(spec *ebpf.CollectionSpec) { spec.Maps[observeMapEvents].MaxEntries = 4096 })
	known := request(macA, addrA, addrB)
	o.run(t, known)

	addr := netip.MustParseAddr("198.51.100.1")
	reported := 1
	for o.runFor(t, request(macB, addr, addrB)) == ResultEvent {
		addr = addr.Next()
		if reported++; reported > 4096 {
			t.Fatalf("got %d events into a ring of a page, want it full", reported)
		}
	}
	lost := request(macB, addr, addrB)
	if got := o.runFor(t, lost); got != ResultLost {
		t.Errorf("tried again: got %s, want %s", got, ResultLost)
	}
	announced := request(macA, addrA, addrA)
	if got := o.runFor(t, announced); got != ResultLost {
		t.Errorf("new kind of a known binding: got %s, want %s", got, ResultLost)
	}
	o.wantSilentButFull(t, known)

	for range reported {
		if _, ok := o.waiting(t); !ok {
			t.Fatalf("got fewer events than the %d reported", reported)
		}
	}
	if ev := o.wantReported(t, lost); ev.Addr != addr {
		t.Errorf("got address %s, want %s", ev.Addr, addr)
	}
	if ev := o.wantReported(t, announced); ev.Kind != Announced || ev.Frames != 3 {
		t.Errorf("got %d of %d frames, want %d of 3", ev.Kind, ev.Frames, Announced)
	}
}

// wantSilentButFull is like wantSilent, but the ring contains events.
func (o *Observer) wantSilentButFull(tb testing.TB, frame []byte) {
	tb.Helper()
	if got := o.runFor(tb, frame); got != ResultKnown {
		tb.Errorf("got %s, want %s", got, ResultKnown)
	}
}

func TestRacingCPUsReportEachKindOnce(t *testing.T) {
	t.Run("arp", func(t *testing.T) {
		testRace(t, addrA, request(macA, addrA, addrB), reply(macA, addrA, addrB), request(macA, addrA, addrA))
	})
	t.Run("ndp", func(t *testing.T) {
		testRace(t, addr6A,
			solicitation(macA, addr6A, addr6B),
			advertisement(macA, addr6A, ndSolicited|ndOverride),
			advertisement(macA, addr6A, ndSolicited),
			advertisement(macA, addr6A, ndOverride),
			advertisement(macA, addr6A, 0))
	})
}

// testRace runs frames of one binding, each of a different kind, on all CPUs.
func testRace(t *testing.T, addr netip.Addr, frames ...[]byte) {
	o := newObserver(t)
	const runners, rounds = 4, 500
	for round := range 20 {
		var wg sync.WaitGroup
		for runner := range runners {
			wg.Go(func() {
				for i := range rounds {
					o.run(t, frames[(runner+i)%len(frames)])
				}
			})
		}
		wg.Wait()
		type kind struct {
			Kind
			noOverride bool
		}
		reported, events := map[kind]int{}, 0
		for {
			ev, ok := o.waiting(t)
			if !ok {
				break
			}
			reported[kind{ev.Kind, ev.NoOverride}]++
			events++
		}
		if len(reported) != len(frames) || events != len(frames) {
			t.Errorf("round %d: got events %v, want one of each of %d kinds", round, reported, len(frames))
		}
		// Start a new period, and every second time a new binding.
		if round%2 == 0 {
			o.age(t, macA, addr, 30*time.Second)
		} else if err := o.Forget(loopback, 0, 0, addr, macA, macA); err != nil {
			t.Fatal(err)
		}
	}
	for protocol, counts := range o.counts(t) {
		if got := counts[ResultLost]; got != 0 {
			t.Errorf("got %d %s frames lost, want none", got, Protocol(protocol))
		}
	}
}

func TestInterruptEndsReadPermanently(t *testing.T) {
	o := newObserver(t)
	o.run(t, request(macA, addrA, addrB))
	o.await(t)
	o.reader.SetDeadline(time.Time{})

	read := make(chan error)
	go func() {
		var ev Event
		read <- o.Read(&ev)
	}()
	o.Interrupt()
	o.Interrupt()
	if err := <-read; !errors.Is(err, os.ErrClosed) {
		t.Errorf("got %v, want %v", err, os.ErrClosed)
	}
	var ev Event
	if err := o.Read(&ev); !errors.Is(err, os.ErrClosed) {
		t.Errorf("afterwards: got %v, want %v", err, os.ErrClosed)
	}
	if _, err := o.Counters(); err != nil {
		t.Errorf("counters afterwards: got %v, want no error", err)
	}
	if err := o.Contest(addrA, true); err != nil {
		t.Errorf("contest afterwards: got %v, want no error", err)
	}
}

func TestCloseEndsRead(t *testing.T) {
	requireRoot(t)
	o, err := Load()
	if err != nil {
		t.Fatal(err)
	}
	read := make(chan error)
	go func() {
		var ev Event
		read <- o.Read(&ev)
	}()
	if err := o.Close(); err != nil {
		t.Error(err)
	}
	if err := <-read; !errors.Is(err, os.ErrClosed) {
		t.Errorf("got %v, want %v", err, os.ErrClosed)
	}
}

func TestReadAllocatesNothing(t *testing.T) {
	o := newObserver(t)
	addr := netip.MustParseAddr("198.51.100.1")
	const events = 100
	for range events + 1 { // AllocsPerRun calls it once more
		o.run(t, request(macA, addr, addrB))
		addr = addr.Next()
	}
	var ev Event
	if got := testing.AllocsPerRun(events, func() {
		if err := o.Read(&ev); err != nil {
			t.Error(err)
		}
	}); got != 0 {
		t.Errorf("got %v allocations an event, want none", got)
	}
}

func TestCountersNameAllResults(t *testing.T) {
	o := newObserver(t)
	counters, err := o.Counters()
	if err != nil {
		t.Fatal(err)
	}
	var want []Counter
	for _, protocol := range []string{"arp", "ndp"} {
		for _, result := range []string{"event", "known", "probe", "malformed", "invalid", "other", "lost", "unparsed_tags", "unparsed_extensions", "unparsed_options", "limited"} {
			want = append(want, Counter{Protocol: protocol, Result: result})
		}
	}
	if !slices.Equal(counters, want) {
		t.Errorf("got %+v, want %+v", counters, want)
	}
}

func TestKernelAndGoShareTheirTypes(t *testing.T) {
	spec, err := loadObserve()
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name string
		typ  btf.Type
		size uintptr
	}{
		{"binding", spec.Maps[observeMapBindings].Key, unsafe.Sizeof(observeBinding{})},
		{"reported", spec.Maps[observeMapBindings].Value, unsafe.Sizeof(observeReported{})},
		{"event", spec.Maps[observeMapEvents].Value, unsafe.Sizeof(observeEvent{})},
	} {
		size, err := btf.Sizeof(tt.typ)
		if err != nil {
			t.Fatal(err)
		}
		if uintptr(size) != tt.size || tt.typ.TypeName() != tt.name {
			t.Errorf("got struct %s of %d bytes, want %s of %d", tt.typ.TypeName(), size, tt.name, tt.size)
		}
	}
	var refresh, contested uint64
	if err := spec.Variables[observeVarRefreshNs].Get(&refresh); err != nil {
		t.Fatal(err)
	}
	if err := spec.Variables[observeVarContestedRefreshNs].Get(&contested); err != nil {
		t.Fatal(err)
	}
	if time.Duration(refresh) != 30*time.Second || time.Duration(contested) != time.Second {
		t.Errorf("got refresh %d and %d, want 30 s and 1 s", refresh, contested)
	}
	for name, want := range map[string]uint32{observeMapBindings: 131072, observeMapContested: 16384, observeMapEvents: 1 << 20} {
		if got := spec.Maps[name].MaxEntries; got != want {
			t.Errorf("%s: got %d entries, want %d", name, got, want)
		}
	}
}

func TestNamesEqualThoseOfTheReport(t *testing.T) {
	for _, tt := range []struct{ got, want string }{
		{ARP.String(), "arp"},
		{NDP.String(), "ndp"},
		{TCX.String(), "tcx"},
		{Clsact.String(), "clsact"},
		{ResultNone.String(), "none"},
		{Result(99).String(), "Result(99)"},
		{macA.String(), "02:00:5e:10:00:01"},
	} {
		if tt.got != tt.want {
			t.Errorf("got %q, want %q", tt.got, tt.want)
		}
	}
}
