package api

import (
	"cmp"
	"context"
	"net/netip"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ipwitness/ipwitness/aggregator/facts"
	"github.com/ipwitness/ipwitness/aggregator/index"
	"github.com/ipwitness/ipwitness/aggregator/journal"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

const (
	// maxQuestions is the number of questions in a request.
	maxQuestions = 10_000
	// resolvePath is the path of questions, and maxQuestionsBody the size of their body.
	resolvePath, maxQuestionsBody = "/v1/owners:resolve", 4 << 20
	// maxCandidates is the number of candidates in an answer, and allCandidates that in all answers: they
	// take about as much as 5,000 owners, which are not limited.
	maxCandidates, allCandidates = 16, 5000
)

// A question asks which owner had an address at a time.
type question struct {
	addr netip.Addr
	// at is the time; zero for now.
	at            time.Time
	node, network string
	// err is set if the question has an error.
	err error
	// owners are those that were found.
	owners []found
	// reason says why the owners, or that there are none, prove nothing.
	reason pb.Resolution_Reason
}

// found is an owner that was found.
type found struct {
	*pb.Owner
	cluster string
	// live is set if the owner was observed at the time.
	live bool
}

// Questions are those of a request for owners.
type Questions []question

// NewQuestions returns the questions of a request.
func NewQuestions(q *pb.ResolveOwnersRequest, now time.Time) (Questions, error) {
	if n := len(q.GetQuestions()); n > maxQuestions {
		return nil, status.Errorf(codes.InvalidArgument, "%d questions are too many: ask at most %d in one request", n, maxQuestions)
	}
	all := make(Questions, len(q.GetQuestions()))
	for i, asked := range q.GetQuestions() {
		one := &all[i]
		one.node, one.network = asked.GetNode(), asked.GetNetwork()
		var invalid error
		one.addr, one.err = ParseAddress(asked.GetAddress())
		one.at, invalid = optionalTime("time", asked.GetTime())
		one.err = cmp.Or(one.err, invalid)
		if one.at.After(now.Add(clockError)) {
			one.reason = pb.Resolution_FUTURE
		}
	}
	return all, nil
}

// asked returns the questions that a source has to answer: those about now, or those about a time.
func (all Questions) asked(timed bool) (some []*question) {
	for i := range all {
		if q := &all[i]; q.err == nil && q.reason != pb.Resolution_FUTURE && timed != q.at.IsZero() {
			some = append(some, q)
		}
	}
	return some
}

// ResolveOwners says which owners had addresses at times.
func (s *Service) ResolveOwners(ctx context.Context, q *pb.ResolveOwnersRequest) (*pb.ResolveOwnersResponse, error) {
	all, err := NewQuestions(q, s.now())
	if err = cmp.Or(s.own(q), err); err != nil {
		return nil, err
	}
	s.present(all.asked(false))
	past := all.asked(true)
	if s.Journal == nil {
		for _, one := range past {
			one.err = errNoJournal
		}
		past = nil
	}
	if err := s.records()[0].resolve(ctx, past, true); err != nil {
		return nil, err
	}
	return all.Answer(), nil
}

// present finds the owners that addresses have now.
func (s *Service) present(all []*question) {
	coverage, reader := s.Coverage.Current(), s.Shards.Reader()
	awaits := slices.ContainsFunc(coverage.GetAwaited(), func(a *pb.Awaited) bool { return a.GetWhat() == pb.Awaited_REPORT })
	for some := range slices.Chunk(all, lookedAt) {
		s.Facts.RLock()
		for _, q := range some {
			owners := reader.OwnersOf(index.AddressOf(q.addr))
			for i := range owners {
				o := s.Convert.Owner(q.addr, &owners[i], owners)
				q.owners = append(q.owners, found{o, "", o.GetState() == pb.Owner_LIVE})
			}
			connected := q.node == "" || slices.ContainsFunc(s.Facts.Called(q.node), func(n *facts.Node) bool { return !n.Rec.Unheard })
			if coverage.GetIncomplete() || awaits || !connected {
				q.reason = pb.Resolution_DISCONNECTED
			}
		}
		s.Facts.RUnlock()
	}
}

// Resolve finds the owners that addresses had in one cluster; with the time zero, the last ones. current is unset if
// changes after the last record may be missing.
func (all Questions) Resolve(ctx context.Context, r *Records, current bool) error {
	return cmp.Or(r.resolve(ctx, all.asked(true), current), r.resolve(ctx, all.asked(false), current))
}

func (r *Records) resolve(ctx context.Context, all []*question, current bool) error {
	if len(all) == 0 {
		return nil
	}
	select {
	case <-r.Journal.Opened():
	case <-ctx.Done():
		return errJournal(ctx.Err())
	}
	oldest := r.Journal.Oldest()
	until, _, _ := r.Journal.Written()
	moments := make([]journal.Moment, 0, len(all))
	asked := make([]*question, 0, len(all))
	var first, last time.Time
	for _, q := range all {
		at := q.at
		if at.IsZero() {
			at = until
		}
		if at.Before(oldest) && oldest.Sub(at) <= journal.PresentBefore { // as of an item that was present when the journal began
			at = oldest
		}
		if oldest.IsZero() || at.Before(oldest) {
			q.reason = cmp.Or(q.reason, pb.Resolution_BEFORE_JOURNAL)
			continue
		}
		moments, asked = append(moments, journal.Moment{Address: q.addr, At: at}), append(asked, q)
		if first.IsZero() || at.Before(first) {
			first = at
		}
		if at.After(last) {
			last = at
		}
	}
	if len(asked) == 0 {
		return nil
	}
	gaps, err := r.Journal.Gaps(first, last)
	if err != nil {
		return errJournal(err)
	}
	seen, err := r.attendance(ctx, first, last)
	if err != nil {
		return err
	}
	return errJournal(r.Journal.Owners(ctx, moments, func(i int, owners []*pb.Owner) {
		q, at := asked[i], moments[i].At
		gap := slices.ContainsFunc(gaps, func(g *pb.Gap) bool { return within(g, at) })
		switch {
		case gap:
			q.reason = pb.Resolution_GAP
		case !seen.complete(at, q.node), !current && (q.at.IsZero() || at.After(until)):
			q.reason = cmp.Or(q.reason, pb.Resolution_DISCONNECTED)
		}
		for _, o := range owners {
			q.owners = append(q.owners, found{o, r.Name, o.GetState() == pb.Owner_LIVE && !gap})
		}
	}))
}

// within reports whether changes before a time may be missing because of a gap.
func within(g *pb.Gap, at time.Time) bool {
	return (g.GetFrom() == nil || g.GetFrom().AsTime().Before(at)) && (g.GetUntil() == nil || g.GetUntil().AsTime().After(at))
}

// A step is how many nodes are seen completely from a time on, and how many are not.
type step struct {
	at           time.Time
	seen, unseen int
}

// attendance has the steps of all nodes, and those of each node by its name.
type attendance struct {
	all   []step
	nodes map[string][]step
}

// stepAt returns the last step at a time.
func stepAt(steps []step, at time.Time) step {
	n, _ := slices.BinarySearchFunc(steps, at, func(s step, at time.Time) int {
		if s.at.After(at) {
			return 1
		}
		return -1
	})
	if n == 0 {
		return step{}
	}
	return steps[n-1]
}

// complete reports whether all nodes were seen at a time, and the named one was one of them.
func (a attendance) complete(at time.Time, node string) bool {
	all := stepAt(a.all, at)
	return all.seen > 0 && all.unseen == 0 && (node == "" || stepAt(a.nodes[node], at).seen > 0)
}

// attendance returns the nodes that were connected and completely seen in a period.
func (r *Records) attendance(ctx context.Context, first, last time.Time) (a attendance, err error) {
	a.nodes = make(map[string][]step)
	err = errJournal(r.Journal.Nodes(ctx, first, last, func(at time.Time, n *pb.Node, gone bool) {
		steps, now := a.nodes[n.GetName()], step{at: at}
		switch {
		case gone:
		case n.GetState() == pb.Node_LIVE && !n.GetIncomplete():
			now.seen = 1
		default:
			now.unseen = 1
		}
		before := stepAt(steps, at)
		if seen, unseen := now.seen-before.seen, now.unseen-before.unseen; seen != 0 || unseen != 0 {
			a.nodes[n.GetName()], a.all = append(steps, now), append(a.all, step{at, seen, unseen})
		}
	}))
	slices.SortFunc(a.all, func(a, b step) int { return a.at.Compare(b.at) })
	for i := range a.all[min(1, len(a.all)):] {
		a.all[i+1].seen += a.all[i].seen
		a.all[i+1].unseen += a.all[i].unseen
	}
	return a, err
}

// Answer returns the answers.
func (all Questions) Answer() *pb.ResolveOwnersResponse {
	out := &pb.ResolveOwnersResponse{Answers: make([]*pb.Resolution, len(all))}
	room := allCandidates
	for i := range all {
		a := all[i].answer()
		n := min(len(a.Candidates), maxCandidates, room)
		a.CandidatesLeftOut, a.Candidates = uint32(len(a.Candidates)-n), a.Candidates[:n]
		room -= n
		out.Answers[i] = a
	}
	return out
}

// Doubt says of all questions that other sources may have owners.
func (all Questions) Doubt() {
	for i := range all {
		all[i].reason = cmp.Or(all[i].reason, pb.Resolution_DISCONNECTED)
	}
}

// answer decides which of the owners is meant.
func (q *question) answer() *pb.Resolution {
	if q.err != nil {
		return &pb.Resolution{Error: status.Convert(q.err).Message()}
	}
	owners := q.owners
	if slices.ContainsFunc(owners, func(o found) bool { return o.live && o.GetExcluded() == "" }) {
		owners = only(owners, func(o found) bool { return o.GetExcluded() == "" }) // the others are not compared with it
	} else if slices.ContainsFunc(owners, found.isLive) {
		owners = only(owners, func(o found) bool { return !o.stale() })
	}
	meant := only(owners, q.fits)
	contradicted := len(meant) == 0
	if !contradicted {
		owners = prefer(meant, func(o found) bool { return o.GetNode() == q.node })
		owners = prefer(owners, func(o found) bool {
			return o.GetScope().GetKind() == pb.Scope_NETWORK && o.GetScope().GetName() == q.network
		})
	}
	out := &pb.Resolution{}
	for _, o := range owners {
		one := o.resolved()
		same := func(other *pb.ResolvedOwner) bool { // a workload may have the address on two interfaces
			return other.GetName() != "" && other.GetName() == one.GetName() && other.GetKind() == one.GetKind() && other.GetNamespace() == one.GetNamespace() &&
				other.GetUid() == one.GetUid() && other.GetNode() == one.GetNode() && other.GetCluster() == one.GetCluster()
		}
		if !slices.ContainsFunc(out.Candidates, same) {
			out.Candidates = append(out.Candidates, one)
		}
	}
	switch {
	case len(owners) == 0 && q.reason == 0:
		out.Certainty = pb.Resolution_KNOWN
	case !slices.ContainsFunc(owners, found.isLive):
		out.Certainty, out.Reason = pb.Resolution_NOT_OBSERVED, cmp.Or(q.reason, pb.Resolution_DISCONNECTED)
		if out.Reason == pb.Resolution_DISCONNECTED && len(owners) > 0 && len(only(owners, found.stale)) == len(owners) {
			out.Reason = pb.Resolution_STALE
		}
	case len(out.Candidates) == 1 && !contradicted:
		out.Certainty, out.Owner, out.Candidates = pb.Resolution_KNOWN, out.Candidates[0], nil
	default:
		out.Certainty = pb.Resolution_AMBIGUOUS
	}
	return out
}

// fits reports whether an owner may be meant: an address in a network is not that of an owner in another one, and an
// address on a node is not that of a container that only another node reaches.
func (q *question) fits(o found) bool {
	network := o.GetScope().GetKind() == pb.Scope_NETWORK
	everywhere := network || o.GetWorkload().GetKind() == pb.Workload_HOST || o.GetWorkload().GetKind() == pb.Workload_EXTERNAL
	return (q.network == "" || !network || o.GetScope().GetName() == q.network) && (q.node == "" || everywhere || o.GetNode() == q.node)
}

func (o found) isLive() bool { return o.live }

func (o found) stale() bool { return o.GetState() == pb.Owner_STALE }

// resolved returns what identifies an owner.
func (o found) resolved() *pb.ResolvedOwner {
	w := o.GetWorkload()
	out := &pb.ResolvedOwner{
		Kind: w.GetKind(), Namespace: w.GetNamespace(), Name: w.GetName(), Uid: w.GetUid(), Node: o.GetNode(), Mac: o.GetMac(), Scope: o.GetScope(), Cluster: o.cluster,
	}
	switch w.GetKind() {
	case pb.Workload_POD, pb.Workload_EXTERNAL:
	case pb.Workload_HOST:
		out.Name = cmp.Or(out.Name, o.GetNode())
	default:
		out.Name = cmp.Or(out.Name, w.GetContainerId(), w.GetProcess(), o.GetNetns())
	}
	return out
}

// only returns the owners for which keep reports true.
func only(owners []found, keep func(found) bool) (kept []found) {
	for _, o := range owners {
		if keep(o) {
			kept = append(kept, o)
		}
	}
	return kept
}

// prefer returns the owners that are better, or all if none is.
func prefer(owners []found, better func(found) bool) []found {
	if some := only(owners, better); len(some) > 0 {
		return some
	}
	return owners
}
