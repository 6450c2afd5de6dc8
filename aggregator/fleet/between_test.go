package fleet

import (
	"context"
	"log/slog"
	"net/netip"
	"testing"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/api"
	"github.com/ipwitness/ipwitness/aggregator/journal"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// While the journal of a cluster begins again, its owners are not known: a conflict with them does not end.
func TestAConflictBetweenClustersLastsWhileTheStateOfOneArrives(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	f := &Fleet{clusters: make(map[string]*cluster)}
	journals := make(map[string]*journal.Journal)
	for _, name := range []string{"a", "b", "between"} {
		j := journal.New(journal.Config{Retention: time.Hour, Size: 1 << 30, Clock: time.Now, Log: slog.New(slog.DiscardHandler)})
		journals[name] = j
		go func() { j.Run(ctx); done <- struct{}{} }()
		<-j.Opened()
		if name != "between" {
			f.clusters[name] = &cluster{Records: api.Records{Name: name, Journal: j}}
		}
	}
	defer func() {
		stop()
		for range journals {
			<-done
		}
	}()
	all := networks{{Name: "lan", Prefixes: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}}
	b := &between{
		Records: api.Records{Journal: journals["between"]}, fleet: f, networks: all, clock: time.Now,
		where: map[netip.Addr][]string{someAddress: {"a"}}, dirty: map[netip.Addr]bool{someAddress: false}, followed: &api.RecordedWatch{At: api.Positions{"a": time.Now()}},
		contests: map[netip.Addr]*contest{someAddress: {network: &all[0], conflict: &pb.Conflict{
			Id: "1", Address: someAddress.String(), State: pb.Conflict_CONFIRMED, Clusters: []string{"a", "b"}, Owners: []*pb.Owner{owner("a", "n1"), owner("b", "n2")},
		}}},
	}
	state := func(what string, want pb.Conflict_State) {
		t.Helper()
		if err := b.judgeDirty(); err != nil {
			t.Fatal(err)
		}
		if got := b.contests[someAddress].conflict.GetState(); got != want {
			t.Errorf("%s: got %v, want %v", what, got, want)
		}
	}
	present := func(name string, owners ...*pb.Owner) {
		t.Helper()
		for _, kind := range []pb.Event_Kind{pb.Event_NODE, pb.Event_OWNER, pb.Event_CONFLICT, pb.Event_FINDING} {
			feed := journals[name].Feed(kind)
			if err := feed.Begin(); err != nil {
				t.Fatal(err)
			}
			for _, o := range owners {
				if kind != pb.Event_OWNER {
					break
				}
				if err := feed.Present(&journal.Change{At: time.Now(), Type: pb.Watch_ADDED, ID: "1", Owner: o}); err != nil {
					t.Fatal(err)
				}
			}
			if err := feed.Complete(); err != nil {
				t.Fatal(err)
			}
		}
		wait.Until(t, "the state of "+name, func() bool { return !journals[name].Fresh() })
	}
	present("a", owner("a", "n1"))
	state("the journal of b begins", pb.Conflict_CONFIRMED)
	present("b")
	state("the state of b was not read yet", pb.Conflict_CONFIRMED)
	b.followed.At["b"] = time.Now()
	state("b has no such owner", pb.Conflict_RESOLVED)
}
