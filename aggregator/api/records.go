package api

import (
	"cmp"
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ipwitness/ipwitness/aggregator/journal"
	"github.com/ipwitness/ipwitness/ipam"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// Records are what a journal has of one cluster, or of conflicts between clusters. An aggregator has one journal;
// a fleet has several, and answers from them only.
type Records struct {
	// Name is the cluster that items get; empty if they get none.
	Name    string
	Journal *journal.Journal
	// Only are the clusters of the conflicts between clusters that are selected; all if there are none.
	Only []string
}

// Items calls do with the selected items at a time, or as they are now if it is zero, from a position on, until
// it returns false.
func (r *Records) Items(ctx context.Context, sel Selection, at time.Time, begin journal.Position, do func(*pb.Event, journal.Position) bool) error {
	select {
	case <-r.Journal.Opened():
	case <-ctx.Done():
		return errJournal(ctx.Err())
	}
	if at.IsZero() {
		at, _, _ = r.Journal.Written()
	}
	return errJournal(r.Journal.At(ctx, sel.Changes.Kind, at, sel.Span, begin, func(e *pb.Event, p journal.Position) bool {
		r.label(e)
		return !sel.Matches(e) || !r.selected(e) || do(e, p)
	}))
}

// selected reports whether a conflict between clusters is selected. All other items are.
func (r *Records) selected(e *pb.Event) bool {
	return len(r.Only) == 0 || slices.ContainsFunc(e.GetConflict().GetClusters(), func(name string) bool { return slices.Contains(r.Only, name) })
}

// label writes the name of the cluster into an event and its item.
func (r *Records) label(e *pb.Event) {
	if r.Name == "" {
		return // a conflict between clusters has the names
	}
	e.Cluster = r.Name
	owners := append(slices.Clone(e.GetConflict().GetOwners()), e.GetFinding().GetOwners()...)
	switch {
	case e.GetOwner() != nil:
		owners = append(owners, e.Owner)
	case e.GetConflict() != nil:
		e.Conflict.Clusters = []string{r.Name}
	case e.GetFinding() != nil:
		e.Finding.Cluster = r.Name
	case e.GetNode() != nil:
		e.Node.Cluster = r.Name
	}
	for _, o := range owners {
		o.Cluster = r.Name
	}
}

// gap returns a gap with the name of the cluster.
func (r *Records) gap(g *pb.Gap) *pb.Gap {
	if g == nil || r.Name == "" {
		return g
	}
	return &pb.Gap{From: g.GetFrom(), Until: g.GetUntil(), Reason: g.GetReason(), Lost: g.GetLost(), Cluster: r.Name}
}

// GapAt returns the gap that contains a time; nil if there is none.
func (r *Records) GapAt(at time.Time) (*pb.Gap, error) {
	g, err := r.Journal.GapAt(at)
	return r.gap(g), errJournal(err)
}

// CoverageAt adds the nodes that were known at a time to a coverage, with at most a number of names of each kind.
func (r *Records) CoverageAt(ctx context.Context, at time.Time, out *pb.Coverage, most int) error {
	note := func(names *[]string, n *pb.Node) {
		switch {
		case len(*names) >= most:
		case r.Name != "":
			*names = append(*names, r.Name+"/"+n.GetName())
		default:
			*names = append(*names, n.GetName())
		}
	}
	return errJournal(r.Journal.At(ctx, pb.Event_NODE, at, ipam.Range{}, journal.Position{}, func(e *pb.Event, _ journal.Position) bool {
		n := e.GetNode()
		if out.Expected++; n.GetState() == pb.Node_LIVE {
			out.Heard++
		} else {
			note(&out.SilentNodes, n)
		}
		if n.GetIncomplete() {
			out.LeftOut++
			note(&out.NodesLeftOut, n)
		}
		return true
	}))
}

// errJournal returns the error of a question that a journal could not answer.
func errJournal(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return status.FromContextError(err).Err()
	case errors.Is(err, journal.ErrDamaged):
		return status.Errorf(codes.DataLoss, "%s; it is set aside, and a new one begins: the logs of the aggregator say where it is", err)
	}
	return status.Errorf(codes.Unavailable, "cannot read the journal: %s", err)
}

// reachBackTo returns the time from which on all records are complete; nil if there are none.
func reachBackTo(all []*Records) (at *timestamppb.Timestamp) {
	for _, r := range all {
		if oldest := r.Journal.Oldest(); !oldest.IsZero() && (at == nil || oldest.After(at.AsTime())) {
			at = timestamppb.New(oldest)
		}
	}
	return at
}

// A recordedPlace is where a page of recorded items ends: after an item of a cluster, or before all of its items
// if the position is empty.
type recordedPlace struct{ Cluster, Position string }

// FillRecorded fills a page with the items that are selected at a time, or now if it is zero, ordered by cluster.
func FillRecorded[T proto.Message](ctx context.Context, p *Page[T], all []*Records, token string, sel Selection, at time.Time, item func(*pb.Event) T) error {
	from, err := ParseToken[recordedPlace](token)
	position, invalid := journal.ParsePosition(from.Position)
	if err != nil || invalid != nil {
		return errPageToken
	}
	for _, r := range all {
		if r.Name < from.Cluster {
			continue
		}
		last := position
		if r.Name > from.Cluster {
			last = journal.Position{}
		}
		if err := r.Items(ctx, sel, at, last, func(e *pb.Event, position journal.Position) bool {
			if p.full() {
				next := recordedPlace{Cluster: r.Name}
				if last != (journal.Position{}) {
					next.Position = last.Token()
				}
				p.Next = Token(next)
				return false
			}
			p.add(item(e))
			last = position
			return true
		}); err != nil || p.Next != "" {
			return err
		}
	}
	return nil
}

// ExplainRecorded adds to an explanation what is recorded of an address at a time, or now if it is zero.
func ExplainRecorded(ctx context.Context, out *pb.ExplainResponse, all []*Records, addr netip.Addr, at time.Time) error {
	f := filter{addr: addr}
	conflicts := conflictFilter{filter: f}
	for _, r := range all {
		for _, sel := range []Selection{selectOwners(&f), selectConflicts(&conflicts, &conflicts), selectFindings(&findingFilter{filter: f})} {
			if err := r.Items(ctx, sel, at, journal.Position{}, func(e *pb.Event, _ journal.Position) bool {
				switch {
				case e.GetOwner() != nil:
					out.Owners = append(out.Owners, e.GetOwner())
				case e.GetConflict() != nil:
					out.Conflicts = append(out.Conflicts, e.GetConflict())
				case e.GetFinding() != nil:
					out.Findings = append(out.Findings, e.GetFinding())
				}
				return true
			}); err != nil {
				return err
			}
		}
	}
	for _, o := range out.GetOwners() {
		if o.GetScope().GetKind() > out.GetScope().GetKind() {
			out.Scope = o.GetScope()
		}
	}
	over := func(c *pb.Conflict) int {
		if c.GetState() == pb.Conflict_RESOLVED {
			return 1
		}
		return 0
	}
	slices.SortStableFunc(out.Conflicts, func(a, b *pb.Conflict) int { // active ones first, then the latest
		return cmp.Or(cmp.Compare(over(a), over(b)), b.GetResolvedAt().AsTime().Compare(a.GetResolvedAt().AsTime()))
	})
	return nil
}

// mergedAtOnce is the number of events that are read at a time for a page, of all clusters together, and
// leastAtOnce that of one cluster.
const mergedAtOnce, leastAtOnce = 1024, 128

// A moment is where a page of events ends: after the event of a cluster at a time. Events are ordered by
// time, and by cluster if their times are equal.
type moment struct {
	At      time.Time
	Cluster string
}

// A reading reads the events of one cluster in order.
type reading struct {
	*Records
	query  journal.Query
	atOnce int
	some   []*pb.Event
	ended  bool
}

// next returns the next event; nil if there is none. The event stays the first of some until it is taken.
func (r *reading) next(ctx context.Context) (*pb.Event, error) {
	if len(r.some) == 0 && !r.ended {
		r.ended = true
		if err := r.Journal.Events(ctx, &r.query, func(e *pb.Event) bool {
			if r.query.After = e.GetTime().AsTime(); r.selected(e) {
				r.some = append(r.some, e)
			}
			r.ended = len(r.some) < r.atOnce
			return r.ended
		}); err != nil {
			return nil, errJournal(err)
		}
	}
	if len(r.some) == 0 {
		return nil, nil
	}
	return r.some[0], nil
}

// RecordedEvents returns a page of the events that are recorded in a period, in order of their times, with the gaps of the
// period on the first page.
func RecordedEvents(ctx context.Context, all []*Records, q *pb.ListEventsRequest, isNode func(string) bool, now time.Time) (*pb.ListEventsResponse, error) {
	query, err := SelectEvents(q, isNode)
	if err != nil {
		return nil, err
	}
	if query.Until, err = optionalTime("until", q.GetUntil()); err != nil {
		return nil, err
	}
	if q.GetSince() != nil && q.GetUntil() != nil && !query.Since.Before(query.Until) {
		return nil, status.Error(codes.InvalidArgument, "since is not before until: exchange them, or omit one of them")
	}
	from, err := ParseToken[moment](q.GetPageToken())
	if err != nil {
		return nil, err
	}
	out := &pb.ListEventsResponse{ReachesBackTo: reachBackTo(all)}
	var readings []*reading
	for _, r := range all {
		one := &reading{Records: r, query: query, atOnce: max(mergedAtOnce/len(all), leastAtOnce)}
		readings = append(readings, one)
		if !from.At.IsZero() {
			if one.query.After = from.At; r.Name > from.Cluster {
				one.query.After = from.At.Add(-time.Microsecond)
			}
			continue
		}
		until := query.Until
		if until.IsZero() {
			until = now
		}
		gaps, err := r.Journal.Gaps(query.Since, until)
		if err != nil {
			return nil, errJournal(err)
		}
		for _, g := range gaps {
			out.Gaps = append(out.Gaps, r.gap(g))
		}
	}
	slices.SortStableFunc(out.Gaps, func(a, b *pb.Gap) int { return a.GetFrom().AsTime().Compare(b.GetFrom().AsTime()) })
	p := NewPage[*pb.Event](q.GetPageSize())
	for {
		var first *reading // with the earliest event
		var at time.Time
		for _, r := range readings {
			e, err := r.next(ctx)
			if err != nil {
				return nil, err
			}
			if t := e.GetTime().AsTime(); e != nil && (first == nil || cmp.Or(t.Compare(at), strings.Compare(r.Name, first.Name)) < 0) {
				first, at = r, t
			}
		}
		if first == nil {
			break
		}
		if p.full() {
			last := p.Items[len(p.Items)-1]
			out.NextPageToken = Token(moment{last.GetTime().AsTime(), last.GetCluster()})
			break
		}
		e := first.some[0]
		first.some = first.some[1:]
		first.label(e)
		p.add(e)
	}
	out.Events = p.Items
	return out, nil
}
