package kube

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/wait"
)

func testPod(name, node, ip string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name)},
		Spec:       corev1.PodSpec{NodeName: node},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning, PodIPs: []corev1.PodIP{{IP: ip}}},
	}
}

// start runs a mirror until the test ends.
func start(t testing.TB, c *Cluster) (reported func() []Changes) {
	t.Helper()
	var mu sync.Mutex
	var all []Changes
	c.Notify(func(changes Changes) {
		mu.Lock()
		defer mu.Unlock()
		all = append(all, changes)
	})
	t.Cleanup(run(c))
	return func() []Changes {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(all)
	}
}

// run runs a mirror until it is stopped.
func run(c *Cluster) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	return func() {
		cancel()
		if err := <-done; err != nil {
			panic(err) // Run returns no error
		}
	}
}

func live(t testing.TB, c *Cluster) {
	t.Helper()
	wait.Until(t, "the state is LIVE", func() bool { return c.Status().GetState() == pb.Kubernetes_LIVE })
}

// A mirror has the same contents whether the listing is streamed or paged, and then follows
// changes.
func TestListings(t *testing.T) {
	for _, paged := range []bool{false, true} {
		t.Run(fmt.Sprintf("paged %t", paged), func(t *testing.T) {
			f := newFakeAPI(t)
			f.paged = paged
			const pods = 2*pageSize + 1
			for i := range pods {
				f.put(testPod(fmt.Sprintf("p%d", i), "n1", fmt.Sprintf("10.0.%d.%d", i/250, i%250+1)))
			}
			c := f.open()
			reported := start(t, c)
			live(t, c)
			if n := c.Status().GetPods(); n != pods || f.lists != 1 || paged && f.pages != 3 {
				t.Errorf("got %d pods by %d listings of %d pages", n, f.lists, f.pages)
			}
			wait.Until(t, "all pods are reported", func() bool {
				n := 0
				for _, c := range reported() {
					n += len(c.Pods)
				}
				return n == pods
			})
			if n := len(reported()); n > 4 {
				t.Errorf("got %d parts", n)
			}

			// After a watch ends, the next one continues from the same version. It must have
			// had an event: a reflector lists again after a watch without events that ends
			// within a second.
			p := testPod("p7", "n1", "10.0.0.8")
			p.Status.Phase = corev1.PodPending
			watched := func() bool { f.mu.Lock(); defer f.mu.Unlock(); return len(f.watches) == 1 }
			wait.Until(t, "the pods are watched", watched)
			f.put(p)
			wait.Until(t, "the watch reports a change", func() bool { return c.Pod("", "", "uid-p7", "n1").Phase == "Pending" })
			f.cut()
			p.Status.Phase = corev1.PodSucceeded
			wait.Until(t, "the pods are watched again", watched)
			f.put(p)
			wait.Until(t, "the change arrives", func() bool { return c.Pod("", "", "uid-p7", "n1").Phase == "Succeeded" })
			if f.lists != 1 {
				t.Errorf("it was listed %d times", f.lists)
			}
			wait.Until(t, "the changes are reported", func() bool {
				of := 0
				for _, c := range reported() {
					of += len(slices.DeleteFunc(slices.Clone(c.Pods), func(p PodKey) bool { return p.UID != "uid-p7" }))
				}
				return of >= 2
			})
			f.drop(p)
			wait.Until(t, "the deletion arrives", func() bool { return c.Pod("", "", "uid-p7", "n1") == nil })

			// If the server's history has expired, the pods are listed again.
			f.set(func() { f.expired = true })
			f.cut()
			wait.Until(t, "the pods are listed again", func() bool { f.mu.Lock(); defer f.mu.Unlock(); return f.lists >= 2 })
			f.set(func() { f.expired = false })
			live(t, c)
			if n := c.Status().GetPods(); n != pods-1 {
				t.Errorf("got %d pods, want %d", n, pods-1)
			}
		})
	}
}

// A server that answers with errors counts as unavailable. The mirror keeps its contents.
func TestUnhealthyServer(t *testing.T) {
	f := newFakeAPI(t)
	f.put(testPod("one", "n1", "10.0.0.1"))
	f.forbidden["services"] = true
	c := f.open()
	start(t, c)
	live(t, c)
	f.set(func() { f.down = true })
	f.cut()
	wait.Until(t, "the state is STALE", func() bool { return c.Status().GetState() == pb.Kubernetes_STALE })
	if p := c.Pod("default", "one", "", "n1"); p == nil || p.Absent {
		t.Errorf("got %+v, want the previous state", p)
	}
	f.set(func() { f.down = false })
	live(t, c)
	wait.Until(t, "the one problem is the missing permission", func() bool {
		p := c.Status().GetProblems()
		return len(p) == 1 && strings.HasPrefix(p[0], "no permission to list and watch services")
	})
}

// A server that accepts connections but sends nothing is detected, even if no watch ends.
func TestSilentServer(t *testing.T) {
	f := newFakeAPI(t)
	f.put(testPod("one", "n1", "10.0.0.1"))
	c := f.open()
	c.health.pulse = pulse{every: 20 * time.Millisecond, again: 20 * time.Millisecond, within: 20 * time.Millisecond, silence: time.Minute}
	start(t, c)
	live(t, c)
	f.set(func() { f.silent = make(chan struct{}) })
	wait.Until(t, "the state is STALE", func() bool { return c.Status().GetState() == pb.Kubernetes_STALE })
	last := c.Status().GetLastHeard().AsTime()
	f.set(func() { close(f.silent); f.silent = nil })
	live(t, c)
	if !c.Status().GetLastHeard().AsTime().After(last) || f.lists != 1 {
		t.Errorf("no new response, or listed %d times", f.lists)
	}
}

// A failure to follow events, which may have their own etcd, does not make the pods stale.
func TestServerWithoutWatches(t *testing.T) {
	f := newFakeAPI(t)
	f.broken = "events"
	c := f.open()
	start(t, c)
	live(t, c)
	wait.Until(t, "the problem is reported", func() bool { return len(c.Status().GetProblems()) > 0 })
	if p := c.Status().GetProblems(); slices.ContainsFunc(p, func(p string) bool { return !strings.HasPrefix(p, "cannot follow events: ") }) {
		t.Errorf("got problems %q, want only the ones of events", p)
	}
	if c.EventsHeard() {
		t.Error("got a working event watch, want none")
	}
	f.set(func() { f.broken = "" })
	wait.Until(t, "events arrive", c.EventsHeard)
}

func TestPodsWithoutListPermission(t *testing.T) {
	f := newFakeAPI(t)
	f.forbidden["pods"] = true
	c := f.open()
	start(t, c)
	wait.Until(t, "the problem is reported", func() bool { return len(c.Status().GetProblems()) == 1 })
	if s := c.Status().GetState(); s != pb.Kubernetes_SYNCING {
		t.Errorf("got %s", s)
	}
	f.set(func() { f.forbidden["pods"] = false })
	live(t, c)
}

// While pods are not followed, the absence of a pod cannot be known even if the server
// answers. The same holds for a short time after they are followed again.
func TestTimeUntilWhichPodsAreKnown(t *testing.T) {
	f := newFakeAPI(t)
	c := f.open()
	c.health.pulse = pulse{every: 20 * time.Millisecond, again: 20 * time.Millisecond, within: time.Second, silence: time.Minute}
	start(t, c)
	live(t, c)
	// Check this only if the machine was fast enough to look in time.
	early := func() bool { return c.clock()-c.following.Load() < int64(catchUp) }
	if c.KnownUntil() != 0 && early() {
		t.Error("everything is known as soon as it is listed")
	}
	wait.Until(t, "the pods are known", func() bool { return c.KnownUntil() != 0 })
	f.set(func() { f.forbidden["pods"] = true })
	f.cut()
	wait.Until(t, "the pods are not followed", func() bool { return c.following.Load() == 0 })
	awaitResponse := func() {
		last := c.lastResponse.Load()
		wait.Until(t, "the server responds", func() bool { return c.lastResponse.Load() > last })
	}
	awaitResponse()
	known := c.KnownUntil()
	awaitResponse()
	if c.KnownUntil() != known {
		t.Error("the pods are known but not followed")
	}
	f.set(func() { f.forbidden["pods"] = false })
	wait.Until(t, "the pods are followed", func() bool { return c.following.Load() != 0 })
	if c.KnownUntil() != known && early() {
		t.Error("they are known, and may still be reported")
	}
	wait.Until(t, "the pods are known again", func() bool { return c.KnownUntil() > known })
}

// A listing alone does not make the pods known. That takes a watch, too.
func TestPodsThatAreListedButNotWatched(t *testing.T) {
	f := newFakeAPI(t)
	f.paged, f.unwatched = true, true
	c := f.open()
	c.health.pulse = pulse{every: 20 * time.Millisecond, again: 20 * time.Millisecond, within: time.Second, silence: time.Minute}
	begun := time.Now()
	start(t, c)
	wait.Until(t, "the watch is refused", func() bool { return len(c.Status().GetProblems()) == 1 })
	if c.following.Load() != 0 {
		t.Error("the pods count as followed without a watch")
	}
	wait.Until(t, "the server responds long after the listing", func() bool { return time.Unix(0, c.lastResponse.Load()).Sub(begun) > 2*catchUp })
	if known := c.KnownUntil(); known != 0 {
		t.Errorf("the pods are known until %d, want never", known)
	}
	f.set(func() { f.unwatched = false })
	wait.Until(t, "the pods are known", func() bool { return c.KnownUntil() != 0 })
}

// A silent watch is opened again even if the server answers other requests.
func TestSilentWatch(t *testing.T) {
	f := newFakeAPI(t)
	c := f.open()
	c.health.pulse.silence = 3 * time.Second // much longer than a second: reflectors list again after shorter watches without events
	start(t, c)
	live(t, c)
	wait.Until(t, "the watch is opened again", func() bool { f.mu.Lock(); defer f.mu.Unlock(); return f.opened >= 2 })
	if s := c.Status(); f.lists != 1 || s.GetState() != pb.Kubernetes_LIVE || len(s.GetProblems()) != 0 {
		t.Errorf("it was listed %d times: %v", f.lists, s)
	}
}

// stuckLog is a log that blocks, like a pipe without a reader.
type stuckLog struct{ slog.Handler }

func (stuckLog) Handle(ctx context.Context, _ slog.Record) error { <-ctx.Done(); return nil }

func TestBlockedLogDelaysNothing(t *testing.T) {
	f := newFakeAPI(t)
	f.put(testPod("one", "n1", "10.0.0.1"))
	c := f.open()
	c.log = slog.New(stuckLog{slog.Default().Handler()})
	start(t, c)
	wait.Until(t, "the pod is known", func() bool { return c.Pod("", "", "uid-one", "n1") != nil })
	live(t, c)
}

func TestNoCluster(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	for _, where := range []string{Auto, Off, ""} {
		c, err := Open(Config{Kubeconfig: where})
		if c != nil || err != nil {
			t.Errorf("%q: got %v, %v", where, c, err)
		}
	}
	if c, err := Open(Config{Kubeconfig: t.TempDir() + "/none"}); c != nil || err == nil || !strings.Contains(err.Error(), "/none") {
		t.Errorf("a file that is not there: got %v, %v", c, err)
	}
	var c *Cluster
	ctx, stop := context.WithCancel(t.Context())
	stop()
	c.Notify(nil)
	c.Announce(&pb.Conflict{}, false)
	c.AnnounceFinding(&pb.Finding{Severity: pb.Finding_CRITICAL}, false, false)
	if err := c.Run(ctx); err != nil || c.Pod("a", "b", "c", "d") != nil || c.InPodCIDR(netip.MustParseAddr("10.0.0.1")) ||
		c.Related(&pb.Conflict{}) != nil || c.Status().GetState() != pb.Kubernetes_OFF {
		t.Errorf("no cluster: got %v", err)
	}
}
