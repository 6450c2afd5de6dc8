package kube

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/whereabouts"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// whereaboutsPool is an IPPool in the format of whereabouts.
const whereaboutsPool = `
metadata: {name: 192.168.2.0-24, namespace: kube-system}
spec:
  range: 192.168.2.0/24
  allocations:
    "1":
      id: 0c85206ce40fd429c62d1499c91f0fd5cb183fd610db3c4c458f167eaa0ee190
      ifname: net1
      podref: test/test-648b75d6fc-f56cp
    "2":
      id: 6442798c086abdad4c636b7c8e51f427511076a250e5434889b675c9e60bca06
      podref: test/test-648b75d6fc-sdbbm
`

func reservation(name, pod string) string {
	return `
metadata: {name: ` + name + `, namespace: kube-system}
spec: {podref: ` + pod + `, ifname: net1}
`
}

// attachmentText is a typical NetworkAttachmentDefinition.
const attachmentText = `
metadata: {name: whereabouts-conf, namespace: default}
spec:
  config: '{
      "cniVersion": "0.3.0",
      "name": "whereaboutsexample",
      "type": "macvlan",
      "master": "eth0",
      "mode": "bridge",
      "ipam": {
        "type": "whereabouts",
        "range": "192.168.2.225/24",
        "exclude": ["192.168.2.0/30", "192.168.2.16"],
        "range_end": "192.168.2.20",
        "gateway": "192.168.2.4"
      }
    }'
`

func TestWhereabouts(t *testing.T) {
	f := newFakeAPI(t)
	f.install(whereabouts.Pools, whereabouts.Reservations, whereabouts.Networks)
	f.apply(whereabouts.Pools, whereaboutsPool)
	f.apply(whereabouts.Reservations, reservation("192.168.2.1", "test/test-648b75d6fc-f56cp"))
	l := keep(t, f.open())
	const (
		first  = "192.168.2.1 test/test-648b75d6fc-f56cp 0c85206ce40fd429c62d1499c91f0fd5cb183fd610db3c4c458f167eaa0ee190 net1 at ippools kube-system/192.168.2.0-24 /spec/allocations/1; overlappingrangeipreservations kube-system/192.168.2.1"
		second = "192.168.2.2 test/test-648b75d6fc-sdbbm 6442798c086abdad4c636b7c8e51f427511076a250e5434889b675c9e60bca06 at ippools kube-system/192.168.2.0-24 /spec/allocations/2"
	)
	l.await("all is listed", `
whereabouts kube-system/192.168.2.0-24 known 192.168.2.1-192.168.2.254
`+first+"\n"+second)

	f.apply(whereabouts.Networks, attachmentText)
	l.await("the network narrows the range", `
whereabouts kube-system/192.168.2.0-24 known 192.168.2.4-192.168.2.15 192.168.2.17-192.168.2.20
`+first+"\n"+second)
	pool := l.pools["whereabouts kube-system/192.168.2.0-24"]
	if pool.Network != "whereaboutsexample" || pool.Plugin != "macvlan" || pool.Device != "eth0" || pool.Base != netip.MustParseAddr("192.168.2.0") ||
		pool.Config != "network-attachment-definitions default/whereabouts-conf" || !slices.Equal(pool.Gateways, addresses("192.168.2.4")) {
		t.Errorf("got %+v", pool)
	}
	l.told()

	// A reservation without an entry in the pool also allocates its address.
	f.apply(whereabouts.Reservations, reservation("192.168.2.7", "test/lost"))
	l.await("a reservation is lone", `
whereabouts kube-system/192.168.2.0-24 known 192.168.2.4-192.168.2.15 192.168.2.17-192.168.2.20
`+first+"\n"+second+`
192.168.2.7 test/lost net1 at overlappingrangeipreservations kube-system/192.168.2.7`)
	// A reservation for another pod is a separate allocation.
	f.apply(whereabouts.Reservations, reservation("192.168.2.2", "test/other"))
	l.await("pool and reservation differ", `
whereabouts kube-system/192.168.2.0-24 known 192.168.2.4-192.168.2.15 192.168.2.17-192.168.2.20
`+first+"\n"+second+`
192.168.2.2 test/other net1 at overlappingrangeipreservations kube-system/192.168.2.2
192.168.2.7 test/lost net1 at overlappingrangeipreservations kube-system/192.168.2.7`)
	f.remove(whereabouts.Reservations, ipam.Key{Namespace: "kube-system", Name: "192.168.2.2"})
	f.remove(whereabouts.Reservations, ipam.Key{Namespace: "kube-system", Name: "192.168.2.7"})
	f.apply(whereabouts.Pools, strings.Replace(whereaboutsPool, `"2":`, `"12":`, 1))
	moved := strings.NewReplacer("192.168.2.2 ", "192.168.2.12 ", "/2", "/12").Replace(second)
	moved = strings.Replace(moved, "2.0-124", "2.0-24", 1)
	l.await("an allocation moves", `
whereabouts kube-system/192.168.2.0-24 known 192.168.2.4-192.168.2.15 192.168.2.17-192.168.2.20
`+first+"\n"+moved)
	if n := l.told(); n != 6 {
		t.Errorf("%d changes are told, want 6", n)
	}
	// The pool is deleted but the network remains: whereabouts will create an empty pool
	// again.
	f.remove(whereabouts.Pools, ipam.Key{Namespace: "kube-system", Name: "192.168.2.0-24"})
	l.await("its records are lost", `
whereabouts kube-system/192.168.2.0-24 missing 192.168.2.4-192.168.2.15 192.168.2.17-192.168.2.20: IPPool kube-system/192.168.2.0-24 is gone, and a NetworkAttachmentDefinition has its range: whereabouts makes it anew, with nothing in it`)
	f.apply(whereabouts.Pools, strings.Replace(whereaboutsPool, `"2":`, `"12":`, 1))
	l.await("it is restored", `
whereabouts kube-system/192.168.2.0-24 known 192.168.2.4-192.168.2.15 192.168.2.17-192.168.2.20
`+first+"\n"+moved)
	f.remove(whereabouts.Pools, ipam.Key{Namespace: "kube-system", Name: "192.168.2.0-24"})
	f.remove(whereabouts.Networks, ipam.Key{Namespace: "default", Name: "whereabouts-conf"})
	l.await("the network is gone, too", "")
}

// Networks with different values of network_name may allocate the same range. Each has its own
// IPPools and reservations.
func TestRealmsOfWhereabouts(t *testing.T) {
	f := newFakeAPI(t)
	f.install(whereabouts.Pools, whereabouts.Reservations, whereabouts.Networks)
	f.apply(whereabouts.Pools, whereaboutsPool)
	f.apply(whereabouts.Pools, strings.Replace(whereaboutsPool, "name: 192", "name: blue-sky-192", 1))
	f.apply(whereabouts.Networks, `
metadata: {name: blue, namespace: default}
spec: {config: '{"name": "lan", "type": "macvlan", "ipam": {"type": "whereabouts", "range": "192.168.2.0/24", "network_name": "blue-sky"}}'}`)
	l := keep(t, f.open())
	realm := func(pool string) string {
		l.mu.Lock()
		defer l.mu.Unlock()
		if p := l.pools["whereabouts kube-system/"+pool]; p != nil && p.State == ipam.Known {
			return "realm " + p.Realm + " of network " + p.Network
		}
		return ""
	}
	wait.Until(t, "the unnamed one has none", func() bool { return realm("192.168.2.0-24") == "realm  of network " })
	wait.Until(t, "the other one has its name", func() bool { return realm("blue-sky-192.168.2.0-24") == "realm blue-sky of network lan" })
	f.apply(whereabouts.Pools, "metadata: {name: 10.9.0.0-24, namespace: kube-system}\nspec: {range: 10.9.0.0/24, allocations: {}}")
	wait.Until(t, "one that nobody uses gives nothing", func() bool {
		return strings.HasPrefix(l.says(), "whereabouts kube-system/10.9.0.0-24 known\n")
	})
	f.remove(whereabouts.Networks, ipam.Key{Namespace: "default", Name: "blue"})
	wait.Until(t, "it has it, too, where no network tells", func() bool { return realm("blue-sky-192.168.2.0-24") == "realm blue-sky of network " })
}

func TestOddWhereabouts(t *testing.T) {
	f := newFakeAPI(t)
	f.install(whereabouts.Pools, whereabouts.Reservations)
	f.apply(whereabouts.Pools, `
metadata: {name: 10.0.0.0-30, namespace: w}
spec: {range: 10.0.0.0/30, allocations: {"1": {id: a, podref: n/p}, "9": {id: b, podref: n/q}, "x": {id: c, podref: n/r}}}`)
	f.apply(whereabouts.Pools, `
metadata: {name: list, namespace: w}
spec: {range: 10.0.1.0/30, allocations: [{id: a}]}`)
	f.apply(whereabouts.Pools, `
metadata: {name: none, namespace: w}
spec: {range: somewhere, allocations: {}}`)
	l := keep(t, f.open())
	l.await("odd ones are told", `
whereabouts w/10.0.0.0-30 known 10.0.0.1-10.0.0.2: the IPPool w/10.0.0.0-30 of whereabouts is odd: /spec/allocations/9 is no offset in 10.0.0.0/30: remove it
whereabouts w/list unreadable: the IPPool w/list of whereabouts is odd: its spec is not as we know it: /allocations is a JSON array
whereabouts w/none unreadable: the IPPool w/none of whereabouts is odd: its range "somewhere" is none
10.0.0.1 n/p a at ippools w/10.0.0.0-30 /spec/allocations/1`)
}

// IPv6 ranges may have more than 2^64 addresses, and later versions of whereabouts write IPv6
// addresses in full in the names of reservations.
func TestWhereaboutsOfIPv6(t *testing.T) {
	f := newFakeAPI(t)
	f.install(whereabouts.Pools, whereabouts.Reservations)
	f.apply(whereabouts.Pools, `
metadata: {name: fd00---32, namespace: w}
spec:
  range: fd00::/32
  allocations:
    "5": {id: a, podref: n/p, ifname: net1}
    "18446744073709551621": {id: b, podref: n/q, ifname: net1}
    "79228162514264337593543950336": {id: c, podref: n/r, ifname: net1}`)
	f.apply(whereabouts.Reservations, "metadata: {name: fd00-0000-0000-0000-0000-0000-0000-0005, namespace: w}\nspec: {podref: n/p, ifname: net1}")
	f.apply(whereabouts.Reservations, "metadata: {name: fd00-0-0-1--5, namespace: w}\nspec: {podref: n/q, ifname: net1}")
	l := keep(t, f.open())
	l.await("all is listed", `
whereabouts w/fd00---32 known fd00::1-fd00:0:ffff:ffff:ffff:ffff:ffff:fffe: the IPPool w/fd00---32 of whereabouts is odd: /spec/allocations/79228162514264337593543950336 is no offset in fd00::/32: remove it
fd00:0:0:1::5 n/q b net1 at ippools w/fd00---32 /spec/allocations/18446744073709551621; overlappingrangeipreservations w/fd00-0-0-1--5
fd00::5 n/p a net1 at ippools w/fd00---32 /spec/allocations/5; overlappingrangeipreservations w/fd00-0000-0000-0000-0000-0000-0000-0005`)
}

// An unknown version of whereabouts is reported. A known version that is installed later is
// read.
func TestVersionsOfWhereabouts(t *testing.T) {
	f := newFakeAPI(t)
	f.custom.strange = map[string]string{"whereabouts.cni.cncf.io": "v1beta1"}
	c := f.open()
	l := keep(t, c)
	live(t, c)
	problem := "whereabouts.cni.cncf.io is served only as [v1beta1], but ipwitness knows only v1alpha1: what whereabouts has given is not known; use a version of ipwitness that knows it"
	l.await("another version", "whereabouts whereabouts.cni.cncf.io unreadable: "+problem)
	if !slices.Contains(c.Status().GetProblems(), problem) {
		t.Errorf("got problems %q", c.Status().GetProblems())
	}
	f.set(func() { f.custom.strange = nil })
	f.install(whereabouts.Pools)
	f.apply(whereabouts.Pools, whereaboutsPool)
	wait.Until(t, "the known version is read", func() bool { return strings.HasPrefix(l.says(), "whereabouts kube-system/192.168.2.0-24 known") })
	if p := c.Status().GetProblems(); len(p) != 0 {
		t.Errorf("got problems %q", p)
	}
	f.uninstall(whereabouts.Pools)
	l.await("it is removed", "")
	if p := c.Status().GetProblems(); len(p) != 0 {
		t.Errorf("got problems %q", p)
	}
}

// BenchmarkWhereabouts reads 10,000 addresses of a network that is divided among 1,000 nodes,
// and then adds a node.
func BenchmarkWhereabouts(b *testing.B) {
	const nodes, pods = 1000, 10
	f := newFakeAPI(b)
	f.install(whereabouts.Pools, whereabouts.Reservations, whereabouts.Networks)
	f.apply(whereabouts.Networks, `
metadata: {name: big, namespace: default}
spec: {config: '{"name": "big", "type": "macvlan", "ipam": {"type": "whereabouts", "range": "10.0.0.0/8", "node_slice_size": "/24"}}'}`)
	slice := func(node int) {
		var given []string
		for i := range pods {
			pod := fmt.Sprintf("default/pod-%d-%d", node, i)
			given = append(given, fmt.Sprintf(`"%d": {id: %064x, podref: %s, ifname: net1}`, i+1, node*pods+i, pod))
			f.apply(whereabouts.Reservations, reservation(fmt.Sprintf("10.%d.%d.%d", node/256, node%256, i+1), pod))
		}
		f.apply(whereabouts.Pools, fmt.Sprintf("metadata: {name: node-%d-10.%d.%d.0-24, namespace: kube-system}\nspec: {range: 10.%d.%d.0/24, allocations: {%s}}",
			node, node/256, node%256, node/256, node%256, strings.Join(given, ", ")))
	}
	for node := range nodes {
		slice(node)
	}
	var listed, added time.Duration
	for b.Loop() {
		c := f.open()
		c.discovery.every = 20 * time.Millisecond
		known := func(pools int) func() bool {
			return func() bool {
				c.mu.RLock()
				defer c.mu.RUnlock()
				return len(c.ipams[0].pools) == pools && c.ipams[0].state == ipam.Known
			}
		}
		begin := time.Now()
		stop := run(c)
		wait.Until(b, "all is listed", known(nodes))
		listed += time.Since(begin)
		begin = time.Now()
		slice(nodes)
		wait.Until(b, "another is there", known(nodes+1))
		added += time.Since(begin)
		stop()
		f.remove(whereabouts.Pools, ipam.Key{Namespace: "kube-system", Name: fmt.Sprintf("node-%d-10.%d.%d.0-24", nodes, nodes/256, nodes%256)})
	}
	b.ReportMetric(listed.Seconds()/float64(b.N), "sync-s")
	b.ReportMetric(added.Seconds()/float64(b.N), "another-s")
}
