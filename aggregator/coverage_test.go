package aggregator

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	dto "github.com/prometheus/client_model/go"
	"google.golang.org/protobuf/proto"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/records"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// coverage returns the coverage, which must be the same in every list and in an explanation.
func (l *lab) coverage() *pb.Coverage {
	l.Helper()
	nodes, err := l.client.ListNodes(l.ctx, &pb.ListNodesRequest{})
	if err != nil {
		l.Fatal(err)
	}
	want := nodes.GetCoverage()
	owners, err1 := l.client.ListOwners(l.ctx, &pb.ListOwnersRequest{})
	conflicts, err2 := l.client.ListConflicts(l.ctx, &pb.ListConflictsRequest{})
	findings, err3 := l.client.ListFindings(l.ctx, &pb.ListFindingsRequest{})
	pools, err4 := l.client.ListPools(l.ctx, &pb.ListPoolsRequest{})
	explained, err5 := l.client.Explain(l.ctx, &pb.ExplainRequest{Address: "10.9.9.9"})
	for i, err := range []error{err1, err2, err3, err4, err5} {
		if err != nil {
			l.Fatalf("list %d: %v", i, err)
		}
	}
	for name, got := range map[string]*pb.Coverage{
		"owners": owners.GetCoverage(), "conflicts": conflicts.GetCoverage(), "findings": findings.GetCoverage(),
		"pools": pools.GetCoverage(), "explain": explained.GetCoverage(),
	} {
		if !proto.Equal(got, want) {
			l.Errorf("%s: got coverage %v, want %v as of the nodes", name, got, want)
		}
	}
	if cannotTell := strings.HasPrefix(explained.GetSummary(), "Cannot tell: "); cannotTell != want.GetIncomplete() {
		l.Errorf("got summary %q of an address without an owner, and coverage %v", explained.GetSummary(), want)
	}
	return want
}

func (l *lab) wantCoverage(want *pb.Coverage) {
	l.Helper()
	time.Sleep(time.Second) // until everything is judged
	if got := l.coverage(); !proto.Equal(got, want) {
		l.Errorf("got coverage %v, want %v", got, want)
	}
}

func TestCoverageReportsWhatIsNotSeen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{Alone: true})
		l.wantCoverage(&pb.Coverage{Incomplete: true})

		l.dial().send(snapshot(hello("n1", 1))).sync()
		l.wantCoverage(&pb.Coverage{Expected: 1, Heard: 1})

		two := l.dial()
		two.send(&pb.ReportRequest{Hello: hello("n2", 1), SnapshotBegin: true})
		synctest.Wait()
		l.wantCoverage(&pb.Coverage{
			Expected: 2, Heard: 1, SilentNodes: []string{"n2"}, Incomplete: true, Awaited: []*pb.Awaited{{What: pb.Awaited_REPORT, Node: "n2"}},
		})
		two.send(&pb.ReportRequest{SnapshotEnd: true, Status: &pb.StatusRecord{Wire: "off"}}).sync()
		off := &pb.Coverage{Expected: 2, Heard: 2, WithoutFrames: 1, NodesWithoutFrames: []string{"n2"}}
		l.wantCoverage(off)
		two.send(&pb.ReportRequest{Status: &pb.StatusRecord{Wire: "tcx", UnwatchedPorts: 1}}).sync()
		l.wantCoverage(off)
		two.send(&pb.ReportRequest{Status: &pb.StatusRecord{Wire: "tcx", Blind: true}}).sync()
		l.wantCoverage(&pb.Coverage{Expected: 2, Heard: 2, WithoutAddresses: 1, NodesWithoutAddresses: []string{"n2"}, Incomplete: true})
		two.send(&pb.ReportRequest{Status: &pb.StatusRecord{Wire: "tcx", UnreadIpams: []string{"host-local"}}}).sync()
		l.wantCoverage(&pb.Coverage{
			Expected: 2, Heard: 2, Incomplete: true, Awaited: []*pb.Awaited{{What: pb.Awaited_RECORDS, Node: "n2", Ipam: "host-local"}},
		})
		two.send(&pb.ReportRequest{Status: &pb.StatusRecord{Wire: "tcx", UnreadableIpams: []string{"host-local"}}}).sync()
		l.wantCoverage(&pb.Coverage{Expected: 2, Heard: 2}) // that is a problem, and nothing to wait for

		two.cancel()
		synctest.Wait()
		silent := &pb.Coverage{Expected: 2, Heard: 1, SilentNodes: []string{"n2"}, Incomplete: true}
		l.wantCoverage(silent)
		time.Sleep(DefaultNodeTimeout + time.Second)
		l.wantCoverage(silent) // a node that timed out is still not seen

		again := hello("n2", 2)
		again.BootId = "another-boot"
		l.dial().send(snapshot(again)).sync()
		l.wantCoverage(&pb.Coverage{Expected: 2, Heard: 2})
	})
}

// wantClear checks whether an explanation of an address with one owner, and the metrics, say that there is no conflict and
// no finding.
func (l *lab) wantClear(want bool) {
	l.Helper()
	explained, err := l.client.Explain(l.ctx, &pb.ExplainRequest{Address: addr})
	if err != nil {
		l.Fatal(err)
	}
	if got := strings.HasPrefix(explained.GetSummary(), "No conflict"); got != want {
		l.Errorf("got the explanation %q, want one that says that there is no conflict: %t", explained.GetSummary(), want)
	}
	families, err := l.registry.Gather()
	if err != nil {
		l.Fatal(err)
	}
	for _, name := range []string{"ipwitness_conflicts", "ipwitness_findings"} {
		if got := slices.ContainsFunc(families, func(f *dto.MetricFamily) bool { return f.GetName() == name }); got != want {
			l.Errorf("got %s: %t, want %t", name, got, want)
		}
	}
}

func TestCoverageAfterAStartWaitsForAgents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{})
		l.dial().send(snapshot(hello("n1", 1), podVeth(2, "web", addr))).sync()
		l.wantCoverage(&pb.Coverage{Expected: 1, Heard: 1, Unknown: pb.Coverage_STARTING, Incomplete: true})
		l.wantClear(false)
		time.Sleep(10 * time.Second)
		l.wantCoverage(&pb.Coverage{Expected: 1, Heard: 1})
		l.wantClear(true)
	})
}

func TestCoverageExpectsTheNodesOfKubernetes(t *testing.T) {
	t.Parallel()
	api := newAPI(t)
	for _, name := range []string{"n1.example.net", "n2", "n3"} {
		api.set("ADDED", apiNode(name))
	}
	l := newLab(t, Config{Kubeconfig: api.kubeconfig()})
	l.dial().send(snapshot(hello("n1", 1))).sync()
	for _, name := range []string{"n2", "removed"} {
		silent := l.dial().send(snapshot(hello(name, 1))).sync()
		silent.cancel()
	}
	want := &pb.Coverage{Expected: 3, Heard: 1, SilentNodes: []string{"n2", "n3"}, Incomplete: true}
	now := func() *pb.Coverage { // from one list only, because it may change between two lists
		nodes, err := l.client.ListNodes(l.ctx, &pb.ListNodesRequest{})
		if err != nil {
			t.Fatal(err)
		}
		return nodes.GetCoverage()
	}
	wait.Until(t, "the coverage of the API", func() bool { return proto.Equal(now(), want) })
	l.wantCoverage(want)
	api.down()
	wait.Until(t, "the coverage without Kubernetes", func() bool { return now().GetUnknown() == pb.Coverage_KUBERNETES })
}

func TestWatchesReportChangesOfCoverage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{Alone: true})
		owners := l.watchOwners(&pb.WatchOwnersRequest{})
		conflicts, err1 := l.client.WatchConflicts(l.ctx, &pb.WatchConflictsRequest{})
		findings, err2 := l.client.WatchFindings(l.ctx, &pb.WatchFindingsRequest{})
		if err1 != nil || err2 != nil {
			t.Fatal(err1, err2)
		}
		next := map[string]func() (pb.Watch_Type, *pb.Coverage, error){
			"owners": func() (pb.Watch_Type, *pb.Coverage, error) {
				m, err := owners.stream.Recv()
				return m.GetType(), m.GetCoverage(), err
			},
			"conflicts": func() (pb.Watch_Type, *pb.Coverage, error) {
				m, err := conflicts.Recv()
				return m.GetType(), m.GetCoverage(), err
			},
			"findings": func() (pb.Watch_Type, *pb.Coverage, error) {
				m, err := findings.Recv()
				return m.GetType(), m.GetCoverage(), err
			},
		}
		// untilChanged reads until the coverage changes.
		last := map[string]*pb.Coverage{}
		untilChanged := func(name string) *pb.Coverage {
			for {
				typ, coverage, err := next[name]()
				if err != nil {
					t.Fatal(err)
				}
				if typ == pb.Watch_BOOKMARK && len(coverage.GetAwaited()) == 0 && !proto.Equal(coverage, last[name]) {
					last[name] = coverage
					return coverage
				}
			}
		}
		steps := []struct {
			do   func() func()
			want *pb.Coverage
		}{
			{func() func() { return nil }, &pb.Coverage{Incomplete: true}},
			{func() func() { return l.dial().send(snapshot(hello("n1", 1))).sync().cancel }, &pb.Coverage{Expected: 1, Heard: 1}},
		}
		var leave func()
		for _, step := range steps {
			leave = step.do()
			for name := range next {
				if got := untilChanged(name); !proto.Equal(got, step.want) {
					t.Errorf("%s: got coverage %v, want %v", name, got, step.want)
				}
			}
		}
		began := time.Now()
		leave()
		for _, name := range []string{"owners", "conflicts"} {
			if got := untilChanged(name); got.GetHeard() != 0 || !slices.Equal(got.GetSilentNodes(), []string{"n1"}) {
				t.Errorf("%s: got coverage %v, want n1 to be silent", name, got)
			}
		}
		if waited := time.Since(began); waited != 0 { // in synctest, the clock stands still while a goroutine runs
			t.Errorf("owners and conflicts: bookmark after %s, want at once", waited)
		}
		if got := untilChanged("findings"); !got.GetIncomplete() {
			t.Errorf("findings: got coverage %v, want it incomplete", got)
		}
	})
}

// Records that can be read again are judged before an answer says that nothing is wrong.
func TestRecordsThatCanBeReadAgainAreNoAllClear(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, recorded := range []bool{false, true} {
			l := newLab(t, Config{Alone: true})
			unreadable := hostLocal("10.244.0.0/24", pb.Pool_UNREADABLE)
			unreadable.Problem = "permission denied"
			a := l.dial().send(snapshot(hello("n1", 1), kindPod(2, "a", "10.244.0.2"), poolOf(unreadable))).sync()
			time.Sleep(time.Minute)
			l.wantFindings("it cannot be read", "ipam-unreadable ")
			readable := poolOf(hostLocal("10.244.0.0/24", pb.Pool_KNOWN))
			if recorded {
				readable = records.Merge(readable, given(allocated("10.244.0.2", "sandbox-a")))
			}
			a.send(readable).sync()
			var found []*pb.Finding
			for range 20 * 7 {
				all, awaited := l.told()
				if found = all; len(all) == 0 && len(awaited) == 0 && !recorded {
					t.Fatal("got the answer that there is no finding, want that it cannot be told yet")
				}
				time.Sleep(time.Second / 20)
			}
			if _, awaited := l.told(); len(awaited) > 0 || recorded == (len(found) > 0) {
				t.Errorf("got %d findings, and %q awaited, want a finding unless the address is recorded: %t", len(found), awaited, recorded)
			}
		}
	})
}

func TestAMappedAddressIsExplainedAsOneOfItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{Alone: true})
		l.dial().send(snapshot(hello("n1", 1), podVeth(2, "a", "10.244.0.2"))).sync()
		for address, owners := range map[string]int{"::ffff:10.244.0.2": 0, "10.244.0.2": 1} {
			out, err := l.client.Explain(l.ctx, &pb.ExplainRequest{Address: address})
			if err != nil || out.GetAddress() != address || len(out.GetOwners()) != owners {
				t.Errorf("%s: got %v and %v, want %d owners", address, out, err, owners)
			}
		}
	})
}
