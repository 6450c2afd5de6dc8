package bpf

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// requireRoot skips the test unless it runs as root. If IPWITNESS_ROOT_TESTS is set it fails
// instead, because a test that never runs proves nothing.
func requireRoot(tb testing.TB) {
	tb.Helper()
	switch {
	case os.Geteuid() == 0:
	case os.Getenv("IPWITNESS_ROOT_TESTS") != "":
		tb.Fatal("needs root, and IPWITNESS_ROOT_TESTS is set")
	default:
		tb.Skip("needs root: run make test as root")
	}
}

// newObserver loads an Observer for one test. The seed of its hashes is 0, so that no test depends
// on chance.
func newObserver(tb testing.TB, changes ...func(*ebpf.CollectionSpec)) *Observer {
	tb.Helper()
	requireRoot(tb)
	spec, err := loadObserve()
	if err != nil {
		tb.Fatal("read bpf object: ", err)
	}
	for _, change := range changes {
		change(spec)
	}
	o, err := load(spec)
	if err != nil {
		tb.Fatal("load observer: ", err)
	}
	tb.Cleanup(func() {
		if err := o.Close(); err != nil {
			tb.Error("close observer: ", err)
		}
	})
	return o
}

// verdictNext is TCX_NEXT, and TC_ACT_UNSPEC of a classifier.
const verdictNext = -1

// run passes the frame to the program as if it had entered by the loopback interface, and checks
// that the frame is not changed or dropped.
func (o *Observer) run(tb testing.TB, frame []byte) {
	tb.Helper()
	out := make([]byte, len(frame)+64)
	opts := ebpf.RunOptions{Data: frame, DataOut: out}
	verdict, err := o.objects.Observe.Run(&opts)
	if err != nil {
		tb.Errorf("run program on %x: %v", frame, err)
		return
	}
	if int32(verdict) != verdictNext {
		tb.Errorf("got verdict %d, want %d", int32(verdict), verdictNext)
	}
	if !bytes.Equal(opts.DataOut, frame) {
		tb.Errorf("got frame %x back, want %x", opts.DataOut, frame)
	}
}

// runFor is like run, and returns the result whose counter was incremented.
func (o *Observer) runFor(tb testing.TB, frame []byte) Result {
	tb.Helper()
	_, result := o.runCounted(tb, frame)
	return result
}

// runCounted is like run, and returns the protocol and the result of the counter that was
// incremented.
func (o *Observer) runCounted(tb testing.TB, frame []byte) (protocol Protocol, result Result) {
	tb.Helper()
	before := o.counts(tb)
	o.run(tb, frame)
	after := o.counts(tb)
	for p := range after {
		for r := range after[p] {
			switch after[p][r] - before[p][r] {
			case 0:
			case 1:
				if result != ResultNone {
					tb.Errorf("got counters %s %s and %s %s moved, want at most one", protocol, result, Protocol(p), Result(r))
				}
				protocol, result = Protocol(p), Result(r)
			default:
				tb.Errorf("got counter %s %s moved from %d to %d, want by one",
					Protocol(p), Result(r), before[p][r], after[p][r])
			}
		}
	}
	return protocol, result
}

// tally contains the number of frames for each protocol and result.
type tally [observeProtocolPROTOCOLS][results]uint64

// counts returns the counters.
func (o *Observer) counts(tb testing.TB) (counts tally) {
	tb.Helper()
	counters, err := o.Counters()
	if err != nil {
		tb.Fatal(err)
	}
	for _, c := range counters {
		for p := range counts {
			for r := range counts[p] {
				if c.Protocol == Protocol(p).String() && c.Result == Result(r).String() {
					counts[p][r] = c.Frames
				}
			}
		}
	}
	return counts
}

// waiting returns the next event if the ring contains one.
func (o *Observer) waiting(tb testing.TB) (ev Event, ok bool) {
	tb.Helper()
	return o.readBy(tb, time.Unix(1, 0))
}

// await returns the next event, or fails the test.
func (o *Observer) await(tb testing.TB) Event {
	tb.Helper()
	ev, ok := o.readBy(tb, time.Now().Add(time.Minute))
	if !ok {
		tb.Fatalf("got no event within a minute, counters %v", o.counts(tb))
	}
	return ev
}

func (o *Observer) readBy(tb testing.TB, deadline time.Time) (ev Event, ok bool) {
	tb.Helper()
	o.reader.SetDeadline(deadline)
	switch err := o.Read(&ev); {
	case err == nil:
		return ev, true
	case errors.Is(err, os.ErrDeadlineExceeded):
		return ev, false
	default:
		tb.Fatal(err)
		return ev, false
	}
}

func monotonic() time.Duration {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts)
	return time.Duration(ts.Nano())
}

var (
	broadcast = MAC{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	macA      = MAC{0x02, 0, 0x5e, 0x10, 0, 1}
	macB      = MAC{0x02, 0, 0x5e, 0x10, 0, 2}
	addrA     = netip.MustParseAddr("192.0.2.1")
	addrB     = netip.MustParseAddr("192.0.2.2")
	addrNone  = netip.IPv4Unspecified()
)

// arpFrame describes a frame. Fields that are not set have valid defaults.
type arpFrame struct {
	source MAC // defaults to sha
	tags   []vlanTag
	change func(arp []byte) // changes the 28 bytes
	op     uint16
	sha    MAC
	spa    netip.Addr
	tpa    netip.Addr
}

// vlanTag is an EtherType such as 0x8100, and the TCI.
type vlanTag [2]uint16

func (f arpFrame) bytes() []byte {
	source := f.source
	if source == (MAC{}) {
		source = f.sha
	}
	b := append(append([]byte{}, broadcast[:]...), source[:]...)
	for _, tag := range f.tags {
		b = binary.BigEndian.AppendUint16(b, tag[0])
		b = binary.BigEndian.AppendUint16(b, tag[1])
	}
	b = binary.BigEndian.AppendUint16(b, 0x0806)
	arp := []byte{0, 1, 0x08, 0, 6, 4}
	arp = binary.BigEndian.AppendUint16(arp, f.op)
	arp = append(append(arp, f.sha[:]...), f.spa.AsSlice()...)
	arp = append(append(arp, make([]byte, 6)...), f.tpa.AsSlice()...)
	if f.change != nil {
		f.change(arp)
	}
	return append(b, arp...)
}

func request(sha MAC, spa, tpa netip.Addr) []byte {
	return arpFrame{op: 1, sha: sha, spa: spa, tpa: tpa}.bytes()
}

func reply(sha MAC, spa, tpa netip.Addr) []byte {
	return arpFrame{op: 2, sha: sha, spa: spa, tpa: tpa}.bytes()
}
