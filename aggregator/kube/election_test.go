package kube

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"

	"github.com/ipwitness/ipwitness/tests/wait"
)

// leaseAPI is an API server that has one Lease.
type leaseAPI struct {
	*httptest.Server
	mu      sync.Mutex
	version int
	objects map[string]runtime.Object // by path
	// down makes all requests fail. refused makes them forbidden. lost loses the answers to writes.
	down, refused, lost bool
}

func newLeaseAPI(t *testing.T) *leaseAPI {
	f := &leaseAPI{objects: make(map[string]runtime.Object)}
	f.Server = httptest.NewServer(f)
	t.Cleanup(f.Close)
	return f
}

func (f *leaseAPI) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

// ServeHTTP implements http.Handler.
func (f *leaseAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	refuse := func(code int, reason metav1.StatusReason) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_, _ = io.WriteString(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"`+string(reason)+`","code":`+strconv.Itoa(code)+`}`)
	}
	switch {
	case f.down:
		refuse(http.StatusInternalServerError, metav1.StatusReasonInternalError)
		return
	case f.refused:
		refuse(http.StatusForbidden, metav1.StatusReasonForbidden)
		return
	}
	path := r.URL.Path
	if r.Method == http.MethodGet {
		if f.objects[path] == nil {
			refuse(http.StatusNotFound, metav1.StatusReasonNotFound)
			return
		}
		f.send(w, f.objects[path])
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	o, _, err := fakeCodecs.UniversalDeserializer().Decode(body, nil, nil)
	if err != nil {
		panic(err)
	}
	meta := o.(metav1.Object)
	if r.Method == http.MethodPost {
		path += "/" + meta.GetName()
	}
	before := ""
	if f.objects[path] != nil {
		before = f.objects[path].(metav1.Object).GetResourceVersion()
	}
	switch {
	case r.Method == http.MethodPost && before != "":
		refuse(http.StatusConflict, metav1.StatusReasonAlreadyExists)
		return
	case r.Method == http.MethodPut && before != meta.GetResourceVersion():
		refuse(http.StatusConflict, metav1.StatusReasonConflict)
		return
	}
	f.version++
	meta.SetResourceVersion(strconv.Itoa(f.version))
	f.objects[path] = o
	if f.lost {
		refuse(http.StatusInternalServerError, metav1.StatusReasonInternalError)
		return
	}
	f.send(w, o)
}

func (f *leaseAPI) send(w http.ResponseWriter, o runtime.Object) {
	version := corev1.SchemeGroupVersion
	if _, is := o.(*coordinationv1.Lease); is {
		version = coordinationv1.SchemeGroupVersion
	}
	raw, err := runtime.Encode(fakeCodecs.EncoderForVersion(protobuf.Serializer, version), o)
	if err != nil {
		panic(err)
	}
	w.Header().Set("Content-Type", runtime.ContentTypeProtobuf)
	_, _ = w.Write(raw)
}

// RoundTrip implements http.RoundTripper, for tests with a clock of their own.
func (f *leaseAPI) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	w := httptest.NewRecorder()
	f.ServeHTTP(w, r)
	return w.Result(), nil
}

// change changes the Lease as another client.
func (f *leaseAPI) change(change func(*coordinationv1.Lease)) {
	const path = "/apis/coordination.k8s.io/v1/namespaces/default/leases/witness"
	f.mu.Lock()
	defer f.mu.Unlock()
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "witness"}}
	if f.objects[path] != nil {
		lease = f.objects[path].(*coordinationv1.Lease).DeepCopy()
	}
	change(lease)
	f.version++
	lease.ResourceVersion = strconv.Itoa(f.version)
	f.objects[path] = lease
}

// holder returns the holder of the Lease.
func (f *leaseAPI) holder() (identity string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, o := range f.objects {
		if lease, is := o.(*coordinationv1.Lease); is {
			identity = *lease.Spec.HolderIdentity
		}
	}
	return identity
}

// candidate is a replica that wants to lead.
type candidate struct {
	*Cluster
	// stop ends it in an orderly way.
	stop func()
	mu   sync.Mutex
	// leading is the number of calls that run, and led that of all calls.
	leading, led int
	// unfit is set while it should not lead.
	unfit atomic.Bool
}

func (f *leaseAPI) candidate(t *testing.T, times leaseTimes) *candidate {
	t.Helper()
	where := &rest.Config{Host: "http://test", Transport: f}
	if f.Server != nil {
		where = &rest.Config{Host: f.URL}
	}
	c, err := openAt(where, slog.New(slog.NewTextHandler(t.Output(), nil)), Config{Version: "test", Lease: "default/witness"})
	if err != nil {
		t.Fatal(err)
	}
	c.election.times = times
	one := &candidate{Cluster: c}
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	group.Go(func() {
		if err := c.Lead(ctx, func() bool { return !one.unfit.Load() }, func(ctx context.Context) {
			one.count(1)
			<-ctx.Done()
			one.count(-1)
		}); err != nil {
			t.Error(err)
		}
	})
	one.stop = func() { cancel(); group.Wait() }
	t.Cleanup(one.stop)
	return one
}

func (c *candidate) count(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.leading += n; n > 0 {
		c.led++
	}
}

func (c *candidate) isLeading() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.leading == 1 && c.election.leads()
}

var quickLease = leaseTimes{lasts: time.Second, within: 600 * time.Millisecond, every: 50 * time.Millisecond}

// One of two replicas leads. The other one takes over at once when the leader ends.
func TestOneReplicaLeads(t *testing.T) {
	f := newLeaseAPI(t)
	a := f.candidate(t, leaseTimes{lasts: time.Hour, within: time.Hour / 2, every: 20 * time.Millisecond})
	wait.Until(t, "the first one leads", a.isLeading)
	b := f.candidate(t, leaseTimes{lasts: time.Hour, within: time.Hour / 2, every: 20 * time.Millisecond})
	wait.Until(t, "the second one knows the leader", func() bool { return b.Election().GetLeader() == a.Election().GetReplica() })
	if b.isLeading() || b.Election().GetLeads() || !a.Election().GetLeads() {
		t.Errorf("got %v and %v, want only the first one to lead", a.Election(), b.Election())
	}
	a.stop()
	if a.isLeading() {
		t.Error("a replica that has ended leads")
	}
	wait.Until(t, "the second one leads", b.isLeading)
	if a.led != 1 {
		t.Errorf("the first one led %d times, want 1", a.led)
	}
}

// A leader whose work ends leads on, and does not begin again.
func TestALeaderWithoutWorkLeads(t *testing.T) {
	f := newLeaseAPI(t)
	c, err := openAt(&rest.Config{Host: f.URL}, slog.New(slog.DiscardHandler), Config{Lease: "default/witness"})
	if err != nil {
		t.Fatal(err)
	}
	c.election.times = quickLease
	var worked atomic.Int32
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	group.Go(func() {
		if err := c.Lead(ctx, func() bool { return true }, func(context.Context) { worked.Add(1) }); err != nil {
			t.Error(err)
		}
	})
	wait.Until(t, "it leads and has renewed the lease", func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.version > 5 && worked.Load() > 0
	})
	if n := worked.Load(); n != 1 || !c.Leads() {
		t.Errorf("its work began %d times, want once", n)
	}
	cancel()
	group.Wait()
	if f.holder() != "" {
		t.Error("it has not released the lease")
	}
}

// A leader that cannot renew its lease stops before another replica can take it. It leads again when it
// can.
func TestALeaderWithoutServerStops(t *testing.T) {
	f := newLeaseAPI(t)
	a := f.candidate(t, quickLease)
	wait.Until(t, "it leads", a.isLeading)
	f.set(func() { f.down = true })
	wait.Until(t, "it stops", func() bool { return !a.isLeading() })
	f.set(func() { f.down = false })
	wait.Until(t, "it leads again", a.isLeading)
}

// The lease of a leader that ended without giving it up is taken when it has expired.
func TestTheLeaseOfADeadLeaderExpires(t *testing.T) {
	f := newLeaseAPI(t)
	// It does not renew its lease, and does not know that its time is over.
	dead := f.candidate(t, leaseTimes{lasts: time.Hour, within: time.Hour / 2, every: 20 * time.Minute})
	wait.Until(t, "the first one has taken the lease", func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.version == 1
	})
	wait.Until(t, "the first one leads", dead.election.leads)
	f.set(func() {
		for _, o := range f.objects {
			if lease, is := o.(*coordinationv1.Lease); is {
				lease.Spec.LeaseDurationSeconds = new(int32(1))
			}
		}
	})
	b := f.candidate(t, quickLease)
	wait.Until(t, "the other one leads", b.isLeading)
	dead.stop()
	if !b.isLeading() || f.holder() != b.election.identity {
		t.Errorf("the former leader released the lease of the new one: %v leads", b.Election())
	}
}

// The clocks of two machines may differ: a replica takes the lease if it has not seen it change for as long as
// it lasts, whatever the time of its last renewal says.
func TestClocksOfReplicasMayDiffer(t *testing.T) {
	for name, ahead := range map[string]time.Duration{"ahead": time.Hour, "behind": -time.Hour} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &leaseAPI{objects: make(map[string]runtime.Object)}
				renew := func(lease *coordinationv1.Lease) {
					lease.Spec.HolderIdentity, lease.Spec.LeaseDurationSeconds = new("other_1"), new(int32(10))
					lease.Spec.RenewTime = new(metav1.NewMicroTime(time.Now().Add(ahead)))
				}
				f.change(renew)
				c := f.candidate(t, usualLease)
				for range 10 {
					time.Sleep(8 * time.Second)
					if c.isLeading() {
						t.Fatal("it leads although the lease of the other one is renewed")
					}
					f.change(renew)
				}
				time.Sleep(9900 * time.Millisecond)
				if c.isLeading() || c.Election().GetLeader() != "other" {
					t.Fatalf("got %v before the lease has expired", c.Election())
				}
				time.Sleep(5 * time.Second)
				if !c.isLeading() {
					t.Error("it does not lead although the lease has expired")
				}
			})
		})
	}
}

// A leader whose renewals are stored but not answered stops: it cannot know when they were stored. It leads
// again when there are answers.
func TestRenewalsWithoutAnswersDoNotCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &leaseAPI{objects: make(map[string]runtime.Object)}
		c := f.candidate(t, usualLease)
		time.Sleep(100 * time.Millisecond)
		if !c.isLeading() {
			t.Fatal("it does not lead")
		}
		f.set(func() { f.lost = true })
		time.Sleep(usualLease.within - time.Second)
		if !c.isLeading() {
			t.Error("it has stopped early")
		}
		time.Sleep(time.Second)
		if c.isLeading() || c.Leads() {
			t.Error("it leads on")
		}
		f.set(func() { f.lost = false })
		time.Sleep(2 * usualLease.every)
		if !c.isLeading() {
			t.Error("it does not lead again")
		}
	})
}

// A leader whose Lease somebody edits, as with kubectl annotate, leads on. It stops at its next renewal if
// the Lease has another holder.
func TestALeaderWhoseLeaseIsEdited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &leaseAPI{objects: make(map[string]runtime.Object)}
		c := f.candidate(t, usualLease)
		for range 3 {
			time.Sleep(1500 * time.Millisecond)
			f.change(func(lease *coordinationv1.Lease) { lease.Annotations = map[string]string{"note": "edited"} })
		}
		time.Sleep(2 * usualLease.within)
		if !c.isLeading() || c.led != 1 {
			t.Errorf("its work began %d times, want once", c.led)
		}
		f.change(func(lease *coordinationv1.Lease) { lease.Spec.HolderIdentity = new("other_1") })
		time.Sleep(2 * usualLease.every)
		if c.isLeading() || f.holder() != "other_1" {
			t.Errorf("it leads although %s holds the lease", f.holder())
		}
	})
}

// A replica that should not lead gives up the lease, and takes it again when it should.
func TestAnUnfitReplicaLeavesTheLeadToOthers(t *testing.T) {
	f := newLeaseAPI(t)
	a := f.candidate(t, quickLease)
	wait.Until(t, "the first one leads", a.isLeading)
	b := f.candidate(t, quickLease)
	a.unfit.Store(true)
	wait.Until(t, "the other one leads", b.isLeading)
	if a.isLeading() {
		t.Error("both lead")
	}
	b.stop()
	wait.Until(t, "the lease is free", func() bool { return f.holder() == "" })
	if a.isLeading() {
		t.Error("a replica leads that should not")
	}
	a.unfit.Store(false)
	wait.Until(t, "the first one leads again", a.isLeading)
}

// A replica without permission reports a problem, and does not lead.
func TestElectionWithoutPermission(t *testing.T) {
	f := newLeaseAPI(t)
	f.refused = true
	a := f.candidate(t, quickLease)
	wait.Until(t, "the problem is reported", func() bool {
		problems := a.Status().GetProblems()
		return len(problems) == 1 && strings.Contains(problems[0], "default/witness")
	})
	if a.isLeading() {
		t.Error("it leads")
	}
	f.set(func() { f.refused = false })
	wait.Until(t, "it leads", a.isLeading)
	if got := a.Status().GetProblems(); len(got) > 0 {
		t.Errorf("got the problems %q", got)
	}
}

// A replica that does not lead writes no Events. The recent ones, and all after the API was
// not available, are left for the time when it leads.
func TestAFollowerWritesNoEvents(t *testing.T) {
	c := liveMirror(t, func(*Cluster) {})
	c.election.name, c.election.namespace = "witness", "default"
	a := &c.announcer
	now := time.Now()
	announce := func(id string, since time.Time) *eventState {
		a.announce(&announcement{id: id}, []target{{node: "n1"}}, false)
		state := &a.past[id].targets[target{node: "n1"}].lasts
		state.since = since
		return state
	}
	old, recent := announce("old", now.Add(-2*leftToLeader)), announce("recent", now)
	if a.waiting(now, false, now); old.wants == nil || recent.wants == nil {
		t.Error("after the API was not available, not both events wait")
	}
	a.waiting(now, false, old.since)
	if old.wants != nil || recent.wants == nil || a.counts[dropped].Load() != 0 {
		t.Errorf("got %v and %v waiting, want the recent one", old.wants, recent.wants)
	}
	if all := a.waiting(now, true, old.since); len(all) != 1 || all[0].id != "recent" {
		t.Errorf("as the leader: got %d events, want the recent one", len(all))
	}
	if all := a.waiting(now.Add(renewEvery), true, old.since); len(all) != 2 {
		t.Errorf("as the leader for a while: got %d events, want the other one renewed", len(all))
	}
}
