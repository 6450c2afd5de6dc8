package recall

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/facts"
	"github.com/ipwitness/ipwitness/aggregator/index"
	"github.com/ipwitness/ipwitness/aggregator/journal"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// Regain puts back the conflicts of partitions that another replica has served, and waits until the agents
// have sent all claims of these partitions: the conflicts then continue or end. complete reports whether
// they have. It returns earlier if ctx ends.
func (r *Recall) Regain(ctx context.Context, set facts.PartitionSet, complete func() bool) error {
	again := &Recall{Config: r.Config, boots: make(map[string]string), missing: make(map[string]bool)}
	if err := again.each(ctx, pb.Event_NODE, func(e *pb.Event) { again.boots[e.GetNode().GetName()] = e.GetNode().GetBootId() }); err != nil {
		return err
	}
	var all []*verdict.Conflict
	oldest := r.Shards.KeptSince()
	if err := again.each(ctx, pb.Event_CONFLICT, func(e *pb.Event) {
		if c := again.conflict(e.GetConflict()); c != nil && set[index.AddressOf(c.Address).Partition()] && (c.Active() || c.ResolvedAt > oldest) {
			r.Recorded.Add(e.GetConflict())
			all = append(all, c)
		}
	}); err != nil {
		return err
	}
	slices.SortFunc(all, func(a, b *verdict.Conflict) int { return cmp.Compare(a.ResolvedAt, b.ResolvedAt) })
	r.Shards.Recall(all)
	since := make(map[string]verdict.Stamp)
	if err := r.Journal.At(ctx, pb.Event_FINDING, r.Facts.Clock().Time(), ipam.Range{}, journal.Position{}, func(e *pb.Event, _ journal.Position) bool {
		if p, err := journal.Partition(&journal.Change{Finding: e.GetFinding()}); err == nil && set[p] {
			since[e.GetFinding().GetId()] = verdict.At(e.GetFinding().GetDetectedAt().AsTime())
		}
		return true
	}); err != nil {
		return err
	}
	defer r.Findings.Regain(since)()
	if err := r.judged(ctx, complete); err != nil {
		return err
	}
	for _, c := range all {
		if c.Active() {
			again.awaited = append(again.awaited, c)
		}
	}
	again.release(true)
	return nil
}

// judgedWithin is how long it may take until the queue of addresses is empty.
const judgedWithin = 10 * time.Second

// judged waits until all claims have arrived, and what follows from them is judged. Some of that waits for the
// settle time.
func (r *Recall) judged(ctx context.Context, complete func() bool) error {
	look := time.NewTicker(lookAgainAfter)
	defer look.Stop()
	var since verdict.Stamp
	for {
		now := r.Facts.Clock()
		switch settled := since.Add(r.Facts.Policy.Settle + lookAgainAfter); {
		case !complete():
			since = 0
		case since == 0:
			since = now
		case now >= settled && (r.Shards.Waiting() == 0 || now >= settled.Add(judgedWithin)):
			return nil
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
