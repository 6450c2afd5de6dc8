package kube

import (
	"slices"
	"strings"
	"testing"

	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/cilium"
)

// ciliumNodeText returns a CiliumNode in the format of Cilium's operator and agent.
func ciliumNodeText(name, ip, cidrs, router, more string) string {
	return `
metadata: {name: ` + name + `, labels: {kubernetes.io/hostname: ` + name + `}}
spec:
  addresses:
  - {ip: ` + ip + `, type: InternalIP}
  - {ip: ` + router + `, type: CiliumInternalIP}
  alibaba-cloud: {}
  azure: {}
  bootid: 3f0a2f3c-5b3c-4b3c-8b3c-3f0a2f3c5b3c
  encryption: {}
  eni: {}
  health: {ipv4: 10.0.2.46}
  ingress: {}
  ipam:
    podCIDRs: [` + cidrs + `]
    pools: {}
` + more
}

// ciliumEndpointText returns a CiliumEndpoint in the format of Cilium's agent.
func ciliumEndpointText(namespace, pod, id, ip, node string) string {
	return `
metadata: {name: ` + pod + `, namespace: ` + namespace + `, creationTimestamp: "2023-01-08T03:17:22Z"}
status:
  encryption: {}
  external-identifiers:
    cni-attachment-id: ` + id + `:eth0
    container-id: ` + id + `
    k8s-namespace: ` + namespace + `
    k8s-pod-name: ` + pod + `
    pod-name: ` + namespace + `/` + pod + `
  id: 207
  identity: {id: 23407, labels: ["k8s:app=productpage"]}
  networking:
    addressing: [{ipv4: ` + ip + `}]
    node: ` + node + `
  state: ready
`
}

func TestCilium(t *testing.T) {
	f := newFakeAPI(t)
	f.install(cilium.Nodes, cilium.Endpoints)
	f.apply(cilium.Nodes, ciliumNodeText("n1", "172.18.0.2", "10.0.2.0/24", "10.0.2.236", ""))
	l := keep(t, f.open())
	const n1 = "cilium n1 known 10.0.2.1-10.0.2.254"
	l.await("no pod has an address", strings.Replace(n1, "known", "reading", 1))
	f.apply(cilium.Endpoints, ciliumEndpointText("default", "web", "1e4101a4e7b1", "10.0.2.163", "172.18.0.2"))
	const web = "\n10.0.2.163 default/web 1e4101a4e7b1 n1 at ciliumendpoints default/web /status/networking/addressing"
	l.await("one has", n1+web)
	if p := l.pools["cilium n1"]; !p.Routed || p.Node != nil || !slices.Equal(p.Gateways, addresses("10.0.2.236", "10.0.2.46")) {
		t.Errorf("got %+v", p)
	}
	// An endpoint of an unknown node is published once the node is known.
	f.apply(cilium.Endpoints, ciliumEndpointText("default", "db", "2e4101a4e7b1", "10.0.3.9", "172.18.0.3"))
	f.apply(cilium.Endpoints, ciliumEndpointText("default", "eni", "3e4101a4e7b1", "192.168.1.2", "172.18.0.4"))
	f.apply(cilium.Nodes, ciliumNodeText("n2", "172.18.0.3", "10.0.3.0/24, 'fd00::200/120'", "10.0.3.1", ""))
	const n2 = "\ncilium n2 known 10.0.3.1-10.0.3.254 fd00::201-fd00::2fe"
	const db = "\n10.0.3.9 default/db 2e4101a4e7b1 n2 at ciliumendpoints default/db /status/networking/addressing"
	l.await("another node", n1+n2+web+db)

	// Single addresses. The node's status lists those in use.
	f.apply(cilium.Nodes, ciliumNodeText("n3", "172.18.0.4", "", "192.168.1.1", `
    pool: {192.168.1.1: {resource: eni-1}, 192.168.1.2: {resource: eni-1}, 192.168.1.4: {resource: eni-1}}
status: {ipam: {operator-status: {}, used: {192.168.1.1: {owner: router, resource: eni-1}, 192.168.1.2: {owner: 'default/eni [restored]', resource: eni-1}}}}
`))
	const n3 = "\ncilium n3 known 192.168.1.1-192.168.1.2 192.168.1.4-192.168.1.4"
	const eni = `
192.168.1.1 Cilium's router n3 at ciliumnodes n3 /status/ipam/used/192.168.1.1
192.168.1.2 default/eni 3e4101a4e7b1 n3 at ciliumendpoints default/eni /status/networking/addressing
192.168.1.2 default/eni n3 at ciliumnodes n3 /status/ipam/used/192.168.1.2`
	l.await("a node with single addresses", n1+n2+n3+web+db+eni)
	if n1, n3 := l.pools["cilium n1"], l.pools["cilium n3"]; n1.Size() != 252 || n3.Size() != 0 {
		t.Errorf("got sizes %d and %d, want 252, and none of the one that gets more", n1.Size(), n3.Size())
	}

	// A range moves to another node together with its allocations.
	l.told()
	f.apply(cilium.Nodes, ciliumNodeText("n1", "172.18.0.2", "10.0.3.0/24", "10.0.2.236", ""))
	l.await("an endpoint is in the range of its node no more, and in that by name", strings.Replace(n1, "10.0.2.1-10.0.2.254", "10.0.3.1-10.0.3.254", 1)+n2+n3+
		web+db+eni)
	f.apply(cilium.Nodes, ciliumNodeText("n1", "172.18.0.2", "10.0.2.0/24", "10.0.2.236", ""))
	l.await("it is as it was", n1+n2+n3+web+db+eni)
	f.remove(cilium.Endpoints, ipam.Key{Namespace: "default", Name: "db"})
	f.remove(cilium.Nodes, ipam.Key{Name: "n3"})
	l.await("a pod and a node are gone", n1+n2+web)
	f.apply(cilium.Nodes, ciliumNodeText("n2", "172.18.0.3", "nowhere", "10.0.3.1", ""))
	l.await("a node is odd", n1+`
cilium n2 unreadable 10.0.3.1-10.0.3.254 fd00::201-fd00::2fe: the CiliumNode n2 is odd: "nowhere" is no range of addresses`+web)
}
