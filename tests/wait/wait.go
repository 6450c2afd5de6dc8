// Package wait waits for conditions in tests.
package wait

import (
	"os"
	"testing"
	"time"
)

// Patience returns the longest time that a test waits for a condition. It is not a performance
// budget: machines are shared, and a guest of `make test-kernels` is many times slower than its
// machine. `make bench` measures performance.
func Patience() time.Duration {
	if os.Getenv("IPWITNESS_KERNEL_MATRIX") != "" {
		return 6 * time.Minute
	}
	return 2 * time.Minute
}

// Until checks a condition every few milliseconds until it is true, and ends the test if that
// takes longer than Patience. what names the condition.
func Until(t testing.TB, what string, cond func() bool) {
	t.Helper()
	deadline := time.NewTimer(Patience())
	defer deadline.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-deadline.C:
			t.Fatalf("not within %s: %s", Patience(), what)
		case <-tick.C:
		}
	}
}
