package fleet

import (
	"context"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/ipwitness/ipwitness/aggregator/api"
	"github.com/ipwitness/ipwitness/aggregator/journal"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// sources returns the records of the clusters with some names, or of all, which may have items of a kind.
// changed is closed when others may have them, too.
func (f *Fleet) sources(names []string, kind pb.Event_Kind) (all []*api.Records, changed <-chan struct{}, err error) {
	clusters, changed, err := f.named(names)
	if f.between != nil && (kind == 0 || kind == pb.Event_CONFLICT) {
		all = append(all, &api.Records{Journal: f.between.Journal, Only: names})
	}
	for _, c := range clusters {
		all = append(all, &c.Records)
	}
	return all, changed, err
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
			out.SilentClusters = append(out.SilentClusters, c.Name)
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
				out.Awaited = append(out.Awaited, &pb.Awaited{What: a.GetWhat(), Node: c.Name + "/" + a.GetNode(), Ipam: a.GetIpam()})
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
					*names.to = append(*names.to, c.Name+"/"+name)
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

// list returns a page of items, ordered by cluster, unless the request has an error.
func list[T proto.Message](ctx context.Context, f *Fleet, q api.Listing, sel api.Selection, err error, item func(*pb.Event) T) (*api.Page[T], error) {
	p := api.NewPage[T](q.GetPageSize())
	if err != nil {
		return p, err
	}
	all, _, err := f.sources(q.GetCluster(), sel.Changes.Kind)
	if err != nil {
		return p, err
	}
	at, err := api.Moment(q.GetAt(), f.Clock())
	if err != nil {
		return p, err
	}
	if p.Coverage, p.Gap, err = f.seen(ctx, q.GetCluster(), at); err != nil {
		return p, err
	}
	return p, api.FillRecorded(ctx, p, all, q.GetPageToken(), sel, at, item)
}

// seen returns the coverage of some clusters at a time, and a gap in their records that contains it. It
// returns an error if none of them has records of that time.
func (f *Fleet) seen(ctx context.Context, names []string, at time.Time) (*pb.Coverage, *pb.Gap, error) {
	clusters, _, err := f.named(names)
	if err != nil || at.IsZero() {
		return f.coverage(clusters), nil, err
	}
	out := &pb.Coverage{Clusters: uint32(len(clusters))}
	var gap *pb.Gap
	var oldest time.Time
	for _, c := range clusters {
		first := c.Journal.Oldest()
		if !first.IsZero() && (oldest.IsZero() || first.Before(oldest)) {
			oldest = first
		}
		if first.IsZero() || at.Before(first.Add(-journal.PresentBefore)) {
			out.SilentClusters, out.Incomplete = append(out.SilentClusters, c.Name), true
			continue
		}
		in, err := c.GapAt(at)
		if err != nil {
			return nil, nil, err
		}
		if gap == nil {
			gap = in
		}
		if err := c.CoverageAt(ctx, at, out, mostNames); err != nil {
			return nil, nil, err
		}
		until, _, _ := c.Journal.Written()
		out.Incomplete = out.Incomplete || in != nil || at.After(until) && c.lives(f.Clock()) != pb.Cluster_LIVE
	}
	if f.between != nil {
		in, err := f.between.GapAt(at)
		if err != nil {
			return nil, nil, err
		}
		if first := f.between.Journal.Oldest(); in != nil || first.IsZero() || at.Before(first.Add(-journal.PresentBefore)) {
			out.Incomplete = true
		}
		if gap == nil {
			gap = in
		}
	}
	if len(out.GetSilentClusters()) == len(clusters) {
		if oldest.IsZero() {
			return nil, nil, status.Error(codes.OutOfRange, "nothing was recorded yet")
		}
		return nil, nil, status.Errorf(codes.OutOfRange, "at is %s, but the records reach back to %s only",
			at.UTC().Format(time.RFC3339), oldest.UTC().Format(time.RFC3339))
	}
	out.Incomplete = out.Incomplete || out.GetLeftOut() > 0 || out.GetHeard() == 0 || out.GetHeard() < out.GetExpected()
	return out, gap, nil
}
