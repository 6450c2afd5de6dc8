package kube

import (
	"slices"
	"strings"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ipwitness/ipwitness/ipam/vip"
)

// balanced returns a Service of type LoadBalancer with addresses, held by a node according to
// kube-vip.
func balanced(name, host string, addresses ...string) *corev1.Service {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}, Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, LoadBalancerIP: "192.0.2.250"}}
	if host != "" {
		s.Annotations = map[string]string{"kube-vip.io/vipHost": host}
	}
	for _, a := range addresses {
		s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: a})
	}
	return s
}

// leaseOf returns the lease of kube-vip for the control plane.
func leaseOf(holder string) *coordinationv1.Lease {
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: leaseNamespace, Name: controlPlaneLease}, Spec: coordinationv1.LeaseSpec{HolderIdentity: &holder},
	}
}

func TestKeysByWhichServicesShareAnAddress(t *testing.T) {
	for name, want := range map[string]string{
		"metallb.io/allow-shared-ip": "key", "metallb.universe.tf/allow-shared-ip": "key", "lbipam.cilium.io/sharing-key": "key", "io.cilium/lb-ipam-sharing-key": "key",
		"example.org/key": "",
	} {
		s := balanced("web", "", "192.0.2.7")
		s.Annotations = map[string]string{name: "key"}
		if _, r, problem := readService(s); r.Sharing != want || problem != "" {
			t.Errorf("%s: got key %q and problem %q, want %q", name, r.Sharing, problem, want)
		}
	}
}

func TestKubeVIP(t *testing.T) {
	c := liveMirror(t, func(*Cluster) {})
	l := newLedger(t)
	published := func(what, want string) {
		t.Helper()
		changes, _ := c.take()
		l.take(changes.IPAM)
		if got, want := l.text(), strings.TrimSpace(want); got != want {
			t.Errorf("%s: got\n%s\nwant\n%s", what, got, want)
		}
	}
	c.put(&c.services, balanced("plain", "", "192.0.2.9"))
	c.put(c.leases[controlPlaneLease], leaseOf("n1"))
	published("a Service of another controller, and a lease without an address", "")
	c.put(&c.services, balanced("web", "n1", "192.0.2.7", "fd00::7", "192.0.2.7", "x"))
	const of = " at services shop/web /metadata/annotations/kube-vip.io/vipHost"
	const web = "\n192.0.2.7 Service shop/web n1" + of + "\nfd00::7 Service shop/web n1" + of
	const known = "kube-vip addresses known"
	published("a Service", known+web)
	vip := testPod("kube-vip-n1", "n1", "192.0.2.1")
	vip.Namespace, vip.Spec.HostNetwork, vip.Spec.Containers = "kube-system", true, []corev1.Container{{Env: []corev1.EnvVar{{Name: "address", Value: "192.0.2.5"}}}}
	c.put(&c.pods, vip)
	other := vip.DeepCopy()
	other.Name, other.UID = "kube-vip-n2", "uid-kube-vip-n2"
	c.put(&c.pods, other)
	const plane = "\n192.0.2.5 control plane n1 at leases kube-system/plndr-cp-lock /spec/holderIdentity"
	published("the control plane", known+plane+web)
	c.put(&c.services, balanced("web", "n2", "192.0.2.7"))
	c.put(c.leases[controlPlaneLease], leaseOf("n2"))
	published("both move", known+strings.Replace(plane, " n1", " n2", 1)+"\n192.0.2.7 Service shop/web n2"+of)
	c.drop(&c.pods, vip)
	published("a pod of kube-vip is gone", known+strings.Replace(plane, " n1", " n2", 1)+"\n192.0.2.7 Service shop/web n2"+of)
	c.drop(&c.pods, other)
	published("all are gone", known+"\n192.0.2.7 Service shop/web n2"+of)
	c.drop(&c.services, balanced("web", "n2", "192.0.2.7"))
	published("the Service is gone", "")
}

func TestServicesOfMetalLB(t *testing.T) {
	c := liveMirror(t, func(*Cluster) {})
	speakers := c.ipams[slices.IndexFunc(c.ipams, func(m *publisher) bool { return m.name == vip.MetalLB.Name })].sources[0]
	speakers.set(followed, "")
	says := func(name, status string) *object {
		return &object{ObjectMeta: metav1.ObjectMeta{Namespace: "metallb-system", Name: name}, Status: []byte(status)}
	}
	l := newLedger(t)
	published := func(what, want string) {
		t.Helper()
		changes, _ := c.take()
		l.take(changes.IPAM)
		if got := l.text(); got != want {
			t.Errorf("%s: got\n%s\nwant\n%s", what, got, want)
		}
	}
	c.put(speakers.Store, says("l2-a", `{"node":"n1","serviceName":"web","serviceNamespace":"shop"}`))
	published("a speaker announces a Service that is not known yet", "")
	c.put(&c.services, balanced("web", "", "192.0.2.7"))
	const web = "metallb services known\n192.0.2.7 Service shop/web n1 at servicel2statuses metallb-system/l2-a /status/node"
	published("the Service is known", web)
	c.put(&c.services, balanced("web", "", "192.0.2.8"))
	published("the Service gets another address", strings.Replace(web, ".7", ".8", 1))
	c.put(speakers.Store, says("bad", `{"node":{}}`))
	published("another object is malformed",
		strings.Replace(strings.Replace(web, ".7", ".8", 1), "known", "known: ServiceL2Status metallb-system/bad: its status has an unexpected format: /node is a JSON object", 1))
	c.drop(speakers.Store, says("bad", "{}"))
	published("it is gone", strings.Replace(web, ".7", ".8", 1))
}

func TestPodsOfAVirtualMachineKnowWhereItRuns(t *testing.T) {
	c := liveMirror(t, func(*Cluster) {})
	machines := c.ipams[slices.IndexFunc(c.ipams, func(m *publisher) bool { return m.name == vip.KubeVirt.Name })].sources[0]
	for i, name := range []string{"from", "to"} {
		p := testPod(name, []string{"n1", "n2"}[i], "10.0.0.1")
		p.Labels = map[string]string{"kubevirt.io": "virt-launcher", "vm.kubevirt.io/name": "vm"}
		c.put(&c.pods, p)
	}
	c.put(&c.pods, testPod("other", "n1", "10.0.0.2"))
	c.take()
	for _, step := range []struct {
		status, node string
		migrating    bool
		changed      int // pods that are reported as changed
	}{
		{`{"nodeName":"n1","activePods":{"uid-from":"n1"}}`, "n1", false, 1},
		{`{"nodeName":"n1","activePods":{"uid-from":"n1","uid-to":"n2"},"migrationState":{}}`, "n1", true, 2},
		{`{"nodeName":"n2","activePods":{"uid-from":"n1","uid-to":"n2"},"migrationState":{"completed":true}}`, "n2", false, 2},
		{`{"nodeName":7}`, "", false, 2},
	} {
		c.put(machines.Store, &object{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "vm"}, Status: []byte(step.status)})
		changes, _ := c.take()
		for _, name := range []string{"from", "to"} {
			p := c.Pod("default", name, "uid-"+name, "")
			if p.MachineNode != step.node || p.Migrating != step.migrating || (p.MachineSince == 0) != (step.node == "") || len(changes.Pods) != step.changed {
				t.Errorf("%s: got %+v, %d changes, want node %s, %d changes", step.status, p, len(changes.Pods), step.node, step.changed)
			}
		}
		if p := c.Pod("default", "other", "uid-other", ""); p.MachineNode != "" {
			t.Errorf("got %+v, want no machine of another pod", p)
		}
	}
}
