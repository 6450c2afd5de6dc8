package kube

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
)

const (
	// Maximum number of events in all, and of one node.
	maxEvents, maxNodeEvents = 8192, 64
)

type eventRecord struct {
	at              ipam.Key // the event's own key
	reason          string
	kind            string // kind of the object that the event is about: Pod or Node
	namespace, name string // the object
	node            string
	message         string
	count           uint32
	first, last     verdict.Stamp
}

// events has the events of the last hour that may explain a conflict.
type events struct{ warnings, normal *eventLog }

type eventLog struct {
	ipam.Mirror[*corev1.Event, eventRecord]
	cluster *Cluster
	byNode  index[string, eventRecord]
}

func newEventLog(c *Cluster) *eventLog {
	l := &eventLog{cluster: c, byNode: index[string, eventRecord]{}}
	l.Mirror = ipam.Mirror[*corev1.Event, eventRecord]{
		Limit:   2 * maxEvents,
		Read:    c.readEvent,
		Changed: func(_ ipam.Key, before, after *eventRecord) { l.changed(before, after) },
	}
	return l
}

// significantReasons has the reasons of events that may explain a conflict.
var significantReasons = map[string]bool{
	// From the kubelet, about pods.
	"FailedCreatePodSandBox": true, "FailedPodSandBoxStatus": true, "FailedKillPod": true, "NetworkNotReady": true,
	"FailedSync": false,
	// From the kubelet and the node controllers, about nodes.
	"Rebooted": true, "NodeNotReady": true, "CIDRNotAvailable": true, "CIDRAssignmentFailed": true, "FailedToCreateRoute": true,
	"KubeletSetupFailed": true, "DeletingNode": true, "RemovingNode": true,
	// From CNI plugins.
	"AcquireAddressFailed": true, "ReleaseAddressFailed": true, "IPAMError": true,
}

// significantWords has words by which a warning may explain a conflict, if significantReasons does
// not have its reason.
var significantWords = []string{"cni", "ipam", "ip address", "podcidr", "duplicate address"}

// ignoredReasons has the reasons of frequent events that never explain a conflict. The API server is
// asked to leave them out.
var ignoredReasons = []string{
	"BackOff", "Unhealthy", "ProbeWarning", "FailedScheduling", "FailedMount", "FailedAttachVolume", "Failed", "InspectFailed", "Evicted",
	"FailedCreate", "FailedGetResourceMetric", "FailedComputeMetricsReplicas", "DNSConfigForming", "NodeHasSufficientMemory",
	"NodeHasNoDiskPressure", "NodeHasSufficientPID", "NodeAllocatableEnforced", conflictReason,
}

// The feeds of events.
const (
	warningFeed   = "events (warnings)"
	nodeEventFeed = "events (of nodes)"
	ownEventFeed  = "events (of ipwitness)"
)

// EventsHeard reports whether the feeds of events that may explain a conflict have been read, and work.
func (c *Cluster) EventsHeard() bool {
	if c == nil {
		return false
	}
	c.mu.RLock()
	defer c.mu.RUnlock()
	return !slices.ContainsFunc(c.feeds, func(f *feed) bool {
		return (f.name == warningFeed || f.name == nodeEventFeed) && (!f.read || c.health.problems[f.name] != "")
	})
}

// readEvent returns the record of an event. The record is nil unless the event may explain a
// conflict.
func (c *Cluster) readEvent(event *corev1.Event) (ipam.Key, *eventRecord) {
	at := ipam.Key{Namespace: event.Namespace, Name: event.Name}
	about := &event.InvolvedObject
	significant, known := significantReasons[event.Reason]
	if !known && event.Type == corev1.EventTypeWarning {
		message := strings.ToLower(event.Message)
		significant = slices.ContainsFunc(significantWords, func(word string) bool { return strings.Contains(message, word) })
	}
	if about.Kind != "Pod" && about.Kind != "Node" || event.Source.Component == reporter || !significant {
		return at, nil
	}
	r := &eventRecord{
		at: at, reason: ipam.Plain(event.Reason), kind: about.Kind, namespace: about.Namespace, name: about.Name,
		message: ipam.Shorten(event.Message), count: uint32(max(1, event.Count)), //nolint:gosec // not negative
		first: verdict.At(event.FirstTimestamp.Time), last: verdict.At(event.LastTimestamp.Time),
	}
	for _, t := range []time.Time{event.EventTime.Time, event.CreationTimestamp.Time} {
		r.first, r.last = cmp.Or(r.first, verdict.At(t)), max(r.last, verdict.At(t))
	}
	if event.Series != nil {
		r.count = max(r.count, uint32(max(0, event.Series.Count))) //nolint:gosec // not negative
		r.last = max(r.last, verdict.At(event.Series.LastObservedTime.Time))
	}
	if stampNow().Sub(r.last) > lately {
		return at, nil
	}
	switch {
	case about.Kind == "Node":
		r.node, r.namespace = about.Name, ""
	case event.Source.Host != "":
		r.node = event.Source.Host
	default:
		c.mu.RLock()
		if p := c.pods.Records[ipam.Key{Namespace: about.Namespace, Name: about.Name}]; p != nil {
			r.node = p.Node
		}
		c.mu.RUnlock()
	}
	return at, r
}

// changed updates the index and enforces the limits. The caller holds mu.
func (l *eventLog) changed(before, after *eventRecord) {
	move := func(before, after *eventRecord) {
		l.byNode.move(before, after, func(r *eventRecord) []string { return []string{r.node} })
	}
	move(before, nil)
	if after == nil {
		return
	}
	drop := func(oldest []*eventRecord) {
		for _, r := range oldest {
			delete(l.Records, r.at)
			move(r, nil)
		}
	}
	of := slices.SortedFunc(maps.Keys(l.byNode[after.node]), byLast)
	if before == nil && !slices.ContainsFunc(of, func(r *eventRecord) bool { return r.reason == after.reason }) {
		l.cluster.pending.relate(after.node)
	}
	drop(of[:max(0, 1+len(of)-maxNodeEvents)])
	move(nil, after)
	if len(l.Records) > maxEvents {
		drop(slices.SortedFunc(maps.Values(l.Records), byLast)[:maxEvents/8])
	}
}

func byLast(a, b *eventRecord) int { return cmp.Compare(a.last, b.last) }
