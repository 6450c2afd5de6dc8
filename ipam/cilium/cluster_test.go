package cilium_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/cilium"
	"github.com/ipwitness/ipwitness/tests/ipamtest"
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

	// The first and last addresses of a pool that allows them.
	pools := func(allowed string) string {
		return strings.Replace(ipamtest.CiliumNode("n4", "172.18.0.5", "", "10.4.0.9", ""), "pools: {}", "pools: {allocated: [{pool: default, "+allowed+"cidrs: [10.4.0.0/28, 10.4.1.0/32]}]}", 1)
	}
	for allowed, want := range map[string]string{
		"":                     "10.4.0.1-10.4.0.14",
		"allowFirstIP: true, ": "10.4.0.0-10.4.0.14",
		"allowLastIP: true, ":  "10.4.0.1-10.4.0.15",
		"allowFirstIP: true, allowLastIP: true, ": "10.4.0.0-10.4.0.15",
	} {
		c.Apply(cilium.Nodes, pools(allowed))
		c.Want("pool with "+allowed, n1+n2+n3+"\ncilium n4 known "+want+" 10.4.1.0-10.4.1.0"+web+db+eni)
	}
	if p := c.Pool("n4"); p.Single || !p.Grows {
		t.Errorf("got %+v, want a pool that grows, with a prefix", p)
	}
	c.Remove(cilium.Nodes, ipam.Key{Name: "n4"})

	// A range moves to another node together with its allocations.
	c.Apply(cilium.Nodes, ipamtest.CiliumNode("n1", "172.18.0.2", "10.0.3.0/24", "10.0.2.236", ""))
	c.Want("an endpoint has left the range of its node", strings.Replace(n1, "10.0.2.1-10.0.2.254", "10.0.3.1-10.0.3.254", 1)+n2+n3+
		web+db+eni)
	c.Apply(cilium.Nodes, ipamtest.CiliumNode("n1", "172.18.0.2", "10.0.2.0/24", "10.0.2.236", ""))
	c.Want("it is as it was", n1+n2+n3+web+db+eni)
	c.Remove(cilium.Endpoints, ipam.Key{Namespace: "default", Name: "db"})
	c.Remove(cilium.Nodes, ipam.Key{Name: "n3"})
	c.Want("a pod and a node are gone", n1+n2+web)
	c.Apply(cilium.Nodes, ipamtest.CiliumNode("n2", "172.18.0.3", "nowhere", "10.0.3.1", ""))
	c.Want("a node is invalid", n1+`
cilium n2 unreadable 10.0.3.1-10.0.3.254 fd00::201-fd00::2fe: CiliumNode n2 is invalid: "nowhere" is not a CIDR`+web)
}

func ciliumNode(name, ip, cidrs string) string {
	return "metadata: {name: " + name + "}\nspec: {addresses: [{type: InternalIP, ip: " + ip + "}], ipam: {podCIDRs: [" + cidrs + "]}}"
}

// The node of an address is the one with the most specific range that contains it, and the one of
// the endpoint if there is none.
func TestNodesOfAddresses(t *testing.T) {
	c := ipamtest.New(t, &cilium.IPAM, cilium.Nodes, cilium.Endpoints)
	c.Apply(cilium.Nodes, ciliumNode("wide", "172.18.0.1", "10.0.0.0/16, 'fd00::/64'"))
	c.Apply(cilium.Nodes, ciliumNode("narrow", "172.18.0.2", "10.0.1.0/24, 'fd00::100/120'"))
	c.Apply(cilium.Nodes, ciliumNode("zwilling", "172.18.0.3", "10.0.1.0/24"))
	for pod, ip := range map[string]string{"a": "10.0.0.9", "b": "10.0.1.9", "c": "10.9.0.9"} {
		c.Apply(cilium.Endpoints, ipamtest.CiliumEndpoint("n", pod, "id", ip, "172.18.0.3"))
	}
	for pod, ip := range map[string]string{"d": "fd00::9", "e": "fd00::109", "f": "fd01::9"} {
		c.Apply(cilium.Endpoints, "metadata: {name: "+pod+", namespace: n}\nstatus: {networking: {addressing: [{ipv6: '"+ip+"'}], node: 172.18.0.9}}")
	}
	const pools = `
cilium narrow known 10.0.1.1-10.0.1.254 fd00::101-fd00::1fe
cilium wide known 10.0.0.1-10.0.255.254 fd00::1-fd00::ffff:ffff:ffff:fffe
cilium zwilling known 10.0.1.1-10.0.1.254`
	const at = " at ciliumendpoints n/"
	c.Want("each in its range", pools+`
10.0.1.9 n/b id zwilling`+at+`b /status/networking/addressing
fd00::109 n/e narrow`+at+`e /status/networking/addressing
10.0.0.9 n/a id zwilling`+at+`a /status/networking/addressing
fd00::9 n/d wide`+at+`d /status/networking/addressing
10.9.0.9 n/c id zwilling`+at+`c /status/networking/addressing`)
	c.Changes()
	c.List(cilium.Nodes)
	c.List(cilium.Endpoints)
	if n := c.Changes(); n != 0 {
		t.Errorf("%d changes of a listing without differences", n)
	}
	// The endpoint moves to another node, gets another container, another address, and none.
	c.Remove(cilium.Endpoints, ipam.Key{Namespace: "n", Name: "a"})
	c.Remove(cilium.Endpoints, ipam.Key{Namespace: "n", Name: "c"})
	c.Remove(cilium.Endpoints, ipam.Key{Namespace: "n", Name: "d"})
	c.Remove(cilium.Endpoints, ipam.Key{Namespace: "n", Name: "e"})
	c.Changes()
	for _, step := range []struct{ id, ip, node, want string }{
		{"id", "10.0.1.9", "172.18.0.1", "10.0.1.9 n/b id wide" + at},
		{"other", "10.0.1.9", "172.18.0.1", "10.0.1.9 n/b other wide" + at},
		{"other", "10.0.0.7", "172.18.0.1", "10.0.0.7 n/b other wide" + at},
	} {
		c.Apply(cilium.Endpoints, ipamtest.CiliumEndpoint("n", "b", step.id, step.ip, step.node))
		c.Want("the endpoint changes", pools+"\n"+step.want+"b /status/networking/addressing")
	}
	if n := c.Changes(); n != 4 {
		t.Errorf("%d changes, want 4", n)
	}
	c.Apply(cilium.Nodes, ciliumNode("wide", "172.18.0.77", "10.0.0.0/16, 'fd00::/64'"))
	c.Want("the node has another address", pools+"\n10.0.0.7 n/b other wide"+at+"b /status/networking/addressing")
	c.Apply(cilium.Nodes, ciliumNode("zwilling", "172.18.0.1", "10.0.1.0/24"))
	c.Want("another node has the address of the first", pools+"\n10.0.0.7 n/b other zwilling"+at+"b /status/networking/addressing")
	c.Changes()
	c.Apply(cilium.Nodes, ciliumNode("zwilling-2", "172.18.0.4", "10.0.0.0/16"))
	c.Remove(cilium.Nodes, ipam.Key{Name: "zwilling-2"})
	if n := c.Changes(); n != 2 {
		t.Errorf("%d changes, want 2: the range of another node is not published again", n)
	}
	// Addresses of an endpoint come and go one by one.
	for _, step := range []struct {
		ips  string
		want int
	}{{"10.0.0.7", 1 /* of another time */}, {"10.0.0.7, 10.0.0.8", 1}, {"10.0.0.9, 10.0.0.8", 2}, {"10.0.0.7", 3}} {
		var pairs []string
		for ip := range strings.SplitSeq(step.ips, ", ") {
			pairs = append(pairs, "{ipv4: "+ip+"}")
		}
		c.Apply(cilium.Endpoints, "metadata: {name: b, namespace: n}\nstatus: {external-identifiers: {container-id: other}, networking: {addressing: ["+strings.Join(pairs, ", ")+"], node: 172.18.0.1}}")
		if n := c.Changes(); n != step.want {
			t.Errorf("addresses %s: %d changes, want %d", step.ips, n, step.want)
		}
	}
	c.Apply(cilium.Endpoints, "metadata: {name: b, namespace: n}\nstatus: {networking: {addressing: []}}")
	c.Want("it has none", pools)
}

// Nodes may have ranges of all sizes.
func TestSmallestAndLargestRanges(t *testing.T) {
	c := ipamtest.New(t, &cilium.IPAM, cilium.Nodes, cilium.Endpoints)
	c.Apply(cilium.Nodes, ciliumNode("all", "172.18.0.1", "0.0.0.0/0"))
	c.Apply(cilium.Nodes, ciliumNode("one", "172.18.0.2", "10.0.0.1/32, 'fd00::1/128'"))
	c.Apply(cilium.Endpoints, "metadata: {name: a, namespace: n}\nstatus: {networking: {addressing: [{ipv4: 10.0.0.1, ipv6: 'fd00::1'}, {ipv4: 10.0.0.2, ipv6: 'fd00::2'}]}}")
	const at = " at ciliumendpoints n/a /status/networking/addressing"
	c.Want("each in its range", `
cilium all known 0.0.0.1-255.255.255.254
cilium one known 10.0.0.1-10.0.0.1 fd00::1-fd00::1
10.0.0.2 n/a all`+at+`
10.0.0.1 n/a one`+at+`
fd00::1 n/a one`+at)
}

// Allocations in the status of a node remain while the node cannot be read.
func TestAllocationsInTheStatusOfNodes(t *testing.T) {
	c := ipamtest.New(t, &cilium.IPAM, cilium.Nodes, cilium.Endpoints)
	node := func(pool, used string) string {
		return "metadata: {name: n1}\nspec: {ipam: {pool: " + pool + "}}\nstatus: {ipam: {used: {" + used + "}}}"
	}
	const pool = "{10.0.0.1: {}, 10.0.0.2: {}, 10.0.0.3: {}}"
	c.Apply(cilium.Nodes, node(pool, "10.0.0.2: {owner: n/two}, 10.0.0.1: {owner: n/one}, 10.0.0.3: {owner: n/three}"))
	const at = " n1 at ciliumnodes n1 /status/ipam/used/10.0.0."
	c.Want("three", "cilium n1 known 10.0.0.1-10.0.0.3\n10.0.0.1 n/one"+at+"1\n10.0.0.2 n/two"+at+"2\n10.0.0.3 n/three"+at+"3")
	c.Changes()
	c.Apply(cilium.Nodes, node(pool, "10.0.0.2: {owner: n/other}, 10.0.0.3: {owner: n/three}"))
	const two = "10.0.0.2 n/other" + at + "2\n10.0.0.3 n/three" + at + "3"
	c.Want("one is freed, one has another owner", "cilium n1 known 10.0.0.1-10.0.0.3\n"+two)
	if n := c.Changes(); n != 2 {
		t.Errorf("%d changes, want 2", n)
	}
	c.Apply(cilium.Nodes, node("[]", ""))
	c.Want("the node cannot be read", "cilium n1 unreadable 10.0.0.1-10.0.0.3: CiliumNode n1 is invalid: its spec has an unexpected format: /ipam/pool is a JSON array\n"+two)
	c.Apply(cilium.Nodes, node("{10.0.0.3: {}}", "10.0.0.3: {owner: n/three}"))
	c.Want("it can", "cilium n1 known 10.0.0.3-10.0.0.3\n10.0.0.3 n/three"+at+"3")
	c.Remove(cilium.Nodes, ipam.Key{Name: "n1"})
	c.Want("it is gone", "")
}

// An address that leaves the range of one node belongs to the node of its endpoint, and an address
// that enters a range to the node with the range. Other endpoints are not published again.
func TestRangesThatMoveBetweenNodes(t *testing.T) {
	c := ipamtest.New(t, &cilium.IPAM, cilium.Nodes, cilium.Endpoints)
	c.Apply(cilium.Nodes, ciliumNode("a", "172.18.0.1", "10.0.0.0/24"))
	c.Apply(cilium.Nodes, ciliumNode("b", "172.18.0.2", "10.0.1.0/24"))
	c.Apply(cilium.Endpoints, ipamtest.CiliumEndpoint("n", "one", "x", "10.0.0.1", "172.18.0.2"))
	c.Apply(cilium.Endpoints, ipamtest.CiliumEndpoint("n", "two", "x", "10.0.1.2", "172.18.0.2"))
	const a, b, at = "cilium a known 10.0.0.1-10.0.0.254", "\ncilium b known 10.0.1.1-10.0.1.254", " x b at ciliumendpoints n/"
	const one, two = "\n10.0.0.1 n/one" + at + "one /status/networking/addressing", "\n10.0.1.2 n/two" + at + "two /status/networking/addressing"
	c.Want("both are in a range", a+b+one+two)
	published := func(pool string) bool {
		return c.Allocated(pool, "10.0.0.1", "ciliumendpoints n/one /status/networking/addressing")
	}
	if !published("a") || published("b") {
		t.Error("the address is not in the pool of its range")
	}
	c.Changes()
	c.Apply(cilium.Nodes, ciliumNode("a", "172.18.0.1", "10.0.7.0/24"))
	c.Want("the range is gone", "cilium a known 10.0.7.1-10.0.7.254"+b+one+two)
	if n := c.Changes(); n != 3 || !published("b") {
		t.Errorf("%d changes, want a pool, and the address in another", n)
	}
	c.Apply(cilium.Nodes, ciliumNode("a", "172.18.0.1", "10.0.0.0/24"))
	c.Want("the range is back", a+b+one+two)
	if n := c.Changes(); n != 3 {
		t.Errorf("%d changes, want 3", n)
	}
	c.Apply(cilium.Nodes, ciliumNode("c", "172.18.0.2", "10.0.9.0/24"))
	c.Remove(cilium.Nodes, ipam.Key{Name: "b"})
	c.Want("another node has the address of the first", a+"\ncilium c known 10.0.9.1-10.0.9.254"+strings.Replace(one+two, " x b", " x c", 2))
}

// A CiliumEndpointSlice has copies of endpoints. They count only for pods without a CiliumEndpoint.
func TestEndpointSlices(t *testing.T) {
	c := ipamtest.New(t, &cilium.IPAM, cilium.Nodes, cilium.Slices)
	c.Apply(cilium.Nodes, ciliumNode("a", "172.18.0.1", "10.0.0.0/24"))
	c.Want("no pod has an address", "cilium a reading 10.0.0.1-10.0.0.254")
	c.Apply(cilium.Slices, ipamtest.CiliumEndpointSlice("ces-1", "n", "one 10.0.0.1 172.18.0.1", "two 10.0.1.2 172.18.0.2"))
	const a, b, at = "cilium a known 10.0.0.1-10.0.0.254", "\ncilium b known 10.0.1.1-10.0.1.254", " at ciliumendpointslices ces-"
	const one = "\n10.0.0.1 n/one a" + at + "1 /endpoints of n/one"
	c.Want("two pods, one of them on an unknown node", a+one)
	if al := c.Allocation("a", "10.0.0.1", "ciliumendpointslices ces-1 /endpoints of n/one"); al.Identity != 6704 {
		t.Errorf("got identity %d of %+v, want that of the slice", al.Identity, al)
	}
	c.Apply(cilium.Nodes, ciliumNode("b", "172.18.0.2", "10.0.1.0/24"))
	two := "\n10.0.1.2 n/two b" + at + "1 /endpoints of n/two"
	c.Want("both nodes are known", a+b+one+two)
	c.Changes()
	c.List(cilium.Slices)
	if n := c.Changes(); n != 0 {
		t.Errorf("%d changes of a listing without differences", n)
	}
	// A pod gets a CiliumEndpoint, as with the default mode of the controller.
	c.Apply(cilium.Endpoints, ipamtest.CiliumEndpoint("n", "one", "x", "10.0.0.1", "172.18.0.1"))
	const own = "\n10.0.0.1 n/one x a at ciliumendpoints n/one /status/networking/addressing"
	c.Want("an endpoint of its own", a+b+own+two)
	c.Changes()
	c.Apply(cilium.Slices, ipamtest.CiliumEndpointSlice("ces-1", "n", "one 10.0.0.9 172.18.0.1", "two 10.0.1.3 172.18.0.2"))
	two = strings.Replace(two, "1.2", "1.3", 1)
	c.Want("the copies change", a+b+own+two)
	if n := c.Changes(); n != 2 {
		t.Errorf("%d changes, want 2: the copy of an endpoint is not published", n)
	}
	c.Apply(cilium.Nodes, ciliumNode("b", "172.18.0.2", "10.0.7.0/24"))
	c.Apply(cilium.Nodes, ciliumNode("a", "172.18.0.1", "10.0.0.0/23"))
	c.Want("a range moves", "cilium a known 10.0.0.1-10.0.1.254\ncilium b known 10.0.7.1-10.0.7.254"+own+two)
	if !c.Allocated("a", "10.0.1.3", "ciliumendpointslices ces-1 /endpoints of n/two") {
		t.Error("the copy is not in the pool of its range")
	}
	c.Apply(cilium.Nodes, ciliumNode("a", "172.18.0.1", "10.0.0.0/24"))
	c.Apply(cilium.Nodes, ciliumNode("b", "172.18.0.2", "10.0.1.0/24"))
	c.Remove(cilium.Endpoints, ipam.Key{Namespace: "n", Name: "one"})
	c.Want("without an endpoint of its own", a+b+"\n10.0.0.9 n/one a"+at+"1 /endpoints of n/one"+two)
	// The operator moves a pod to another slice.
	c.Apply(cilium.Slices, ipamtest.CiliumEndpointSlice("ces-2", "n", "one 10.0.0.9 172.18.0.1"))
	const moved = "\n10.0.0.9 n/one a" + at + "2 /endpoints of n/one"
	c.Apply(cilium.Slices, ipamtest.CiliumEndpointSlice("ces-1", "n", "two 10.0.1.3 172.18.0.2"))
	c.Want("in another slice", a+b+moved+two)
	c.Remove(cilium.Slices, ipam.Key{Name: "ces-2"})
	c.Want("a slice is gone", a+b+two)
	c.Apply(cilium.Endpoints, ipamtest.CiliumEndpoint("n", "one", "x", "10.0.0.1", "172.18.0.1"))
	c.Want("an endpoint that was in a slice", a+b+own+two)
	c.Apply(cilium.Slices, "metadata: {name: ces-1}\nnamespace: n\nendpoints: {newer: format}")
	partial := func(pools string) string { return strings.ReplaceAll(pools, " known ", " known partial ") }
	const bad = "cilium CiliumEndpointSlice objects known partial: CiliumEndpointSlice ces-1 is invalid: its endpoints has an unexpected format: / is a JSON object\n"
	c.Want("an unknown format, whose last known endpoints are kept", bad+partial(a+b)+own+two)
	// An endpoint that cannot be read keeps its address, and counts no more than its copy if it had none.
	c.Apply(cilium.Endpoints, "metadata: {name: one, namespace: n}\nstatus: {networking: {addressing: {newer: format}}}")
	const badEndpoint = "cilium CiliumEndpoint objects known partial: CiliumEndpoint n/one is invalid: its status has an unexpected format: /networking/addressing is a JSON object\n"
	c.Want("an endpoint in an unknown format", badEndpoint+bad+partial(a+b)+own+two)
	c.Remove(cilium.Endpoints, ipam.Key{Namespace: "n", Name: "one"})
	c.Apply(cilium.Slices, ipamtest.CiliumEndpointSlice("ces-1", "n", "one 10.0.0.1 172.18.0.1"))
	c.Want("its copy", a+b+one)
	c.Apply(cilium.Endpoints, "metadata: {name: one, namespace: n}\nstatus: {networking: {addressing: {newer: format}}}")
	c.Want("an unreadable endpoint with a copy", badEndpoint+partial(a+b)+one)
	c.Apply(cilium.Endpoints, ipamtest.CiliumEndpoint("n", "one", "x", "10.0.0.1", "172.18.0.1"))
	c.Want("it can be read", a+b+own)
}

// Nodes get parts of the ranges of a CiliumPodIPPool. Version v2 of it has objects in place of strings.
func TestPodIPPools(t *testing.T) {
	c := ipamtest.New(t, &cilium.IPAM, cilium.Nodes, cilium.Endpoints, cilium.Pools)
	c.Apply(cilium.Pools, "metadata: {name: default}\nspec: {ipv4: {cidrs: [10.10.0.0/16, 10.11.0.0/16], maskSize: 24}, ipv6: {cidrs: ['fd00:100::/80'], maskSize: 96}}")
	const pool = "cilium CiliumPodIPPool default reading 10.10.0.0-10.11.255.255 fd00:100::-fd00:100::ffff:ffff:ffff"
	c.Want("a pool", pool)
	if p := c.Pool("CiliumPodIPPool default"); len(p.Ranges) != 0 || len(p.Divided) != 2 {
		t.Errorf("got %+v, want a pool that allocates no address", p)
	}
	c.Apply(cilium.Pools, "metadata: {name: green}\nspec: {ipv4: {cidrs: [{cidr: 10.20.0.0/16, reservedRange: 10.20.0.0-10.20.0.9}], maskSize: 24}}")
	const green = "\ncilium CiliumPodIPPool green reading 10.20.0.0-10.20.255.255"
	c.Want("one of version v2", pool+green)
	c.Apply(cilium.Nodes, ciliumNode("default", "172.18.0.2", "10.10.3.0/24"))
	c.Apply(cilium.Endpoints, ipamtest.CiliumEndpoint("n", "web", "x", "10.10.3.9", "172.18.0.2"))
	const node = "\ncilium default known 10.10.3.1-10.10.3.254\n10.10.3.9 n/web x default at ciliumendpoints n/web /status/networking/addressing"
	c.Want("a node of that name", strings.ReplaceAll(pool+green+node, "reading", "known"))
	for _, spec := range []string{"{ipv4: {cidrs: [nowhere]}}", "{ipv4: {cidrs: {}}}", "{ipv6: 7}", "{ipv4: {cidrs: [7]}}"} {
		c.Apply(cilium.Pools, "metadata: {name: green}\nspec: "+spec)
		if p := c.Pool("CiliumPodIPPool green"); p.State != ipam.Unreadable || p.Problem == "" || len(p.Divided) != 1 || c.Pool("CiliumPodIPPool default").State != ipam.Known {
			t.Errorf("%s: got %+v, want that it alone cannot be read", spec, p)
		}
	}
	c.Remove(cilium.Pools, ipam.Key{Name: "green"})
	c.Want("it is gone", strings.ReplaceAll(pool+node, "reading", "known"))
}

func TestLoadBalancerPools(t *testing.T) {
	c := ipamtest.New(t, &cilium.IPAM, cilium.Nodes, cilium.Balancers)
	pool := func(spec, want string) {
		t.Helper()
		c.Apply(cilium.Balancers, "metadata: {name: blue}\nspec: "+spec)
		c.Want(spec, want)
	}
	const known = "cilium CiliumLoadBalancerIPPool blue known "
	pool("{blocks: [{cidr: 192.0.2.0/28}, {start: 192.0.2.20, stop: 192.0.2.29}, {start: 192.0.2.40}, {cidr: 'fd00::/120'}]}",
		known+"192.0.2.0-192.0.2.15 192.0.2.20-192.0.2.29 192.0.2.40-192.0.2.40 fd00::-fd00::ff")
	if p := c.Pool("CiliumLoadBalancerIPPool blue"); p.Services != ipam.Ingress {
		t.Errorf("got %+v, want a pool of load balancers", p)
	}
	pool("{cidrs: [{cidr: 192.0.2.0/28}]}", known+"192.0.2.0-192.0.2.15") // before 1.15
	pool("{blocks: [{cidr: 192.0.2.8/29}, {cidr: 192.0.2.30/31}, {cidr: 192.0.2.5/32}, {start: 192.0.2.20, stop: 192.0.2.29}], allowFirstLastIPs: 'No'}",
		known+"192.0.2.5-192.0.2.5 192.0.2.9-192.0.2.14 192.0.2.20-192.0.2.31")
	pool("{blocks: [{cidr: 192.0.2.8/29}], allowFirstLastIPs: 'Yes'}", known+"192.0.2.8-192.0.2.15")
	pool("{blocks: [{cidr: 192.0.2.0/28}], disabled: true}", "")
	pool("{blocks: [{start: 192.0.2.9, stop: nowhere}]}",
		`cilium CiliumLoadBalancerIPPool blue unreadable: CiliumLoadBalancerIPPool blue is invalid: "192.0.2.9-nowhere" is not a range`)
}
