package stream

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ipwitness/ipwitness/aggregator/fleet"
	"github.com/ipwitness/ipwitness/aggregator/journal"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// conflicts returns the conflicts, also resolved ones, as STATE EPISODE CLUSTERS ADDRESS.
func (l *fleetLab) conflicts(q *pb.ListConflictsRequest) (all []string) {
	l.Helper()
	page, err := l.ListConflicts(l.Context(), q)
	if err != nil {
		l.Fatal(err)
	}
	for _, c := range page.GetConflicts() {
		all = append(all, fmt.Sprintf("%s %d %v %s", c.GetState(), c.GetEpisode(), c.GetClusters(), c.GetAddress()))
	}
	return all
}

// awaitConflicts waits until the conflicts, also resolved ones, are exactly those.
func (l *fleetLab) awaitConflicts(want ...string) {
	l.Helper()
	var got []string
	defer func() {
		if l.Failed() {
			l.Logf("got %q, want %q", got, want)
		}
	}()
	wait.Until(l, fmt.Sprintf("the conflicts %q", want), func() bool {
		got = l.conflicts(&pb.ListConflictsRequest{All: true})
		return slices.Equal(got, want)
	})
}

// change records a change of an owner of a node.
func (r *replica) change(typ pb.Watch_Type, a, node string, change func(*pb.Owner)) {
	r.Helper()
	o := owner(a)
	o.Node = node
	change(o)
	r.must(r.Feed(pb.Event_OWNER).Changed(&journal.Change{At: r.now(), Type: typ, ID: "owner of " + node, Owner: o}))
}

func as(*pb.Owner) {}

// An address of a network that two clusters share, with owners in both, is a conflict, which is confirmed,
// resolved, and comes back as the next episode. What is shared on purpose, or in networks that are not
// shared, is not reported.
func TestAFleetFindsConflictsInSharedNetworks(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	west, east, north := l.in("west").leads("10.9.0.1"), l.in("east").leads("10.9.0.2"), l.in("north").leads("10.9.0.3")
	f := newFleet(
		t, l.url,
		fleet.Network{Name: "lan", Prefixes: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}, Clusters: []string{"east", "west"}},
		fleet.Network{Name: "everywhere", Prefixes: []netip.Prefix{netip.MustParsePrefix("10.2.0.0/16")}},
	)
	for _, name := range []string{"west", "east", "north"} {
		f.awaitState(name, pb.Cluster_LIVE)
	}
	shared := func(o *pb.Owner) { o.Excluded = "anycast" }
	for _, r := range []*replica{west, east, north} {
		node := r.cluster + "-1"
		r.change(pb.Watch_ADDED, "10.0.0.1", node, as)     // in no network
		r.change(pb.Watch_ADDED, "10.2.0.9", node, shared) // on purpose
	}
	north.change(pb.Watch_ADDED, "10.1.0.5", "north-1", as) // not in this network
	west.change(pb.Watch_ADDED, "10.1.0.5", "west-1", as)
	west.change(pb.Watch_ADDED, "10.1.0.7", "west-1", as)
	east.change(pb.Watch_ADDED, "10.1.0.7", "east-1", as)
	f.awaitConflicts("SUSPECTED 1 [east west] 10.1.0.7")
	if got := f.conflicts(&pb.ListConflictsRequest{Cluster: []string{"west"}}); len(got) != 1 {
		t.Errorf("got %q of west, want the conflict", got)
	}
	if got := f.conflicts(&pb.ListConflictsRequest{Cluster: []string{"north"}}); len(got) != 0 {
		t.Errorf("got %q of north, want no conflict", got)
	}
	f.awaitConflicts("CONFIRMED 1 [east west] 10.1.0.7") // both have published again
	confirmed := time.Now()
	page, err := f.ListConflicts(t.Context(), &pb.ListConflictsRequest{State: pb.Conflict_CONFIRMED, Scope: "network/lan"})
	if err != nil || len(page.GetConflicts()) != 1 {
		t.Fatalf("got %v (%v), want the conflict by its state and scope", page, err)
	}
	c := page.GetConflicts()[0]
	if got := []string{c.GetOwners()[0].GetCluster(), c.GetOwners()[1].GetCluster()}; !slices.Equal(got, []string{"east", "west"}) {
		t.Errorf("got owners in %q, want one in each cluster", got)
	}
	one, err := f.GetConflict(t.Context(), &pb.GetConflictRequest{Id: c.GetId()})
	if err != nil || one.GetConflict().GetSummary() != "10.1.0.7 is held by different owners in the clusters east and west, which share the network lan." {
		t.Errorf("got %q (%v), want what the conflict is", one.GetConflict().GetSummary(), err)
	}
	f.stop() // it ends while the fleet is away
	east.change(pb.Watch_REMOVED, "10.1.0.7", "east-1", as)
	f.start()
	f.awaitConflicts("RESOLVED 1 [east west] 10.1.0.7")
	east.change(pb.Watch_ADDED, "10.1.0.7", "east-2", as)
	f.awaitConflicts("SUSPECTED 2 [east west] 10.1.0.7")
	north.change(pb.Watch_ADDED, "10.2.0.7", "north-1", as) // a positive control for what is not reported
	west.change(pb.Watch_ADDED, "10.2.0.7", "west-1", as)
	f.awaitConflicts("SUSPECTED 2 [east west] 10.1.0.7", "SUSPECTED 1 [north west] 10.2.0.7")
	if got := f.conflicts(&pb.ListConflictsRequest{At: timestamppb.New(confirmed)}); !slices.Equal(got, []string{"CONFIRMED 1 [east west] 10.1.0.7"}) {
		t.Errorf("got %q at the time when it was confirmed, want it", got)
	}
	explained, err := f.Explain(t.Context(), &pb.ExplainRequest{Address: "10.1.0.7"})
	if want := "10.1.0.7 has one owner in the cluster east and one owner in the cluster west. Owners in different clusters are in conflict with each other."; err != nil || explained.GetSummary() != want {
		t.Errorf("got %q (%v), want %q", explained.GetSummary(), err, want)
	}
	events, err := f.ListEvents(t.Context(), &pb.ListEventsRequest{Kind: pb.Event_CONFLICT, Address: "10.1.0.7"})
	var states []string
	for _, e := range events.GetEvents() {
		states = append(states, fmt.Sprintf("%s %d", e.GetConflict().GetState(), e.GetConflict().GetEpisode()))
	}
	if want := []string{"SUSPECTED 1", "CONFIRMED 1", "RESOLVED 1", "SUSPECTED 2"}; err != nil || !slices.Equal(states, want) {
		t.Errorf("got %q (%v) in the history, want %q", states, err, want)
	}
}
