package journal

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// A Delivery counts what a receiver of the records has got, and knows since when it gets nothing. Its methods are safe
// for concurrent use.
type Delivery struct {
	Log   *slog.Logger
	Clock func() time.Time

	mu    sync.Mutex
	stats DeliveryStats
	// waiting is the time of the oldest record that is being delivered; zero if there is none.
	waiting time.Time
	// failing is the last error, and since is when errors began; nil if the last attempt succeeded.
	failing error
	since   time.Time
	// lostUntil is the end of the latest period of which records are missing.
	lostUntil time.Time
}

// DeliveryStats are the counters of a Delivery.
type DeliveryStats struct {
	// Sent records were accepted. Refused ones were not, because of their content or size. Failures is the
	// number of attempts that failed.
	Sent, Refused, Failures uint64
	// Lost is the number of periods of which the journal did not have all records any more.
	Lost uint64
	// Lag is the age of the oldest record that is waiting; 0 if there is none.
	Lag time.Duration
}

// Reset notes that the delivery begins or ends: nothing is waiting, and nothing has failed.
func (d *Delivery) Reset() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.waiting, d.failing = time.Time{}, nil
}

// Wait notes that a record of a time is being delivered; zero if none is.
func (d *Delivery) Wait(at time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.waiting = at
}

// Deliver counts records that were accepted.
func (d *Delivery) Deliver(n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.stats.Sent += uint64(n)
	if d.failing != nil {
		d.Log.Info("the receiver accepts transitions again", "since", d.since)
	}
	d.waiting, d.failing = time.Time{}, nil
}

// Refuse counts records that the receiver does not get. log describes them.
func (d *Delivery) Refuse(n int, log ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.stats.Refused += uint64(n)
	d.Log.Error("the receiver does not accept the content of transitions: it does not get them", append(log, "transitions", n)...)
	d.waiting = time.Time{}
}

// Fail counts an attempt that failed.
func (d *Delivery) Fail(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.stats.Failures++
	if d.failing == nil {
		d.since = d.Clock()
		d.Log.Warn("cannot deliver transitions: trying again until the receiver accepts them", "error", err)
	}
	d.failing = err
}

// Lose counts periods of which records are missing, each once, although a reader meets one again until it is past its end.
func (d *Delivery) Lose(lost []Loss) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, l := range lost {
		if !l.Until.After(d.lostUntil) {
			continue
		}
		d.lostUntil = l.Until
		d.stats.Lost++
		if l.Pruned {
			d.Log.Error("the journal dropped transitions before the receiver got them: raise --retention or --journal-size", "from", l.From, "until", l.Until)
		} else {
			d.Log.Error("the journal lost transitions before the receiver got them", "from", l.From, "until", l.Until, "events", l.Events)
		}
	}
}

// Sleep waits before another attempt. It returns the error of ctx if that ends first.
func Sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Stats returns the counters.
func (d *Delivery) Stats() DeliveryStats {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := d.stats
	if !d.waiting.IsZero() {
		out.Lag = max(0, d.Clock().Sub(d.waiting))
	}
	return out
}

// Failing returns since when nothing is accepted, the time of the oldest record that is waiting, and why; the error is nil if
// the last attempt succeeded.
func (d *Delivery) Failing() (since, waiting time.Time, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.since, d.waiting, d.failing
}
