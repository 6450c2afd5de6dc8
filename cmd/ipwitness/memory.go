//go:build linux

package main

import (
	"math"
	"runtime/debug"

	"github.com/KimMachineGun/automemlimit/memlimit"
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
	if limit, err := memlimit.FromCgroup(); err == nil {
		use := int64(limit / 100 * runtimeShare)
		debug.SetMemoryLimit(use)
		return use
	}
	machine, err := memlimit.FromSystem()
	if err != nil { // cannot fail on Linux
		return 0
	}
	return int64(machine / 2)
}
