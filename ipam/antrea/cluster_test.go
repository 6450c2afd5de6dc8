package antrea_test

import (
	"strings"
	"testing"

	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/antrea"
	"github.com/ipwitness/ipwitness/tests/ipamtest"
)

func TestAntrea(t *testing.T) {
	c := ipamtest.New(t, &antrea.IPAM, antrea.Pools)
	c.Apply(antrea.Pools, ipamtest.AntreaPool)
	const pool = "antrea pool1 known 192.168.240.130-192.168.240.140 192.168.241.1-192.168.241.14"
	const at = " at ippools pool1 /status/ipAddresses of shop/"
	const first = "\n192.168.240.130 shop/db-0" + at + "db-0"
	const others = "\n192.168.240.131 shop/db-1 0d1e2f3a4b5c eth1" + at + "db-1" +
		"\n192.168.240.132 shop/standalone c61f4b067978fbcc5f2197e328f8ed8319d8a4f5d19a16f4e8227c56f8b57373" + at + "standalone"
	c.Want("all is listed", pool+first+others)
	for pod, kept := range map[string]string{"db-0": "192.168.240.130", "db-1": "192.168.240.131", "standalone": ""} {
		if al := c.Allocation("pool1", kept, "ippools pool1 /status/ipAddresses of shop/"+pod); al.Kept != (kept != "") {
			t.Errorf("%s: got %+v, want that addresses of a StatefulSet are kept", pod, al)
		}
	}
	if p := c.Pool("pool1"); !p.Asked || p.Realm != "" || p.Size() != 25 {
		t.Errorf("got %+v, want 25 addresses for pods that ask for them", p)
	}
	c.Changes()
	c.List(antrea.Pools)
	if n := c.Changes(); n != 0 {
		t.Errorf("%d changes of a listing without differences", n)
	}
	c.Apply(antrea.Pools, strings.Replace(ipamtest.AntreaPool, "ipAddress: 192.168.240.130", "ipAddress: 192.168.240.133", 1))
	c.Want("an address moves", pool+others+"\n192.168.240.133 shop/db-0"+at+"db-0")
	if n := c.Changes(); n != 2 {
		t.Errorf("%d changes, want 2", n)
	}
	c.Apply(antrea.Pools, strings.Replace(ipamtest.AntreaPool, "prefixLength: 23", "prefixLength: 23, vlan: 7", 1))
	if p := c.Pool("pool1"); p.Realm != "vlan 7" {
		t.Errorf("got %+v, want its VLAN", p)
	}
	c.Apply(antrea.Pools, strings.Replace(ipamtest.AntreaPool, "192.168.240.132", "192.168.240.131", 1))
	c.Want("one address has two pods", pool+first+"\n192.168.240.131 shop/db-1 0d1e2f3a4b5c eth1"+at+"db-1"+
		"\n192.168.240.131 shop/standalone c61f4b067978fbcc5f2197e328f8ed8319d8a4f5d19a16f4e8227c56f8b57373"+at+"standalone")
	c.Remove(antrea.Pools, ipam.Key{Name: "pool1"})
	c.Want("it is gone", "")
}

// A pool that cannot be read keeps its allocations, and no other pool is affected.
func TestInvalidPoolsOfAntrea(t *testing.T) {
	c := ipamtest.New(t, &antrea.IPAM, antrea.Pools)
	pool := func(name, spec, status string) {
		c.Apply(antrea.Pools, "metadata: {name: "+name+"}\nspec: "+spec+"\nstatus: "+status)
	}
	const spec = "{ipRanges: [{cidr: 10.0.0.0/29}], subnetInfo: {gateway: 10.0.0.1}}"
	const status = "{ipAddresses: [{ipAddress: 10.0.0.3, owner: {pod: {name: p, namespace: n}}}]}"
	pool("a", spec, status)
	pool("b", strings.ReplaceAll(spec, "10.0.0", "10.0.1"), "{}")
	const p, b = "\n10.0.0.3 n/p at ippools a /status/ipAddresses of n/p", "\nantrea b known 10.0.1.1-10.0.1.6"
	c.Want("both are known", "antrea a known 10.0.0.1-10.0.0.6"+b+p)
	for _, test := range []struct{ spec, status, want string }{
		{"[]", status, "unreadable 10.0.0.1-10.0.0.6: IPPool a of Antrea is invalid: its spec has an unexpected format: / is a JSON array"},
		{spec, "{ipAddresses: {}}", "unreadable 10.0.0.1-10.0.0.6: IPPool a of Antrea is invalid: its status has an unexpected format: /ipAddresses is a JSON object"},
		{"{ipRanges: [{start: 10.0.0.9}]}", status, `unreadable 10.0.0.1-10.0.0.6: IPPool a of Antrea is invalid: its ipRanges: "10.0.0.9-" is not a range`},
		{spec, strings.Replace(status, "[", "[{ipAddress: x}, ", 1), `known 10.0.0.1-10.0.0.6: IPPool a of Antrea is invalid: "x" in /status/ipAddresses is not an address`},
		{spec, status, "known 10.0.0.1-10.0.0.6"},
	} {
		pool("a", test.spec, test.status)
		c.Want(test.want, "antrea a "+test.want+b+p)
	}
	pool("c", "[]", "{}")
	c.Want("a pool that was never readable", "antrea a known 10.0.0.1-10.0.0.6"+b+"\nantrea c unreadable: IPPool c of Antrea is invalid: its spec has an unexpected format: / is a JSON array"+p)
}
