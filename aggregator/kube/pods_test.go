package kube

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

func ownedBy(kind, name string) []metav1.OwnerReference {
	yes := true
	return []metav1.OwnerReference{{Kind: kind, Name: name, Controller: &yes}}
}

func TestRecordOfAPod(t *testing.T) {
	ending := metav1.NewTime(time.Unix(1773500966, 0))
	for name, test := range map[string]struct {
		pod  corev1.Pod
		want verdict.PodObject
	}{
		"a Deployment's": {
			corev1.Pod{ObjectMeta: metav1.ObjectMeta{
				Labels: map[string]string{"pod-template-hash": "7d4b9c6f5d"}, OwnerReferences: ownedBy("ReplicaSet", "my-web-7d4b9c6f5d"),
			}},
			verdict.PodObject{ControllerKind: "Deployment", Controller: "my-web"},
		},
		"a ReplicaSet's without a Deployment": {
			corev1.Pod{ObjectMeta: metav1.ObjectMeta{OwnerReferences: ownedBy("ReplicaSet", "web")}},
			verdict.PodObject{ControllerKind: "ReplicaSet", Controller: "web"},
		},
		"a ReplicaSet's of another hash": {
			corev1.Pod{ObjectMeta: metav1.ObjectMeta{
				Labels: map[string]string{"pod-template-hash": "1"}, OwnerReferences: ownedBy("ReplicaSet", "web-2"),
			}},
			verdict.PodObject{ControllerKind: "ReplicaSet", Controller: "web-2"},
		},
		"a Job's": {
			corev1.Pod{ObjectMeta: metav1.ObjectMeta{OwnerReferences: ownedBy("Job", "backup-29")}},
			verdict.PodObject{ControllerKind: "Job", Controller: "backup-29"},
		},
		"one that an object owns and does not control": {
			corev1.Pod{ObjectMeta: metav1.ObjectMeta{OwnerReferences: []metav1.OwnerReference{{Kind: "Thing", Name: "one"}}}},
			verdict.PodObject{},
		},
		"a virtual machine's": {
			corev1.Pod{ObjectMeta: metav1.ObjectMeta{
				Labels:          map[string]string{"kubevirt.io": "virt-launcher", "vm.kubevirt.io/name": "db", "kubevirt.io/domain": "other"},
				OwnerReferences: ownedBy("VirtualMachineInstance", "other"),
			}},
			verdict.PodObject{VirtualMachine: "db", ControllerKind: "VirtualMachineInstance", Controller: "other"},
		},
		"a virtual machine's of an older KubeVirt": {
			corev1.Pod{ObjectMeta: metav1.ObjectMeta{
				Labels: map[string]string{"kubevirt.io": "virt-launcher"}, OwnerReferences: ownedBy("VirtualMachineInstance", "db"),
			}},
			verdict.PodObject{VirtualMachine: "db", ControllerKind: "VirtualMachineInstance", Controller: "db"},
		},
		"one by its domain": {
			corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"kubevirt.io": "virt-launcher", "kubevirt.io/domain": "db"}}},
			verdict.PodObject{VirtualMachine: "db"},
		},
		"a pod that only says that it is a virtual machine": {
			corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"vm.kubevirt.io/name": "db"}}},
			verdict.PodObject{},
		},
		"an old API's address": {
			corev1.Pod{Status: corev1.PodStatus{PodIP: "10.0.0.1"}},
			verdict.PodObject{IPs: addresses("10.0.0.1")},
		},
		"two addresses, and one that is none": {
			corev1.Pod{Status: corev1.PodStatus{PodIP: "10.0.0.1", PodIPs: []corev1.PodIP{{IP: "10.0.0.1"}, {IP: "x"}, {IP: "fd00::1"}}}},
			verdict.PodObject{IPs: addresses("10.0.0.1", "fd00::1")},
		},
		"one that names what runs it": {
			corev1.Pod{Spec: corev1.PodSpec{RuntimeClassName: new("gvisor")}},
			verdict.PodObject{RuntimeClass: true},
		},
		"one that names nothing that runs it": {
			corev1.Pod{Spec: corev1.PodSpec{RuntimeClassName: new("")}},
			verdict.PodObject{},
		},
		"one that is to end, in the node's network": {
			corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &ending}, Spec: corev1.PodSpec{NodeName: "n1", HostNetwork: true},
				Status: corev1.PodStatus{Phase: corev1.PodFailed},
			},
			verdict.PodObject{Node: "n1", HostNetwork: true, Phase: "Failed", DeletionTimestamp: verdict.At(ending.Time)},
		},
	} {
		t.Run(name, func(t *testing.T) {
			test.pod.Namespace, test.pod.Name, test.pod.UID = "team", "pod", "u1"
			test.want.Namespace, test.want.Name, test.want.UID = "team", "pod", "u1"
			var p pods
			at, got := p.read(&test.pod)
			if at != (ipam.Key{Namespace: "team", Name: "pod"}) || fmt.Sprintf("%+v", got.PodObject) != fmt.Sprintf("%+v", test.want) {
				t.Errorf("got %+v, want %+v", got.PodObject, test.want)
			}
		})
	}
}

// liveMirror returns a mirror with the given objects, in state LIVE.
func liveMirror(t testing.TB, fill func(c *Cluster)) *Cluster {
	c := newFakeAPI(t).open()
	c.health.state, c.health.synced = pb.Kubernetes_LIVE, true
	fill(c)
	return c
}

func testNode(name, cidr string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: "node"}}
	n.Spec.PodCIDR = cidr
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	return n
}

// The container runtime uses another UID for a static pod than the API does.
func TestStaticPods(t *testing.T) {
	static := testPod("static-n1", "n1", "10.0.0.1")
	static.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "hash"}
	c := liveMirror(t, func(c *Cluster) {
		c.put(&c.nodes, testNode("n1", "10.0.0.0/24"))
		c.put(&c.pods, static)
	})
	if p := c.Pod("default", "static-n1", "hash", "n1"); p == nil || p.Absent || p.UID != "uid-static-n1" {
		t.Errorf("got %+v", p)
	}
	// The mirror pod object is created again.
	anew := static.DeepCopy()
	anew.UID = "another"
	c.put(&c.pods, anew)
	c.drop(&c.pods, static)
	c.put(&c.pods, anew)
	if p := c.Pod("", "", "hash", "n1"); p == nil || p.UID != "another" {
		t.Errorf("recreated: got %+v", p)
	}
	if p := c.Pod("", "", "uid-static-n1", "n1"); p != absent {
		t.Errorf("the previous one: got %+v", p)
	}
	c.drop(&c.pods, anew)
	if p := c.Pod("", "", "hash", "n1"); p != absent {
		t.Errorf("without it: got %+v", p)
	}
	if len(c.pods.byUID)+len(c.pods.aliases)+len(c.pods.Records) != 0 {
		t.Errorf("something is left: %+v", c.pods)
	}
}

// A change of fields that records do not have is not reported.
func TestUnchangedObjectsAreNotReported(t *testing.T) {
	one := testPod("one", "n1", "10.0.0.1")
	c := liveMirror(t, func(c *Cluster) { c.put(&c.pods, one) })
	before := c.Pod("", "", "uid-one", "")
	_, _ = c.take()
	again := one.DeepCopy()
	again.ResourceVersion, again.Labels = "77", map[string]string{"new": "label"}
	c.put(&c.pods, again)
	if changes, any := c.take(); any || c.Pod("", "", "uid-one", "") != before {
		t.Errorf("got %+v", changes)
	}
}

// However long the subscriber is busy, there is one pending change for each pod.
func TestPendingPodChangesAreBounded(t *testing.T) {
	c := liveMirror(t, func(*Cluster) {})
	_, _ = c.take()
	one, other := testPod("one", "n1", "10.0.0.1"), testPod("other", "n1", "10.0.0.2")
	for i := range 100 {
		one.Status.Phase = []corev1.PodPhase{corev1.PodRunning, corev1.PodUnknown}[i%2]
		c.put(&c.pods, one)
		c.put(&c.pods, other)
		c.drop(&c.pods, other)
	}
	other.UID = "another"
	c.put(&c.pods, other)
	changes, _ := c.take()
	slices.SortFunc(changes.Pods, func(a, b PodKey) int { return strings.Compare(a.UID, b.UID) })
	if want := []PodKey{{"default", "other", "another"}, {"default", "one", "uid-one"}, {"default", "other", "uid-other"}}; !slices.Equal(changes.Pods, want) {
		t.Errorf("got %v, want %v", changes.Pods, want)
	}
	if changes, any := c.take(); any {
		t.Errorf("got %v once more", changes)
	}
}

func TestRanges(t *testing.T) {
	c := liveMirror(t, func(c *Cluster) {
		for i, cidr := range []string{"10.0.1.0/24", "10.0.0.0/16", "10.2.0.0/24", "10.2.0.128/25", "10.2.1.0/24", "fd00:1::/64", "", "bad", "10.9.9.9/24"} {
			c.put(&c.nodes, testNode(fmt.Sprint(i), cidr))
		}
	})
	for text, want := range map[string]bool{
		"10.0.0.0": true, "10.0.1.7": true, "10.0.255.255": true, "10.1.0.0": false, "9.255.255.255": false, "10.2.0.1": true, "10.2.0.255": true,
		"10.2.1.0": true, "10.2.2.0": false, "fd00:1::1": true, "fd00:1:0:1::": false, "::": false, "255.255.255.255": false,
		"10.9.9.1": true, "::ffff:10.0.0.1": true, "fd00:1::1%eth0": true,
	} {
		if got := c.InPodCIDR(netip.MustParseAddr(text)); got != want {
			t.Errorf("%s: got %t", text, got)
		}
	}
	if c.InPodCIDR(netip.Addr{}) {
		t.Error("no address is in a range")
	}
	changes, _ := c.take()
	if !slices.Contains(changes.Networks, netip.MustParsePrefix("10.9.9.0/24")) {
		t.Errorf("got %v", changes.Networks)
	}
	c.drop(&c.nodes, testNode("1", ""))
	if c.InPodCIDR(netip.MustParseAddr("10.0.0.1")) || !c.InPodCIDR(netip.MustParseAddr("10.0.1.1")) {
		t.Error("a deleted node has a range, or an existing one has none")
	}
	if changes, _ := c.take(); !slices.Equal(changes.Networks, []netip.Prefix{netip.MustParsePrefix("10.0.0.0/16")}) || !slices.Equal(changes.Nodes, []string{"1"}) {
		t.Errorf("got %+v", changes)
	}
}
