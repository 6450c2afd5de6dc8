package allocations

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/ipwitness/ipwitness/agent/table"

	"github.com/ipwitness/ipwitness/ipam/calico"
	"github.com/ipwitness/ipwitness/ipam/hostlocal"
	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// ipamLab is a node with its own directories for IPAM, the reader of these directories, and
// the state that the reader reports to an aggregator.
type ipamLab struct {
	t    *testing.T
	root string
	conf string // the directory of CNI configurations
	dir  string // the parent of host-local's directories
	ipam *Reader

	reader      *table.Reader
	pools       map[string]*ipwitnessv1.PoolRecord
	allocations map[string]map[string]*ipwitnessv1.AllocationRecord // by pool and address
	snapshots   int
	status      chan struct{} // holds one token while the status may have changed
}

// patience is the maximum time to wait for a condition.
const patience = 2 * time.Minute

// newIPAMLab returns a lab whose reader does not run yet.
func newIPAMLab(t *testing.T) *ipamLab {
	t.Helper()
	root := t.TempDir()
	l := &ipamLab{
		t: t, root: root, status: make(chan struct{}, 1), conf: filepath.Join(root, "etc/cni/net.d"), dir: filepath.Join(root, "var/lib/cni/networks"),
		pools: map[string]*ipwitnessv1.PoolRecord{}, allocations: map[string]map[string]*ipwitnessv1.AllocationRecord{},
	}
	tab := table.New()
	l.ipam = New(slog.New(slog.DiscardHandler), tab, Config{
		CNIConfig: []string{l.conf}, Dirs: map[string][]string{hostlocal.Name: {l.dir}, calico.IPAM.Name: {filepath.Join(root, "var/lib/calico")}},
	}, false)
	l.reader = tab.Attach()
	t.Cleanup(l.reader.Detach)
	l.ipam.StatusChanged = func() { table.Poke(l.status) }
	return l
}

// startIPAM returns a lab whose reader runs until the test ends.
func startIPAM(t *testing.T, prepare ...func(l *ipamLab)) *ipamLab {
	t.Helper()
	l := newIPAMLab(t)
	for _, p := range prepare {
		p(l)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- l.ipam.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("reader of IPAM: got %v after cancel, want nil", err)
		}
	})
	<-l.ipam.ready
	return l
}

// take applies the reported changes.
func (l *ipamLab) take() {
	for m := l.reader.Take(time.Now()); m != nil; m = l.reader.Take(time.Now()) {
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
				l.t.Errorf("allocation %s was reported without its pool %q", addr, a.GetPool())
			case a.GetGone():
				delete(in, addr.String())
			default:
				in[addr.String()] = a
			}
		}
	}
}

// await waits until a condition holds for the reported state.
func (l *ipamLab) await(what string, cond func() bool) {
	l.t.Helper()
	timeout := time.NewTimer(patience)
	defer timeout.Stop()
	for l.take(); !cond(); l.take() {
		select {
		case <-l.reader.Wake():
		case <-l.status:
		case <-timeout.C:
			problems := l.ipam.Health().Problems
			l.t.Fatalf("timed out waiting for %s: pools %v, allocations %v, problems %q", what, l.pools, l.allocations, problems)
		}
	}
}

// path returns the path of a network's directory.
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

// give allocates an address in the same way as host-local.
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

// giveMany allocates n addresses, starting with 10.1.0.1.
func (l *ipamLab) giveMany(network string, n int) {
	l.t.Helper()
	for i := range n {
		l.give(network, fmt.Sprintf("10.1.%d.%d", i/250, i%250+1), fmt.Sprint("c", i))
	}
}

// awaitGiven waits until a pool has n allocations and the given state.
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
