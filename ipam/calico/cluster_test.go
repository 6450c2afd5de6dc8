package calico_test

import (
	"strings"
	"testing"
	"time"

	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/calico"
	"github.com/ipwitness/ipwitness/tests/ipamtest"
)

func TestCalico(t *testing.T) {
	c := ipamtest.New(t, &calico.IPAM, calico.Pools, calico.Blocks, calico.Affinities)
	c.Apply(calico.Pools, ipamtest.CalicoPool)
	c.Apply(calico.Blocks, ipamtest.CalicoBlock("192-168-0-192-26", "192.168.0.192/26", ipamtest.CalicoTunnel, ipamtest.CalicoPod("nginx", "node1", ipamtest.ContainerID), "",
		`{handle_id: windows-reserved-ipam-handle, secondary: {note: windows host rsvd}}`,
		`{handle_id: k8s-pod-network.default-vm, secondary: {namespace: default, node: node2, pod: virt-launcher-vm}}`,
		`{handle_id: lb-1, secondary: {namespace: default, service: web, type: loadBalancer}}`))
	const (
		pool   = "calico default-ipv4-ippool known 192.168.0.0-192.168.255.255"
		tunnel = "192.168.0.192 VXLAN tunnel node1 at ipamblocks 192-168-0-192-26 /spec/allocations/0"
		nginx  = "192.168.0.193 default/nginx " + ipamtest.ContainerID + " node1 at ipamblocks 192-168-0-192-26 /spec/allocations/1"
		rest   = `
192.168.0.196 default/virt-launcher-vm node2 at ipamblocks 192-168-0-192-26 /spec/allocations/4
192.168.0.197 load balancer of Service default/web at ipamblocks 192-168-0-192-26 /spec/allocations/5`
	)
	c.Want("all is listed", pool+"\n"+tunnel+"\n"+nginx+rest)
	at := c.AllocatedAt("default-ipv4-ippool", "192.168.0.193", "ipamblocks 192-168-0-192-26 /spec/allocations/1")
	if got := at.UTC().Format(time.RFC3339); got != "2023-09-26T17:11:53Z" {
		t.Errorf("got %s", got)
	}
	if p := c.Pool("default-ipv4-ippool"); p.Plugin != "calico" || !p.Routed || p.Config != "ippools default-ipv4-ippool" {
		t.Errorf("got %+v", p)
	}
	c.Changes()

	// Only changed allocations are published, even if the attribute indexes change.
	c.Apply(calico.Blocks, ipamtest.CalicoBlock("192-168-0-192-26", "192.168.0.192/26", ipamtest.CalicoTunnel, ipamtest.CalicoPod("nginx", "node2", ipamtest.ContainerID)))
	c.Want("one owner changes, two are freed", pool+"\n"+tunnel+"\n"+strings.Replace(nginx, "node1", "node2", 1))
	if n := c.Changes(); n != 3 {
		t.Errorf("%d changes, want 3", n)
	}
	// A listing without differences publishes nothing.
	c.List(calico.Blocks)
	if n := c.Changes(); n != 0 {
		t.Errorf("%d changes, want none", n)
	}

	// A block without an IPPool is its own pool until there is an IPPool for it.
	c.Apply(calico.Blocks, ipamtest.CalicoBlock("10-0-0-0-26", "10.0.0.0/26", ipamtest.CalicoPod("other", "node1", "abcdef012345")))
	two := pool + "\n" + tunnel + "\n" + strings.Replace(nginx, "node1", "node2", 1)
	c.Want("a block has no pool", "calico 10.0.0.0/26 known\n"+pool+"\n10.0.0.0 default/other abcdef012345 node1 at ipamblocks 10-0-0-0-26 /spec/allocations/0\n"+
		tunnel+"\n"+strings.Replace(nginx, "node1", "node2", 1))
	if p := c.Pool("10.0.0.0/26"); p.Config != "" {
		t.Errorf("got %+v, want no configuration", p)
	}
	c.Changes()
	// An IPPool without blocks publishes no allocation again.
	c.Apply(calico.Pools, "metadata: {name: second}\nspec: {cidr: 172.16.0.0/12}")
	if n := c.Changes(); n != 1 {
		t.Errorf("%d changes, want 1", n)
	}
	c.Apply(calico.Pools, "metadata: {name: second}\nspec: {cidr: 10.0.0.0/8, disabled: true}")
	c.Want("it gets one, which allocates nothing", pool+"\ncalico second known\n"+tunnel+"\n"+strings.Replace(nginx, "node1", "node2", 1)+
		"\n10.0.0.0 default/other abcdef012345 node1 at ipamblocks 10-0-0-0-26 /spec/allocations/0")
	c.Remove(calico.Pools, ipam.Key{Name: "second"})
	c.Remove(calico.Blocks, ipam.Key{Name: "10-0-0-0-26"})
	c.Want("both are gone", two)

	// A block that is marked as deleted counts as deleted.
	c.Apply(calico.Blocks, strings.Replace(ipamtest.CalicoBlock("192-168-0-192-26", "192.168.0.192/26", ipamtest.CalicoTunnel), "deleted: false", "deleted: true", 1))
	c.Want("the block is gone", pool)
}

// An IPReservation excludes addresses from a pool. They are allocated only on request.
func TestReservationsOfCalico(t *testing.T) {
	c := ipamtest.New(t, &calico.IPAM, calico.Pools, calico.Blocks, calico.Reservations)
	c.Apply(calico.Pools, ipamtest.CalicoPool)
	c.Apply(calico.Blocks, ipamtest.CalicoBlock("192-168-0-0-26", "192.168.0.0/26", ipamtest.CalicoPod("asked", "node1", ipamtest.ContainerID)))
	c.Apply(calico.Reservations, "metadata: {name: edge}\nspec: {reservedCIDRs: [192.168.0.0/24, 192.168.255.255, fd00::/64, nonsense]}")
	const asked = "\n192.168.0.0 default/asked " + ipamtest.ContainerID + " node1 at ipamblocks 192-168-0-0-26 /spec/allocations/0"
	const bad = "calico IPReservation objects known: IPReservation edge of Calico is invalid: \"nonsense\" is neither a CIDR nor an address\n"
	c.Want("some are reserved", bad+"calico default-ipv4-ippool known 192.168.1.0-192.168.255.254"+asked)
	c.Apply(calico.Reservations, "metadata: {name: middle}\nspec: {reservedCIDRs: [192.168.128.0/17, 192.168.2.0/32]}")
	c.Want("more are", bad+"calico default-ipv4-ippool known 192.168.1.0-192.168.1.255 192.168.2.1-192.168.127.255"+asked)
	c.Apply(calico.Reservations, "metadata: {name: edge}\nspec: {}")
	c.Remove(calico.Reservations, ipam.Key{Name: "middle"})
	c.Want("none is", "calico default-ipv4-ippool known 192.168.0.0-192.168.255.255"+asked)
}

func TestInvalidCalicoObjects(t *testing.T) {
	c := ipamtest.New(t, &calico.IPAM, calico.Pools, calico.Blocks, calico.Affinities)
	c.Apply(calico.Pools, "metadata: {name: pool1}\nspec: {cidr: 10.0.0.0/8}")
	// Indexes of missing attributes, and more allocations than addresses.
	c.Apply(calico.Blocks, "metadata: {name: 10-0-0-0-30}\nspec: {cidr: 10.0.0.0/30, attributes: [], allocations: [null, 7, null, null]}")
	const one = "\n10.0.0.1 at ipamblocks 10-0-0-0-30 /spec/allocations/1"
	c.Want("missing attributes", "calico pool1 known 10.0.0.0-10.255.255.255: IPAMBlock 10-0-0-0-30 of Calico is invalid: "+
		"/spec/allocations/1 refers to attributes 7 of 0: the owner of that address is unknown; check it with `calicoctl ipam check`"+one)
	c.Apply(calico.Blocks, "metadata: {name: 10-0-0-0-30}\nspec: {cidr: 10.0.0.0/30, attributes: [{}], allocations: [null, 0, null, null, 0]}")
	c.Want("more allocations than addresses", "calico pool1 known 10.0.0.0-10.255.255.255: IPAMBlock 10-0-0-0-30 of Calico is invalid: "+
		"it has 4 addresses, and /spec/allocations has 5; check it with `calicoctl ipam check`"+one)
	// If an object cannot be read, the previous state remains but counts as unreliable.
	c.Apply(calico.Blocks, "metadata: {name: 10-0-0-0-30}\nspec: {cidr: 10.0.0.0/30, allocations: {}}")
	c.Want("another kind of list", "calico pool1 unreadable 10.0.0.0-10.255.255.255: IPAMBlock 10-0-0-0-30 of Calico is invalid: "+
		"its spec has an unexpected format: /allocations is a JSON object; check it with `calicoctl ipam check`"+one)
	c.Apply(calico.Blocks, "metadata: {name: 10-0-0-0-30}\nspec: {cidr: 10.0.0.0/30, attributes: [{handle_id: k8s-pod-network.abc}], allocations: [null, 0, null, null]}")
	c.Want("a valid block", "calico pool1 known 10.0.0.0-10.255.255.255"+one)

	c.Apply(calico.Blocks, "metadata: {name: 10-0-0-4-30}\nspec: []")
	const known, format = "calico pool1 known 10.0.0.0-10.255.255.255", "its spec has an unexpected format: / is a JSON array; check it with `calicoctl ipam check`"
	c.Check()
	c.Check()
	c.Want("another block cannot be read", "calico pool1 unreadable 10.0.0.0-10.255.255.255: IPAMBlock 10-0-0-4-30 of Calico is invalid: "+format+one)
	c.Apply(calico.Blocks, "metadata: {name: 10-0-0-8-30}\nspec: []")
	c.Remove(calico.Blocks, ipam.Key{Name: "10-0-0-4-30"})
	c.Want("one of two is gone", "calico pool1 unreadable 10.0.0.0-10.255.255.255: IPAMBlock 10-0-0-8-30 of Calico is invalid: "+format+one)
	c.Remove(calico.Blocks, ipam.Key{Name: "10-0-0-8-30"})
	c.Want("both are gone", known+one)
	c.Apply(calico.Blocks, "metadata: {name: odd}\nspec: []")
	c.Want("a block without a range", "calico odd unreadable: IPAMBlock odd of Calico is invalid: "+format+"\n"+known+one)
	c.Remove(calico.Blocks, ipam.Key{Name: "odd"})
	affinities := c.Resource(calico.Affinities)
	affinities.Followed = false
	c.Check()
	c.Check()
	c.Want("affinities are not known", known+one)

	// A block of a node that does not exist.
	c.Nodes = []string{"n2"}
	c.Apply(calico.Affinities, "metadata: {name: n1-10-0-0-0-30}\nspec: {cidr: 10.0.0.0/30, deleted: \"false\", node: n1, state: confirmed}")
	c.Check()
	c.Check()
	c.Want("affinities are still not known", known+one)
	affinities.Followed, c.Nodes = true, nil
	c.Check()
	c.Check()
	c.Want("the nodes are not known", "calico pool1 known 10.0.0.0-10.255.255.255"+one)
	c.Nodes = []string{"n2"}
	for _, block := range []string{"4", "8", "12", "16"} { // a pool has one problem at a time
		c.Apply(calico.Affinities, "metadata: {name: n1-10-0-0-"+block+"-30}\nspec: {cidr: 10.0.0."+block+"/30, node: n1}")
	}
	c.Check()
	c.Check()
	c.Want("a node is missing", "calico pool1 known 10.0.0.0-10.255.255.255: the block 10.0.0.0/30 of Calico is bound to node n1, which does not exist: "+
		"`calicoctl ipam check` lists such blocks, and Calico's kube-controllers should free them"+one)
	c.Nodes = []string{"n1", "n2"}
	c.Check()
	c.Want("it is there", "calico pool1 known 10.0.0.0-10.255.255.255"+one)
}

// Blocks move between pools with their allocations, and wait until pools and reservations are known.
func TestBlocksThatMoveBetweenPools(t *testing.T) {
	c := ipamtest.New(t, &calico.IPAM, calico.Pools, calico.Blocks)
	reservations := c.Resource(calico.Reservations)
	reservations.Decided = false
	const block, tunnel = "calico 10.1.0.0/26 known", "\n10.1.0.0 VXLAN tunnel node1 at ipamblocks 10-1-0-0-26 /spec/allocations/0"
	c.Apply(calico.Blocks, ipamtest.CalicoBlock("10-1-0-0-26", "10.1.0.0/26", ipamtest.CalicoTunnel))
	c.Want("reservations are being read", "")
	reservations.Decided = true
	c.Settle()
	c.Want("there is no pool", block+tunnel)
	c.Remove(calico.Blocks, ipam.Key{Name: "10-1-0-0-26"})
	c.Want("the block is gone", "")
	reservations.Decided = false
	c.Apply(calico.Blocks, ipamtest.CalicoBlock("10-1-0-0-26", "10.1.0.0/26", ipamtest.CalicoTunnel))
	c.Apply(calico.Pools, "metadata: {name: all}\nspec: {cidr: 10.0.0.0/8}")
	c.Want("reservations are being read again", "")
	reservations.Decided = true
	c.Settle()
	c.Want("they are not installed", "calico all known 10.0.0.0-10.255.255.255"+tunnel)
	c.Apply(calico.Pools, "metadata: {name: one}\nspec: {cidr: 10.1.0.0/16}")
	c.Want("a more specific pool", "calico all known 10.0.0.0-10.255.255.255\ncalico one known 10.1.0.0-10.1.255.255"+tunnel)
	for _, cidr := range []string{"10.0.0.0/10", "10.0.0.0/12", "10.0.0.0/14", "10.1.0.0/26", "10.1.0.0/27"} {
		c.Apply(calico.Pools, "metadata: {name: temporary-"+cidr[len(cidr)-2:]+"}\nspec: {cidr: "+cidr+", disabled: true}")
	}
	if !c.Allocated("temporary-26", "10.1.0.0", "ipamblocks 10-1-0-0-26 /spec/allocations/0") {
		t.Error("the block is not in the smallest pool that contains all of it")
	}
	for _, bits := range []string{"10", "12", "14", "26", "27"} {
		c.Remove(calico.Pools, ipam.Key{Name: "temporary-" + bits})
	}
	c.Remove(calico.Pools, ipam.Key{Name: "all"})
	c.Want("the other pool is gone", "calico one known 10.1.0.0-10.1.255.255"+tunnel)
	c.Apply(calico.Pools, "metadata: {name: one}\nspec: {cidr: nowhere}")
	c.Want("the pool cannot be read", "calico 10.1.0.0/26 known\ncalico one unreadable 10.1.0.0-10.1.255.255: IPPool one of Calico is invalid: its cidr \"nowhere\" is not a CIDR"+tunnel)
	c.Apply(calico.Blocks, ipamtest.CalicoBlock("10-1-0-0-26", "10.1.0.64/26", ipamtest.CalicoTunnel))
	c.Remove(calico.Pools, ipam.Key{Name: "one"})
	c.Want("the block has another range", "calico 10.1.0.64/26 known\n10.1.0.64 VXLAN tunnel node1 at ipamblocks 10-1-0-0-26 /spec/allocations/0")
	c.Remove(calico.Blocks, ipam.Key{Name: "10-1-0-0-26"})
	c.Want("nothing is left", "")
}

func TestRangesOfLoadBalancers(t *testing.T) {
	c := ipamtest.New(t, &calico.IPAM, calico.Pools, calico.Blocks, calico.Reservations, calico.Advertised)
	services := func(name string, want ipam.ServiceField, ranges int) {
		t.Helper()
		if p := c.Pool(name); p == nil || p.Services != want || len(p.Ranges) != ranges {
			t.Errorf("%s: got %+v, want field %q and %d ranges", name, p, want, ranges)
		}
	}
	c.Apply(calico.Advertised, "metadata: {name: default}\nspec: {serviceLoadBalancerIPs: [{cidr: 192.0.2.0/28}, {cidr: 'fd00::/120'}], serviceClusterIPs: [{cidr: 10.96.0.0/12}]}")
	c.Apply(calico.Pools, "metadata: {name: balancers}\nspec: {cidr: 198.51.100.0/24, allowedUses: [LoadBalancer]}")
	c.Apply(calico.Pools, "metadata: {name: pods}\nspec: {cidr: 10.244.0.0/16, allowedUses: [Workload, Tunnel]}")
	services("BGPConfiguration default", ipam.Ingress, 2)
	services("balancers", ipam.Ingress, 1)
	services("pods", "", 1)
	c.Apply(calico.Advertised, "metadata: {name: default}\nspec: {}")
	if p := c.Pool("BGPConfiguration default"); p != nil {
		t.Errorf("it advertises none: got %+v", p)
	}
}
