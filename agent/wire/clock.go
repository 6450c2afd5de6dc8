package wire

import (
	"time"

	"golang.org/x/sys/unix"
)

// frameClock converts the monotonic time of the kernel into wall time.
type frameClock struct {
	now       time.Time
	monotonic time.Duration
}

// at returns the time of a frame. It compares the two clocks once a second, because comparing
// them for each frame would cost a system call per frame.
func (c *frameClock) at(ktime time.Duration) time.Time {
	if c.now.IsZero() || (ktime-c.monotonic).Abs() > time.Second {
		for range 4 { // until both were read without an interruption in between
			begin := time.Now()
			var ts unix.Timespec
			if unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) != nil {
				return begin
			}
			c.now, c.monotonic = begin, time.Duration(ts.Nano())
			if time.Since(begin) < 100*time.Microsecond {
				break
			}
		}
	}
	return c.now.Add(ktime - c.monotonic)
}
