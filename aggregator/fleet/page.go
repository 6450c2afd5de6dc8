package fleet

import (
	"context"
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
