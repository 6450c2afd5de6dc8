package cilium_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/cilium"
	"github.com/ipwitness/ipwitness/ipam/ipamtest"
)

func TestCilium(t *testing.T) {
	c := ipamtest.New(t, &cilium.IPAM, cilium.Nodes, cilium.Endpoints)
	c.Apply(cilium.Nodes, ipamtest.CiliumNode("n1", "172.18.0.2", "10.0.2.0/24", "10.0.2.236", ""))
	const n1 = "cilium n1 known 10.0.2.1-10.0.2.254"
	c.Want("no pod has an address", strings.Replace(n1, "known", "reading", 1))
	c.Apply(cilium.Endpoints, ipamtest.CiliumEndpoint("default", "web", "1e4101a4e7b1", "10.0.2.163", "172.18.0.2"))
	const web = "\n10.0.2.163 default/web 1e4101a4e7b1 n1 at ciliumendpoints default/web /status/networking/addressing"
	c.Want("one has", n1+web)
	if p := c.Pool("n1"); !p.Routed || !slices.Equal(p.Gateways, []netip.Addr{netip.MustParseAddr("10.0.2.236"), netip.MustParseAddr("10.0.2.46")}) {
		t.Errorf("got %+v", p)
	}
	at := c.AllocatedAt("n1", "10.0.2.163", "ciliumendpoints default/web /status/networking/addressing")
	if got := at.UTC().Format(time.RFC3339); got != "2023-01-08T03:17:22Z" {
		t.Errorf("got %s", got)
	}
	// An endpoint of an unknown node is published once the node is known.
	c.Apply(cilium.Endpoints, ipamtest.CiliumEndpoint("default", "db", "2e4101a4e7b1", "10.0.3.9", "172.18.0.3"))
	c.Apply(cilium.Endpoints, ipamtest.CiliumEndpoint("default", "eni", "3e4101a4e7b1", "192.168.1.2", "172.18.0.4"))
	c.Apply(cilium.Nodes, ipamtest.CiliumNode("n2", "172.18.0.3", "10.0.3.0/24, 'fd00::200/120'", "10.0.3.1", ""))
	const n2 = "\ncilium n2 known 10.0.3.1-10.0.3.254 fd00::201-fd00::2fe"
	const db = "\n10.0.3.9 default/db 2e4101a4e7b1 n2 at ciliumendpoints default/db /status/networking/addressing"
	c.Want("another node", n1+n2+web+db)

	// Single addresses. The node's status lists those in use.
	c.Apply(cilium.Nodes, ipamtest.CiliumNode("n3", "172.18.0.4", "", "192.168.1.1", `
    pool: {192.168.1.1: {resource: eni-1}, 192.168.1.2: {resource: eni-1}, 192.168.1.4: {resource: eni-1}}
status: {ipam: {operator-status: {}, used: {192.168.1.1: {owner: router, resource: eni-1}, 192.168.1.2: {owner: 'default/eni [restored]', resource: eni-1}}}}
`))
	const n3 = "\ncilium n3 known 192.168.1.1-192.168.1.2 192.168.1.4-192.168.1.4"
	const eni = `
192.168.1.1 Cilium's router n3 at ciliumnodes n3 /status/ipam/used/192.168.1.1
192.168.1.2 default/eni 3e4101a4e7b1 n3 at ciliumendpoints default/eni /status/networking/addressing
192.168.1.2 default/eni n3 at ciliumnodes n3 /status/ipam/used/192.168.1.2`
	c.Want("a node with single addresses", n1+n2+n3+web+db+eni)
	if n1, n3 := c.Pool("n1"), c.Pool("n3"); n1.Size() != 252 || n3.Size() != 0 {
		t.Errorf("got sizes %d and %d, want 252, and none of the one that gets more", n1.Size(), n3.Size())
	}

	// A range moves to another node together with its allocations.
	c.Apply(cilium.Nodes, ipamtest.CiliumNode("n1", "172.18.0.2", "10.0.3.0/24", "10.0.2.236", ""))
	c.Want("an endpoint is in the range of its node no more, and in that by name", strings.Replace(n1, "10.0.2.1-10.0.2.254", "10.0.3.1-10.0.3.254", 1)+n2+n3+
		web+db+eni)
	c.Apply(cilium.Nodes, ipamtest.CiliumNode("n1", "172.18.0.2", "10.0.2.0/24", "10.0.2.236", ""))
	c.Want("it is as it was", n1+n2+n3+web+db+eni)
	c.Remove(cilium.Endpoints, ipam.Key{Namespace: "default", Name: "db"})
	c.Remove(cilium.Nodes, ipam.Key{Name: "n3"})
	c.Want("a pod and a node are gone", n1+n2+web)
	c.Apply(cilium.Nodes, ipamtest.CiliumNode("n2", "172.18.0.3", "nowhere", "10.0.3.1", ""))
	c.Want("a node is odd", n1+`
cilium n2 unreadable 10.0.3.1-10.0.3.254 fd00::201-fd00::2fe: the CiliumNode n2 is odd: "nowhere" is no range of addresses`+web)
}
