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

// framesPerRound results in rounds of about 20 ms.
const framesPerRound = 1_000_000

// BenchmarkNonNeighbourFrame compares the cost of a frame that is neither ARP nor NDP with an empty
// program. The budget is 1.25 times the latter.
func BenchmarkNonNeighbourFrame(b *testing.B) {
	const tcp, budget = 6, 1.25
	ipv4 := append(request(macA, addrA, addrB)[:12], 0x08, 0x00, 0x45)
	ipv4 = append(ipv4, make([]byte, 74-len(ipv4))...)
	ipv4[ethernetLen+9] = tcp
	ipv6 := append(request(macA, addrA, addrB)[:12], 0x86, 0xdd, 0x60)
	ipv6 = append(ipv6, make([]byte, 74-len(ipv6))...)
	ipv6[ethernetLen+6] = tcp
	for _, tt := range []struct {
		name  string
		frame []byte
	}{{"ipv4", ipv4}, {"ipv6", ipv6}} {
		b.Run(tt.name, func(b *testing.B) {
			o := newObserver(b)
			if ratio := compareWithEmpty(b, o.objects.Observe, tt.frame); ratio > budget {
				b.Errorf("got %.3f times an empty program, want at most %.2f", ratio, budget)
			}
		})
	}
}

// BenchmarkKnownBinding measures a frame whose binding has already been reported.
func BenchmarkKnownBinding(b *testing.B) {
	for _, tt := range []struct {
		name  string
		frame []byte
	}{
		{"arp", request(macA, addrA, addrB)},
		{"ndp", advertisement(macA, addr6A, ndSolicited|ndOverride)},
	} {
		b.Run(tt.name, func(b *testing.B) {
			o := newObserver(b)
			o.run(b, tt.frame)
			compareWithEmpty(b, o.objects.Observe, tt.frame)
		})
	}
}

// BenchmarkKnownBindingAfterASecond includes the check whether the address is contested.
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

// BenchmarkRead measures reading an event from a full ring.
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

// compareWithEmpty runs prog and an empty program alternately, so that other load affects both, and
// reports the medians and their ratio.
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

	// Measure the CPU time of this thread, because the machine may be shared.
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
