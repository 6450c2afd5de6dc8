package kube

import (
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/calico"
	"github.com/ipwitness/ipwitness/ipam/podips"
	"github.com/ipwitness/ipwitness/ipam/whereabouts"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/ipamtest"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// Pools go through these states as API servers come and go, and as rights and resources
// change.
func TestStatesOfPools(t *testing.T) {
	f := newFakeAPI(t)
	f.install(calico.Pools, calico.Blocks)
	f.apply(calico.Pools, ipamtest.CalicoPool)
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
		wait.Until(t, what, func() bool { again(); return l.text() == want })
	}
	l.await("Calico is installed and allocates nothing", pool("reading"))
	f.apply(calico.Blocks, ipamtest.CalicoBlock("192-168-0-192-26", "192.168.0.192/26", ipamtest.CalicoTunnel))
	const tunnel = "\n192.168.0.192 VXLAN tunnel node1 at ipamblocks 192-168-0-192-26 /spec/allocations/0"
	l.await("Calico allocates addresses", pool("known")+tunnel)

	f.set(func() { f.down = true })
	f.cut()
	l.await("the API is unreachable", pool("stale: the Kubernetes API does not respond")+tunnel)
	f.set(func() { f.down = false })
	live(t, c)
	l.await("the API is reachable again", pool("known")+tunnel)

	// A right is revoked, and after that one resource fails.
	f.set(func() { f.forbidden[calico.Blocks.String()] = true })
	f.cut()
	const missing = "no permission to list and watch ipamblocks.crd.projectcalico.org: the allocations of Calico are unknown; grant ipwitness's ClusterRole list and watch of ipamblocks.crd.projectcalico.org"
	l.await("a permission is missing", pool("unreadable: "+missing)+tunnel)
	wait.Until(t, "the problem is reported", func() bool {
		s := c.Status()
		return s.GetState() == pb.Kubernetes_LIVE && len(s.GetProblems()) == 1 && s.GetProblems()[0] == missing
	})
	f.set(func() { delete(f.forbidden, calico.Blocks.String()); f.broken = calico.Blocks.String() })
	wait.Until(t, "the resource exists but does not work", func() bool {
		again()
		return strings.Contains(l.text(), "cannot follow ipamblocks.crd.projectcalico.org")
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
	soon("the blocks are no longer served", pool("reading"))
	f.uninstall(calico.Pools)
	soon("Calico is removed", "")
	f.install(calico.Pools, calico.Blocks)
	f.apply(calico.Pools, ipamtest.CalicoPool)
	f.apply(calico.Blocks, ipamtest.CalicoBlock("192-168-0-192-26", "192.168.0.192/26", ipamtest.CalicoTunnel))
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
	wait.Until(t, "discovery is requested", func() bool { f.mu.Lock(); defer f.mu.Unlock(); return f.custom.asked > 2 })
	if l.text() != "" || len(c.Status().GetProblems()) != 0 {
		t.Errorf("got %s, problems %q", l.text(), c.Status().GetProblems())
	}
	f.install(calico.Pools, calico.Blocks)
	f.apply(calico.Pools, ipamtest.CalicoPool)
	wait.Until(t, "the missing permission is reported", func() bool {
		return strings.HasPrefix(l.text(), "calico crd.projectcalico.org unreadable: no permission to list and watch ip")
	})
	f.set(func() { clear(f.forbidden) })
	l.await("the permission is granted", "calico default-ipv4-ippool reading 192.168.0.0-192.168.255.255")
}

// If discovery is forbidden for some time, that is a problem.
func TestForbiddenDiscovery(t *testing.T) {
	f := newFakeAPI(t)
	f.custom.hidden = true
	c := f.open()
	keep(t, c)
	records := func() map[string]ipam.State { c.mu.RLock(); defer c.mu.RUnlock(); return c.unknown() }
	wait.Until(t, "the records of Calico are awaited", func() bool { return records()[calico.IPAM.Name] == ipam.Reading })
	wait.Until(t, "the problem is reported", func() bool {
		p := c.Status().GetProblems()
		return len(p) == 1 && strings.HasPrefix(p[0], "no permission to discover custom resources")
	})
	wait.Until(t, "the records of Calico cannot be read", func() bool { return records()[calico.IPAM.Name] == ipam.Unreadable })
	f.set(func() { f.custom.hidden = false })
	wait.Until(t, "there is no problem any more", func() bool { return len(c.Status().GetProblems()) == 0 && len(records()) == 0 })
}

// Only what is expected to become readable is awaited, and Events are not.
func TestOnlyWhatCanBeReadIsAwaited(t *testing.T) {
	for name, test := range map[string]struct {
		fails func(f *fakeAPI)
		want  map[string]ipam.State
	}{
		"nothing fails":                   {func(*fakeAPI) {}, map[string]ipam.State{}},
		"pods are forbidden":              {func(f *fakeAPI) { f.forbidden["pods"] = true }, map[string]ipam.State{podips.IPAM.Name: ipam.Unreadable}},
		"nodes fail":                      {func(f *fakeAPI) { f.broken = "nodes" }, map[string]ipam.State{podips.IPAM.Name: ipam.Unreadable}},
		"services fail":                   {func(f *fakeAPI) { f.broken = "services" }, map[string]ipam.State{podips.IPAM.Name: ipam.Unreadable}},
		"Events fail":                     {func(f *fakeAPI) { f.broken = "events" }, map[string]ipam.State{}},
		"discovery has no reply":          {func(f *fakeAPI) { f.custom.mute = true }, nil},
		"the server does not respond yet": {func(f *fakeAPI) { f.down = true }, Unread()},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFakeAPI(t)
			test.fails(f)
			c := f.open()
			keep(t, c)
			time.Sleep(4 * firstBackoff) // three attempts
			wait.Until(t, "the records that are not known", func() bool {
				c.mu.RLock()
				defer c.mu.RUnlock()
				now := c.unknown()
				if test.want == nil {
					return now[calico.IPAM.Name] == ipam.Unreadable && now[podips.IPAM.Name] == 0
				}
				return maps.Equal(now, test.want)
			})
		})
	}
}

// Newer versions of Calico use another API group if the API server does not serve the old one.
func TestCalicoOfTheNativeGroup(t *testing.T) {
	f := newFakeAPI(t)
	f.install(native(calico.Pools), native(calico.Blocks), native(calico.Affinities), native(calico.Reservations))
	f.apply(native(calico.Pools), ipamtest.CalicoPool)
	f.apply(native(calico.Blocks), ipamtest.CalicoBlock("192-168-0-192-26", "192.168.0.192/26", ipamtest.CalicoTunnel))
	f.apply(native(calico.Reservations), "metadata: {name: edge}\nspec: {reservedCIDRs: [192.168.0.0/17]}")
	c := f.open()
	l := keep(t, c)
	const tunnel = "\n192.168.0.192 VXLAN tunnel node1 at ipamblocks 192-168-0-192-26 /spec/allocations/0"
	l.await("Calico is read", "calico default-ipv4-ippool known 192.168.128.0-192.168.255.255"+tunnel)
	f.apply(native(calico.Blocks), ipamtest.CalicoBlock("192-168-0-192-26", "192.168.0.192/26", ipamtest.CalicoTunnel, ipamtest.CalicoPod("nginx", "node1", ipamtest.ContainerID)))
	l.await("a change arrives", "calico default-ipv4-ippool known 192.168.128.0-192.168.255.255"+tunnel+
		"\n192.168.0.193 default/nginx "+ipamtest.ContainerID+" node1 at ipamblocks 192-168-0-192-26 /spec/allocations/1")
	if p := c.Status().GetProblems(); len(p) != 0 {
		t.Errorf("got problems %q", p)
	}
	// A missing right is reported with the name of the served resource.
	f.set(func() { f.forbidden[native(calico.Blocks).String()] = true })
	f.cut()
	wait.Until(t, "a permission is missing", func() bool {
		return len(c.Status().GetProblems()) == 1 && strings.HasPrefix(c.Status().GetProblems()[0], "no permission to list and watch ipamblocks.projectcalico.org: ")
	})
	f.set(func() { clear(f.forbidden) })
	wait.Until(t, "Calico is installed again", func() bool {
		c.mu.Lock()
		close(c.health.returned)
		c.health.returned = make(chan struct{})
		c.mu.Unlock()
		return strings.HasPrefix(l.text(), "calico default-ipv4-ippool known")
	})
}

// Calico's own API server serves the newer group from objects of the old group, and may be
// unavailable.
func TestCalicoBehindItsAPIServer(t *testing.T) {
	f := newFakeAPI(t)
	f.install(calico.Pools, calico.Blocks, native(calico.Pools))
	f.apply(calico.Pools, ipamtest.CalicoPool)
	f.apply(calico.Blocks, ipamtest.CalicoBlock("192-168-0-192-26", "192.168.0.192/26", ipamtest.CalicoTunnel))
	l := keep(t, f.open())
	const want = "calico default-ipv4-ippool known 192.168.0.0-192.168.255.255\n192.168.0.192 VXLAN tunnel node1 at ipamblocks 192-168-0-192-26 /spec/allocations/0"
	l.await("the stored objects are read", want)
	f.mu.Lock()
	asked := f.custom.lists[native(calico.Pools)]
	f.mu.Unlock()
	if asked != 0 {
		t.Errorf("Calico's API server got %d requests", asked)
	}
	// If Calico keeps its objects in etcd, no resource is served and nothing is reported.
	other := newFakeAPI(t)
	other.install(native(calico.Pools), whereabouts.Pools)
	other.apply(whereabouts.Pools, ipamtest.WhereaboutsPool)
	other.custom.away = native(calico.Pools).Group
	l = keep(t, other.open())
	wait.Until(t, "the other resources are read", func() bool { return strings.HasPrefix(l.text(), "whereabouts kube-system/192.168.2.0-24 known") })
	other.set(func() { other.custom.away = "" })
	wait.Until(t, "discovery is requested again", func() bool { other.mu.Lock(); defer other.mu.Unlock(); return other.custom.asked > 3 })
	if strings.Contains(l.text(), "calico") {
		t.Errorf("got %s", l.text())
	}
}

// The IPAM publishes what is listed and what changes, and nothing if a listing has no differences.
func TestCalico(t *testing.T) {
	f := newFakeAPI(t)
	f.install(calico.Pools, calico.Blocks)
	f.apply(calico.Pools, ipamtest.CalicoPool)
	f.apply(calico.Blocks, ipamtest.CalicoBlock("192-168-0-192-26", "192.168.0.192/26", ipamtest.CalicoTunnel, ipamtest.CalicoPod("nginx", "node1", ipamtest.ContainerID)))
	c := f.open()
	l := keep(t, c)
	const (
		pool   = "calico default-ipv4-ippool known 192.168.0.0-192.168.255.255"
		tunnel = "\n192.168.0.192 VXLAN tunnel node1 at ipamblocks 192-168-0-192-26 /spec/allocations/0"
		nginx  = "\n192.168.0.193 default/nginx " + ipamtest.ContainerID + " node1 at ipamblocks 192-168-0-192-26 /spec/allocations/1"
	)
	l.await("all is listed", pool+tunnel+nginx)
	if al := l.allocations["calico default-ipv4-ippool 192.168.0.193 ipamblocks 192-168-0-192-26 /spec/allocations/1"]; al.AllocatedAt.Time().UTC().Format(time.RFC3339) != "2023-09-26T17:11:53Z" {
		t.Errorf("got %+v", al)
	}
	l.countChanges()
	f.set(func() { f.expired = true })
	f.cut()
	wait.Until(t, "the blocks are listed again", func() bool { f.mu.Lock(); defer f.mu.Unlock(); return f.custom.lists[calico.Blocks] > 1 })
	f.set(func() { f.expired = false })
	live(t, c)
	if n := l.countChanges(); n != 0 {
		t.Errorf("got %d changes, want none", n)
	}
	f.apply(calico.Blocks, ipamtest.CalicoBlock("192-168-0-192-26", "192.168.0.192/26", ipamtest.CalicoTunnel))
	l.await("an address is freed", pool+tunnel)
}

// The records are known without an extra resource that may not be read.
func TestExtraResourceWithoutReadPermission(t *testing.T) {
	f := newFakeAPI(t)
	f.install(calico.Pools, calico.Blocks, calico.Reservations)
	f.apply(calico.Pools, ipamtest.CalicoPool)
	f.apply(calico.Blocks, ipamtest.CalicoBlock("192-168-0-0-26", "192.168.0.0/26", ipamtest.CalicoTunnel))
	f.apply(calico.Reservations, "metadata: {name: edge}\nspec: {reservedCIDRs: [192.168.0.0/24]}")
	const tunnel = "\n192.168.0.0 VXLAN tunnel node1 at ipamblocks 192-168-0-0-26 /spec/allocations/0"
	l := keep(t, f.open())
	l.await("some addresses are reserved", "calico default-ipv4-ippool known 192.168.1.0-192.168.255.255"+tunnel)
	f.set(func() { f.forbidden[calico.Reservations.String()] = true })
	c := f.open()
	without := keep(t, c)
	without.await("the read permission is missing", "calico default-ipv4-ippool known 192.168.0.0-192.168.255.255"+tunnel)
	const problem = "no permission to list and watch ipreservations.crd.projectcalico.org: addresses that Calico reserves (IPReservation) count as allocatable; " +
		"grant ipwitness's ClusterRole list and watch of ipreservations.crd.projectcalico.org"
	wait.Until(t, "the problem is reported", func() bool { return slices.Equal(c.Status().GetProblems(), []string{problem}) })
}

// IPAMs look at intervals for inconsistencies that last.
func TestInconsistenciesThatLast(t *testing.T) {
	f := newFakeAPI(t)
	f.nodes = []corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "node1"}}}
	f.install(calico.Pools, calico.Blocks, calico.Affinities)
	f.apply(calico.Pools, ipamtest.CalicoPool)
	f.apply(calico.Blocks, ipamtest.CalicoBlock("192-168-0-192-26", "192.168.0.192/26", ipamtest.CalicoTunnel))
	f.apply(calico.Affinities, "metadata: {name: gone}\nspec: {cidr: 192.168.0.128/26, node: gone}")
	l := keep(t, f.open())
	const pool, tunnel = "calico default-ipv4-ippool known 192.168.0.0-192.168.255.255", "\n192.168.0.192 VXLAN tunnel node1 at ipamblocks 192-168-0-192-26 /spec/allocations/0"
	l.await("a block of a node that does not exist", pool+": the block 192.168.0.128/26 of Calico is bound to node gone, which does not exist: `calicoctl ipam check` lists such blocks, and Calico's kube-controllers should free them"+tunnel)
	f.remove(calico.Affinities, ipam.Key{Name: "gone"})
	l.await("the inconsistency is gone", pool+tunnel)
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
			given = append(given, ipamtest.CalicoPod(fmt.Sprintf("service-%03d-7d4b9c6f5d-%05x", n%300, n), fmt.Sprintf("ip-10-0-%d-%d.eu-central-1.compute.internal", i/250, i%250), fmt.Sprintf("%064x", n)))
			n++
		}
		f.apply(calico.Blocks, ipamtest.CalicoBlock(fmt.Sprintf("10-%d-%d-%d-26", i/1024, i/4%256, i%4*64), fmt.Sprintf("10.%d.%d.%d/26", i/1024, i/4%256, i%4*64), given...))
	}
	var kept, took float64
	for b.Loop() {
		c := f.open()
		c.discovery.every = 20 * time.Millisecond
		reported := 0
		c.Notify(func(changes Changes) { reported += len(changes.IPAM) })
		before := heap()
		begin := time.Now()
		stop := run(c)
		wait.Until(b, "all changes are reported", func() bool {
			c.mu.RLock()
			defer c.mu.RUnlock()
			return len(c.ipams) > 1 && len(c.pending.ipam) == 0 && c.ipams[1].state != 0 && c.ipams[1].pools["big"] != nil && c.ipams[1].sources[1].state == followed
		})
		took += time.Since(begin).Seconds()
		kept += float64(heap() - before)
		stop()
		runtime.KeepAlive(c)
	}
	b.ReportMetric(kept/float64(b.N)/float64(n), "heap-B/allocation")
	b.ReportMetric(took/float64(b.N), "sync-s")
}
