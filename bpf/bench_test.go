package bpf

import (
	"net/netip"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"
)

// framesPerRound makes a round about 20 ms long.
const framesPerRound = 1_000_000

// BenchmarkNonARPFrame compares a frame that is not ours with an empty program.
// The budget is 1.25 times that.
func BenchmarkNonARPFrame(b *testing.B) {
	o := newObserver(b)
	frame := append(request(macA, addrA, addrB)[:12], 0x08, 0x00, 0x45)
	frame = append(frame, make([]byte, 64-len(frame))...)
	const budget = 1.25
	if ratio := compareWithEmpty(b, o.objects.Observe, frame); ratio > budget {
		b.Errorf("got %.3f times an empty program, want at most %.2f", ratio, budget)
	}
}

// BenchmarkKnownBinding measures an ARP frame that user space has been told of.
func BenchmarkKnownBinding(b *testing.B) {
	o := newObserver(b)
	frame := request(macA, addrA, addrB)
	o.run(b, frame)
	compareWithEmpty(b, o.objects.Observe, frame)
}

// BenchmarkKnownBindingAfterASecond also looks whether the address is contested.
func BenchmarkKnownBindingAfterASecond(b *testing.B) {
	o := newObserver(b, func(spec *ebpf.CollectionSpec) {
		if err := spec.Variables[observeVarContestedRefreshNs].Set(uint64(0)); err != nil {
			b.Fatal(err)
		}
	})
	frame := request(macA, addrA, addrB)
	o.run(b, frame)
	compareWithEmpty(b, o.objects.Observe, frame)
}

// BenchmarkRead measures an event on its way out of a full ring.
func BenchmarkRead(b *testing.B) {
	o := newObserver(b)
	addr := netip.MustParseAddr("10.0.0.1")
	var ev Event
	const batch = 8192
	var read time.Duration
	var events int
	for b.Loop() {
		for range batch {
			o.run(b, request(macA, addr, addrB))
			addr = addr.Next()
		}
		start := time.Now()
		for range batch {
			if err := o.Read(&ev); err != nil {
				b.Fatal(err)
			}
		}
		read += time.Since(start)
		events += batch
	}
	b.ReportMetric(float64(read.Nanoseconds())/float64(events), "ns/event")
	b.ReportMetric(0, "ns/op")
}

// compareWithEmpty runs prog and an empty program in turns, so that what else
// the machine does hits both, and reports the medians and their ratio.
func compareWithEmpty(b *testing.B, prog *ebpf.Program, frame []byte) (ratio float64) {
	b.Helper()
	empty, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type:         ebpf.SchedCLS,
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, verdictNext), asm.Return()},
		License:      "Dual BSD/GPL",
	})
	if err != nil {
		b.Fatal("load empty program: ", err)
	}
	b.Cleanup(func() { _ = empty.Close() })

	// Time of this thread, not of the clock: the machine may be shared.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	perFrame := func(p *ebpf.Program) float64 {
		start := threadTime()
		if _, err := p.Run(&ebpf.RunOptions{Data: frame, Repeat: framesPerRound}); err != nil {
			b.Fatal("run program: ", err)
		}
		return float64(threadTime()-start) / framesPerRound
	}
	const minRounds = 21
	var ours, nothing []float64
	for b.Loop() {
		nothing, ours = append(nothing, perFrame(empty)), append(ours, perFrame(prog))
	}
	for len(ours) < minRounds {
		nothing, ours = append(nothing, perFrame(empty)), append(ours, perFrame(prog))
	}
	ratio = median(ours) / median(nothing)
	b.ReportMetric(median(ours), "ns/frame")
	b.ReportMetric(median(nothing), "ns/frame-empty")
	b.ReportMetric(ratio, "x-empty")
	b.ReportMetric(0, "ns/op")
	return ratio
}

func median(v []float64) float64 {
	v = slices.Clone(v)
	slices.Sort(v)
	return v[len(v)/2]
}

func threadTime() time.Duration {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts)
	return time.Duration(ts.Nano())
}
