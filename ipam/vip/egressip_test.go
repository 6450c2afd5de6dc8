package vip_test

import (
	"testing"

	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/vip"
	"github.com/ipwitness/ipwitness/tests/ipamtest"
)

func TestEgressIP(t *testing.T) {
	c := ipamtest.New(t, &vip.EgressIP, vip.EgressIPs)
	c.Want("nothing", "")
	c.Apply(vip.EgressIPs, "metadata: {name: new}\nspec: {egressIPs: [192.0.2.9]}")
	c.Want("an object that is not assigned yet", "")
	const prod = "metadata: {name: prod}\nspec: {egressIPs: [192.0.2.7, 'fd00::7']}\nstatus: {items: [{node: n1, egressIP: 192.0.2.7}, {node: n2, egressIP: 'fd00::7', newer: 1}]}"
	c.Apply(vip.EgressIPs, prod)
	const seven, other = "192.0.2.7 EgressIP prod n1 at egressips prod /status/items", "\nfd00::7 EgressIP prod n2 at egressips prod /status/items"
	c.Want("two addresses on two nodes", "egressip egressips known\n"+seven+other)
	c.Changes()
	c.Apply(vip.EgressIPs, "metadata: {name: prod}\nstatus: {items: [{node: n3, egressIP: 192.0.2.7}, {node: n2, egressIP: 'fd00::7'}]}")
	c.Want("one of them moves", "egressip egressips known\n192.0.2.7 EgressIP prod n3 at egressips prod /status/items"+other)
	if n := c.Changes(); n != 1 {
		t.Errorf("got %d changes, want 1", n)
	}
	// A malformed object is a problem, and concerns no other object.
	for _, text := range []string{"{items: {}}", "{items: [{node: n1, egressIP: x}]}", "{items: [{egressIP: 192.0.2.8}]}", "7"} {
		c.Apply(vip.EgressIPs, "metadata: {name: bad}\nstatus: "+text)
		if p := c.Pool("egressips"); p.State != ipam.Known || p.Problem == "" || !c.Allocated("egressips", "fd00::7", "egressips prod /status/items") {
			t.Errorf("%s: got %+v, want a known pool with a problem", text, p)
		}
	}
	c.Apply(vip.EgressIPs, "metadata: {name: bad}\nstatus: {items: [{node: n1, egressIP: x}, {node: n1, egressIP: 192.0.2.8}, {node: n2, egressIP: 192.0.2.8}]}")
	if !c.Allocated("egressips", "192.0.2.8", "egressips bad /status/items") {
		t.Error("got no address of an object with one malformed item")
	}
	c.Remove(vip.EgressIPs, ipam.Key{Name: "bad"})
	c.Apply(vip.EgressIPs, prod)
	c.Want("it is as it was", "egressip egressips known\n"+seven+other)
	c.Remove(vip.EgressIPs, ipam.Key{Name: "prod"})
	c.Want("nothing is assigned any more", "")
}
