//go:build race

package aggregator

import (
	"runtime"
	"testing"
)

// keepDetectorAlive keeps the test on one processor from here on. On two, timers of one bubble of
// synctest may use one race context at the same time, and then the race detector stops the process
// (golang/go#78156). The aggregator has the workers that it started with.
func keepDetectorAlive(t testing.TB) {
	before := runtime.GOMAXPROCS(1)
	t.Cleanup(func() { runtime.GOMAXPROCS(before) })
}
