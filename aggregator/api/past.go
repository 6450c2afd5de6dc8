package api

import (
	"context"
	"math"
	"net/netip"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ipwitness/ipwitness/aggregator/explain"
	"github.com/ipwitness/ipwitness/aggregator/incident"
	"github.com/ipwitness/ipwitness/aggregator/journal"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// ListEvents lists the changes that the journal has recorded.
func (s *Service) ListEvents(ctx context.Context, q *pb.ListEventsRequest) (*pb.ListEventsResponse, error) {
	if err := s.own(q); err != nil {
		return nil, err
	}
	if s.Journal == nil {
		return nil, errNoJournal
	}
	coverage := s.Coverage.Current()
	out, err := RecordedEvents(ctx, s.records(), q, s.isNode, s.now())
	if err != nil {
		return nil, err
	}
	out.Coverage = coverage
	return out, nil
}

// SelectEvents returns the query of a request for events, but not its end.
// isNode reports whether a name is that of a node: its events are found without reading all.
func SelectEvents(q EventsRequest, isNode func(name string) bool) (query journal.Query, err error) {
	f, err := newFilter(q)
	if err != nil {
		return query, err
	}
	if f.word != "" && f.node == "" && isNode(f.word) {
		f.node, f.word = f.word, ""
	}
	kind := q.GetKind()
	if _, known := pb.Event_Kind_name[int32(kind)]; !known {
		return query, errEventKind
	}
	query = f.query(kind)
	query.Match = f.recorded
	query.Since, err = optionalTime("since", q.GetSince())
	return query, err
}

var errNoJournal = status.Error(codes.FailedPrecondition, "the aggregator records no history: start it without --data-dir=off")

// optionalTime returns the time of a parameter; zero if it is unset.
func optionalTime(name string, t *timestamppb.Timestamp) (time.Time, error) {
	if t == nil {
		return time.Time{}, nil
	}
	if !t.IsValid() {
		return time.Time{}, status.Errorf(codes.InvalidArgument, "%s is not a time: give one like 2026-01-02T15:04:05Z", name)
	}
	return t.AsTime(), nil
}

// query returns the query for the events that can match.
func (f *filter) query(kind pb.Event_Kind) journal.Query {
	q := journal.Query{Kind: kind, Span: f.wanted(), Node: f.node, Namespace: f.namespace, Pod: f.pod}
	if f.mac != "" {
		q.MAC = f.mac.String()
	}
	return q
}

// wanted returns the addresses of a filter, or an empty range for all.
func (f *filter) wanted() ipam.Range {
	if !f.somewhere() {
		return ipam.Range{}
	}
	return f.span()
}

// message reports whether a recorded owner matches, apart from its address.
func (f *filter) message(o *pb.Owner) bool {
	w := o.GetWorkload()
	return (f.node == "" || f.node == o.GetNode()) && (f.state == 0 || f.state == verdict.State(o.GetState())) &&
		f.named(w.GetNamespace(), w.GetName()) && f.meansRecorded(o) && (f.mac == "" || f.mac.String() == o.GetMac()) && f.scope.recorded(o.GetScope())
}

// recorded reports whether a recorded scope is selected.
func (s scopes) recorded(scope *pb.Scope) bool {
	return s.has(verdict.ScopeKind(scope.GetKind()), scope.GetName())
}

// recordedConflict reports whether a recorded conflict matches, apart from its address.
func (f *conflictFilter) recorded(c *pb.Conflict) bool {
	owners := f.meaning(c.GetId(), incident.OfMember(c))
	return f.kind(verdict.Phase(c.GetState()), c.GetCause()) && f.within.recorded(c.GetScope()) && (f.incident == "" || f.incident == incident.OfMember(c)) && (!f.active || c.GetState() != pb.Conflict_RESOLVED) &&
		(!owners.anyOwner() || slices.ContainsFunc(c.GetOwners(), owners.message))
}

// recorded reports whether a recorded finding matches.
func (f *findingFilter) recorded(one *pb.Finding) bool {
	matches := func(text string) bool {
		a, err := netip.ParseAddr(text)
		return err == nil && f.address(a)
	}
	switch {
	case f.kind != "" && f.kind != one.GetKind(), f.incident != "" && f.incident != incident.OfMember(one),
		f.somewhere() && !matches(one.GetAddress()) && !slices.ContainsFunc(one.GetAddresses(), matches),
		f.node != "" && !slices.Contains(one.GetNodes(), f.node),
		f.mac != "" && !slices.ContainsFunc(one.GetOwners(), (&filter{mac: f.mac}).message):
		return false
	}
	workload := filter{namespace: f.namespace, pod: f.pod, word: f.meaning(one.GetId(), incident.OfMember(one)).word}
	if slices.Contains(one.GetNodes(), workload.word) || one.GetPool() != nil && workload.partOf(one.GetPool().GetName()) {
		workload.word = ""
	}
	return !workload.anyOwner() || slices.ContainsFunc(one.GetOwners(), workload.message) ||
		slices.ContainsFunc(one.GetAllocations(), func(al *pb.Allocation) bool { return workload.allocated(al.GetNamespace(), al.GetPod()) })
}

// recorded reports whether an event matches.
func (f *filter) recorded(e *pb.Event) bool {
	switch e.GetKind() {
	case pb.Event_OWNER:
		return f.message(e.GetOwner())
	case pb.Event_CONFLICT:
		return (&conflictFilter{filter: *f}).recorded(e.GetConflict())
	case pb.Event_FINDING:
		return (&findingFilter{filter: *f}).recorded(e.GetFinding())
	case pb.Event_NODE:
		return !f.somewhere() && f.namespace+f.pod+string(f.mac) == "" && (f.node == "" || f.node == e.GetNode().GetName()) &&
			(f.word == "" || f.partOf(e.GetNode().GetName()))
	}
	return false
}

// clockError is how far the clock of a client may be ahead.
const clockError = 5 * time.Second

// Moment returns the time of a request about the past; zero for now.
func Moment(t *timestamppb.Timestamp, now time.Time) (time.Time, error) {
	at, err := optionalTime("at", t)
	switch {
	case err != nil || !at.After(now):
		return at, err
	case at.Before(now.Add(clockError)):
		return now, nil
	}
	return at, status.Errorf(codes.InvalidArgument, "at is %s, which is in the future: the current time is %s",
		at.UTC().Format(time.RFC3339), now.UTC().Format(time.RFC3339))
}

// moment returns the time of a request about the past, of which the journal has records.
func (s *Service) moment(t *timestamppb.Timestamp) (at time.Time, err error) {
	if s.Journal == nil {
		return at, errNoJournal
	}
	if at, err = Moment(t, s.now()); err != nil {
		return at, err
	}
	oldest := s.Journal.Oldest()
	if at.Before(oldest) && oldest.Sub(at) <= journal.PresentBefore { // the time of an item that was present when the journal began
		at = oldest
	}
	switch {
	case oldest.IsZero():
		return at, status.Error(codes.OutOfRange, "the journal is empty: nothing was recorded yet")
	case at.Before(oldest):
		return at, status.Errorf(codes.OutOfRange, "at is %s, before the journal begins (%s)",
			at.UTC().Format(time.RFC3339), oldest.UTC().Format(time.RFC3339))
	}
	return at, nil
}

// coverageAt returns the coverage at a time, which are the nodes that were known, and those that were connected, and the
// gap in the journal that contains the time.
func (s *Service) coverageAt(ctx context.Context, at time.Time) (*pb.Coverage, *pb.Gap, error) {
	r, out := s.records()[0], &pb.Coverage{}
	gap, err := r.GapAt(at)
	if err != nil {
		return nil, nil, err
	}
	if err := r.CoverageAt(ctx, at, out, math.MaxInt); err != nil {
		return nil, nil, err
	}
	slices.Sort(out.SilentNodes)
	slices.Sort(out.NodesLeftOut)
	out.Incomplete = out.Heard == 0 || out.Heard < out.Expected || out.LeftOut > 0 || gap != nil
	return out, gap, nil
}

// explainAt explains the state of an address at a time, as far as it is recorded.
func (s *Service) explainAt(ctx context.Context, q *pb.ExplainRequest, addr netip.Addr) (*pb.ExplainResponse, error) {
	if q.GetCase() {
		return nil, status.Error(codes.InvalidArgument, "case and at cannot be combined, because cases are not recorded: omit one of them")
	}
	out := &pb.ExplainResponse{Address: addr.String()}
	at, err := s.moment(q.GetAt())
	if err != nil {
		return nil, err
	}
	if out.Coverage, out.Gap, err = s.coverageAt(ctx, at); err != nil {
		return nil, err
	}
	if err := ExplainRecorded(ctx, out, s.records(), addr, at); err != nil {
		return nil, err
	}
	compared := 0
	for _, o := range out.GetOwners() {
		if o.GetExcluded() == "" {
			compared++
		}
	}
	inConflict := len(out.GetConflicts()) > 0 && out.GetConflicts()[0].GetState() != pb.Conflict_RESOLVED
	out.Summary = explain.Past(addr, compared, inConflict)
	return out, nil
}
