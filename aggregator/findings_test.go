package aggregator

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// findings lists all findings.
func (l *lab) findings() []*pb.Finding {
	l.Helper()
	synctest.Wait() // for pending requests to agents
	out, err := allPages(func(token string) (*pb.ListFindingsResponse, error) {
		return l.client.ListFindings(l.ctx, &pb.ListFindingsRequest{PageToken: token})
	})
	if err != nil {
		l.Fatal(err)
	}
	return out.GetFindings()
}

// finding returns the only finding, which must be about these nodes.
func (l *lab) finding(nodes ...string) *pb.Finding {
	l.Helper()
	all := l.findings()
	if len(all) != 1 || !slices.Equal(all[0].GetNodes(), nodes) {
		l.Fatalf("got findings %v, want one of %v", all, nodes)
	}
	return all[0]
}

// wantNoFinding checks that there are no findings.
func (l *lab) wantNoFinding(why string) {
	l.Helper()
	if all := l.findings(); len(all) != 0 {
		l.Fatalf("%s: got findings %v, want none", why, all)
	}
}

// twin returns the hello of an agent on another machine with the same node name.
func twin(node, boot string, epoch uint64) *pb.Hello {
	h := hello(node, epoch)
	h.BootId = boot
	return h
}

func TestTwoNodesOfOneNameAreFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{})
		l.dial().send(snapshot(hello("n1", 1))).sync()
		l.dial().send(snapshot(hello("n2", 1))).sync()
		l.wantNoFinding("two names")
		w, err := l.client.WatchFindings(l.ctx, &pb.WatchFindingsRequest{})
		if err != nil {
			t.Fatal(err)
		}
		next := func(want pb.Watch_Type) *pb.WatchFindingsResponse {
			t.Helper()
			m, err := w.Recv()
			for err == nil && m.GetType() == pb.Watch_BOOKMARK && want != pb.Watch_BOOKMARK {
				m, err = w.Recv()
			}
			if err != nil || m.GetType() != want {
				t.Fatalf("got %v, %v, want %s", m, err, want)
			}
			return m
		}
		next(pb.Watch_BOOKMARK)

		second := l.dial().send(&pb.ReportRequest{Hello: twin("n1", "later-boot", 1), SnapshotBegin: true}).sync()
		l.wantNoFinding("a node of which nothing is known yet")
		second.send(&pb.ReportRequest{SnapshotEnd: true}).sync()
		f := l.finding("n1", "n1@later-bo")
		for _, want := range []string{"2 connected nodes", "n1 (boot id boot-n1)", "n1@later-bo (boot id later-boot)"} {
			if !strings.Contains(f.GetSummary(), want) {
				t.Errorf("got summary %q, want %q in it", f.GetSummary(), want)
			}
		}
		remedy := fmt.Sprint(f.GetRemedy())
		for _, want := range []string{"--node", "unique hostname", "machine-id", "n1@later-bo: boot id later-boot, network namespace 4026531840, Linux 6.18, agent v0"} {
			if !strings.Contains(remedy, want) {
				t.Errorf("got remedy %s, want %q in it", remedy, want)
			}
		}
		if f.GetKind() != "duplicate-node-name" || len(f.GetId()) != 16 || f.GetAddress() != "" || !f.GetDetectedAt().AsTime().Equal(time.Now()) {
			t.Errorf("got %v, want a new duplicate-node-name without an address", f)
		}
		if got := next(pb.Watch_ADDED).GetFinding(); got.GetId() != f.GetId() {
			t.Errorf("got %v, want %v", got, f)
		}
		if got := l.metric("ipwitness_findings", "duplicate-node-name"); got != 1 {
			t.Errorf("got %v in ipwitness_findings, want 1", got)
		}
		nodes, _ := l.client.ListNodes(l.ctx, &pb.ListNodesRequest{})
		for i, other := range []string{"n1@later-bo", "n1", ""} {
			problems := strings.Join(nodes.GetNodes()[i].GetProblems(), " ")
			if (other == "") != (problems == "") || !strings.Contains(problems, "the same name (n1) as "+other+":") && other != "" {
				t.Errorf("got problems %q of %s, want them to name %q", problems, nodes.GetNodes()[i].GetName(), other)
			}
		}

		time.Sleep(time.Minute)
		third := l.dial().send(snapshot(twin("n1", "third-boot", 1))).sync()
		f = l.finding("n1", "n1@later-bo", "n1@third-bo")
		if got := next(pb.Watch_UPDATED).GetFinding(); got.GetId() != f.GetId() || !got.GetDetectedAt().AsTime().Equal(time.Now().Add(-time.Minute)) {
			t.Errorf("got %v, want it changed, with its detection a minute ago", got)
		}
		third.cancel()
		l.finding("n1", "n1@later-bo")
		next(pb.Watch_UPDATED)
		second.cancel()
		l.wantNoFinding("the second one is silent")
		if got := next(pb.Watch_REMOVED).GetFinding(); got.GetId() != f.GetId() {
			t.Errorf("got %v, want %v", got, f)
		}
		if got := l.metric("ipwitness_findings", "duplicate-node-name"); got != 0 {
			t.Errorf("got %v in ipwitness_findings, want 0", got)
		}
		id := f.GetId()
		l.dial().send(snapshot(twin("n1", "later-boot", 2))).sync()
		if f = l.finding("n1", "n1@later-bo"); f.GetId() != id {
			t.Errorf("got id %s, want %s again", f.GetId(), id)
		}
		l.dial().send(snapshot(twin("renamed", "later-boot", 3))).sync()
		l.wantNoFinding("the second one has a name of its own")
	})
}

func TestRebootedMachineIsNoSecondNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{})
		before := l.dial().send(snapshot(hello("n1", 1))).sync()
		before.mute.Store(true) // the agent died, but its stream is still open
		time.Sleep(time.Second)
		l.dial().send(snapshot(twin("n1", "boot-2", 2))).sync()
		for range 30 {
			l.wantNoFinding("the first one is dead")
			time.Sleep(time.Second)
		}
		if err := before.ended(); status.Code(err) != codes.DeadlineExceeded {
			t.Fatalf("got %v, want the stream of the dead one ended", err)
		}

		time.Sleep(time.Second)
		l.dial().send(snapshot(twin("n1", "boot-3", 3))).sync()
		l.finding("n1", "n1@boot-3")
	})
}

func TestAgentsOnOneKernelWithOneNameAreAdvisedToRename(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{})
		l.dial().send(snapshot(hello("n1", 1))).sync()
		inside := hello("n1", 1)
		inside.Netns = "4026539999"
		l.dial().send(snapshot(inside)).sync()
		f := l.finding("n1", "n1@boot-n1")
		if remedy := fmt.Sprint(f.GetRemedy()); !strings.Contains(remedy, "one kernel") || !strings.Contains(remedy, "4026539999") {
			t.Errorf("got remedy %s, want it to say that they run on one kernel", remedy)
		}
	})
}

func TestFindingsArePagedInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{})
		for _, name := range []string{"c", "a", "e", "b", "d"} {
			l.dial().send(snapshot(hello(name, 1))).sync()
			l.dial().send(snapshot(twin(name, "twin-"+name, 1))).sync()
		}
		all := l.findings()
		for size := uint32(1); size <= 6; size++ {
			var got []*pb.Finding
			for q := (&pb.ListFindingsRequest{PageSize: size}); ; {
				page, err := l.client.ListFindings(l.ctx, q)
				if err != nil {
					t.Fatal(err)
				}
				got = append(got, page.GetFindings()...)
				if q.PageToken = page.GetNextPageToken(); q.PageToken == "" {
					break
				}
			}
			same := slices.EqualFunc(got, all, func(a, b *pb.Finding) bool { return a.GetId() == b.GetId() })
			if len(all) != 5 || !same {
				t.Errorf("page size %d: got %v, want %v", size, got, all)
			}
		}
	})
}

func TestFindingsAreLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		s := newIdleCore(t, slog.New(slog.NewTextHandler(&out, nil)))
		ctx, cancel := context.WithCancel(t.Context())
		go s.notifier.Run(ctx)
		synctest.Wait()
		name := func(machines ...string) {
			f := verdict.Finding{ID: "abc", Kind: verdict.FindingDuplicateNodeName, Namesakes: &verdict.Namesakes{Name: "n1"}}
			for _, m := range machines {
				f.Namesakes.Machines = append(f.Namesakes.Machines, verdict.Machine{Name: m})
			}
			s.facts.RLock()
			defer s.facts.RUnlock()
			s.findings.Publish(&f)
		}
		name("n1", "n1@b")
		name("n1", "n1@b", "n1@c")
		s.facts.RLock()
		s.findings.End("abc", false)
		s.findings.End("abc", false)
		s.facts.RUnlock()
		synctest.Wait()
		cancel()
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		if len(lines) != 2 || !strings.Contains(lines[0], `level=WARN msg=finding kind=duplicate-node-name id=abc incident=`) || !strings.Contains(lines[0], ` nodes="[n1 n1@b]"`) ||
			!strings.Contains(lines[1], `level=INFO msg="finding ended"`) {
			t.Errorf("got %q, want its beginning and its end", lines)
		}
	})
}
