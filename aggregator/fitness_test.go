package aggregator

import (
	"testing"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// A replica without most of its agents leaves the lead to others for a minute.
func TestAReplicaWithoutAgentsShouldNotLead(t *testing.T) {
	a := newAPI(t)
	a.set("ADDED", apiNode("n1"))
	a.set("ADDED", apiNode("n2"))
	l, first := replicaOf(t, a)
	second := l.dial().send(snapshot(hello("n2", 1))).sync()
	wait.Until(t, "that it is ready", l.ready)
	var now verdict.Stamp = 1
	f := &fitness{coverage: l.core.coverage, clock: func() verdict.Stamp { return now }}
	want := func(what string, want bool) {
		t.Helper()
		if got := f.fit(); got != want {
			t.Errorf("%s: got %v, want %v", what, got, want)
		}
	}
	heard := func(n uint32) {
		t.Helper()
		wait.Until(t, "the agents", func() bool { l.core.coverage.Changed(); return l.core.coverage.Current().GetHeard() == n })
	}
	want("with all agents", true)
	second.cancel()
	heard(1)
	want("with half of them", true)
	first.cancel()
	heard(0)
	want("at once", true)
	now = now.Add(unfitAfter)
	want("after a while", false)
	now = now.Add(unfitFor - time.Nanosecond)
	want("a minute later", false)
	now = now.Add(time.Nanosecond)
	want("when no other replica has taken over", true)
	l.dial().send(snapshot(hello("n1", 1))).sync()
	heard(1)
	want("when an agent is back", true)
	now = now.Add(unfitAfter)
	want("some time later", true)
}
