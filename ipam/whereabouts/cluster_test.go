package whereabouts_test

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/whereabouts"
	"github.com/ipwitness/ipwitness/tests/ipamtest"
)

func TestWhereabouts(t *testing.T) {
	c := ipamtest.New(t, &whereabouts.IPAM, whereabouts.Pools, whereabouts.Reservations, whereabouts.Networks)
	c.Apply(whereabouts.Pools, ipamtest.WhereaboutsPool)
	c.Apply(whereabouts.Reservations, ipamtest.WhereaboutsReservation("192.168.2.1", "test/test-648b75d6fc-f56cp"))
	const (
		first  = "192.168.2.1 test/test-648b75d6fc-f56cp 0c85206ce40fd429c62d1499c91f0fd5cb183fd610db3c4c458f167eaa0ee190 net1 at ippools kube-system/192.168.2.0-24 /spec/allocations/1; overlappingrangeipreservations kube-system/192.168.2.1"
		second = "192.168.2.2 test/test-648b75d6fc-sdbbm 6442798c086abdad4c636b7c8e51f427511076a250e5434889b675c9e60bca06 at ippools kube-system/192.168.2.0-24 /spec/allocations/2"
	)
	c.Want("all is listed", `
whereabouts kube-system/192.168.2.0-24 known 192.168.2.1-192.168.2.254
`+first+"\n"+second)

	c.Apply(whereabouts.Networks, ipamtest.WhereaboutsNetwork)
	c.Want("the network narrows the range", `
whereabouts kube-system/192.168.2.0-24 known 192.168.2.4-192.168.2.15 192.168.2.17-192.168.2.20
`+first+"\n"+second)
	pool := c.Pool("kube-system/192.168.2.0-24")
	if pool.Network != "whereaboutsexample" || pool.Plugin != "macvlan" || pool.Device != "eth0" || pool.Base != netip.MustParseAddr("192.168.2.0") ||
		pool.Config != "network-attachment-definitions default/whereabouts-conf" || !slices.Equal(pool.Gateways, []netip.Addr{netip.MustParseAddr("192.168.2.4")}) {
		t.Errorf("got %+v", pool)
	}
	c.Changes()

	// A reservation without an entry in the pool also allocates its address.
	c.Apply(whereabouts.Reservations, ipamtest.WhereaboutsReservation("192.168.2.7", "test/lost"))
	c.Want("a reservation is lone", `
whereabouts kube-system/192.168.2.0-24 known 192.168.2.4-192.168.2.15 192.168.2.17-192.168.2.20
`+first+"\n"+second+`
192.168.2.7 test/lost net1 at overlappingrangeipreservations kube-system/192.168.2.7`)
	// A reservation for another pod is a separate allocation.
	c.Apply(whereabouts.Reservations, ipamtest.WhereaboutsReservation("192.168.2.2", "test/other"))
	c.Want("pool and reservation differ", `
whereabouts kube-system/192.168.2.0-24 known 192.168.2.4-192.168.2.15 192.168.2.17-192.168.2.20
`+first+"\n"+second+`
192.168.2.2 test/other net1 at overlappingrangeipreservations kube-system/192.168.2.2
192.168.2.7 test/lost net1 at overlappingrangeipreservations kube-system/192.168.2.7`)
	c.Remove(whereabouts.Reservations, ipam.Key{Namespace: "kube-system", Name: "192.168.2.2"})
	c.Remove(whereabouts.Reservations, ipam.Key{Namespace: "kube-system", Name: "192.168.2.7"})
	c.Apply(whereabouts.Pools, strings.Replace(ipamtest.WhereaboutsPool, `"2":`, `"12":`, 1))
	moved := strings.NewReplacer("192.168.2.2 ", "192.168.2.12 ", "/2", "/12").Replace(second)
	moved = strings.Replace(moved, "2.0-124", "2.0-24", 1)
	c.Want("an allocation moves", `
whereabouts kube-system/192.168.2.0-24 known 192.168.2.4-192.168.2.15 192.168.2.17-192.168.2.20
`+first+"\n"+moved)
	if n := c.Changes(); n != 6 {
		t.Errorf("%d changes, want 6", n)
	}
	// The pool is deleted but the network remains: whereabouts will create an empty pool again.
	c.Remove(whereabouts.Pools, ipam.Key{Namespace: "kube-system", Name: "192.168.2.0-24"})
	c.Want("its records are lost", `
whereabouts kube-system/192.168.2.0-24 missing 192.168.2.4-192.168.2.15 192.168.2.17-192.168.2.20: IPPool kube-system/192.168.2.0-24 was deleted, but a NetworkAttachmentDefinition has its range: whereabouts will recreate it empty`)
	c.Apply(whereabouts.Pools, strings.Replace(ipamtest.WhereaboutsPool, `"2":`, `"12":`, 1))
	c.Want("it is restored", `
whereabouts kube-system/192.168.2.0-24 known 192.168.2.4-192.168.2.15 192.168.2.17-192.168.2.20
`+first+"\n"+moved)
	c.Remove(whereabouts.Pools, ipam.Key{Namespace: "kube-system", Name: "192.168.2.0-24"})
	c.Remove(whereabouts.Networks, ipam.Key{Namespace: "default", Name: "whereabouts-conf"})
	c.Want("the network is gone, too", "")
}

// Networks with different values of network_name may allocate the same range. Each has its own
// IPPools and reservations.
func TestRealmsOfWhereabouts(t *testing.T) {
	c := ipamtest.New(t, &whereabouts.IPAM, whereabouts.Pools, whereabouts.Reservations, whereabouts.Networks)
	c.Apply(whereabouts.Pools, ipamtest.WhereaboutsPool)
	c.Apply(whereabouts.Pools, strings.Replace(ipamtest.WhereaboutsPool, "name: 192", "name: blue-sky-192", 1))
	c.Apply(whereabouts.Networks, `
metadata: {name: blue, namespace: default}
spec: {config: '{"name": "lan", "type": "macvlan", "ipam": {"type": "whereabouts", "range": "192.168.2.0/24", "network_name": "blue-sky"}}'}`)
	c.Apply(whereabouts.Pools, "metadata: {name: 10.9.0.0-24, namespace: kube-system}\nspec: {range: 10.9.0.0/24, allocations: {}}")
	for pool, want := range map[string]string{"192.168.2.0-24": "realm  of network ", "blue-sky-192.168.2.0-24": "realm blue-sky of network lan", "10.9.0.0-24": "realm  of network "} {
		p := c.Pool("kube-system/" + pool)
		if got := "realm " + p.Realm + " of network " + p.Network; got != want || (pool == "10.9.0.0-24") != (len(p.Ranges) == 0) {
			t.Errorf("%s: got %s, %+v, want %s", pool, got, p, want)
		}
	}
	c.Remove(whereabouts.Networks, ipam.Key{Namespace: "default", Name: "blue"})
	if p := c.Pool("kube-system/blue-sky-192.168.2.0-24"); p.Realm != "blue-sky" || p.Network != "" {
		t.Errorf("got %+v, want the realm from the name of the pool", p)
	}
}

// A pool that no network uses is dropped when it is deleted.
func TestDeletedPoolsThatNoNetworkUses(t *testing.T) {
	c := ipamtest.New(t, &whereabouts.IPAM, whereabouts.Pools, whereabouts.Reservations, whereabouts.Networks)
	c.Apply(whereabouts.Networks, ipamtest.WhereaboutsNetwork)
	c.Apply(whereabouts.Pools, "metadata: {name: 10.9.0.0-24, namespace: kube-system}\nspec: {range: 10.9.0.0/24, allocations: {}}")
	c.Want("a pool of another range", "whereabouts kube-system/10.9.0.0-24 known")
	c.Remove(whereabouts.Pools, ipam.Key{Namespace: "kube-system", Name: "10.9.0.0-24"})
	c.Want("it is gone", "")
}

// The IPPools of all nodes of a network share its reservations, once the network is known.
func TestReservationsOfSlices(t *testing.T) {
	c := ipamtest.New(t, &whereabouts.IPAM, whereabouts.Pools, whereabouts.Reservations, whereabouts.Networks)
	c.Apply(whereabouts.Pools, "metadata: {name: blue-node-1-10.0.0.16-28, namespace: w}\nspec: {range: 10.0.0.16/28, allocations: {}}")
	c.Apply(whereabouts.Reservations, ipamtest.WhereaboutsReservation("blue-10.0.0.17", "n/p"))
	c.Apply(whereabouts.Reservations, "metadata: {name: blue-10.0.0.18, namespace: w}\nspec: {podref: n/p}")
	c.Want("the network is not known", "whereabouts w/blue-node-1-10.0.0.16-28 known")
	if p := c.Pool("w/blue-node-1-10.0.0.16-28"); p.Realm != "blue-node-1" {
		t.Errorf("got %+v", p)
	}
	c.Apply(whereabouts.Networks, `
metadata: {name: blue, namespace: default}
spec: {config: '{"name": "lan", "ipam": {"type": "whereabouts", "range": "10.0.0.0/24", "network_name": "blue", "node_slice_size": "/28"}}'}`)
	c.Want("it is", `
whereabouts w/blue-node-1-10.0.0.16-28 known 10.0.0.17-10.0.0.30
10.0.0.18 n/p at overlappingrangeipreservations w/blue-10.0.0.18`)
	c.Remove(whereabouts.Networks, ipam.Key{Namespace: "default", Name: "blue"})
	c.Want("it is gone", "whereabouts w/blue-node-1-10.0.0.16-28 known")
}

func TestInvalidWhereaboutsPools(t *testing.T) {
	c := ipamtest.New(t, &whereabouts.IPAM, whereabouts.Pools, whereabouts.Reservations)
	c.Apply(whereabouts.Pools, `
metadata: {name: 10.0.0.0-30, namespace: w}
spec: {range: 10.0.0.0/30, allocations: {"1": {id: a, podref: n/p}, "9": {id: b, podref: n/q}, "x": {id: c, podref: n/r}}}`)
	c.Apply(whereabouts.Pools, `
metadata: {name: list, namespace: w}
spec: {range: 10.0.1.0/30, allocations: [{id: a}]}`)
	c.Apply(whereabouts.Pools, `
metadata: {name: none, namespace: w}
spec: {range: somewhere, allocations: {}}`)
	c.Want("invalid objects are reported", `
whereabouts w/10.0.0.0-30 known 10.0.0.1-10.0.0.2: IPPool w/10.0.0.0-30 of whereabouts is invalid: /spec/allocations/9 is not an offset in 10.0.0.0/30: remove it
whereabouts w/list unreadable: IPPool w/list of whereabouts is invalid: its spec has an unexpected format: /allocations is a JSON array
whereabouts w/none unreadable: IPPool w/none of whereabouts is invalid: its range "somewhere" is not a CIDR
10.0.0.1 n/p a at ippools w/10.0.0.0-30 /spec/allocations/1`)
}

// whereabouts ignores an offset that is no int64, and a reservation protects its address nevertheless. Later versions of whereabouts write IPv6
// addresses in full in the names of reservations.
func TestWhereaboutsIPv6(t *testing.T) {
	c := ipamtest.New(t, &whereabouts.IPAM, whereabouts.Pools, whereabouts.Reservations)
	c.Apply(whereabouts.Pools, `
metadata: {name: fd00---32, namespace: w}
spec:
  range: fd00::/32
  allocations:
    "5": {id: a, podref: n/p, ifname: net1}
    "18446744073709551621": {id: b, podref: n/q, ifname: net1}
    "79228162514264337593543950336": {id: c, podref: n/r, ifname: net1}`)
	c.Apply(whereabouts.Reservations, "metadata: {name: fd00-0000-0000-0000-0000-0000-0000-0005, namespace: w}\nspec: {podref: n/p, ifname: net1}")
	c.Apply(whereabouts.Reservations, "metadata: {name: fd00-0-0-1--5, namespace: w}\nspec: {podref: n/q, ifname: net1}")
	c.Want("all is listed", `
whereabouts w/fd00---32 known fd00::1-fd00:0:ffff:ffff:ffff:ffff:ffff:fffe: IPPool w/fd00---32 of whereabouts is invalid: /spec/allocations/18446744073709551621 is not an offset in fd00::/32: remove it
fd00:0:0:1::5 n/q net1 at overlappingrangeipreservations w/fd00-0-0-1--5
fd00::5 n/p a net1 at ippools w/fd00---32 /spec/allocations/5; overlappingrangeipreservations w/fd00-0000-0000-0000-0000-0000-0000-0005`)
}

// Pools wait until reservations and networks are known, and keep their allocations while they cannot
// be read.
func TestPoolsThatChange(t *testing.T) {
	c := ipamtest.New(t, &whereabouts.IPAM, whereabouts.Pools, whereabouts.Reservations, whereabouts.Networks)
	pool := func(spec string) {
		c.Apply(whereabouts.Pools, "metadata: {name: 10.0.0.0-29, namespace: w}\nspec: "+spec)
	}
	reservations, networks := c.Resource(whereabouts.Reservations), c.Resource(whereabouts.Networks)
	reservations.Decided = false
	pool(`{range: 10.0.0.0/29, allocations: {"1": {id: a, podref: n/p}}}`)
	c.Want("reservations are being read", "")
	reservations.Decided, networks.Decided = true, false
	c.Settle()
	c.Want("networks are being read", "")
	networks.Decided = true
	c.Settle()
	const one = "\n10.0.0.1 n/p a at ippools w/10.0.0.0-29 /spec/allocations/1"
	c.Want("all is known", "whereabouts w/10.0.0.0-29 known 10.0.0.1-10.0.0.6"+one)
	c.Changes()
	for _, k := range []ipam.Kind{whereabouts.Pools, whereabouts.Reservations, whereabouts.Networks} {
		c.List(k)
	}
	c.Settle()
	if n := c.Changes(); n != 0 {
		t.Errorf("%d changes of listings without differences", n)
	}
	pool(`[]`)
	c.Want("it cannot be read", "whereabouts w/10.0.0.0-29 unreadable 10.0.0.1-10.0.0.6: IPPool w/10.0.0.0-29 of whereabouts is invalid: its spec has an unexpected format: / is a JSON array"+one)
	const user = `{"name": "n", "ipam": {"type": "whereabouts", "range": "10.0.0.0/29"}}`
	c.Apply(whereabouts.Networks, "metadata: {name: n, namespace: w}\nspec: {config: '"+user+"'}")
	c.Want("a network appears meanwhile", "whereabouts w/10.0.0.0-29 unreadable 10.0.0.1-10.0.0.6: IPPool w/10.0.0.0-29 of whereabouts is invalid: its spec has an unexpected format: / is a JSON array"+one)
	c.Remove(whereabouts.Networks, ipam.Key{Namespace: "w", Name: "n"})
	pool(`{range: 10.0.0.0/29, allocations: {"1": {id: b, podref: n/q}}}`)
	c.Want("another pod", "whereabouts w/10.0.0.0-29 known 10.0.0.1-10.0.0.6\n10.0.0.1 n/q b at ippools w/10.0.0.0-29 /spec/allocations/1")
	pool(`{range: 10.0.0.2/29, allocations: {"1": {id: b, podref: n/q}}}`)
	c.Want("another base", "whereabouts w/10.0.0.0-29 known 10.0.0.1-10.0.0.6\n10.0.0.3 n/q b at ippools w/10.0.0.0-29 /spec/allocations/1")
	pool(`{range: 10.0.0.8/29, allocations: {"1": {id: b, podref: q}}}`)
	c.Want("another range, and a pod without namespace", "whereabouts w/10.0.0.0-29 known 10.0.0.9-10.0.0.14\n10.0.0.9 b at ippools w/10.0.0.0-29 /spec/allocations/1")
	pool(`{range: 10.0.0.8/29}`)
	c.Want("nothing is allocated, and no network uses it", "whereabouts w/10.0.0.0-29 known")
	networks.Followed = false
	c.Settle()
	c.Want("its users are unknown", "whereabouts w/10.0.0.0-29 known 10.0.0.9-10.0.0.14")
	c.Remove(whereabouts.Pools, ipam.Key{Namespace: "w", Name: "10.0.0.0-29"})
	c.Want("it is gone", "")
}

// A pool whose range changes gets the reservations in its new range.
func TestReservationsOfAPoolThatGrows(t *testing.T) {
	c := ipamtest.New(t, &whereabouts.IPAM, whereabouts.Pools, whereabouts.Reservations)
	c.Apply(whereabouts.Reservations, "metadata: {name: lan-10.0.0.12, namespace: w}\nspec: {podref: n/p}")
	c.Apply(whereabouts.Pools, "metadata: {name: lan, namespace: w}\nspec: {range: 10.0.0.0/29}")
	c.Want("the reservation is outside", "whereabouts w/lan known 10.0.0.1-10.0.0.6")
	c.Apply(whereabouts.Pools, "metadata: {name: lan, namespace: w}\nspec: {range: 10.0.0.0/28}")
	c.Want("it is inside", "whereabouts w/lan known 10.0.0.1-10.0.0.14\n10.0.0.12 n/p at overlappingrangeipreservations w/lan-10.0.0.12")
}

// A reservation belongs to the allocation of its address that has the same pod or container.
func TestReservationsOfPools(t *testing.T) {
	c := ipamtest.New(t, &whereabouts.IPAM, whereabouts.Pools, whereabouts.Reservations)
	reserve := func(name, spec string) {
		c.Apply(whereabouts.Reservations, "metadata: {name: "+name+", namespace: w}\nspec: "+spec)
	}
	reserve("10.0.0.1", "{podref: n/p}")
	reserve("10.0.0.2", "{podref: n/x, containerid: b}")
	reserve("10.0.0.3", "{podref: n/x}")
	reserve("10.0.0.4", "{podref: n/x, containerid: z}")
	reserve("10.0.0.9", "{podref: n/x}") // outside the range
	c.Apply(whereabouts.Pools, `
metadata: {name: 10.0.0.0-29, namespace: w}
spec: {range: 10.0.0.0/29, allocations: {"1": {id: a, podref: n/p}, "2": {id: b, podref: n/q}, "3": {ipamclaimref: n/c}, "4": {podref: n/r}}}`)
	const at, reserved = " at ippools w/10.0.0.0-29 /spec/allocations/", "overlappingrangeipreservations w/10.0.0."
	const pool = "whereabouts w/10.0.0.0-29 known 10.0.0.1-10.0.0.6"
	const same = "\n10.0.0.1 n/p a" + at + "1; " + reserved + "1\n10.0.0.2 n/q b" + at + "2; " + reserved + "2\n10.0.0.3" + at + "3; " + reserved + "3"
	c.Want("by pod, by container, and of a claim", pool+same+"\n10.0.0.4 n/r"+at+"4\n10.0.0.4 n/x z at "+reserved+"4")
	c.Changes()
	reserve("10.0.0.4", "{podref: n/r, containerid: z}")
	c.Want("now of the same pod", pool+same+"\n10.0.0.4 n/r"+at+"4; "+reserved+"4")
	reserve("10.0.0.4", "{podref: n/r, containerid: 7}")
	c.Want("it cannot be read, and reserves the address",
		"whereabouts OverlappingRangeIPReservation objects known: OverlappingRangeIPReservation w/10.0.0.4 of whereabouts is invalid: its spec has an unexpected format: /containerid is a JSON number\n"+pool+same+"\n10.0.0.4 n/r"+at+"4\n10.0.0.4 at "+reserved+"4")
	c.Remove(whereabouts.Reservations, ipam.Key{Namespace: "w", Name: "10.0.0.4"})
	c.Want("it is gone", pool+same+"\n10.0.0.4 n/r"+at+"4")
}

// Several versions of whereabouts may have written reservations for one address. The first name counts.
func TestReservationsWithTwoNames(t *testing.T) {
	c := ipamtest.New(t, &whereabouts.IPAM, whereabouts.Pools, whereabouts.Reservations)
	want, allocations := "whereabouts w/fd00---120 known fd00::1-fd00::fe", ""
	for i := range 8 {
		n := strconv.Itoa(i + 1)
		for _, name := range []string{"fd00--" + n, "fd00-0000-0000-0000-0000-0000-0000-000" + n} {
			c.Apply(whereabouts.Reservations, "metadata: {name: "+name+", namespace: w}\nspec: {podref: n/p}")
		}
		allocations += `"` + n + `": {podref: n/p}, `
		want += "\nfd00::" + n + " n/p at ippools w/fd00---120 /spec/allocations/" + n + "; overlappingrangeipreservations w/fd00--" + n +
			"\nfd00::" + n + " n/p at overlappingrangeipreservations w/fd00-0000-0000-0000-0000-0000-0000-000" + n
	}
	c.Apply(whereabouts.Pools, "metadata: {name: fd00---120, namespace: w}\nspec: {range: 'fd00::/120', allocations: {"+allocations+"}}")
	c.Want("both reserve the address", want)
	c.Changes()
	c.Apply(whereabouts.Pools, "metadata: {name: fd00---120, namespace: w}\nspec: {range: 'fd00::/120', allocations: {"+allocations+`"100": {podref: n/q}}}`)
	if n := c.Changes(); n != 1 {
		t.Errorf("%d changes, want only the new allocation", n)
	}
}

// Networks that share a pool narrow it together, and agree on plugin and device or have none.
func TestNetworksThatShareAPool(t *testing.T) {
	c := ipamtest.New(t, &whereabouts.IPAM, whereabouts.Pools, whereabouts.Reservations, whereabouts.Networks)
	network := func(name, config string) {
		c.Apply(whereabouts.Networks, "metadata: {name: "+name+", namespace: default}\nspec: {config: '"+config+"'}")
	}
	c.Apply(whereabouts.Pools, "metadata: {name: 10.0.0.0-24, namespace: w}\nspec: {range: 10.0.0.0/24}")
	network("b", `{"name": "two", "type": "macvlan", "master": "eth0", "ipam": {"type": "whereabouts", "range": "10.0.0.0/24", "range_start": "10.0.0.128", "gateway": "10.0.0.1"}}`)
	network("a", `{"name": "one", "type": "macvlan", "master": "eth0", "ipam": {"type": "whereabouts", "range": "10.0.0.0/24", "range_end": "10.0.0.130", "gateway": "10.0.0.1"}}`)
	network("c", `{"name": "one", "type": "macvlan", "master": "eth0", "ipam": {"type": "whereabouts", "range": "10.0.0.0/24", "range_end": "10.0.0.9", "gateway": "10.1.0.1"}}`)
	c.Want("together they have all", "whereabouts w/10.0.0.0-24 known 10.0.0.1-10.0.0.254")
	p := c.Pool("w/10.0.0.0-24")
	if !slices.Equal(p.Networks, []string{"one", "two"}) || p.Network != "" || p.Plugin != "macvlan" || p.Device != "eth0" ||
		p.Config != "network-attachment-definitions default/a" || !slices.Equal(p.Gateways, []netip.Addr{netip.MustParseAddr("10.0.0.1")}) {
		t.Errorf("got %+v", p)
	}
	network("b", `{"name": "two", "type": "ipvlan", "master": "eth1", "ipam": {"type": "whereabouts", "range": "10.0.0.0/24", "range_start": "10.0.0.200"}}`)
	c.Want("one has other addresses", "whereabouts w/10.0.0.0-24 known 10.0.0.1-10.0.0.130 10.0.0.200-10.0.0.254")
	if p := c.Pool("w/10.0.0.0-24"); p.Plugin != "" || p.Device != "" {
		t.Errorf("got %+v, want neither plugin nor device", p)
	}
}
