package kube

import (
	"cmp"
	"context"
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
	// renewEvery is how often the events about what lasts are written again. An API server forgets an event an hour
	// (--event-ttl) after its last change, unless it is configured otherwise.
	renewEvery = 20 * time.Minute
	// maxQueue is the maximum number of events that wait to be written. They wait no longer than lately.
	maxQueue = 5000
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

// target is the object of an event: a pod, or a node if only that is set.
type target struct{ namespace, name, uid, node string }

// announcement is the state of a conflict or finding to write events about. It never changes once it is queued.
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
	again   bool
	since   time.Time         // when it was queued
	names   map[string]string // of the owners, by their places
	summary string
	first   string // the first step of the remedy
	runbook string
}

// A notice is an event to write: an announcement about one target.
type notice struct {
	*announcement
	target target
	due    time.Time // when to write it; zero for immediately
	// renews means that the event exists, unless the API server has forgotten it.
	renews bool
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
	renewed          time.Time // when it was last looked which events to renew; only run uses it

	mu    sync.Mutex
	past  map[string]*announced // by id
	queue []*notice
}

// announced is what was announced about one conflict or finding.
type announced struct {
	detected time.Time
	again    bool
	resolved bool
	targets  map[target]bool
	// last is the last state; nil while nothing is to be written. renewed is when all of its events were last queued.
	last    *announcement
	renewed time.Time
}

// Announce queues Events about a conflict that is confirmed or resolved: one for each pod
// that the API has, and one for each node. Repeating it for the same state has no effect. A recalled conflict is
// from before the start: if it was confirmed earlier than lately, its Events were written then.
func (c *Cluster) Announce(conflict *pb.Conflict, recalled bool) {
	resolved := conflict.GetState() == pb.Conflict_RESOLVED
	if c == nil || conflict.GetConfirmedAt() == nil || conflict.GetAcknowledgement() != nil || !resolved && conflict.GetState() != pb.Conflict_CONFIRMED {
		c.hush(conflict.GetId())
		return
	}
	var about []target
	for _, o := range conflict.GetOwners() {
		about = append(about, target{node: o.GetNode()}, podOf(o))
	}
	c.announcer.announce(&announcement{
		id: conflict.GetId(), address: conflict.GetAddress(), reason: conflictReason, over: resolvedReason, mark: conflictNote,
		resolved: resolved, detected: conflict.GetDetectedAt().AsTime(), began: episode.Began(conflict),
		summary: conflict.GetSummary(), first: firstOf(conflict.GetRemedy()), runbook: conflict.GetRunbook(), names: namesOf(conflict.GetOwners()),
	}, about, recalled && time.Since(conflict.GetConfirmedAt().AsTime()) > lately)
}

// AnnounceFinding queues Events about a finding of at least WARNING, or about its end. The
// Events are about the pods that hold the address and the nodes concerned, at most
// maxFindingTargets. Repeating it for the same state has no effect. A recalled finding is from before the start: if
// it was detected earlier than lately, its Events were written then.
func (c *Cluster) AnnounceFinding(finding *pb.Finding, over, recalled bool) {
	if c == nil || finding.GetSeverity() < pb.Finding_WARNING && !over {
		c.hush(finding.GetId())
		return
	}
	var about []target
	for _, o := range finding.GetOwners() {
		about = append(about, podOf(o))
	}
	for _, node := range finding.GetNodes() {
		about = append(about, target{node: node})
	}
	reason := findingReasons[finding.GetKind()]
	c.announcer.announce(&announcement{
		id: finding.GetId(), address: finding.GetAddress(), reason: reason, over: reason + "Resolved", mark: findingNote, finding: true,
		resolved: over, detected: finding.GetDetectedAt().AsTime(),
		summary: finding.GetSummary(), first: firstOf(finding.GetRemedy()), runbook: finding.GetRunbook(), names: namesOf(finding.GetOwners()),
	}, about, recalled && time.Since(finding.GetDetectedAt().AsTime()) > lately)
}

// hush leaves the events about a conflict or a finding as they are, until it is announced again.
func (c *Cluster) hush(id string) {
	if c == nil {
		return
	}
	c.announcer.mu.Lock()
	defer c.announcer.mu.Unlock()
	if of := c.announcer.past[id]; of != nil {
		of.last = nil
	}
}

// namesOf returns the names of owners by their places.
func namesOf(owners []*pb.Owner) map[string]string {
	names := make(map[string]string, len(owners))
	for _, o := range owners {
		w := o.GetWorkload()
		names[o.GetNode()+" "+o.GetNetns()+" "+o.GetMac()] = w.GetKind().String() + " " + w.GetNamespace() + "/" + w.GetName()
	}
	return names
}

// renames reports whether an owner has another name than before, such as that of a pod which was not known.
func (n *announcement) renames(before *announcement) bool {
	for place, name := range before.names {
		if now, ok := n.names[place]; ok && now != name {
			return true
		}
	}
	return false
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

// announce queues the events about the targets that have none yet. The events about a resolved conflict are about all
// of its targets, including former owners. written means that the events were written before the start.
func (a *announcer) announce(n *announcement, about []target, written bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	of := a.past[n.id]
	if of == nil || !of.detected.Equal(n.detected) {
		if n.resolved {
			return // it was never announced, because it was acknowledged from the start
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
		return
	}
	var targets []target
	for _, t := range about {
		if t != (target{}) && !of.targets[t] && (!n.finding || len(of.targets) < maxFindingTargets) {
			of.targets[t] = true
			targets = append(targets, t)
		}
	}
	if n.resolved {
		targets = slices.Collect(maps.Keys(of.targets))
		of.resolved, of.targets, of.last = true, nil, nil
	}
	n.again, n.since = of.again, time.Now()
	before := of.last
	if !n.resolved {
		if of.last = n; of.renewed.IsZero() {
			if of.renewed = n.since; written { // when is not known: soon, as soon as it is judged
				of.renewed = n.since.Add(renewEvery/20 - renewEvery)
			}
		}
	}
	if written {
		return
	}
	a.enqueue(n, targets, false)
	if of.last != nil && before != nil && n.renames(before) {
		a.enqueue(n, slices.DeleteFunc(slices.Collect(maps.Keys(of.targets)), func(t target) bool { return slices.Contains(targets, t) }), true)
	}
}

// renew queues the events, which the API server would forget, about conflicts and findings that last.
func (a *announcer) renew(now time.Time) {
	if now.Sub(a.renewed) < renewEvery/20 {
		return
	}
	a.renewed = now
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, of := range a.past {
		if of.last != nil && now.Sub(of.renewed) >= renewEvery {
			n := *of.last
			n.since, of.renewed = now, now
			a.enqueue(&n, slices.Collect(maps.Keys(of.targets)), true)
		}
	}
}

// enqueue queues the events of an announcement. The caller holds the lock.
func (a *announcer) enqueue(n *announcement, targets []target, renews bool) {
	slices.SortFunc(targets, func(x, y target) int {
		return cmp.Or(cmp.Compare(x.namespace, y.namespace), cmp.Compare(x.name, y.name), cmp.Compare(x.uid, y.uid), cmp.Compare(x.node, y.node))
	})
	if renews {
		a.queue = slices.DeleteFunc(a.queue, func(other *notice) bool { return other.renews && other.id == n.id })
	}
	for _, t := range targets {
		a.queue = append(a.queue, &notice{announcement: n, target: t, renews: renews})
	}
	for len(a.queue) > maxQueue { // drop the oldest one about a finding or, without findings, about a conflict
		oldest := max(0, slices.IndexFunc(a.queue, func(n *notice) bool { return n.finding }))
		a.counts[dropped].Add(1)
		a.queue = slices.Delete(a.queue, oldest, oldest+1)
	}
	ring(a.bell)
}

func (a *announcer) remove(which func(*notice) bool) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	before := len(a.queue)
	a.queue = slices.DeleteFunc(a.queue, which)
	return before - len(a.queue)
}

// due returns when an event may be written: eventPause after the last one of its name,
// and not before an earlier notice about the same target.
func (a *announcer) due(n *notice, name string) time.Time {
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
		if before.id == n.id && before.target == n.target && before.due.After(due) {
			due = before.due
		}
	}
	return due
}

// postpone moves an event to the end of the queue, until the time when it may be written. It replaces a waiting event
// about the same target, because only the last state matters.
func (a *announcer) postpone(n *notice, due time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	n.due = due
	a.queue = append(slices.DeleteFunc(a.queue, func(other *notice) bool {
		return other == n || !other.due.IsZero() && other.id == n.id && other.resolved == n.resolved && other.target == n.target
	}), n)
}

// next returns the next event to write: those about conflicts come first. If none is due, it returns nil and the
// time when the next one is due; zero if the queue is empty.
func (a *announcer) next() (*notice, time.Time) {
	now := time.Now()
	a.counts[dropped].Add(uint64(a.remove(func(n *notice) bool { return now.Sub(n.since) >= lately })))
	a.mu.Lock()
	defer a.mu.Unlock()
	var next time.Time
	var finding *notice
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

// leave drops the events that the leader has had time to write, given when the API has become
// available.
func (a *announcer) leave(available time.Time) {
	if time.Since(available) >= leftToLeader {
		a.remove(func(n *notice) bool { return time.Since(n.since) >= leftToLeader })
	}
}

func (a *announcer) run(ctx context.Context) {
	backoff := firstBackoff
	for ctx.Err() == nil {
		a.renew(time.Now())
		n, at := a.next()
		bell, wait := a.bell, time.Until(at)
		switch status := a.cluster.Status(); {
		case n == nil && at.IsZero():
			wait = renewEvery / 20 // or until the next announcement
		case n == nil:
			wait = min(wait, renewEvery/20)
		case status.GetState() != pb.Kubernetes_LIVE: // the pods are not known
			bell, wait = nil, time.Second
		case !a.cluster.election.leads():
			a.leave(status.GetSince().AsTime())
			bell, wait = nil, time.Second
		default:
			err := a.write(ctx, n)
			if err == nil {
				backoff = firstBackoff
				continue
			}
			bell, wait = nil, backoff
			backoff = min(2*backoff, maxBackoff)
		}
		select {
		case <-ctx.Done():
		case <-bell:
		case <-time.After(wait):
		}
	}
}

// eventsProblem is the key of the problem that events cannot be written.
const eventsProblem = "write events"

// write writes an event, and removes it from the queue or postpones it. After an error it can be tried again.
func (a *announcer) write(ctx context.Context, n *notice) error {
	event := a.event(n)
	if event == nil { // the API does not have the target: it is announced when it has
		a.mu.Lock()
		if of := a.past[n.id]; of != nil && of.detected.Equal(n.detected) {
			delete(of.targets, n.target)
		}
		a.mu.Unlock()
		a.remove(func(other *notice) bool { return other == n })
		return nil
	}
	if until := a.refused[event.Namespace]; until.After(time.Now()) {
		a.counts[forbidden].Add(1)
		a.postpone(n, until)
		return nil
	}
	if due := a.due(n, event.Name); due.After(time.Now()) {
		a.counts[limited].Add(1)
		a.postpone(n, due)
		return nil
	}
	if err := a.limiter.Wait(ctx); err != nil {
		return err
	}
	became, err := a.put(ctx, n, event)
	switch now := time.Now(); {
	case err == nil:
		maps.DeleteFunc(a.refused, func(namespace string, until time.Time) bool { return namespace == event.Namespace || !until.After(now) })
		if len(a.refused) == 0 {
			a.cluster.setProblem(eventsProblem, "")
		}
		if len(a.written) >= maxQueue {
			maps.DeleteFunc(a.written, func(_ string, at time.Time) bool { return now.Sub(at) >= a.pause })
		}
		a.written[event.Name] = now
		a.counts[became].Add(1)
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause), apierrors.IsNotFound(err), apierrors.IsInvalid(err), apierrors.IsBadRequest(err):
		a.counts[failed].Add(1)
		a.cluster.log.Debug("cannot write Event", "event", event.Namespace+"/"+event.Name, "err", err)
	case apierrors.IsForbidden(err):
		a.counts[forbidden].Add(1)
		a.cluster.setProblem(eventsProblem, "no permission to write Events: kubectl describe does not show conflicts and findings; "+
			"grant ipwitness's ClusterRole create, get and patch of events")
		// Another namespace may allow it: the cause may be a quota.
		a.refused[event.Namespace] = now.Add(rightsAgain)
		a.postpone(n, a.refused[event.Namespace])
		return nil
	default:
		return err
	}
	a.remove(func(other *notice) bool { return other == n })
	return nil
}
