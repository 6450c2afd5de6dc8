package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/ipwitness/ipwitness/ipam"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

const (
	// misses is the number of consecutive failures, of readiness checks or of attempts to
	// follow the pods, after which the mirror counts as stale. One failure is not enough: a
	// busy server may miss one request, and if one of several servers goes away, another takes
	// over at once. A change of state causes all owners to be judged again.
	misses = 2
)

type pulse struct {
	every  time.Duration
	again  time.Duration // the interval after a check without an answer
	within time.Duration // the timeout of a check
	// silence is how long a watch may be silent before it is opened again. The server sends a
	// bookmark about once a minute.
	silence time.Duration
}

var usualPulse = pulse{every: 10 * time.Second, again: time.Second, within: 5 * time.Second, silence: 5 * time.Minute}

// health has the state of the mirror and its problems. The cluster's mu guards it.
type health struct {
	state pb.Kubernetes_State
	since time.Time
	// synced means that the pods were listed.
	synced bool
	// placed means that the nodes were listed, or that listing them is forbidden. A pod can
	// only be reported as absent if its node is known.
	placed bool
	// failures counts consecutive failed attempts to follow the pods, and missed counts
	// consecutive readiness checks without an answer.
	failures, missed int
	pulse            pulse
	// problems has the text of each problem, by its key.
	problems map[string]string
	// returned is closed when the server answers again.
	returned chan struct{}
	// kick triggers a readiness check.
	kick chan struct{}
}

func (h *health) texts() []string {
	var all []string
	for _, about := range slices.Sorted(maps.Keys(h.problems)) {
		if text := h.problems[about]; !slices.Contains(all, text) {
			all = append(all, text)
		}
	}
	return all
}

// back returns a channel that is closed when the server answers again after an outage.
func (c *Cluster) back() <-chan struct{} {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.health.returned
}

// catchUp is how long a new watch may still report old changes. The server sends its backlog
// immediately.
const catchUp = time.Second

// clock returns the current time in nanoseconds. It is not affected when the system clock is
// set.
func (c *Cluster) clock() int64 { return c.begun.UnixNano() + int64(time.Since(c.begun)) }

func (c *Cluster) recordResponse() {
	c.lastResponse.Store(time.Now().UnixNano())
	now := c.clock()
	if since := c.following.Load(); since != 0 && now-since >= int64(catchUp) {
		c.complete.Store(now)
	}
}

// problem sets the text of a problem, or clears the problem if the text is empty. The caller
// holds mu.
func (c *Cluster) problem(about, text string) {
	before := c.health.problems[about]
	c.ring() // what fails is not awaited
	switch {
	case before == text:
	case text == "":
		delete(c.health.problems, about)
		c.queueLog(slog.LevelInfo, "Kubernetes API problem resolved", "problem", before)
	default:
		c.health.problems[about] = text
		if before == "" { // a new text of the same problem is not logged
			c.queueLog(slog.LevelWarn, "Kubernetes API problem", "problem", text)
		}
	}
}

// setProblem is problem for callers that do not hold mu.
func (c *Cluster) setProblem(about, text string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.problem(about, text)
}

// queueLog queues a log entry. It does not write the entry itself, because a caller that holds
// mu must not wait for the log.
func (c *Cluster) queueLog(level slog.Level, text string, more ...any) {
	select {
	case c.entries <- func(ctx context.Context) { c.log.Log(ctx, level, text, more...) }: //nolint:sloglint // constant where it is called
	default: // drop the entry: the log is blocked
	}
}

// serverProblem is the key of problems with the server itself.
const serverProblem = "server"

// failed records that an attempt to list or watch failed.
func (c *Cluster) failed(f *feed, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case f.source != nil && answered(err) && f.source.failures < sourceMisses-1:
		// Not a problem yet: a server that is starting forbids everything, and cannot list
		// resources that were just installed.
	case apierrors.IsForbidden(err) && c.health.missed == 0: // otherwise the server may be starting and forbid everything
		c.recordResponse()
		c.problem(f.name, fmt.Sprintf("no permission to list and watch %s: %s; grant ipwitness's ClusterRole list and watch of %s",
			f.resourceName(), f.lost, f.resourceName()))
	case apierrors.IsUnauthorized(err):
		c.recordResponse()
		c.problem(serverProblem, fmt.Sprintf("the API server %s no longer accepts our credentials: renew the token or certificate of the kubeconfig or service account",
			c.clients.server))
	case (f.name == podFeed || !answered(err)) && unreachable(err), apierrors.IsForbidden(err):
		c.problem(serverProblem, c.unreachableText(err))
		ring(c.health.kick)
	default:
		// A failure of one resource does not mean that the server is down: events may have an
		// etcd of their own.
		c.problem(f.name, fmt.Sprintf("cannot follow %s: %s: %s", f.resourceName(), f.lost, ipam.Shorten(err.Error())))
	}
	switch {
	case !answered(err), unreachable(err) && c.health.missed > 0, c.health.problems[f.name] == "" && !apierrors.IsUnauthorized(err):
		f.refused = 0
	default:
		f.refused++
	}
	switch {
	case f.source != nil:
		s, problem := f.source, c.health.problems[f.name]
		if s.failures++; !answered(err) {
			s.failures = 0
		}
		switch {
		case problem == "":
			// Keep the state: the problem is with the server, or may be over soon.
		case apierrors.IsForbidden(err):
			s.set(forbiddenHere, problem)
		case s.state >= followed:
			s.set(failing, problem)
		}
	case f.name == podFeed:
		c.health.failures++
	case f.name == nodeFeed && apierrors.IsForbidden(err):
		c.health.placed = true
	}
	c.assess()
}

func (c *Cluster) unreachableText(err error) string {
	// Leave out the URL of the request, which may be longer than the rest of the message.
	if request := (*url.Error)(nil); errors.As(err, &request) {
		err = request.Err
	}
	return fmt.Sprintf("the API server %s does not respond: the data about pods may be outdated: %s", c.clients.server, ipam.Shorten(err.Error()))
}

// worked records that a resource was listed or is being watched again.
func (c *Cluster) worked(f *feed) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.recordResponse()
	c.problem(f.name, "")
	f.refused = 0
	if s := f.source; s != nil {
		s.failures = 0
		s.set(followed, "")
	}
	if f.name == podFeed {
		c.following.CompareAndSwap(0, c.clock())
		c.health.failures, c.health.missed = 0, 0
		c.problem(serverProblem, "")
	}
	c.assess()
}

func (c *Cluster) listed(f *feed) {
	c.mu.Lock()
	f.read = true
	switch f.name {
	case podFeed:
		c.health.synced = true
	case nodeFeed:
		c.health.placed = true
	case acknowledgementFeed:
		c.acknowledgements.listed, c.pending.acknowledgements = true, true
	}
	c.mu.Unlock()
	c.worked(f)
	c.ring()
}

// assess updates the state. The caller holds mu.
func (c *Cluster) assess() {
	h := &c.health
	state := pb.Kubernetes_LIVE
	switch {
	case !h.synced || !h.placed:
		state = pb.Kubernetes_SYNCING
	case h.failures >= misses || h.missed >= misses:
		state = pb.Kubernetes_STALE
	}
	if state == h.state {
		return
	}
	c.queueLog(slog.LevelInfo, "state of the Kubernetes API", "state", state.String(), "before", h.state.String(),
		"server", c.clients.server, "pods", len(c.pods.Records), "nodes", len(c.nodes.Records))
	synced := h.state == pb.Kubernetes_SYNCING
	h.state, h.since = state, time.Now()
	if synced {
		c.podsChanged(nil)
	}
	for _, m := range c.ipams {
		m.assess()
	}
	c.pending.state = true
	c.ring()
}

// beat checks at intervals whether the API server is ready. A watch alone is not enough,
// because it may be silent for a minute when nothing changes.
func (c *Cluster) beat(ctx context.Context) {
	pulse := c.health.pulse // never changes
	wait := pulse.every
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.health.kick:
		case <-time.After(wait):
		}
		err := c.ready(ctx)
		if ctx.Err() != nil {
			return
		}
		c.mu.Lock()
		if err == nil {
			wait = pulse.every
			c.recordResponse()
			if c.health.missed > 0 {
				close(c.health.returned)
				c.health.returned = make(chan struct{})
			}
			c.health.missed = 0
			if c.health.failures == 0 {
				c.problem(serverProblem, "")
			}
		} else {
			wait = pulse.again
			if c.health.missed++; c.health.missed >= misses {
				c.problem(serverProblem, c.unreachableText(err))
			}
		}
		c.assess()
		c.mu.Unlock()
	}
}

// ready reports an error unless the API server is ready.
func (c *Cluster) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, c.health.pulse.within)
	defer cancel()
	var code int
	err := c.clients.core.Get().AbsPath("/readyz").MaxRetries(0).Do(ctx).StatusCode(&code).Error()
	if code != 0 && code < http.StatusInternalServerError {
		return nil // the server is up, but does not show us its readiness
	}
	return err
}
