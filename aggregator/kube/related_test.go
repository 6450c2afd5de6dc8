package kube

import (
	"fmt"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

func ago(d time.Duration) metav1.Time { return metav1.NewTime(time.Now().Add(-d)) }

// pluginPod returns a healthy pod of a CNI plugin.
func pluginPod(set, node string) *corev1.Pod {
	p := testPod(set+"-"+node, node, "192.0.2.1")
	p.Namespace, p.OwnerReferences, p.Spec.HostNetwork = "kube-system", ownedBy("DaemonSet", set), true
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{Ready: true, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
	return p
}

func notReady(p *corev1.Pod) { p.Status.Conditions[0].Status = corev1.ConditionFalse }

func TestPodsOfCNIPluginsAreRecognised(t *testing.T) {
	labelled := func(key, value string) *corev1.Pod {
		p := pluginPod("net", "n1")
		p.Labels = map[string]string{key: value}
		return p
	}
	elsewhere := pluginPod("calico-node", "n1")
	elsewhere.Namespace, elsewhere.Spec.HostNetwork = "default", false
	deployment := pluginPod("cilium", "n1")
	deployment.OwnerReferences = ownedBy("Deployment", "cilium")
	for name, test := range map[string]struct {
		pod  *corev1.Pod
		want string
	}{
		"by its DaemonSet":         {pluginPod("calico-node", "n1"), "Calico"},
		"Amazon's":                 {pluginPod("aws-node", "n1"), "Amazon VPC CNI"},
		"by a label":               {labelled("k8s-app", "cilium"), "Cilium"},
		"by another":               {labelled("app", "flannel"), "Flannel"},
		"of a chart":               {labelled("app.kubernetes.io/name", "multus"), "Multus"},
		"somebody else's":          {pluginPod("kube-proxy", "n1"), ""},
		"one that is called so":    {elsewhere, ""},
		"not one for each node":    {deployment, ""},
		"one without a controller": {testPod("calico-node", "n1", "10.0.0.1"), ""},
		"the label says nothing":   {labelled("k8s-app", "dns"), ""},
	} {
		if got := pluginOf(test.pod); got != test.want {
			t.Errorf("%s: got %q, want %q", name, got, test.want)
		}
	}
}

// relatedTexts returns the results of Related, one per line.
func relatedTexts(c *Cluster, conflict *pb.Conflict) []string {
	var lines []string
	for _, r := range c.Related(conflict) {
		health := "bad"
		if r.GetHealthy() {
			health = "healthy"
		}
		lines = append(lines, fmt.Sprintf("%s %s/%s on %q, %s, %s ×%d: %s", r.GetKind(), r.GetNamespace(), r.GetName(), r.GetNode(), r.GetReason(), health, r.GetCount(), r.GetMessage()))
	}
	return lines
}

func TestHealthOfCNIPlugins(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*corev1.Pod)
		want   string
	}{
		"well": {func(*corev1.Pod) {}, "Running, healthy ×0: Calico on n1 runs and is ready"},
		"restarted long ago": {func(p *corev1.Pod) {
			s := &p.Status.ContainerStatuses[0]
			s.RestartCount, s.LastTerminationState.Terminated = 2, &corev1.ContainerStateTerminated{FinishedAt: metav1.NewTime(time.Unix(1773500966, 0))}
		}, "Running, healthy ×0: Calico on n1 runs and is ready, its last restart was 2026-03-14T15:09:26Z"},
		"restarted just now": {func(p *corev1.Pod) {
			s := &p.Status.ContainerStatuses[0]
			s.RestartCount, s.LastTerminationState.Terminated = 2, &corev1.ContainerStateTerminated{FinishedAt: ago(time.Minute)}
		}, "Restarted, bad ×0: Calico on n1 was restarted "},
		"not ready": {notReady, "NotReady, bad ×0: Calico on n1 is not healthy: NotReady"},
		"crashing": {func(p *corev1.Pod) {
			notReady(p)
			p.Status.ContainerStatuses[0] = corev1.ContainerStatus{RestartCount: 5, State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{
				Reason: "CrashLoopBackOff", Message: "back-off 5m0s\x1b[31m restarting",
			}}}
		}, "CrashLoopBackOff, bad ×0: Calico on n1 is not healthy: CrashLoopBackOff (5 restarts): back-off 5m0s [31m restarting"},
		"its image is not there": {func(p *corev1.Pod) {
			notReady(p)
			p.Status.Phase = corev1.PodPending
			p.Status.InitContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff"}}}}
			p.Status.ContainerStatuses[0].State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "PodInitializing"}}
		}, "ImagePullBackOff, bad ×0"},
		"ended": {func(p *corev1.Pod) {
			notReady(p)
			p.Status.ContainerStatuses[0].State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1, Reason: "OOMKilled"}}
		}, "OOMKilled, bad ×0"},
		"asked to end": {func(p *corev1.Pod) { now := ago(0); p.DeletionTimestamp = &now }, "Terminating, bad ×0"},
		"evicted": {func(p *corev1.Pod) {
			notReady(p)
			p.Status.Phase, p.Status.Reason, p.Status.Message = corev1.PodFailed, "Evicted", "the node was low on memory"
		}, "Evicted, bad ×0: Calico on n1 is not healthy: Evicted: the node was low on memory"},
	} {
		c := liveMirror(t, func(c *Cluster) {
			c.put(&c.nodes, testNode("n1", ""))
			p := pluginPod("calico-node", "n1")
			test.change(p)
			c.put(&c.pods, p)
		})
		related := relatedTexts(c, conflictOf("default", "10.0.0.1", pb.Conflict_CONFIRMED, "one@n1"))
		if len(related) != 1 || !strings.HasPrefix(related[0], `Pod kube-system/calico-node-n1 on "n1", `+test.want) {
			t.Errorf("%s: got %q, want %s", name, related, test.want)
		}
	}
}

func testEvent(name, about, node, reason string, count int32, last time.Duration) *corev1.Event {
	e := &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Type: corev1.EventTypeWarning, Reason: reason, Count: count,
		Message: reason + " of " + about, LastTimestamp: ago(last), FirstTimestamp: ago(last + time.Minute), Source: corev1.EventSource{Host: node},
		InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: "default", Name: about},
	}
	if about == "" {
		e.InvolvedObject = corev1.ObjectReference{Kind: "Node", Name: node}
	}
	return e
}

func TestMostSignificantObjectComesFirst(t *testing.T) {
	c := liveMirror(t, func(c *Cluster) {
		young := testNode("n2", "")
		young.CreationTimestamp = ago(time.Minute)
		sick := testNode("n3", "10.0.3.0/24")
		sick.Status.Conditions[0] = corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionUnknown, Reason: "NodeStatusUnknown", Message: "Kubelet stopped posting node status."}
		for _, n := range []*corev1.Node{testNode("n1", "10.0.1.0/24"), young, sick, testNode("n4", "10.0.4.0/24")} {
			c.put(&c.nodes, n)
		}
		for _, n := range []string{"n1", "n2", "n4"} {
			c.put(&c.pods, pluginPod("kindnet", n))
		}
		c.put(&c.pods, testPod("one", "n1", "10.0.0.1"))
		vip := testPod("kube-vip-n1", "n1", "192.0.2.1")
		vip.Namespace, vip.Spec.Containers = "kube-system", []corev1.Container{{Env: []corev1.EnvVar{{Name: "address", Value: "10.0.0.1"}}}}
		c.put(&c.pods, vip)
		holder := "n1"
		c.put(c.leases[controlPlaneLease], &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: leaseNamespace, Name: controlPlaneLease}, Spec: coordinationv1.LeaseSpec{HolderIdentity: &holder}})
		class := "metallb"
		c.put(&c.services, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "web", Name: "front"}, Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, LoadBalancerIP: "10.0.0.1", LoadBalancerClass: &class,
		}})
		c.put(&c.services, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "web", Name: "outer"}, Spec: corev1.ServiceSpec{ExternalIPs: []string{"10.0.0.1"}}})
		c.put(&c.services, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "web", Name: "inner"}, Spec: corev1.ServiceSpec{ClusterIP: "10.0.0.1"}})
		for _, e := range []*corev1.Event{
			testEvent("e1", "one", "n1", "FailedCreatePodSandBox", 3, time.Minute),
			testEvent("e2", "other", "n1", "FailedCreatePodSandBox", 2, 3*time.Minute),
			testEvent("e3", "third", "n1", "FailedCreatePodSandBox", 4, 2*time.Minute),
			testEvent("e4", "one", "n9", "FailedKillPod", 1, time.Minute),
			testEvent("e5", "one", "n1", "FailedKillPod", 1, 2*time.Hour),
			testEvent("e6", "one", "n1", "Unhealthy", 1, time.Minute),
			testEvent("e7", "one", "", "NetworkNotReady", 1, 2*time.Minute),
		} {
			c.put(c.events.warnings, e)
		}
		normal := testEvent("e8", "", "n2", "CIDRNotAvailable", 1, time.Minute)
		normal.Type = corev1.EventTypeNormal
		c.put(c.events.normal, normal)
	})
	related := relatedTexts(c, conflictOf("default", "10.0.0.1", pb.Conflict_CONFIRMED, "one@n1", "two@n2", "@n3"))
	want := []string{
		`Service web/front on "", Address, healthy ×0: 10.0.0.1 is the requested load balancer address of Service web/front (class metallb)`,
		`Service web/inner on "", Address, healthy ×0: 10.0.0.1 is the cluster IP of Service web/inner`,
		`Service web/outer on "", Address, healthy ×0: 10.0.0.1 is an external address (spec.externalIPs) of Service web/outer`,
		`Lease kube-system/plndr-cp-lock on "n1", Holder, healthy ×0: kube-vip's lease on the addresses of the control plane is held by n1`,
		`Event default/one on "n1", FailedCreatePodSandBox, bad ×3: FailedCreatePodSandBox of one`,
		`Event default/one on "n1", NetworkNotReady, bad ×1: NetworkNotReady of one`,
		`Node /n2 on "n2", NoPodCIDR, bad ×0: node n2 has no pod CIDR (spec.podCIDR), unlike other nodes`,
		`Node /n3 on "n3", NodeStatusUnknown, bad ×0: node n3 is not ready: Kubelet stopped posting node status.`,
		`Node /n3 on "n3", NoCNIPod, bad ×0: node n3 has no pod of a CNI plugin, unlike 3 nodes (kindnet)`,
		`Event /n2 on "n2", CIDRNotAvailable, bad ×1: CIDRNotAvailable of`,
		`Event default/third on "n1", FailedCreatePodSandBox, bad ×6: FailedCreatePodSandBox of third`,
		`Node /n2 on "n2", Added, bad ×0: node n2 was added less than an hour ago: was it created from a template that contained pods?`,
	}
	if got, want := strings.Join(related, "\n"), strings.Join(want, "\n"); got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
	if n := len(c.Related(&pb.Conflict{})); n != 0 {
		t.Errorf("no objects: got %d sentences", n)
	}
}

// The number of stored events is bounded: a broken CNI plugin causes one for each pod.
func TestEventsAreBounded(t *testing.T) {
	c := liveMirror(t, func(*Cluster) {})
	for i := range 2 * maxEvents {
		c.put(c.events.warnings, testEvent(fmt.Sprint("e", i), fmt.Sprint("p", i), fmt.Sprint("n", i%(maxEvents/16)), "FailedCreatePodSandBox", 1, time.Duration(2*maxEvents-i)*time.Millisecond))
	}
	for i := range 2 * maxNodeEvents {
		c.put(c.events.warnings, testEvent(fmt.Sprint("one", i), fmt.Sprint("p", i), "one", "FailedKillPod", 1, 0))
	}
	kept := 0
	for node, of := range c.events.warnings.byNode {
		if kept += len(of); len(of) > maxNodeEvents {
			t.Errorf("%d are kept of %s", len(of), node)
		}
	}
	if records := len(c.events.warnings.Records); kept != records || records > maxEvents {
		t.Errorf("%d are kept, and %d are found by their node", records, kept)
	}
	changes, _ := c.take()
	if n := len(changes.Related); n > maxEvents/16+1 {
		t.Errorf("got %d nodes", n)
	}
	// A repeated event is not reported again.
	c.put(c.events.warnings, testEvent("one7", "p7", "one", "FailedKillPod", 2, 0))
	if changes, any := c.take(); any {
		t.Errorf("got %+v", changes)
	}
}
