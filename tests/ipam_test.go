package tests

import (
	"context"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/netlab"
)

// listener is an aggregator that only stores the IPAM records of an agent.
type listener struct {
	ipwitnessv1.UnimplementedReportServiceServer
	t *testing.T

	mu          sync.Mutex
	changed     chan struct{} // closed with the next report
	pools       map[string]*ipwitnessv1.PoolRecord
	allocations map[string]map[string]*ipwitnessv1.AllocationRecord // by pool and address
	status      *ipwitnessv1.StatusRecord
}

// Report implements ipwitness.v1.ReportService.
func (l *listener) Report(s ipwitnessv1.ReportService_ReportServer) error {
	if err := s.Send(&ipwitnessv1.ReportResponse{Instance: "listener"}); err != nil {
		return err
	}
	for {
		m, err := s.Recv()
		if err != nil {
			return nil
		}
		l.take(m)
	}
}

func (l *listener) take(m *ipwitnessv1.ReportRequest) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range m.GetPools() {
		if l.pools[p.GetName()] = p; l.allocations[p.GetName()] == nil || p.GetGone() {
			l.allocations[p.GetName()] = map[string]*ipwitnessv1.AllocationRecord{}
		}
	}
	for _, a := range m.GetAllocations() {
		addr, _ := netip.AddrFromSlice(a.GetAddress())
		if l.allocations[a.GetPool()][addr.String()] = a; a.GetGone() {
			delete(l.allocations[a.GetPool()], addr.String())
		}
	}
	if m.GetStatus() != nil {
		l.status = m.GetStatus()
	}
	close(l.changed)
	l.changed = make(chan struct{})
}

// await waits until a condition holds for the stored records.
func (l *listener) await(what string, cond func() bool) {
	l.t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	for {
		l.mu.Lock()
		holds, changed := cond(), l.changed
		l.mu.Unlock()
		if holds {
			return
		}
		select {
		case <-changed:
		case <-deadline.C:
			l.mu.Lock()
			defer l.mu.Unlock()
			l.t.Fatalf("timed out waiting for %s: pools %v, allocations %v, status %v", what, l.pools, l.allocations, l.status)
		}
	}
}

// newListener creates a host with an agent that reports to a listener.
func newListener(t *testing.T) (*lab, *listener) {
	t.Helper()
	h := newHost(t)
	l := &listener{
		t: t, changed: make(chan struct{}), pools: map[string]*ipwitnessv1.PoolRecord{},
		allocations: map[string]map[string]*ipwitnessv1.AllocationRecord{},
	}
	var at net.Listener
	err := h.Do(func() (err error) {
		at, err = net.Listen("tcp", "127.0.0.1:0")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	ipwitnessv1.RegisterReportServiceServer(s, l)
	go func() { _ = s.Serve(at) }()
	t.Cleanup(s.Stop)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	p, err := h.Agent(ctx, binary, "--node", "node1", "--aggregator", at.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	killed(t, "the agent", p)
	return &lab{Host: h, t: t, agent: p}, l
}

// awaitPool waits until a pool has a state and a number of allocations.
func (l *listener) awaitPool(name string, state ipwitnessv1.Pool_State, allocations int) *ipwitnessv1.PoolRecord {
	l.t.Helper()
	l.await(name+" to be "+state.String(), func() bool {
		return l.pools[name].GetState() == state && len(l.allocations[name]) == allocations
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.pools[name]
}

func TestAgentReportsHostLocalAllocationsOfRealPods(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ network, dir, plugin, device string }{
		"ptp":    {netlab.PTP, "/run/cni-ipam-state/kindnet", "ptp", ""},
		"bridge": {netlab.Bridge, "/var/lib/cni/networks/cbr0", "bridge", "cni0"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, reported := newListener(t)
			cni := l.cni(c.network)
			p := reported.awaitPool(c.dir, ipwitnessv1.Pool_MISSING, 0)
			if p.GetLostAt() != nil || p.GetPlugin() != c.plugin || p.GetDevice() != c.device || !p.GetRouted() || p.GetNetwork() != filepath.Base(c.dir) ||
				p.GetConfig() != "/etc/cni/net.d/"+p.GetNetwork()+".conflist" || len(p.GetRanges()) != 1 || len(p.GetGateways()) != 1 {
				t.Errorf("pool before the first pod: got %v", p)
			}
			first, _ := netip.AddrFromSlice(p.GetRanges()[0].GetFirst())
			add(t, cni, "web", "db")
			reported.awaitPool(c.dir, ipwitnessv1.Pool_KNOWN, 2)
			reported.await("the pod's container", func() bool {
				a := reported.allocations[c.dir][first.String()]
				return strings.HasPrefix(a.GetContainerId(), "cnitool-") && a.GetInterface() == "eth0" && a.GetAllocatedAt() != nil
			})
			if err := cni.Delete("web"); err != nil {
				t.Fatal(err)
			}
			reported.awaitPool(c.dir, ipwitnessv1.Pool_KNOWN, 1)
			if err := cni.Forget(); err != nil {
				t.Fatal(err)
			}
			if p := reported.awaitPool(c.dir, ipwitnessv1.Pool_MISSING, 0); p.GetLost() == 0 || p.GetLostAt() == nil {
				t.Errorf("removed pool: got %v, want a loss", p)
			}
			add(t, cni, "cache")
			if p := reported.awaitPool(c.dir, ipwitnessv1.Pool_KNOWN, 1); p.GetLost() == 0 {
				t.Errorf("pool after the loss: got %v, want the loss to be reported still", p)
			}
		})
	}
}

func TestAgentSeesWhatIsMountedOverHostLocal(t *testing.T) {
	t.Parallel()
	l, reported := newListener(t)
	const dir = "/var/lib/cni/networks/cbr0"
	cni := l.cni(netlab.Bridge)
	add(t, cni, "web", "db")
	reported.awaitPool(dir, ipwitnessv1.Pool_KNOWN, 2)
	l.sh("mount -t tmpfs tmpfs /var/lib/cni/networks")
	if p := reported.awaitPool(dir, ipwitnessv1.Pool_MISSING, 0); p.GetLost() != 2 {
		t.Errorf("pool with something mounted over it: got %v, want 2 lost", p)
	}
	l.sh("umount /var/lib/cni/networks")
	if p := reported.awaitPool(dir, ipwitnessv1.Pool_KNOWN, 2); p.GetLostAt() != nil {
		t.Errorf("restored pool: got %v, want no loss", p)
	}

	// As in a container where the directory itself is mounted, and not its parent.
	l.sh("mkdir /var/lib/kept", "mv /var/lib/cni/networks /var/lib/kept/", "mkdir /var/lib/cni/networks", "mount --bind /var/lib/kept/networks /var/lib/cni/networks")
	reported.await("the directory that is mounted", func() bool { return reported.pools[dir].GetLostAt() == nil && len(reported.allocations[dir]) == 2 })
	// Remove it by one rename: an agent with little CPU time would see a removal file by file as
	// many removals.
	l.sh("mv /var/lib/kept/networks/cbr0 /var/lib/kept/cbr0", "rmdir /var/lib/kept/networks")
	p := reported.awaitPool(dir, ipwitnessv1.Pool_UNREADABLE, 0)
	if p.GetLost() != 2 || !strings.Contains(p.GetProblem(), "mount its parent") {
		t.Errorf("pool whose mounted directory was removed: got %v", p)
	}
	reported.await("the problem", func() bool {
		return strings.Contains(strings.Join(reported.status.GetProblems(), "\n"), "mount its parent")
	})
}

func TestAgentReportsCalicosNodeName(t *testing.T) {
	t.Parallel()
	l, reported := newListener(t)
	const file = "/var/lib/calico/nodename"
	put := func(path, content string) {
		t.Helper()
		if err := os.WriteFile(l.Path(path), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write := func(name string) { t.Helper(); put(file, name) }
	called := func(name string) func() bool {
		return func() bool { return reported.status != nil && reported.status.GetNodeName().GetName() == name }
	}
	reported.await("no name", called(""))
	l.sh("mkdir /var/lib/calico")
	write(" worker-1\n")
	reported.await("the name", called("worker-1"))
	write("worker-2")
	reported.await("another name", called("worker-2"))
	write(strings.Repeat("x", 254))
	reported.await("an invalid name", func() bool {
		return called("")() && strings.Contains(strings.Join(reported.status.GetProblems(), "\n"), file)
	})
	write("worker-3")
	reported.await("a name again", called("worker-3"))
	// The CNI configuration takes precedence (projectcalico/calico issue 12257). A process writes it
	// in two pieces.
	const conf = `{"name": "k8s-pod-network", "cniVersion": "0.3.1", "plugins": [{"type": "calico", "nodename": "template-0", "ipam": {"type": "calico-ipam"}}]}`
	const at = "/etc/cni/net.d/10-calico.conflist"
	put(at, conf[:40])
	put(at, conf)
	reported.await("the name in the CNI configuration", called("template-0"))
	if n := reported.status.GetNodeName(); n.GetSource() != ipwitnessv1.NodeName_CONFIGURATION || n.GetFile() != at {
		t.Errorf("got %v, want the file", n)
	}
	l.sh("rm " + at)
	reported.await("the name in the file", func() bool {
		return called("worker-3")() && reported.status.GetNodeName().GetSource() == ipwitnessv1.NodeName_FILE
	})
	l.sh("rm -r /var/lib/calico")
	reported.await("no name again", called(""))
}
