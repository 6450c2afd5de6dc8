package kube

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ipwitness/ipwitness/aggregator/episode"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
)

// result is the result of writing an event.
type result int

const (
	written result = iota
	repeated
	known
	limited
	dropped
	forbidden
	failed
	results // the number of results
)

// String returns the label of the metric.
func (r result) String() string {
	return [...]string{"written", "repeated", "known", "limited", "dropped", "forbidden", "failed"}[r]
}

// event returns the event of a notice; nil if the API does not have the target.
func (a *announcer) event(n notice) *corev1.Event {
	about := corev1.ObjectReference{APIVersion: "v1"}
	c, t := a.cluster, n.target
	c.mu.RLock()
	if t.name == "" && t.uid == "" {
		if node := c.nodes.of(t.node); node != nil {
			// The kubelet uses the name as UID, too: kubectl describe looks for that.
			about.Kind, about.Name, about.UID = "Node", node.name, types.UID(node.name)
		}
	} else if p := c.pods.find(t.namespace, t.name, t.uid, t.node); p != nil {
		about.Kind, about.Namespace, about.Name, about.UID = "Pod", p.Namespace, p.Name, types.UID(p.UID)
	}
	c.mu.RUnlock()
	if about.Kind == "" {
		return nil
	}
	reason, kind := n.reason, corev1.EventTypeWarning
	if n.resolved {
		reason, kind = n.over, corev1.EventTypeNormal
	}
	notes := map[string]string{n.mark: n.id, detectedNote: n.detected.UTC().Format(time.RFC3339Nano)}
	if !n.began.IsZero() {
		notes[beganNote] = n.began.UTC().Format(time.RFC3339Nano)
	}
	now := metav1.Now()
	return &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: cmp.Or(about.Namespace, nodeNamespace), Name: eventName(about.Name, n.id, reason, string(about.UID)),
			Annotations: notes,
		},
		InvolvedObject: about, Reason: reason, Type: kind, Message: n.text(),
		Source: corev1.EventSource{Component: reporter}, ReportingController: reporter,
		FirstTimestamp: now, LastTimestamp: now, Count: 1,
	}
}

// eventName returns the name of an event. All replicas derive the same name, even after a
// restart, so no event is written twice.
func eventName(object, id, reason, uid string) string {
	sum := sha256.Sum256([]byte(id + "\x00" + reason + "\x00" + uid))
	const longest = 253 // of a DNS name: RFC 1123
	hash := hex.EncodeToString(sum[:8])
	if room := longest - len(hash) - 1; len(object) > room {
		object = strings.TrimRight(object[:room], "-.")
	}
	return object + "." + hash
}

// text returns the message of an event: the summary, the first step of the remedy, and
// where to read more.
func (n *announcement) text() string {
	tail := " More: ipwitness explain " + n.address
	if _, err := netip.ParseAddr(n.address); n.finding && err != nil {
		tail = " More: ipwitness audit"
	}
	if n.runbook != "" && !n.resolved {
		tail += " and " + n.runbook
	}
	if n.first != "" && !n.resolved {
		tail = " First: " + ipam.Cut(ipam.Plain(n.first), ipam.MaxMessage) + tail
	}
	summary := ipam.Plain(n.summary)
	if n.finding && n.resolved {
		summary = "Resolved: " + summary
	}
	return ipam.Cut(summary, maxText-len(tail)) + tail
}

// put writes an event, or increases its count if it is another episode, or lasts.
func (a *announcer) put(ctx context.Context, n notice, event *corev1.Event) (result, error) {
	ctx, cancel := context.WithTimeout(ctx, writeWithin)
	defer cancel()
	client := a.cluster.clients.core
	err := client.Post().Namespace(event.Namespace).Resource("events").Body(event).Do(ctx).Error()
	if !apierrors.IsAlreadyExists(err) {
		return written, err
	}
	var before corev1.Event
	if err := client.Get().Namespace(event.Namespace).Resource("events").Name(event.Name).Do(ctx).Into(&before); err != nil {
		return failed, fmt.Errorf("read event %s/%s: %w", event.Namespace, event.Name, err)
	}
	next, err := a.isNext(ctx, n.announcement, &before)
	if err != nil {
		return failed, err
	}
	changes := n.changes(&before, event, next)
	if changes == nil {
		return known, nil
	}
	patch, err := json.Marshal(changes)
	if err != nil {
		return failed, err
	}
	err = client.Patch(types.MergePatchType).Namespace(event.Namespace).Resource("events").Name(event.Name).Body(patch).Do(ctx).Error()
	return repeated, err
}

// changes returns what has to change of an event that exists; nil if nothing does. next is set for another episode.
func (n notice) changes(before, event *corev1.Event, next bool) map[string]any {
	next = next || n.renews && event.LastTimestamp.Sub(before.LastTimestamp.Time) >= renewEvery/2
	if !next && (!n.renews || before.Message == event.Message) {
		return nil
	}
	changes := map[string]any{"metadata": map[string]any{"annotations": event.Annotations}, "message": event.Message}
	if next {
		changes["count"], changes["lastTimestamp"] = before.Count+1, event.LastTimestamp
	}
	return changes
}

// isNext reports whether an announcement is about a later episode than an event.
func (a *announcer) isNext(ctx context.Context, n *announcement, before *corev1.Event) (bool, error) {
	began, err := time.Parse(time.RFC3339Nano, before.Annotations[beganNote])
	switch {
	case err == nil && !n.began.IsZero():
		return n.began.After(began) && !episode.Same(n.began, began), nil
	case before.Annotations[detectedNote] == n.detected.UTC().Format(time.RFC3339Nano):
		return false, nil // written by another replica, or by this one before a restart
	case !before.LastTimestamp.Time.Before(n.detected.Truncate(time.Second)):
		return false, nil // another replica wrote it, which detected the conflict at another time
	case n.again:
		return true, nil
	}
	// Otherwise it was found again after a restart. It is a later episode if the event of the opposite reason was written
	// after this one.
	opposite := n.over
	if n.resolved {
		opposite = n.reason
	}
	about := before.InvolvedObject
	var twin corev1.Event
	err = a.cluster.clients.core.Get().Namespace(before.Namespace).Resource("events").
		Name(eventName(about.Name, n.id, opposite, string(about.UID))).Do(ctx).Into(&twin)
	switch {
	case apierrors.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("read event: %w", err)
	}
	return !twin.LastTimestamp.Before(&before.LastTimestamp), nil
}

// findingReasons are the reasons of events about findings that have not ended.
var findingReasons = map[string]string{
	verdict.FindingInUseUnallocated:      "AddressInUseUnallocated",
	verdict.FindingBookedElsewhere:       "AddressBookedElsewhere",
	verdict.FindingLeaked:                "AddressLeaked",
	verdict.FindingDoubleAllocated:       "AddressDoubleAllocated",
	verdict.FindingIntendedNotObserved:   "AddressNotObserved",
	verdict.FindingSharedAddressAnswered: "AddressSharedAnswered",
	verdict.FindingAnsweredByAnother:     "AddressAnsweredByAnother",
	verdict.FindingVIPHeldElsewhere:      "VIPHeldElsewhere",
	verdict.FindingOrphanedSandbox:       "OrphanedSandbox",
	verdict.FindingReusedTooSoon:         "AddressReusedTooSoon",
	verdict.FindingAddressSpoofed:        "AddressSpoofed",
	verdict.FindingMACCloned:             "MACCloned",
	verdict.FindingPodCIDROverlap:        "IPAMPodCIDROverlap",
	verdict.FindingRangesOverlap:         "IPAMRangesOverlap",
	verdict.FindingIPAMStateLost:         "IPAMStateLost",
	verdict.FindingIPAMUnreadable:        "IPAMUnreadable",
	verdict.FindingPoolExhaustion:        "IPAMPoolExhaustion",
	verdict.FindingStaleBelief:           "AddressBelievedElsewhere",
	verdict.FindingEndpointOfFormerOwner: "AddressOfFormerEndpoint",
	verdict.FindingIdentityMismatch:      "AddressIdentityMismatch",
	verdict.FindingDuplicateNodeName:     "DuplicateNodeName",
}
