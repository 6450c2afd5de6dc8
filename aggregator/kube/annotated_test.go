package kube

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ipwitness/ipwitness/ipam/ovn"
)

// ovnPod returns a pod with an address in its annotation, and in its status if it runs.
func ovnPod(name, node, ip string, runs bool) *corev1.Pod {
	p := testPod(name, node, ip)
	if !runs {
		p.Status = corev1.PodStatus{Phase: corev1.PodPending}
	}
	p.Annotations = map[string]string{ovn.Annotation: `{"default":{"ip_addresses":["` + ip + `/24"],"mac_address":"0a:58:0a:f4:01:03"}}`}
	return p
}

// OVN-Kubernetes has one address in the annotations of several pods, before the second one runs.
// Pods that end have given theirs back.
func TestAddressesThatOVNKubernetesAllocatesTwice(t *testing.T) {
	f := newFakeAPI(t)
	f.put(ovnPod("one", "n1", "10.244.1.3", true))
	over, ends := ovnPod("over", "n1", "10.244.1.3", true), ovnPod("ends", "n1", "10.244.1.3", true)
	over.Status.Phase = corev1.PodSucceeded
	now := metav1.Now()
	ends.DeletionTimestamp = &now
	f.put(over)
	f.put(ends)
	f.put(testPod("calico", "n1", "10.244.1.4"))
	l := keep(t, f.open())
	two := ovnPod("two", "n1", "10.244.1.3", false)
	f.put(two)
	const pool = "ovn-kubernetes default known"
	const one = "\n10.244.1.3 default/one n1 at pods default/one /metadata/annotations/k8s.ovn.org~1pod-networks"
	const both = one + "\n10.244.1.3 default/two n1 at pods default/two /metadata/annotations/k8s.ovn.org~1pod-networks"
	l.await("the second pod is pending", pool+both)
	f.put(ovnPod("two", "n1", "10.244.1.3", true))
	const running = "\n10.244.1.3 default/one n1 at pods default/one /status/podIPs\n10.244.1.3 default/two n1 at pods default/two /status/podIPs"
	l.await("it runs", "kubernetes pods known\n"+pool+running+both)
	f.put(ovnPod("two", "n1", "10.244.1.5", true))
	l.await("it has another address", "")
	f.put(ovnPod("two", "n1", "10.244.1.4", false))
	f.put(ovnPod("three", "n1", "10.244.1.4", false))
	l.await("two pending pods", pool+"\n10.244.1.4 default/three n1 at pods default/three /metadata/annotations/k8s.ovn.org~1pod-networks"+
		"\n10.244.1.4 default/two n1 at pods default/two /metadata/annotations/k8s.ovn.org~1pod-networks")
	f.drop(two)
	l.await("one is gone", "")
}
