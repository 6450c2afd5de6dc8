package fleet

import (
	"context"
	"errors"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ipwitness/ipwitness/aggregator/api"
	"github.com/ipwitness/ipwitness/aggregator/journal"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// records are what is recorded of a cluster, or of conflicts between clusters, which have no name.
type records struct {
	name    string
	journal *journal.Journal
	// only are the clusters of the conflicts between clusters that are selected; all if there are none.
	only []string
}

// sources returns the records of the clusters with some names, or of all, which may have items of a kind.
// changed is closed when others may have them, too.
func (f *Fleet) sources(names []string, kind pb.Event_Kind) (all []*records, changed <-chan struct{}, err error) {
	clusters, changed, err := f.named(names)
	if f.between != nil && (kind == 0 || kind == pb.Event_CONFLICT) {
		all = append(all, &records{journal: f.between.journal, only: names})
	}
	for _, c := range clusters {
		all = append(all, &c.records)
	}
	return all, changed, err
}

// items calls do with the items at a time, or as they are now if it is zero, from a position on, until it returns false.
func (r *records) items(ctx context.Context, sel api.Selection, at time.Time, begin journal.Position, do func(*pb.Event, journal.Position) bool) error {
	select {
	case <-r.journal.Opened():
	case <-ctx.Done():
		return failed(ctx.Err())
	}
	if at.IsZero() {
		at, _, _ = r.journal.Written()
	}
	return failed(r.journal.At(ctx, sel.Changes.Kind, at, sel.Span, begin, func(e *pb.Event, p journal.Position) bool {
		r.label(e)
		return !sel.Matches(e) || !r.selected(e) || do(e, p)
	}))
}

// selected reports whether a conflict between clusters is selected. All other items are.
func (r *records) selected(e *pb.Event) bool {
	return len(r.only) == 0 || slices.ContainsFunc(e.GetConflict().GetClusters(), func(name string) bool { return slices.Contains(r.only, name) })
}

// label writes the name of the cluster into an event and its item.
func (r *records) label(e *pb.Event) {
	if r.name == "" {
		return // the conflict has the names
	}
	e.Cluster = r.name
	mark := func(all []*pb.Owner) {
		for _, o := range all {
			o.Cluster = r.name
		}
	}
	switch {
	case e.GetOwner() != nil:
		e.Owner.Cluster = r.name
	case e.GetConflict() != nil:
		e.Conflict.Clusters = []string{r.name}
		mark(e.Conflict.GetOwners())
	case e.GetFinding() != nil:
		e.Finding.Cluster = r.name
		mark(e.Finding.GetOwners())
	case e.GetNode() != nil:
		e.Node.Cluster = r.name
	}
}

func (r *records) gap(g *pb.Gap) *pb.Gap {
	if g != nil {
		g = &pb.Gap{From: g.GetFrom(), Until: g.GetUntil(), Reason: g.GetReason(), Lost: g.GetLost(), Cluster: r.name}
	}
	return g
}

// failed returns the error of a question that a journal could not answer.
func failed(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return status.FromContextError(err).Err()
	}
	return status.Errorf(codes.Unavailable, "cannot read the records: %s", err)
}

// mostNames is the largest number of names of each kind in a coverage.
const mostNames = 100

// coverage returns the coverage of some clusters: the sums of those that they have published last.
func (f *Fleet) coverage(clusters []*cluster) *pb.Coverage {
	now := f.Clock()
	out := &pb.Coverage{Clusters: uint32(len(clusters))}
	for _, c := range clusters {
		live := c.lives(now) == pb.Cluster_LIVE
		if !live {
			out.SilentClusters = append(out.SilentClusters, c.name)
		}
		c.mu.Lock()
		of := c.coverage
		c.mu.Unlock()
		out.Incomplete = out.Incomplete || !live || of == nil || of.GetIncomplete()
		out.Unknown = max(out.Unknown, of.GetUnknown())
		out.Expected += of.GetExpected()
		out.Heard += of.GetHeard()
		out.WithoutFrames += of.GetWithoutFrames()
		out.WithoutAddresses += of.GetWithoutAddresses()
		out.LeftOut += of.GetLeftOut()
		for _, a := range of.GetAwaited() {
			if len(out.Awaited) < mostNames {
				out.Awaited = append(out.Awaited, &pb.Awaited{What: a.GetWhat(), Node: c.name + "/" + a.GetNode(), Ipam: a.GetIpam()})
			}
		}
		for _, names := range []struct {
			to   *[]string
			from []string
		}{
			{&out.SilentNodes, of.GetSilentNodes()},
			{&out.NodesWithoutFrames, of.GetNodesWithoutFrames()},
			{&out.NodesWithoutAddresses, of.GetNodesWithoutAddresses()},
			{&out.NodesLeftOut, of.GetNodesLeftOut()},
		} {
			for _, name := range names.from {
				if len(*names.to) < mostNames {
					*names.to = append(*names.to, c.name+"/"+name)
				}
			}
		}
	}
	out.SilentClusters = slices.Clip(out.SilentClusters[:min(len(out.SilentClusters), mostNames)])
	f.mu.RLock()
	defer f.mu.RUnlock()
	if f.between != nil && !f.between.ready.Load() {
		out.Unknown, out.Incomplete = max(out.Unknown, pb.Coverage_STARTING), true
	}
	if now.Sub(f.listed) > listedWithin || len(clusters) == 0 {
		out.Unknown, out.Incomplete = pb.Coverage_HUB, true
	}
	return out
}
