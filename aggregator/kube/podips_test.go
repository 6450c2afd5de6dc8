package kube

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/dra"
	"github.com/ipwitness/ipwitness/ipam/vip"
)

func TestAddressesOfSeveralPods(t *testing.T) {
	f := newFakeAPI(t)
	one, two, three := testPod("one", "n1", "10.0.0.1"), testPod("two", "n2", "10.0.0.1"), testPod("three", "n3", "10.0.0.1")
	f.put(one)
	host := testPod("host", "n1", "10.0.0.1")
	host.Spec.HostNetwork = true
	f.put(host)
	over := testPod("over", "n1", "10.0.0.1")
	over.Status.Phase = corev1.PodSucceeded
	f.put(over)
	ends := testPod("ends", "n1", "10.0.0.1")
	now := metav1.Now()
	ends.DeletionTimestamp = &now
	f.put(ends)
	l := keep(t, f.open())
	f.put(two)
	lines := func(names ...string) (text string) {
		if len(names) > 0 {
			text = "kubernetes pods known"
		}
		for i, name := range names {
			text += fmt.Sprintf("\n10.0.0.1 default/%s n%s at pods default/%[1]s /status/podIPs", name, map[string]string{"one": "1", "two": "2", "three": "3"}[name])
			_ = i
		}
		return text
	}
	l.await("two pods have one address", lines("one", "two"))
	f.put(three)
	l.await("three pods have it", lines("one", "three", "two"))
	l.countChanges()
	two.Labels = map[string]string{"kubevirt.io": "virt-launcher", "vm.kubevirt.io/name": "vm"}
	f.put(two) // a changed record with nothing to publish
	one.Status.Phase = corev1.PodFailed
	f.put(one)
	l.await("one pod has ended", lines("three", "two"))
	if n := l.countChanges(); n != 1 {
		t.Errorf("got %d changes, want 1", n)
	}
	three.Labels = two.Labels // now both pods belong to one migrating virtual machine
	f.put(three)
	f.put(testPod("four", "n4", "10.0.0.4"))
	one.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIPs: []corev1.PodIP{{IP: "10.0.0.4"}, {IP: "fd00::4"}}}
	f.put(one)
	f.drop(two)
	l.await("other pods have another address", `
kubernetes pods known
10.0.0.4 default/four n4 at pods default/four /status/podIPs
10.0.0.4 default/one n1 at pods default/one /status/podIPs`)
	f.drop(one)
	l.await("no two pods have one address", "")
	tenant := func(name, router string) *corev1.Pod {
		p := testPod(name, "n1", "10.0.0.4")
		p.Annotations = map[string]string{
			"ovn.kubernetes.io/logical_switch": "s", "ovn.kubernetes.io/logical_router": router, "ovn.kubernetes.io/ip_address": "10.0.0.4",
		}
		return p
	}
	f.put(tenant("blue", "blue"))
	f.put(tenant("red", "red"))
	f.put(tenant("same", "ovn-cluster")) // the control: the network of all pods
	l.await("two pods outside of tenants' networks have one address", `
kubernetes pods known
10.0.0.4 default/four n4 at pods default/four /status/podIPs
10.0.0.4 default/same n1 at pods default/same /status/podIPs`)
}

// Kubernetes accepts addresses with leading zeros, which are decimal.
func TestAddressesWithLeadingZeros(t *testing.T) {
	c := liveMirror(t, func(c *Cluster) { c.put(&c.nodes, testNode("n1", "010.244.001.0/24")) })
	c.put(&c.pods, testPod("zeros", "n1", "010.244.001.008"))
	if got := fmt.Sprint(c.Pod("default", "zeros", "", "n1").IPs, c.NodeRanges()); got != "[10.244.1.8] [{n1 10.244.1.0/24}]" {
		t.Errorf("got %s", got)
	}
	if got := c.Status().GetProblems(); len(got) != 0 {
		t.Errorf("got problems %q, want none", got)
	}
	c.put(&c.pods, testPod("bad", "n1", "10.244.1.300"))
	if got := c.Status().GetProblems(); len(got) != 1 || !strings.Contains(got[0], `cannot read address "10.244.1.300" in status.podIPs of pod default/bad`) {
		t.Errorf("got problems %q, want one about the address", got)
	}
	c.drop(&c.pods, testPod("bad", "n1", "10.244.1.300"))
	if got := c.Status().GetProblems(); len(got) != 0 {
		t.Errorf("got problems %q after the pod was deleted, want none", got)
	}
}

func TestAddressesOfSeveralNodes(t *testing.T) {
	c := liveMirror(t, func(*Cluster) {})
	l := newLedger(t)
	node := func(name, label string, addresses ...string) {
		n := testNode(name, "")
		n.Labels = map[string]string{"type": label}
		for _, a := range addresses {
			n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a})
		}
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeExternalIP, Address: "203.0.113.1"}, corev1.NodeAddress{Type: corev1.NodeHostName, Address: name})
		c.put(&c.nodes, n)
	}
	published := func(what, want string) {
		t.Helper()
		changes, _ := c.take()
		l.take(changes.IPAM)
		if got := l.text(); got != want {
			t.Errorf("%s: got\n%s\nwant\n%s", what, got, want)
		}
	}
	node("n1", "", "10.0.2.15", "fd00::15")
	node("n2", "", "10.0.2.16", "fd00::16")
	node("simulated", "kwok", "10.0.2.15")
	node("virtual", "virtual-kubelet", "10.0.2.15")
	liqo := testNode("liqo", "")
	liqo.Labels = map[string]string{"liqo.io/type": "virtual-node"}
	tainted := testNode("tainted", "")
	tainted.Spec.Taints = []corev1.Taint{{Key: "virtual-kubelet.io/provider", Value: "another", Effect: corev1.TaintEffectNoSchedule}}
	for _, n := range []*corev1.Node{liqo, tainted} {
		n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.0.2.15"}}
		c.put(&c.nodes, n)
	}
	published("all differ, except of nodes that are no machines", "")
	node("n3", "", "10.0.2.17", "10.0.2.200", "fd00::17") // a cloud controller lists a virtual address as well
	for _, test := range []struct {
		address string
		own     bool
	}{{"10.0.2.17", true}, {"fd00::17", true}, {"10.0.2.200", false}, {"203.0.113.1", false}, {"10.0.2.15", false}} {
		if got := c.Internal("n3", netip.MustParseAddr(test.address)); got != test.own {
			t.Errorf("%s is the own address of n3: got %v, want %v", test.address, got, test.own)
		}
	}
	node("n2", "", "010.0.02.015", "fd00::16")
	published("two nodes have one address", `kubernetes nodes known
10.0.2.15 InternalIP n1 at nodes n1 /status/addresses
10.0.2.15 InternalIP n2 at nodes n2 /status/addresses`)
	c.drop(&c.nodes, testNode("n1", ""))
	published("one of them is gone", "")
}

func TestNodeRangesAndCoverage(t *testing.T) {
	c := liveMirror(t, func(c *Cluster) {
		c.put(&c.nodes, testNode("n2", "10.0.1.0/24"))
		c.put(&c.nodes, testNode("n1", "10.0.0.0/16"))
		c.put(&c.nodes, testNode("n3", "10.0.0.0/24"))
	})
	if got, want := fmt.Sprint(c.NodeRanges()), fmt.Sprint([]NodeRange{
		{"n1", netip.MustParsePrefix("10.0.0.0/16")}, {"n3", netip.MustParsePrefix("10.0.0.0/24")}, {"n2", netip.MustParsePrefix("10.0.1.0/24")},
	}); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	for _, test := range []struct {
		missing    string
		all, known bool
	}{{"", true, true}, {"n3", false, true}, {"another", true, true}} {
		if all, known := c.NodesCovered(func(name string) bool { return name != test.missing }); all != test.all || known != test.known {
			t.Errorf("without %q: got %t, %t", test.missing, all, known)
		}
	}
	c.health.state = 0
	if all, known := c.NodesCovered(func(string) bool { return true }); all || !known {
		t.Errorf("unreachable API: got %t, %t", all, known)
	}
	c = nil
	if all, known := c.NodesCovered(func(string) bool { return true }); all || known || c.NodeRanges() != nil {
		t.Errorf("no cluster: got %t, %t", all, known)
	}
}

// An address of a Service or a Node that cannot be read is named, and hides no other one.
func TestUnreadableAddressesOfServicesAndNodes(t *testing.T) {
	c := liveMirror(t, func(*Cluster) {})
	service := func(name string, ips ...string) {
		c.put(&c.services, &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name},
			Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, ClusterIP: "10.96.0.7", ExternalIPs: ips},
			Status:     corev1.ServiceStatus{LoadBalancer: corev1.LoadBalancerStatus{Ingress: []corev1.LoadBalancerIngress{{Hostname: "lb.example"}}}},
		})
	}
	problems := func() (all []string) {
		changes, _ := c.take()
		for _, change := range changes.IPAM {
			if p := change.Pool; p != nil && p.Unread != "" {
				all = append(all, fmt.Sprint(p.IPAM, " ", p.Name, ": ", p.Problem, " ", change.Gone))
			}
		}
		return all
	}
	want := func(what string, want ...string) {
		t.Helper()
		if got := problems(); !slices.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", what, got, want)
		}
	}
	service("good", "010.000.000.009")
	node := testNode("n1", "10.244.0.0/24")
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: "n1"}, {Type: corev1.NodeInternalIP, Address: "192.0.2.1"}}
	c.put(&c.nodes, node)
	want("names of hosts, and leading zeros")
	service("bad", "10.0.0.x", "192.0.2.9")
	want("a Service", `kube-proxy Service objects: Service shop/bad is invalid: "10.0.0.x" in /spec/externalIPs is not an address false`)
	if s := c.services.Records[ipam.Key{Namespace: "shop", Name: "bad"}]; len(s.Addresses) != 2 {
		t.Errorf("got %+v, want the other addresses", s)
	}
	service("bad", "192.0.2.9")
	want("it is corrected", `kube-proxy Service objects:  true`)
	bad := testNode("n1", "10.244.0.0/x")
	bad.Status.Addresses = node.Status.Addresses
	c.put(&c.nodes, bad)
	want("a range of a Node", `kubernetes Node objects: Node n1 is invalid: "10.244.0.0/x" in /spec/podCIDRs is not an address false`)
	bad = testNode("n1", "10.244.0.0/24")
	bad.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.one"}}
	c.put(&c.nodes, bad)
	want("an address of a Node", `kubernetes Node objects: Node n1 is invalid: "192.0.2.one" in /status/addresses is not an address false`)
	c.drop(&c.nodes, bad)
	want("it is gone", `kubernetes Node objects:  true`)
}

// The range of cluster IPs is in the flags of API servers that run as pods.
func TestFlagsOfAPIServers(t *testing.T) {
	c := liveMirror(t, func(*Cluster) {})
	var got []string
	for _, m := range c.ipams {
		if m.objects.ServerFlags != nil {
			m.objects.ServerFlags = func(values []string) { got = values }
		}
	}
	pod := func(namespace, name, component string, command ...string) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(name), Labels: map[string]string{"component": component}}}
		p.Spec.Containers = []corev1.Container{{Command: command}}
		c.put(&c.pods, p)
		return p
	}
	const flag = "--service-cluster-ip-range=10.96.0.0/12"
	pod("default", "fake", "kube-apiserver", "kube-apiserver", flag)
	pod("kube-system", "controller", "kube-controller-manager", "kube-controller-manager", flag)
	if got != nil {
		t.Errorf("got %q of pods that are no API servers", got)
	}
	server := pod("kube-system", "server", "kube-apiserver", "kube-apiserver", "--secure-port=6443", flag)
	if !slices.Equal(got, []string{"10.96.0.0/12"}) {
		t.Errorf("got %q, want the range", got)
	}
	if c.drop(&c.pods, server); len(got) != 0 {
		t.Errorf("got %q without the pod, want none", got)
	}
}

// The addresses of devices from ResourceClaims are those of the pod, whichever of the two is known first.
func TestDevicesOfPods(t *testing.T) {
	c := liveMirror(t, func(*Cluster) {})
	i := slices.IndexFunc(c.ipams, func(m *publisher) bool { return m.name == dra.IPAM.Name })
	claim := func(status string) {
		c.put(c.ipams[i].sources[0].Store, &object{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "net"}, Status: json.RawMessage(status)})
	}
	want := func(what, want string) {
		t.Helper()
		pod := c.Pod("shop", "web", "u1", "n1")
		if got := fmt.Sprint(pod.Memberships); got != want {
			t.Errorf("%s: got %s, want %s", what, got, want)
		}
	}
	const used = `"reservedFor": [{"resource": "pods", "uid": "u1"}]`
	claim(`{` + used + `, "devices": [{"networkData": {"interfaceName": "net1", "ips": ["10.9.0.5/24"]}}]}`)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "u1"}, Spec: corev1.PodSpec{NodeName: "n1"}}
	c.put(&c.pods, pod)
	want("a pod with a device", "[{10.9.0.5 net1  false true false}]")
	c.take()
	claim(`{` + used + `}`)
	want("the device is gone", "[]")
	if changes, _ := c.take(); len(changes.Pods) != 1 {
		t.Errorf("got changes of pods %v, want one", changes.Pods)
	}
}

// Addresses of pods and nodes are published if Kubernetes may give them away, also on nodes without an agent.
func TestAddressesThatKubernetesGivesAway(t *testing.T) {
	const pods, nodes = "kubernetes pods known\n", "kubernetes nodes known\n"
	const web, n2 = "10.244.2.9 default/web n2 at pods default/web /status/podIPs", "192.0.2.12 InternalIP n2 at nodes n2 /status/addresses"
	internal := func(c *Cluster, name, label string, addresses ...string) {
		n := testNode(name, "")
		n.Labels = map[string]string{"type": label}
		for _, a := range addresses {
			n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a})
		}
		c.put(&c.nodes, n)
	}
	service := func(c *Cluster, spec corev1.ServiceSpec) {
		c.put(&c.services, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "api"}, Spec: spec})
	}
	pool := func(c *Cluster, text string) {
		m := newPublisher(c, vip.MetalLB.Name)
		m.Put(ipam.Pool{Name: "first", Services: ipam.Ingress, Ranges: []ipam.Range{ipam.RangeOf(netip.MustParsePrefix(text))}}, "", false)
	}
	for _, test := range []struct {
		name string
		do   func(c *Cluster)
		want string
	}{
		{"no Service", func(*Cluster) {}, ""},
		{"an external IP is that of a pod", func(c *Cluster) {
			service(c, corev1.ServiceSpec{ClusterIP: "10.96.0.9", ExternalIPs: []string{"10.244.2.9"}})
		}, pods + web},
		{"a cluster IP is that of a node", func(c *Cluster) { service(c, corev1.ServiceSpec{ClusterIP: "192.0.2.12"}) }, nodes + n2},
		{"an external IP of a node", func(c *Cluster) {
			service(c, corev1.ServiceSpec{ClusterIP: "10.96.0.9", ExternalIPs: []string{"192.0.2.12"}})
		}, ""},
		{"a virtual address that the cloud lists", func(c *Cluster) { service(c, corev1.ServiceSpec{ClusterIP: "192.0.2.200"}) }, ""},
		{"the Service is left to a proxy of its own", func(c *Cluster) { service(c, corev1.ServiceSpec{ExternalIPs: []string{"10.244.2.9"}}) }, ""},
		{"a pod of the host network", func(c *Cluster) {
			host := testPod("host", "n2", "192.0.2.12")
			host.Spec.HostNetwork = true
			c.put(&c.pods, host)
			service(c, corev1.ServiceSpec{ClusterIP: "10.96.0.9", ExternalIPs: []string{"192.0.2.12"}})
		}, ""},
		{"a pod that has ended", func(c *Cluster) {
			over := testPod("web", "n2", "10.244.2.9")
			over.Status.Phase = corev1.PodSucceeded
			c.put(&c.pods, over)
			service(c, corev1.ServiceSpec{ClusterIP: "10.244.2.9"})
		}, ""},
		{"the node turns out to be simulated", func(c *Cluster) {
			service(c, corev1.ServiceSpec{ClusterIP: "10.244.2.9"})
			internal(c, "n2", "kwok", "192.0.2.12")
		}, ""},
		{"the range of a load balancer", func(c *Cluster) { pool(c, "192.0.2.0/28") }, "metallb first reading 192.0.2.0-192.0.2.15\n" + nodes + n2},
		{
			"a pod elsewhere has the address of a node", func(c *Cluster) { c.put(&c.pods, testPod("far", "n3", "192.0.2.12")) },
			nodes + pods + "192.0.2.12 InternalIP n2 at nodes n2 /status/addresses\n192.0.2.12 default/far n3 at pods default/far /status/podIPs",
		},
		{"a pod has the address of its node", func(c *Cluster) { c.put(&c.pods, testPod("near", "n2", "192.0.2.12")) }, ""},
	} {
		for _, late := range []bool{false, true} { // in any order
			c := liveMirror(t, func(*Cluster) {})
			l := newLedger(t)
			if late && test.name != "a pod that has ended" {
				test.do(c)
			}
			simulated := late && test.name == "the node turns out to be simulated"
			if !simulated {
				internal(c, "n2", "", "192.0.2.12", "192.0.2.200")
			}
			c.put(&c.pods, testPod("web", "n2", "10.244.2.9"))
			if !late || test.name == "a pod that has ended" {
				test.do(c)
			}
			changes, _ := c.take()
			l.take(changes.IPAM)
			if got := l.text(); sorted(got) != sorted(test.want) {
				t.Errorf("%s (%v): got\n%s\nwant\n%s", test.name, late, got, test.want)
			}
		}
	}
}

// Only the addresses in the ranges of a pool are compared again when it changes: there may be a hundred thousand pods.
func TestAPoolOfServicesConcernsTheAddressesInItsRanges(t *testing.T) {
	c := liveMirror(t, func(c *Cluster) {
		for i := range 3 {
			web := testPod(fmt.Sprint("web-", i), "n1", fmt.Sprintf("10.244.0.%d", i))
			web.Status.PodIPs = append(web.Status.PodIPs, corev1.PodIP{IP: fmt.Sprintf("fd00::%d", i)})
			c.put(&c.pods, web)
		}
	})
	var compared []netip.Addr
	by := c.addresses.Compared
	c.addresses.Compared = func(p *podRecord, a netip.Addr) bool {
		compared = append(compared, a)
		return by(p, a)
	}
	l, m := newLedger(t), newPublisher(c, vip.MetalLB.Name)
	for _, step := range []struct {
		name     string
		within   string // none if the pool is gone
		compared string
		want     string
	}{
		{"no address is in its range", "192.0.2.0/28", "[]", "metallb first reading 192.0.2.0-192.0.2.15"},
		{"one is", "10.244.0.2/31", "[10.244.0.2]", "metallb first reading 10.244.0.2-10.244.0.3\nkubernetes pods known\n10.244.0.2 default/web-2 n1 at pods default/web-2 /status/podIPs"},
		{
			"another one is", "fd00::1/128", "[10.244.0.2 fd00::1]",
			"metallb first reading fd00::1-fd00::1\nkubernetes pods known\nfd00::1 default/web-1 n1 at pods default/web-1 /status/podIPs",
		},
		{"the pool is gone", "", "[fd00::1]", ""},
	} {
		compared = nil
		if step.within == "" {
			m.Drop("first")
		} else {
			m.Put(ipam.Pool{Name: "first", Services: ipam.Ingress, Ranges: []ipam.Range{ipam.RangeOf(netip.MustParsePrefix(step.within))}}, "", false)
		}
		slices.SortFunc(compared, netip.Addr.Compare)
		changes, _ := c.take()
		l.take(changes.IPAM)
		if got := l.text(); fmt.Sprint(compared) != step.compared || sorted(got) != sorted(step.want) {
			t.Errorf("%s: compared %v, want %s; got\n%s\nwant\n%s", step.name, compared, step.compared, got, step.want)
		}
	}
}

func sorted(text string) string {
	lines := strings.Split(text, "\n")
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}
