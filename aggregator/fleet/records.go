package fleet

import (
	"context"
	"errors"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ipwitness/ipwitness/aggregator/api"
	"github.com/ipwitness/ipwitness/aggregator/journal"
	"github.com/ipwitness/ipwitness/ipam"
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

// A page is one page of a list, and what it does not show.
type page[T proto.Message] struct {
	*api.Page[T]
	next     string
	coverage *pb.Coverage
	gap      *pb.Gap
}

// A place is where a page ends: after an item of a cluster, or before all of its items if the position is empty.
type place struct{ Cluster, Position string }

// listing is a request for a list.
type listing interface {
	GetAt() *timestamppb.Timestamp
	GetCluster() []string
	GetPageSize() uint32
	GetPageToken() string
}

// list returns a page of items, ordered by cluster, unless the request has an error.
func list[T proto.Message](ctx context.Context, f *Fleet, q listing, sel api.Selection, err error, item func(*pb.Event) T) (p page[T], _ error) {
	p.Page = api.NewPage[T](q.GetPageSize())
	if err != nil {
		return p, err
	}
	all, _, err := f.sources(q.GetCluster(), sel.Changes.Kind)
	if err != nil {
		return p, err
	}
	from, err := api.ParseToken[place](q.GetPageToken())
	position, invalid := journal.ParsePosition(from.Position)
	if err != nil || invalid != nil {
		return p, api.ErrPageToken
	}
	at, err := f.moment(q.GetAt())
	if err != nil {
		return p, err
	}
	if p.coverage, p.gap, err = f.seen(ctx, q.GetCluster(), at); err != nil {
		return p, err
	}
	for _, r := range all {
		if r.name < from.Cluster {
			continue
		}
		last := position
		if r.name > from.Cluster {
			last = journal.Position{}
		}
		if err := r.items(ctx, sel, at, last, func(e *pb.Event, position journal.Position) bool {
			if p.Full() {
				next := place{Cluster: r.name}
				if last != (journal.Position{}) {
					next.Position = last.Token()
				}
				p.next = api.Token(next)
				return false
			}
			p.Add(item(e))
			last = position
			return true
		}); err != nil || p.next != "" {
			return p, err
		}
	}
	return p, nil
}

// moment returns the time of a request; zero for now.
func (f *Fleet) moment(t *timestamppb.Timestamp) (time.Time, error) {
	at, err := api.OptionalTime("at", t)
	if now := f.Clock(); at.After(now.Add(api.ClockError)) {
		return time.Time{}, status.Errorf(codes.InvalidArgument, "at is %s, which is in the future: the current time is %s",
			at.UTC().Format(time.RFC3339), now.UTC().Format(time.RFC3339))
	}
	return at, err
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
		first := c.journal.Oldest()
		if !first.IsZero() && (oldest.IsZero() || first.Before(oldest)) {
			oldest = first
		}
		if first.IsZero() || at.Before(first.Add(-journal.PresentBefore)) {
			out.SilentClusters, out.Incomplete = append(out.SilentClusters, c.name), true
			continue
		}
		in, err := c.journal.GapAt(at)
		if err != nil {
			return nil, nil, failed(err)
		}
		if gap == nil {
			gap = c.gap(in)
		}
		if err := c.journal.At(ctx, pb.Event_NODE, at, ipam.Range{}, journal.Position{}, func(e *pb.Event, _ journal.Position) bool {
			n := e.GetNode()
			out.Expected++
			switch {
			case n.GetState() == pb.Node_LIVE:
				out.Heard++
			case len(out.SilentNodes) < mostNames:
				out.SilentNodes = append(out.SilentNodes, c.name+"/"+n.GetName())
			}
			if n.GetIncomplete() {
				out.LeftOut++
				out.Incomplete = true
				if len(out.NodesLeftOut) < mostNames {
					out.NodesLeftOut = append(out.NodesLeftOut, c.name+"/"+n.GetName())
				}
			}
			return true
		}); err != nil {
			return nil, nil, failed(err)
		}
		until, _, _ := c.journal.Written()
		out.Incomplete = out.Incomplete || in != nil || at.After(until) && c.lives(f.Clock()) != pb.Cluster_LIVE
	}
	if f.between != nil {
		in, err := f.between.journal.GapAt(at)
		if err != nil {
			return nil, nil, failed(err)
		}
		if first := f.between.journal.Oldest(); in != nil || first.IsZero() || at.Before(first.Add(-journal.PresentBefore)) {
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
	out.Incomplete = out.Incomplete || out.GetHeard() == 0 || out.GetHeard() < out.GetExpected()
	return out, gap, nil
}
