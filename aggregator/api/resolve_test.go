package api

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ipwitness/ipwitness/aggregator/journal"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// past is a journal in memory with a clock of its own.
type past struct {
	testing.TB
	*journal.Journal
	since atomic.Int64 // the time since the start
}

// now returns the time of the clock.
func (p *past) now() time.Time {
	return time.Date(2026, 3, 14, 12, 0, 0, 0, time.UTC).Add(time.Duration(p.since.Load()))
}

func newPast(t testing.TB, owners ...*pb.Owner) *past {
	p := &past{TB: t}
	p.Journal = journal.New(journal.Config{Retention: journal.DefaultRetention, Size: journal.DefaultSize, Clock: p.now, Log: slog.New(slog.DiscardHandler)})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { p.Run(ctx); close(done) }()
	t.Cleanup(func() { cancel(); <-done })
	<-p.Opened()
	p.state([]string{"n1", "n2"}, owners...)
	return p
}

func (p *past) must(err error) {
	p.Helper()
	if err != nil {
		p.Fatal(err)
	}
}

// state records the present state.
func (p *past) state(nodes []string, owners ...*pb.Owner) {
	p.Helper()
	for _, kind := range []pb.Event_Kind{pb.Event_OWNER, pb.Event_CONFLICT, pb.Event_FINDING, pb.Event_NODE} {
		feed := p.Feed(kind)
		p.must(feed.Begin())
		switch kind {
		case pb.Event_OWNER:
			for _, o := range owners {
				p.must(feed.Present(p.change(pb.Watch_ADDED, o)))
			}
		case pb.Event_NODE:
			for _, name := range nodes {
				p.must(feed.Present(&journal.Change{At: p.now(), Type: pb.Watch_ADDED, Node: &pb.Node{Name: name, State: pb.Node_LIVE}}))
			}
		default:
		}
		p.must(feed.Complete())
	}
	p.must(p.Feed(pb.Event_OWNER).Flush())
	p.since.Add(int64(time.Minute))
}

func (p *past) change(typ pb.Watch_Type, o *pb.Owner) *journal.Change {
	return &journal.Change{At: p.now(), Type: typ, ID: o.GetNode() + o.GetWorkload().GetName() + o.GetInterface() + o.GetMac(), Owner: o}
}

// owner records a change of an owner, and returns a time after it. A minute passes.
func (p *past) owner(typ pb.Watch_Type, o *pb.Owner) time.Time {
	p.Helper()
	p.must(p.Feed(pb.Event_OWNER).Changed(p.change(typ, o)))
	return p.passed()
}

// node records a change of a node, and returns a time after it.
func (p *past) node(typ pb.Watch_Type, n *pb.Node) time.Time {
	p.Helper()
	p.must(p.Feed(pb.Event_NODE).Changed(&journal.Change{At: p.now(), Type: typ, Node: n}))
	return p.passed()
}

func (p *past) passed() time.Time {
	p.Helper()
	p.must(p.Feed(pb.Event_OWNER).Flush())
	p.since.Add(int64(time.Minute))
	return p.now().Add(-time.Second)
}

// resolve returns the answers to questions in one line each.
func (p *past) resolve(asked ...*pb.ResolveOwnersRequest_Question) (lines []string) {
	p.Helper()
	all, err := NewQuestions(&pb.ResolveOwnersRequest{Questions: asked}, p.now())
	p.must(err)
	p.must(all.Resolve(p.Context(), &Records{Journal: p.Journal}, true))
	for _, a := range all.Answer().GetAnswers() {
		lines = append(lines, line(a))
	}
	return lines
}

func line(a *pb.Resolution) string {
	if a.GetError() != "" {
		return "error: " + a.GetError()
	}
	words := []string{a.GetCertainty().String()}
	if a.GetReason() != 0 {
		words = append(words, a.GetReason().String())
	}
	if o := a.GetOwner(); o != nil {
		words = append(words, o.GetName()+"@"+o.GetNode())
	}
	for _, o := range a.GetCandidates() {
		words = append(words, "?"+o.GetName()+"@"+o.GetNode())
	}
	if n := a.GetCandidatesLeftOut(); n > 0 {
		words = append(words, fmt.Sprint("+", n))
	}
	return strings.Join(words, " ")
}

func (p *past) want(what, want string, asked *pb.ResolveOwnersRequest_Question) {
	p.Helper()
	if got := p.resolve(asked)[0]; got != want {
		p.Errorf("%s: got %q, want %q", what, got, want)
	}
}

func about(address string, at time.Time) *pb.ResolveOwnersRequest_Question {
	return &pb.ResolveOwnersRequest_Question{Address: address, Time: timestamppb.New(at)}
}

func from(q *pb.ResolveOwnersRequest_Question, node, network string) *pb.ResolveOwnersRequest_Question {
	q.Node, q.Network = node, network
	return q
}

// holder returns a pod in a network, or an owner in the scope of its node if the network is empty.
func holder(address, name, node, network string) *pb.Owner {
	o := &pb.Owner{
		Address: address, Node: node, Interface: "eth0", State: pb.Owner_LIVE, Scope: &pb.Scope{Kind: pb.Scope_NODE, Name: node},
		Workload: &pb.Workload{Kind: pb.Workload_CONTAINER, Name: name},
	}
	if network != "" {
		o.Scope = &pb.Scope{Kind: pb.Scope_NETWORK, Name: network}
		o.Workload = &pb.Workload{Kind: pb.Workload_POD, Namespace: "shop", Name: name}
	}
	return o
}

const somewhere = "10.0.0.1"

func TestOwnersAreThoseOfTheirTime(t *testing.T) {
	a, b := holder(somewhere, "a", "n1", "pods"), holder(somewhere, "b", "n2", "pods")
	p := newPast(t)
	empty := p.passed()
	first := p.owner(pb.Watch_ADDED, a)
	none := p.owner(pb.Watch_REMOVED, a)
	second := p.owner(pb.Watch_ADDED, b)
	p.want("before", "KNOWN", about(somewhere, empty))
	p.want("the first", "KNOWN a@n1", about(somewhere, first))
	p.want("between", "KNOWN", about(somewhere, none))
	p.want("the second", "KNOWN b@n2", about(somewhere, second))
	p.want("no time", "KNOWN b@n2", &pb.ResolveOwnersRequest_Question{Address: somewhere})
	p.want("the clock of the client is ahead", "KNOWN b@n2", about(somewhere, p.now().Add(clockError/2)))
	p.want("another address", "KNOWN", about("10.0.0.2", second))
	// In any order, with equal ones.
	got := p.resolve(about(somewhere, second), about(somewhere, none), about(somewhere, first), about(somewhere, second))
	if want := "KNOWN b@n2, KNOWN, KNOWN a@n1, KNOWN b@n2"; strings.Join(got, ", ") != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestWhatWasNotObservedIsNotAnEmptyAnswer(t *testing.T) {
	a := holder(somewhere, "a", "n1", "pods")
	p := newPast(t, a)
	begin := p.Oldest()
	p.want("present when the journal began", "KNOWN a@n1", about(somewhere, begin.Add(-time.Second)))
	p.want("before the journal", "NOT_OBSERVED BEFORE_JOURNAL", about(somewhere, begin.Add(-time.Hour)))
	p.want("the future", "NOT_OBSERVED FUTURE", about(somewhere, p.now().Add(time.Hour)))

	silent := holder(somewhere, "a", "n1", "pods")
	silent.State = pb.Owner_DISCONNECTED
	p.owner(pb.Watch_UPDATED, silent)
	off := p.node(pb.Watch_UPDATED, &pb.Node{Name: "n1", State: pb.Node_DISCONNECTED})
	p.want("an owner on a disconnected node", "NOT_OBSERVED DISCONNECTED ?a@n1", about(somewhere, off))
	p.want("an address that the node could have", "NOT_OBSERVED DISCONNECTED", about("10.0.0.2", off))
	b := holder("10.0.0.3", "b", "n2", "pods")
	at := p.owner(pb.Watch_ADDED, b)
	p.want("an owner on another node", "KNOWN b@n2", about("10.0.0.3", at))
	rival := p.owner(pb.Watch_ADDED, holder(somewhere, "c", "n2", "pods"))
	p.want("another owner meanwhile", "AMBIGUOUS ?a@n1 ?c@n2", about(somewhere, rival))
	partly := p.node(pb.Watch_UPDATED, &pb.Node{Name: "n1", State: pb.Node_LIVE, Incomplete: true})
	p.want("records left out", "NOT_OBSERVED DISCONNECTED", about("10.0.0.2", partly))
	back := p.node(pb.Watch_UPDATED, &pb.Node{Name: "n1", State: pb.Node_LIVE})
	p.want("all nodes", "KNOWN", about("10.0.0.2", back))
	p.want("a node that is not known", "NOT_OBSERVED DISCONNECTED", from(about("10.0.0.2", back), "n3", ""))
	left := p.node(pb.Watch_REMOVED, &pb.Node{Name: "n1"})
	p.want("without a node that is gone", "KNOWN", about("10.0.0.2", left))
	p.want("on a node that is gone", "NOT_OBSERVED DISCONNECTED", from(about("10.0.0.2", left), "n1", ""))
	alone := p.node(pb.Watch_REMOVED, &pb.Node{Name: "n2"})
	p.want("without nodes", "NOT_OBSERVED DISCONNECTED", about("10.0.0.2", alone))
}

func TestAGapIsNotObserved(t *testing.T) {
	a, b := holder(somewhere, "a", "n1", "pods"), holder("10.0.0.2", "b", "n1", "pods")
	p := newPast(t, a)
	known := p.now()
	p.owner(pb.Watch_ADDED, b)
	p.must(p.Feed(pb.Event_OWNER).Lost(1))
	within := p.passed()
	p.want("in a gap that lasts", "NOT_OBSERVED GAP ?a@n1", about(somewhere, within))
	p.state([]string{"n1", "n2"}, a)
	after := p.passed()
	p.want("when the gap begins", "KNOWN b@n1", about("10.0.0.2", known))
	p.want("in the gap", "NOT_OBSERVED GAP ?b@n1", about("10.0.0.2", within))
	p.want("no owner in the gap", "NOT_OBSERVED GAP", about("10.0.0.3", within))
	p.want("after the gap", "KNOWN", about("10.0.0.2", after))
}

func TestNodeAndNetworkNarrowSeveralOwners(t *testing.T) {
	node := holder("10.0.0.9", "n1", "n1", "")
	node.Workload.Kind = pb.Workload_HOST
	second := holder("10.0.0.8", "a", "n1", "pods")
	second.Interface = "eth1"
	stale := holder("10.0.0.7", "old", "n1", "pods")
	stale.State, stale.Excluded = pb.Owner_STALE, "no frame"
	quiet := holder("10.0.0.6", "old", "n1", "pods")
	quiet.State, quiet.Excluded = pb.Owner_STALE, "no frame"
	dummy := holder("10.0.0.7", "dummy", "n2", "")
	dummy.Excluded = "loopback"
	p := newPast(
		t, holder(somewhere, "a", "n1", "pods"), holder(somewhere, "b", "n2", "pods"), holder(somewhere, "c", "n2", "blue"), holder("10.0.0.2", "blue", "n1", "blue"),
		holder("172.17.0.2", "x", "n1", ""), holder("172.17.0.2", "y", "n2", ""), holder("172.17.0.3", "z", "n2", ""), node,
		holder("10.0.0.8", "a", "n1", "pods"), second, holder("10.0.0.7", "new", "n1", "pods"), stale, dummy, quiet,
	)
	for _, one := range []struct{ address, node, network, want string }{
		{somewhere, "", "", "AMBIGUOUS ?a@n1 ?b@n2 ?c@n2"},
		{somewhere, "n1", "", "KNOWN a@n1"},
		{somewhere, "n2", "", "AMBIGUOUS ?b@n2 ?c@n2"},
		{somewhere, "n2", "pods", "KNOWN b@n2"},
		{somewhere, "", "blue", "KNOWN c@n2"},
		{somewhere, "", "red", "AMBIGUOUS ?a@n1 ?b@n2 ?c@n2"},
		{"10.0.0.2", "n2", "", "KNOWN blue@n1"}, // a network is that of all nodes
		{"10.0.0.2", "", "pods", "AMBIGUOUS ?blue@n1"},
		{"172.17.0.2", "", "", "AMBIGUOUS ?x@n1 ?y@n2"},
		{"172.17.0.2", "n1", "", "KNOWN x@n1"},
		{"172.17.0.2", "n1", "pods", "KNOWN x@n1"},
		{"172.17.0.3", "", "", "KNOWN z@n2"},
		{"172.17.0.3", "n1", "", "AMBIGUOUS ?z@n2"}, // n1 does not reach the container
		{"10.0.0.9", "n2", "", "KNOWN n1@n1"},       // but the node
		{"10.0.0.8", "", "", "KNOWN a@n1"},          // on two interfaces
		{"10.0.0.7", "", "", "KNOWN new@n1"},        // the others are not compared with it
		{"10.0.0.6", "", "", "NOT_OBSERVED STALE ?old@n1"},
	} {
		p.want(fmt.Sprint(one), one.want, from(about(one.address, p.now()), one.node, one.network))
	}
}

func TestAnInvalidQuestionHidesNoOther(t *testing.T) {
	p := newPast(t, holder(somewhere, "a", "n1", "pods"))
	never := about(somewhere, p.now())
	never.Time.Nanos = -1
	got := p.resolve(about("nonsense", p.now()), about(somewhere, p.now()), &pb.ResolveOwnersRequest_Question{}, never, about("::ffff:10.0.0.1", p.now()))
	for i, want := range []string{"error: \"nonsense\" is not an address", "KNOWN a@n1", "error: \"\" is not an address", "error: time is not a time", "error: ::ffff:10.0.0.1 is an IPv6 address of its own"} {
		if !strings.HasPrefix(got[i], want) {
			t.Errorf("question %d: got %q, want %q", i, got[i], want)
		}
	}
}

func TestQuestionsAndCandidatesAreLimited(t *testing.T) {
	var owners []*pb.Owner
	for n := range maxCandidates + 1 {
		owners = append(owners, holder("172.17.0.2", fmt.Sprint("c", n), fmt.Sprint("m", n), ""))
	}
	p := newPast(t, owners...)
	asked := make([]*pb.ResolveOwnersRequest_Question, maxQuestions+1)
	for i := range asked {
		asked[i] = about("172.17.0.2", p.now())
	}
	if _, err := NewQuestions(&pb.ResolveOwnersRequest{Questions: asked}, p.now()); status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "10001 questions are too many") {
		t.Errorf("got %v, want INVALID_ARGUMENT", err)
	}
	got := p.resolve(asked[1:]...)
	if first := got[0]; !strings.HasSuffix(first, " +1") || strings.Count(first, "?") != maxCandidates {
		t.Errorf("got %q, want %d candidates and 1 left out", first, maxCandidates)
	}
	if last := got[maxQuestions-1]; last != fmt.Sprint("AMBIGUOUS +", maxCandidates+1) {
		t.Errorf("got %q, want no candidates and %d left out", last, maxCandidates+1)
	}
}

// A fleet has a journal of each cluster.
func TestOwnersOfSeveralClusters(t *testing.T) {
	one, two := newPast(t, holder(somewhere, "a", "n1", "pods"), holder("10.0.0.2", "x", "n1", "pods")), newPast(t, holder(somewhere, "b", "n1", "pods"))
	resolve := func(at time.Time, current bool) []string {
		t.Helper()
		all, err := NewQuestions(&pb.ResolveOwnersRequest{Questions: []*pb.ResolveOwnersRequest_Question{about(somewhere, at), about("10.0.0.2", at), about("10.0.0.3", at)}}, one.now())
		one.must(err)
		one.must(all.Resolve(t.Context(), &Records{Name: "one", Journal: one.Journal}, true))
		one.must(all.Resolve(t.Context(), &Records{Name: "two", Journal: two.Journal}, current))
		var lines []string
		for _, a := range all.Answer().GetAnswers() {
			for _, o := range append(a.GetCandidates(), a.GetOwner()) {
				if o != nil {
					o.Name += "/" + o.GetCluster()
				}
			}
			lines = append(lines, line(a))
		}
		return lines
	}
	want := func(what string, got []string, want ...string) {
		t.Helper()
		if !slices.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", what, got, want)
		}
	}
	at := one.passed()
	two.passed()
	want("both", resolve(at, true), "AMBIGUOUS ?a/one@n1 ?b/two@n1", "KNOWN x/one@n1", "KNOWN")
	want("one is behind", resolve(at, false), "AMBIGUOUS ?a/one@n1 ?b/two@n1", "KNOWN x/one@n1", "NOT_OBSERVED DISCONNECTED")
	two.must(two.Feed(pb.Event_OWNER).Lost(1))
	at = one.passed()
	two.passed()
	want("one has a gap", resolve(at, true), "AMBIGUOUS ?a/one@n1 ?b/two@n1", "KNOWN x/one@n1", "NOT_OBSERVED GAP")

	all, err := NewQuestions(&pb.ResolveOwnersRequest{Questions: []*pb.ResolveOwnersRequest_Question{about(somewhere, at)}}, one.now())
	one.must(err)
	all.Doubt()
	if got := line(all.Answer().GetAnswers()[0]); got != "NOT_OBSERVED DISCONNECTED" {
		t.Errorf("without clusters: got %q", got)
	}
}
