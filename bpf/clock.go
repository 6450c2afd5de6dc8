package bpf

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"
)

// AddressClock returns the wall time at which the clock of the kernel's stamps of addresses
// (IFA_CACHEINFO) was 0, to some microseconds. The stamps count ticks, which begin some tenths of a second before or after
// the machine's boot (CLOCK_MONOTONIC), differently at each boot. Only BPF programs can read both clocks: without CAP_BPF it
// returns the time of the boot, and an error. It needs four ticks, at most 40 ms.
func AddressClock() (time.Time, error) {
	begin, err := ticksBegin()
	var ts unix.Timespec
	now := time.Now()
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) // cannot fail
	return now.Add(begin - time.Duration(ts.Nano())), err
}

// ticksBegin returns the monotonic time at which the kernel began to count ticks.
func ticksBegin() (time.Duration, error) {
	clocks, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 16, MaxEntries: 1})
	if err != nil {
		return 0, fmt.Errorf("read the clock of ticks: %w", explain(err, toLoad))
	}
	defer func() { _ = clocks.Close() }()
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SocketFilter, License: "GPL", Instructions: asm.Instructions{
		asm.StoreImm(asm.RFP, -4, 0, asm.Word),
		asm.LoadMapPtr(asm.R1, clocks.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, -4),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "end"),
		asm.Mov.Reg(asm.R6, asm.R0),
		asm.FnJiffies64.Call(), // first: a tick between the two calls makes the difference greater, and the smallest is taken
		asm.StoreMem(asm.R6, 8, asm.R0, asm.DWord),
		asm.FnKtimeGetNs.Call(),
		asm.StoreMem(asm.R6, 0, asm.R0, asm.DWord),
		asm.Mov.Imm(asm.R0, 0).WithSymbol("end"),
		asm.Return(),
	}})
	if err != nil {
		return 0, fmt.Errorf("read the clock of ticks: %w", explain(err, toLoad))
	}
	defer func() { _ = prog.Close() }()
	value, frame := make([]byte, 16), make([]byte, 14)
	read := func() (monotonic time.Duration, ticks uint64, err error) {
		if _, err := prog.Run(&ebpf.RunOptions{Data: frame}); err != nil {
			return 0, 0, fmt.Errorf("read the clock of ticks: %w", err)
		}
		if err := clocks.Lookup(uint32(0), value); err != nil {
			return 0, 0, fmt.Errorf("read the clock of ticks: %w", err)
		}
		return time.Duration(binary.NativeEndian.Uint64(value)), binary.NativeEndian.Uint64(value[8:]), nil
	}

	var resolution unix.Timespec // of a clock that advances at each tick
	if err := unix.ClockGetres(unix.CLOCK_MONOTONIC_COARSE, &resolution); err != nil {
		return 0, fmt.Errorf("read the duration of a tick: %w", err)
	}
	tick := time.Duration(resolution.Nano())
	// The kernel begins to count five minutes before the number of ticks overflows 32 bits.
	first := 1<<32 - uint64(5*time.Minute/tick)

	// A tick is seen late if this thread, or the processor that counts ticks, was delayed, never early.
	var begin time.Duration
	_, last, err := read()
	for seen := 0; err == nil && seen < 4; {
		var at time.Duration
		var ticks uint64
		if at, ticks, err = read(); err == nil && ticks != last {
			last = ticks
			if b := at - time.Duration(ticks-first)*tick; seen == 0 || b < begin {
				begin = b
			}
			seen++
		}
	}
	return begin, err
}
