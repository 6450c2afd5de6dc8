package spiderpool_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/spiderpool"
	"github.com/ipwitness/ipwitness/tests/ipamtest"
)

func TestSpiderpool(t *testing.T) {
	c := ipamtest.New(t, &spiderpool.IPAM, spiderpool.Pools, spiderpool.Endpoints)
	c.Apply(spiderpool.Pools, ipamtest.SpiderPool)
	const pool = "spiderpool v4pool known 10.6.168.101-10.6.168.104 10.6.168.106-10.6.168.110"
	const at = " at spiderippools v4pool /status/allocatedIPs"
	const web = "\n10.6.168.101 default/web-7d4f8 eth0" + at
	c.Want("all is listed", pool+web+"\n10.6.168.102 default/db-0 net1"+at)
	c.Apply(spiderpool.Endpoints, ipamtest.SpiderEndpoint("default", "db-0", "n2", "10.6.168.102", "StatefulSet"))
	const db = "\n10.6.168.102 default/db-0 net1 n2" + at
	c.Want("its endpoint has the node", pool+web+db)
	if al := c.Allocation("v4pool", "10.6.168.102", "spiderippools v4pool /status/allocatedIPs"); !al.Kept {
		t.Errorf("got %+v, want that a pod of a StatefulSet keeps its address", al)
	}
	c.Changes()
	c.List(spiderpool.Pools)
	c.List(spiderpool.Endpoints)
	if n := c.Changes(); n != 0 {
		t.Errorf("%d changes of listings without differences", n)
	}
	// What only the endpoint has is free for Spiderpool.
	c.Apply(spiderpool.Pools, strings.Replace(ipamtest.SpiderPool, `,"10.6.168.102":{"interface":"net1","pod":"default/db-0","podUid":"27c5f4a1"}`, "", 1))
	c.Want("the garbage collector frees an address", pool+web)
	c.Apply(spiderpool.Pools, strings.Replace(ipamtest.SpiderPool, "default/db-0", "default/other", 1))
	c.Want("another pod gets it", pool+web+"\n10.6.168.102 default/other net1"+at)
	c.Remove(spiderpool.Endpoints, ipam.Key{Namespace: "default", Name: "db-0"})
	c.Want("the endpoint of the first pod is gone", pool+web+"\n10.6.168.102 default/other net1"+at)
	c.Apply(spiderpool.Endpoints, ipamtest.SpiderEndpoint("default", "other", "n3", "10.6.168.102", "Deployment"))
	c.Want("the other has an endpoint", pool+web+"\n10.6.168.102 default/other net1 n3"+at)
	if al := c.Allocation("v4pool", "10.6.168.102", "spiderippools v4pool /status/allocatedIPs"); al.Kept {
		t.Errorf("got %+v, want that a pod of a Deployment does not keep its address", al)
	}
	c.Remove(spiderpool.Endpoints, ipam.Key{Namespace: "default", Name: "other"})
	c.Want("it is gone", pool+web+"\n10.6.168.102 default/other net1"+at)
	c.Remove(spiderpool.Pools, ipam.Key{Name: "v4pool"})
	c.Want("the pool is gone", "")
}

// A pool may be for some networks only. Spiderpool names them like their objects.
func TestNetworksOfSpiderpool(t *testing.T) {
	c := ipamtest.New(t, &spiderpool.IPAM, spiderpool.Pools)
	for names, want := range map[string][]string{
		"": nil, "kube-system/lan": {"lan"}, "kube-system/lan, shop/dmz": {"lan", "dmz"}, "kube-system/lan*": nil, "lan": nil, "shop/dmz, lan": nil,
	} {
		c.Apply(spiderpool.Pools, "metadata: {name: p}\nspec: {ips: [10.0.0.1, 'fd00::1-fd00::9'], gateway: 10.0.0.1, multusName: ["+names+"]}")
		if p := c.Pool("p"); !slices.Equal(p.Networks, want) || !slices.Equal(p.Gateways, []netip.Addr{netip.MustParseAddr("10.0.0.1")}) {
			t.Errorf("%q: got %+v, want networks %v", names, p, want)
		}
	}
}

// A pool that cannot be read keeps its allocations, and no other pool is affected.
func TestInvalidPoolsOfSpiderpool(t *testing.T) {
	c := ipamtest.New(t, &spiderpool.IPAM, spiderpool.Pools, spiderpool.Endpoints)
	pool := func(name, spec, allocated string) {
		c.Apply(spiderpool.Pools, "metadata: {name: "+name+"}\nspec: "+spec+"\nstatus: {allocatedIPs: '"+allocated+"'}")
	}
	const spec, allocated = "{ips: [10.0.0.1-10.0.0.6]}", `{"10.0.0.3":{"pod":"n/p"}}`
	pool("a", spec, allocated)
	pool("b", "{ips: [10.0.1.1]}", "")
	const p, b = "\n10.0.0.3 n/p at spiderippools a /status/allocatedIPs", "\nspiderpool b known 10.0.1.1-10.0.1.1"
	c.Want("both are known", "spiderpool a known 10.0.0.1-10.0.0.6"+b+p)
	const invalid = "unreadable 10.0.0.1-10.0.0.6: SpiderIPPool a is invalid: "
	for _, test := range []struct{ spec, allocated, want string }{
		{"[]", allocated, invalid + "its spec has an unexpected format: / is a JSON array"},
		{spec, "[]", invalid + "its status.allocatedIPs has an unexpected format: / is a JSON array"},
		{"{ips: [x]}", allocated, invalid + `its ips: "x" is neither an address nor a range`},
		{"{ips: [10.0.0.1-10.0.0.6], excludeIPs: [x]}", allocated, `known 10.0.0.1-10.0.0.6: SpiderIPPool a is invalid: its excludeIPs: "x" is neither an address nor a range`},
		{spec, strings.Replace(allocated, "{", `{"x":{},`, 1), `known 10.0.0.1-10.0.0.6: SpiderIPPool a is invalid: "x" in its status.allocatedIPs is not an address`},
		{spec, allocated, "known 10.0.0.1-10.0.0.6"},
	} {
		pool("a", test.spec, test.allocated)
		c.Want(test.want, "spiderpool a "+test.want+b+p)
	}
	c.Apply(spiderpool.Endpoints, "metadata: {name: p, namespace: n}\nstatus: []")
	pool("a", spec, `{"10.0.0.3":{"pod":"strange"}}`)
	c.Want("an endpoint in an unknown format, and a pod without a namespace",
		"spiderpool SpiderEndpoint objects known: SpiderEndpoint n/p is invalid: its status has an unexpected format: / is a JSON array\nspiderpool a known 10.0.0.1-10.0.0.6"+b+"\n10.0.0.3 at spiderippools a /status/allocatedIPs")
}
