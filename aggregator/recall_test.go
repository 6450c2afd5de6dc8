package aggregator

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ipwitness/ipwitness/aggregator/journal"
	"github.com/ipwitness/ipwitness/aggregator/judge"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/records"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// recorded waits until the journal has a conflict in a state.
func (l *lab) recorded(state pb.Conflict_State) *pb.Conflict {
	l.Helper()
	return l.await("the conflict in the journal", &pb.ListEventsRequest{Kind: pb.Event_CONFLICT, Address: addr}, func(e *pb.Event) bool {
		return e.GetConflict().GetState() == state
	}).GetConflict()
}

// known waits until the aggregator lists a conflict in a state.
func (l *lab) known(state pb.Conflict_State) (found *pb.Conflict) {
	l.Helper()
	wait.Until(l, "a conflict that is "+state.String(), func() bool {
		for _, c := range l.list(&pb.ListConflictsRequest{State: state}) {
			found = c
		}
		return found != nil
	})
	return found
}

func (l *lab) list(q *pb.ListConflictsRequest) []*pb.Conflict {
	l.Helper()
	out, err := l.client.ListConflicts(l.ctx, q)
	if err != nil {
		l.Fatal(err)
	}
	return out.GetConflicts()
}

// settled waits until nothing from before the start is awaited, and the journal has compared the present
// state with the state before.
func (l *lab) settled() {
	l.Helper()
	wait.Until(l, "the present state in the journal", func() bool { _, whole, _ := l.core.journal.Written(); return whole })
	for _, kind := range []pb.Event_Kind{pb.Event_OWNER, pb.Event_NODE} {
		if err := l.core.journal.Feed(kind).Flush(); err != nil {
			l.Fatal(err)
		}
	}
}

// conflictsRecorded returns the recorded events of conflicts.
func (l *lab) conflictsRecorded() []*pb.Event {
	l.Helper()
	return l.events(&pb.ListEventsRequest{Kind: pb.Event_CONFLICT, Address: addr}).GetEvents()
}

// identity is what a restart must not change.
func identity(c *pb.Conflict) string {
	return c.GetId() + " " + c.GetDetectedAt().AsTime().String() + " " + c.GetConfirmedAt().AsTime().String()
}

// What lasts has begun before the start also if the journal cannot be read at the start. What has ended meanwhile does not come back,
// and is another episode if it begins again.
func TestWhatLastsIsKnownWhenTheJournalIsReadLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const ended, again, begun = "10.244.0.6", "10.244.0.7", "10.244.0.8"
		both := func(id uint32, address string) *pb.ReportRequest {
			return records.Merge(podVeth(id, "a"+address, address), podVeth(id+1, "b"+address, address))
		}
		other := hello("same", 1)
		other.BootId = "another"
		clones := func(l *lab) { // which are a finding
			l.dial().send(snapshot(hello("same", 1))).sync()
			l.dial().send(snapshot(other)).sync()
		}
		dir := filepath.Join(t.TempDir(), "data")
		cfg := Config{DataDir: dir, Settle: time.Hour}
		l := newLab(t, cfg)
		l.dial().send(snapshot(hello("n1", 1), both(2, addr), both(4, ended), both(6, again))).sync()
		clones(l)
		time.Sleep(time.Minute)
		states := func(address string) (texts []string) {
			for _, c := range l.list(&pb.ListConflictsRequest{Address: address}) {
				texts = append(texts, fmt.Sprint(identity(c), " ", c.GetEpisode()))
			}
			return texts
		}
		lasts, first := states(addr), states(again)
		finding := witness(l.findings())
		if len(lasts) != 1 || len(first) != 1 || len(finding) == 0 {
			t.Fatalf("got the conflicts %q and %q, and the findings %q", lasts, first, finding)
		}
		l.settled()
		l.stop()

		if err := errors.Join(os.Rename(dir, dir+"-away"), os.WriteFile(dir, nil, 0o600)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		l = newLab(t, cfg)
		a := l.dial().send(snapshot(hello("n1", 1), both(2, addr), both(8, begun))).sync()
		clones(l)
		time.Sleep(DefaultNodeTimeout + time.Minute)
		a.send(both(6, again)).sync()
		time.Sleep(time.Minute)
		second, third := l.list(&pb.ListConflictsRequest{Address: again}), states(begun)
		if got := states(addr); len(got) != 1 || got[0] == lasts[0] || len(second) != 1 || second[0].GetEpisode() != 1 || len(third) != 1 {
			t.Fatalf("got %q, %v and %q, want three conflicts that began after the start", got, second, third)
		}
		if err := errors.Join(os.Remove(dir), os.Rename(dir+"-away", dir)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		l.settled()
		if got := states(addr); !slices.Equal(got, lasts) {
			t.Errorf("got %q, want %q", got, lasts)
		}
		if got := witness(l.findings()); !slices.Equal(got, finding) {
			t.Errorf("got the finding %q, want %q", got, finding)
		}
		if got := states(begun); !slices.Equal(got, third) {
			t.Errorf("got %q, want %q", got, third)
		}
		if got := l.list(&pb.ListConflictsRequest{Address: again}); len(got) != 1 || got[0].GetEpisode() != 2 || identity(got[0]) != identity(second[0]) {
			t.Errorf("got %v, want episode 2 of %v", got, second)
		}
		if got := states(ended); len(got) != 0 {
			t.Errorf("got %q, want no conflict that has ended", got)
		}
		var history []pb.Conflict_State
		for _, e := range l.events(&pb.ListEventsRequest{Kind: pb.Event_CONFLICT, Address: ended}).GetEvents() {
			history = append(history, e.GetConflict().GetState())
		}
		if want := []pb.Conflict_State{pb.Conflict_SUSPECTED, pb.Conflict_RESOLVED}; !slices.Equal(history, want) {
			t.Errorf("got the history %v, want %v", history, want)
		}
		l.wantProblem()
	})
}

// A node that is not connected after a restart keeps the state before it: nothing has ended.
func TestAConflictIsKnownAfterARestart(t *testing.T) {
	cfg := Config{DataDir: t.TempDir(), Settle: time.Millisecond}
	l := newLab(t, cfg)
	pods := twoPods()
	a := l.dial().send(pods).sync()
	a.send(&pb.ReportRequest{Checked: []uint64{a.check().GetId()}}).sync()
	before := l.recorded(pb.Conflict_CONFIRMED)
	l.settled()
	told := len(l.conflictsRecorded())
	l.stop()

	l = newLab(t, cfg)
	away := l.known(pb.Conflict_CONFIRMED)
	if identity(away) != identity(before) || away.GetEpisode() != 1 || len(away.GetOwners()) != 2 {
		t.Errorf("got %v before any node has reported, want %v", away, before)
	}
	for _, o := range away.GetOwners() {
		if o.GetState() != pb.Owner_DISCONNECTED {
			t.Errorf("got owner %v, want it DISCONNECTED", o)
		}
	}
	if len(away.GetRemedy()) != 0 {
		t.Errorf("got steps %v for a conflict that was not judged", away.GetRemedy())
	}
	w := l.watchConflicts()
	if c := w.next(added); identity(c) != identity(before) {
		t.Errorf("got %v, want the conflict in the present state", c)
	}
	l.dial().send(pods).sync()
	again := w.next(updated)
	if identity(again) != identity(before) || again.GetEpisode() != 1 || again.GetState() != pb.Conflict_CONFIRMED || len(again.GetRemedy()) == 0 {
		t.Errorf("got %v when the node had reported, want %v to continue", again, before)
	}
	l.settled()
	if got := l.conflictsRecorded(); len(got) != told {
		t.Errorf("got %d events of a conflict that lasted, want %d as before the restart: %v", len(got), told, got)
	}
}

// An aggregator is ready when it lists what it knew before its start. Until then, its answers say that they lack the journal.
func TestAnAggregatorIsReadyWhenItKnowsTheJournal(t *testing.T) {
	cfg := Config{DataDir: t.TempDir(), Settle: time.Millisecond}
	l := newLab(t, cfg)
	if l.dial().send(twoPods()).sync(); !l.ready() {
		wait.Until(t, "readiness with an empty journal", l.ready)
	}
	l.recorded(pb.Conflict_SUSPECTED)
	l.settled()
	l.stop()

	l = newLab(t, cfg)
	for ready := false; !ready; {
		ready = l.ready()
		out, err := l.client.ListConflicts(l.ctx, &pb.ListConflictsRequest{})
		if err != nil {
			t.Fatal(err)
		}
		lacks := slices.ContainsFunc(out.GetCoverage().GetAwaited(), func(a *pb.Awaited) bool { return a.GetWhat() == pb.Awaited_JOURNAL })
		if len(out.GetConflicts()) == 0 && (ready || !lacks) {
			t.Fatalf("got no conflict of before the start with the coverage %v, ready: %t; want the aggregator not to be ready, and the coverage to say that the journal is awaited",
				out.GetCoverage(), ready)
		}
	}
}

// An owner that came after the acknowledgement, shortly before the restart, is not known to this process yet.
func TestAnAcknowledgedConflictWithANewOwnerIsKnownAfterARestart(t *testing.T) {
	cfg := Config{DataDir: t.TempDir(), Settle: time.Hour}
	l := newLab(t, cfg)
	a := l.dial().send(twoPods()).sync()
	l.acknowledge(l.recorded(pb.Conflict_SUSPECTED).GetId(), 3*time.Hour)
	a.send(podVeth(4, "c", addr)).sync()
	l.await("the third owner in the journal", &pb.ListEventsRequest{Kind: pb.Event_CONFLICT, Address: addr}, func(e *pb.Event) bool {
		return len(e.GetConflict().GetOwners()) == 3
	})
	l.settled()
	l.stop()
	l = newLab(t, cfg)
	if c := l.known(pb.Conflict_SUSPECTED); len(c.GetOwners()) != 3 || c.GetAcknowledgement() == nil {
		t.Errorf("got %v, want the three owners, and the acknowledgement", c)
	}
}

// The kernel tells of a new namespace before anybody knows its inode. It is the same owner then, and the conflict goes on. Another namespace with the
// number of one that has ended is another owner.
func TestAConflictGoesOnWhenItsNamespaceIsKnown(t *testing.T) {
	l := newLab(t, Config{})
	unknown := podVeth(3, "new", addr)
	unknown.Namespaces[0].Netns, unknown.Namespaces[0].Workload = "", nil
	a := l.dial().send(records.Merge(snapshot(hello("n1", 1), podVeth(2, "web", addr)), unknown)).sync()
	w := l.watchConflicts()
	before := w.next(added)
	a.send(&pb.ReportRequest{Namespaces: []*pb.NamespaceRecord{podNamespace(3, "new")}}).sync()
	now := w.next(updated)
	if identity(now) != identity(before) || now.GetEpisode() != before.GetEpisode() || now.GetState() != pb.Conflict_SUSPECTED {
		t.Errorf("got %v, want %v to go on", now, before)
	}
	if owners := now.GetOwners(); len(owners) != 2 || owners[0].GetWorkload().GetName()+owners[1].GetWorkload().GetName() != "webnew" {
		t.Errorf("got owners %v", owners)
	}
	other := podNamespace(3, "other")
	other.Netns = "4026532099"
	a.send(&pb.ReportRequest{Namespaces: []*pb.NamespaceRecord{other}}).sync()
	if over := w.next(updated); over.GetState() != pb.Conflict_RESOLVED {
		t.Errorf("got %v, want the end of the conflict with a namespace that is gone", over)
	}
}

// What ended while the aggregator was away has ended, with a reason; the next episode has its number.
func TestAConflictThatEndsDuringARestartIsResolved(t *testing.T) {
	cfg := Config{DataDir: t.TempDir(), Settle: time.Millisecond}
	l := newLab(t, cfg)
	l.dial().send(twoPods()).sync()
	before := l.recorded(pb.Conflict_SUSPECTED)
	l.settled()
	l.stop()

	l = newLab(t, cfg)
	l.known(pb.Conflict_SUSPECTED)
	a := l.dial().send(snapshot(hello("n1", 1), podVeth(2, "a", addr))).sync()
	over := l.known(pb.Conflict_RESOLVED)
	if over.GetId() != before.GetId() || !proto.Equal(over.GetDetectedAt(), before.GetDetectedAt()) || over.GetResolvedAt() == nil {
		t.Errorf("got %v, want %v to be resolved", over, before)
	}
	l.settled()
	events := l.conflictsRecorded()
	last := events[len(events)-1]
	if last.GetConflict().GetState() != pb.Conflict_RESOLVED || last.GetNotBefore() == nil {
		t.Errorf("got %v as the last event, want the end with the time before which it was not", last)
	}
	l.stop()

	l = newLab(t, cfg)
	if c := l.known(pb.Conflict_RESOLVED); !proto.Equal(c.GetResolvedAt(), over.GetResolvedAt()) || c.GetSummary() != over.GetSummary() {
		t.Errorf("got %v after the second restart, want %v", c, over)
	}
	a.cancel()
	l.dial().send(twoPods()).sync()
	if c := l.known(pb.Conflict_SUSPECTED); c.GetId() != before.GetId() || c.GetEpisode() != 2 {
		t.Errorf("got %v, want episode 2 of %s", c, before.GetId())
	}
	l.settled()
	if got := len(l.conflictsRecorded()); got != len(events)+1 {
		t.Errorf("got %d events, want one more than %d", got, len(events))
	}
}

// A rival that left long ago is still why a kernel does not use an address, so that it is known after a restart: without it,
// the rival would count as one that is not known.
func TestARivalThatLeftLongAgoIsKnownAfterARestart(t *testing.T) {
	for name, test := range map[string]struct {
		repaired         bool
		rule             string
		active, resolved int // conflicts that are known in the end
	}{
		"refused":                     {false, "dad-failed", 0, 1},
		"repaired (a look-alike)":     {true, "dad-failed", 0, 0},
		"another rule (a look-alike)": {false, "assigned-twice", 1, 0},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := Config{DataDir: t.TempDir(), Alone: true, Settle: time.Millisecond}
			pods := func(epoch uint64, refused bool, more ...*pb.ReportRequest) *pb.ReportRequest {
				a := podVeth(2, "a", "fd00:9::9")
				if refused {
					a.Claims[0].Kind, a.Claims[0].Flags = pb.Evidence_DAD_FAILED, verdict.FlagDADFailed
				}
				return snapshot(hello("n1", epoch), append(more, a)...)
			}
			l := newLab(t, cfg)
			agent := l.dial().send(pods(1, true, podVeth(3, "b", "fd00:9::9"))).sync()
			wait.Until(t, "a conflict", func() bool { return len(l.list(&pb.ListConflictsRequest{})) == 1 })
			agent.cancel()
			l.dial().send(pods(1, true)).sync()
			over := proto.CloneOf(l.known(pb.Conflict_RESOLVED))
			l.settled()
			ago := time.Now().Add(-48 * time.Hour)
			over.Rule, over.DetectedAt, over.ConfirmedAt, over.ResolvedAt = test.rule, timestamppb.New(ago.Add(-time.Hour)), timestamppb.New(ago.Add(-time.Hour)), timestamppb.New(ago)
			feed := l.core.journal.Feed(pb.Event_CONFLICT)
			if err := feed.Changed(&journal.Change{At: time.Now(), Type: pb.Watch_UPDATED, Conflict: over}); err != nil {
				t.Fatal(err)
			}
			if err := feed.Flush(); err != nil {
				t.Fatal(err)
			}
			l.stop()

			l = newLab(t, cfg)
			if test.rule == verdict.RuleDADFailed {
				l.known(pb.Conflict_RESOLVED)
			}
			l.dial().send(pods(2, !test.repaired)).sync()
			wait.Until(t, "all to be judged", func() bool { _, awaited := l.told(); return len(awaited) == 0 })
			wait.Until(t, "the conflicts", func() bool {
				active := len(l.list(&pb.ListConflictsRequest{State: pb.Conflict_SUSPECTED})) + len(l.list(&pb.ListConflictsRequest{State: pb.Conflict_CONFIRMED}))
				return active == test.active && len(l.list(&pb.ListConflictsRequest{State: pb.Conflict_RESOLVED})) == test.resolved
			})
		})
	}
}

// A limit on the resolved conflicts that are kept does not concern active ones.
func TestAnActiveConflictIsKnownAfterARestartBesideManyResolvedOnes(t *testing.T) {
	cfg := Config{DataDir: t.TempDir()}
	l := newLab(t, cfg)
	l.dial().send(twoPods()).sync()
	before := l.recorded(pb.Conflict_SUSPECTED)
	l.settled()
	feed, now := l.core.journal.Feed(pb.Event_CONFLICT), time.Now()
	for i := range judge.KeepResolved + 1 {
		if err := feed.Changed(&journal.Change{At: now, Type: pb.Watch_ADDED, Conflict: &pb.Conflict{
			Id: fmt.Sprintf("%016x", i), Address: netip.AddrFrom4([4]byte{10, 9, byte(i >> 8), byte(i)}).String(), Scope: before.GetScope(),
			State: pb.Conflict_RESOLVED, DetectedAt: timestamppb.New(now), ResolvedAt: timestamppb.New(now),
		}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := feed.Flush(); err != nil {
		t.Fatal(err)
	}
	l.stop()

	l = newLab(t, cfg)
	if c := l.known(pb.Conflict_SUSPECTED); c.GetId() != before.GetId() {
		t.Errorf("got %v, want %v", c, before)
	}
}

// A node that does not come back in time has timed out.
func TestAConflictOfANodeThatDoesNotComeBackEnds(t *testing.T) {
	cfg := Config{DataDir: t.TempDir(), Settle: time.Millisecond, NodeTimeout: 2 * time.Second}
	l := newLab(t, cfg)
	l.dial().send(twoPods()).sync()
	before := l.recorded(pb.Conflict_SUSPECTED)
	l.settled()
	l.stop()

	l = newLab(t, cfg)
	l.dial().send(snapshot(hello("n2", 1), podVeth(2, "c", "10.244.9.9"))).sync()
	over := l.known(pb.Conflict_RESOLVED)
	if over.GetId() != before.GetId() || len(over.GetOwners()) != 2 {
		t.Errorf("got %v, want %v to be resolved", over, before)
	}
	for _, o := range over.GetOwners() {
		if o.GetState() != pb.Owner_GONE || o.GetNode() != "n1" {
			t.Errorf("got owner %v, want it gone", o)
		}
	}
}

// told returns the findings in the order of lists, and what is awaited.
func (l *lab) told() (all []*pb.Finding, awaited []string) {
	l.Helper()
	out, err := l.client.ListFindings(l.ctx, &pb.ListFindingsRequest{})
	if err != nil {
		l.Fatal(err)
	}
	for _, a := range out.GetCoverage().GetAwaited() {
		awaited = append(awaited, a.GetWhat().String())
	}
	return out.GetFindings(), awaited
}

// witness returns what a restart must not change of findings.
func witness(all []*pb.Finding) (texts []string) {
	for _, f := range all {
		texts = append(texts, f.GetId()+" "+f.GetDetectedAt().AsTime().String())
		for _, e := range f.GetEvidence() {
			before, _, _ := strings.Cut(e, ", last read") // the time of the last reading
			texts = append(texts, before)
		}
	}
	return texts
}

// Findings stay as they were told until the facts are complete, with their evidence, and then last or end.
func TestFindingsAreToldAsBeforeUntilTheFactsAreComplete(t *testing.T) {
	cfg := Config{DataDir: t.TempDir(), Alone: true}
	l := newLab(t, cfg)
	a, b := kindPod(2, "a", "10.244.0.2"), kindPod(3, "b", "10.244.0.3") // assigned once, at one time
	pods := func(more ...*pb.ReportRequest) *pb.ReportRequest {
		return snapshot(hello("n1", uint64(time.Now().UnixNano())), append(more, a, b)...)
	}
	n1 := l.dial().send(pods(poolOf(hostLocal("10.244.0.0/24", pb.Pool_KNOWN)),
		given(allocated("10.244.0.2", "sandbox-a"), allocated("10.244.0.3", "sandbox-b")))).sync()
	lost := hostLocal("10.244.0.0/24", pb.Pool_MISSING)
	lost.LostAt, lost.Lost = timestamppb.Now(), 2
	n1.send(records.Merge(&pb.ReportRequest{}, poolOf(lost), freed(allocated("10.244.0.2", "sandbox-a")), freed(allocated("10.244.0.3", "sandbox-b")))).sync()
	var before []*pb.Finding
	wait.Until(t, "the loss and both addresses", func() bool {
		before, _ = l.told()
		return len(before) == 3 && len(before[2].GetAddresses())+len(before[0].GetAddresses()) == 2
	})
	l.settled()
	wait.Until(t, "the findings in the journal", func() bool {
		out, err := l.client.ListFindings(l.ctx, &pb.ListFindingsRequest{At: timestamppb.Now()})
		return err == nil && slices.Equal(witness(out.GetFindings()), witness(before))
	})
	l.stop()

	same := func(why string, all []*pb.Finding) {
		t.Helper()
		if got, want := witness(all), witness(before); !slices.Equal(got, want) {
			t.Errorf("%s: got\n%s\nwant\n%s", why, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
	l = newLab(t, cfg)
	var all []*pb.Finding
	wait.Until(t, "the journal to be read", func() bool {
		var awaited []string
		all, awaited = l.told()
		return slices.Equal(awaited, []string{"REPORT"})
	})
	same("before the node has reported", all)
	if len(all) > 0 && len(all[0].GetRemedy()) > 0 {
		t.Errorf("got the steps %v of a finding that was not judged", all[0].GetRemedy())
	}
	unread := pods()
	unread.Status = &pb.StatusRecord{Wire: "off", UnreadIpams: []string{"host-local"}}
	n1 = l.dial().send(unread).sync()
	for until := time.Now().Add(2 * time.Second); time.Now().Before(until); time.Sleep(50 * time.Millisecond) {
		all, awaited := l.told()
		if same("before its records were read", all); len(awaited) == 0 {
			t.Fatal("nothing is awaited before the records were read")
		}
	}
	read := poolOf(hostLocal("10.244.0.0/24", pb.Pool_MISSING))
	read.Status = &pb.StatusRecord{Wire: "off"}
	n1.send(read).sync()
	wait.Until(t, "all to be judged", func() bool {
		var awaited []string
		all, awaited = l.told()
		return len(awaited) == 0
	})
	same("when all is judged", all)
	wait.Until(t, "the findings to be found again", func() bool {
		all, _ = l.told()
		return len(all) == 3 && len(all[0].GetRemedy()) > 0 && len(all[1].GetRemedy()) > 0 && len(all[2].GetRemedy()) > 0
	})
	l.settled()
	for _, e := range l.events(&pb.ListEventsRequest{Kind: pb.Event_FINDING}).GetEvents() {
		if e.GetType() == pb.Watch_REMOVED {
			t.Errorf("got %v in the journal, want that nothing ended", e)
		}
	}

	n1.cancel()
	n1 = l.dial().send(pods(poolOf(hostLocal("10.244.0.0/24", pb.Pool_MISSING)))).sync()
	all, _ = l.told()
	if len(all) != 3 {
		t.Errorf("got %v after a restart of the agent, want the same findings", all)
	}
	n1.send(records.Merge(&pb.ReportRequest{}, poolOf(hostLocal("10.244.0.0/24", pb.Pool_KNOWN)),
		given(allocated("10.244.0.2", "sandbox-a"), allocated("10.244.0.3", "sandbox-b")))).sync()
	wait.Until(t, "the end of the findings", func() bool {
		all, _ := l.told()
		return len(all) == 0
	})
}

// What is gone after a restart ends when the facts are complete.
func TestAFindingThatEndsDuringARestartEnds(t *testing.T) {
	cfg := Config{DataDir: t.TempDir(), Alone: true}
	l := newLab(t, cfg)
	missing := poolOf(hostLocal("10.244.0.0/24", pb.Pool_MISSING))
	l.dial().send(snapshot(hello("n1", 1), missing, kindPod(2, "a", "10.244.0.2"))).sync()
	l.await("the finding in the journal", &pb.ListEventsRequest{Kind: pb.Event_FINDING}, func(e *pb.Event) bool { return e.GetFinding().GetKind() == "ipam-state-lost" })
	l.settled()
	l.stop()
	l = newLab(t, cfg)
	l.dial().send(snapshot(hello("n1", 2), missing)).sync()
	wait.Until(t, "the end of the findings", func() bool {
		all, awaited := l.told()
		return len(all)+len(awaited) == 0
	})
	l.settled()
	removed := 0
	for _, e := range l.events(&pb.ListEventsRequest{Kind: pb.Event_FINDING}).GetEvents() {
		if e.GetType() == pb.Watch_REMOVED {
			removed++
		}
	}
	if removed != 2 {
		t.Errorf("got %d ends in the journal, want those of the address and of the pool", removed)
	}
}

// A finding that lasts keeps the time at which it began.
func TestAFindingKeepsItsTimeAfterARestart(t *testing.T) {
	cfg := Config{DataDir: t.TempDir()}
	l := newLab(t, cfg)
	other := hello("same", 1)
	other.BootId = "another"
	two := func() {
		l.dial().send(snapshot(hello("same", 1), podVeth(2, "a", addr))).sync()
		l.dial().send(snapshot(other, podVeth(2, "b", "10.244.0.9"))).sync()
	}
	two()
	before := l.await("the finding in the journal", &pb.ListEventsRequest{Kind: pb.Event_FINDING, Node: "same"}, func(e *pb.Event) bool { return e.GetFinding() != nil }).GetFinding()
	l.settled()
	l.stop()
	l = newLab(t, cfg)
	two()
	wait.Until(t, "the finding with its time", func() bool {
		out, err := l.client.ListFindings(l.ctx, &pb.ListFindingsRequest{Kind: before.GetKind()})
		if err != nil {
			t.Fatal(err)
		}
		return len(out.GetFindings()) == 1 && proto.Equal(out.GetFindings()[0].GetDetectedAt(), before.GetDetectedAt())
	})
}

// A device outside has no claims after a restart until a frame shows it again.
func TestAConflictWithADeviceOutsideIsKnownAfterARestart(t *testing.T) {
	cfg := Config{DataDir: t.TempDir(), Settle: time.Millisecond}
	l := newLab(t, cfg)
	node := snapshot(hello("n1", 1), uplink(nodeMAC(1)), records.Claims(assigned(1, addr), entered(pb.Evidence_ANNOUNCED, addr, []byte{6, 6, 6, 6, 6, 6})))
	l.dial().send(node).sync()
	before := l.recorded(pb.Conflict_SUSPECTED)
	l.settled()
	l.stop()

	l = newLab(t, cfg)
	away := l.known(pb.Conflict_SUSPECTED)
	if identity(away) != identity(before) || away.GetSummary() == "" {
		t.Errorf("got %v before any node has reported, want %v", away, before)
	}
	w := l.watchConflicts()
	w.next(added)
	l.dial().send(node).sync()
	if again := w.next(updated); identity(again) != identity(before) {
		t.Errorf("got %v when the node had reported, want %v to continue", again, before)
	}
}

// Frames of an owner that nothing else shows may be minutes apart. A conflict with one lasts until a new agent would have
// seen them.
func TestAConflictThatFramesShowIsKnownAfterRestarts(t *testing.T) {
	frame := func() *pb.ReportRequest {
		c := assigned(1, addr)
		c.Kind, c.Index, c.Mac, c.Link, c.AssignedAt = pb.Evidence_ANNOUNCED, 103, []byte{2, 9, 9, 9, 9, 9}, records.Port(3), nil
		return records.Claims(c)
	}
	for _, test := range []struct {
		name   string
		ran    bool              // the agent has run for long
		reused string            // the address of the pod after the restart
		then   *pb.ReportRequest // is seen, while the conflict awaits frames
		ends   time.Duration     // it ends then at the earliest
		lasts  bool
	}{
		{name: "a frame is seen", reused: addr, then: frame(), lasts: true},
		{name: "none is seen", reused: addr, ends: 3 * time.Second},
		{name: "only the aggregator was restarted", ran: true, reused: addr},
		{name: "the other owner is gone", reused: "10.244.9.7"},
		{name: "the other owner goes", reused: addr, then: gone(assigned(2, addr))},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			cfg := Config{DataDir: t.TempDir(), Settle: time.Millisecond, StaleAfter: 3 * time.Second}
			ports := func(epoch uint64, a string) *pb.ReportRequest {
				return snapshot(hello("n1", epoch), podVeth(2, "a", a), podVeth(3, "b", "10.244.9.9"))
			}
			l := newLab(t, cfg)
			l.dial().send(records.Merge(ports(1, addr), frame())).sync()
			before := l.recorded(pb.Conflict_SUSPECTED)
			l.settled()
			l.stop()

			l = newLab(t, cfg)
			start, epoch := time.Now(), uint64(1)
			if !test.ran {
				epoch = uint64(start.UnixNano())
			}
			a := l.dial().send(ports(epoch, test.reused)).sync()
			l.settled()
			if test.then == nil && test.ends > 0 {
				out, err := l.client.Explain(l.ctx, &pb.ExplainRequest{Address: addr})
				if got := out.GetSummary(); err != nil || !strings.HasPrefix(got, "Cannot tell yet") {
					t.Errorf("got %q, %v while frames are awaited, want that this cannot be told yet", got, err)
				}
			}
			if test.then != nil {
				time.Sleep(500 * time.Millisecond)
				a.send(test.then).sync()
			}
			state := pb.Conflict_RESOLVED
			if test.lasts {
				state = pb.Conflict_SUSPECTED
				wait.Until(t, "the conflict to be judged", func() bool {
					all := l.list(&pb.ListConflictsRequest{})
					return len(all) == 1 && all[0].GetOwners()[0].GetState() == pb.Owner_LIVE && all[0].GetOwners()[1].GetState() == pb.Owner_LIVE
				})
				for count := uint32(2); time.Since(start) < cfg.StaleAfter+time.Second; count++ {
					time.Sleep(cfg.StaleAfter / 10)
					again := frame()
					again.Claims[0].Count = count
					a.send(again).sync()
				}
			}
			c := l.known(state)
			if c.GetEpisode() != 1 || c.GetId() != before.GetId() {
				t.Errorf("got %v, want %v", c, before)
			}
			if took := c.GetResolvedAt().AsTime().Sub(start); !test.lasts && (took < test.ends || test.ends == 0 && took > cfg.StaleAfter) {
				t.Errorf("got the end after %s, want %s at the earliest", took, test.ends)
			}
		})
	}
}
