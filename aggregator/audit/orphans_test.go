package audit_test

import (
	"slices"
	"testing"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// The pod of a sandbox is deleted, and the sandbox stays for a while.
func TestTheSandboxOfADeletedPodHasAnAddress(t *testing.T) {
	const orphaned = verdict.FindingOrphanedSandbox
	running := verdict.PodObject{Namespace: "default", Name: "web", Phase: "Running"}
	for _, test := range []struct {
		name   string
		object verdict.PodObject
		grace  time.Duration
		// change is what happens during the grace.
		change func(w *world, c *verdict.Claim)
		want   []string
	}{
		{"its pod does not exist", verdict.PodObject{Absent: true}, 5 * time.Second, nil, []string{orphaned}},
		{"its pod has ended", verdict.PodObject{Phase: "Succeeded", Heard: start}, 30 * time.Second, nil, []string{orphaned}},
		{"its pod is being deleted", verdict.PodObject{Phase: "Running", DeletionTimestamp: start}, 5 * time.Second, nil, nil},
		{"its pod runs", running, 5 * time.Second, nil, nil},
		{"the kubelet ends the sandbox of a pod that was force-deleted", verdict.PodObject{Absent: true}, 5 * time.Second, func(w *world, c *verdict.Claim) { w.Drop(c) }, nil},
		{"the pod appears in the API", verdict.PodObject{Absent: true}, 5 * time.Second, func(w *world, _ *verdict.Claim) { w.Says("uid-web", running) }, nil},
		{"another pod gets the address", verdict.PodObject{Absent: true}, 5 * time.Second, func(w *world, _ *verdict.Claim) {
			w.kindPod("n1", "db", "pods", 3)
			w.Says("uid-db", verdict.PodObject{Namespace: "default", Name: "db", Phase: "Running"})
		}, nil},
		{"the node has timed out", verdict.PodObject{Absent: true}, 5 * time.Second, func(_ *world, c *verdict.Claim) { c.Node().TimedOut = true }, nil},
	} {
		w := newWorld("10.244.1.5")
		c := w.kindPod("n1", "web", "pods", 2)
		w.Says("uid-web", test.object)
		w.after(time.Minute)
		first := w.auditAll()
		if got := reported(first.Findings); len(got) != 0 {
			t.Errorf("%s: got %q at once, want none", test.name, got)
		}
		if w.after(test.grace - time.Second); test.change != nil {
			test.change(w, c)
		}
		early := w.auditAll(first.Findings...)
		last := w.after(2 * time.Second).auditAll(early.Findings...)
		if got := reported(last.Findings); len(reported(early.Findings)) != 0 || !slices.Equal(got, test.want) {
			t.Errorf("%s: got %q and then %q, want none and then %q", test.name, reported(early.Findings), got, test.want)
		}
		if test.want == nil {
			continue
		}
		// It lasts while the API does not respond, and ends with the sandbox.
		w.Pods = nil
		last = w.after(time.Minute).auditAll(last.Findings...)
		if got := reported(last.Findings); !slices.Equal(got, test.want) {
			t.Errorf("%s: got %q without the API, want %q", test.name, got, test.want)
		}
		w.Drop(c)
		if got := reported(w.auditAll(last.Findings...).Findings); len(got) != 0 {
			t.Errorf("%s: got %q without the sandbox, want none", test.name, got)
		}
	}
}
