package audit_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/whereabouts"
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

// The IPAM has freed the address of an orphaned sandbox, or given it to another pod: that is one finding, with both facts.
func TestTheAddressOfAnOrphanedSandboxIsFree(t *testing.T) {
	for _, test := range []struct {
		name   string
		record func(w *world, p *verdict.Pool)
		absent bool
		want   string // kind, severity and number of allocations
	}{
		{"its record is gone", func(*world, *verdict.Pool) {}, true, "orphaned-sandbox CRITICAL /var/lib/cni/networks/pods 0"},
		{"it is allocated to another pod", func(w *world, p *verdict.Pool) {
			w.allocate(p, verdict.Allocation{Allocation: ipam.Allocation{ContainerID: "sandbox-db"}})
		}, true, "orphaned-sandbox CRITICAL /var/lib/cni/networks/pods 1"},
		{"it has its record", func(w *world, p *verdict.Pool) {
			w.allocate(p, verdict.Allocation{Allocation: ipam.Allocation{ContainerID: "sandbox-web"}})
		}, true, "orphaned-sandbox WARNING  0"},
		{"its pool cannot be read", func(_ *world, p *verdict.Pool) { p.State = ipam.Unreadable }, true, "orphaned-sandbox WARNING  0"},
		{"its pod runs", func(*world, *verdict.Pool) {}, false, "in-use-unallocated CRITICAL /var/lib/cni/networks/pods 0"},
	} {
		w := newWorld("10.244.1.5")
		c := w.kindPod("n1", "web", "pods", 2)
		w.Says("uid-web", verdict.PodObject{Absent: test.absent, Namespace: "default", Name: "web", Phase: "Running"})
		p := w.hostLocal("n1", "pods", "10.244.1.0/24")
		test.record(w, p)
		w.after(time.Minute)
		found := w.auditAll().Findings
		found = w.after(time.Minute).auditAll(found...).Findings
		if len(found) != 1 || found[0].Waiting {
			t.Errorf("%s: got %q, want one finding", test.name, reported(found))
			continue
		}
		describe := func(f *verdict.Finding) string {
			name := ""
			if f.Pool != nil {
				name = f.Pool.Name
			}
			return fmt.Sprintf("%s %s %s %d", f.Kind, map[verdict.Severity]string{verdict.Warning: "WARNING", verdict.Critical: "CRITICAL"}[f.Severity], name, len(f.Allocations))
		}
		if got := describe(&found[0]); got != test.want {
			t.Errorf("%s: got %q, want %q", test.name, got, test.want)
		}
		// Without the Kubernetes API, and while the pool cannot be read, it stays as it is.
		w.Pods, p.State = nil, ipam.Unreadable
		if found = w.after(time.Minute).auditAll(found...).Findings; len(found) != 1 || describe(&found[0]) != test.want {
			t.Errorf("%s: got %+v while nothing is known, want %q", test.name, found, test.want)
		}
		w.Drop(c)
		if found = w.auditAll(found...).Findings; len(reported(found)) != 0 {
			t.Errorf("%s: got %q without the sandbox, want none", test.name, reported(found))
		}
	}
}

// Before the records of an IPAM in the Kubernetes API are read, it is not known whether the address is still free there: the
// finding from before the start stays as it was.
func TestAnOrphanedSandboxWaitsForItsPool(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(w *world, before *verdict.Finding)
		want   []verdict.Severity // nil if the finding is not judged
	}{
		{"nothing is read", func(*world, *verdict.Finding) {}, nil},
		{"its pool is read", func(w *world, before *verdict.Finding) {
			p := w.ofCluster(whereabouts.Name, "10.244.0.0/16")
			p.Networks, before.Pool.Name = []string{"pods"}, p.Name
		}, []verdict.Severity{verdict.Critical}},
		{"its pool is read, and has a record for it", func(w *world, before *verdict.Finding) {
			p := w.ofCluster(whereabouts.Name, "10.244.0.0/16")
			p.Networks, before.Pool.Name = []string{"pods"}, p.Name
			w.allocate(p, verdict.Allocation{Allocation: ipam.Allocation{ContainerID: "sandbox-web"}})
		}, []verdict.Severity{verdict.Warning}},
		{"another pool is not read", func(_ *world, before *verdict.Finding) { before.Pool = nil }, []verdict.Severity{verdict.Warning}},
		{"the pool is one of its node", func(_ *world, before *verdict.Finding) { before.Pool.Node = before.Owners[0].Node }, []verdict.Severity{verdict.Warning}},
		{"all is read, and there is no such pool", func(w *world, _ *verdict.Finding) { w.unread = false }, []verdict.Severity{verdict.Warning}},
	} {
		w := newWorld("10.244.1.5")
		w.kindPod("n1", "web", "pods", 2)
		w.unread = true
		before := verdict.Finding{
			Kind: verdict.FindingOrphanedSandbox, Severity: verdict.Critical, Owners: w.Judge().Owners,
			Pool: &verdict.Pool{Pool: ipam.Pool{IPAM: whereabouts.Name, Name: "pods"}},
		}
		test.change(w, &before)
		var got []verdict.Severity
		for _, f := range w.auditAll(before).Findings {
			if f.Kind == verdict.FindingOrphanedSandbox {
				got = append(got, f.Severity)
			}
		}
		if !slices.Equal(got, test.want) {
			t.Errorf("%s: got %v, want %v", test.name, got, test.want)
		}
	}
}
