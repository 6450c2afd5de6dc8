package ovn_test

import (
	"strings"
	"testing"

	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/ovn"
	"github.com/ipwitness/ipwitness/tests/ipamtest"
)

func subnet(name, cidr, more string) string {
	return "metadata: {name: " + name + "}\nspec: {cidrBlock: '" + cidr + "'" + more + "}"
}

func ip(name, spec string) string { return "metadata: {name: " + name + "}\nspec: {" + spec + "}" }

func TestKubeOVN(t *testing.T) {
	c := ipamtest.New(t, &ovn.KubeOVN, ovn.Subnets, ovn.IPs, ovn.VIPs)
	c.Apply(ovn.IPs, ipamtest.KubeOVNIP("web-0", "shop", "10.16.0.5", "n1", ""))
	c.Want("its subnet is not known yet", "")
	c.Apply(ovn.Subnets, ipamtest.KubeOVNSubnet("ovn-default", "10.16.0.0/28"))
	const pool = "kube-ovn ovn-default known 10.16.0.2-10.16.0.8 10.16.0.12-10.16.0.14\n"
	const web = "10.16.0.5 shop/web-0 n1 at ips web-0.shop"
	c.Want("the subnet has the addresses that it does not exclude", pool+web)
	if p := c.Pool("ovn-default"); len(p.Gateways) != 0 || p.Realm != "" || p.Size() != 10 {
		t.Errorf("got %+v, want 10 addresses of the default VPC without the gateway, which is excluded", p)
	}
	if got := c.AllocatedAt("ovn-default", "10.16.0.5", "ips web-0.shop"); got.Unix() != 1673147842 {
		t.Errorf("allocated at %s, want the creation of the object", got)
	}
	c.Changes()
	c.List(ovn.Subnets)
	c.List(ovn.IPs)
	if n := c.Changes(); n != 0 {
		t.Errorf("%d changes of listings without differences", n)
	}

	c.Apply(ovn.IPs, ipamtest.KubeOVNIP("db", "shop", "10.16.0.5", "n2", "VirtualMachine"))
	c.Apply(ovn.VIPs, "metadata: {name: keepalived}\nspec: {subnet: ovn-default}\nstatus: {v4ip: 10.16.0.8}")
	const others = "10.16.0.5 shop/db n2 at ips db.shop\n"
	const vip = "\n10.16.0.8 at vips keepalived"
	c.Want("two objects have one address, and one is for no pod", pool+others+web+vip)
	for location, kept := range map[string]bool{"ips db.shop": true, "ips web-0.shop": false} {
		if al := c.Allocation("ovn-default", "10.16.0.5", location); al.Kept != kept {
			t.Errorf("got %+v, want kept %t", al, kept)
		}
	}
	c.Remove(ovn.IPs, ipam.Key{Name: "db.shop"})
	c.Remove(ovn.VIPs, ipam.Key{Name: "keepalived"})
	c.Apply(ovn.IPs, ip("web-0.shop", "podName: web-0, namespace: shop, subnet: ovn-default, nodeName: n1, v4IpAddress: 10.16.0.6, v6IpAddress: 'fd00::6'"))
	c.Want("the pod has other addresses", pool+"10.16.0.6 shop/web-0 n1 at ips web-0.shop\nfd00::6 shop/web-0 n1 at ips web-0.shop")
	c.Remove(ovn.Subnets, ipam.Key{Name: "ovn-default"})
	c.Want("the subnet is gone", "")
	c.Apply(ovn.Subnets, ipamtest.KubeOVNSubnet("ovn-default", "10.16.0.0/28"))
	c.Want("it is back", pool+"10.16.0.6 shop/web-0 n1 at ips web-0.shop\nfd00::6 shop/web-0 n1 at ips web-0.shop")
}

// Addresses of nodes and of the interconnection with the underlay belong to no pod. The addresses of
// pods of StatefulSets, and those that a person has reserved, are kept.
func TestPurposesOfAddresses(t *testing.T) {
	c := ipamtest.New(t, &ovn.KubeOVN, ovn.Subnets, ovn.IPs)
	c.Apply(ovn.Subnets, subnet("join", "100.64.0.0/16", ", gateway: 100.64.0.1, provider: ovn, vpc: ovn-cluster"))
	c.Apply(ovn.IPs, ip("node-n1", "podName: n1, namespace: '', subnet: join, nodeName: n1, ipAddress: '100.64.0.2,fd00::2'"))
	c.Apply(ovn.IPs, ip("u2o-interconnection.ovn-cluster.join", "podName: u2o-interconnection.ovn-cluster.join, namespace: '', subnet: join, v4IpAddress: 100.64.0.9"))
	c.Apply(ovn.IPs, ip("db-0.shop", "podName: db-0, namespace: shop, podType: StatefulSet, subnet: join, v4IpAddress: 100.64.0.7"))
	c.Apply(ovn.IPs, "metadata: {name: new.shop, labels: {ovn.kubernetes.io/ip_reserved: 'true'}}\nspec: {podName: new, namespace: shop, subnet: join, v4IpAddress: 100.64.0.8}")
	c.Apply(ovn.IPs, ip("none.shop", "podName: none, namespace: shop, subnet: join"))
	c.Want("each", `
kube-ovn join known 100.64.0.1-100.64.255.254
100.64.0.2 Kube-OVN's join address n1 at ips node-n1
100.64.0.7 shop/db-0 at ips db-0.shop
100.64.0.8 shop/new at ips new.shop
100.64.0.9 Kube-OVN's underlay interconnection at ips u2o-interconnection.ovn-cluster.join
fd00::2 Kube-OVN's join address n1 at ips node-n1`)
	if p := c.Pool("join"); len(p.Gateways) != 1 {
		t.Errorf("got %+v, want the gateway, which is not excluded", p)
	}
	for _, name := range []string{"db-0", "new"} {
		if al := c.Allocation("join", map[string]string{"db-0": "100.64.0.7", "new": "100.64.0.8"}[name], "ips "+name+".shop"); !al.Kept {
			t.Errorf("got %+v, want that it is kept", al)
		}
	}
}

// Subnets of different VPCs, and of providers that are not OVN, may have one range.
func TestTenantsOfKubeOVN(t *testing.T) {
	c := ipamtest.New(t, &ovn.KubeOVN, ovn.Subnets, ovn.IPs)
	for name, more := range map[string]string{
		"a": "", "b": ", vpc: ovn-cluster, provider: ovn", "c": ", vpc: blue", "d": ", provider: net.shop.ovn, vpc: ovn-cluster", "e": ", provider: lan.shop",
		"f": ", vlan: v7, vpc: ovn-cluster", "g": ", vlan: v7, vpc: ovn-cluster, logicalGateway: true", "h": ", vlan: v7, vpc: blue, u2oInterconnection: true",
	} {
		c.Apply(ovn.Subnets, subnet(name, "10.0.0.0/24", more))
	}
	for name, want := range map[string]string{
		"a": "", "b": "", "c": "vpc/blue", "d": "", "e": "lan.shop", "f": "subnet/f", "g": "", "h": "vpc/blue",
	} {
		if p := c.Pool(name); p.Realm != want {
			t.Errorf("subnet %s: got realm %q, want %q", name, p.Realm, want)
		}
	}
}

// An object that cannot be read is a problem of its subnet alone.
func TestInvalidObjectsOfKubeOVN(t *testing.T) {
	c := ipamtest.New(t, &ovn.KubeOVN, ovn.Subnets, ovn.IPs)
	c.Apply(ovn.Subnets, subnet("good", "10.0.1.0/29", ""))
	c.Apply(ovn.Subnets, subnet("bad", "10.0.2.0/29", ""))
	c.Apply(ovn.IPs, ip("a.n", "podName: a, namespace: n, subnet: bad, v4IpAddress: 10.0.2.3"))
	const good = "kube-ovn good known 10.0.1.1-10.0.1.6"
	const a = "\n10.0.2.3 n/a at ips a.n"
	c.Want("both are known", "kube-ovn bad known 10.0.2.1-10.0.2.6\n"+good+a)
	c.Apply(ovn.IPs, ip("b.n", "podName: b, namespace: n, subnet: bad, v4IpAddress: somewhere"))
	c.Want("an IP is invalid", `kube-ovn bad known 10.0.2.1-10.0.2.6: IP b.n of Kube-OVN is invalid: "somewhere" is not an address`+"\n"+good+a)
	c.Apply(ovn.IPs, ip("b.n", "podName: b, namespace: n, subnet: good, v4IpAddress: 10.0.1.3"))
	c.Want("it is corrected", "kube-ovn bad known 10.0.2.1-10.0.2.6\n"+good+a+"\n10.0.1.3 n/b at ips b.n")
	for spec, problem := range map[string]string{
		"[]":                     "unreadable 10.0.2.1-10.0.2.6: Subnet bad of Kube-OVN is invalid: its spec has an unexpected format: / is a JSON array",
		"{cidrBlock: somewhere}": `unreadable 10.0.2.1-10.0.2.6: Subnet bad of Kube-OVN is invalid: "somewhere" in its cidrBlock is not a CIDR`,
		"{cidrBlock: 10.0.2.0/29, excludeIps: [x]}": `known 10.0.2.1-10.0.2.6: Subnet bad of Kube-OVN is invalid: its excludeIps: "x" is neither an address nor a range`,
	} {
		c.Apply(ovn.Subnets, "metadata: {name: bad}\nspec: "+spec)
		c.Want(spec, "kube-ovn bad "+problem+"\n"+good+a+"\n10.0.1.3 n/b at ips b.n")
	}
	c.Apply(ovn.IPs, "metadata: {name: c.n}\nspec: []")
	c.Apply(ovn.Subnets, strings.Replace(subnet("bad", "10.0.2.0/29", ""), "10.0.2.0/29", "", 1))
	c.Want("a subnet without addresses, and an IP without a subnet",
		"kube-ovn IP objects known partial: IP c.n of Kube-OVN is invalid: its spec has an unexpected format: / is a JSON array\nkube-ovn bad known partial\n"+strings.Replace(good, " known ", " known partial ", 1)+a+"\n10.0.1.3 n/b at ips b.n")
}

// The label of an IP object names its subnet, if the object cannot be read.
func TestUnreadableIPsOfKubeOVN(t *testing.T) {
	c := ipamtest.New(t, &ovn.KubeOVN, ovn.Subnets, ovn.IPs)
	c.Apply(ovn.Subnets, ipamtest.KubeOVNSubnet("ovn-default", "10.16.0.0/28"))
	c.Apply(ovn.Subnets, ipamtest.KubeOVNSubnet("other", "10.17.0.0/28"))
	c.Apply(ovn.IPs, ipamtest.KubeOVNIP("a", "n", "10.16.0.5", "n1", ""))
	const a = "\n10.16.0.5 n/a n1 at ips a.n"
	const other, rest = "kube-ovn other known 10.17.0.1-10.17.0.14\n", "10.16.0.2-10.16.0.8 10.16.0.12-10.16.0.14"
	const labelled = "labels: {ovn.kubernetes.io/subnet: ovn-default}"
	c.Apply(ovn.IPs, "metadata: {name: b.n, "+labelled+"}\nspec: {v4IpAddress: [10.16.0.6]}")
	const problem = " of Kube-OVN is invalid: its spec has an unexpected format: /v4IpAddress is a JSON array"
	c.Want("its address is not known", other+"kube-ovn ovn-default unreadable "+rest+": IP b.n"+problem+a)
	c.Remove(ovn.IPs, ipam.Key{Name: "b.n"})
	c.Apply(ovn.IPs, "metadata: {name: a.n, "+labelled+"}\nspec: {v4IpAddress: [10.16.0.6]}")
	c.Want("the last known address is kept", other+"kube-ovn ovn-default known "+rest+": IP a.n"+problem+a)
	c.Apply(ovn.IPs, ipamtest.KubeOVNIP("a", "n", "10.16.0.6", "n1", ""))
	c.Want("it can be read", other+"kube-ovn ovn-default known "+rest+strings.Replace(a, "0.5", "0.6", 1))
}
