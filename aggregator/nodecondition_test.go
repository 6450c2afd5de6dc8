package aggregator

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// condition returns the condition AddressConflict of a Node, with the number of its conditions and of all patches.
func (a *fakeAPI) condition(name string) (c corev1.NodeCondition, conditions, patched int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	node := a.objects["nodes"][name].(*corev1.Node)
	for _, one := range node.Status.Conditions {
		if one.Type == "AddressConflict" {
			c = one
		}
	}
	return c, len(node.Status.Conditions), a.patched
}

// awaitCondition waits until the condition of node n1 has a status.
func (a *fakeAPI) awaitCondition(what string, want corev1.ConditionStatus) (c corev1.NodeCondition) {
	a.Helper()
	wait.Until(a, what, func() bool {
		c, _, _ = a.condition("n1")
		return c.Status == want
	})
	return c
}

// readyNodes returns an API with nodes that are ready.
func readyNodes(t *testing.T, names ...string) *fakeAPI {
	a := newAPI(t)
	for _, name := range names {
		node := apiNode(name)
		node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
		a.set("ADDED", node)
	}
	return a
}

// contested reports two pods of n1 with one address, and confirms the conflict.
func contested(l *lab) *agent {
	n := l.dial().send(snapshot(hello("n1", 1), podVeth(2, "a", addr), podVeth(3, "b", addr))).sync()
	return n.send(&pb.ReportRequest{Checked: []uint64{n.check().GetId()}}).sync()
}

func TestTheConditionOfANode(t *testing.T) {
	t.Parallel()
	a := readyNodes(t, "n1", "n2")
	cfg := Config{Kubeconfig: a.kubeconfig(), NodeCondition: true, Settle: 50 * time.Millisecond}
	a.refusesPatches = true
	l := newLab(t, cfg)
	l.dial().send(snapshot(hello("n2", 1))).sync()
	contested(l)
	refused := func() bool {
		return strings.Contains(strings.Join(l.core.kubernetes.Status().GetProblems(), "\n"), "nodes/status")
	}
	wait.Until(t, "the problem that it is forbidden", refused)
	a.mu.Lock()
	a.refusesPatches = false
	a.mu.Unlock()
	c := a.awaitCondition("the condition", corev1.ConditionTrue)
	if c.Reason != "AddressHeldTwice" || !strings.Contains(c.Message, addr+" is held by pod default/a (n1) and pod default/b (n1)") || c.LastTransitionTime.IsZero() {
		t.Errorf("got %+v, want that it names the conflict", c)
	}
	wait.Until(t, "the end of the problem", func() bool { return !refused() })
	if _, n, _ := a.condition("n1"); n != 2 {
		t.Errorf("got %d conditions, want the one that the node is ready as well", n)
	}
	if _, n, _ := a.condition("n2"); n != 1 {
		t.Errorf("got %d conditions of the node without a conflict, want none that is new", n)
	}
	_, _, before := a.condition("n1")
	unchanged := func(when string, d time.Duration) {
		t.Helper()
		time.Sleep(d)
		if now, _, patched := a.condition("n1"); now.Status != corev1.ConditionTrue || !now.LastTransitionTime.Equal(&c.LastTransitionTime) || patched != before {
			t.Errorf("%s: got %+v after %d patches, want it unchanged", when, now, patched-before)
		}
	}
	unchanged("nothing changes", 5*time.Second)

	// It was restarted, and remembers nothing.
	l.stop()
	l = newLab(t, cfg)
	l.dial().send(snapshot(hello("n2", 1))).sync()
	unchanged("the agent of the node does not report", 13*time.Second)
	n := l.dial().send(snapshot(hello("n1", 2), podVeth(2, "a", addr))).sync()
	if c := a.awaitCondition("its end", corev1.ConditionFalse); c.Reason != "NoAddressConflict" || c.LastTransitionTime.IsZero() {
		t.Errorf("got %+v", c)
	}

	// An acknowledged conflict does not count.
	n.send(podVeth(3, "b", addr)).sync()
	n.send(&pb.ReportRequest{Checked: []uint64{n.check().GetId()}}).sync()
	a.awaitCondition("the condition again", corev1.ConditionTrue)
	l.acknowledge(l.conflicts()[0].GetId(), time.Hour)
	a.awaitCondition("its end with the acknowledgement", corev1.ConditionFalse)
}

// Only the leader writes the condition, and the next leader clears it.
func TestTheLeaderWritesTheConditionOfANode(t *testing.T) {
	t.Parallel()
	a := readyNodes(t, "n1")
	start := func() (*lab, *agent) {
		l := newLab(t, Config{Kubeconfig: a.kubeconfig(), Lease: "witness/aggregator", NodeCondition: true, Settle: 50 * time.Millisecond})
		return l, contested(l)
	}
	one, _ := start()
	wait.Until(t, "a leader", one.core.kubernetes.Leads)
	two, second := start()
	c := a.awaitCondition("the condition", corev1.ConditionTrue)
	time.Sleep(5 * time.Second)
	if now, _, patched := a.condition("n1"); patched != 1 || now.LastTransitionTime != c.LastTransitionTime {
		t.Errorf("got %d patches, want one", patched)
	}
	// The conflict is over for the one that does not lead: it says nothing.
	second.send(ended(3)).sync()
	time.Sleep(5 * time.Second)
	if now, _, patched := a.condition("n1"); patched != 1 || now.Status != corev1.ConditionTrue {
		t.Errorf("got %+v after %d patches", now, patched)
	}
	one.stop()
	wait.Until(t, "the next leader", two.core.kubernetes.Leads)
	a.awaitCondition("its end", corev1.ConditionFalse)
}

func TestNodeConditionsNeedTheKubernetesAPI(t *testing.T) {
	if _, err := New(Config{Kubeconfig: "off", NodeCondition: true}, nil, nil); err == nil || !strings.Contains(err.Error(), "--node-condition") {
		t.Errorf("got %v", err)
	}
}
