package aggregator

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ipwitness/ipwitness/aggregator/judge"
	"github.com/ipwitness/ipwitness/aggregator/live"
	"github.com/ipwitness/ipwitness/aggregator/report"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// A Replay is an aggregator for reports of the past, of one agent. Its time is that of the reports: between two of them passes whatever would have passed,
// at once. Use NewReplay.
type Replay struct {
	*Aggregator
	clock   atomic.Int64 // a verdict.Stamp
	session *report.Session
	stop    func()
}

// NewReplay returns a replay that begins at a time, and whose history is in memory. The caller must call Close.
func NewReplay(cfg Config, begin time.Time, log *slog.Logger, reg prometheus.Registerer) (*Replay, error) {
	r := &Replay{}
	r.clock.Store(int64(verdict.At(begin)))
	cfg.Alone, cfg.DataDir = true, ""
	agg, err := newAggregator(cfg, log, reg, r)
	if err != nil {
		return nil, err
	}
	r.Aggregator, r.session = agg, agg.core.reports.Session(nil)
	agg.core.witness.Reports = nil
	ctx, cancel := context.WithCancel(context.Background())
	var group sync.WaitGroup
	group.Go(func() { agg.core.journal.Run(ctx) })
	recalled := make(chan struct{})
	close(recalled) // there is nothing from before
	group.Go(func() { agg.core.witness.Record(ctx, recalled) })
	r.stop = func() {
		cancel()
		group.Wait()
	}
	agg.core.recorded() // that nothing is known yet: only later changes are history
	close(agg.complete)
	return r, nil
}

// Close ends the replay.
func (r *Replay) Close() { r.stop() }

// Report lets the time pass until a report arrived, and judges it.
func (r *Replay) Report(m *pb.ReportRequest, at time.Time) error {
	r.Advance(at)
	if err := r.session.Accept(m, r.now()); err != nil {
		return err
	}
	r.core.settle()
	r.core.recorded()
	return nil
}

// Advance lets the time pass. What is due meanwhile happens at its time.
func (r *Replay) Advance(to time.Time) {
	end := verdict.At(to)
	for {
		next := r.core.settle()
		if next == 0 || next > end {
			break
		}
		r.clock.Store(int64(max(r.now(), next)))
		r.core.recorded()
	}
	r.clock.Store(int64(max(r.now(), end)))
}

func (r *Replay) now() verdict.Stamp { return verdict.Stamp(r.clock.Load()) }

// settle does everything that is due, and returns when more will be; 0 for never.
func (c *core) settle() (next verdict.Stamp) {
	for {
		next = judge.Earlier(c.shards.Settle(), judge.Earlier(c.findings.Settle(), c.ring()))
		if next == 0 || next > c.facts.Clock() {
			return next
		}
	}
}

// recorded waits until the journal has what happened. Otherwise a later change of a conflict might be recorded before an earlier one of
// an owner, whose time would be that of the conflict then.
func (c *core) recorded() {
	for kind, bus := range map[pb.Event_Kind]*live.Bus{
		pb.Event_OWNER: c.events.Owners, pb.Event_CONFLICT: c.events.Conflicts, pb.Event_FINDING: c.events.Findings,
	} {
		for {
			mark, known, more := c.journal.Mark(kind)
			if known && mark.Revision >= bus.Revision() {
				break
			}
			<-more
		}
	}
}
