package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// cpu returns the CPU time that the program has used.
func (s *site) cpu() (time.Duration, error) { return cpuOf(s.program.Cmd.Process.Pid) }

// cpuOf returns the CPU time that a process has used.
func cpuOf(pid int) (time.Duration, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(stat), ") ") // the name may contain blanks
	fields := strings.Fields(rest)
	if len(fields) < 13 {
		return 0, fmt.Errorf("parse stat: %d fields", len(fields))
	}
	var user, system int64
	if _, err := fmt.Sscan(fields[11]+" "+fields[12], &user, &system); err != nil {
		return 0, fmt.Errorf("parse stat: %w", err)
	}
	const tick = 10 * time.Millisecond // USER_HZ is 100 everywhere
	return time.Duration(user+system) * tick, nil
}

// rss returns the RSS of the program in MiB.
func (s *site) rss() (float64, error) { return s.memory("VmRSS") }

// settledRSS waits until the RSS stops falling and returns it in MiB.
func (s *site) settledRSS(ctx context.Context) (float64, error) {
	const still, patience = 10 * time.Second, time.Minute
	least, err := s.rss()
	if err != nil {
		return 0, err
	}
	for begin, fell := time.Now(), time.Now(); time.Since(fell) < still && time.Since(begin) < patience; {
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-time.After(time.Second):
		}
		now, err := s.rss()
		if err != nil {
			return 0, err
		}
		if now < 0.99*least {
			least, fell = now, time.Now()
		}
	}
	return s.rss()
}

func (s *site) memory(name string) (float64, error) { return memoryOf(s.program.Cmd.Process.Pid, name) }

// memoryOf returns one of the sizes in /proc/PID/status, in MiB.
func memoryOf(pid int, name string) (float64, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	_, size, _ := strings.Cut(string(status), name+":")
	var kib float64
	if _, err := fmt.Sscan(size, &kib); err != nil {
		return 0, fmt.Errorf("parse %s: %w", name, err)
	}
	return kib / 1024, nil
}

// processorTimes contains the total times of all processors since boot.
type processorTimes struct {
	// busy excludes idle time, all includes it.
	busy, all time.Duration
	// self is the CPU time of this process, children that of its children that have ended.
	self, children time.Duration
}

// processors reads the times from /proc/stat (proc_stat(5)). Time stolen by the hypervisor counts
// as busy.
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

// others returns the percentage of all processors that other programs took since then.
func (t processorTimes) others(since processorTimes) float64 {
	own := t.self + t.children - since.self - since.children
	return 100 * max(0, t.busy-since.busy-own).Seconds() / (t.all - since.all).Seconds()
}
