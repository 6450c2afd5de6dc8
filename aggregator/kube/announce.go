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
	"github.com/ipwitness/ipwitness/ipam"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

const (
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
	// maxAnnounced is the maximum number of conflicts and findings that are remembered.
	maxAnnounced = 20000
	// maxFindingTargets is the number of pods and nodes that get events about one finding.
	maxFindingTargets = 32
	// rightsAgain is the time after which a forbidden request is tried again.
	rightsAgain = 10 * time.Minute
	// leftToLeader is how long a replica that does not lead keeps an event waiting, which the leader writes.
	// If the leader ends, the next one writes the events of this time that are missing. It is longer than
	// it takes to elect the first leader after all replicas have started.
	leftToLeader = 2 * time.Minute
	// writeWithin is the timeout of writing one event.
	writeWithin = 10 * time.Second
)

// target is the object of an event: a pod, or a node if only that is set.
type target struct{ namespace, name, uid, node string }

// announcement is the state of a conflict or finding to write events about. It never changes once it was announced.
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
	names   map[string]string // of the owners, by their places
	summary string
	first   string // the first step of the remedy
	runbook string
}

// announcer writes events about conflicts and findings: it compares what was announced with what it has written.
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
	// refused is the time until which nothing is written to a namespace that forbids it. Only run uses it.
	refused map[string]time.Time
	// stored has the IDs of the conflicts and findings about which the API has Events (Warning).
	stored ipam.Mirror[*corev1.Event, string]

	mu    sync.Mutex
	pause time.Duration         // eventPause
	past  map[string]*announced // by id
}

// announced is what was announced about one conflict or finding.
type announced struct {
	detected        time.Time
	again, resolved bool
	last            *announcement // the last state; nil while no event is renewed or corrected
	targets         map[target]*targetEvents
}

// targetEvents are the events about one target: that the conflict lasts, and that it is over.
type targetEvents struct {
	active      bool // the target is one of the present episode
	lasts, over eventState
}

// eventState is what was written as one event, and what is to be written.
type eventState struct {
	wants  *announcement // to be written; nil if nothing is
	since  time.Time     // when that was announced
	renews bool          // the event exists, unless the API server has forgotten it
	at     time.Time     // when it was last written
	until  time.Time     // until when its namespace refuses it
}

// A notice is an event to write: an announcement about one target.
type notice struct {
	*announcement
	target target
	renews bool
	of     *announced
	state  *eventState
}

// Announce asks for Events about a conflict that is confirmed or resolved: one for each pod
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

// AnnounceFinding asks for Events about a finding of at least WARNING, or about its end. The
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

// announce asks for the events about the targets that have none yet. The events about a resolved conflict are about all
// of its targets, including former owners. written means that the events were written before the start.
func (a *announcer) announce(n *announcement, about []target, written bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	of := a.past[n.id]
	switch {
	case of != nil && of.detected.Equal(n.detected):
		if of.resolved {
			return
		}
	case n.resolved:
		return // it was never announced, because it was acknowledged from the start
	case of != nil:
		of.detected, of.again, of.resolved = n.detected, true, false
		for _, events := range of.targets {
			events.active = false
		}
	default:
		if len(a.past) >= maxAnnounced {
			maps.DeleteFunc(a.past, func(_ string, of *announced) bool { return of.resolved && len(of.targets) == 0 })
		}
		for id := range a.past {
			if len(a.past) < maxAnnounced {
				break
			}
			delete(a.past, id)
		}
		of = &announced{detected: n.detected, targets: make(map[target]*targetEvents)}
		a.past[n.id] = of
	}
	now := time.Now()
	n.again = of.again
	renamed := of.last != nil && n.renames(of.last)
	for _, t := range about {
		events := of.targets[t]
		if t == (target{}) || events == nil && n.finding && len(of.targets) >= maxFindingTargets {
			continue
		}
		if events == nil {
			events = &targetEvents{}
			of.targets[t] = events
		}
		switch {
		case events.active || n.resolved:
		case written: // when is not known: soon, as soon as it is judged
			events.lasts.at = now.Add(renewEvery/20 - renewEvery)
		default:
			a.want(&events.lasts, n, now)
		}
		events.active = true
	}
	for _, events := range of.targets {
		switch {
		case !events.active:
		case n.resolved:
			a.want(&events.over, n, now)
			events.active = false
		case renamed && events.lasts.wants != n:
			a.want(&events.lasts, n, now)
			events.lasts.renews = true
		}
	}
	if of.last, of.resolved = n, n.resolved; of.resolved {
		of.last = nil
	}
}

// readOwnEvent returns the ID of the conflict or finding that an Event of this program is about.
func readOwnEvent(event *corev1.Event) (ipam.Key, *string) {
	id := cmp.Or(event.Annotations[conflictNote], event.Annotations[findingNote])
	return ipam.Key{Namespace: event.Namespace, Name: event.Name}, &id
}

// deleted renews the events about a conflict or a finding soon, because the API server has forgotten one of them, or
// somebody has deleted it.
func (a *announcer) deleted(id string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	soon := time.Now().Add(a.pause - renewEvery)
	if of := a.past[id]; of != nil {
		for _, events := range of.targets {
			if events.lasts.at.After(soon) {
				events.lasts.at = soon
			}
		}
	}
}

// want replaces what is to be written as an event. The caller holds the lock.
func (a *announcer) want(e *eventState, n *announcement, now time.Time) {
	if now.Sub(e.at) < a.pause {
		a.counts[limited].Add(1)
	}
	e.wants, e.since, e.renews = n, now, false
	ring(a.bell)
}

// waiting returns the events to write now: the new ones, those about conflicts first, and then the renewed ones, about
// what lasts, which the API server would forget. A replica that does not lead writes none, and drops those that the
// leader has had time to write since the API has become available.
func (a *announcer) waiting(now time.Time, leads bool, available time.Time) []notice {
	a.mu.Lock()
	defer a.mu.Unlock()
	var conflicts, findings, renewed []notice
	for _, of := range a.past {
		for t, events := range of.targets {
			e := &events.lasts // or the other one, if that was announced before
			if e.wants == nil || events.over.wants != nil && events.over.since.Before(e.since) {
				e = &events.over
			}
			if e.wants == nil && leads && events.active && of.last != nil && now.Sub(events.lasts.at) >= renewEvery {
				e = &events.lasts
				e.wants, e.since, e.renews = of.last, now, true
			}
			switch {
			case e.wants == nil:
				if !events.active && now.Sub(e.at) >= a.pause {
					delete(of.targets, t)
				}
			case now.Sub(e.since) >= lately:
				if e.wants = nil; !e.renews { // otherwise it is wanted again
					a.counts[dropped].Add(1)
				}
			case !leads:
				if now.Sub(e.since) >= leftToLeader && now.Sub(available) >= leftToLeader {
					e.wants, e.at = nil, now
				}
			case now.Sub(e.at) >= a.pause && !now.Before(e.until):
				all := &conflicts
				switch {
				case e.renews:
					all = &renewed
				case e.wants.finding:
					all = &findings
				}
				*all = append(*all, notice{e.wants, t, e.renews, of, e})
			}
		}
	}
	for _, all := range [][]notice{conflicts, findings, renewed} {
		slices.SortFunc(all, func(x, y notice) int { return x.state.since.Compare(y.state.since) })
	}
	return slices.Concat(conflicts, findings, renewed)
}

func (a *announcer) run(ctx context.Context) {
	backoff := firstBackoff
	for ctx.Err() == nil {
		bell, wait := a.bell, time.Second
		status, leads := a.cluster.Status(), a.cluster.election.leads()
		if !leads || status.GetState() != pb.Kubernetes_LIVE {
			bell = nil // nothing is written
		}
		if status.GetState() == pb.Kubernetes_LIVE { // otherwise the pods are not known
			for i, n := range a.waiting(time.Now(), leads, status.GetSince().AsTime()) {
				if i == eventBurst || !a.cluster.election.leads() {
					break
				}
				if err := a.write(ctx, n); err != nil {
					bell, wait = nil, backoff
					backoff = min(2*backoff, maxBackoff)
					break
				}
				backoff, wait = firstBackoff, 0
			}
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

// write writes an event. After an error it can be tried again.
func (a *announcer) write(ctx context.Context, n notice) error {
	event := a.event(n)
	if event == nil { // the API does not have the target: it is announced when it has
		a.mu.Lock()
		delete(n.of.targets, n.target)
		a.mu.Unlock()
		return nil
	}
	now := time.Now()
	became, until := forbidden, a.refused[event.Namespace]
	if !until.After(now) {
		if err := a.limiter.Wait(ctx); err != nil {
			return err
		}
		var err error
		became, err = a.put(ctx, n, event)
		now = time.Now()
		switch {
		case err == nil:
			maps.DeleteFunc(a.refused, func(namespace string, until time.Time) bool { return namespace == event.Namespace || !until.After(now) })
			if len(a.refused) == 0 {
				a.cluster.setProblem(eventsProblem, "")
			}
		case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause), apierrors.IsNotFound(err), apierrors.IsInvalid(err), apierrors.IsBadRequest(err):
			became = failed
			a.cluster.log.Debug("cannot write Event", "event", event.Namespace+"/"+event.Name, "err", err)
		case apierrors.IsForbidden(err):
			a.cluster.setProblem(eventsProblem, "no permission to write Events: kubectl describe does not show conflicts and findings; "+
				"grant ipwitness's ClusterRole create, get and patch of events")
			// Another namespace may allow it: the cause may be a quota.
			became, until = forbidden, now.Add(rightsAgain)
			a.refused[event.Namespace] = until
		default:
			return err
		}
	}
	a.counts[became].Add(1)
	a.mu.Lock()
	defer a.mu.Unlock()
	if became == forbidden {
		n.state.until = until
		return nil
	}
	if n.state.at = now; n.state.wants == n.announcement {
		n.state.wants = nil
	}
	return nil
}
