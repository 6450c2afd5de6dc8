//go:build race

package aggregator

import (
	"runtime"
	"testing"
)

// keepDetectorAlive limits the test to one processor from here on. On two, timers of one synctest
// bubble may use the same race context at the same time, and then the race detector aborts the
// process (golang/go#78156). The aggregator keeps the workers with which it started.
func keepDetectorAlive(t testing.TB) {
	before := runtime.GOMAXPROCS(1)
	t.Cleanup(func() { runtime.GOMAXPROCS(before) })
}

// measuresHeap skips a test that compares sizes of the heap: the race detector needs memory of its
// own, and the test takes minutes with it. make test-all also runs it without the detector.
func measuresHeap(t testing.TB) {
	t.Helper()
	t.Skip("the race detector changes the size of the heap")
}
