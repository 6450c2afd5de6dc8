package kube

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/ipwitness/ipwitness/aggregator/episode"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

const (
	// Reasons of the events.
	conflictReason = "AddressConflict"
	resolvedReason = "AddressConflictResolved"

	// reporter is the component that reports the events.
	reporter = "ipwitness"
	// nodeNamespace is the namespace of events about nodes, as with the kubelet.
	nodeNamespace = metav1.NamespaceDefault
	// maxText is the API's limit on the length of a message.
	maxText = 1024

	// Annotations that identify the conflict or finding, and its episode: when it began, which all replicas
	// know alike, and when this one detected it.
	conflictNote = "ipwitness/conflict"
	findingNote  = "ipwitness/finding"
	beganNote    = "ipwitness/began-at"
	detectedNote = "ipwitness/detected-at"

	// Events per second and in a burst; an event of one name is written once per eventPause.
	eventRate, eventBurst = 10, 50
	eventPause            = 10 * time.Second
	// maxQueue is the maximum number of queued announcements. They wait no longer than lately.
	maxQueue = 1000
	// maxAnnounced is the maximum number of conflicts and findings that are remembered.
	maxAnnounced = 20000
	// maxFindingTargets is the number of pods and nodes that get events about one finding.
	maxFindingTargets = 32
	// rightsAgain is the time after which a forbidden request is tried again.
	rightsAgain = 10 * time.Minute
	// leftToLeader is how long a replica that does not lead keeps an announcement, which the leader writes.
	// If the leader ends, the next one writes the events of this time that are missing. It is longer than
	// it takes to elect the first leader after all replicas have started.
	leftToLeader = 2 * time.Minute
	// writeWithin is the timeout of writing one event.
	writeWithin = 10 * time.Second
)

// errNotLeading is the error of a replica that does not lead.
var errNotLeading = errors.New("another replica leads")

// target is the object of an event: a pod, or a node if only that is set.
type target struct{ namespace, name, uid, node string }

// announcement is a conflict or finding to write events about.
type announcement struct {
	id, address string
	// reason is the event's reason while the conflict lasts, and over its reason once the
	// conflict has ended. mark is the annotation that has the id.
	reason, over, mark string
	finding            bool
	resolved           bool
	detected           time.Time
	began              time.Time // episode.Began
	// again means that it is another episode of a conflict that was announced before.
	again bool
	// before means that its events were written before the start.
	before  bool
	since   time.Time // when it was queued
	due     time.Time // when to write it; zero for immediately
	summary string
	first   string // the first step of the remedy
	runbook string
	// targets are the objects that have no event yet.
	targets []target
}

// announcer writes events about conflicts and findings.
//
// It does not use client-go/tools/events, because a recorder guarantees less. It names an
// event after the time, so that another replica, or the same one after a restart, writes
// it again. It writes each event in its own goroutine, so that "resolved" may be written
// before "conflict". It gives up after 12 attempts in two minutes, and after the first one
// if events are forbidden. And it reports no results.
type announcer struct {
	cluster *Cluster
	counts  [results]atomic.Uint64
	limiter flowcontrol.RateLimiter
	bell    chan struct{}
	pause   time.Duration // eventPause
	// written is when an event of each name was last written. refused is the time until which
	// nothing is written to a namespace that forbids it. Only run uses them.
	written, refused map[string]time.Time

	mu    sync.Mutex
	past  map[string]*announced // by id
	queue []*announcement
}

// announced is what was announced about one conflict or finding.
type announced struct {
	detected time.Time
	again    bool
	resolved bool
	targets  map[target]bool
}

func newAnnouncer(c *Cluster) announcer {
	return announcer{
		cluster: c, limiter: flowcontrol.NewTokenBucketRateLimiter(eventRate, eventBurst), bell: make(chan struct{}, 1), pause: eventPause,
		written: make(map[string]time.Time), refused: make(map[string]time.Time), past: make(map[string]*announced),
	}
}

// Announce queues Events about a conflict that is confirmed or resolved: one for each pod
// that the API has, and one for each node. Repeating it for the same state has no effect.
func (c *Cluster) Announce(conflict *pb.Conflict) { c.announce(conflict, false) }

// Recall is like Announce, for a conflict from before the start. It assumes that the Events about a
// conflict that was confirmed earlier than lately were written then.
func (c *Cluster) Recall(conflict *pb.Conflict) {
	c.announce(conflict, time.Since(conflict.GetConfirmedAt().AsTime()) > lately)
}

func (c *Cluster) announce(conflict *pb.Conflict, before bool) {
	if c == nil || conflict.GetConfirmedAt() == nil || conflict.GetAcknowledgement() != nil {
		return
	}
	resolved := conflict.GetState() == pb.Conflict_RESOLVED
	if !resolved && conflict.GetState() != pb.Conflict_CONFIRMED {
		return
	}
	n := &announcement{
		id: conflict.GetId(), address: conflict.GetAddress(), reason: conflictReason, over: resolvedReason, mark: conflictNote,
		resolved: resolved, detected: conflict.GetDetectedAt().AsTime(), began: episode.Began(conflict), summary: conflict.GetSummary(), runbook: conflict.GetRunbook(),
		before: before,
	}
	n.first = firstOf(conflict.GetRemedy())
	var about []target
	for _, o := range conflict.GetOwners() {
		about = append(about, target{node: o.GetNode()}, podOf(o))
	}
	c.announcer.announce(n, about)
}

// firstOf returns the first step of a remedy on one line; empty if there is none.
func firstOf(remedy []*pb.Action) string {
	if len(remedy) == 0 {
		return ""
	}
	first := remedy[0]
	text := first.GetText()
	if command := first.GetCommand(); command != "" && !strings.Contains(command, "\n") {
		text += " Command: " + command
	}
	if len(first.GetChoice()) == 0 {
		return text
	}
	var cases []string
	for _, a := range first.GetChoice() {
		cases = append(cases, a.GetWhen())
	}
	return text + " Either " + strings.Join(cases, ", or ") + "."
}

// podOf returns the pod of an owner; the zero target if the owner is not a pod.
func podOf(o *pb.Owner) target {
	w := o.GetWorkload()
	if w.GetKind() != pb.Workload_POD || w.GetUid() == "" && w.GetName() == "" {
		return target{}
	}
	return target{w.GetNamespace(), w.GetName(), w.GetUid(), o.GetNode()}
}

// announce queues the new targets of an announcement.
func (a *announcer) announce(n *announcement, about []target) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.addNew(n, about) {
		return
	}
	a.enqueue(n)
	select {
	case a.bell <- struct{}{}:
	default:
	}
}

// addNew adds the targets that are new to the announcement, and reports whether there are any. The caller holds mu.
func (a *announcer) addNew(n *announcement, about []target) bool {
	of := a.past[n.id]
	if of == nil || !of.detected.Equal(n.detected) {
		if n.resolved {
			return false // it was never announced, because it was acknowledged from the start
		}
		if len(a.past) >= maxAnnounced {
			maps.DeleteFunc(a.past, func(_ string, of *announced) bool { return of.resolved })
			if len(a.past) >= maxAnnounced {
				clear(a.past)
			}
		}
		of = &announced{detected: n.detected, again: of != nil, targets: make(map[target]bool)}
		a.past[n.id] = of
	}
	if of.resolved {
		return false
	}
	n.again, n.since = of.again, time.Now()
	for _, t := range about {
		if !n.finding || len(of.targets) < maxFindingTargets {
			n.add(of, t)
		}
	}
	if n.resolved {
		of.resolved = true
		n.targets = slices.Collect(maps.Keys(of.targets)) // including former owners
		of.targets = nil
	}
	slices.SortFunc(n.targets, func(x, y target) int {
		return cmp.Or(cmp.Compare(x.namespace, y.namespace), cmp.Compare(x.name, y.name), cmp.Compare(x.uid, y.uid), cmp.Compare(x.node, y.node))
	})
	return len(n.targets) > 0 && !n.before
}

// add adds a target that has no event yet.
func (n *announcement) add(of *announced, t target) {
	if t != (target{}) && !of.targets[t] {
		of.targets[t] = true
		n.targets = append(n.targets, t)
	}
}

// enqueue adds an announcement to the queue. If the queue is full it drops the oldest
// finding or, without findings, the oldest conflict. The caller holds mu.
func (a *announcer) enqueue(n *announcement) {
	if len(a.queue) >= maxQueue {
		oldest := max(0, slices.IndexFunc(a.queue, func(n *announcement) bool { return n.finding }))
		a.counts[dropped].Add(uint64(len(a.queue[oldest].targets)))
		a.queue = slices.Delete(a.queue, oldest, oldest+1)
	}
	a.queue = append(a.queue, n)
}

// due returns when an event may be written: eventPause after the last one of its name,
// and not before an earlier announcement about the same target.
func (a *announcer) due(n *announcement, t target, name string) time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	var due time.Time
	if last, ok := a.written[name]; ok {
		due = last.Add(a.pause)
	}
	for _, before := range a.queue {
		if before == n {
			break
		}
		if before.id == n.id && before.targets[0] == t && before.due.After(due) {
			due = before.due
		}
	}
	return due
}

// later queues an event for the time when it may be written. It replaces a queued event
// about the same target, because only the last state matters.
func (a *announcer) later(n *announcement, t target, due time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.queue = slices.DeleteFunc(a.queue, func(other *announcement) bool {
		return !other.due.IsZero() && other.id == n.id && other.resolved == n.resolved && other.targets[0] == t
	})
	one := *n
	one.targets, one.due = []target{t}, due
	a.enqueue(&one)
}

// first returns the next announcement to write. If none is due, it returns nil and the time
// when the next one is due; zero if the queue is empty.
func (a *announcer) first() (*announcement, time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	a.queue = slices.DeleteFunc(a.queue, func(n *announcement) bool {
		old := now.Sub(n.since) >= lately
		if old {
			a.counts[dropped].Add(uint64(len(n.targets)))
		}
		return old
	})
	var next time.Time
	var finding *announcement // written after conflicts
	for _, n := range a.queue {
		switch {
		case n.due.After(now):
			if next.IsZero() || n.due.Before(next) {
				next = n.due
			}
		case !n.finding:
			return n, time.Time{}
		case finding == nil:
			finding = n
		}
	}
	return finding, next
}

// leave drops the announcements that the leader has had time to write, given when the API has become
// available.
func (a *announcer) leave(available time.Time) {
	if time.Since(available) < leftToLeader {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.queue = slices.DeleteFunc(a.queue, func(n *announcement) bool { return time.Since(n.since) >= leftToLeader })
}

// done removes an announcement from the queue.
func (a *announcer) done(n *announcement) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.queue = slices.DeleteFunc(a.queue, func(other *announcement) bool { return other == n })
}

// run writes queued announcements until ctx ends.
func (a *announcer) run(ctx context.Context) {
	backoff := firstBackoff
	var next time.Time // when to continue; zero to wait for the next announcement
	deaf := false      // nothing can be written until next
	for {
		bell, timer := a.bell, (<-chan time.Time)(nil)
		if !next.IsZero() {
			timer = time.After(time.Until(next))
		}
		if deaf {
			bell = nil
		}
		select {
		case <-ctx.Done():
			return
		case <-bell:
		case <-timer:
		}
		deaf = false
		for ctx.Err() == nil {
			var n *announcement
			if n, next = a.first(); n == nil {
				break
			}
			status := a.cluster.Status()
			if status.GetState() != pb.Kubernetes_LIVE { // the pods are not known
				deaf, next = true, time.Now().Add(time.Second)
				break
			}
			if !a.cluster.election.leads() {
				a.leave(status.GetSince().AsTime())
				deaf, next = true, time.Now().Add(time.Second)
				break
			}
			if err := a.write(ctx, n); err != nil {
				deaf, next = true, time.Now().Add(backoff)
				backoff = min(2*backoff, maxBackoff)
				break
			}
			a.done(n)
			backoff = firstBackoff
		}
	}
}

// eventsProblem is the key of the problem that events cannot be written.
const eventsProblem = "write events"

// write writes the remaining events of an announcement. After an error it can be tried
// again.
func (a *announcer) write(ctx context.Context, n *announcement) error {
	for ; len(n.targets) > 0; a.next(n) {
		if !a.cluster.election.leads() {
			return errNotLeading
		}
		event := a.event(n, n.targets[0])
		if event == nil {
			a.miss(n, n.targets[0])
			continue
		}
		if until := a.refused[event.Namespace]; until.After(time.Now()) {
			a.counts[forbidden].Add(1)
			a.later(n, n.targets[0], until)
			continue
		}
		if due := a.due(n, n.targets[0], event.Name); due.After(time.Now()) {
			a.counts[limited].Add(1)
			a.later(n, n.targets[0], due)
			continue
		}
		if err := a.limiter.Wait(ctx); err != nil {
			return err
		}
		became, err := a.put(ctx, n, event)
		if err != nil {
			switch {
			case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause), apierrors.IsNotFound(err), apierrors.IsInvalid(err), apierrors.IsBadRequest(err):
				a.counts[failed].Add(1)
				a.cluster.log.Debug("cannot write Event", "event", event.Namespace+"/"+event.Name, "err", err)
				continue
			case apierrors.IsForbidden(err):
				a.counts[forbidden].Add(1)
				a.problem("no permission to write Events: kubectl describe does not show conflicts and findings; grant ipwitness's ClusterRole create, get and patch of events")
				// Another namespace may allow it: the cause may be a quota.
				a.refused[event.Namespace] = time.Now().Add(rightsAgain)
				a.later(n, n.targets[0], a.refused[event.Namespace])
				continue
			}
			return err
		}
		delete(a.refused, event.Namespace)
		maps.DeleteFunc(a.refused, func(_ string, until time.Time) bool { return !until.After(time.Now()) })
		if len(a.refused) == 0 {
			a.problem("")
		}
		a.counts[became].Add(1)
		a.remember(event.Name)
	}
	return nil
}

// next removes the first target. It takes the lock because Announce reads targets, too.
func (a *announcer) next(n *announcement) {
	a.mu.Lock()
	defer a.mu.Unlock()
	n.targets = n.targets[1:]
}

// miss forgets a target that the API does not have, so that it is announced when the API
// has it.
func (a *announcer) miss(n *announcement, t target) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if of := a.past[n.id]; of != nil && of.detected.Equal(n.detected) {
		delete(of.targets, t)
	}
}

func (a *announcer) problem(text string) {
	a.cluster.mu.Lock()
	a.cluster.problem(eventsProblem, text)
	a.cluster.mu.Unlock()
}

// remember records that an event was written now.
func (a *announcer) remember(name string) {
	now := time.Now()
	if len(a.written) >= maxQueue {
		maps.DeleteFunc(a.written, func(_ string, at time.Time) bool { return now.Sub(at) >= a.pause })
	}
	a.written[name] = now
}
