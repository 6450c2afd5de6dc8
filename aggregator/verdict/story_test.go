package verdict_test

import (
	"strings"
	"testing"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/audit"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// audited audits the address, as an aggregator does after each judgement, and keeps what
// is to be remembered.
func (w *world) audited(vanished ...*verdict.Allocation) audit.Result {
	out := w.judge()
	in := w.input()
	in.Vanished = vanished
	a := audit.Address(&w.policy, in, &out)
	w.past = a.Past
	return a
}

// Calico #12257: booked under a wrong node, collected as leaked, given out again.
func TestStoryOfANodenameThatIsAnotherNodes(t *testing.T) {
	w := newWorld("10.244.1.5")
	p := w.pool(verdict.Calico, "", "")
	a := w.within("n1", "", "k8s-pod-network", who("web"))
	wrong := w.calico(p, "web", "n9")
	w.audited()
	w.after(15 * time.Minute)
	w.allocations = nil // the garbage collector
	w.audited(wrong)
	w.after(time.Minute).audited()
	w.calico(p, "db", "n2")
	b := w.within("n2", "", "k8s-pod-network", who("db"))
	w.audited()
	w.after(time.Second).read(a, b)
	w.audited()
	c := w.want(t, verdict.Confirmed, verdict.RuleAssignedTwice, verdict.NetworkScope, "pods")
	if c.Cause != elsewhere || !strings.Contains(strings.Join(c.Because, "\n"), "had it for pod default/web on node n9 while pod default/web (eth0, node n1) had it") {
		t.Errorf("got cause %s because of %q", c.Cause, c.Because)
	}
	if !strings.Contains(strings.Join(flat(c.Remedy), "\n"), "kubectl delete pod -n default web") || strings.Contains(strings.Join(flat(c.Remedy), "\n"), "delete pod -n default db") {
		t.Errorf("got advice %q, want the pod restarted that IPAM does not have", c.Remedy)
	}
}

func TestStoryOfADirectoryThatWasDeleted(t *testing.T) {
	w := newWorld("10.244.1.5")
	p := w.pool(verdict.HostLocal, "n1", "kindnet")
	record := w.books(p, "old")
	a := w.within("n1", "", "kindnet", who("old"))
	w.audited()
	w.after(time.Minute)
	w.allocations, p.State, p.LostAt, p.LostHeard, p.Lost = nil, verdict.PoolMissing, w.now, w.now, 1
	w.audited(record)
	p.State = verdict.PoolKnown
	w.after(time.Minute)
	w.books(p, "new")
	b := w.within("n1", "", "kindnet", who("new"))
	for range 3 { // that IPAM has it for the rival now is remembered of the old one, too
		w.audited()
		w.after(time.Second).read(a, b)
	}
	c := w.want(t, verdict.Confirmed, verdict.RuleAssignedTwice, verdict.NodeScope, "n1")
	if facts := strings.Join(c.Because, "\n"); c.Cause != lost || !strings.Contains(facts, "record of pod default/old vanished") || !strings.Contains(facts, "All of its records were lost") {
		t.Errorf("got cause %s because of %q", c.Cause, c.Because)
	}
	if !strings.Contains(strings.Join(flat(c.Remedy), "\n"), "kubectl delete pod -n default old") {
		t.Errorf("got advice %q, want the old pod restarted: IPAM has the address for the new one", c.Remedy)
	}
}

// The aggregator was not there when it happened: nothing is remembered.
func TestStoryOfADirectoryThatWasDeletedUnseen(t *testing.T) {
	w := newWorld("10.244.1.5")
	a := w.within("n1", "", "kindnet", who("old"))
	b := w.after(time.Hour).within("n1", "", "kindnet", who("new"))
	w.books(w.pool(verdict.HostLocal, "n1", "kindnet"), "new")
	for range 3 {
		w.audited()
		w.after(time.Second).read(a, b)
	}
	if c := w.want(t, verdict.Confirmed, verdict.RuleAssignedTwice, verdict.NodeScope, "n1"); c.Cause != lost {
		t.Errorf("got cause %s because of %q", c.Cause, c.Because)
	}
}

// An address that was set by hand is in use and not allocated, too: that is no record
// that was lost.
func TestStoryOfAnAddressSetByHandFirst(t *testing.T) {
	w := newWorld("10.244.1.5")
	p := w.pool(verdict.HostLocal, "n1", "kindnet")
	host := w.device("n1", "eth0", "")
	w.audited()
	w.after(time.Minute)
	w.books(p, "web")
	b := w.within("n1", "", "kindnet", who("web"))
	for range 3 {
		w.audited()
		w.after(time.Second).read(b)
		for _, c := range w.claims {
			if c.Interface == host {
				w.read(c)
			}
		}
	}
	if c := w.want(t, verdict.Confirmed, verdict.RuleAssignedTwice, verdict.NodeScope, "n1"); c.Cause != static {
		t.Errorf("got cause %s because of %q", c.Cause, c.Because)
	}
}
