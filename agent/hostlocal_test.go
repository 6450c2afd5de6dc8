package agent

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// ipamLab is a node with directories of its own for IPAM, what an aggregator is
// told of them, and its reader.
type ipamLab struct {
	t    *testing.T
	root string
	conf string // directory of CNI's configurations
	dir  string // of host-local's directories
	ipam *ipam

	reader      *reader
	pools       map[string]*ipwitnessv1.PoolRecord
	allocations map[string]map[string]*ipwitnessv1.AllocationRecord // by pool and address
	snapshots   int
}

// newIPAMLab makes a lab whose reader does not run yet.
func newIPAMLab(t *testing.T) *ipamLab {
	t.Helper()
	root := t.TempDir()
	l := &ipamLab{
		t: t, root: root, conf: filepath.Join(root, "etc/cni/net.d"), dir: filepath.Join(root, "var/lib/cni/networks"),
		pools: map[string]*ipwitnessv1.PoolRecord{}, allocations: map[string]map[string]*ipwitnessv1.AllocationRecord{},
	}
	tab := newTable()
	l.ipam = newIPAM(slog.New(slog.DiscardHandler), tab, Config{
		CNIConfig: []string{l.conf}, IPAMDirs: []string{l.dir}, CalicoNodename: filepath.Join(root, "var/lib/calico/nodename"),
	})
	l.reader = tab.attach()
	t.Cleanup(l.reader.detach)
	l.ipam.statusChanged = func() { poke(l.reader.wake) }
	return l
}

// startIPAM makes a lab whose reader runs until the test ends.
func startIPAM(t *testing.T, prepare ...func(l *ipamLab)) *ipamLab {
	t.Helper()
	l := newIPAMLab(t)
	for _, p := range prepare {
		p(l)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- l.ipam.run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("reader of IPAM: got %v after cancel, want nil", err)
		}
	})
	<-l.ipam.ready
	return l
}

// take takes up what is told.
func (l *ipamLab) take() {
	for m := l.reader.take(time.Now()); m != nil; m = l.reader.take(time.Now()) {
		if m.GetSnapshotBegin() {
			clear(l.pools)
			clear(l.allocations)
			l.snapshots++
		}
		for _, p := range m.GetPools() {
			if p.GetIpam() != "host-local" {
				l.t.Errorf("pool %q: got IPAM %q", p.GetName(), p.GetIpam())
			}
			if p.GetGone() {
				delete(l.pools, p.GetName())
				delete(l.allocations, p.GetName())
				continue
			}
			l.pools[p.GetName()] = p
			if l.allocations[p.GetName()] == nil {
				l.allocations[p.GetName()] = map[string]*ipwitnessv1.AllocationRecord{}
			}
		}
		for _, a := range m.GetAllocations() {
			addr, _ := netip.AddrFromSlice(a.GetAddress())
			in := l.allocations[a.GetPool()]
			switch {
			case in == nil:
				l.t.Errorf("allocation %s was told without its pool %q", addr, a.GetPool())
			case a.GetGone():
				delete(in, addr.String())
			default:
				in[addr.String()] = a
			}
		}
	}
}

// await waits until a condition holds for what is told.
func (l *ipamLab) await(what string, cond func() bool) {
	l.t.Helper()
	timeout := time.NewTimer(30 * time.Second)
	defer timeout.Stop()
	for l.take(); !cond(); l.take() {
		select {
		case <-l.reader.wake:
		case <-timeout.C:
			problems, _ := l.ipam.health()
			l.t.Fatalf("waited in vain for %s: pools %v, allocations %v, problems %q", what, l.pools, l.allocations, problems)
		}
	}
}

// path is that of a network's directory.
func (l *ipamLab) path(network string) string { return filepath.Join(l.dir, network) }

// must fails the test on an error.
func (l *ipamLab) must(errs ...error) {
	l.t.Helper()
	for _, err := range errs {
		if err != nil {
			l.t.Fatal(err)
		}
	}
}

// configure writes a configuration.
func (l *ipamLab) configure(file, conf string) {
	l.t.Helper()
	l.must(os.MkdirAll(l.conf, 0o755), os.WriteFile(filepath.Join(l.conf, file), []byte(conf), 0o644))
}

// give does what host-local does to give an address.
func (l *ipamLab) give(network, addr, container string) {
	l.t.Helper()
	l.must(giveTo(l.path(network), addr, container))
}

func giveTo(dir, addr, container string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for name, content := range map[string]string{"lock": "", addr: container + "\r\neth0", "last_reserved_ip.0": addr} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			return err
		}
	}
	return nil
}

// giveMany gives 10.1.0.1 and so on.
func (l *ipamLab) giveMany(network string, n int) {
	l.t.Helper()
	for i := range n {
		l.give(network, fmt.Sprintf("10.1.%d.%d", i/250, i%250+1), fmt.Sprint("c", i))
	}
}

// awaitGiven waits until a pool has so many allocations and is in a state.
func (l *ipamLab) awaitGiven(network string, n int, state ipwitnessv1.Pool_State) *ipwitnessv1.PoolRecord {
	l.t.Helper()
	path := l.path(network)
	l.await(fmt.Sprintf("%s to be %s with %d allocations", network, state, n), func() bool {
		return l.pools[path].GetState() == state && len(l.allocations[path]) == n
	})
	return l.pools[path]
}

const (
	known      = ipwitnessv1.Pool_KNOWN
	missing    = ipwitnessv1.Pool_MISSING
	unreadable = ipwitnessv1.Pool_UNREADABLE
)

func TestAllocationsOfHostLocalAreTold(t *testing.T) {
	l := startIPAM(t)
	before := time.Now().Add(-time.Second)
	l.give("pods", "10.1.0.2", "c2")
	l.give("pods", "fd00::2", "c2")
	l.must(os.WriteFile(filepath.Join(l.path("pods"), "10.1.0.9"), []byte("old"), 0o600)) // before the interface was written
	p := l.awaitGiven("pods", 3, known)
	if p.GetNetwork() != "pods" || p.GetProblem() != "" || p.GetLostAt() != nil || len(p.GetRanges()) != 0 {
		t.Errorf("pool without configuration: got %v", p)
	}
	a := l.allocations[l.path("pods")]
	l.await("whole files", func() bool {
		return a["10.1.0.2"].GetContainerId() == "c2" && a["fd00::2"].GetContainerId() == "c2" && a["10.1.0.9"].GetContainerId() == "old"
	})
	if a["10.1.0.2"].GetInterface() != "eth0" || a["10.1.0.9"].GetInterface() != "" || a["10.1.0.2"].GetAllocatedAt().AsTime().Before(before) {
		t.Errorf("allocations: got %v", a)
	}
	l.must(os.Remove(filepath.Join(l.path("pods"), "10.1.0.2")), os.WriteFile(filepath.Join(l.path("pods"), "10.1.0.9"), []byte("new\neth1"), 0o600))
	l.await("changes", func() bool { return len(a) == 2 && a["10.1.0.9"].GetContainerId() == "new" })
	l.must(os.Remove(filepath.Join(l.path("pods"), "10.1.0.9")), os.Remove(filepath.Join(l.path("pods"), "fd00::2")))
	if p := l.awaitGiven("pods", 0, known); p.GetLostAt() != nil || p.GetLost() != 0 {
		t.Errorf("pool after the last pod has given back its address: got %v, want no loss", p)
	}
}

func TestLossOfAllAllocationsIsTold(t *testing.T) {
	away := func(l *ipamLab) { l.must(os.Rename(l.path("pods"), filepath.Join(l.root, "away"))) }
	for name, c := range map[string]struct {
		lose  func(l *ipamLab)
		state ipwitnessv1.Pool_State
	}{
		"removed":                      {func(l *ipamLab) { l.must(os.RemoveAll(l.path("pods"))) }, missing},
		"removed with its parents":     {func(l *ipamLab) { l.must(os.RemoveAll(filepath.Join(l.root, "var"))) }, missing},
		"renamed":                      {away, missing},
		"renamed with its parent":      {func(l *ipamLab) { l.must(os.Rename(l.dir, l.dir+".bak")) }, missing},
		"renamed with its grandparent": {func(l *ipamLab) { l.must(os.Rename(filepath.Dir(l.dir), filepath.Dir(l.dir)+".bak")) }, missing},
		"emptied": {func(l *ipamLab) {
			entries, err := os.ReadDir(l.path("pods"))
			l.must(err)
			for _, e := range entries {
				l.must(os.Remove(filepath.Join(l.path("pods"), e.Name())))
			}
		}, known},
		"made anew": {func(l *ipamLab) { l.must(os.RemoveAll(l.path("pods")), os.Mkdir(l.path("pods"), 0o755)) }, known},
		"replaced":  {func(l *ipamLab) { away(l); l.must(os.Mkdir(l.path("pods"), 0o755)) }, known},
	} {
		t.Run(name, func(t *testing.T) {
			l := startIPAM(t)
			l.giveMany("pods", 250)
			l.awaitGiven("pods", 250, known)
			before := time.Now()
			c.lose(l)
			l.await("the loss", func() bool { return l.pools[l.path("pods")].GetLost() != 0 })
			p := l.awaitGiven("pods", 0, c.state)
			if p.GetLost() != 250 || p.GetLostAt().AsTime().Before(before) || (p.GetProblem() == "") != (c.state == known) {
				t.Errorf("pool: got %v, want 250 lost", p)
			}
			// Who comes next takes an address that others have: the loss stays.
			l.give("pods", "10.1.0.1", "next")
			if p := l.awaitGiven("pods", 1, known); p.GetLost() != 250 {
				t.Errorf("pool after the next pod: got %v, want 250 lost", p)
			}
			// Once all that was lost is written anew, nothing is.
			l.must(os.Remove(filepath.Join(l.path("pods"), "10.1.0.1")))
			l.giveMany("pods", 250)
			if p := l.awaitGiven("pods", 250, known); p.GetLost() != 0 || p.GetLostAt() != nil {
				t.Errorf("pool that was written anew: got %v, want no loss", p)
			}
		})
	}
}
