package kube

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/calico"
	"github.com/ipwitness/ipwitness/ipam/whereabouts"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// calicoPoolText is an IPPool in Calico's format.
const calicoPoolText = `
metadata:
  annotations: {projectcalico.org/metadata: '{"uid":"ea36eb56","creationTimestamp":"2022-07-23T12:04:44Z"}'}
  name: default-ipv4-ippool
spec:
  allowedUses: [Workload, Tunnel]
  blockSize: 26
  cidr: 192.168.0.0/16
  ipipMode: Never
  natOutgoing: true
  nodeSelector: all()
  vxlanMode: CrossSubnet
`

// calicoBlockText returns a block of 64 addresses in Calico's format. The given allocations
// come first.
func calicoBlockText(name, cidr string, given ...string) string {
	text := `
metadata:
  annotations: {projectcalico.org/metadata: '{"creationTimestamp":null}'}
  name: ` + name + `
spec:
  affinity: host:node1
  cidr: ` + cidr + `
  deleted: false
  sequenceNumber: 1690000000000000000
  sequenceNumberForAllocation: {}
  strictAffinity: false
  allocations: [`
	for i := range 64 {
		switch {
		case i >= len(given) || given[i] == "":
			text += "null, "
		default:
			text += fmt.Sprint(i) + ", "
		}
	}
	text += "]\n  unallocated: []\n  attributes:\n"
	for _, g := range given {
		if g == "" {
			g = "{}"
		}
		text += "  - " + g + "\n"
	}
	return text
}

const idOne = "6bf5918459e920bb5adae8e14a8424dd69dba59383927e68f49c77c49a0d531d"

func podOfCalico(pod, node, id string) string {
	return fmt.Sprintf(`{handle_id: k8s-pod-network.%s, secondary: {namespace: default, node: %s, pod: %s, timestamp: "2023-09-26 17:11:53.923041651 +0000 UTC"}}`, id, node, pod)
}

const tunnelOfCalico = `{handle_id: vxlan-tunnel-addr-node1, secondary: {node: node1, type: vxlanTunnelAddress}}`

func TestCalico(t *testing.T) {
	f := newFakeAPI(t)
	f.install(calico.Pools, calico.Blocks, calico.Affinities, calico.Handles)
	f.apply(calico.Pools, calicoPoolText)
	f.apply(calico.Blocks, calicoBlockText("192-168-0-192-26", "192.168.0.192/26", tunnelOfCalico, podOfCalico("nginx", "node1", idOne), "",
		`{handle_id: windows-reserved-ipam-handle, secondary: {note: windows host rsvd}}`,
		`{handle_id: k8s-pod-network.default-vm, secondary: {namespace: default, node: node2, pod: virt-launcher-vm}}`,
		`{handle_id: lb-1, secondary: {namespace: default, service: web, type: loadBalancer}}`))
	c := f.open()
	l := keep(t, c)
	const (
		pool   = "calico default-ipv4-ippool known 192.168.0.0-192.168.255.255"
		tunnel = "192.168.0.192 VXLAN tunnel node1 at ipamblocks 192-168-0-192-26 /spec/allocations/0"
		nginx  = "192.168.0.193 default/nginx " + idOne + " node1 at ipamblocks 192-168-0-192-26 /spec/allocations/1"
		rest   = `
192.168.0.196 default/virt-launcher-vm node2 at ipamblocks 192-168-0-192-26 /spec/allocations/4
192.168.0.197 load balancer of Service default/web at ipamblocks 192-168-0-192-26 /spec/allocations/5`
	)
	l.await("all is listed", pool+"\n"+tunnel+"\n"+nginx+rest)
	if al := l.allocations["calico default-ipv4-ippool 192.168.0.193 ipamblocks 192-168-0-192-26 /spec/allocations/1"]; al.AllocatedAt.Time().UTC().Format(time.RFC3339) != "2023-09-26T17:11:53Z" {
		t.Errorf("got %+v", al)
	}
	l.told()

	// Only changed allocations are published, even if the attribute indexes change.
	f.apply(calico.Blocks, calicoBlockText("192-168-0-192-26", "192.168.0.192/26", tunnelOfCalico, podOfCalico("nginx", "node2", idOne)))
	l.await("who has one changes, two are freed", pool+"\n"+tunnel+"\n"+strings.Replace(nginx, "node1", "node2", 1))
	if n := l.told(); n != 3 {
		t.Errorf("%d changes are told, want 3", n)
	}
	// A listing without differences publishes nothing.
	f.set(func() { f.expired = true })
	f.cut()
	wait.Until(t, "it is listed again", func() bool { f.mu.Lock(); defer f.mu.Unlock(); return f.custom.lists[calico.Blocks] > 1 })
	f.set(func() { f.expired = false })
	live(t, c)
	if n := l.told(); n != 0 {
		t.Errorf("%d changes are told, want none", n)
	}

	// A block without an IPPool is its own pool until there is an IPPool for it.
	f.apply(calico.Blocks, calicoBlockText("10-0-0-0-26", "10.0.0.0/26", podOfCalico("other", "node1", "abcdef012345")))
	two := pool + "\n" + tunnel + "\n" + strings.Replace(nginx, "node1", "node2", 1)
	l.await("a block has no pool", "calico 10.0.0.0/26 known\n"+pool+"\n10.0.0.0 default/other abcdef012345 node1 at ipamblocks 10-0-0-0-26 /spec/allocations/0\n"+
		tunnel+"\n"+strings.Replace(nginx, "node1", "node2", 1))
	f.apply(calico.Pools, "metadata: {name: second}\nspec: {cidr: 10.0.0.0/8, disabled: true}")
	l.await("it gets one, which gives nothing", pool+"\ncalico second known\n"+tunnel+"\n"+strings.Replace(nginx, "node1", "node2", 1)+
		"\n10.0.0.0 default/other abcdef012345 node1 at ipamblocks 10-0-0-0-26 /spec/allocations/0")
	f.remove(calico.Pools, ipam.Key{Name: "second"})
	f.remove(calico.Blocks, ipam.Key{Name: "10-0-0-0-26"})
	l.await("both are gone", two)

	// A block that is marked as deleted counts as deleted.
	f.apply(calico.Blocks, strings.Replace(calicoBlockText("192-168-0-192-26", "192.168.0.192/26", tunnelOfCalico), "deleted: false", "deleted: true", 1))
	l.await("the block is gone", pool)
}

// Pools go through these states as API servers come and go, and as rights and resources
// change.
func TestStatesOfPools(t *testing.T) {
	f := newFakeAPI(t)
	f.install(calico.Pools, calico.Blocks)
	f.apply(calico.Pools, calicoPoolText)
	c := f.open()
	c.health.pulse = pulse{every: 20 * time.Millisecond, again: 20 * time.Millisecond, within: time.Second, silence: time.Minute}
	l := keep(t, c)
	pool := func(state string) string {
		return "calico default-ipv4-ippool " + state[:strings.IndexByte(state+":", ':')] + " 192.168.0.0-192.168.255.255" + strings.TrimPrefix(state, state[:strings.IndexByte(state+":", ':')])
	}
	again := func() { // skips the wait between attempts
		c.mu.Lock()
		defer c.mu.Unlock()
		close(c.health.returned)
		c.health.returned = make(chan struct{})
	}
	soon := func(what, want string) {
		t.Helper()
		wait.Until(t, what, func() bool { again(); return l.says() == want })
	}
	l.await("Calico is there, and gives nothing", pool("reading"))
	f.apply(calico.Blocks, calicoBlockText("192-168-0-192-26", "192.168.0.192/26", tunnelOfCalico))
	const tunnel = "\n192.168.0.192 VXLAN tunnel node1 at ipamblocks 192-168-0-192-26 /spec/allocations/0"
	l.await("it does", pool("known")+tunnel)

	f.set(func() { f.down = true })
	f.cut()
	l.await("the API is away", pool("stale: the Kubernetes API is not heard from")+tunnel)
	f.set(func() { f.down = false })
	live(t, c)
	l.await("it is back", pool("known")+tunnel)

	// A right is revoked, and after that one resource fails.
	f.set(func() { f.forbidden[calico.Blocks.String()] = true })
	f.cut()
	const missing = "may not list and watch ipamblocks.crd.projectcalico.org: what Calico has given is not known; grant ipwitness's ClusterRole list and watch of ipamblocks.crd.projectcalico.org"
	l.await("a right is missing", pool("unreadable: "+missing)+tunnel)
	wait.Until(t, "it is said", func() bool {
		s := c.Status()
		return s.GetState() == pb.Kubernetes_LIVE && len(s.GetProblems()) == 1 && s.GetProblems()[0] == missing
	})
	f.set(func() { delete(f.forbidden, calico.Blocks.String()); f.broken = calico.Blocks.String() })
	wait.Until(t, "it is there, and does not work", func() bool {
		again()
		return strings.Contains(l.says(), "cannot follow ipamblocks.crd.projectcalico.org")
	})
	if s := c.Status(); s.GetState() != pb.Kubernetes_LIVE {
		t.Errorf("got status %v", s)
	}
	f.set(func() { f.broken = "" })
	soon("it works", pool("known")+tunnel)
	if p := c.Status().GetProblems(); len(p) != 0 {
		t.Errorf("got problems %q", p)
	}
	f.uninstall(calico.Blocks)
	soon("blocks are no more", pool("reading"))
	f.uninstall(calico.Pools)
	soon("Calico is no more", "")
	f.install(calico.Pools, calico.Blocks)
	f.apply(calico.Pools, calicoPoolText)
	f.apply(calico.Blocks, calicoBlockText("192-168-0-192-26", "192.168.0.192/26", tunnelOfCalico))
	soon("Calico is back", pool("known")+tunnel)
}

// IPAMs that are not installed are not reported, even if the rights to read them are missing,
// too.
func TestNoIPAM(t *testing.T) {
	f := newFakeAPI(t)
	for _, k := range customKinds() {
		f.forbidden[k.String()] = true
	}
	c := f.open()
	l := keep(t, c)
	live(t, c)
	wait.Until(t, "it is asked what is there", func() bool { f.mu.Lock(); defer f.mu.Unlock(); return f.custom.asked > 2 })
	if l.says() != "" || len(c.Status().GetProblems()) != 0 {
		t.Errorf("got %s, problems %q", l.says(), c.Status().GetProblems())
	}
	f.install(calico.Pools, calico.Blocks)
	f.apply(calico.Pools, calicoPoolText)
	wait.Until(t, "it is said that it may not be read", func() bool {
		return strings.HasPrefix(l.says(), "calico crd.projectcalico.org unreadable: may not list and watch ip")
	})
	f.set(func() { clear(f.forbidden) })
	l.await("it may", "calico default-ipv4-ippool reading 192.168.0.0-192.168.255.255")
}

// If discovery is forbidden, each resource is tried.
func TestDiscoveryThatIsForbidden(t *testing.T) {
	f := newFakeAPI(t)
	f.install(calico.Pools, calico.Blocks)
	f.custom.hidden = true
	for _, k := range customKinds() {
		f.forbidden[k.String()] = k.Group == "cilium.io"
	}
	f.apply(calico.Pools, calicoPoolText)
	f.apply(calico.Blocks, calicoBlockText("192-168-0-192-26", "192.168.0.192/26", tunnelOfCalico))
	c := f.open()
	l := keep(t, c)
	wait.Until(t, "Calico is read", func() bool { return strings.HasPrefix(l.says(), "calico default-ipv4-ippool known") })
	if p := c.Status().GetProblems(); len(p) != 1 || !strings.HasPrefix(p[0], "may not discover custom resources") {
		t.Errorf("got problems %q", p)
	}
}

// An IPReservation excludes addresses from a pool. They are allocated only on request.
func TestReservationsOfCalico(t *testing.T) {
	f := newFakeAPI(t)
	f.install(calico.Pools, calico.Blocks, calico.Reservations)
	f.apply(calico.Pools, calicoPoolText)
	f.apply(calico.Blocks, calicoBlockText("192-168-0-0-26", "192.168.0.0/26", podOfCalico("asked", "node1", idOne)))
	f.apply(calico.Reservations, "metadata: {name: edge}\nspec: {reservedCIDRs: [192.168.0.0/24, 192.168.255.255, fd00::/64, nonsense]}")
	l := keep(t, f.open())
	const asked = "\n192.168.0.0 default/asked " + idOne + " node1 at ipamblocks 192-168-0-0-26 /spec/allocations/0"
	l.await("some are kept back", "calico default-ipv4-ippool known 192.168.1.0-192.168.255.254"+asked)
	f.apply(calico.Reservations, "metadata: {name: middle}\nspec: {reservedCIDRs: [192.168.128.0/17, 192.168.2.0/32]}")
	l.await("more are", "calico default-ipv4-ippool known 192.168.1.0-192.168.1.255 192.168.2.1-192.168.127.255"+asked)
	f.apply(calico.Reservations, "metadata: {name: edge}\nspec: {}")
	f.remove(calico.Reservations, ipam.Key{Name: "middle"})
	l.await("none is", "calico default-ipv4-ippool known 192.168.0.0-192.168.255.255"+asked)
	// Without the right to list reservations, the pool is still known.
	f.apply(calico.Reservations, "metadata: {name: edge}\nspec: {reservedCIDRs: [192.168.0.0/24]}")
	l.await("some are again", "calico default-ipv4-ippool known 192.168.1.0-192.168.255.255"+asked)
	f.set(func() { f.forbidden[calico.Reservations.String()] = true })
	c := f.open()
	without := keep(t, c)
	without.await("it may not be read", "calico default-ipv4-ippool known 192.168.0.0-192.168.255.255"+asked)
	const problem = "may not list and watch ipreservations.crd.projectcalico.org: addresses that Calico keeps back (IPReservation) count as those that it gives; " +
		"grant ipwitness's ClusterRole list and watch of ipreservations.crd.projectcalico.org"
	wait.Until(t, "it is said", func() bool { return slices.Equal(c.Status().GetProblems(), []string{problem}) })
}

// Newer versions of Calico use another API group if the API server does not serve the old one.
func TestCalicoOfTheNativeGroup(t *testing.T) {
	f := newFakeAPI(t)
	f.install(native(calico.Pools), native(calico.Blocks), native(calico.Affinities), native(calico.Handles), native(calico.Reservations))
	f.apply(native(calico.Pools), calicoPoolText)
	f.apply(native(calico.Blocks), calicoBlockText("192-168-0-192-26", "192.168.0.192/26", tunnelOfCalico))
	f.apply(native(calico.Reservations), "metadata: {name: edge}\nspec: {reservedCIDRs: [192.168.0.0/17]}")
	c := f.open()
	l := keep(t, c)
	const tunnel = "\n192.168.0.192 VXLAN tunnel node1 at ipamblocks 192-168-0-192-26 /spec/allocations/0"
	l.await("Calico is read", "calico default-ipv4-ippool known 192.168.128.0-192.168.255.255"+tunnel)
	f.apply(native(calico.Blocks), calicoBlockText("192-168-0-192-26", "192.168.0.192/26", tunnelOfCalico, podOfCalico("nginx", "node1", idOne)))
	l.await("what changes is heard", "calico default-ipv4-ippool known 192.168.128.0-192.168.255.255"+tunnel+
		"\n192.168.0.193 default/nginx "+idOne+" node1 at ipamblocks 192-168-0-192-26 /spec/allocations/1")
	if p := c.Status().GetProblems(); len(p) != 0 {
		t.Errorf("got problems %q", p)
	}
	// A missing right is reported with the name of the served resource.
	f.set(func() { f.forbidden[native(calico.Blocks).String()] = true })
	f.cut()
	wait.Until(t, "a right is missing", func() bool {
		return len(c.Status().GetProblems()) == 1 && strings.HasPrefix(c.Status().GetProblems()[0], "may not list and watch ipamblocks.projectcalico.org: ")
	})
	f.set(func() { clear(f.forbidden) })
	wait.Until(t, "it is there again", func() bool {
		c.mu.Lock()
		close(c.health.returned)
		c.health.returned = make(chan struct{})
		c.mu.Unlock()
		return strings.HasPrefix(l.says(), "calico default-ipv4-ippool known")
	})
}

// Calico's own API server serves the newer group from objects of the old group, and may be
// unavailable.
func TestCalicoBehindItsAPIServer(t *testing.T) {
	f := newFakeAPI(t)
	f.install(calico.Pools, calico.Blocks, native(calico.Pools))
	f.apply(calico.Pools, calicoPoolText)
	f.apply(calico.Blocks, calicoBlockText("192-168-0-192-26", "192.168.0.192/26", tunnelOfCalico))
	l := keep(t, f.open())
	const want = "calico default-ipv4-ippool known 192.168.0.0-192.168.255.255\n192.168.0.192 VXLAN tunnel node1 at ipamblocks 192-168-0-192-26 /spec/allocations/0"
	l.await("it is read as it is kept", want)
	f.mu.Lock()
	asked := f.custom.lists[native(calico.Pools)]
	f.mu.Unlock()
	if asked != 0 {
		t.Errorf("Calico's API server is asked %d times", asked)
	}
	// If Calico keeps its objects in etcd, no resource is served and nothing is reported.
	other := newFakeAPI(t)
	other.install(native(calico.Pools), whereabouts.Pools)
	other.apply(whereabouts.Pools, whereaboutsPool)
	other.custom.away = native(calico.Pools).Group
	l = keep(t, other.open())
	wait.Until(t, "what else there is is read", func() bool { return strings.HasPrefix(l.says(), "whereabouts kube-system/192.168.2.0-24 known") })
	other.set(func() { other.custom.away = "" })
	wait.Until(t, "it is asked again", func() bool { other.mu.Lock(); defer other.mu.Unlock(); return other.custom.asked > 3 })
	if strings.Contains(l.says(), "calico") {
		t.Errorf("got %s", l.says())
	}
}

func TestOddCalico(t *testing.T) {
	f := newFakeAPI(t)
	f.install(calico.Pools, calico.Blocks, calico.Affinities, calico.Handles)
	f.apply(calico.Pools, "metadata: {name: odd}\nspec: {cidr: 10.0.0.0/8}")
	// Indexes of missing attributes, and more allocations than addresses.
	f.apply(calico.Blocks, "metadata: {name: 10-0-0-0-30}\nspec: {cidr: 10.0.0.0/30, attributes: [], allocations: [null, 7, null, null]}")
	l := keep(t, f.open())
	const one = "\n10.0.0.1 at ipamblocks 10-0-0-0-30 /spec/allocations/1"
	l.await("attributes that there are not", "calico odd known 10.0.0.0-10.255.255.255: the IPAMBlock 10-0-0-0-30 of Calico is odd: "+
		"/spec/allocations/1 names attributes 7 of 0: who has that address is not known; `calicoctl ipam check` may tell more"+one)
	f.apply(calico.Blocks, "metadata: {name: 10-0-0-0-30}\nspec: {cidr: 10.0.0.0/30, attributes: [{}], allocations: [null, 0, null, null, 0]}")
	l.await("more allocations than addresses", "calico odd known 10.0.0.0-10.255.255.255: the IPAMBlock 10-0-0-0-30 of Calico is odd: "+
		"it has 4 addresses, and /spec/allocations has 5; `calicoctl ipam check` may tell more"+one)
	// If an object cannot be read, the previous state remains but counts as unreliable.
	f.apply(calico.Blocks, "metadata: {name: 10-0-0-0-30}\nspec: {cidr: 10.0.0.0/30, allocations: {}}")
	l.await("another kind of list", "calico odd unreadable 10.0.0.0-10.255.255.255: the IPAMBlock 10-0-0-0-30 of Calico is odd: "+
		"its spec is not as we know it: /allocations is a JSON object; `calicoctl ipam check` may tell more"+one)
	f.apply(calico.Blocks, "metadata: {name: 10-0-0-0-30}\nspec: {cidr: 10.0.0.0/30, attributes: [{handle_id: k8s-pod-network.abc}], allocations: [null, 0, null, null]}")
	l.await("it is as it should be", "calico odd known 10.0.0.0-10.255.255.255"+one)

	f.apply(calico.Handles, "metadata: {name: k8s-pod-network.abc}\nspec: {handleID: k8s-pod-network.abc, deleted: false, block: {10.0.0.0/30: 1}}")
	f.apply(calico.Handles, "metadata: {name: k8s-pod-network.xyz}\nspec: {handleID: k8s-pod-network.xyz, deleted: false, block: {10.0.0.0/30: 1}}")
	l.await("a handle that no block has", "calico odd known 10.0.0.0-10.255.255.255: 1 IPAMHandles of Calico count addresses of blocks that do not have them: `calicoctl ipam check` names them"+one)
	f.remove(calico.Handles, ipam.Key{Name: "k8s-pod-network.xyz"})
	l.await("it is gone", "calico odd known 10.0.0.0-10.255.255.255"+one)
}

// BenchmarkCalico lists 100,000 addresses in blocks of 64.
func BenchmarkCalico(b *testing.B) {
	const blocks = 1563
	f := newFakeAPI(b)
	f.install(calico.Pools, calico.Blocks)
	f.apply(calico.Pools, "metadata: {name: big}\nspec: {cidr: 10.0.0.0/8}")
	n := 0
	for i := range blocks {
		var given []string
		for range 64 {
			given = append(given, podOfCalico(fmt.Sprintf("service-%03d-7d4b9c6f5d-%05x", n%300, n), fmt.Sprintf("ip-10-0-%d-%d.eu-central-1.compute.internal", i/250, i%250), fmt.Sprintf("%064x", n)))
			n++
		}
		f.apply(calico.Blocks, calicoBlockText(fmt.Sprintf("10-%d-%d-%d-26", i/1024, i/4%256, i%4*64), fmt.Sprintf("10.%d.%d.%d/26", i/1024, i/4%256, i%4*64), given...))
	}
	var kept, took float64
	for b.Loop() {
		c := f.open()
		c.discovery.every = 20 * time.Millisecond
		told := 0
		c.Notify(func(changes Changes) { told += len(changes.IPAM) })
		before := heap()
		begin := time.Now()
		stop := run(c)
		wait.Until(b, "all is told", func() bool {
			c.mu.RLock()
			defer c.mu.RUnlock()
			return len(c.ipams) > 1 && len(c.pending.changes.IPAM) == 0 && c.ipams[1].state != 0 && c.ipams[1].pools["big"] != nil && c.ipams[1].sources[1].state == followed
		})
		took += time.Since(begin).Seconds()
		kept += float64(heap() - before)
		stop()
		runtime.KeepAlive(c)
	}
	b.ReportMetric(kept/float64(b.N)/float64(n), "heap-B/allocation")
	b.ReportMetric(took/float64(b.N), "sync-s")
}
