package aggregator

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// acknowledge acknowledges a conflict for the duration d.
func (l *lab) acknowledge(id string, d time.Duration) *pb.Conflict {
	l.Helper()
	out, err := l.client.AcknowledgeConflict(l.ctx, &pb.AcknowledgeConflictRequest{
		Id: id, Reason: "NET-1: known", ExpiresAt: timestamppb.New(time.Now().Add(d)),
	})
	if err != nil {
		l.Fatal(err)
	}
	return out.GetConflict()
}

// remembered returns the number of acknowledged conflicts.
func (l *lab) remembered() (n int) {
	for _, c := range l.core.shards.Conflicts.All() {
		if l.core.acknowledgements.Of(c.ID) != nil {
			n++
		}
	}
	return n
}

// wantAcknowledged checks that every query reports the only conflict as acknowledged, or as not
// acknowledged.
func (l *lab) wantAcknowledged(c *pb.Conflict, want bool) {
	l.Helper()
	got, err := l.client.GetConflict(l.ctx, &pb.GetConflictRequest{Id: c.GetId()})
	if err != nil {
		l.Fatal(err)
	}
	explained, err := l.client.Explain(l.ctx, &pb.ExplainRequest{Address: c.GetAddress()})
	if err != nil {
		l.Fatal(err)
	}
	for how, c := range map[string]*pb.Conflict{
		"the answer or event": c, "the list": l.conflict(c.GetState()), "by id": got.GetConflict(), "explained": explained.GetConflicts()[0],
	} {
		if is := c.GetAcknowledgement() != nil; is != want {
			l.Errorf("%s: got acknowledged %t, want %t: %v", how, is, want, c)
		}
	}
	remembered := 0
	if want {
		remembered = 1
	}
	if got := l.remembered(); got != remembered {
		l.Errorf("got %d acknowledgements in memory, want %d", got, remembered)
	}
}

// conflictWatch reads a watch of conflicts.
type conflictWatch struct {
	testing.TB
	stream pb.WitnessService_WatchConflictsClient
}

func (l *lab) watchConflicts() *conflictWatch {
	l.Helper()
	ctx, cancel := context.WithCancel(l.ctx)
	stream, err := l.client.WatchConflicts(ctx, &pb.WatchConflictsRequest{})
	if err != nil {
		l.Fatal(err)
	}
	l.Cleanup(cancel)
	return &conflictWatch{l.TB, stream}
}

// next reads up to the next event with a conflict, and checks its type.
func (w *conflictWatch) next(typ pb.Watch_Type) *pb.Conflict {
	w.Helper()
	for {
		m, err := w.stream.Recv()
		switch {
		case err != nil:
			w.Fatal(err)
		case m.GetConflict() == nil:
		case m.GetType() != typ:
			w.Fatalf("got %v, want %s", m, typ)
		default:
			return m.GetConflict()
		}
	}
}

func TestAcknowledgementIsShownAndExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{})
		a := l.dial().send(snapshot(hello("n1", 1), podVeth(2, "a", addr), podVeth(3, "b", addr))).sync()
		w := l.watchConflicts()
		suspected := w.next(added)
		l.wantAcknowledged(suspected, false)

		began := time.Now()
		l.wantAcknowledged(l.acknowledge(suspected.GetId(), time.Hour), true)
		c := w.next(updated)
		l.wantAcknowledged(c, true)
		ack := c.GetAcknowledgement()
		if ack.GetReason() != "NET-1: known" || !ack.GetAcknowledgedAt().AsTime().Equal(began) ||
			!ack.GetExpiresAt().AsTime().Equal(began.Add(time.Hour)) {
			t.Errorf("got %v, want the reason, %s and an hour later", ack, began)
		}

		check := a.check()
		a.send(&pb.ReportRequest{Checked: []uint64{check.GetId()}}).sync()
		confirmed := w.next(updated)
		if confirmed.GetState() != pb.Conflict_CONFIRMED {
			t.Fatalf("got %v, want it CONFIRMED", confirmed)
		}
		l.wantAcknowledged(confirmed, true)

		ended := w.next(updated) // expired
		if waited := time.Since(began); waited != time.Hour || ended.GetState() != pb.Conflict_CONFIRMED {
			t.Errorf("got %v after %s, want it CONFIRMED and no longer acknowledged after 1h", ended, waited)
		}
		l.wantAcknowledged(ended, false)
	})
}

func TestAcknowledgingAgainReplaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{Settle: 24 * time.Hour})
		l.dial().send(snapshot(hello("n1", 1), podVeth(2, "a", addr), podVeth(3, "b", addr))).sync()
		id := l.conflict(pb.Conflict_SUSPECTED).GetId()
		began := time.Now()
		w := l.watchConflicts()
		w.next(added)
		for _, d := range []time.Duration{time.Hour, 2 * time.Hour, 30 * time.Minute, 3 * time.Hour} {
			l.acknowledge(id, d)
			if got := w.next(updated).GetAcknowledgement().GetExpiresAt().AsTime(); !got.Equal(began.Add(d)) {
				t.Errorf("got expiry %s, want %s", got, began.Add(d))
			}
		}
		l.wantAcknowledged(w.next(updated), false)
		if waited := time.Since(began); waited != 3*time.Hour {
			t.Errorf("got the end after %s, want that of the last one: 3h", waited)
		}
	})
}

func TestAcknowledgementIsWithdrawn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{Settle: 24 * time.Hour})
		l.dial().send(snapshot(hello("n1", 1), podVeth(2, "a", addr), podVeth(3, "b", addr))).sync()
		w := l.watchConflicts()
		id := w.next(added).GetId()
		withdraw := func() *pb.Conflict {
			t.Helper()
			out, err := l.client.AcknowledgeConflict(l.ctx, &pb.AcknowledgeConflictRequest{Id: id, Withdraw: true})
			if err != nil {
				t.Fatal(err)
			}
			return out.GetConflict()
		}
		l.wantAcknowledged(withdraw(), false) // there was none, so there is no event
		l.acknowledge(id, time.Hour)
		l.wantAcknowledged(w.next(updated), true)
		l.wantAcknowledged(withdraw(), false)
		l.wantAcknowledged(w.next(updated), false)
		l.acknowledge(id, 2*time.Hour)
		time.Sleep(time.Hour) // the first would have expired by then
		synctest.Wait()
		l.wantAcknowledged(w.next(updated), true)
	})
}

func TestAnAcknowledgementEndsWithTheEpisode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{})
		a := l.dial().send(snapshot(hello("n1", 1), podVeth(2, "a", addr), podVeth(3, "b", addr))).sync()
		w := l.watchConflicts()
		id := w.next(added).GetId()
		l.acknowledge(id, time.Hour)
		w.next(updated)
		a.send(gone(assigned(3, addr))).sync()
		resolved := w.next(updated)
		if resolved.GetState() != pb.Conflict_RESOLVED {
			t.Fatalf("got %v, want it RESOLVED", resolved)
		}
		l.wantAcknowledged(resolved, false)
		a.send(&pb.ReportRequest{Claims: []*pb.ClaimRecord{assigned(3, addr)}}).sync()
		again := w.next(added)
		if again.GetEpisode() != 2 {
			t.Errorf("got %v, want episode 2", again)
		}
		l.wantAcknowledged(again, false)
	})
}

func TestAnAcknowledgementEndsWithANodeThatIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{Settle: 24 * time.Hour})
		a := l.dial().send(snapshot(hello("n1", 1), podVeth(2, "a", addr), podVeth(3, "b", addr))).sync()
		w := l.watchConflicts()
		l.acknowledge(w.next(added).GetId(), time.Hour)
		w.next(updated)
		a.cancel()
		if c := w.next(updated); c.GetAcknowledgement() == nil { // disconnected owners are not new owners
			t.Errorf("got %v, want it acknowledged while the node is DISCONNECTED", c)
		}
		l.wantAcknowledged(w.next(updated), false)
		time.Sleep(2 * time.Hour) // no timer fires for a resolved conflict
		synctest.Wait()
		l.wantAcknowledged(l.conflict(pb.Conflict_RESOLVED), false)
	})
}

func TestAnAcknowledgementCoversOnlyTheOwnersThatWereThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{})
		a := l.dial().send(snapshot(hello("n1", 1), podVeth(2, "a", addr), podVeth(3, "b", addr), podVeth(4, "c", addr))).sync()
		w := l.watchConflicts()
		id := w.next(added).GetId()
		l.acknowledge(id, time.Hour)
		w.next(updated)

		// One of three owners leaves and returns.
		a.send(gone(assigned(4, addr))).sync()
		if c := w.next(updated); len(c.GetOwners()) != 2 || c.GetAcknowledgement() == nil {
			t.Errorf("got %v, want it acknowledged with one owner fewer", c)
		}
		a.send(&pb.ReportRequest{Claims: []*pb.ClaimRecord{assigned(4, addr)}}).sync()
		l.wantAcknowledged(w.next(updated), true)
		// A renamed owner is the same owner.
		a.send(&pb.ReportRequest{Namespaces: []*pb.NamespaceRecord{podNamespace(4, "renamed")}}).sync()
		l.wantAcknowledged(w.next(updated), true)

		// An owner that leaves again within the settle time does not count as a new one.
		a.send(podVeth(6, "e", addr)).sync()
		l.wantAcknowledged(w.next(updated), true)
		a.send(gone(assigned(6, addr))).sync()
		l.wantAcknowledged(w.next(updated), true)

		a.send(podVeth(5, "d", addr)).sync()
		if c := w.next(updated); len(c.GetOwners()) != 4 || c.GetAcknowledgement() == nil {
			t.Errorf("got %v, want it acknowledged right after an owner joined", c)
		}
		time.Sleep(l.core.facts.Policy.Settle)
		if c := w.next(updated); len(c.GetOwners()) != 4 || c.GetAcknowledgement() != nil {
			t.Errorf("got %v, want no acknowledgement after the settle time", c)
		}
		l.wantAcknowledged(l.conflict(pb.Conflict_SUSPECTED), false)
		l.acknowledge(id, time.Hour)
		l.wantAcknowledged(w.next(updated), true)
	})
}

func TestAcknowledgementsThatAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{})
		a := l.dial().send(snapshot(hello("n1", 1), podVeth(2, "a", addr), podVeth(3, "b", addr),
			podVeth(4, "c", "10.244.0.6"), podVeth(5, "d", "10.244.0.6"))).sync()
		over, id := l.conflicts()[1].GetId(), l.conflicts()[0].GetId()
		a.send(gone(assigned(5, "10.244.0.6"))).sync()
		in := func(d time.Duration) *timestamppb.Timestamp { return timestamppb.New(time.Now().Add(d)) }
		for name, test := range map[string]struct {
			q    *pb.AcknowledgeConflictRequest
			code codes.Code
			want string
		}{
			"no reason":        {&pb.AcknowledgeConflictRequest{Id: id, ExpiresAt: in(time.Hour)}, codes.InvalidArgument, "reason is missing: give the reason"},
			"a blank reason":   {&pb.AcknowledgeConflictRequest{Id: id, Reason: " \n", ExpiresAt: in(time.Hour)}, codes.InvalidArgument, "reason is missing"},
			"a long reason":    {&pb.AcknowledgeConflictRequest{Id: id, Reason: strings.Repeat("é", 513), ExpiresAt: in(time.Hour)}, codes.InvalidArgument, "reason has 1026 bytes, but the limit is 1024"},
			"no expiry":        {&pb.AcknowledgeConflictRequest{Id: id, Reason: "x"}, codes.InvalidArgument, "expires_at is missing: give a time like 2000-01-0"},
			"no such time":     {&pb.AcknowledgeConflictRequest{Id: id, Reason: "x", ExpiresAt: &timestamppb.Timestamp{Nanos: -1}}, codes.InvalidArgument, "expires_at is not a time"},
			"expired":          {&pb.AcknowledgeConflictRequest{Id: id, Reason: "x", ExpiresAt: in(0)}, codes.InvalidArgument, "give a future time, or withdraw"},
			"too far":          {&pb.AcknowledgeConflictRequest{Id: id, Reason: "x", ExpiresAt: in(367 * 24 * time.Hour)}, codes.InvalidArgument, "at most a year"},
			"beyond all years": {&pb.AcknowledgeConflictRequest{Id: id, Reason: "x", ExpiresAt: &timestamppb.Timestamp{Seconds: 253402300799}}, codes.InvalidArgument, "at most a year"},
			"both":             {&pb.AcknowledgeConflictRequest{Id: id, Reason: "x", Withdraw: true}, codes.InvalidArgument, "remove withdraw, or both of the others"},
			"unknown":          {&pb.AcknowledgeConflictRequest{Id: "nope", Reason: "x", ExpiresAt: in(time.Hour)}, codes.NotFound, "`ipwitness conflicts --all` lists all"},
			"unknown, back":    {&pb.AcknowledgeConflictRequest{Id: "nope", Withdraw: true}, codes.NotFound, "`ipwitness conflicts --all` lists all"},
			"over":             {&pb.AcknowledgeConflictRequest{Id: over, Reason: "x", ExpiresAt: in(time.Hour)}, codes.FailedPrecondition, "10.244.0.6 was resolved at 2000-01-01T"},
			"over, back":       {&pb.AcknowledgeConflictRequest{Id: over, Withdraw: true}, codes.FailedPrecondition, "was resolved at"},
		} {
			_, err := l.client.AcknowledgeConflict(l.ctx, test.q)
			if status.Code(err) != test.code || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%s: got %v, want %s and %q", name, err, test.code, test.want)
			}
		}
		if got := l.remembered(); got != 0 {
			t.Errorf("got %d acknowledgements in memory, want none", got)
		}
		out, err := l.client.AcknowledgeConflict(l.ctx, &pb.AcknowledgeConflictRequest{
			Id: id, Reason: " " + strings.Repeat("x", 1024) + "\n", ExpiresAt: in(365 * 24 * time.Hour),
		})
		if got := out.GetConflict().GetAcknowledgement().GetReason(); err != nil || len(got) != 1024 {
			t.Errorf("got %q, %v, want the longest reason taken, without the spaces around it", got, err)
		}
	})
}

// post posts a body and returns the status and the response.
func post(t *testing.T, url, body string, header ...string) (code int, answer string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	r, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	raw, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return r.StatusCode, string(raw)
}

func TestAcknowledgeOverREST(t *testing.T) {
	l := newLab(t, Config{Settle: time.Hour})
	url := l.serve()
	l.dial().send(snapshot(hello("n1", 1), podVeth(2, "a", addr), podVeth(3, "b", addr),
		podVeth(4, "c", "10.244.0.6"), podVeth(5, "d", "10.244.0.6"))).sync()
	id, other := l.conflicts()[0].GetId(), l.conflicts()[1].GetId()
	expires := time.Now().Add(time.Hour).UTC().Format(time.RFC3339)
	given := fmt.Sprintf(`{"reason":"NET-1","expiresAt":%q}`, expires)
	path := "/v1/conflicts/" + id + ":acknowledge"

	for name, test := range map[string]struct {
		path, body string
		header     []string
		code       int
		want       string
	}{
		"no body":        {path, "", nil, 400, "reason is missing"},
		"no time":        {path, `{"reason":"x","expiresAt":"tomorrow"}`, nil, 400, `expected JSON as /openapi.json describes it: proto`},
		"unknown field":  {path, `{"reason":"x","expires":"` + expires + `"}`, nil, 400, `unknown field`},
		"no JSON":        {path, `reason=x`, nil, 400, "expected JSON as"},
		"too much":       {path, `{"reason":"` + strings.Repeat("x", maxBody) + `"}`, nil, 400, "the body is too large"},
		"unknown id":     {"/v1/conflicts/nope:acknowledge", given, nil, 404, `no conflict has the id`},
		"another site":   {path, given, []string{"Origin", "http://evil.example"}, 403, "cross-origin browser request"},
		"another site's": {path, given, []string{"Sec-Fetch-Site", "cross-site"}, 403, "cross-origin browser request"},
		"another call":   {"/v1/conflicts/" + id + ":forget", given, nil, 405, "POST is not allowed for"},
	} {
		code, body := post(t, url+test.path, test.body, test.header...)
		if code != test.code || !strings.Contains(body, test.want) || !strings.Contains(compact(t, body), `"message":`) {
			t.Errorf("%s: got %d %s, want %d and %s", name, code, body, test.code, test.want)
		}
	}

	code, body := post(t, url+path, given)
	if want := `"expiresAt":"` + expires + `","reason":"NET-1"}`; code != 200 || !strings.Contains(compact(t, body), want) {
		t.Errorf("got %d %s, want %s", code, body, want)
	}
	_, _, metrics := get(t, url+"/metrics") // just after a start, no series is 0
	for _, want := range []string{
		`ipwitness_conflicts{cause="unknown",state="suspected"} 2`,
		`ipwitness_conflicts_acknowledged{cause="unknown",state="suspected"} 1`,
		`ipwitness_conflict_info{address="10.244.0.6",cause="unknown",id="` + other + `",incident="`,
	} {
		if !strings.Contains(metrics, want) {
			t.Errorf("got no %s in\n%s", want, metrics)
		}
	}
	if strings.Contains(metrics, `address="`+addr+`"`) {
		t.Error("got a series for the acknowledged conflict")
	}
	code, body = post(t, url+path, `{"withdraw":true}`)
	if code != 200 || strings.Contains(body, "NET-1") {
		t.Errorf("got %d %s, want it without acknowledgement", code, body)
	}
	if _, _, metrics := get(t, url+"/metrics"); !strings.Contains(metrics, `ipwitness_conflict_info{address="`+addr+`"`) {
		t.Errorf("got no series for the conflict that is no longer acknowledged in\n%s", metrics)
	}
}

// Acknowledging at the same time as conflicts begin and end leaves nothing behind.
func TestAcknowledgingWhileConflictsComeAndGo(t *testing.T) {
	l := newLab(t, Config{})
	a := l.dial().send(snapshot(hello("n1", 1), podVeth(2, "a", addr), podVeth(3, "b", addr))).sync()
	id := l.conflict(pb.Conflict_SUSPECTED).GetId()
	done := make(chan struct{})
	stop := make(chan struct{})
	go func() {
		defer close(done)
		for i := 0; ; i++ {
			q := &pb.AcknowledgeConflictRequest{Id: id, Withdraw: i%3 == 0}
			if !q.Withdraw {
				q.Reason, q.ExpiresAt = "x", timestamppb.New(time.Now().Add(time.Duration(i%5+1)*time.Millisecond))
			}
			if _, err := l.client.AcknowledgeConflict(l.ctx, q); err != nil && status.Code(err) != codes.FailedPrecondition &&
				status.Code(err) != codes.InvalidArgument { // resolved, or expired meanwhile
				t.Error(err)
			}
			select {
			case <-stop:
				return
			default:
			}
		}
	}()
	for range 200 {
		a.send(gone(assigned(3, addr)))
		a.send(&pb.ReportRequest{Claims: []*pb.ClaimRecord{assigned(3, addr)}}).sync()
	}
	close(stop)
	<-done
	a.send(gone(assigned(3, addr))).sync()
	if c := l.conflict(pb.Conflict_RESOLVED); c.GetAcknowledgement() != nil || l.remembered() != 0 {
		t.Errorf("got %v and %d in memory, want none acknowledged", c, l.remembered())
	}
}
