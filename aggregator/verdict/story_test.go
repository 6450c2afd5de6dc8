package verdict_test

import (
	"testing"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/audit"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/calico"
	"github.com/ipwitness/ipwitness/ipam/hostlocal"
	"github.com/ipwitness/ipwitness/tests/verdicttest"
)

// audited audits the address after a judgement, as an aggregator does, and remembers past states.
func (w *world) audited(vanished ...*verdict.Allocation) audit.Result {
	out := w.judge()
	in := w.Case()
	in.Vanished = vanished
	a := audit.Address(&w.Policy, in, &out)
	w.Past = a.Past
	return a
}

// Calico #12257: an address is allocated for the wrong node, collected as leaked, and allocated
// again.
func TestStoryOfANodenameThatIsAnotherNodes(t *testing.T) {
	w := newWorld("10.244.1.5")
	p := w.Pool(calico.IPAM.Name, "", "")
	a := w.Within("n1", "", "k8s-pod-network", verdicttest.Who("web"))
	wrong := w.Calico(p, "web", "n9")
	w.audited()
	w.after(15 * time.Minute)
	w.Allocations = nil // the garbage collector frees the address
	w.audited(wrong)
	w.after(time.Minute).audited()
	w.Calico(p, "db", "n2")
	b := w.Within("n2", "", "k8s-pod-network", verdicttest.Who("db"))
	w.audited()
	w.after(time.Second).Read(a, b)
	w.audited()
	c := w.want(t, verdict.Confirmed, verdict.RuleAssignedTwice, verdict.NetworkScope, "pods")
	want := verdict.Holder{Namespace: "default", Pod: "web", ContainerID: "container-web", Node: "n9"}
	if c.Cause != elsewhere || !has(&c, verdict.FactAllocatedElsewhere, "web") || c.Facts[0].Records[0].Holder != want {
		t.Errorf("got cause %s because of %+v", c.Cause, c.Facts)
	}
	if keeper(&c) != "db" {
		t.Errorf("got %s to keep the address, want the pod to which IPAM has allocated it", keeper(&c))
	}
}

func TestStoryOfADirectoryThatWasDeleted(t *testing.T) {
	w := newWorld("10.244.1.5")
	p := w.Pool(hostlocal.Name, "n1", "kindnet")
	record := w.Books(p, "old")
	a := w.Within("n1", "", "kindnet", verdicttest.Who("old"))
	w.audited()
	w.after(time.Minute)
	w.Allocations, p.State, p.LostAt, p.LostHeard, p.Lost = nil, ipam.Missing, w.Now, w.Now, 1
	w.audited(record)
	p.State = ipam.Known
	w.after(time.Minute)
	w.Books(p, "new")
	b := w.Within("n1", "", "kindnet", verdicttest.Who("new"))
	for range 3 { // it is also remembered of the old pod that IPAM has the address for its rival
		w.audited()
		w.after(time.Second).Read(a, b)
	}
	c := w.want(t, verdict.Confirmed, verdict.RuleAssignedTwice, verdict.NodeScope, "n1")
	if c.Cause != lost || !has(&c, verdict.FactRecordVanished, "old") || !has(&c, verdict.FactRecordsLost, "") {
		t.Errorf("got cause %s because of %+v", c.Cause, c.Facts)
	}
	if keeper(&c) != "new" {
		t.Errorf("got %s to keep the address, want the new pod: IPAM has allocated the address to it", keeper(&c))
	}
}

// The aggregator was not running when the records were lost, so that nothing is remembered.
func TestStoryOfADirectoryThatWasDeletedUnnoticed(t *testing.T) {
	w := newWorld("10.244.1.5")
	a := w.Within("n1", "", "kindnet", verdicttest.Who("old"))
	b := w.after(time.Hour).Within("n1", "", "kindnet", verdicttest.Who("new"))
	w.Books(w.Pool(hostlocal.Name, "n1", "kindnet"), "new")
	for range 3 {
		w.audited()
		w.after(time.Second).Read(a, b)
	}
	if c := w.want(t, verdict.Confirmed, verdict.RuleAssignedTwice, verdict.NodeScope, "n1"); c.Cause != lost {
		t.Errorf("got cause %s because of %+v", c.Cause, c.Facts)
	}
}

// An address that was configured by hand is in use and not allocated either, but no record was
// lost.
func TestStoryOfAnAddressSetByHandFirst(t *testing.T) {
	w := newWorld("10.244.1.5")
	p := w.Pool(hostlocal.Name, "n1", "kindnet")
	host := w.Device("n1", "eth0", "")
	w.audited()
	w.after(time.Minute)
	w.Books(p, "web")
	b := w.Within("n1", "", "kindnet", verdicttest.Who("web"))
	for range 3 {
		w.audited()
		w.after(time.Second).Read(b)
		for _, c := range w.Claims {
			if c.Interface == host {
				w.Read(c)
			}
		}
	}
	if c := w.want(t, verdict.Confirmed, verdict.RuleAssignedTwice, verdict.NodeScope, "n1"); c.Cause != static {
		t.Errorf("got cause %s because of %+v", c.Cause, c.Facts)
	}
}

// Who was first is not who has it longest now: the original was restarted, and the copy stayed. Advice would turn round.
func TestStoryOfAnOriginalThatWasRestarted(t *testing.T) {
	for name, test := range map[string]struct {
		before bool // whether both had the address before
		keep   string
	}{"restarted": {true, ""}, "never seen before": {false, "b"}} {
		t.Run(name, func(t *testing.T) {
			w := newWorld("10.0.0.5")
			w.declare("pods 10.0.0.0/8")
			for _, node := range []string{"n1", "n2"} {
				w.Node(node).SkewKnown = true
			}
			a := w.Within("n1", "", "", blue("a"))
			b := w.after(time.Hour).Within("n2", "", "", blue("b"))
			if test.before {
				w.judge()
				w.after(time.Minute).Read(a, b)
				if c := w.want(t, verdict.Confirmed, verdict.RuleAssignedTwice, verdict.NetworkScope, "pods"); keeper(&c) != "a" {
					t.Fatalf("got %s to keep the address, want a", keeper(&c))
				}
			}
			w.Drop(a)
			w.after(time.Minute).Read(b)
			w.judge()
			again := w.after(time.Hour).Within("n1", "", "", blue("a"))
			w.judge()
			w.after(time.Minute).Read(b, again)
			c := w.want(t, verdict.Confirmed, verdict.RuleAssignedTwice, verdict.NetworkScope, "pods")
			if keeper(&c) != test.keep || has(&c, verdict.FactGotAgain, "a") != test.before {
				t.Errorf("got %s to keep the address because of %+v, want %q", keeper(&c), c.Facts, test.keep)
			}
		})
	}
}
