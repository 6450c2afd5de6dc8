package stream

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	natsclient "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ipwitness/ipwitness/aggregator/fleet"
	"github.com/ipwitness/ipwitness/aggregator/journal"
	"github.com/ipwitness/ipwitness/aggregator/stream"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/nats"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// fleetLab is a fleet that follows a hub.
type fleetLab struct {
	testing.TB
	dir, url string
	nkey     string // empty for none
	networks []fleet.Network
	*fleet.Service
	stop func()
}

// newFleet starts a fleet.
func newFleet(t testing.TB, url string, networks ...fleet.Network) *fleetLab {
	l := &fleetLab{TB: t, dir: t.TempDir(), url: url, networks: networks}
	l.start()
	t.Cleanup(func() { l.stop() })
	return l
}

func (l *fleetLab) start() {
	l.Helper()
	f, err := fleet.New(fleet.Config{
		NATS: stream.Settings{Servers: []string{l.url}, NKey: l.nkey}, DataDir: l.dir, Retention: journal.DefaultRetention, Size: journal.DefaultSize,
		Networks: l.networks, Instance: time.Now().UnixNano(), Log: slog.New(slog.DiscardHandler), Clock: time.Now,
	})
	if err != nil {
		l.Fatal(err)
	}
	l.Service = &fleet.Service{Fleet: f, Stopped: make(chan struct{})}
	ctx, cancel := context.WithCancel(context.Background())
	var group sync.WaitGroup
	group.Go(func() {
		if err := f.Run(ctx); err != nil {
			l.Error(err)
		}
	})
	l.stop = sync.OnceFunc(func() { cancel(); group.Wait() })
}

// owners returns the owners of some clusters, or of all, as CLUSTER ADDRESS.
func (l *fleetLab) owners(clusters ...string) (all []string) {
	l.Helper()
	q := &pb.ListOwnersRequest{Cluster: clusters, PageSize: 2}
	for {
		page, err := l.ListOwners(l.Context(), q)
		if status.Code(err) == codes.InvalidArgument {
			return nil // the cluster is not known yet
		}
		if err != nil {
			l.Fatal(err)
		}
		for _, o := range page.GetOwners() {
			all = append(all, o.GetCluster()+" "+o.GetAddress())
		}
		if q.PageToken = page.GetNextPageToken(); q.PageToken == "" {
			return all
		}
	}
}

// await waits until the owners of some clusters, or of all, are exactly those.
func (l *fleetLab) await(clusters []string, want ...string) {
	l.Helper()
	var got []string
	defer func() {
		if l.Failed() {
			l.Logf("got %q, want %q; %v", got, want, l.clusters())
		}
	}()
	wait.Until(l, fmt.Sprintf("the owners %q", want), func() bool {
		got = l.owners(clusters...)
		return slices.Equal(got, want)
	})
}

// changes returns the recorded changes of owners, in order. What was present at the beginning is not among
// them.
func (l *fleetLab) changes(clusters ...string) (all []string) {
	l.Helper()
	page, err := l.ListEvents(l.Context(), &pb.ListEventsRequest{Cluster: clusters, Kind: pb.Event_OWNER})
	if err != nil {
		l.Fatal(err)
	}
	for _, e := range page.GetEvents() {
		if !e.GetPresent() {
			all = append(all, fmt.Sprintf("%s %s %s", e.GetCluster(), e.GetType(), e.GetOwner().GetAddress()))
		}
	}
	return all
}

// clusters returns the clusters by name.
func (l *fleetLab) clusters() map[string]*pb.Cluster {
	l.Helper()
	list, err := l.ListClusters(l.Context(), &pb.ListClustersRequest{})
	if err != nil {
		l.Fatal(err)
	}
	all := make(map[string]*pb.Cluster)
	for _, c := range list.GetClusters() {
		all[c.GetName()] = c
	}
	return all
}

// awaitState waits until a cluster is in a state.
func (l *fleetLab) awaitState(name string, want pb.Cluster_State) {
	l.Helper()
	wait.Until(l, fmt.Sprintf("the cluster %s to be %s", name, want), func() bool { return l.clusters()[name].GetState() == want })
}

// in returns the same server for another cluster.
func (l *lab) in(cluster string) *lab {
	other := *l
	other.cluster = cluster
	return &other
}

// leads starts a replica of a cluster that leads and has some owners.
func (l *lab) leads(addrs ...string) *replica {
	l.Helper()
	r := l.replica(0)
	r.present(addrs...)
	settings := r.settings()
	settings.Size = 256 << 20 // so that a server has room for the streams of several clusters
	_, end := r.publish(settings)
	wait.Until(l, "the state in the stream of "+l.cluster, func() bool { return r.states() > 0 })
	l.Cleanup(end)
	return r
}

// Three bytes by any account that may publish stop neither the publisher nor a fleet, and nothing is missing.
func TestForeignMessagesAreSkippedAndNamed(t *testing.T) {
	t.Parallel()
	l := newLab(t).in("prod")
	r := l.replica(0)
	r.present("10.0.0.1")
	publisher, end := r.lead()
	defer func() { end() }()
	f := newFleet(t, l.url)
	f.await([]string{"prod"}, "prod 10.0.0.1")
	foreign := func(contents ...string) {
		t.Helper()
		for _, c := range contents {
			r.must(l.conn.Publish("ipwitness.prod."+c, []byte("abc")))
		}
		r.must(l.conn.Flush())
	}
	named := func(what string, problems func() []string) {
		t.Helper()
		wait.Until(t, "the problem of "+what, func() bool {
			return slices.ContainsFunc(problems(), func(p string) bool {
				return strings.Contains(p, "are no transitions of the cluster and were skipped, the last one with number ")
			})
		})
	}
	ofFleet := func() []string { return f.clusters()["prod"].GetProblems() }
	if p := append(publisher.Problems(), ofFleet()...); len(p) > 0 {
		t.Errorf("got problems %q of a stream without foreign messages, want none", p)
	}
	foreign("x", "owner", "state.begin")
	r.record(pb.Watch_ADDED, "10.0.0.2")
	f.await([]string{"prod"}, "prod 10.0.0.1", "prod 10.0.0.2")
	named("the publisher", publisher.Problems)
	named("the fleet", ofFleet)

	// The last message is foreign when both start again.
	end()
	foreign("coverage", "state.end")
	f.stop()
	f.start()
	publisher, end = r.lead()
	r.record(pb.Watch_REMOVED, "10.0.0.1")
	f.await([]string{"prod"}, "prod 10.0.0.2")
	named("the publisher that started again", publisher.Problems)
	if got, want := f.changes("prod"), []string{"prod ADDED 10.0.0.2", "prod REMOVED 10.0.0.1"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q: each once, and none left out", got, want)
	}

	// A fleet that begins now gets the state.
	other := newFleet(t, l.url)
	other.await([]string{"prod"}, "prod 10.0.0.2")
}

func TestAStreamOfForeignMessagesIsAClearState(t *testing.T) {
	t.Parallel()
	l := newLab(t).in("prod")
	js, err := l.conn.JetStream()
	if err == nil {
		_, err = js.AddStream(&natsclient.StreamConfig{Name: stream.Name("prod"), Subjects: []string{stream.Subjects("prod")}})
	}
	if err == nil {
		_, err = js.Publish("ipwitness.prod.owner", []byte("abc"))
	}
	if err != nil {
		t.Fatal(err)
	}
	f := newFleet(t, l.url)
	wait.Until(t, "the cluster with its problem", func() bool {
		c := f.clusters()["prod"]
		return c.GetState() == pb.Cluster_WAITING && strings.Contains(fmt.Sprint(c.GetProblems()), "with number 1:")
	})
}

// A fleet answers for two clusters. After it was stopped and started, it continues where it was: nothing
// is missing and nothing is recorded twice.
func TestAFleetAnswersForTwoClusters(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	west, east := l.in("west").leads("10.0.0.1", "10.0.0.2", "10.0.0.3"), l.in("eu.east").leads("10.0.0.1")
	f := newFleet(t, l.url)
	f.await(nil, "eu.east 10.0.0.1", "west 10.0.0.1", "west 10.0.0.2", "west 10.0.0.3")
	f.await([]string{"eu.east"}, "eu.east 10.0.0.1")
	if _, err := f.ListOwners(t.Context(), &pb.ListOwnersRequest{Cluster: []string{"north"}}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("got %v for a cluster that is not known, want InvalidArgument", err)
	}
	for name := range f.clusters() {
		f.awaitState(name, pb.Cluster_LIVE)
	}
	coverage := func() *pb.Coverage {
		page, err := f.ListConflicts(t.Context(), &pb.ListConflictsRequest{})
		if err != nil {
			t.Fatal(err)
		}
		return page.GetCoverage()
	}
	if c := coverage(); c.GetIncomplete() || c.GetClusters() != 2 || c.GetExpected() != 2 || c.GetHeard() != 2 {
		t.Errorf("got the coverage %v, want two nodes in two clusters, and complete", c)
	}
	if _, err := fleet.New(fleet.Config{NATS: stream.Settings{Servers: []string{l.url}}, DataDir: f.dir, Log: slog.New(slog.DiscardHandler), Clock: time.Now}); err == nil || !strings.Contains(err.Error(), "another ipwitness process uses it") {
		t.Errorf("got %v for a second fleet with the same directory, want that it is in use", err)
	}
	before := time.Now()
	east.record(pb.Watch_ADDED, "10.0.1.1")
	west.record(pb.Watch_REMOVED, "10.0.0.2")
	f.await(nil, "eu.east 10.0.0.1", "eu.east 10.0.1.1", "west 10.0.0.1", "west 10.0.0.3")
	f.stop()
	east.record(pb.Watch_ADDED, "10.0.1.2")
	west.record(pb.Watch_REMOVED, "10.0.0.3")
	wait.Until(t, "the changes in the streams", func() bool { return has(east.messages(), "10.0.1.2") && has(west.messages(), "10.0.0.3") })
	f.start()
	f.await(nil, "eu.east 10.0.0.1", "eu.east 10.0.1.1", "eu.east 10.0.1.2", "west 10.0.0.1")
	want := []string{"eu.east ADDED 10.0.1.1", "west REMOVED 10.0.0.2", "eu.east ADDED 10.0.1.2", "west REMOVED 10.0.0.3"}
	if got := f.changes(); !slices.Equal(got, want) {
		t.Errorf("got the changes %q, want %q", got, want)
	}
	if gaps, err := f.ListEvents(t.Context(), &pb.ListEventsRequest{}); err != nil || len(gaps.GetGaps()) != 0 {
		t.Errorf("got the gaps %v (%v), want none: the streams have everything", gaps.GetGaps(), err)
	}
	page, err := f.ListOwners(t.Context(), &pb.ListOwnersRequest{At: timestamppb.New(before)})
	if err != nil || len(page.GetOwners()) != 4 {
		t.Errorf("got %d owners (%v) at the time before the changes, want 4", len(page.GetOwners()), err)
	}
	explained, err := f.Explain(t.Context(), &pb.ExplainRequest{Address: "10.0.0.1"})
	if want := "10.0.0.1 has one owner in the cluster eu.east and one owner in the cluster west."; err != nil || explained.GetSummary() != want {
		t.Errorf("got %q (%v), want %q", explained.GetSummary(), err, want)
	}
}

// If messages are missing, the fleet says so, and waits for the next complete state.
func TestAGapInTheStreamIsSaidAndEndsWithTheNextState(t *testing.T) {
	t.Parallel()
	l := newLab(t).in("west")
	js, err := jetstream.New(l.conn)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: stream.Name("west"), Subjects: []string{stream.Subjects("west")}}); err != nil {
		t.Fatal(err)
	}
	r := l.leads("10.0.0.1")
	f := newFleet(t, l.url)
	f.await(nil, "west 10.0.0.1")
	f.stop()
	r.record(pb.Watch_ADDED, "10.0.0.2")
	wait.Until(t, "the change in the stream", func() bool { return has(l.messages(), "10.0.0.2") })
	s, err := js.Stream(t.Context(), stream.Name("west"))
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range l.messages() { // the change, and what follows it
		if has([]*pb.TransitionBatch{b}, "10.0.0.2") {
			if err := s.DeleteMsg(t.Context(), b.GetSequence()); err != nil {
				t.Fatal(err)
			}
		}
	}
	r.record(pb.Watch_ADDED, "10.0.0.3")
	wait.Until(t, "the next change in the stream", func() bool { return has(l.messages(), "10.0.0.3") })
	f.start()
	missing := func() bool {
		problems := f.clusters()["west"].GetProblems()
		return f.clusters()["west"].GetState() == pb.Cluster_WAITING && len(problems) == 1 && strings.Contains(problems[0], "missing since")
	}
	wait.Until(t, "the fleet to say that messages are missing", missing)
	page, err := f.ListConflicts(t.Context(), &pb.ListConflictsRequest{})
	if c := page.GetCoverage(); err != nil || !c.GetIncomplete() || !slices.Equal(c.GetSilentClusters(), []string{"west"}) {
		t.Errorf("got the coverage %v (%v), want that west is not seen", c, err)
	}
	if got := f.owners(); !slices.Equal(got, []string{"west 10.0.0.1"}) {
		t.Errorf("got the owners %q in the gap, want those before it", got)
	}
	f.stop() // it still waits after a restart
	f.start()
	wait.Until(t, "the fleet to say it after a restart", missing)
	other := l.replica(0) // another leader without the records of the first one publishes the state
	other.present("10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4")
	_, end := other.publish(other.settings())
	t.Cleanup(end)
	f.await(nil, "west 10.0.0.1", "west 10.0.0.2", "west 10.0.0.3", "west 10.0.0.4")
	f.awaitState("west", pb.Cluster_LIVE)
	list, err := f.ListEvents(t.Context(), &pb.ListEventsRequest{})
	if gaps := list.GetGaps(); err != nil || len(gaps) != 1 || gaps[0].GetReason() != pb.Gap_NOT_RECEIVED || gaps[0].GetCluster() != "west" || gaps[0].GetUntil() == nil {
		t.Errorf("got the gaps %v (%v), want one of west that has ended", gaps, err)
	}
}

// watchOf collects what a watch sends.
type watchOf[M any] struct {
	grpc.ServerStream
	ctx  context.Context
	mu   sync.Mutex
	sent []*M
}

func (w *watchOf[M]) Context() context.Context { return w.ctx }

func (w *watchOf[M]) Send(m *M) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sent = append(w.sent, m)
	return nil
}

func (w *watchOf[M]) all() []*M {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.sent)
}

// A watch sends the present of all clusters and then their changes, and continues from its token.
func TestAWatchOfAFleetContinuesFromItsToken(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	west, east := l.in("west").leads("10.0.0.1"), l.in("east").leads("10.0.0.1")
	f := newFleet(t, l.url)
	f.awaitState("east", pb.Cluster_LIVE) // a watch omits a cluster while its first state arrives
	f.awaitState("west", pb.Cluster_LIVE)
	begin := func(token string) (*watchOf[pb.WatchOwnersResponse], func()) {
		ctx, cancel := context.WithCancel(t.Context())
		w := &watchOf[pb.WatchOwnersResponse]{ctx: ctx}
		var group sync.WaitGroup
		group.Go(func() {
			if err := f.WatchOwners(&pb.WatchOwnersRequest{ResumeToken: token}, w); status.Code(err) != codes.Canceled {
				t.Errorf("got %v from a watch that was cancelled, want Canceled", err)
			}
		})
		return w, func() { cancel(); group.Wait() }
	}
	seen := func(w *watchOf[pb.WatchOwnersResponse]) (all []string, token string) {
		for _, m := range w.all() {
			if m.GetType() == pb.Watch_BOOKMARK {
				token = m.GetResumeToken()
			} else {
				all = append(all, fmt.Sprintf("%s %s %s", m.GetType(), m.GetOwner().GetCluster(), m.GetOwner().GetAddress()))
			}
		}
		return all, token
	}
	await := func(w *watchOf[pb.WatchOwnersResponse], want ...string) (token string) {
		t.Helper()
		var got []string
		wait.Until(t, fmt.Sprintf("%q", want), func() bool {
			got, token = seen(w)
			return slices.Equal(got, want) && token != ""
		})
		return token
	}
	w, end := begin("")
	token := await(w, "ADDED east 10.0.0.1", "ADDED west 10.0.0.1")
	west.record(pb.Watch_ADDED, "10.0.0.2")
	await(w, "ADDED east 10.0.0.1", "ADDED west 10.0.0.1", "ADDED west 10.0.0.2")
	end()
	east.record(pb.Watch_REMOVED, "10.0.0.1")
	f.await(nil, "west 10.0.0.1", "west 10.0.0.2")
	w, end = begin(token)
	await(w, "REMOVED east 10.0.0.1", "ADDED west 10.0.0.2")
	end()
	if err := f.WatchOwners(&pb.WatchOwnersRequest{ResumeToken: "x"}, &watchOf[pb.WatchOwnersResponse]{ctx: t.Context()}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("got %v for a token of another kind, want InvalidArgument", err)
	}
}

// A cluster that is not heard from is said not to be seen, and so is everything when the hub is away.
// After the hub was killed and started, the fleet has everything that was published meanwhile.
func TestAFleetSaysWhichClustersItDoesNotSee(t *testing.T) {
	if testing.Short() {
		t.Skip("slow, because clusters are silent for a while before they count as such: run make test-all")
	}
	t.Parallel()
	hub := newLabOf(t, "none", nats.Config{Name: "hub", Domain: "hub", Port: -1, LeafPort: -1})
	leaf, err := hub.server.Leafnodes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	replicas := make(map[string]*replica)
	labs := make(map[string]*lab)
	for _, name := range []string{"west", "east"} {
		l := newLabOf(t, name, nats.Config{Name: name, Domain: name, Port: -1, Hub: leaf})
		labs[name], replicas[name] = l, l.leads("10.0.0.1")
		js, err := jetstream.NewWithDomain(hub.conn, "hub")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := js.CreateStream(t.Context(), mirrorOf(t, name)); err != nil {
			t.Fatal(err)
		}
	}
	f := newFleet(t, hub.url)
	f.await(nil, "east 10.0.0.1", "west 10.0.0.1")
	labs["east"].server.Kill()
	replicas["west"].record(pb.Watch_ADDED, "10.0.0.2")
	f.await(nil, "east 10.0.0.1", "west 10.0.0.1", "west 10.0.0.2")
	f.awaitState("east", pb.Cluster_DISCONNECTED)
	f.awaitState("west", pb.Cluster_LIVE)
	silent := func(want ...string) {
		t.Helper()
		page, err := f.ListConflicts(t.Context(), &pb.ListConflictsRequest{})
		if got := page.GetCoverage(); err != nil || !slices.Equal(got.GetSilentClusters(), want) || got.GetIncomplete() != (len(want) > 0) {
			t.Errorf("got the coverage %v (%v), want that %q is not seen", got, err, want)
		}
	}
	silent("east")
	if page, err := f.ListConflicts(t.Context(), &pb.ListConflictsRequest{Cluster: []string{"west"}}); err != nil || page.GetCoverage().GetIncomplete() {
		t.Errorf("got the coverage %v (%v) of west, want that it is complete", page.GetCoverage(), err)
	}
	if err := labs["east"].server.Restart(labs["east"].url); err != nil {
		t.Fatal(err)
	}
	f.awaitState("east", pb.Cluster_LIVE)
	hub.server.Kill()
	replicas["west"].record(pb.Watch_ADDED, "10.0.0.3")
	f.awaitState("west", pb.Cluster_DISCONNECTED)
	f.awaitState("east", pb.Cluster_DISCONNECTED)
	silent("east", "west")
	if len(f.Fleet.Problems()) == 0 {
		t.Error("got no problem while the hub is away, want one")
	}
	if err := hub.server.Start(); err != nil {
		t.Fatal(err)
	}
	f.await(nil, "east 10.0.0.1", "west 10.0.0.1", "west 10.0.0.2", "west 10.0.0.3")
	f.awaitState("west", pb.Cluster_LIVE)
	f.awaitState("east", pb.Cluster_LIVE)
	silent()
	if got, want := f.changes("west"), []string{"west ADDED 10.0.0.2", "west ADDED 10.0.0.3"}; !slices.Equal(got, want) {
		t.Errorf("got the changes %q, want %q", got, want)
	}
}
