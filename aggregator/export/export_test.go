package export

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ipwitness/ipwitness/aggregator/journal"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/wait"
)

const testSecret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"

// bench is a journal with exporters.
type bench struct {
	testing.TB
	*journal.Journal
	*Exporters
	settings Settings
	dir      string
	mu       sync.Mutex
	now      time.Time
	stop     func()
	// replica is set if there is another replica. It exports only between lead and follow.
	replica bool
	follow  func()
	// conflicts are the last ones that were recorded while they lasted, by id.
	conflicts map[string]*pb.Conflict
}

func newBench(t testing.TB, settings Settings) *bench {
	b := newReplica(t, settings)
	b.replica = false
	b.start()
	t.Cleanup(func() { b.stop() })
	return b
}

// newReplica returns a replica that has to be started.
func newReplica(t testing.TB, settings Settings) *bench {
	b := &bench{TB: t, settings: settings, dir: t.TempDir(), now: time.Now().Truncate(time.Second), replica: true, follow: func() {}, conflicts: make(map[string]*pb.Conflict)}
	if settings.Webhook != "" {
		b.settings.WebhookSecret = filepath.Join(b.dir, "secret")
		b.must(os.WriteFile(b.settings.WebhookSecret, []byte(testSecret+"\n"), 0o600))
	}
	return b
}

func (b *bench) must(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

func (b *bench) clock() time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.now
}

func (b *bench) add(d time.Duration) time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.now = b.now.Add(d)
	return b.now
}

func (b *bench) start() {
	b.Helper()
	log := slog.New(slog.DiscardHandler)
	b.Journal = journal.New(journal.Config{Dir: b.dir, Retention: journal.DefaultRetention, Size: journal.DefaultSize, Clock: b.clock, Log: log})
	var err error
	b.Exporters, err = New(Config{Settings: b.settings, Journal: b.Journal, Log: log, Clock: b.clock, Cluster: "prod", Version: "1.2.3", Replicas: b.replica})
	b.must(err)
	ctx, cancel := context.WithCancel(context.Background())
	var group sync.WaitGroup
	group.Go(func() { b.Journal.Run(ctx) })
	group.Go(func() { b.Exporters.Run(ctx) })
	if !b.replica {
		group.Go(func() { b.Lead(ctx) })
	}
	b.stop = func() { b.follow(); cancel(); group.Wait() }
	<-b.Opened()
}

// lead exports until follow is called.
func (b *bench) lead() {
	ctx, cancel := context.WithCancel(context.Background())
	var group sync.WaitGroup
	group.Go(func() { b.Lead(ctx) })
	b.follow = func() { cancel(); group.Wait() }
}

// restart ends journal and exporters, and starts them again.
func (b *bench) restart(present ...*pb.Conflict) {
	b.Helper()
	b.stop()
	b.start()
	b.state(present...)
}

// state records the present state.
func (b *bench) state(conflicts ...*pb.Conflict) {
	b.Helper()
	for _, kind := range []pb.Event_Kind{pb.Event_OWNER, pb.Event_CONFLICT, pb.Event_FINDING, pb.Event_NODE} {
		feed := b.Feed(kind)
		b.must(feed.Begin())
		if kind == pb.Event_CONFLICT {
			for _, c := range conflicts {
				b.must(feed.Present(&journal.Change{At: b.clock(), Type: pb.Watch_ADDED, Conflict: c}))
			}
		}
		b.must(feed.Complete())
	}
	b.must(b.Feed(pb.Event_OWNER).Flush())
}

// last returns a conflict as it was last recorded while it lasted.
func (b *bench) last(n int) *pb.Conflict { return proto.CloneOf(b.conflicts[fmt.Sprintf("id%d", n)]) }

// changed records a change of a conflict, a second after the last one.
func (b *bench) changed(c *pb.Conflict) {
	b.Helper()
	if c.GetState() != pb.Conflict_RESOLVED {
		b.conflicts[c.GetId()] = proto.CloneOf(c)
	}
	b.must(b.Feed(pb.Event_CONFLICT).Changed(&journal.Change{At: b.add(time.Second), Type: pb.Watch_UPDATED, Conflict: proto.CloneOf(c)}))
}

func (b *bench) found(typ pb.Watch_Type, f *pb.Finding) {
	b.Helper()
	b.must(b.Feed(pb.Event_FINDING).Changed(&journal.Change{At: b.add(time.Second), Type: typ, Finding: f}))
}

func (b *bench) stats() Stats { return b.Exporters.Stats()[0] }

// conflict returns a confirmed conflict.
func (b *bench) conflict(n int) *pb.Conflict {
	now := timestamppb.New(b.clock())
	return &pb.Conflict{
		Id: fmt.Sprintf("id%d", n), Episode: 1, Address: fmt.Sprintf("10.0.0.%d", n), State: pb.Conflict_CONFIRMED, Cause: "static-address",
		Scope: &pb.Scope{Kind: pb.Scope_NETWORK, Name: "pods"}, DetectedAt: now, ConfirmedAt: now, Summary: "Two pods hold it.",
		Owners: []*pb.Owner{{
			Address: fmt.Sprintf("10.0.0.%d", n), Node: "n1", Interface: "eth0", Mac: "02:00:00:00:00:01",
			Workload: &pb.Workload{Kind: pb.Workload_POD, Namespace: "shop", Name: "web", Uid: "uid1", ContainerId: "abc", Controller: &pb.Controller{Kind: "Deployment", Name: "web"}},
		}},
	}
}

func resolved(c *pb.Conflict, at time.Time) *pb.Conflict {
	c = proto.CloneOf(c)
	c.State, c.ResolvedAt = pb.Conflict_RESOLVED, timestamppb.New(at)
	return c
}

// hook is a receiver that records requests.
type hook struct {
	*httptest.Server
	mu       sync.Mutex
	requests []request
	// answer returns the status of an answer; nil for 200.
	answer func(w http.ResponseWriter, n int) int
}

type request struct {
	path   string
	header http.Header
	body   []byte
	status int
	at     time.Time
}

func newHook(t testing.TB) *hook {
	h := &hook{}
	h.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		h.mu.Lock()
		answer, n := h.answer, len(h.requests)
		h.mu.Unlock()
		status := http.StatusOK
		if answer != nil {
			status = answer(w, n)
		}
		h.mu.Lock()
		h.requests = append(h.requests, request{r.URL.Path, r.Header, body, status, time.Now()})
		h.mu.Unlock()
		w.WriteHeader(status)
	}))
	t.Cleanup(h.Close)
	return h
}

func (h *hook) answers(answer func(w http.ResponseWriter, n int) int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.answer = answer
}

// all returns the requests so far.
func (h *hook) all() []request {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.requests)
}

// accepted returns the CloudEvents that were accepted.
func (h *hook) accepted(t testing.TB) (all []cloudEvent) {
	t.Helper()
	for _, r := range h.all() {
		var e cloudEvent
		if err := json.Unmarshal(r.body, &e); err != nil {
			t.Fatal(err)
		}
		if r.status/100 == 2 {
			all = append(all, e)
		}
	}
	return all
}

func types(all []cloudEvent) (types []string) {
	for _, e := range all {
		types = append(types, e.Subject+" "+strings.TrimPrefix(e.Type, typePrefix))
	}
	return types
}

func (b *bench) awaitTypes(h *hook, want ...string) []cloudEvent {
	b.Helper()
	var got []cloudEvent
	wait.Until(b, "the events", func() bool { got = h.accepted(b); return len(got) >= len(want) })
	if !slices.Equal(types(got), want) {
		b.Fatalf("got %q, want %q", types(got), want)
	}
	return got
}

// wantDifferent fails if two events have one id.
func wantDifferent(t testing.TB, all []cloudEvent) {
	t.Helper()
	ids := make(map[string]string)
	for _, e := range all {
		if other, twice := ids[e.ID]; twice {
			t.Errorf("%s and %s have the id %s", other, e.Type, e.ID)
		}
		ids[e.ID] = e.Type
	}
}

// A webhook gets conflicts from their confirmation on, and findings; first those that there are.
func TestWebhookTransitions(t *testing.T) {
	h := newHook(t)
	b := newBench(t, Settings{Webhook: h.URL + "/secret-path"})
	one, two := b.conflict(1), b.conflict(2)
	b.state(one)
	b.awaitTypes(h, "10.0.0.1 conflict.confirmed")

	suspected := proto.CloneOf(two)
	suspected.State, suspected.ConfirmedAt = pb.Conflict_SUSPECTED, nil
	b.changed(suspected)
	b.changed(resolved(suspected, b.clock()))
	b.changed(suspected)
	b.changed(two)
	two.Cause = "split-brain"
	b.changed(two)
	f := &pb.Finding{Kind: "leaked", Id: "f1", Address: "10.0.0.3", DetectedAt: timestamppb.New(b.clock())}
	b.found(pb.Watch_ADDED, f)
	b.found(pb.Watch_REMOVED, f)
	b.changed(resolved(two, b.clock()))
	b.changed(resolved(one, b.clock()))
	all := b.awaitTypes(h, "10.0.0.1 conflict.confirmed", "10.0.0.2 conflict.confirmed", "10.0.0.2 conflict.updated", "10.0.0.3 finding.detected",
		"10.0.0.3 finding.ended", "10.0.0.2 conflict.resolved", "10.0.0.1 conflict.resolved")
	for _, e := range all {
		var data struct {
			Conflict struct{ Address string }
			Kind     string
			Time     time.Time
		}
		b.must(json.Unmarshal(e.Data, &data))
		if e.SpecVersion != "1.0" || e.Source != "/ipwitness/prod" || e.ContentType != "application/json" ||
			data.Kind == "CONFLICT" && data.Conflict.Address != e.Subject {
			t.Errorf("got %+v with %+v", e, data)
		}
		if at, err := time.Parse(time.RFC3339Nano, e.Time); err != nil || !at.Equal(data.Time) {
			t.Errorf("got the time %s, %v, want %s", at, err, data.Time)
		}
	}
	wantDifferent(t, all)
}

// A webhook gets the end of a conflict that was confirmed, even if it was not confirmed any longer when it ended.
func TestAWebhookGetsTheEndOfWhatWasConfirmed(t *testing.T) {
	h := newHook(t)
	b := newBench(t, Settings{Webhook: h.URL})
	b.state()
	c := b.conflict(1)
	b.changed(c)
	suspected := proto.CloneOf(c)
	suspected.State, suspected.ConfirmedAt = pb.Conflict_SUSPECTED, nil
	b.changed(suspected)
	b.awaitTypes(h, "10.0.0.1 conflict.confirmed", "10.0.0.1 conflict.suspected")
	b.restart(suspected)
	b.changed(c)
	b.changed(suspected)
	b.changed(resolved(suspected, b.clock()))
	never := b.conflict(2)
	never.State, never.ConfirmedAt = pb.Conflict_SUSPECTED, nil
	b.changed(never)
	b.changed(resolved(never, b.clock()))
	b.changed(b.conflict(3))
	awaitDistinct(t, h, "10.0.0.1 conflict.confirmed", "10.0.0.1 conflict.suspected", "10.0.0.1 conflict.confirmed", // it may repeat after a restart
		"10.0.0.1 conflict.suspected", "10.0.0.1 conflict.resolved", "10.0.0.3 conflict.confirmed")
}

// The same event is sent until it is accepted, with the same id and a valid signature, and before the
// next one; also after a restart.
func TestAWebhookThatFailsGetsEverythingInOrder(t *testing.T) {
	h := newHook(t)
	b := newBench(t, Settings{Webhook: h.URL})
	b.state()
	one := b.conflict(1)
	h.answers(func(http.ResponseWriter, int) int { return http.StatusInternalServerError })
	b.changed(one)
	b.changed(b.conflict(2))
	b.changed(resolved(one, b.clock()))
	wait.Until(t, "two attempts", func() bool { return len(h.all()) >= 2 })
	if s := b.stats(); s.Sent != 0 || s.Failures == 0 {
		t.Errorf("got %+v, want failures only", s)
	}
	b.add(time.Minute)
	if s := b.stats(); s.Lag < time.Minute {
		t.Errorf("got lag %s, want a minute", s.Lag)
	}
	if got := b.Exporters.Problems(); len(got) != 1 || !strings.Contains(got[0], "500") {
		t.Errorf("got problems %q, want one about 500", got)
	}
	b.restart(b.conflict(2))
	h.answers(nil)
	want := []string{"10.0.0.1 conflict.confirmed", "10.0.0.2 conflict.confirmed", "10.0.0.1 conflict.resolved"}
	all := b.awaitTypes(h, want...)
	for i, r := range h.all() {
		if id := r.header.Get("Webhook-Id"); r.status != http.StatusOK && id != all[0].ID {
			t.Errorf("got id %s in attempt %d, want %s", id, i, all[0].ID)
		}
		if r.header.Get("Content-Type") != "application/cloudevents+json; charset=utf-8" {
			t.Errorf("got %v", r.header)
		}
		secret, err := readSecrets(b.settings.WebhookSecret)
		b.must(err)
		if got, want := r.header.Get("Webhook-Signature"), signature(secret[0], r.header.Get("Webhook-Id"), r.header.Get("Webhook-Timestamp"), r.body); got != want {
			t.Errorf("got signature %q, want %q", got, want)
		}
	}
	wait.Until(t, "no lag", func() bool { s := b.stats(); return s.Lag == 0 && s.Sent == 3 })
	if got := b.Exporters.Problems(); len(got) != 0 {
		t.Errorf("got problems %q, want none", got)
	}

	// Nothing is sent again after another restart.
	b.restart(b.conflict(2))
	b.changed(resolved(b.conflict(2), b.clock()))
	b.awaitTypes(h, append(want, "10.0.0.2 conflict.resolved")...)
}

// The example of Standard Webhooks' own libraries.
func TestSignature(t *testing.T) {
	file := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(file, []byte(testSecret), 0o600); err != nil {
		t.Fatal(err)
	}
	secrets, err := readSecrets(file)
	if err != nil {
		t.Fatal(err)
	}
	got := signature(secrets[0], "msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330", []byte(`{"test": 2432232314}`))
	if want := "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestAWebhookNeedsASecret(t *testing.T) {
	file := filepath.Join(t.TempDir(), "secret")
	var log strings.Builder
	cfg := Config{Settings: Settings{Webhook: "https://192.0.2.1/"}, Log: slog.New(slog.NewTextHandler(&log, nil)), Clock: time.Now}
	for _, secret := range []string{"", "hello\n", "whsec_c2hvcnQ=\n", testSecret + "\n"} {
		if secret != "" {
			cfg.WebhookSecret = file
			if err := errors.Join(os.WriteFile(file, []byte(secret), 0o600), os.Chmod(file, 0o604)); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := New(cfg); (err == nil) != (secret == testSecret+"\n") {
			t.Errorf("got %v for the secret %q", err, secret)
		}
	}
	if !strings.Contains(log.String(), file) {
		t.Errorf("got no warning about a secret that everyone can read: %s", log.String())
	}
}

// A receiver that asks for a pause gets one.
func TestRetryAfter(t *testing.T) {
	h := newHook(t)
	h.answers(func(w http.ResponseWriter, n int) int {
		if n == 0 {
			w.Header().Set("Retry-After", "2")
			return http.StatusTooManyRequests
		}
		return http.StatusNoContent
	})
	b := newBench(t, Settings{Webhook: h.URL})
	b.state(b.conflict(1))
	b.awaitTypes(h, "10.0.0.1 conflict.confirmed")
	all := h.all()
	if pause := all[1].at.Sub(all[0].at); pause < 2*time.Second {
		t.Errorf("got a pause of %s, want 2s at least", pause)
	}
	if len(b.Exporters.Problems()) != 0 {
		t.Errorf("got problems %q, want none", b.Exporters.Problems())
	}
}

// A problem says what to correct, and shows no secret of the URL.
func TestRefusalsAreProblems(t *testing.T) {
	for status, want := range map[int]string{
		http.StatusUnauthorized: "--webhook-secret-file", http.StatusNotFound: "--webhook", http.StatusMovedPermanently: "--webhook",
	} {
		h := newHook(t)
		h.answers(func(http.ResponseWriter, int) int { return status })
		b := newBench(t, Settings{Webhook: h.URL + "/hidden?token=hidden"})
		b.state(b.conflict(1))
		var got []string
		wait.Until(t, "a problem", func() bool { got = b.Exporters.Problems(); return len(got) == 1 })
		if !strings.Contains(got[0], want) || strings.Contains(got[0], "hidden") || !strings.Contains(got[0], strings.TrimPrefix(h.URL, "http://")) {
			t.Errorf("got %q for %d, want %s, the host and no path", got[0], status, want)
		}
	}
}

// refusing is a receiver that gives answers in turn, and then accepts everything.
type refusing struct {
	answers []error
	times   []time.Time
}

func (r *refusing) deliver(context.Context, []transition) error {
	r.times = append(r.times, time.Now())
	if len(r.answers) < len(r.times) {
		return nil
	}
	return r.answers[len(r.times)-1]
}

// Attempts are repeated with growing pauses, or after the pause that the receiver asks for. Transitions
// whose content a receiver does not accept do not delay the others forever.
func TestPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		to := &refusing{}
		x := &exporter{Delivery: journal.Delivery{Log: slog.New(slog.DiscardHandler), Clock: time.Now}, to: &receiver{deliver: to.deliver}}
		some := []transition{{id: "a", at: time.Now()}}
		for range 20 {
			to.answers = append(to.answers, errors.New("no answer"))
		}
		to.answers = append(to.answers, &answerError{status: http.StatusTooManyRequests, retryAfter: 10 * time.Minute})
		if err := x.deliver(t.Context(), some); err != nil {
			t.Fatal(err)
		}
		for i := 1; i < len(to.times)-1; i++ {
			pause, most := to.times[i].Sub(to.times[i-1]), min(firstPause<<(i-1), lastPause)
			if pause < most/2 || pause > most {
				t.Errorf("got pause %d of %s, want half of %s to all of it", i, pause, most)
			}
		}
		if pause := to.times[21].Sub(to.times[20]); pause != 10*time.Minute {
			t.Errorf("got a pause of %s, want the one that the receiver asks for", pause)
		}
		if s := x.Stats(); s.Sent != 1 || s.Failures != 21 || s.Lag != 0 {
			t.Errorf("got %+v, want 21 failures and one transition", s)
		}

		to.answers, to.times = nil, nil
		for range mostRefusals {
			to.answers = append(to.answers, &answerError{status: http.StatusUnprocessableEntity})
		}
		if err := x.deliver(t.Context(), some); err != nil {
			t.Fatal(err)
		}
		if s := x.Stats(); s.Sent != 1 || s.Refused != 1 || len(to.times) != mostRefusals {
			t.Errorf("got %+v after %d attempts, want one refused transition", s, len(to.times))
		}
	})
}

// A receiver that does not answer delays no other one.
func TestAHangingReceiverDelaysNoOther(t *testing.T) {
	hangs, works := newHook(t), newHook(t)
	release := make(chan struct{})
	t.Cleanup(func() { close(release) })
	asked := make(chan struct{}, 100)
	hangs.answers(func(http.ResponseWriter, int) int {
		asked <- struct{}{}
		<-release
		return http.StatusOK
	})
	b := newBench(t, Settings{Webhook: hangs.URL, Alertmanagers: []string{works.URL}})
	b.state(b.conflict(1))
	<-asked // it hangs from here on
	b.changed(b.conflict(2))
	b.changed(b.conflict(3))
	wait.Until(t, "the alerts", func() bool { return len(b.firing(works)) == 3 })
	if len(hangs.all()) != 0 {
		t.Errorf("got %d answers of the receiver that hangs", len(hangs.all()))
	}
}

// What the journal dropped before it was delivered is counted, and the receiver gets the state from
// then on.
func TestDroppedTransitionsAreCounted(t *testing.T) {
	h := newHook(t)
	b := newBench(t, Settings{Webhook: h.URL})
	b.state()
	h.answers(func(http.ResponseWriter, int) int { return http.StatusServiceUnavailable })
	active := b.conflict(1)
	b.changed(active)
	wait.Until(t, "an attempt", func() bool { return len(h.all()) > 0 })
	b.stop()
	h.answers(nil)
	hook := b.settings.Webhook
	b.settings = Settings{} // no exporter while the journal goes on
	b.start()
	b.state(active)
	for day := range 33 {
		b.add(24 * time.Hour)
		b.changed(b.conflict(100 + day))
		b.must(b.Feed(pb.Event_OWNER).Flush())
	}
	wait.Until(t, "old records to be dropped", func() bool {
		b.add(time.Hour) // the journal looks once an hour, and not while it frees the space of the last ones
		b.must(b.Feed(pb.Event_OWNER).Flush())
		return b.clock().Sub(b.Oldest()) < 32*24*time.Hour
	})
	b.stop()
	b.settings = Settings{Webhook: hook, WebhookSecret: filepath.Join(b.dir, "secret")}
	b.start()
	var all []cloudEvent
	wait.Until(t, "all later events", func() bool {
		all = h.accepted(t)
		return len(all) > 0 && all[len(all)-1].Subject == "10.0.0.132"
	})
	if all[0].Subject != "10.0.0.1" {
		t.Errorf("got %s first, want the conflict that was active before", all[0].Subject)
	}
	if s := b.stats(); s.Lost != 1 {
		t.Errorf("got %+v, want one lost period", s)
	}
}

// firing returns the alerts that fire, by name and address.
func (b *bench) firing(h *hook) map[string]alert {
	b.Helper()
	known := map[string]alert{}
	for _, r := range h.all() {
		if r.path != "/api/v2/alerts" {
			b.Errorf("got path %s", r.path)
		}
		var some []alert
		b.must(json.Unmarshal(r.body, &some))
		for _, a := range some {
			known[a.key()] = a
		}
	}
	firing := map[string]alert{}
	for _, a := range known {
		if a.EndsAt.After(b.clock()) {
			firing[a.Labels["alertname"]+" "+a.Labels["address"]] = a
		}
	}
	return firing
}
