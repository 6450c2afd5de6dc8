package main

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"github.com/ipwitness/ipwitness/tests/netlab"
)

// injector makes ARP frames enter an interface as if its driver had received them. It uses an XDP
// program that the kernel runs on generated frames, as xdp-trafficgen does
// (BPF_F_TEST_XDP_LIVE_FRAMES, Linux 5.18). A packet socket is not fast enough: it takes longer to
// send a frame than the kernel takes to receive it, and cannot reach 1,000,000 frames a second on
// this machine.
type injector struct {
	program *ebpf.Program
	// state contains the number of frames sent so far (8 bytes), and the time when the next one is
	// due, in bpf_ktime_get_ns() (8 bytes).
	state *ebpf.Map
	index int
}

const (
	xdpPass           = 2
	xdpLiveFrames     = 1 << 1 // BPF_F_TEST_XDP_LIVE_FRAMES
	injectorAddresses = 10<<24 | 256
	// Offsets in an Ethernet frame that contains ARP (RFC 826).
	ethSource, arpSHA, arpSPA, arpEnd = 6, 22, 28, 42
)

// newInjector creates an injector for an interface. Its frames cycle through the given number of
// bindings. They are ARP replies to another station, each with an address from 10.0.1.0 on and a
// MAC that ends with that address. The program waits at least pause between two frames; 0 means as
// fast as one core can. Call it, and run, inside Do.
func newInjector(ifname string, bindings int, pause time.Duration) (*injector, error) {
	i, err := net.InterfaceByName(ifname)
	if err != nil {
		return nil, fmt.Errorf("find interface: %w", err)
	}
	state, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 16, MaxEntries: 1})
	if err != nil {
		return nil, fmt.Errorf("make counter of frames: %w", err)
	}
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type:    ebpf.XDP,
		License: "Apache-2.0",
		Instructions: asm.Instructions{
			asm.Mov.Reg(asm.R6, asm.R1),
			asm.StoreImm(asm.RFP, -4, 0, asm.Word),
			asm.LoadMapPtr(asm.R1, state.FD()),
			asm.Mov.Reg(asm.R2, asm.RFP),
			asm.Add.Imm(asm.R2, -4),
			asm.FnMapLookupElem.Call(),
			asm.JEq.Imm(asm.R0, 0, "out"),
			asm.Mov.Reg(asm.R7, asm.R0), // the state

			// Wait until the frame is due. The number of attempts is bounded for the verifier.
			asm.LoadMem(asm.R8, asm.R7, 8, asm.DWord),
			asm.Mov.Imm(asm.R9, 0),
			asm.FnKtimeGetNs.Call().WithSymbol("wait"),
			asm.JGE.Reg(asm.R0, asm.R8, "due"),
			asm.Add.Imm(asm.R9, 1),
			asm.JLT.Imm(asm.R9, 1000, "wait"),
			// The next frame is due one pause later, or one pause from now if the program is late.
			asm.Mov.Reg(asm.R1, asm.R0).WithSymbol("due"),
			asm.Sub.Reg(asm.R1, asm.R8),
			asm.JLT.Imm(asm.R1, 100_000_000, "paced"),
			asm.Mov.Reg(asm.R8, asm.R0),
			asm.Add.Imm(asm.R8, int32(pause)).WithSymbol("paced"),
			asm.StoreMem(asm.R7, 8, asm.R8, asm.DWord),

			// R3 is the number of the frame's binding.
			asm.LoadMem(asm.R3, asm.R7, 0, asm.DWord),
			asm.Mov.Reg(asm.R4, asm.R3),
			asm.Add.Imm(asm.R4, 1),
			asm.StoreMem(asm.R7, 0, asm.R4, asm.DWord),
			asm.Mod.Imm(asm.R3, int32(bindings)),
			asm.Add.Imm(asm.R3, injectorAddresses),
			asm.HostTo(asm.BE, asm.R3, asm.Word),

			asm.LoadMem(asm.R1, asm.R6, 0, asm.Word),
			asm.LoadMem(asm.R2, asm.R6, 4, asm.Word),
			asm.Mov.Reg(asm.R4, asm.R1),
			asm.Add.Imm(asm.R4, arpEnd),
			asm.JGT.Reg(asm.R4, asm.R2, "out"),
			asm.StoreMem(asm.R1, ethSource+2, asm.R3, asm.Word),
			asm.StoreMem(asm.R1, arpSHA+2, asm.R3, asm.Word),
			asm.StoreMem(asm.R1, arpSPA, asm.R3, asm.Word),
			asm.Mov.Imm(asm.R0, xdpPass).WithSymbol("out"),
			asm.Return(),
		},
	})
	if err != nil {
		_ = state.Close()
		return nil, fmt.Errorf("load sender of frames: %w", err)
	}
	return &injector{program, state, i.Index}, nil
}

func (in *injector) close() {
	_ = in.program.Close()
	_ = in.state.Close()
}

// sent is the result of a storm.
type sent struct {
	frames uint64
	took   time.Duration
	// spent is the CPU time of the core on which the frames entered, including that of the kernel
	// and the observer.
	spent time.Duration
}

// run injects frames on the first core for the given time.
func (in *injector) run(d time.Duration) (out sent, err error) {
	var first unix.CPUSet
	first.Set(0)
	runtime.LockOSThread()
	if err := unix.SchedSetaffinity(0, &first); err != nil {
		return out, fmt.Errorf("choose a core: %w", err)
	}
	frame := netlab.ARP(2, net.HardwareAddr{2, 0, 0, 0, 0, 0}, netip.IPv4Unspecified(), netip.AddrFrom4([4]byte{10, 255, 255, 254}))
	copy(frame, []byte{2, 0, 0, 0, 0, 1}) // a nonexistent station
	context := struct{ Data, DataEnd, DataMeta, Ingress, Queue, Egress uint32 }{DataEnd: uint32(len(frame)), Ingress: uint32(in.index)}
	begin := time.Now()
	before, err := threadTime()
	if err != nil {
		return out, err
	}
	for out.took < d {
		// Each call waits for RCU, and is repeated if a signal interrupts it, so calls should be
		// neither too many nor too long. The program itself counts the frames.
		if _, err := in.program.Run(&ebpf.RunOptions{Data: frame, Context: context, Repeat: 500_000, Flags: xdpLiveFrames}); err != nil {
			return out, fmt.Errorf("run sender of frames (needs Linux 5.18): %w", err)
		}
		out.took = time.Since(begin)
	}
	after, err := threadTime()
	if err != nil {
		return out, err
	}
	out.spent = after - before
	var state [16]byte
	if err := in.state.Lookup(uint32(0), &state); err != nil {
		return out, fmt.Errorf("read counter of frames: %w", err)
	}
	out.frames = binary.NativeEndian.Uint64(state[:])
	return out, nil
}

// threadTime returns the CPU time of the calling thread.
func threadTime() (time.Duration, error) {
	var used unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_THREAD, &used); err != nil {
		return 0, fmt.Errorf("read processor time: %w", err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano()), nil
}
