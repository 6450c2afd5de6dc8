//go:build linux

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

// runtimeShare is the percentage of a cgroup's memory limit that is set as the Go
// runtime's limit. The rest is for memory that the runtime does not count, such as
// socket buffers.
const runtimeShare = 90

// useMemory returns how many bytes the process may use: GOMEMLIMIT if it is set;
// otherwise runtimeShare of the cgroup's limit, which it also sets as the Go runtime's
// limit; otherwise half of the machine's memory.
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
	if unix.Sysinfo(&machine) != nil { // cannot fail on Linux
		return 0
	}
	return int64(uint64(machine.Totalram) * uint64(machine.Unit) / 2)
}

// cgroupMemory returns the lowest memory limit in bytes of the process's cgroup and its
// ancestors, or 0 if none of them has a limit (cgroups(7), Linux's
// Documentation/admin-guide/cgroup-v2.rst).
func cgroupMemory(root fs.FS) int64 {
	file, err := root.Open("proc/self/cgroup")
	if err != nil {
		return 0
	}
	defer func() { _ = file.Close() }() // opened for reading only
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
		// In a container, the path may be the host's; then only the root directory
		// exists.
		for dir := path.Clean("/" + at); ; dir = path.Dir(dir) {
			raw, err := fs.ReadFile(root, path.Join(mount, dir, name))
			limit, parseErr := strconv.ParseInt(strings.TrimSpace(string(raw)), 10, 64)
			if err == nil && parseErr == nil { // otherwise the file does not exist, or contains "max"
				least = min(least, limit)
			}
			if dir == "/" {
				break
			}
		}
	}
	if least >= math.MaxInt64>>12<<12 { // how cgroup version 1 says that there is no limit
		return 0
	}
	return least
}
