package recall

import (
	"context"
	"maps"
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
	slices.SortFunc(all, func(a, b *verdict.Conflict) int { return int(a.ResolvedAt - b.ResolvedAt) })
	r.Shards.Recall(all)
	since := make(map[string]verdict.Stamp)
	if err := r.Journal.At(ctx, pb.Event_FINDING, r.Facts.Clock().Time(), ipam.Range{}, journal.Position{}, func(e *pb.Event, _ journal.Position) bool {
		since[e.GetFinding().GetId()] = verdict.At(e.GetFinding().GetDetectedAt().AsTime())
		return true
	}); err != nil {
		return err
	}
	r.Findings.Recall(maps.Clone(since))
	look := time.NewTicker(lookAgainAfter)
	defer look.Stop()
	for !complete() || r.Shards.Waiting() > 0 {
		select {
		case <-look.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	for _, c := range all {
		if c.Active() {
			again.awaited = append(again.awaited, c)
		}
	}
	again.release(true)
	return nil
}
