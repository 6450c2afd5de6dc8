package table

import (
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// A clock gives moments of the past by the present wall clock. Someone may set the wall clock while the agent runs, and
// what it showed before is then wrong. The monotonic clock, whose reading a time.Time has as well, is never set.
type clock struct {
	began  time.Time            // when both clocks were first read
	ahead  []ahead              // in order
	looked time.Time            // when they were last compared
	slept  time.Duration        // asleep then
	asleep func() time.Duration // how long the machine has been suspended since its boot
}

// ahead is how far the wall clock has gained on the monotonic one since began, for moments from from on: the monotonic
// clock stands still while the machine is suspended, the wall clock does not.
type ahead struct {
	from time.Time
	by   time.Duration
}

// leastStep is the smallest change of the wall clock that counts. NTP makes smaller ones, and both clocks follow it when it
// changes their rate.
const leastStep = 100 * time.Millisecond

func asleep() time.Duration {
	var boot, monotonic unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &boot) // neither can fail
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &monotonic)
	return time.Duration(boot.Nano() - monotonic.Nano())
}

// look compares the clocks, and reports whether the wall clock was set or the machine was suspended since the last call.
func (c *clock) look(now time.Time) bool {
	last := c.ahead[len(c.ahead)-1].by
	gained := now.Round(0).Sub(c.began.Round(0)) - now.Sub(c.began) - last
	since := c.looked
	if c.looked = now; gained.Abs() < leastStep {
		return false
	}
	slept := c.asleep() - c.slept
	if slept < leastStep {
		slept = 0
	}
	c.slept += slept
	for i := range c.ahead {
		c.ahead[i].by += gained - slept
	}
	if slept > 0 {
		c.ahead = append(c.ahead, ahead{since, last + gained})
	}
	return true
}

// stamp returns a moment by the present wall clock, as precisely as it is known. One without a reading of the monotonic clock
// is returned as it is.
func (c *clock) stamp(t time.Time) *timestamppb.Timestamp {
	by := c.ahead[0].by
	for _, later := range c.ahead[1:] {
		if !t.Before(later.from) {
			by = later.by
		}
	}
	if wall := t.Round(0); t != wall { // it has a reading of the monotonic clock
		now := c.began.Round(0).Add(t.Sub(c.began) + by)
		t = wall.Add(now.Sub(wall).Round(10 * time.Millisecond)) // the steps of the kernel's stamps of addresses
	}
	return timestamppb.New(t)
}
