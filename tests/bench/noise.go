package main

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// processorTimes are times of all processors together until now, in seconds.
type processorTimes struct {
	// busy is when they were not idle, all is with idle.
	busy, all float64
	// own is what this process took, with its children that have ended.
	own float64
}

// processors reads the times from /proc/stat (proc_stat(5)). What a hypervisor gave to
// other machines counts as busy.
func processors() (t processorTimes, err error) {
	stat, err := os.ReadFile("/proc/stat")
	if err != nil {
		return t, err
	}
	line, _, _ := bytes.Cut(stat, []byte("\n"))
	const tick = 100 // USER_HZ
	for i, field := range strings.Fields(string(line))[1:9] {
		var ticks float64
		if _, err := fmt.Sscan(field, &ticks); err != nil {
			return t, fmt.Errorf("parse /proc/stat: %w", err)
		}
		t.all += ticks / tick
		if i != 3 && i != 4 { // idle, iowait
			t.busy += ticks / tick
		}
	}
	for _, of := range []int{unix.RUSAGE_SELF, unix.RUSAGE_CHILDREN} {
		var used unix.Rusage
		if err := unix.Getrusage(of, &used); err != nil {
			return t, fmt.Errorf("read processor time: %w", err)
		}
		t.own += time.Duration(used.Utime.Nano() + used.Stime.Nano()).Seconds()
	}
	return t, nil
}

// others is what part of all processors other programs took since then, in percent.
func (t processorTimes) others(since processorTimes) float64 {
	return 100 * max(0, t.busy-since.busy-(t.own-since.own)) / (t.all - since.all)
}
