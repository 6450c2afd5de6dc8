package tests

import (
	"fmt"
	"strings"
	"testing"

	"github.com/ipwitness/ipwitness/tests/ipamtest"
	"github.com/ipwitness/ipwitness/tests/situations/row"
)

// calicoNode is a host with pods of Calico, which the test plays, and an API with its objects.
type calicoNode struct {
	*lab
	api *api
}

func newCalicoNode(t *testing.T) *calicoNode {
	t.Helper()
	n := &calicoNode{lab: &lab{Host: newHost(t), t: t}}
	var kubeconfig string
	n.api, kubeconfig = serveAPI(t, n.Host)
	n.api.put(t, "nodes", "", "node1", "{}")
	n.api.apply(t, "ippools", ipamtest.CalicoPool)
	n.api.apply(t, "ippools", "metadata: {name: default-ipv6-ippool}\nspec: {cidr: 'fd00:10:244::/64', blockSize: 122, nodeSelector: all(), allowedUses: [Workload]}")
	n.allocate()
	n.start("--node", "node1", "--kubeconfig", kubeconfig)
	return n
}

// allocate replaces the blocks. The first addresses of each are allocated to these pods; empty for
// free ones.
func (n *calicoNode) allocate(pods ...string) {
	given := make([]string, len(pods))
	for i, pod := range pods {
		if pod != "" {
			given[i] = strings.Replace(ipamtest.CalicoPod(pod, "node1", sandbox(pod)), "2023-09-26", row.Day, 1)
		}
	}
	n.api.apply(n.t, "ipamblocks", ipamtest.CalicoBlock("192-168-7-0-26", "192.168.7.0/26", given...))
	n.api.apply(n.t, "ipamblocks", ipamtest.CalicoBlock("fd00-10-244--122", "fd00:10:244::/122", given...))
}

// add starts a pod with the i-th addresses of the blocks.
func (n *calicoNode) add(pod string, i int) {
	n.t.Helper()
	n.api.put(n.t, "pods", "default", pod, `{"spec": {"nodeName": "node1"}, "status": {"phase": "Running"}}`)
	n.played("k8s-pod-network", pod, fmt.Sprintf("192.168.7.%d", i), fmt.Sprintf("fd00:10:244::%x", i))
}

// addWebAndDB starts two pods with allocated addresses.
func (n *calicoNode) addWebAndDB() {
	n.t.Helper()
	n.allocate("", "web", "db")
	n.add("web", 1)
	n.add("db", 2)
	n.awaitPod("192.168.7.2", "db")
	n.awaitPod("fd00:10:244::2", "db")
	n.awaitAllocations(4)
	n.awaitFindings()
}

// In projectcalico/calico issue 4374, etcd was restored from a backup.
func TestCalicoRestoredFromABackupIsPredicted(t *testing.T) {
	t.Parallel()
	n := newCalicoNode(t)
	i := n.incident(17)
	n.addWebAndDB()
	// The backup is older than db.
	n.allocate("", "web")
	i.foretold("in-use-unallocated", "192.168.7.2")
	n.allocate("", "web", "new")
	n.add("new", 2)
	i.conflicted("192.168.7.2", "ipam-state-lost")
	n.sh("ip netns del db")
	i.remedied("kubectl delete pod -n default db")
}

// In projectcalico/calico issue 13858, two pods claimed one route after a restart: the node's route
// led to the pod that had lost its address to the other.
func TestRouteOfCalicoThatTwoPodsClaimIsPredicted(t *testing.T) {
	t.Parallel()
	n := newCalicoNode(t)
	i := n.incident(16)
	n.allocate("", "web")
	n.add("web", 1)
	n.sh("ip route replace 192.168.7.1/32 dev vweb")
	n.awaitPod("192.168.7.1", "web")
	n.awaitAllocations(2)
	n.awaitFindings()
	n.allocate()
	i.foretold("in-use-unallocated", "192.168.7.1")
	n.allocate("", "new")
	n.add("new", 1)
	i.conflicted("192.168.7.1", "ipam-state-lost")
	if text := n.says("explain", "192.168.7.1"); !strings.Contains(text, "sends packets for the address to pod default/web") {
		t.Errorf("got %s, want that the route leads to web", text)
	}
	n.sh("ip netns del web", "ip route replace 192.168.7.1/32 dev vnew")
	i.remedied("kubectl delete pod -n default web")
}

// In projectcalico/calico issue 5044, the garbage collection freed both addresses of pods, because the
// API listed only one of them.
func TestCalicoThatFreesAddressesOfDualStackPodsIsPredicted(t *testing.T) {
	t.Parallel()
	n := newCalicoNode(t)
	i := n.incident(18)
	n.addWebAndDB()
	n.allocate("", "web")
	i.foretold("in-use-unallocated", "fd00:10:244::2")
	i.foretold("in-use-unallocated", "192.168.7.2")
	n.allocate("", "web", "new")
	n.add("new", 2)
	i.conflicted("192.168.7.2", "ipam-state-lost")
	i.conflicted("fd00:10:244::2", "ipam-state-lost")
	n.sh("ip netns del db")
	i.remedied("kubectl delete pod -n default db")
}

// In projectcalico/calico issue 3589, Calico gave a pod the address of the node's tunnel, which it had
// not allocated. The kernel of the tests has VXLAN and not IPIP.
func TestCalicoTunnelWithTheAddressOfAPodIsPredicted(t *testing.T) {
	t.Parallel()
	n := newCalicoNode(t)
	i := n.incident(19)
	n.lan("192.0.2.1/24")
	n.sh("ip link add vxlan.calico type vxlan id 4096 dstport 4789 dev eth0 local 192.0.2.1 nolearning",
		"ip addr add 192.168.7.1/32 dev vxlan.calico", "ip link set vxlan.calico up")
	n.allocate("", "", "db")
	n.add("db", 2)
	i.foretold("in-use-unallocated", "192.168.7.1")
	n.allocate("", "web", "db")
	n.add("web", 1)
	i.conflicted("192.168.7.1", "tunnel-address")
	// Once calico-node has been restarted, the tunnel has an address that is allocated to it.
	n.sh("ip addr del 192.168.7.1/32 dev vxlan.calico", "ip addr add 192.168.7.9/32 dev vxlan.calico")
	i.remedied("kubectl delete pods -A -l k8s-app=calico-node --field-selector spec.nodeName=node1")
}

// In cilium/cilium issue 17277, two CiliumNodes had one podCIDR.
func TestTwoCiliumNodesWithOnePodCIDRArePredicted(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2)
	api, kubeconfig := serveAPI(t, c.Host)
	for _, n := range c.nodes {
		api.put(t, "nodes", "", n.name, "{}")
	}
	c.program.Kill()
	c.flags = append(c.flags, "--kubeconfig", kubeconfig)
	c.serve()
	c.awaitNodes(c.nodes...)
	i := c.incident(12)
	api.apply(t, "ciliumnodes", ipamtest.CiliumNode("node1", "192.0.2.1", "10.0.2.0/24", "10.0.2.236", ""))
	api.apply(t, "ciliumnodes", ipamtest.CiliumNode("node2", "192.0.2.2", "10.0.2.0/24", "10.0.2.237", ""))
	i.foretold("pod-cidr-overlap", "10.0.2.1-10.0.2.254")
	const addr = "10.0.2.5"
	for n, pod := range []string{"web", "db"} {
		api.put(t, "pods", "default", pod, fmt.Sprintf(`{"spec": {"nodeName": "node%d"}, "status": {"phase": "Running", "podIP": %q, "podIPs": [{"ip": %[2]q}]}}`, n+1, addr))
		api.apply(t, "ciliumendpoints", strings.Replace(ipamtest.CiliumEndpoint("default", pod, sandbox(pod), addr, fmt.Sprintf("192.0.2.%d", n+1)), "2023-01-08", row.Day, 1))
		c.nodes[n].played("cilium", pod, addr)
	}
	i.conflicted(addr, "pod-cidr-overlap")
	c.nodes[1].sh("ip netns del db") // by kubectl drain
	for _, of := range []string{"ciliumendpoints", "pods"} {
		api.drop(of, "db")
	}
	api.drop("ciliumnodes", "node2")
	api.apply(t, "ciliumnodes", ipamtest.CiliumNode("node2", "192.0.2.2", "10.0.3.0/24", "10.0.3.237", ""))
	c.awaitFindings()
	i.remedied("kubectl get node -o yaml node2 > node2.yaml", "kubectl drain --ignore-daemonsets node2", "kubectl delete node node2", "systemctl restart kubelet")
}

// In cilium/cilium issue 41986, two CiliumNodes had one CIDR of a multi-pool.
func TestTwoCiliumNodesWithOneCIDROfAMultiPoolArePredicted(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2)
	api, kubeconfig := serveAPI(t, c.Host)
	for _, n := range c.nodes {
		api.put(t, "nodes", "", n.name, "{}")
	}
	c.program.Kill()
	c.flags = append(c.flags, "--kubeconfig", kubeconfig)
	c.serve()
	c.awaitNodes(c.nodes...)
	i := c.incident(13)
	allocate := func(node, cidrs string) {
		api.apply(t, "ciliumnodes", "metadata: {name: "+node+"}\nspec: {ipam: {pools: {requested: [{pool: default, needed: {ipv4-addrs: 16}}], allocated: [{pool: default, cidrs: ["+cidrs+"]}]}}}")
	}
	allocate("node1", "10.207.0.0/28, 10.207.0.32/28")
	allocate("node2", "10.207.0.16/28, 10.207.0.32/28")
	i.foretold("pod-cidr-overlap", "10.207.0.33-10.207.0.46") // no pod has an address of it
	i.found("pod-cidr-overlap", "10.207.0.33-10.207.0.46")
	// The operator that is restarted takes the CIDR from one of them.
	allocate("node2", "10.207.0.16/28, 10.207.0.48/28")
	i.remedied("kubectl cordon node1", "kubectl cordon node2",
		"kubectl -n kube-system rollout restart deployment cilium-operator && kubectl -n kube-system rollout status deployment cilium-operator --timeout=5m",
		"kubectl uncordon node1", "kubectl uncordon node2")
	c.awaitFindings()
}

// In spidernet-io/spiderpool issue 2526, the garbage collector freed the address of a pod of a
// StatefulSet that was recreated under its name, because the UID in the pool was that of the pod before.
func TestGarbageCollectionOfSpiderpoolIsPredicted(t *testing.T) {
	t.Parallel()
	l := &lab{Host: newHost(t), t: t}
	l.lan("10.6.0.2/16")
	api, kubeconfig := serveAPI(t, l.Host)
	api.put(t, "nodes", "", "node1", "{}")
	full := strings.NewReplacer("default/web-7d4f8", "default/web", "net1", "eth0").Replace(ipamtest.SpiderPool)
	api.apply(t, "spiderippools", full)
	api.apply(t, "spiderendpoints", ipamtest.SpiderEndpoint("default", "db-0", "node1", "10.6.168.102", "StatefulSet"))
	l.start("--node", "node1", "--kubeconfig", kubeconfig)
	i := l.incident(30)
	add := func(pod, addr string) {
		api.put(t, "pods", "default", pod, `{"spec": {"nodeName": "node1"}, "status": {"phase": "Running"}}`)
		if err := l.Namespace(pod); err != nil {
			t.Fatal(err)
		}
		l.sh("ip link add link eth0 name m"+pod+" type macvlan mode bridge", "ip link set m"+pod+" name eth0 netns "+pod, "ip -n "+pod+" link set eth0 up")
		l.assign(pod, addr+"/16")
		l.given(pod, "macvlan-conf", addr)
	}
	const addr = "10.6.168.102"
	add("web", "10.6.168.101")
	add("db-0", addr)
	l.awaitPod(addr, "db-0")
	l.awaitAllocations(2)
	l.awaitFindings()
	api.apply(t, "spiderippools", strings.Replace(full, `,"10.6.168.102":{"interface":"eth0","pod":"default/db-0","podUid":"27c5f4a1"}`, "", 1))
	i.foretold("in-use-unallocated", addr)
	api.apply(t, "spiderippools", strings.Replace(full, "default/db-0", "default/new", 1))
	add("new", addr)
	i.conflicted(addr, "ipam-state-lost")
	api.drop("spiderendpoints", "db-0")
	l.sh("ip netns del db-0")
	api.drop("pods", "db-0")
	i.remedied("kubectl delete spiderendpoints.spiderpool.spidernet.io -n default --ignore-not-found --wait=false db-0", "kubectl delete pod -n default db-0")
}
