package main

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// processorTimes are times of all processors together until now.
type processorTimes struct {
	// busy is when they were not idle, all is with idle.
	busy, all time.Duration
	// self is what this process took, children what its children took that have ended.
	self, children time.Duration
}

// processors reads the times from /proc/stat (proc_stat(5)). What a hypervisor gave to
// other machines counts as busy.
func processors() (t processorTimes, err error) {
	stat, err := os.ReadFile("/proc/stat")
	if err != nil {
		return t, err
	}
	line, _, _ := bytes.Cut(stat, []byte("\n"))
	const tick = 10 * time.Millisecond // USER_HZ is 100 everywhere
	for i, field := range strings.Fields(string(line))[1:9] {
		var ticks time.Duration
		if _, err := fmt.Sscan(field, &ticks); err != nil {
			return t, fmt.Errorf("parse /proc/stat: %w", err)
		}
		t.all += ticks * tick
		if i != 3 && i != 4 { // idle, iowait
			t.busy += ticks * tick
		}
	}
	for who, to := range map[int]*time.Duration{unix.RUSAGE_SELF: &t.self, unix.RUSAGE_CHILDREN: &t.children} {
		var used unix.Rusage
		if err := unix.Getrusage(who, &used); err != nil {
			return t, fmt.Errorf("read processor time: %w", err)
		}
		*to = time.Duration(used.Utime.Nano() + used.Stime.Nano())
	}
	return t, nil
}

// others is what part of all processors other programs took since then, in percent.
func (t processorTimes) others(since processorTimes) float64 {
	own := t.self + t.children - since.self - since.children
	return 100 * max(0, t.busy-since.busy-own).Seconds() / (t.all - since.all).Seconds()
}
