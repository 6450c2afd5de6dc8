package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"
	"kernel.org/pub/linux/libs/security/libcap/cap"

	"github.com/ipwitness/ipwitness/agent/kernel"
	"github.com/ipwitness/ipwitness/agent/report"
	"github.com/ipwitness/ipwitness/agent/rtnetlink"
	"github.com/ipwitness/ipwitness/agent/table"
	"github.com/ipwitness/ipwitness/bpf"
	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/agenttest"
	"github.com/ipwitness/ipwitness/tests/alone"
	"github.com/ipwitness/ipwitness/tests/netlab"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// witness is an aggregator that keeps what an agent reports.
type witness struct {
	ipwitnessv1.UnimplementedReportServiceServer
	mu         sync.Mutex
	first      *ipwitnessv1.ReportRequest
	hello      *ipwitnessv1.Hello
	status     *ipwitnessv1.StatusRecord
	namespaces map[uint32]*ipwitnessv1.NamespaceRecord
	claims     map[string]bool // "kind address"
	pools      map[string]bool
	ask        chan *ipwitnessv1.ReportResponse
}

func (w *witness) Report(s ipwitnessv1.ReportService_ReportServer) error {
	for _, m := range []*ipwitnessv1.ReportResponse{{Instance: "a"}, {Acknowledged: 1}} {
		if err := s.Send(m); err != nil {
			return err
		}
	}
	go func() {
		for {
			select {
			case m := <-w.ask:
				_ = s.Send(m)
			case <-s.Context().Done():
				return
			}
		}
	}()
	for {
		m, err := s.Recv()
		if err != nil {
			return err
		}
		w.take(m)
	}
}

func (w *witness) take(m *ipwitnessv1.ReportRequest) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.first == nil {
		w.first, w.hello = m, m.GetHello()
	}
	if m.GetStatus() != nil {
		w.status = m.GetStatus()
	}
	for _, n := range m.GetNamespaces() {
		w.namespaces[n.GetId()] = n
	}
	for _, p := range m.GetPools() {
		w.pools[p.GetNetwork()] = true
	}
	for _, c := range m.GetClaims() {
		w.claims[fmt.Sprint(c.GetKind(), " ", net.IP(c.GetAddress()))] = !c.GetGone()
	}
}

// has reports whether the agent claims an address, by a kind of evidence.
func (w *witness) has(claim string) func() bool {
	return func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.claims[claim]
	}
}

// said reports whether a problem in the status contains a text.
func (w *witness) said(text string) func() bool {
	return func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return slices.ContainsFunc(w.status.GetProblems(), func(p string) bool { return strings.Contains(p, text) })
	}
}

// running is an agent that reports to a witness.
type running struct {
	*Agent
	*witness
	t    *testing.T
	dir  string // of its files
	logs *safeBuffer
	reg  *prometheus.Registry
	conn *grpc.ClientConn
}

type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safeBuffer) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(b)
}

func (s *safeBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func newRunning(t *testing.T, how Wire) *running {
	t.Helper()
	dir, err := os.MkdirTemp("", "") // not t.TempDir: the agent may no longer unmount what is there
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	r := &running{t: t, dir: dir, logs: &safeBuffer{}, reg: prometheus.NewRegistry()}
	r.witness = &witness{namespaces: map[uint32]*ipwitnessv1.NamespaceRecord{}, claims: map[string]bool{}, pools: map[string]bool{}, ask: make(chan *ipwitnessv1.ReportResponse)}
	listener := bufconn.Listen(1 << 20)
	server := grpc.NewServer()
	ipwitnessv1.RegisterReportServiceServer(server, r.witness)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	r.conn, err = grpc.NewClient("passthrough:///bufconn",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.conn.Close() })
	at := func(name string) string { return filepath.Join(r.dir, name) }
	for name, content := range map[string]string{
		"networks/pods/10.244.0.9": "some-container\neth0",
		"calico/nodename":          "calico-1",
		"netns/keep":               "",
		"results/keep":             `{"kind":"cniCacheV1"}`,
		"net.d/10-pods.conflist": fmt.Sprintf(`{"cniVersion":"1.0.0","name":"pods","plugins":[{"type":"bridge","ipam":{"type":"host-local",
			"dataDir":%q,"ranges":[[{"subnet":"10.244.0.0/24"}]]}}]}`, at("networks")), // and not what this machine has
	} {
		path := at(name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	r.Agent, err = New(Config{
		Node: "node1", Version: "v1", Wire: how, NetnsDirs: []string{at("netns")}, CNIResults: at("results"), CNIConfig: []string{at("net.d")},
		IPAMDirs: []string{at("networks")}, CalicoDir: at("calico"), CRISocket: at("missing\xff.sock"), ExcludeInterfaces: []string{"hidden*"},
	}, slog.New(slog.NewTextHandler(r.logs, nil)), r.reg)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// start runs the agent, and returns a function that stops it.
func (r *running) start() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx, report.Fixed("a", r.conn)) }()
	return func() {
		r.t.Helper()
		cancel()
		if err := <-ended; err != nil {
			r.t.Errorf("run: got error %v", err)
		}
	}
}

// metric returns the value of a series as the agent serves it, or "" if there is none.
func (r *running) metric(series string) string {
	w := httptest.NewRecorder()
	r.Handler(r.reg).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	m := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(series) + ` (\S+)$`).FindStringSubmatch(w.Body.String())
	if m == nil {
		return ""
	}
	return m[1]
}

func (r *running) wantMetrics(want map[string]string) {
	r.t.Helper()
	for series, value := range want {
		if got := r.metric("ipwitness_agent_" + series); got != value {
			r.t.Errorf("%s: got %q, want %q", series, got, value)
		}
	}
}

// pod is a network namespace that can still be used after the agent has dropped its capabilities.
type pod struct {
	t       *testing.T
	inside  *netlink.Handle
	ns      netns.NsHandle
	home    netns.NsHandle
	packets int // a socket
	eth0    *netlink.Veth
}

func newPod(t *testing.T) *pod {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	home, err := netns.Get()
	must(err)
	ns, err := netns.New()
	must(err)
	p := &pod{t: t, ns: ns, home: home}
	p.packets, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	must(err)
	p.inside, err = netlink.NewHandle(unix.NETLINK_ROUTE)
	must(err)
	must(netns.Set(home))
	t.Cleanup(func() {
		p.inside.Close()
		_ = unix.Close(p.packets)
		_, _ = ns.Close(), home.Close()
	})
	return p
}

// connect adds a veth to the node, and gives the pod an address.
func (p *pod) connect(host, addr string) *pod {
	p.t.Helper()
	p.eth0 = &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}, PeerName: host, PeerNamespace: netlink.NsFd(p.home)}
	err := p.inside.LinkAdd(p.eth0)
	if err == nil {
		err = p.inside.LinkSetUp(p.eth0)
	}
	var l netlink.Link
	if err == nil {
		l, err = netlink.LinkByName(host)
	}
	if err == nil {
		err = netlink.LinkSetUp(l)
	}
	if err != nil {
		p.t.Fatal(err)
	}
	p.assign(addr)
	return p
}

func (p *pod) assign(addr string) {
	p.t.Helper()
	a, err := netlink.ParseAddr(addr)
	if err == nil {
		err = p.inside.AddrAdd(p.eth0, a)
	}
	if err != nil {
		p.t.Fatal(err)
	}
}

// announce sends an ARP reply of the pod.
func (p *pod) announce(addr string) {
	p.t.Helper()
	frame := netlab.ARP(2, net.HardwareAddr{2, 0, 0, 0, 0, 9}, netip.MustParseAddr(addr), netip.MustParseAddr("10.244.0.254"))
	if err := unix.Sendto(p.packets, frame, 0, &unix.SockaddrLinklayer{Ifindex: p.eth0.Index}); err != nil {
		p.t.Fatal(err)
	}
}

// flood sends frames as fast as it can. The senders are numbered from first on.
func (p *pod) flood(first, frames int) {
	p.t.Helper()
	for i := first; i < first+frames; i++ {
		sha, addr := net.HardwareAddr{2, 0, 1, byte(i >> 16), byte(i >> 8), byte(i)}, netip.AddrFrom4([4]byte{11, byte(i >> 16), byte(i >> 8), byte(i)})
		if err := unix.Sendto(p.packets, netlab.ARP(2, sha, addr, netip.MustParseAddr("10.244.0.254")), 0, &unix.SockaddrLinklayer{Ifindex: p.eth0.Index}); err != nil && !errors.Is(err, unix.ENOBUFS) {
			p.t.Fatal(err)
		}
	}
}

// name mounts the namespace of the pod over a file.
func (p *pod) name(path string) {
	p.t.Helper()
	err := os.WriteFile(path, nil, 0o600)
	if err == nil {
		err = unix.Mount(fmt.Sprintf("/proc/self/fd/%d", int(p.ns)), path, "", unix.MS_BIND, "")
	}
	if err != nil {
		p.t.Fatal(err)
	}
}

// waits is set in the environment of a process that waits in a pod.
const waits = "IPWITNESS_TEST_WAITS"

// TestWaitsForTheEndOfItsInput is the process of another test.
func TestWaitsForTheEndOfItsInput(*testing.T) {
	if os.Getenv(waits) != "" {
		_, _ = io.Copy(io.Discard, os.Stdin)
	}
}

// wait starts a process in the pod that waits until the test ends, and returns its PID.
func (p *pod) wait() (pid uint32) {
	p.t.Helper()
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestWaitsForTheEndOfItsInput$")
	cmd.Env = append(os.Environ(), waits+"=1")
	input, err := cmd.StdinPipe()
	if err == nil {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err = netns.Set(p.ns)
	}
	if err == nil {
		err = cmd.Start()
	}
	if e := netns.Set(p.home); e != nil || err != nil {
		p.t.Fatal(err, e)
	}
	p.t.Cleanup(func() { _, _ = input.Close(), cmd.Wait() })
	return uint32(cmd.Process.Pid)
}

func without(t *testing.T, values ...cap.Value) {
	t.Helper()
	set := cap.GetProc()
	for _, f := range []cap.Flag{cap.Effective, cap.Permitted} {
		if err := set.SetFlag(f, false, values...); err != nil {
			t.Fatal(err)
		}
	}
	if err := set.SetProc(); err != nil {
		t.Fatal(err)
	}
}

func TestAgentReportsAddressesFramesAndFiles(t *testing.T) {
	alone.Run(t, func() {
		r := newRunning(t, WireClsact)
		first, later := newPod(t).connect("veth1", "10.244.0.2/24"), newPod(t)
		newPod(t).connect("hidden0", "10.244.0.3/24")
		first.name(filepath.Join(r.dir, "netns/blue"))
		process := first.wait()
		other, err := bpf.Load()
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = other.Close() }()
		if got := r.metric("ipwitness_agent_source_up{source=\"wire\"}"); got != "" {
			t.Errorf("sources before the start: got %q, want none", got)
		}
		stop := r.start()
		wait.Until(t, "addresses are reported", func() bool {
			return r.has("ASSIGNED 10.244.0.2")() && r.has("ASSIGNED 10.244.0.3")()
		})
		wait.Until(t, "the observer is attached", func() bool {
			r.mu.Lock()
			defer r.mu.Unlock()
			return len(r.status.GetPorts()) == 1
		})
		first.announce("10.244.0.77")
		wait.Until(t, "frames are reported", r.has("ANSWERED 10.244.0.77"))
		later.connect("veth2", "10.244.0.4/24")
		wait.Until(t, "changes are reported", r.has("ASSIGNED 10.244.0.4"))
		wait.Until(t, "the runtime is missed", r.said("missing\uFFFD.sock"))
		wait.Until(t, "the pool is reported", func() bool {
			r.mu.Lock()
			defer r.mu.Unlock()
			return r.pools["pods"]
		})

		r.mu.Lock()
		s, h := r.status, r.witness.hello
		if h.GetNode() != "node1" || h.GetVersion() != "v1" || h.GetBootId() == "" || h.GetNetns() == "" || h.GetEpoch() == 0 || h.GetKernel() == "" {
			t.Errorf("hello: got %v", h)
		}
		if s.GetWire() != "clsact" || s.GetBlind() || s.GetNodeName().GetName() != "calico-1" || s.GetLostEvents() != 0 {
			t.Errorf("status: got %v, want clsact and Calico's name", s)
		}
		unread := len(r.first.GetStatus().GetUnreadIpams()) > 0 // on a slow machine
		if len(r.first.GetAllocations()) != 1 && !unread || len(r.first.GetClaims()) < 2 || r.first.GetStatus() == nil {
			t.Errorf("first report: got %v, want the status, the allocation and the addresses", r.first)
		}
		if !slices.ContainsFunc(r.first.GetNamespaces(), func(n *ipwitnessv1.NamespaceRecord) bool { return n.GetWorkload().GetProcessId() == process }) {
			t.Errorf("first report: got %v, want the process of the pod", r.first.GetNamespaces())
		}
		r.mu.Unlock()
		wait.Until(t, "the second pod is watched", func() bool { return r.metric(`ipwitness_agent_interfaces{mode="clsact"}`) == "2" })
		r.wantMetrics(map[string]string{
			`source_up{source="wire"}`: "1", `source_up{source="addresses"}`: "1", `interfaces{mode="tcx"}`: "0", "interfaces_unobserved": "0", "interfaces_flooding": "0",
			`lost_events_total{source="netlink"}`: "0", `lost_events_total{source="netlink_malformed"}`: "0", `lost_events_total{source="inotify"}`: "0",
			`lost_events_total{source="ringbuf"}`: "0", `lost_events_total{source="port_full"}`: "0", "report_connected": "1", `aggregators{state="connected"}`: "1",
			`aggregators{state="disconnected"}`: "0", "cri_connected": "0", "problems": "1", `frames_total{protocol="arp",result="event"}`: "1",
		})
		if got := r.metric("ipwitness_agent_claims"); got == "0" || got == "" {
			t.Errorf("claims: got %q, want some", got)
		}

		// The name of the pod comes later than its namespace.
		result := fmt.Sprintf(`{"kind":"cniCacheV1","containerId":"abc","cniArgs":[["K8S_POD_NAMESPACE","shop"],["K8S_POD_NAME","web-0"],["K8S_POD_UID","u1"]],`+
			`"result":{"interfaces":[{"name":"eth0","sandbox":%q}]}}`, filepath.Join(r.dir, "netns/blue"))
		if err := os.WriteFile(filepath.Join(r.dir, "results/pods-abc-eth0"), []byte(result), 0o600); err != nil {
			t.Fatal(err)
		}
		wait.Until(t, "the pod has its name", func() bool {
			r.mu.Lock()
			defer r.mu.Unlock()
			for _, n := range r.namespaces {
				if n.GetWorkload().GetName() == "web-0" {
					return true
				}
			}
			return false
		})

		// The aggregator asks for more frames of an address.
		begun, checks := time.Now(), 0
		r.ask <- &ipwitnessv1.ReportResponse{Contests: []*ipwitnessv1.Contest{{Address: netip.MustParseAddr("10.244.0.77").AsSlice(), Contested: true}}}
		r.ask <- &ipwitnessv1.ReportResponse{Check: &ipwitnessv1.Check{Id: 1}}
		wait.Until(t, "a contested address is told more often", func() bool {
			checks++
			first.announce("10.244.0.77")
			return r.metric(`ipwitness_agent_frames_total{protocol="arp",result="event"}`) != "1"
		})
		if took := time.Since(begun); took > 25*time.Second && checks > 100 { // a known binding is told every 30 s, and the machine may be busy
			t.Errorf("a contested address was told again after %s, want about a second", took)
		}

		// An interface that the observer cannot be attached to.
		hidden, err := netlink.LinkByName("hidden0")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := other.AttachClsact(hidden.Attrs().Index); err != nil {
			t.Fatal(err)
		}
		for _, err := range []error{netlink.LinkSetDown(hidden), netlink.LinkSetName(hidden, "shown0"), netlink.LinkSetUp(hidden)} {
			if err != nil {
				t.Fatal(err)
			}
		}
		wait.Until(t, "it is missed", func() bool { return r.metric("ipwitness_agent_interfaces_unobserved") == "1" })
		wait.Until(t, "it is a problem", r.said("frames on shown0 are not seen"))

		// A slow machine sends fewer frames per second than a port may. It exceeds the number of senders
		// that a port may have.
		senders := 0
		wait.Until(t, "the flood is counted", func() bool {
			const more = 1 << 12
			first.flood(senders, more)
			senders += more
			return r.metric("ipwitness_agent_interfaces_flooding") == "1"
		})

		second := newRunning(t, WireOff)
		if err := second.Run(t.Context(), report.Fixed("a", r.conn)); err == nil || !strings.Contains(err.Error(), "another ipwitness agent") {
			t.Errorf("second agent in one network namespace: got error %v", err)
		}
		set := cap.GetProc()
		if has, _ := set.GetFlag(cap.Permitted, cap.SYS_ADMIN); has {
			t.Errorf("capabilities of a running agent: got %s, want those dropped that only the start needs", set)
		}
		stop()
		if _, err := New(Config{}, slog.New(slog.DiscardHandler), r.reg); err == nil {
			t.Error("second agent with the same metrics: got no error")
		}
		for _, name := range []string{"veth1", "veth2"} {
			l, err := netlink.LinkByName(name)
			if err != nil {
				t.Fatal(err)
			}
			if filters, err := netlink.FilterList(l, netlink.HANDLE_MIN_INGRESS); err != nil || len(filters) != 0 {
				t.Errorf("filters of %s after the end: got %v and error %v, want none", name, filters, err)
			}
		}
		unlock, err := lockNamespace()
		if err != nil {
			t.Errorf("lock after the end: got error %v", err)
		} else {
			unlock()
		}
	})
}

func TestAgentWithoutTheWireReportsAddresses(t *testing.T) {
	alone.Run(t, func() {
		r := newRunning(t, WireOff)
		newPod(t).connect("veth1", "10.244.0.2/24")
		r.runtime.StatusChanged, r.ipam.StatusChanged = func() {}, func() {} // so that only the start tells the status
		stop := r.start()
		wait.Until(t, "addresses are reported", r.has("ASSIGNED 10.244.0.2"))
		wait.Until(t, "the status is reported", func() bool {
			r.mu.Lock()
			defer r.mu.Unlock()
			return r.status != nil
		})
		r.wantMetrics(map[string]string{
			`source_up{source="wire"}`: "", `source_up{source="addresses"}`: "1", `interfaces{mode="tcx"}`: "0", `interfaces{mode="clsact"}`: "0", "interfaces_unobserved": "0",
			"interfaces_flooding": "0", `lost_events_total{source="ringbuf"}`: "",
		})
		r.mu.Lock()
		if s := r.status; s.GetWire() != "off" || slices.ContainsFunc(s.GetProblems(), func(p string) bool { return strings.Contains(p, "frames are not seen") }) {
			t.Errorf("status: got %v, want that the wire is off, which is no problem", s)
		}
		r.mu.Unlock()
		stop()
	})
}

// An observer for which a resource was exhausted at the start is loaded once there is room.
func TestTheObserverIsLoadedLater(t *testing.T) {
	alone.Run(t, func() {
		p := newPod(t).connect("veth1", "10.244.0.2/24")
		r := newRunning(t, WireAuto)
		tries := 0
		r.load = func() (*bpf.Observer, error) {
			if tries++; tries == 1 {
				return nil, fmt.Errorf("create map: %w", unix.EMFILE)
			}
			return bpf.Load()
		}
		stop := r.start()
		wait.Until(t, "frames are reported", func() bool {
			p.announce("10.244.0.77")
			return r.has("ANSWERED 10.244.0.77")()
		})
		r.wantMetrics(map[string]string{`source_up{source="wire"}`: "1"})
		r.mu.Lock()
		if slices.ContainsFunc(r.status.GetProblems(), func(p string) bool { return strings.Contains(p, "frames are not seen") }) {
			t.Errorf("status: got %v, want no problem with frames", r.status)
		}
		r.mu.Unlock()
		stop()
	})
}

func TestAgentThatMayNotHearOtherNamespacesListsThem(t *testing.T) {
	alone.Run(t, func() {
		p := newPod(t).connect("veth1", "10.244.0.2/24")
		without(t, cap.NET_BROADCAST, cap.BPF, cap.PERFMON, cap.SYS_ADMIN)
		r := newRunning(t, WireAuto)
		stop := r.start()
		wait.Until(t, "the limits are reported", func() bool {
			return r.said("the kernel does not report changes of addresses inside pods: the addresses are read every 2s instead")() && r.said("frames are not seen: only addresses inside network namespaces are")()
		})
		wait.Until(t, "addresses are reported", r.has("ASSIGNED 10.244.0.2"))
		r.wantMetrics(map[string]string{`source_up{source="wire"}`: "0", `source_up{source="addresses"}`: "1"})
		p.assign("10.244.0.3/24")
		wait.Until(t, "the new address is listed", r.has("ASSIGNED 10.244.0.3"))
		stop()
	})
}

func TestNodeWithoutABootIDIsRefused(t *testing.T) {
	alone.Run(t, func() {
		if err := unix.Mount("tmpfs", "/proc/sys/kernel/random", "tmpfs", 0, ""); err != nil {
			t.Fatal(err)
		}
		if _, err := New(Config{Node: "node1"}, slog.New(slog.DiscardHandler), prometheus.NewRegistry()); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("agent without a boot id: got error %v, want that it does not exist", err)
		}
	})
}

func TestAgentThatSeesNothingDoesNotStart(t *testing.T) {
	alone.Run(t, func() {
		r := newRunning(t, WireAuto)
		if err := r.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "--aggregator") {
			t.Errorf("run without an aggregator: got error %v", err)
		}
		if obs, mode, err := r.startObserver(); err != nil || obs == nil || mode != bpf.TCX && bpf.HaveTCX() == nil || mode != bpf.Clsact && bpf.HaveTCX() != nil {
			t.Errorf("observer: got %v, mode %v and error %v", obs, mode, err)
		} else {
			_ = obs.Close()
		}
		r.cfg.Wire = WireTCX
		if obs, mode, err := r.startObserver(); (err == nil) != (bpf.HaveTCX() == nil) || err == nil && (mode != bpf.TCX || obs == nil) || err != nil && obs != nil {
			t.Errorf("observer by TCX: got %v, mode %v and error %v", obs, mode, err)
		} else if obs != nil {
			_ = obs.Close()
		}
		blind := newRunning(t, WireAuto)
		without(t, cap.NET_ADMIN, cap.NET_BROADCAST, cap.BPF, cap.PERFMON, cap.SYS_ADMIN)
		err := blind.Run(t.Context(), report.Fixed("a", blind.conn))
		if err == nil || !strings.Contains(err.Error(), "neither frames nor addresses can be observed") || !strings.Contains(err.Error(), "CAP_NET_ADMIN") || !strings.Contains(err.Error(), "load the observer") {
			t.Errorf("run without capabilities: got error %v, want both reasons", err)
		}
		if !blind.blind || len(blind.problems) != 1 {
			t.Errorf("agent without capabilities: got blind %v and problems %q", blind.blind, blind.problems)
		}
	})
}

// broken is a kernel that answers nothing.
type broken struct{ agenttest.Fake }

func (broken) Links(int32) ([]rtnetlink.Link, error) { return nil, errors.New("busy") }

func TestLostEventsAreCountedAndEverythingIsListed(t *testing.T) {
	r := newRunning(t, WireOff)
	f := agenttest.Fake{}
	f.Own()
	incomplete := 0
	for i, requests := range []kernel.Requests{f, broken{f}} {
		tab := table.New()
		k := kernel.New(r.log, tab, requests, agenttest.OwnNSID, 1, time.Unix(0, 0), "node1")
		k.Incomplete = func() { incomplete++ }
		ended := errors.New("ended")
		err := r.follow(t.Context(), k, func(_ context.Context, _ func(*rtnetlink.Message), lost, malformed func()) error {
			lost()
			malformed()
			malformed()
			return ended
		})
		if !errors.Is(err, ended) || incomplete != i {
			t.Errorf("follow: got error %v and %d requests to list again, want %v and %d", err, incomplete, ended, i)
		}
		r.wantMetrics(map[string]string{
			`lost_events_total{source="netlink"}`: fmt.Sprint(i + 1), `lost_events_total{source="netlink_malformed"}`: fmt.Sprint(2*i + 2),
		})
		if s := r.table.Attach().Take(time.Now()).GetStatus(); s.GetLostEvents() != uint32(i+1) {
			t.Errorf("status: got %v, want %d lost events", s, i+1)
		}
	}
}
