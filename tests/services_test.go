package tests

import (
	"fmt"
	"strings"
	"testing"
)

// kubeNode is a node with an API in which the test plays pods and Services.
type kubeNode struct {
	*lab
	api *api
}

func newKubeNode(t *testing.T) *kubeNode {
	t.Helper()
	n := &kubeNode{lab: &lab{Host: newHost(t), t: t}}
	var kubeconfig string
	n.api, kubeconfig = serveAPI(t, n.Host)
	n.api.put(t, "nodes", "", "node1", "{}")
	n.start("--node", "node1", "--kubeconfig", kubeconfig)
	return n
}

// runs starts a pod with an address.
func (n *kubeNode) runs(pod, addr string) {
	n.t.Helper()
	n.api.put(n.t, "pods", "default", pod, fmt.Sprintf(`{"spec": {"nodeName": "node1"}, "status": {"phase": "Running", "podIP": %q, "podIPs": [{"ip": %[1]q}]}}`, addr))
	n.played("pods", pod, addr)
	n.awaitPod(addr, pod)
}

// serves creates or changes a Service, and its endpoints.
func (n *kubeNode) serves(service, parts string, endpoints ...string) {
	n.t.Helper()
	for _, a := range endpoints {
		n.api.put(n.t, "endpointslices", "default", service+"-x", fmt.Sprintf(`{"metadata": {"labels": {"kubernetes.io/service-name": %q}}, "addressType": "IPv4", "endpoints": [{"addresses": [%q]}]}`, service, a))
	}
	n.api.put(n.t, "services", "default", service, parts)
}

const (
	servedPod = "10.244.1.7"
	otherPod  = "10.244.1.8"
)

// Incident 44: a ServiceCIDR that was added lies in the range of the pods.
func TestIncidentACIDROfServicesIsInTheRangeOfThePods(t *testing.T) {
	t.Parallel()
	n := newKubeNode(t)
	n.runs("db", servedPod)
	n.runs("web", otherPod)
	i := n.incident(44)
	// Look-alikes: a headless Service, and a Service whose cluster IP no pod has.
	n.serves("headless", `{"spec": {"clusterIP": "None", "externalIPs": ["`+servedPod+`"], "ports": [{"port": 80}]}}`)
	n.serves("api", `{"spec": {"clusterIP": "10.96.0.7", "clusterIPs": ["10.96.0.7"], "ports": [{"port": 80}]}}`, otherPod)
	n.wantOnlyPlanted(servedPod, otherPod)
	n.awaitFindings()
	n.serves("api", `{"spec": {"clusterIP": "`+servedPod+`", "clusterIPs": ["`+servedPod+`"], "ports": [{"port": 80}, {"port": 53, "protocol": "UDP"}]}}`, otherPod)
	i.foretold(answered, servedPod)
	i.found(answered, servedPod)
	n.api.drop("services", "api")
	i.remedied("kubectl get servicecidrs")
	n.awaitFindings()
}

// Incident 45, CVE-2020-8554: a user takes the packets of a pod by a Service with its address in externalIPs.
func TestIncidentExternalIPsTakeThePacketsOfAPod(t *testing.T) {
	t.Parallel()
	n := newKubeNode(t)
	n.runs("db", servedPod)
	n.runs("web", otherPod)
	n.sh("ip link add up0 type veth peer name up1", "ip link set up0 up", "ip link set up1 up", "ip addr add 192.0.2.2/24 dev up0")
	n.awaitOwners("192.0.2.2", 1)
	i := n.incident(45)
	// Look-alikes: a gateway by the address of the node, and a pod that is an endpoint of the Service.
	n.serves("gateway", `{"spec": {"clusterIP": "10.96.0.8", "externalIPs": ["192.0.2.2"], "ports": [{"port": 443}]}}`, otherPod)
	n.serves("own", `{"spec": {"clusterIP": "10.96.0.9", "externalIPs": ["`+otherPod+`"], "ports": [{"port": 80}]}}`, otherPod)
	n.wantOnlyPlanted(servedPod, otherPod, "192.0.2.2")
	n.awaitFindings()
	n.serves("mitm", `{"spec": {"clusterIP": "10.96.0.7", "externalIPs": ["010.244.001.007"], "ports": [{"port": 5432}]}}`, otherPod)
	i.foretold(answered, servedPod)
	i.found(answered, servedPod)
	n.serves("mitm", `{"spec": {"clusterIP": "10.96.0.7", "ports": [{"port": 5432}]}}`, otherPod)
	i.remedied("kubectl get service -n default mitm -o yaml")
	n.awaitFindings()
}

// Incident 46: the pool of a load balancer has addresses of pods.
func TestIncidentALoadBalancerGivesOutTheAddressOfAPod(t *testing.T) {
	t.Parallel()
	n := newKubeNode(t)
	n.runs("db", servedPod)
	n.sh("ip link add up0 type veth peer name up1", "ip link set up0 up", "ip link set up1 up", "ip addr add 192.0.2.2/24 dev up0")
	n.awaitOwners("192.0.2.2", 1)
	i := n.incident(46)
	balanced := func(clusterIP, ingress string) string {
		return `{"spec": {"type": "LoadBalancer", "clusterIP": "` + clusterIP + `", "ports": [{"port": 443}]}, "status": {"loadBalancer": {"ingress": [` + ingress + `]}}}`
	}
	// Look-alikes: the load balancer of k3s writes addresses of nodes, and ipMode Proxy leaves the address alone.
	n.serves("klipper", balanced("10.96.0.8", `{"ip": "192.0.2.2"}`))
	n.serves("proxied", balanced("10.96.0.9", `{"ip": "`+servedPod+`", "ipMode": "Proxy"}`))
	n.wantOnlyPlanted(servedPod, "192.0.2.2")
	n.awaitFindings()
	n.serves("front", balanced("10.96.0.7", `{"ip": "`+servedPod+`", "ipMode": "VIP"}`))
	i.foretold(answered, servedPod)
	i.found(answered, servedPod)
	n.serves("front", balanced("10.96.0.7", `{"ip": "192.0.2.80"}`))
	i.remedied("kubectl get service -n default front -o yaml")
	n.awaitFindings()
}

// Incident 48: the sandbox of a pod that was force-deleted lives on, and another pod gets its address.
func TestIncidentTheSandboxOfAForceDeletedPodLivesOn(t *testing.T) {
	t.Parallel()
	const orphaned = "orphaned-sandbox"
	n := newKubeNode(t)
	n.runs("db", servedPod)
	n.runs("web", otherPod)
	i := n.incident(48)
	n.awaitFindings()
	// Look-alikes: a pod that is deleted as usual, and one whose sandbox the kubelet ends a moment after its object.
	n.api.put(t, "pods", "default", "web", `{"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}, "spec": {"nodeName": "node1"}, "status": {"phase": "Running"}}`)
	n.runs("job", "10.244.1.9")
	n.api.drop("pods", "job")
	n.sh("ip netns del job")
	n.api.drop("pods", "db")
	i.foretold(orphaned, servedPod)
	n.awaitFindings(orphaned + " " + servedPod)
	if out := i.run("owners", servedPod); !strings.Contains(out, "orphaned") {
		t.Errorf("owners does not mark the orphan:\n%s", out)
	}
	n.api.put(t, "pods", "default", "heir", `{"spec": {"nodeName": "node1"}, "status": {"phase": "Running"}}`)
	n.played("pods", "heir", servedPod)
	i.conflicted(servedPod, orphaned)
	n.sh("ip netns del db")
	id := sandbox("db")[:12]
	i.remedied("crictl stopp " + id + " && crictl rmp " + id)
	n.awaitFindings()
}

// Incident 49: the kubelets of two machines chose the address of a NAT interface, which is the same on all machines.
func TestIncidentTwoNodesHaveOneInternalIP(t *testing.T) {
	t.Parallel()
	slow(t)
	n := newKubeNode(t)
	const nat = "10.0.2.15"
	n.sh("ip link add up0 type veth peer name up1", "ip link set up0 up", "ip link set up1 up", "ip addr add "+nat+"/24 dev up0")
	n.awaitOwners(nat, 1)
	i := n.incident(49)
	node := func(name, addr string) {
		n.api.put(t, "nodes", "", name, `{"status": {"addresses": [{"type": "InternalIP", "address": "`+addr+`"}, {"type": "ExternalIP", "address": "203.0.113.1"}]}}`)
	}
	node("node1", nat)
	node("node2", "192.168.56.12") // without an agent
	n.wantOnlyPlanted(nat)
	n.awaitFindings()
	node("node2", nat)
	i.foretold("double-allocated", nat)
	i.found("double-allocated", nat)
	node("node2", "192.168.56.12")
	i.remedied("kubectl get nodes -o wide")
	n.awaitFindings()
}

// Incident 50: an administrator thinks that the pool of MetalLB must have the addresses of the nodes.
func TestIncidentMetalLBGivesOutTheAddressOfANode(t *testing.T) {
	t.Parallel()
	const own = "192.0.2.2"
	n := newKubeNode(t)
	n.api.put(t, "nodes", "", "node1", `{"status": {"addresses": [{"type": "InternalIP", "address": "`+own+`"}]}}`)
	n.runs("db", servedPod)
	n.sh("ip link add up0 type veth peer name up1", "ip link set up0 up", "ip link set up1 up", "ip addr add "+own+"/24 dev up0")
	n.awaitOwners(own, 1)
	i := n.incident(50)
	balanced := func(service, clusterIP, ip string) {
		n.serves(service, `{"spec": {"type": "LoadBalancer", "clusterIP": "`+clusterIP+`", "ports": [{"port": 443}]}, "status": {"loadBalancer": {"ingress": [{"ip": "`+ip+`"}]}}}`)
	}
	pool := func(name, addresses string) {
		n.api.apply(t, "ipaddresspools", "metadata: {namespace: metallb-system, name: "+name+"}\nspec: {addresses: ["+addresses+"]}")
	}
	cidrs := func(name, cidr string) {
		n.api.apply(t, "servicecidrs", "metadata: {name: "+name+"}\nspec: {cidrs: ["+cidr+"]}")
	}
	// Look-alikes: ranges beside the addresses in use, and a virtual address of a Service that a node has.
	pool("first", "192.0.2.16-192.0.2.31")
	cidrs("kubernetes", "10.96.0.0/12")
	n.sh("ip addr add 192.0.2.20/32 dev up0")
	balanced("virtual", "10.96.0.8", "192.0.2.20")
	n.wantOnlyPlanted(own, servedPod, "192.0.2.20")
	n.awaitFindings()
	pool("second", "192.0.2.1-192.0.2.9")
	cidrs("more", "10.244.1.0/28")
	i.foretold("in-use-unallocated", own)
	n.awaitFindings("in-use-unallocated "+servedPod, "in-use-unallocated "+own)
	// An IPAddress that is not the API server's keeps an address from Services.
	n.api.apply(t, "ipaddresses", "metadata: {name: "+servedPod+"}\nspec: {parentRef: {resource: pods, namespace: default, name: db}}")
	n.awaitFindings("in-use-unallocated " + own)
	n.api.drop("ipaddresses", servedPod)
	n.awaitFindings("in-use-unallocated "+servedPod, "in-use-unallocated "+own)
	n.api.drop("servicecidrs", "more")
	n.awaitFindings("in-use-unallocated " + own)
	balanced("front", "10.96.0.7", own)
	i.found(answered, own)
	n.awaitFindings(answered + " " + own)
	pool("second", "192.0.2.5-192.0.2.9")
	balanced("front", "10.96.0.7", "192.0.2.5")
	i.remedied("kubectl get service -n default front -o yaml")
	n.awaitFindings()
}
