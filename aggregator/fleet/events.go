package fleet

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ipwitness/ipwitness/aggregator/api"
	"github.com/ipwitness/ipwitness/aggregator/journal"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// readAtOnce is the number of events of one cluster that are read at a time.
const readAtOnce = 128

// A moment is where a page of events ends: after the event of a cluster at a time. Events are ordered by
// time, and by cluster if their times are equal.
type moment struct {
	At      time.Time
	Cluster string
}

// A reading reads the events of one cluster in order.
type reading struct {
	*records
	query journal.Query
	some  []*pb.Event
	ended bool
}

// next returns the next event; nil if there is none. The event stays the first of some until it is taken.
func (r *reading) next(ctx context.Context) (*pb.Event, error) {
	if len(r.some) == 0 && !r.ended {
		r.ended = true
		if err := r.journal.Events(ctx, &r.query, func(e *pb.Event) bool {
			if r.query.After = e.GetTime().AsTime(); r.selected(e) {
				r.some = append(r.some, e)
			}
			r.ended = len(r.some) < readAtOnce
			return len(r.some) < readAtOnce
		}); err != nil {
			return nil, failed(err)
		}
	}
	if len(r.some) == 0 {
		return nil, nil
	}
	return r.some[0], nil
}

// ListEvents lists the changes that are recorded, in order of their times.
func (s *Service) ListEvents(ctx context.Context, q *pb.ListEventsRequest) (*pb.ListEventsResponse, error) {
	query, err := api.SelectPeriod(q)
	if err != nil {
		return nil, err
	}
	from, err := api.ParseToken[moment](q.GetPageToken())
	if err != nil {
		return nil, err
	}
	clusters, _, err := s.Fleet.named(q.GetCluster())
	if err != nil {
		return nil, err
	}
	all, _, err := s.Fleet.sources(q.GetCluster(), q.GetKind())
	if err != nil {
		return nil, err
	}
	out := &pb.ListEventsResponse{Coverage: s.Fleet.coverage(clusters), ReachesBackTo: reachBackTo(all)}
	var readings []*reading
	for _, r := range all {
		one := &reading{records: r, query: query}
		if !from.At.IsZero() {
			if one.query.After = from.At; r.name > from.Cluster {
				one.query.After = from.At.Add(-time.Microsecond)
			}
		} else {
			until := query.Until
			if until.IsZero() {
				until = s.Fleet.Clock()
			}
			gaps, err := r.journal.Gaps(query.Since, until)
			if err != nil {
				return nil, failed(err)
			}
			for _, g := range gaps {
				out.Gaps = append(out.Gaps, r.gap(g))
			}
		}
		readings = append(readings, one)
	}
	slices.SortStableFunc(out.Gaps, func(a, b *pb.Gap) int { return a.GetFrom().AsTime().Compare(b.GetFrom().AsTime()) })
	p := api.NewPage[*pb.Event](q.GetPageSize())
	for {
		var first *reading // with the earliest event
		var at time.Time
		for _, r := range readings {
			e, err := r.next(ctx)
			if err != nil {
				return nil, err
			}
			if t := e.GetTime().AsTime(); e != nil && (first == nil || cmp.Or(t.Compare(at), strings.Compare(r.name, first.name)) < 0) {
				first, at = r, t
			}
		}
		if first == nil {
			break
		}
		if p.Full() {
			last := p.Items[len(p.Items)-1]
			out.NextPageToken = api.Token(moment{last.GetTime().AsTime(), last.GetCluster()})
			break
		}
		e := first.some[0]
		first.some = first.some[1:]
		first.label(e)
		p.Add(e)
	}
	out.Events = p.Items
	return out, nil
}

// reachBackTo returns the time from which on all records are complete; nil if there are none.
func reachBackTo(all []*records) (at *timestamppb.Timestamp) {
	for _, r := range all {
		if oldest := r.journal.Oldest(); !oldest.IsZero() && (at == nil || oldest.After(at.AsTime())) {
			at = timestamppb.New(oldest)
		}
	}
	return at
}
