package workload

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	runtimev1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/ipwitness/ipwitness/agent/table"
	"github.com/ipwitness/ipwitness/tests/agenttest"
)

// stepping is a Client whose steps a test calls.
type stepping struct {
	*Runtime
	runtime        *fakeRuntime
	client         runtimev1.RuntimeServiceClient
	changed, state int // calls of Changed and StatusChanged
}

func newStepping(t *testing.T) *stepping {
	t.Helper()
	socket := filepath.Join(socketDir(t), "fake.sock")
	s := &stepping{Runtime: NewRuntime(slog.New(slog.DiscardHandler), socket, ProcDir(t.TempDir())), runtime: newFakeRuntime()}
	s.runtime.serve(t, socket)
	conn, err := grpc.NewClient("passthrough:///x", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	s.client = runtimev1.NewRuntimeServiceClient(conn)
	s.Changed, s.StatusChanged = func() { s.changed++ }, func() { s.state++ }
	return s
}

func TestSandboxThatWasAskedForInVainIsAskedForAgainWhenItIsListedMuchLater(t *testing.T) {
	s := newStepping(t)
	long := time.Now().Add(-listEvery - time.Second)
	for id, a := range map[string]attempt{
		"late": {tries: mostTries, last: long}, "soon": {tries: mostTries, last: time.Now()}, "few": {tries: 2, last: long}, "gone": {tries: 2, last: long},
	} {
		s.unanswered[id] = &a
		if id != "gone" {
			s.runtime.pods[id] = sandboxAnswer(id, id, "/run/netns/"+id)
		}
	}
	s.known["kept"], s.known["ended"] = &Sandbox{ID: "kept"}, &Sandbox{ID: "ended"}
	s.runtime.pods["kept"] = sandboxAnswer("kept", "kept", "/run/netns/kept")
	s.runtime.pods["new"] = sandboxAnswer("new", "new", "/run/netns/new")
	s.runtime.pods[strings.Repeat("x", table.MaxLength+1)] = sandboxAnswer(strings.Repeat("x", table.MaxLength+1), "x", "")
	s.runtime.pods[strings.Repeat("y", table.MaxLength)] = sandboxAnswer(strings.Repeat("y", table.MaxLength), "y", "")
	before := time.Now()
	s.Unnamed([]uint64{7})
	if err := s.list(t.Context(), s.client); err != nil {
		t.Fatal(err)
	}
	got := map[string]int{}
	for id, a := range s.unanswered {
		got[id] = a.tries
	}
	if want := (map[string]int{"late": mostTries - 1, "soon": mostTries, "few": 2, "new": 0, strings.Repeat("y", table.MaxLength): 0}); !maps.Equal(got, want) {
		t.Errorf("attempts: got %v, want %v", got, want)
	}
	if len(s.known) != 1 || s.changed != 1 || s.state != 1 {
		t.Errorf("known sandboxes: got %v, changed %d times, status %d times, want only the one that is kept, told once, and that the runtime answers", s.known, s.changed, s.state)
	}
	if a := s.unnamed[7]; a.tries != 1 || a.last.Before(before) {
		t.Errorf("attempt for a namespace: got %+v, want one at the time of the list", a)
	}
	if err := s.list(t.Context(), s.client); err != nil || s.changed != 1 || s.state != 1 {
		t.Errorf("the same list again: got error %v, changed %d times, status %d times, want nothing told", err, s.changed, s.state)
	}
}

func TestAnswersAboutSandboxes(t *testing.T) {
	s := newStepping(t)
	tree := agenttest.NewTree(t)
	tree.Put(4711, 1, "pause", 99, 10, "/")
	s.procDir = ProcDir(tree.Dir)
	s.runtime.pods["good"] = sandboxAnswer("good", "web-0", "")
	s.runtime.pods["odd"] = sandboxAnswer("even", "web-1", "/run/netns/b")
	for _, id := range []string{"good", "odd", "missing"} {
		s.unanswered[id] = &attempt{}
	}
	begun := time.Now()
	if !s.askRound(t.Context(), s.client, []string{"good", "odd", "missing"}) {
		t.Error("round: got that the runtime is slow")
	}
	if got := s.Sandboxes(); len(got) != 1 || got[0].ID != "good" || got[0].Process.Start != 99 || s.changed != 1 {
		t.Errorf("sandboxes: got %+v, changed %d times, want one with its process, told once", got, s.changed)
	}
	if a := s.unanswered["odd"]; len(s.unanswered) != 1 || a.tries != 1 || a.last.Before(begun) {
		t.Errorf("unanswered: got %v, want the odd one, tried once now", s.unanswered)
	}
	if !s.askRound(t.Context(), s.client, []string{"odd"}) || s.changed != 1 {
		t.Errorf("round without news: got %d changes, want none more", s.changed-1)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if s.askRound(ctx, s.client, []string{"odd"}) || s.unanswered["odd"].tries != 2 {
		t.Errorf("round that is given up: got it counted as attempt %d", s.unanswered["odd"].tries)
	}
	if due := s.unansweredDue(); due.IsZero() || due.Before(begun) {
		t.Errorf("next attempt: got %s", due)
	}
}

func TestStateOfTheRuntimeIsReportedWhenItChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := NewRuntime(slog.New(slog.DiscardHandler), "/run/x.sock", "")
		calls := make(chan struct{}, 10)
		c.StatusChanged = func() { calls <- struct{}{} }
		want := func(what string, want int) {
			t.Helper()
			synctest.Wait()
			got := len(calls)
			for range got {
				<-calls
			}
			if got != want {
				t.Errorf("%s: got the status told %d times, want %d", what, got, want)
			}
		}
		c.socketIs("fake", "/run/x.sock")
		c.answers()
		want("it answers", 1)
		c.answers()
		want("it still answers", 0)
		c.failed(errors.New("a"))
		want("it fails", 1)
		c.failed(errors.New("a"))
		want("it fails again", 0)
		c.failed(errors.New("b"))
		want("it fails for another reason", 1)
		if _, problems := c.Health(time.Now()); len(problems) != 0 {
			t.Errorf("problems at once: got %q", problems)
		}
		time.Sleep(awayAfter)
		want("it has failed for long", 1)
		if name, problems := c.Health(time.Now()); len(problems) != 1 || name != "fake" {
			t.Errorf("problems later: got %q of %q, want one", problems, name)
		}
		c.answers()
		want("it answers again", 1)
	})
}

func TestOtherRuntimeEndsTheSandboxesOfTheFirst(t *testing.T) {
	s := newStepping(t)
	s.known["1"] = &Sandbox{ID: "1"}
	conn := s.find(t.Context())
	if conn == nil || len(s.known) != 1 || s.changed != 0 {
		t.Fatalf("first runtime: got %v, sandboxes %v, changed %d times", conn, s.known, s.changed)
	}
	_ = conn.Close()
	s.socket = "/run/other.sock"
	conn = s.find(t.Context())
	if conn == nil || len(s.known) != 0 || s.changed != 1 {
		t.Fatalf("another runtime: got %v, sandboxes %v, changed %d times, want none of the other, told once", conn, s.known, s.changed)
	}
	_ = conn.Close()
	s.runtime.set(func() { s.runtime.fails["Version"] = status.Error(codes.Unimplemented, "unknown service") })
	if _, _, err := s.connect(t.Context(), s.sockets[0]); err == nil || !strings.Contains(err.Error(), "does not implement CRI v1") {
		t.Errorf("without CRI: got error %v", err)
	}
	s.runtime.set(func() { s.runtime.fails["Version"] = status.Error(codes.Internal, "out of order") })
	if _, _, err := s.connect(t.Context(), s.sockets[0]); err == nil || err.Error() != "out of order" {
		t.Errorf("runtime that fails: got error %v, want its text", err)
	}
	if conn := s.find(t.Context()); conn != nil {
		t.Error("runtime that fails: got a connection")
	}
	s.sockets = []string{s.sockets[0] + "-missing"}
	if conn := s.find(t.Context()); conn != nil {
		t.Error("missing socket: got a connection")
	}
	s.sockets = []string{filepath.Dir(s.sockets[0])}
	if _, _, err := s.connect(t.Context(), s.sockets[0]); err == nil || err.Error() != "it is not a socket" {
		t.Errorf("directory: got error %v", err)
	}
}

func TestNameOfARuntimeIsShort(t *testing.T) {
	for _, c := range []struct {
		length int
		want   string
	}{{10, strings.Repeat("n", 10) + " 1.2.3"}, {table.MaxLength - len(" 1.2.3"), strings.Repeat("n", table.MaxLength-len(" 1.2.3")) + " 1.2.3"}, {table.MaxLength, "a runtime with an overlong name"}} {
		s := newStepping(t)
		s.runtime.name = strings.Repeat("n", c.length)
		if name, _, err := s.Probe(t.Context()); err != nil || name != c.want {
			t.Errorf("name of %d bytes: got %q and error %v", c.length, name, err)
		}
	}
}

func TestListsAreScheduledByHowTheLastOneEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l listing
		for i, want := range []time.Duration{firstTry, 2 * firstTry, 4 * firstTry} {
			if l.done(time.Now(), errors.New("busy")); time.Until(l.next) != want || l.failures != i+1 {
				t.Errorf("failure %d: got the next list after %s, want %s", i+1, time.Until(l.next), want)
			}
		}
		l.failures = 40
		if l.done(time.Now(), errors.New("busy")); time.Until(l.next) != longestTry {
			t.Errorf("many failures: got the next list after %s, want %s", time.Until(l.next), longestTry)
		}
		begun := time.Now()
		time.Sleep(time.Second)
		if l.done(begun, nil); l.failures != 0 || time.Until(l.next) != listEvery || time.Until(l.soonest) != listShare*time.Second {
			t.Errorf("success: got %s and %s, want %s and %s", time.Until(l.next), time.Until(l.soonest), listEvery, listShare*time.Second)
		}
		if l.done(time.Now(), nil); time.Until(l.soonest) != firstTry {
			t.Errorf("fast success: got the next list after %s at the earliest, want %s", time.Until(l.soonest), firstTry)
		}
		a, b := time.Unix(1, 0), time.Unix(2, 0)
		for _, c := range [][3]time.Time{{a, b, a}, {b, a, a}, {a, {}, a}, {{}, a, a}, {{}, {}, {}}, {a, a, a}} {
			if got := soonest(c[0], c[1]); got != c[2] {
				t.Errorf("soonest of %s: got %s", fmt.Sprint(c[:2]), got)
			}
		}
	})
}
