package tests

import (
	"fmt"
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
	balanced := func(ingress string) string {
		return `{"spec": {"type": "LoadBalancer", "clusterIP": "10.96.0.7", "ports": [{"port": 443}]}, "status": {"loadBalancer": {"ingress": [` + ingress + `]}}}`
	}
	// Look-alikes: the load balancer of k3s writes addresses of nodes, and ipMode Proxy leaves the address alone.
	n.serves("klipper", balanced(`{"ip": "192.0.2.2"}`))
	n.serves("proxied", balanced(`{"ip": "`+servedPod+`", "ipMode": "Proxy"}`))
	n.wantOnlyPlanted(servedPod, "192.0.2.2")
	n.awaitFindings()
	n.serves("front", balanced(`{"ip": "`+servedPod+`", "ipMode": "VIP"}`))
	i.foretold(answered, servedPod)
	i.found(answered, servedPod)
	n.serves("front", balanced(`{"ip": "192.0.2.80"}`))
	i.remedied("kubectl get service -n default front -o yaml")
	n.awaitFindings()
}
