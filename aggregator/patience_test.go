package aggregator

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/ipwitness/ipwitness/aggregator/api"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// sendWithin is how long a watcher may block one Send before it is disconnected.
const sendWithin = 30 * time.Second

// enough events of chatty owners fill the buffers between the aggregator and a watcher, but not the
// ring.
const enough = 900

// chatty returns a pod whose owners produce large events.
func chatty() *pb.ReportRequest {
	p := podVeth(2, "a", addr)
	p.Namespaces[0].Workload.Process = strings.Repeat("x", 500)
	return p
}

// come adds n owners, with one event each, and returns their addresses.
func (a *agent) come(subnet byte, n int) (addrs []string) {
	a.Helper()
	m := &pb.ReportRequest{}
	for i := range n {
		addr := fmt.Sprintf("10.%d.%d.%d", subnet, i/250, 1+i%250)
		addrs = append(addrs, addr)
		m.Claims = append(m.Claims, assigned(2, addr))
	}
	a.send(m).sync()
	return addrs
}

// wantOnce checks that each address was read once. An address whose event was in flight may have
// been read twice.
func wantOnce(t *testing.T, want []string, got map[string]int) {
	t.Helper()
	twice := 0
	for _, addr := range want {
		if got[addr] == 2 {
			twice++
		} else if got[addr] != 1 {
			t.Errorf("got %s %d times, want it once", addr, got[addr])
			return
		}
	}
	if twice > 1 {
		t.Errorf("got %d twice, want one at most", twice)
	}
}

// watchers checks the number of watches of owners.
func (l *lab) watchers(want int) {
	l.Helper()
	if got := l.core.events.Owners.Subscribers(); got != want {
		l.Fatalf("got %d watchers, want %d", got, want)
	}
}

func TestWatcherThatDoesNotReadIsDisconnectedAndResumes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{})
		a := l.dial().send(snapshot(hello("n1", 1), chatty())).sync()
		slow, quick := l.watchOwners(&pb.WatchOwnersRequest{}), l.watchOwners(&pb.WatchOwnersRequest{})
		slow.until(pb.Watch_BOOKMARK)
		quick.until(pb.Watch_BOOKMARK)

		want := a.come(1, enough)
		for range want {
			quick.until(pb.Watch_ADDED) // while the other watcher does not read
		}
		synctest.Wait()
		l.watchers(2)
		time.Sleep(sendWithin)
		synctest.Wait()
		l.watchers(1)
		more := a.come(2, 10)
		for range more {
			quick.until(pb.Watch_ADDED)
		}

		got := map[string]int{}
		var err error
		for err == nil {
			var m *pb.WatchOwnersResponse
			if m, err = slow.stream.Recv(); m.GetType() == pb.Watch_ADDED {
				got[m.GetOwner().GetAddress()]++
			}
		}
		token := api.ResumeToken(err)
		if status.Code(err) != codes.ResourceExhausted || token == "" || !strings.Contains(err.Error(), "resume_token="+token+":") {
			t.Fatalf("got %v, want RESOURCE_EXHAUSTED with a resume token", err)
		}
		if read := len(got); read < 10 || read > enough-10 {
			t.Fatalf("got %d of %d events before the end: the test has no effect", read, enough)
		}
		slow = l.watchOwners(&pb.WatchOwnersRequest{ResumeToken: token})
		if first := slow.until(pb.Watch_BOOKMARK); len(first) != 1 {
			t.Fatalf("got %v, want an immediate bookmark", types(first))
		}
		for want = append(want, more...); len(got) < len(want); {
			got[slow.until(pb.Watch_ADDED)[0].GetOwner().GetAddress()]++
		}
		wantOnce(t, want, got)
	})
}

func TestWatcherThatNeverReadTheStateStartsAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{})
		a := l.dial().send(snapshot(hello("n1", 1), chatty())).sync()
		want := append(a.come(1, enough), addr)
		slow := l.watchOwners(&pb.WatchOwnersRequest{})
		time.Sleep(sendWithin + time.Second)
		var err error
		for err == nil {
			_, err = slow.stream.Recv()
		}
		slow = l.watchOwners(&pb.WatchOwnersRequest{ResumeToken: api.ResumeToken(err)})
		events := slow.until(pb.Watch_BOOKMARK)
		if events[0].GetType() != pb.Watch_LOST || events[0].GetLost() != 0 || len(events) != len(want)+2 {
			t.Errorf("got %s first of %d after %v, want LOST with 0 and the present state", events[0].GetType(), len(events), err)
		}
	})
}

func TestAWatcherThatDoesNotReadDelaysNoStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{})
		a := l.dial().send(snapshot(hello("n1", 1), chatty())).sync()
		slow := l.watchOwners(&pb.WatchOwnersRequest{})
		slow.until(pb.Watch_BOOKMARK)
		a.come(1, enough)
		synctest.Wait()
		l.stop()
		synctest.Wait()
		l.watchers(0)
		var err error
		for err == nil {
			_, err = slow.stream.Recv()
		}
		if status.Code(err) != codes.Unavailable {
			t.Errorf("got %v, want UNAVAILABLE", err)
		}
	})
}

// serveInMemory is like serve, but without a network, so that it uses the clock of the test. Its
// buffers are small.
func (l *lab) serveInMemory() *http.Client {
	l.Helper()
	h, _, err := l.Handlers(l.registry)
	if err != nil {
		l.Fatal(err)
	}
	listener := bufconn.Listen(4096)
	server := &http.Server{Handler: h}
	go func() { _ = server.Serve(listener) }()
	l.Cleanup(func() { _ = server.Close() })
	return &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true, // with bufconn, a deadline may take effect late, in the next request
		DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return listener.DialContext(ctx) },
	}}
}

// restLine is a line of a watch of owners.
type restLine struct {
	Result struct {
		Type, ResumeToken string
		Owner             struct{ Address string }
	}
	Error struct {
		Code    int
		Message string
		Details []struct {
			Reason, Domain string
			Metadata       map[string]string
		}
	}
}

// restWatch reads a watch of owners over HTTP.
type restWatch struct {
	testing.TB
	lines *bufio.Reader
	err   error
}

func (l *lab) watchREST(client *http.Client, token string) *restWatch {
	l.Helper()
	r, err := client.Get("http://lab/v1/owners:watch?resume_token=" + url.QueryEscape(token))
	if err != nil {
		l.Fatal(err)
	}
	l.Cleanup(func() { _ = r.Body.Close() })
	if r.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(r.Body)
		l.Fatalf("got %s: %s", r.Status, body)
	}
	return &restWatch{TB: l.TB, lines: bufio.NewReader(r.Body)}
}

// next reads a line. It returns false at the end.
func (w *restWatch) next() (line restLine, ok bool) {
	w.Helper()
	raw, err := w.lines.ReadBytes('\n')
	if err != nil {
		w.err = err
		return line, false
	}
	if err := json.Unmarshal(raw, &line); err != nil {
		w.Fatalf("%s: %v", raw, err)
	}
	return line, true
}

func TestClientThatResumesReadingLearnsWhyItWasDisconnected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{})
		client := l.serveInMemory()
		a := l.dial().send(snapshot(hello("n1", 1), chatty())).sync()
		slow := l.watchREST(client, "")
		slow.next()
		slow.next()
		want := a.come(1, enough)
		time.Sleep(sendWithin + time.Second)

		got := map[string]int{}
		var last restLine
		for line, ok := slow.next(); ok; line, ok = slow.next() {
			if last = line; line.Result.Type == "ADDED" {
				got[line.Result.Owner.Address]++
			}
		}
		if !errors.Is(slow.err, io.EOF) || codes.Code(last.Error.Code) != codes.ResourceExhausted || len(last.Error.Details) != 1 {
			t.Fatalf("got %v and %v, want a reason and the end", last, slow.err)
		}
		token := last.Error.Details[0].Metadata["resume_token"]
		if !strings.Contains(last.Error.Message, "resume_token="+token+":") {
			t.Errorf("got %q, want the token", last.Error.Message)
		}
		again := l.watchREST(client, token)
		again.next() // the bookmark
		for len(got) < len(want) {
			line, ok := again.next()
			if !ok || line.Result.Type == "" {
				t.Fatal(line, again.err)
			}
			got[line.Result.Owner.Address]++
		}
		wantOnce(t, want, got)
	})
}

func TestClientThatNeverReadsIsDisconnected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{})
		client := l.serveInMemory()
		a := l.dial().send(snapshot(hello("n1", 1), chatty())).sync()
		slow := l.watchREST(client, "")
		slow.next()
		slow.next()
		a.come(1, enough)
		time.Sleep(readWithin + time.Second)
		got := 0
		for _, ok := slow.next(); ok; _, ok = slow.next() {
			got++
		}
		if !errors.Is(slow.err, io.ErrUnexpectedEOF) || got == enough {
			t.Errorf("got %d lines and %v, want the connection closed before the end", got, slow.err)
		}
	})
}

func TestALongAnswerMayTakeItsTimeWhileItIsRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{})
		client := l.serveInMemory()
		a := l.dial().send(snapshot(hello("n1", 1), chatty())).sync()
		a.come(1, enough)
		r, err := client.Get("http://lab/v1/owners")
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		var body strings.Builder
		for n := int64(answerPart / 2); n == answerPart/2; time.Sleep(readWithin / 12) {
			if n, err = io.CopyN(&body, r.Body, n); err != nil && !errors.Is(err, io.EOF) {
				t.Fatal(err)
			}
		}
		var list struct{ Owners []any }
		if err := json.Unmarshal([]byte(body.String()), &list); err != nil || len(list.Owners) != enough+1 || body.Len() < 4*answerPart {
			t.Errorf("got %d owners in %d bytes and %v, want %d", len(list.Owners), body.Len(), err, enough+1)
		}
	})
}
