package aggregator

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ipwitness/ipwitness/aggregator/access"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/records"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// series returns the number of series in a scrape, by name and in total.
func (l *lab) series() (byName map[string]int, all int) {
	l.Helper()
	families, err := l.registry.Gather()
	if err != nil {
		l.Fatal(err)
	}
	byName = make(map[string]int)
	for _, f := range families {
		byName[f.GetName()] = len(f.GetMetric())
		all += len(f.GetMetric())
	}
	return byName, all
}

// TestSeriesAreBounded starts and ends 10,000 pods, with more conflicts and findings than can have
// series. It checks the numbers of series in docs/metrics.md.
func TestSeriesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{})
		lost := 0
		a := l.dial().send(snapshot(hello("n1", 1), poolOf(hostLocal("10.244.0.0/16", pb.Pool_KNOWN)))).sync()
		time.Sleep(time.Minute) // in synctest; the agent's clock is checked
		_, before := l.series()
		const rounds, pairs, singles = 2, 1300, 2400
		record := uint32(2)
		for round := range rounds {
			first := record
			come := &pb.ReportRequest{}
			flush := func() { a.send(come).sync(); come = &pb.ReportRequest{} }
			for i := range 2*pairs + singles {
				n := i // the first addresses belong to two pods each, the others to one
				if i >= pairs {
					n = i - pairs
				}
				addr := fmt.Sprintf("10.244.%d.%d", 1+n/250, 2+n%250)
				records.Merge(come, kindPod(record, fmt.Sprintf("pod-%d-%d", round, i), addr))
				if record++; i%500 == 499 {
					flush()
				}
			}
			flush()
			time.Sleep(10 * time.Second) // everything has settled and is reported
			conflicts, findings := l.core.shards.Conflicts.Len(), l.core.findings.Count()
			if conflicts != pairs || findings["in-use-unallocated"] != singles {
				t.Fatalf("got %d conflicts and findings %v, want %d and %d", conflicts, findings, pairs, singles)
			}
			byName, all := l.series()
			for name, most := range map[string]int{
				"ipwitness_conflict_info": maxConflictInfo, "ipwitness_conflict_detected_timestamp_seconds": maxConflictInfo,
				"ipwitness_finding_detected_timestamp_seconds": maxFindingSeries,
			} {
				if byName[name] != most {
					t.Errorf("%s: got %d series, want %d of more", name, byName[name], most)
				}
			}
			// In addition, there are two series for each cause of conflicts.
			if more := all - before - 2*maxConflictInfo - maxFindingSeries; more > 2*2 {
				t.Errorf("got %d series more than before, want no more than those of conflicts and findings: %v", more, byName)
			}
			l.sameConflicts()
			for r := first; r < record; r++ {
				come.Namespaces = append(come.Namespaces, &pb.NamespaceRecord{Id: r, Gone: true})
			}
			flush()
			lost += 2*pairs + singles
		}
		time.Sleep(time.Minute)
		if byName, after := l.series(); after != before {
			t.Errorf("after %d pods: got %d series, want %d as before: %v", lost, after, before, byName)
		}
	})
}

// sameConflicts checks that two scrapes show the same conflicts: the selection must be stable.
func (l *lab) sameConflicts() {
	l.Helper()
	shown := func() map[string]bool {
		families, err := l.registry.Gather()
		if err != nil {
			l.Fatal(err)
		}
		ids := map[string]bool{}
		for _, f := range families {
			if f.GetName() != "ipwitness_conflict_info" && f.GetName() != "ipwitness_finding_detected_timestamp_seconds" {
				continue
			}
			for _, m := range f.GetMetric() {
				for _, label := range m.GetLabel() {
					if label.GetName() == "id" {
						ids[label.GetValue()] = true
					}
				}
			}
		}
		return ids
	}
	first := shown()
	for id := range shown() {
		if !first[id] {
			l.Fatalf("%s has series now, but had none at the previous scrape", id)
		}
	}
}

// TestNodesHaveSeries connects nodes and lets them fall silent.
func TestNodesHaveSeries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{})
		there := l.dial().send(snapshot(hello("n1", 1))).sync()
		silent := l.dial().send(snapshot(hello("n2", 1))).sync()
		if up := l.metric("ipwitness_node_up", "n2"); up != 1 {
			t.Errorf("a connected node: got %v, want 1", up)
		}
		silent.cancel()
		synctest.Wait()
		if up, down := l.metric("ipwitness_node_up", "n1"), l.metric("ipwitness_node_up", "n2"); up != 1 || down != 0 {
			t.Errorf("n1 and n2, which is silent: got %v and %v, want 1 and 0", up, down)
		}
		if live, disconnected := l.metric("ipwitness_nodes", "live"), l.metric("ipwitness_nodes", "disconnected"); live != 1 || disconnected != 1 {
			t.Errorf("got %v live nodes and %v disconnected, want one of each", live, disconnected)
		}
		if byName, _ := l.series(); byName["ipwitness_node_up"] != 2 {
			t.Errorf("got %d series of nodes, want 2", byName["ipwitness_node_up"])
		}
		there.sync()
	})
}

// TestNodesWithoutAnAgentAreReported adds Kubernetes nodes without an agent, and removes one from
// Kubernetes.
func TestNodesWithoutAnAgentAreReported(t *testing.T) {
	t.Parallel()
	api := newAPI(t)
	for _, name := range []string{"n1.example.net", "n2", "n3"} {
		api.set("ADDED", apiNode(name))
	}
	windows := apiNode("n4") // agents cannot run there
	windows.Status.NodeInfo.OperatingSystem = "windows"
	api.set("ADDED", windows)
	for name, label := range map[string]string{"n5": "type=virtual-kubelet", "n6": "eks.amazonaws.com/compute-type=fargate"} {
		virtual := apiNode(name) // nor there
		key, value, _ := strings.Cut(label, "=")
		virtual.Labels = map[string]string{key: value}
		api.set("ADDED", virtual)
	}
	l := newLab(t, Config{Kubeconfig: api.kubeconfig()})
	l.dial().send(snapshot(hello("n1", 1))).sync()
	for _, name := range []string{"n2", "removed"} {
		silent := l.dial().send(snapshot(hello(name, 1))).sync()
		silent.cancel()
	}
	wait.Until(t, "one absent node and two silent ones", func() bool {
		return l.metric("ipwitness_nodes", "absent") == 1 && l.metric("ipwitness_nodes", "disconnected") == 2
	})
	byName, _ := l.series()
	if got := byName["ipwitness_node_up"]; got != 3 {
		t.Errorf("got %d series of nodes, want 3: of n1, of n2, which is silent, and of n3, which is unknown to Kubernetes", got)
	}
	if up := l.metric("ipwitness_node_up", "n1"); up != 1 {
		t.Errorf("n1, which Kubernetes knows with its domain: got %v, want 1", up)
	}
}

// TestNodesThatShouldHaveNoAgentAreNotReported has agent pods only on some nodes, as with a
// DaemonSet that has a nodeSelector.
func TestNodesThatShouldHaveNoAgentAreNotReported(t *testing.T) {
	t.Parallel()
	api := newAPI(t)
	for _, name := range []string{"n1", "n2", "n3", "n4"} {
		api.set("ADDED", apiNode(name))
	}
	l := newLab(t, Config{Kubeconfig: api.kubeconfig(), Access: access.Config{TokenReview: true, AgentAccounts: []string{"default/agents"}}})
	l.dial().send(snapshot(hello("n1", 1))).sync()
	narrowed := l.dial().send(snapshot(hello("n4", 1))).sync()
	narrowed.cancel()
	wait.Until(t, "two absent nodes and a silent one", func() bool {
		return l.metric("ipwitness_nodes", "absent") == 2 && l.metric("ipwitness_nodes", "disconnected") == 1
	})
	if byName, _ := l.series(); byName["ipwitness_node_up"] != 4 {
		t.Errorf("no pod of agents is known: got %d series of nodes, want 4", byName["ipwitness_node_up"])
	}
	agentOn := func(node string) *corev1.Pod {
		p := apiPod("agent-"+node, node)
		p.Spec.ServiceAccountName, p.Spec.HostNetwork = "agents", true
		return p
	}
	api.set("ADDED", agentOn("n1"))
	waiting := agentOn("")
	waiting.Name, waiting.UID, waiting.Status.Phase = "agent-n2", "uid-agent-n2", corev1.PodPending
	waiting.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{
			{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{"n2"}},
		}}},
	}}}
	api.set("ADDED", waiting)
	other := agentOn("n3")
	other.Namespace = "another" // any namespace may have an account with this name
	api.set("ADDED", other)
	wait.Until(t, "one absent node, and series of two", func() bool {
		byName, _ := l.series()
		return l.metric("ipwitness_nodes", "absent") == 1 && byName["ipwitness_node_up"] == 2
	})
	if up, down := l.metric("ipwitness_node_up", "n1"), l.metric("ipwitness_node_up", "n2"); up != 1 || down != 0 {
		t.Errorf("n1 and n2, where an agent's pod waits: got %v and %v, want 1 and 0", up, down)
	}
	api.set("DELETED", waiting)
	wait.Until(t, "no absent node", func() bool { return l.metric("ipwitness_nodes", "absent") == 0 })
}
