package kube

import (
	"cmp"
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

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

const (
	// misses is how many answers must be missing in a row, and how many attempts to
	// follow the pods must fail, before what is known counts as old: a busy server
	// may leave out one, and where there are several, one that goes away is followed
	// by another at once. All owners are judged again when it does.
	misses = 2
)

// pulse is how often the API server is asked whether it is ready.
type pulse struct {
	every  time.Duration
	again  time.Duration // after it did not answer
	within time.Duration // how long an answer may take
	// silence is how long a watch may say nothing before it is opened again: the
	// server sends a bookmark each minute or so.
	silence time.Duration
}

var usualPulse = pulse{every: 10 * time.Second, again: time.Second, within: 5 * time.Second, silence: 5 * time.Minute}

// health is how far what is known can be relied on. It is behind the cluster's mu.
type health struct {
	state pb.Kubernetes_State
	since time.Time
	// synced tells that the pods were listed.
	synced bool
	// placed tells that the nodes were listed, or may not be: on which of them a pod
	// can be absent is known by then.
	placed bool
	// failures counts attempts to follow the pods that failed, missed answers that
	// did not come, both in a row.
	failures, missed int
	pulse            pulse
	// problems are in words, by what they are about.
	problems map[string]string
	// returned is closed when the server is heard again.
	returned chan struct{}
	cluster  *Cluster
	// kick has the server asked at once.
	kick chan struct{}
}

func newHealth(c *Cluster) health {
	return health{
		state: pb.Kubernetes_SYNCING, since: time.Now(), problems: make(map[string]string),
		returned: make(chan struct{}), kick: make(chan struct{}, 1), cluster: c, pulse: usualPulse,
	}
}

// told are the problems, in order.
func (h *health) told() []string {
	var told []string
	for _, about := range slices.Sorted(maps.Keys(h.problems)) {
		if text := h.problems[about]; !slices.Contains(told, text) {
			told = append(told, text)
		}
	}
	return told
}

// back is closed when the server is heard again after it was not.
func (h *health) back() <-chan struct{} {
	h.cluster.mu.RLock()
	defer h.cluster.mu.RUnlock()
	return h.returned
}

// catchUp is how long after it was opened a watch may still tell of what happened
// before: what there is of that, the server sends at once.
const catchUp = time.Second

// clock is now, and goes on when the time of day is set.
func (c *Cluster) clock() int64 { return c.begun.UnixNano() + int64(time.Since(c.begun)) }

// hear notes that the server said something.
func (c *Cluster) hear() {
	c.heard.Store(time.Now().UnixNano())
	now := c.clock()
	if since := c.following.Load(); since != 0 && now-since >= int64(catchUp) {
		c.complete.Store(now)
	}
}

// problem notes a problem, or with no text that there is none of it any more. It
// is called under mu.
func (c *Cluster) problem(about, text string) {
	before := c.health.problems[about]
	switch {
	case before == text:
	case text == "":
		delete(c.health.problems, about)
		c.tellLog(slog.LevelInfo, "a problem with the Kubernetes API is over", "problem", before)
	default:
		c.health.problems[about] = text
		if before == "" { // other words for it are no news
			c.tellLog(slog.LevelWarn, "there is a problem with the Kubernetes API", "problem", text)
		}
	}
}

// tellLog has something written into the log, but not here: who has mu, or waits for
// it, must not wait for the log.
func (c *Cluster) tellLog(level slog.Level, text string, more ...any) {
	select {
	case c.entries <- func(ctx context.Context) { c.log.Log(ctx, level, text, more...) }: //nolint:sloglint // constant where it is called
	default: // the log is stuck
	}
}

// writeLog writes what is to be in the log until ctx ends.
func (c *Cluster) writeLog(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case write := <-c.entries:
			write(ctx)
		}
	}
}

// serverProblem is what problems of the server itself are about.
const serverProblem = "server"

// failed notes that an attempt to list or follow failed.
func (c *Cluster) failed(f *feed, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case apierrors.IsForbidden(err) && c.health.missed == 0: // a server that begins forbids all until it is ready
		c.hear()
		c.problem(f.name, fmt.Sprintf("may not list and watch %s: %s; grant ipwitness's ClusterRole list and watch of %s",
			f.said(), f.lost, f.said()))
	case apierrors.IsUnauthorized(err):
		c.hear()
		c.problem(serverProblem, fmt.Sprintf("the API server %s does not know us any more: renew the token or certificate of the kubeconfig or service account",
			c.clients.server))
	case (f.name == podFeed || !answered(err)) && unreachable(err), apierrors.IsForbidden(err):
		c.problem(serverProblem, c.unheard(err))
		select {
		case c.health.kick <- struct{}{}:
		default:
		}
	default:
		// Of one resource alone it says nothing of the server: events may have an etcd of their own.
		c.problem(f.name, fmt.Sprintf("cannot follow %s: %s: %s", f.said(), f.lost, shorten(err.Error())))
	}
	switch {
	case f.source != nil:
		f.source.failed(err, c.health.problems[f.name])
	case f.name == podFeed:
		c.health.failures++
	case f.name == nodeFeed && apierrors.IsForbidden(err):
		c.health.placed = true
	}
	c.assess()
}

func (c *Cluster) unheard(err error) string {
	// Without the address of each request, which may be as long as all else.
	if request := (*url.Error)(nil); errors.As(err, &request) {
		err = request.Err
	}
	return fmt.Sprintf("the API server %s is not heard from: what is said of pods may be old: %s", c.clients.server, shorten(err.Error()))
}

// worked notes that a resource is followed again.
func (c *Cluster) worked(f *feed) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hear()
	c.problem(f.name, "")
	if f.source != nil {
		f.source.worked()
	}
	if f.name == podFeed {
		c.following.CompareAndSwap(0, c.clock())
		c.health.failures, c.health.missed = 0, 0
		c.problem(serverProblem, "")
	}
	c.assess()
}

// listed notes that a resource was listed.
func (c *Cluster) listed(f *feed) {
	c.mu.Lock()
	switch f.name {
	case podFeed:
		c.health.synced = true
	case nodeFeed:
		c.health.placed = true
	}
	c.mu.Unlock()
	c.worked(f)
	c.pending.ring()
}

// assess says anew what state this is. It is called under mu.
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
	c.tellLog(slog.LevelInfo, "what is known of Kubernetes", "state", state.String(), "before", h.state.String(),
		"server", c.clients.server, "pods", len(c.pods.records), "nodes", len(c.nodes.records))
	h.state, h.since = state, time.Now()
	c.reassess()
	c.pending.changes.State = true
	c.pending.ring()
}

// beat asks the API server from time to time whether it is ready: a watch says
// nothing for a minute when nothing happens.
func (c *Cluster) beat(ctx context.Context) {
	pulse := c.health.pulse // never changes
	wait := pulse.every
	for {
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-c.health.kick:
		case <-timer.C:
		}
		timer.Stop()
		err := c.ready(ctx)
		if ctx.Err() != nil {
			return
		}
		c.mu.Lock()
		if err == nil {
			wait = pulse.every
			c.hear()
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
				c.problem(serverProblem, c.unheard(err))
			}
		}
		c.assess()
		c.mu.Unlock()
	}
}

// ready asks the API server whether it is ready.
func (c *Cluster) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, c.health.pulse.within)
	defer cancel()
	var code int
	err := c.clients.core.Get().AbsPath("/readyz").MaxRetries(0).Do(ctx).StatusCode(&code).Error()
	if code != 0 && code < http.StatusInternalServerError {
		return nil // it is there, and does not tell us
	}
	return err
}

// tell calls who wants to know of changes.
func (c *Cluster) tell(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.pending.bell:
		}
		if changes, any := c.take(); any && c.notify != nil {
			slices.SortFunc(changes.Related, cmp.Compare[string])
			c.notify(changes)
		}
	}
}
