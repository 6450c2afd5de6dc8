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
