package tests

import (
	"fmt"
	"strings"
	"testing"

	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/ipamtest"
	"github.com/ipwitness/ipwitness/tests/situations/row"
)

// The incidents of other projects on Open vSwitch, with the real program and its userspace datapath.
// Antrea, OVN-Kubernetes, Kube-OVN and Multus are played: their ports, files and annotations.

// ovsCluster starts an aggregator that follows an API with these objects, and two nodes with Open
// vSwitch.
func ovsCluster(t *testing.T, objects kubernetesAPI) (*cluster, *api, []ovs) {
	t.Helper()
	h := newHost(t)
	api, kubeconfig := serveAPI(t, h)
	objects.fill(t, api)
	c := newAggregatorOn(t, h, "--kubeconfig", kubeconfig)
	var all []ovs
	for i := range 2 {
		n := c.addNode(fmt.Sprintf("node%d", i+1))
		all = append(all, n.openVSwitch())
	}
	c.awaitNodes(c.nodes...)
	return c, api, all
}

// lease writes host-local's record of an address, as the plugin does.
func (o ovs) lease(network, addr, pod, iface string) {
	o.t.Helper()
	dir := "/var/lib/cni/networks/" + network
	o.sh("mkdir -p " + dir)
	write(o.t, o.Path(dir+"/"+addr), "c"+pod+"\r\n"+iface)
}

// Incident 20, antrea#8239: Antrea frees the lease of a running pod, and gives its address to another.
func TestIncidentAntreaFreesALeaseInUse(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	i := l.incident(20)
	o := l.openVSwitch()
	const addr = "10.10.1.5"
	o.lease("antrea", addr, "a", "eth0")
	o.pod("a", "a-1a2b3c", "antrea", addr, 1)
	l.awaitPod(addr, "a")
	l.awaitAllocations(1)
	l.awaitFindings()
	l.sh("rm /var/lib/cni/networks/antrea/" + addr)
	i.foretold("in-use-unallocated", addr)
	o.lease("antrea", addr, "b", "eth0")
	o.pod("b", "b-4d5e6f", "antrea", addr, 1)
	l.wantConflict(addr, ipwitnessv1.Conflict_CONFIRMED, "assigned-twice", "default/a | default/b", "NETWORK pods")
	i.conflicted(addr, "ipam-state-lost")
	l.sh("ip netns del a")
	i.remedied("kubectl delete pod -n default a")
}

// Incident 21, antrea#7893: two nodes have one podCIDR.
func TestIncidentAntreaNodesWithOnePodCIDR(t *testing.T) {
	t.Parallel()
	const addr = "10.10.1.5"
	c, api, nodes := ovsCluster(t, kubernetesAPI{nodes: map[string]string{"node1": "10.10.1.0/24", "node2": "10.10.1.0/24"}})
	i := c.incident(21)
	i.foretold("pod-cidr-overlap", "10.10.1.0/24")
	kubernetesAPI{pods: []apiPod{{name: "a", node: "node1", ip: addr}, {name: "b", node: "node2", ip: addr}}}.fill(t, api)
	for n, pod := range []string{"a", "b"} {
		nodes[n].lease("antrea", addr, pod, "eth0")
		nodes[n].pod(pod, pod+"-1a2b3c", "antrea", addr, 1)
	}
	c.wantConflict(addr, ipwitnessv1.Conflict_CONFIRMED, "assigned-twice", "default/a | default/b", "NETWORK pods")
	i.conflicted(addr, "pod-cidr-overlap")
	c.nodes[1].sh("ip netns del b") // by kubectl drain
	api.drop("pods", "b")
	api.drop("nodes", "node2")
	api.put(t, "nodes", "", "node2", `{"spec": {"podCIDR": "10.10.2.0/24"}}`)
	i.remedied("kubectl get node -o yaml node2 > node2.yaml", "kubectl drain --ignore-daemonsets node2", "kubectl delete node node2", "systemctl restart kubelet")
	c.awaitFindings()
}

// Incident 28, openshift/ovn-kubernetes PR#1132: a node's IPAM is overwritten, and gives addresses of
// running pods again.
func TestIncidentOVNKubernetesOverwritesANodesIPAM(t *testing.T) {
	t.Parallel()
	const addr, own = "10.128.2.5", "10.128.2.9"
	annotated := func(name, addr string) apiPod {
		return apiPod{name, "node1", addr, map[string]string{"k8s.ovn.org/pod-networks": fmt.Sprintf(`{"default":{"ip_addresses":["%s/23"],"mac_address":"0a:58:0a:80:02:05","role":"primary"}}`, addr)}}
	}
	c, api, nodes := ovsCluster(t, kubernetesAPI{nodes: map[string]string{"node1": "", "node2": ""}, pods: []apiPod{annotated("a", addr), annotated("own", own)}})
	i := c.incident(28)
	nodes[0].pod("a", "7c5e0d1f2a3b4c5", "ovn-kubernetes", addr, 1)
	nodes[0].pod("own", "8c5e0d1f2a3b4c5", "ovn-kubernetes", own, 1)
	c.awaitPod(addr, "a")
	c.awaitFindings()
	b := annotated("b", addr)
	b.ip = "" // kubelet has not started it yet
	kubernetesAPI{pods: []apiPod{b}}.fill(t, api)
	i.foretold("double-allocated", addr)
	nodes[0].pod("b", "9d0e1f2a3b4c5d6", "ovn-kubernetes", addr, 1)
	c.wantConflict(addr, ipwitnessv1.Conflict_CONFIRMED, "assigned-twice", "default/a | default/b", "NETWORK pods")
	i.conflicted(addr, "ipam-allocated-twice")
	c.nodes[0].sh("ip netns del b")
	api.drop("pods", "b")
	i.remedied("kubectl delete pod -n default b")
	c.awaitFindings()
	c.wantNone(own)
}

// Incident 29, kube-ovn#3181, #4304, #1840: after an upgrade or a restart, two pods of the default VPC
// have one address. Pods of another VPC may have it as well.
func TestIncidentKubeOVNGivesAnAddressAgain(t *testing.T) {
	t.Parallel()
	const addr = "10.16.0.7"
	ip := func(pod, node, vpc, created string) string {
		return strings.NewReplacer("ovn-default", "subnet-of-"+vpc, "2023-01-08T03", created).Replace(ipamtest.KubeOVNIP(pod, "default", addr, node, ""))
	}
	c, api, nodes := ovsCluster(t, kubernetesAPI{
		nodes: map[string]string{"node1": "", "node2": ""}, pods: []apiPod{kubeOVNPod("a", "node1", "ovn-cluster", addr)},
	})
	i := c.incident(29)
	for _, vpc := range []string{"ovn-cluster", "blue"} {
		api.apply(t, "subnets", strings.Replace(ipamtest.KubeOVNSubnet("subnet-of-"+vpc, "10.16.0.0/28"), "vpc: ovn-cluster", "vpc: "+vpc, 1))
	}
	api.apply(t, "ips", ip("a", "node1", "ovn-cluster", row.Day+"T03"))
	api.apply(t, "ips", ip("tenant", "node2", "blue", row.Day+"T03"))
	nodes[0].pod("a", "4f3a0d5b1c01_h", "kube-ovn", addr, 1)
	c.awaitPod(addr, "a")
	c.awaitFindings()
	// An IP object of a pod that does not exist is left behind.
	kubernetesAPI{pods: []apiPod{kubeOVNPod("b", "node2", "ovn-cluster", addr), kubeOVNPod("tenant", "node2", "blue", addr)}}.fill(t, api)
	api.apply(t, "ips", ip("b", "node2", "ovn-cluster", row.Day+"T04"))
	i.foretold("double-allocated", addr)
	nodes[1].pod("tenant", "4f3a0d5b1c02_h", "kube-ovn", addr, 2)
	nodes[1].pod("b", "4f3a0d5b1c03_h", "kube-ovn", addr, 1)
	c.wantConflict(addr, ipwitnessv1.Conflict_CONFIRMED, "assigned-twice", "default/a | default/b", "NETWORK pods")
	i.conflicted(addr, "ipam-allocated-twice")
	c.nodes[1].sh("ip netns del b", "ip netns del tenant")
	api.drop("pods", "b")
	api.drop("ips", "b.default")
	i.remedied("kubectl delete pod -n default b")
}

// Incident 14, cozystack#3615: Kube-OVN gives a pod the address of cilium_host.
func TestIncidentKubeOVNGivesAwayTheAddressOfCilium(t *testing.T) {
	t.Parallel()
	const addr = "10.244.1.5"
	c, api, nodes := ovsCluster(t, kubernetesAPI{
		nodes: map[string]string{"node1": "10.244.1.0/24", "node2": "10.244.2.0/24"},
		pods:  []apiPod{kubeOVNPod("a", "node2", "ovn-cluster", addr)},
	})
	i := c.incident(14)
	c.nodes[0].sh("ip link add cilium_host type veth peer name cilium_net", "ip link set cilium_host up", "ip link set cilium_net up",
		"ip addr add "+addr+"/32 dev cilium_host")
	nodes[1].pod("a", "4f3a0d5b1c01_h", "kube-ovn", addr, 1)
	c.wantConflict(addr, ipwitnessv1.Conflict_CONFIRMED, "assigned-twice", "default/a | node1", "NETWORK pods")
	i.conflicted(addr, "tunnel-address")
	c.nodes[1].sh("ip netns del a")
	api.drop("pods", "a")
	i.remedied("kubectl delete pod -n default a")
}

// Incident 35, ovs-cni#222: host-local of two nodes gives one address to pods of one
// NetworkAttachmentDefinition, whose ports are on one LAN. Both MACs are derived from the address.
func TestIncidentHostLocalOnOneLANOfOpenVSwitch(t *testing.T) {
	t.Parallel()
	const addr = "192.168.1.202"
	status := map[string]string{"k8s.v1.cni.cncf.io/network-status": `[{"name":"cbr0","interface":"eth0","ips":["10.244.0.9"],"default":true},
		{"name":"default/ovs-conf","interface":"net1","ips":["192.168.1.202"],"mac":"0a:58:c0:a8:01:ca"}]`}
	c, api, nodes := ovsCluster(t, kubernetesAPI{
		nodes:       map[string]string{"node1": "", "node2": ""},
		pods:        []apiPod{{"a", "node1", "", status}, {"b", "node2", "", status}},
		definitions: map[string]string{"ovs-conf": `{"cniVersion":"0.4.0","name":"ovs-conf","type":"ovs","bridge":"br-int","ipam":{"type":"host-local","subnet":"192.168.1.0/24"}}`},
	})
	i := c.incident(35)
	// The nodes' bridges are one LAN by a tunnel, which is a port of both and an uplink of the nodes.
	if err := c.nodes[0].Cable("eth0", c.nodes[1].Host, "eth0"); err != nil {
		t.Fatal(err)
	}
	for i, o := range nodes {
		o.sh(
			fmt.Sprintf("ip addr add 192.0.2.%d/24 dev eth0", i+1),
			fmt.Sprintf("ip link add vx0 type vxlan id 7 dstport 4789 local 192.0.2.%d remote 192.0.2.%d dev eth0", i+1, 2-i),
			"ip link set vx0 up")
	}
	for i, pod := range []string{"a", "b"} {
		nodes[i].lease("ovs-conf", addr, pod, "net1")
		nodes[i].pod(pod, "veth"+pod, "ovs-conf", addr, 1)
		nodes[i].sh("ip -n "+pod+" link set eth0 down", "ip -n "+pod+" link set eth0 name net1", "ip -n "+pod+" link set net1 up",
			"rm /var/lib/cni/results/ovs-conf-c"+pod+"-eth0")
		write(t, nodes[i].Path("/var/lib/cni/results/ovs-conf-c"+pod+"-net1"), strings.NewReplacer("$pod", pod, "$address", addr).Replace(
			`{"kind":"cniCacheV1","containerId":"c$pod","ifName":"net1","networkName":"ovs-conf","netns":"/run/netns/$pod",
			"cniArgs":[["K8S_POD_NAMESPACE","default"],["K8S_POD_NAME","$pod"],["K8S_POD_UID","uid-$pod"]],"result":{"cniVersion":"0.4.0",
			"interfaces":[{"name":"net1","sandbox":"/run/netns/$pod"}],"ips":[{"address":"$address/24","interface":0}]}}`))
	}
	c.awaitScopes(addr, "LINK node1/vetha", "LINK node2/vethb")
	c.plant()
	c.wantNone(addr) // nothing shows yet that the ports are on one LAN
	for i, o := range nodes {
		o.vsctl("add-port br-int vx0 tag=1")
		c.nodes[i].shout([]string{"a", "b"}[i], "net1", addr)
	}
	for i := range nodes {
		c.nodes[i].shout([]string{"a", "b"}[i], "net1", addr)
	}
	c.wantConflict(addr, ipwitnessv1.Conflict_CONFIRMED, "assigned-twice", "default/a | default/b", "NETWORK nad/default/ovs-conf")
	i.conflicted(addr, "pod-cidr-overlap")
	kubernetesAPI{definitions: map[string]string{"ovs-conf": `{"cniVersion":"0.4.0","name":"ovs-conf","type":"ovs","bridge":"br-int","ipam":{"type":"whereabouts","range":"192.168.2.0/24"}}`}}.fill(t, api)
	c.nodes[1].sh("ip netns del b")
	api.drop("pods", "b")
	c.watch.await("the conflict to be over", inState(addr, ipwitnessv1.Conflict_RESOLVED)) // the frames of a are known for longer
	i.Remedied(i.conflict.GetRemedy(), "kubectl edit network-attachment-definitions.k8s.cni.cncf.io -n default ovs-conf", "kubectl delete pod -n default b")
}
