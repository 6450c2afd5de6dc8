package tests

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/situations"
)

// The incidents of other projects on Open vSwitch, with the real program and its userspace datapath.
// Antrea, OVN-Kubernetes, Kube-OVN and Multus are played: their ports, files and annotations.

// ovsCluster starts an aggregator that follows an API, and two nodes with Open vSwitch.
func ovsCluster(t *testing.T, api kubernetesAPI) (*cluster, []ovs) {
	t.Helper()
	h := newHost(t)
	c := newAggregatorOn(t, h, "--kubeconfig", api.serve(t, h))
	var all []ovs
	for i := range 2 {
		n := c.addNode(fmt.Sprintf("node%d", i+1))
		all = append(all, n.openVSwitch())
	}
	c.awaitNodes(c.nodes...)
	return c, all
}

// lease writes host-local's record of an address, as the plugin does.
func (o ovs) lease(network, addr, pod, iface string) {
	o.t.Helper()
	dir := "/var/lib/cni/networks/" + network
	o.sh("mkdir -p " + dir)
	write(o.t, o.Path(dir+"/"+addr), "c"+pod+"\r\n"+iface)
}

// wantRemedy fails unless the remedy of a conflict has the command.
func wantRemedy(t *testing.T, c *ipwitnessv1.Conflict, command string) {
	t.Helper()
	if all := situations.Commands(c.GetRemedy()); !slices.ContainsFunc(all, func(have string) bool { return strings.Contains(have, command) }) {
		t.Errorf("remedy: got %q, want %q", all, command)
	}
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
	c, nodes := ovsCluster(t, kubernetesAPI{
		nodes: map[string]string{"node1": "10.10.1.0/24", "node2": "10.10.1.0/24"},
		pods:  []apiPod{{name: "a", node: "node1", ip: addr}, {name: "b", node: "node2", ip: addr}},
	})
	c.awaitFindings("pod-cidr-overlap 10.10.1.0/24") // before there is a pod
	for i, pod := range []string{"a", "b"} {
		nodes[i].lease("antrea", addr, pod, "eth0")
		nodes[i].pod(pod, pod+"-1a2b3c", "antrea", addr, 1)
	}
	c.wantConflict(addr, ipwitnessv1.Conflict_CONFIRMED, "assigned-twice", "default/a | default/b", "NETWORK pods")
	if got := c.only(addr).GetCause(); got != "pod-cidr-overlap" {
		t.Errorf("cause: got %s (%q), want pod-cidr-overlap", got, c.only(addr).GetExcluded())
	}
	wantRemedy(t, c.only(addr), "kubectl")
}

// Incident 28, openshift/ovn-kubernetes PR#1132: a node's IPAM is overwritten, and gives addresses of
// running pods again.
func TestIncidentOVNKubernetesOverwritesANodesIPAM(t *testing.T) {
	t.Parallel()
	const addr, own = "10.128.2.5", "10.128.2.9"
	annotated := func(name, addr string) apiPod {
		return apiPod{name, "node1", addr, map[string]string{"k8s.ovn.org/pod-networks": fmt.Sprintf(`{"default":{"ip_addresses":["%s/23"],"mac_address":"0a:58:0a:80:02:05","role":"primary"}}`, addr)}}
	}
	c, nodes := ovsCluster(t, kubernetesAPI{nodes: map[string]string{"node1": "", "node2": ""}, pods: []apiPod{annotated("a", addr), annotated("b", addr), annotated("own", own)}})
	nodes[0].pod("a", "7c5e0d1f2a3b4c5", "ovn-kubernetes", addr, 1)
	nodes[0].pod("own", "8c5e0d1f2a3b4c5", "ovn-kubernetes", own, 1)
	nodes[0].pod("b", "9d0e1f2a3b4c5d6", "ovn-kubernetes", addr, 1)
	c.wantConflict(addr, ipwitnessv1.Conflict_CONFIRMED, "assigned-twice", "default/a | default/b", "NETWORK pods")
	wantRemedy(t, c.only(addr), "kubectl delete pod -n default b")
	c.wantNone(own)
}

// Incident 29, kube-ovn#3181, #4304, #1840: after an upgrade or a restart, two pods of the default VPC
// have one address. Pods of another VPC may have it as well.
func TestIncidentKubeOVNGivesAnAddressAgain(t *testing.T) {
	t.Parallel()
	const addr = "10.16.0.7"
	c, nodes := ovsCluster(t, kubernetesAPI{nodes: map[string]string{"node1": "", "node2": ""}, pods: []apiPod{
		kubeOVNPod("a", "node1", "ovn-cluster", addr), kubeOVNPod("b", "node2", "ovn-cluster", addr), kubeOVNPod("tenant", "node2", "blue", addr),
	}})
	nodes[0].pod("a", "4f3a0d5b1c01_h", "kube-ovn", addr, 1)
	nodes[1].pod("tenant", "4f3a0d5b1c02_h", "kube-ovn", addr, 2)
	nodes[1].pod("b", "4f3a0d5b1c03_h", "kube-ovn", addr, 1)
	c.wantConflict(addr, ipwitnessv1.Conflict_CONFIRMED, "assigned-twice", "default/a | default/b", "NETWORK pods")
	wantRemedy(t, c.only(addr), "kubectl delete pod -n default b")
}

// Incident 14, cozystack#3615: Kube-OVN gives a pod the address of cilium_host.
func TestIncidentKubeOVNGivesAwayTheAddressOfCilium(t *testing.T) {
	t.Parallel()
	const addr = "10.244.1.5"
	c, nodes := ovsCluster(t, kubernetesAPI{
		nodes: map[string]string{"node1": "10.244.1.0/24", "node2": "10.244.2.0/24"},
		pods:  []apiPod{kubeOVNPod("a", "node2", "ovn-cluster", addr)},
	})
	c.nodes[0].sh("ip link add cilium_host type veth peer name cilium_net", "ip link set cilium_host up", "ip link set cilium_net up",
		"ip addr add "+addr+"/32 dev cilium_host")
	nodes[1].pod("a", "4f3a0d5b1c01_h", "kube-ovn", addr, 1)
	c.wantConflict(addr, ipwitnessv1.Conflict_CONFIRMED, "assigned-twice", "default/a | node1", "NETWORK pods")
	if got := c.only(addr).GetCause(); got != "tunnel-address" {
		t.Errorf("cause: got %s (%q), want tunnel-address", got, c.only(addr).GetExcluded())
	}
	wantRemedy(t, c.only(addr), "kubectl delete pod -n default a")
}

// Incident 35, ovs-cni#222: host-local of two nodes gives one address to pods of one
// NetworkAttachmentDefinition, whose ports are on one LAN. Both MACs are derived from the address.
func TestIncidentHostLocalOnOneLANOfOpenVSwitch(t *testing.T) {
	t.Parallel()
	const addr = "192.168.1.202"
	status := map[string]string{"k8s.v1.cni.cncf.io/network-status": `[{"name":"cbr0","interface":"eth0","ips":["10.244.0.9"],"default":true},
		{"name":"default/ovs-conf","interface":"net1","ips":["192.168.1.202"],"mac":"0a:58:c0:a8:01:ca"}]`}
	c, nodes := ovsCluster(t, kubernetesAPI{
		nodes:       map[string]string{"node1": "", "node2": ""},
		pods:        []apiPod{{"a", "node1", "", status}, {"b", "node2", "", status}},
		definitions: map[string]string{"ovs-conf": `{"cniVersion":"0.4.0","name":"ovs-conf","type":"ovs","bridge":"br-int","ipam":{"type":"host-local","subnet":"192.168.1.0/24"}}`},
	})
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
	if got := c.only(addr).GetCause(); got != "pod-cidr-overlap" {
		t.Errorf("cause: got %s (%q), want pod-cidr-overlap", got, c.only(addr).GetExcluded())
	}
	wantRemedy(t, c.only(addr), "kubectl edit network-attachment-definitions.k8s.cni.cncf.io -n default ovs-conf")
}
