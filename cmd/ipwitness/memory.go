package main

import (
	"bufio"
	"io/fs"
	"math"
	"os"
	"path"
	"runtime/debug"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// The share of a cgroup's memory that the Go runtime is told to stay within, in per
// cent: the rest is for what it does not count, as buffers of sockets.
const runtimeShare = 90

// useMemory gives how many bytes the process may use: GOMEMLIMIT; without it, most of
// what its cgroup may, which the Go runtime is told as well; or else half of what the
// machine has.
func useMemory() int64 {
	if limit := debug.SetMemoryLimit(-1); limit != math.MaxInt64 {
		return limit
	}
	if limit := cgroupMemory(os.DirFS("/")); limit > 0 {
		limit = limit / 100 * runtimeShare
		debug.SetMemoryLimit(limit)
		return limit
	}
	var machine unix.Sysinfo_t
	if unix.Sysinfo(&machine) != nil { // it has no error on Linux
		return 0
	}
	return int64(uint64(machine.Totalram) * uint64(machine.Unit) / 2)
}

// cgroupMemory gives how many bytes of memory the process's cgroup, and those above it,
// may use; 0 where none of them has a limit (cgroups(7), Linux's
// Documentation/admin-guide/cgroup-v2.rst).
func cgroupMemory(root fs.FS) int64 {
	file, err := root.Open("proc/self/cgroup")
	if err != nil {
		return 0
	}
	defer func() { _ = file.Close() }() // only read
	least := int64(math.MaxInt64)
	for lines := bufio.NewScanner(file); lines.Scan(); {
		_, of, _ := strings.Cut(lines.Text(), ":")
		controllers, at, _ := strings.Cut(of, ":")
		mount, name := "sys/fs/cgroup", "memory.max"
		switch {
		case controllers == "memory":
			mount, name = "sys/fs/cgroup/memory", "memory.limit_in_bytes"
		case controllers != "":
			continue
		}
		// In a container, the path may be that of the host: then there is but the top.
		for dir := path.Clean("/" + at); ; dir = path.Dir(dir) {
			raw, err := fs.ReadFile(root, path.Join(mount, dir, name))
			limit, parseErr := strconv.ParseInt(strings.TrimSpace(string(raw)), 10, 64)
			if err == nil && parseErr == nil { // else it is not there, or "max"
				least = min(least, limit)
			}
			if dir == "/" {
				break
			}
		}
	}
	if least >= math.MaxInt64>>12<<12 { // as version 1 says that there is none
		return 0
	}
	return least
}
