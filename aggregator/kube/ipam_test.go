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
)

// ledger is what was told of IPAMs, as whoever is told keeps it. It checks the order.
type ledger struct {
	t  testing.TB
	mu sync.Mutex
	// pools and allocations are those that there are, in words.
	pools       map[string]*verdict.Pool
	allocations map[string]*verdict.Allocation
	changes     int
}

func newLedger(t testing.TB) *ledger {
	return &ledger{t: t, pools: map[string]*verdict.Pool{}, allocations: map[string]*verdict.Allocation{}}
}

// keep runs a mirror until the test ends, and keeps what it tells.
func keep(t testing.TB, c *Cluster) *ledger {
	t.Helper()
	l := newLedger(t)
	c.discovery.every, c.discovery.check, c.discovery.believe = 20*time.Millisecond, 0, 0
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
						l.t.Errorf("%s is gone before its allocation %s", name, at)
					}
				}
			}
			continue
		}
		al := c.Allocation
		pool := al.Pool.IPAM + " " + al.Pool.Name
		at := pool + " " + al.Address.String() + " " + al.Location
		switch {
		case l.pools[pool] == nil && !c.Gone:
			l.t.Errorf("%s is told before its pool", at)
		case c.Gone && l.allocations[at] == nil:
			l.t.Errorf("%s is gone and was not there", at)
		}
		if l.allocations[at] = al; c.Gone {
			delete(l.allocations, at)
		}
	}
}

// says is all that is told, a line for each: pools as IPAM NAME STATE RANGES, and
// allocations as ADDRESS for WHOM at WHERE.
func (l *ledger) says() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var lines []string
	for _, name := range slices.Sorted(maps.Keys(l.pools)) {
		lines = append(lines, describePool(l.pools[name]))
	}
	for _, at := range slices.Sorted(maps.Keys(l.allocations)) {
		lines = append(lines, describeAllocation(l.allocations[at]))
	}
	return strings.Join(lines, "\n")
}

func describePool(p *verdict.Pool) string {
	text := fmt.Sprintf("%s %s %s", p.IPAM, p.Name, [...]string{"", "known", "reading", "missing", "unreadable", "stale"}[p.State])
	for _, r := range p.Ranges {
		text += fmt.Sprintf(" %s-%s", r.First, r.Last)
	}
	if p.Problem != "" {
		text += ": " + p.Problem
	}
	return text
}

func describeAllocation(al *verdict.Allocation) string {
	text := al.Address.String()
	for _, part := range []string{al.Purpose, al.Namespace + "/" + al.Pod, al.ContainerID, al.Interface, al.Node} {
		if part != "" && part != "/" {
			text += " " + part
		}
	}
	return text + " at " + al.Location
}

// await waits until what is told is this.
func (l *ledger) await(what, want string) {
	l.t.Helper()
	want = strings.TrimSpace(want)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	over := time.After(patience / 4)
	for {
		got := l.says()
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

// told counts what was told since it was last asked.
func (l *ledger) told() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.changes
	l.changes = 0
	return n
}

// Who may not list it is not told that it was removed.
func TestResourceThatIsRemovedWhileNobodyMayReadIt(t *testing.T) {
	f := newFakeAPI(t)
	f.install(calicoPools, calicoBlocks)
	f.apply(calicoPools, calicoPoolText)
	f.apply(calicoBlocks, calicoBlockText("192-168-0-192-26", "192.168.0.192/26", tunnelOfCalico))
	c := f.open()
	l := keep(t, c)
	until(t, "Calico is read", func() bool { return strings.HasPrefix(l.says(), "calico default-ipv4-ippool known") })
	f.set(func() { f.forbidden[calicoPools.String()], f.forbidden[calicoBlocks.String()] = true, true })
	f.cut()
	until(t, "it may not be read", func() bool { return strings.HasPrefix(l.says(), "calico default-ipv4-ippool unreadable") })
	f.uninstall(calicoBlocks)
	f.uninstall(calicoPools)
	until(t, "Calico is no more", func() bool {
		c.mu.Lock() // nobody waits
		close(c.health.returned)
		c.health.returned = make(chan struct{})
		c.mu.Unlock()
		return l.says() == ""
	})
}
