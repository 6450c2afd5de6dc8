package vip_test

import (
	"net/netip"
	"testing"

	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/vip"
	"github.com/ipwitness/ipwitness/tests/ipamtest"
)

// statusOf returns a ServiceL2Status as a speaker of MetalLB 0.15 writes it.
func statusOf(name, node, service string) string {
	return "metadata: {namespace: metallb-system, name: " + name + "}\nspec: {}\nstatus: {node: " + node + ", serviceName: " + service + ", serviceNamespace: shop, interfaces: [{name: eth0}]}"
}

func TestMetalLB(t *testing.T) {
	c := ipamtest.New(t, &vip.MetalLB, vip.ServiceL2Statuses)
	web, four, six := ipam.Key{Namespace: "shop", Name: "web"}, netip.MustParseAddr("192.0.2.7"), netip.MustParseAddr("fd00::7")
	c.SetService(web, four)
	c.Want("a Service that nothing announces, as in BGP mode", "")
	c.Apply(vip.ServiceL2Statuses, "metadata: {namespace: metallb-system, name: l2-a}")
	c.Want("a status that is not filled in yet", "")
	c.Apply(vip.ServiceL2Statuses, statusOf("l2-a", "n1", "web"))
	const a = "192.0.2.7 Service shop/web n1 at servicel2statuses metallb-system/l2-a /status/node"
	c.Want("a speaker announces it", "metallb services known\n"+a)
	c.SetService(web, four, six)
	c.Want("it has two addresses", "metallb services known\n"+a+"\nfd00::7 Service shop/web n1 at servicel2statuses metallb-system/l2-a /status/node")
	c.SetService(web, four)
	c.Apply(vip.ServiceL2Statuses, statusOf("l2-b", "n2", "web"))
	const b = "\n192.0.2.7 Service shop/web n2 at servicel2statuses metallb-system/l2-b /status/node"
	c.Want("another speaker takes over", "metallb services known\n"+a+b)
	c.Remove(vip.ServiceL2Statuses, ipam.Key{Namespace: "metallb-system", Name: "l2-a"})
	c.Want("it has taken over", "metallb services known"+b)
	c.SetService(web)
	c.Want("the Service has no address", "")
	c.SetService(web, four)
	c.Want("it has it again", "metallb services known"+b)
	// A malformed object is a problem, and concerns no other object.
	for _, status := range []string{"7", "{node: [n1]}", "{node: n1}", "{node: n1, serviceName: web}"} {
		c.Apply(vip.ServiceL2Statuses, "metadata: {namespace: metallb-system, name: bad}\nstatus: "+status)
		if p := c.Pool("services"); p.State != ipam.Known || p.Problem == "" || !c.Allocated("services", "192.0.2.7", "servicel2statuses metallb-system/l2-b /status/node") {
			t.Errorf("%s: got %+v, want a known pool with a problem", status, p)
		}
	}
	c.Apply(vip.ServiceL2Statuses, "metadata: {namespace: metallb-system, name: bad}\nstatus: {newer: 1}")
	c.Want("the problem is over", "metallb services known"+b)
	c.Remove(vip.ServiceL2Statuses, ipam.Key{Namespace: "metallb-system", Name: "l2-b"})
	c.Want("nothing is announced any more", "")
}

func TestIPAddressPools(t *testing.T) {
	c := ipamtest.New(t, &vip.MetalLB, vip.IPAddressPools)
	c.Apply(vip.IPAddressPools, "metadata: {namespace: metallb-system, name: first}\nspec: {addresses: [192.0.2.16/30, 192.0.2.20 - 192.0.2.29, 'fd00::/120'], autoAssign: false}")
	const first = "metallb IPAddressPool metallb-system/first known 192.0.2.16-192.0.2.29 fd00::-fd00::ff"
	c.Want("a pool, without speakers in layer 2 mode", first)
	if p := c.Pool("IPAddressPool metallb-system/first"); p.Services != ipam.Ingress || p.Config != "ipaddresspools metallb-system/first" {
		t.Errorf("got %+v, want a pool of load balancers", p)
	}
	c.Apply(vip.IPAddressPools, "metadata: {namespace: metallb-system, name: second}\nspec: {addresses: [198.51.100.0/23, 'fd00:1::/120'], avoidBuggyIPs: true}")
	const second = "metallb IPAddressPool metallb-system/second known 198.51.100.1-198.51.100.254 198.51.101.1-198.51.101.254 fd00:1::-fd00:1::ff"
	c.Want("a pool that avoids addresses with 0 and 255", first+"\n"+second)
	c.Remove(vip.IPAddressPools, ipam.Key{Namespace: "metallb-system", Name: "second"})
	for _, spec := range []string{"{addresses: [nowhere]}", "{addresses: 7}", "{addresses: [192.0.2.9-192.0.2.1]}"} {
		c.Apply(vip.IPAddressPools, "metadata: {namespace: metallb-system, name: bad}\nspec: "+spec)
		if p := c.Pool("IPAddressPool metallb-system/bad"); p.State != ipam.Unreadable || p.Problem == "" {
			t.Errorf("%s: got %+v, want an unreadable pool", spec, p)
		}
	}
	c.Remove(vip.IPAddressPools, ipam.Key{Namespace: "metallb-system", Name: "bad"})
	c.Want("the other one is as before", first)
}
