package kube

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/calico"
	"github.com/ipwitness/ipwitness/ipam/registry"
	"github.com/ipwitness/ipwitness/ipam/vip"
	"github.com/ipwitness/ipwitness/tests/ipamtest"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// ledger accumulates IPAM changes as a subscriber does. It checks their order.
type ledger struct {
	t  testing.TB
	mu sync.Mutex
	// pools and allocations are the current ones, by their identity.
	pools       map[string]*verdict.Pool
	allocations map[string]*verdict.Allocation
	changes     int
}

func newLedger(t testing.TB) *ledger {
	return &ledger{t: t, pools: map[string]*verdict.Pool{}, allocations: map[string]*verdict.Allocation{}}
}

// keep runs a mirror until the test ends, and returns a ledger of its changes.
func keep(t testing.TB, c *Cluster) *ledger {
	t.Helper()
	l := newLedger(t)
	c.discovery.every, c.discovery.check = 20*time.Millisecond, 0
	c.Notify(func(changes Changes) { l.take(changes.IPAM) })
	t.Cleanup(run(c))
	return l
}

func (l *ledger) take(changes []IPAMChange) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range changes {
		l.changes++
		if p := c.Pool; p != nil {
			name := p.IPAM + " " + p.Name
			if l.pools[name] = p; c.Gone {
				delete(l.pools, name)
				for at := range l.allocations {
					if strings.HasPrefix(at, name+" ") {
						l.t.Errorf("%s was removed before its allocation %s", name, at)
					}
				}
			}
			continue
		}
		al := c.Allocation
		pool := al.Pool.IPAM + " " + al.Pool.Name
		at := pool + " " + al.Address.String() + " " + al.Location
		if l.pools[pool] == nil && !c.Gone {
			l.t.Errorf("%s is reported before its pool", at)
		}
		if l.allocations[at] = al; c.Gone {
			delete(l.allocations, at)
		}
	}
}

// text returns the contents, one line each: pools as IPAM NAME STATE RANGES, and allocations
// as ADDRESS OWNER at LOCATION.
func (l *ledger) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var lines []string
	for _, name := range slices.Sorted(maps.Keys(l.pools)) {
		if l.pools[name].IPAM != vip.KubeProxy.Name { // every API server has a Service
			lines = append(lines, ipamtest.DescribePool(&l.pools[name].Pool))
		}
	}
	for _, at := range slices.Sorted(maps.Keys(l.allocations)) {
		if l.allocations[at].Service == nil {
			lines = append(lines, ipamtest.DescribeAllocation(&l.allocations[at].Allocation))
		}
	}
	return strings.Join(lines, "\n")
}

// await waits until the contents are as given.
func (l *ledger) await(what, want string) {
	l.t.Helper()
	want = strings.TrimSpace(want)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	over := time.After(patience)
	for {
		got := l.text()
		if got == want {
			return
		}
		select {
		case <-tick.C:
		case <-over:
			l.t.Fatalf("%s: got\n%s\nwant\n%s", what, got, want)
		}
	}
}

// countChanges returns the number of changes since the last call.
func (l *ledger) countChanges() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.changes
	l.changes = 0
	return n
}

// However long the subscriber is busy, there is one pending change for each pool and allocation, and they lead
// to the same state.
func TestPendingIPAMChangesAreBounded(t *testing.T) {
	c := liveMirror(t, func(*Cluster) {})
	m := newPublisher(c, "test")
	late, prompt := newLedger(t), newLedger(t)
	step := func(do func()) {
		before := c.pending
		c.pending = newPending()
		do()
		changes, _ := c.take()
		prompt.take(changes.IPAM)
		c.pending = before
		for _, change := range changes.IPAM {
			c.changeIPAM(change)
		}
	}
	const pools, locations = 7, 5
	for i := range 500 { // pools come and go with all their allocations
		name := fmt.Sprint(i % pools)
		of := func(n int) ipam.Allocation {
			return ipam.Allocation{Address: addresses("10.0.0.1")[0], Location: fmt.Sprint(n), Pod: fmt.Sprint(i)}
		}
		step(func() { m.Put(ipam.Pool{Name: name}, fmt.Sprint(i), false) })
		for n := range locations {
			step(func() { m.Allocate(name, of(n), 0) })
		}
		if i%11 == 0 {
			continue
		}
		for n := range locations {
			step(func() { m.Release(name, of(n)) })
		}
		step(func() { m.Drop(name) })
		if i == 300 { // some of them are known to the subscriber
			changes, _ := c.take()
			late.take(changes.IPAM)
		}
	}
	changes, _ := c.take()
	if n := len(changes.IPAM); n > pools*(1+locations) {
		t.Errorf("got %d pending changes", n)
	}
	late.take(changes.IPAM)
	if got, want := late.text(), prompt.text(); got != want || want == "" {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// The removal of a forbidden resource is noticed, although the API server answers requests for
// it as before.
func TestResourceRemovedWithoutReadPermission(t *testing.T) {
	f := newFakeAPI(t)
	f.install(calico.Pools, calico.Blocks)
	f.apply(calico.Pools, ipamtest.CalicoPool)
	f.apply(calico.Blocks, ipamtest.CalicoBlock("192-168-0-192-26", "192.168.0.192/26", ipamtest.CalicoTunnel))
	c := f.open()
	l := keep(t, c)
	wait.Until(t, "Calico is read", func() bool { return strings.HasPrefix(l.text(), "calico default-ipv4-ippool known") })
	f.set(func() { f.forbidden[calico.Pools.String()], f.forbidden[calico.Blocks.String()] = true, true })
	f.cut()
	wait.Until(t, "the read permission is missing", func() bool { return strings.HasPrefix(l.text(), "calico default-ipv4-ippool unreadable") })
	f.uninstall(calico.Blocks)
	f.uninstall(calico.Pools)
	wait.Until(t, "Calico is removed", func() bool {
		c.mu.Lock() // skips the wait between attempts
		close(c.health.returned)
		c.health.returned = make(chan struct{})
		c.mu.Unlock()
		return l.text() == ""
	})
}

// A resource that is served only in versions that ipwitness does not know is a problem, also if other resources of its
// group are served in the version that it knows.
func TestUnknownVersionsOfResourcesAreProblems(t *testing.T) {
	f := newFakeAPI(t)
	var want []string
	for _, m := range registry.All {
		if m.Objects == nil {
			continue
		}
		for _, r := range m.Objects(nil).Resources {
			odd, other := r.Kind, r.Kind
			odd.Version, other.Resource = "v99", "others"
			f.install(odd, other)
			want = append(want, fmt.Sprintf("%s.%s is served only as [v99], but ipwitness supports only %s: %s; use a version of ipwitness that supports it", r.Kind.Resource, r.Kind.Group, r.Kind.Version, r.Lost))
		}
	}
	c := f.open()
	keep(t, c)
	live(t, c)
	for _, problem := range want {
		wait.Until(t, problem, func() bool { return slices.Contains(c.Status().GetProblems(), problem) })
	}
}
