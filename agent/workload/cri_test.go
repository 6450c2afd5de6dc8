package workload

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimev1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/ipwitness/ipwitness/agent/table"
)

// longest is the maximum time to wait for a condition. It is long because machines are shared.
const longest = 2 * time.Minute

// fakeRuntime is a container runtime whose answers a test sets.
type fakeRuntime struct {
	runtimev1.UnimplementedRuntimeServiceServer

	mu    sync.Mutex
	name  string                                         // "fake" if empty
	pods  map[string]*runtimev1.PodSandboxStatusResponse // by id
	asked map[string]int                                 // status calls by id
	lists int
	hangs map[string]bool // methods that never answer
	fails map[string]error
	most  int // maximum number of concurrent status calls
	now   int
	hold  chan struct{} // status calls wait until it is closed
}

func (f *fakeRuntime) does(ctx context.Context, method string) error {
	f.mu.Lock()
	hangs, fails := f.hangs[method], f.fails[method]
	f.mu.Unlock()
	if hangs {
		<-ctx.Done()
		return ctx.Err()
	}
	return fails
}

func (f *fakeRuntime) Version(ctx context.Context, _ *runtimev1.VersionRequest) (*runtimev1.VersionResponse, error) {
	return &runtimev1.VersionResponse{RuntimeName: cmp.Or(f.name, "fake"), RuntimeVersion: "v1.2.3"}, f.does(ctx, "Version")
}

func (f *fakeRuntime) ListPodSandbox(ctx context.Context, _ *runtimev1.ListPodSandboxRequest) (*runtimev1.ListPodSandboxResponse, error) {
	err := f.does(ctx, "ListPodSandbox")
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lists++
	r := &runtimev1.ListPodSandboxResponse{}
	for _, p := range f.pods {
		r.Items = append(r.Items, &runtimev1.PodSandbox{Id: p.GetStatus().GetId(), State: p.GetStatus().GetState()})
	}
	return r, err
}

func (f *fakeRuntime) PodSandboxStatus(ctx context.Context, q *runtimev1.PodSandboxStatusRequest) (*runtimev1.PodSandboxStatusResponse, error) {
	f.mu.Lock()
	f.asked[q.GetPodSandboxId()]++
	f.now++
	f.most = max(f.most, f.now)
	hold := f.hold
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.now--
	}()
	if hold != nil {
		<-hold
	}
	if err := f.does(ctx, "PodSandboxStatus"); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if p := f.pods[q.GetPodSandboxId()]; p != nil {
		return p, nil
	}
	return nil, status.Error(codes.NotFound, "no such sandbox")
}

func newFakeRuntime() *fakeRuntime {
	return &fakeRuntime{
		pods: map[string]*runtimev1.PodSandboxStatusResponse{}, asked: map[string]int{},
		hangs: map[string]bool{}, fails: map[string]error{},
	}
}

// set changes what the runtime does.
func (f *fakeRuntime) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

// sandboxAnswer returns the status of a pod that is ready.
func sandboxAnswer(id, name, path string, ips ...string) *runtimev1.PodSandboxStatusResponse {
	n := &runtimev1.PodSandboxNetworkStatus{}
	for i, ip := range ips {
		if i == 0 {
			n.Ip = ip
		} else {
			n.AdditionalIps = append(n.AdditionalIps, &runtimev1.PodIP{Ip: ip})
		}
	}
	info, _ := json.Marshal(map[string]any{
		"pid": 4711,
		"runtimeSpec": map[string]any{"linux": map[string]any{"namespaces": []map[string]string{
			{"type": "pid"}, {"type": "network", "path": path},
		}}},
	})
	return &runtimev1.PodSandboxStatusResponse{
		Status: &runtimev1.PodSandboxStatus{
			Id: id, State: runtimev1.PodSandboxState_SANDBOX_READY,
			Metadata: &runtimev1.PodSandboxMetadata{Name: name, Namespace: "shop", Uid: "uid-" + name},
			Network:  n,
		},
		Info: map[string]string{"info": string(info)},
	}
}

// socketDir returns a directory with a short path, whatever TMPDIR is. The path of a socket
// has at most 107 bytes.
func socketDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "ipwitness-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// serve offers CRI at a socket until stop is called.
func (f *fakeRuntime) serve(t *testing.T, socket string) (stop func()) {
	t.Helper()
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	runtimev1.RegisterRuntimeServiceServer(s, f)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Serve(l)
	}()
	stop = sync.OnceFunc(func() { s.Stop(); <-done })
	t.Cleanup(stop)
	return stop
}

// asking is a running Client.
type asking struct {
	*Runtime
	t    *testing.T
	news chan struct{}
}

// ask starts a Client with the given sockets.
func ask(t *testing.T, sockets ...string) *asking {
	t.Helper()
	a := &asking{NewRuntime(slog.New(slog.DiscardHandler), sockets[0], ProcDir(t.TempDir())), t, make(chan struct{}, 1)}
	if len(sockets) > 1 {
		a.sockets, a.chosen = sockets, false
	}
	a.Changed = func() { table.Poke(a.news) }
	a.StatusChanged = a.Changed
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- a.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return a
}

// await waits until a condition holds.
func (a *asking) await(what string, cond func() bool) {
	a.t.Helper()
	deadline := time.NewTimer(longest)
	defer deadline.Stop()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-a.news:
		case <-deadline.C:
			runtime, problems := a.Health(time.Now().Add(awayAfter))
			a.t.Fatalf("timed out waiting for %s: sandboxes %q, runtime %q, problems %q", what, a.names(), runtime, problems)
		}
	}
}

// names returns the names of the published sandboxes.
func (a *asking) names() string {
	var all []string
	for _, s := range a.Sandboxes() {
		all = append(all, s.Workload.GetName())
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

func (a *asking) awaitNames(want string) {
	a.t.Helper()
	a.await(want, func() bool { return a.names() == want })
}

// problem returns the problem that will be reported if it lasts.
func (a *asking) problem() string {
	_, problems := a.Health(time.Now().Add(awayAfter))
	return strings.Join(problems, "; ")
}

func TestRuntimeThatStartsLaterIsFound(t *testing.T) {
	t.Parallel()
	dir := socketDir(t)
	dead, missing, socket := filepath.Join(dir, "dead.sock"), filepath.Join(dir, "no/such/dir/a.sock"), filepath.Join(dir, "run/fake/fake.sock")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: dead})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false) // left behind by a runtime that no longer runs
	_ = l.Close()
	other := grpc.NewServer() // a containerd without CRI
	plain, err := net.Listen("unix", filepath.Join(dir, "plain.sock"))
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = other.Serve(plain) }()
	defer other.Stop()

	a := ask(t, dead, missing, filepath.Join(dir, "plain.sock"), socket)
	a.await("the sockets to be tried", func() bool {
		calls, _ := a.Counters()
		return calls[Call{"Version", "unimplemented"}] > 0
	})
	if got := a.problem(); got != "" {
		t.Errorf("no runtime and none configured: got problem %q, want none", got)
	}
	f := newFakeRuntime()
	f.pods["1"] = sandboxAnswer("1", "web-0", "/run/netns/a")
	if err := os.MkdirAll(filepath.Dir(socket), 0o700); err != nil {
		t.Fatal(err)
	}
	f.serve(t, socket)
	a.awaitNames("web-0")
	if name, _ := a.Health(time.Now()); name != "fake 1.2.3" {
		t.Errorf("runtime: got %q, want fake 1.2.3", name)
	}
}

func TestRuntimeWithSandboxesIsPreferred(t *testing.T) {
	t.Parallel()
	dir := socketDir(t)
	docker, kubelet := newFakeRuntime(), newFakeRuntime()
	docker.name, kubelet.name = "docker's", "kubelet's"
	kubelet.pods["1"] = sandboxAnswer("1", "web-0", "/run/netns/a")
	docker.serve(t, filepath.Join(dir, "docker.sock"))
	stop := kubelet.serve(t, filepath.Join(dir, "kubelet.sock"))
	a := ask(t, filepath.Join(dir, "docker.sock"), filepath.Join(dir, "kubelet.sock"))
	a.awaitNames("web-0")

	// While the runtime restarts, the other one does not replace it.
	stop()
	tried := func() int {
		calls, _ := a.Counters()
		return int(calls[Call{"Version", "ok"}])
	}
	before := tried()
	a.await("the other one to be tried", func() bool { return tried() >= before+2 })
	if got := a.problem(); !strings.Contains(got, "kubelet.sock has not answered since") {
		t.Errorf("problem: got %q, want that kubelet's runtime is unavailable", got)
	}
	kubelet.set(func() { kubelet.pods["2"] = sandboxAnswer("2", "web-1", "/run/netns/b") })
	stop = kubelet.serve(t, filepath.Join(dir, "kubelet.sock"))
	a.awaitNames("web-0 web-1")
	if got, _ := a.Health(time.Now()); got != "kubelet's 1.2.3" {
		t.Errorf("runtime: got %q, want kubelet's", got)
	}

	// The other runtime replaces it once it has sandboxes and the last one is gone.
	docker.set(func() { docker.pods["3"] = sandboxAnswer("3", "web-2", "/run/netns/c") })
	stop()
	a.awaitNames("web-2")
}

func TestMissingConfiguredSocketIsAProblem(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(socketDir(t), "fake.sock")
	a := ask(t, socket)
	a.await("a problem", func() bool { return a.problem() != "" })
	for _, want := range []string{socket, "no such file", "CNI results and processes", "--cri-socket"} {
		if got := a.problem(); !strings.Contains(got, want) {
			t.Errorf("problem: got %q, want %q in it", got, want)
		}
	}
	if err := os.WriteFile(socket, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	a.await("another problem", func() bool { return strings.Contains(a.problem(), "it is not a socket") })
	if err := os.Remove(socket); err != nil {
		t.Fatal(err)
	}
	f := newFakeRuntime()
	f.pods["1"] = sandboxAnswer("1", "web-0", "/run/netns/a")
	f.serve(t, socket)
	a.awaitNames("web-0")
	a.await("no problem", func() bool { return a.problem() == "" })
}

func TestMissingPermissionIsAProblem(t *testing.T) {
	c := NewRuntime(slog.New(slog.DiscardHandler), "/run/x.sock", "")
	c.failed(fmt.Errorf("%s: %w", "/run/x.sock", &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", os.ErrPermission)}))
	_, problems := c.Health(time.Now())
	if len(problems) != 1 || !strings.Contains(problems[0], "no permission to use the socket") || !strings.Contains(problems[0], "give the agent's user write access to it") {
		t.Errorf("problems: got %q, want one with a remedy", problems)
	}
}

func TestStatusOfEachSandboxIsRequestedOnce(t *testing.T) {
	t.Parallel()
	const pods = 300
	socket := filepath.Join(socketDir(t), "fake.sock")
	f := newFakeRuntime()
	f.hold = make(chan struct{})
	for i := range pods {
		id := fmt.Sprint(i)
		f.pods[id] = sandboxAnswer(id, "p"+id, "/run/netns/"+id)
	}
	f.pods["host"] = sandboxAnswer("host", "host", "")
	f.pods["host"].Status.Linux = &runtimev1.LinuxPodSandboxStatus{Namespaces: &runtimev1.Namespace{Options: &runtimev1.NamespaceOption{Network: runtimev1.NamespaceMode_NODE}}}
	f.pods["ended"] = sandboxAnswer("ended", "ended", "/run/netns/x")
	f.pods["ended"].Status.State = runtimev1.PodSandboxState_SANDBOX_NOTREADY
	stop := f.serve(t, socket)
	a := ask(t, socket)
	a.await("calls side by side", func() bool { f.mu.Lock(); defer f.mu.Unlock(); return f.now == askAtOnce })
	close(f.hold)
	a.await("all sandboxes", func() bool { return len(a.Sandboxes()) == pods })

	// After a restart of the runtime, the sandboxes are listed, and their status is known.
	stop()
	f.set(func() {
		f.lists = 0
		f.pods["new"] = sandboxAnswer("new", "new", "/run/netns/new")
		delete(f.pods, "0")
	})
	f.serve(t, socket)
	a.await("the new one", func() bool { return strings.Contains(a.names(), "new") && len(a.Sandboxes()) == pods })
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.most > askAtOnce {
		t.Errorf("concurrent status calls: got %d, want %d at most", f.most, askAtOnce)
	}
	for id, n := range f.asked {
		if n != 1 || id == "ended" {
			t.Errorf("sandbox %s: got %d status calls, want one, and none for an ended sandbox", id, n)
		}
	}
	if f.lists > 2 {
		t.Errorf("lists after the restart: got %d, want one, or two where it was not ready", f.lists)
	}
}

func TestNamesAreKeptWhileTheRuntimeIsUnavailable(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(socketDir(t), "fake.sock")
	f := newFakeRuntime()
	f.pods["1"] = sandboxAnswer("1", "web-0", "/run/netns/a")
	stop := f.serve(t, socket)
	a := ask(t, socket)
	a.awaitNames("web-0")
	if _, up := a.Counters(); up != 1 {
		t.Errorf("connected: got %v, want 1", up)
	}
	stop()
	a.await("that it is away", func() bool { _, up := a.Counters(); return up == 0 })
	if got := a.problem(); !strings.Contains(got, socket) || !strings.Contains(got, "has not answered since") || !strings.Contains(got, "names of new pods") {
		t.Errorf("problem: got %q", got)
	}
	if _, problems := a.Health(time.Now()); len(problems) != 0 {
		t.Errorf("problems at once: got %q, want none: it may be restarting", problems)
	}
	if got := a.names(); got != "web-0" {
		t.Errorf("names while it is unavailable: got %q, want web-0", got)
	}
	f.set(func() { f.fails["ListPodSandbox"] = status.Error(codes.Unknown, "server is not initialized yet") })
	f.serve(t, socket)
	a.await("that it lists nothing", func() bool { return strings.Contains(a.problem(), "not initialized") })
	if got := a.names(); got != "web-0" {
		t.Errorf("names while it is not ready: got %q, want web-0", got)
	}
	f.set(func() { delete(f.fails, "ListPodSandbox"); f.pods["2"] = sandboxAnswer("2", "web-1", "/run/netns/b") })
	a.awaitNames("web-0 web-1")
	if got := a.problem(); got != "" {
		t.Errorf("problem of a runtime that answers: got %q", got)
	}
}

func TestNamespaceWithoutASandboxTriggersAFewLists(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(socketDir(t), "fake.sock")
	f := newFakeRuntime()
	f.serve(t, socket)
	a := ask(t, socket)
	a.await("a list", func() bool { f.mu.Lock(); defer f.mu.Unlock(); return f.lists == 1 })
	// CNI has created the namespaces, and the sandboxes appear later.
	var burst []uint64
	for range 50 {
		burst = append(burst, uint64(len(burst)+1))
		a.Unnamed(burst)
	}
	a.await("a second list, and a third", func() bool { f.mu.Lock(); defer f.mu.Unlock(); return f.lists >= 3 })
	f.set(func() { f.pods["1"] = sandboxAnswer("1", "web-0", "/run/netns/a") })
	a.awaitNames("web-0")
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.lists > mostTries+1 {
		t.Errorf("lists for a burst of namespaces: got %d, want %d at most", f.lists, mostTries+1)
	}
}

func TestListsAreFewAndStop(t *testing.T) {
	began := time.Unix(1000, 0)
	at := &attempt{last: began}
	var waits []time.Duration
	for {
		due := at.due()
		if due.IsZero() {
			break
		}
		waits = append(waits, due.Sub(at.last))
		at.last, at.tries = due, at.tries+1
	}
	if got, want := fmt.Sprint(waits), "[200ms 200ms 200ms 200ms 200ms 400ms 800ms 1.6s 3.2s 6.4s 12.8s]"; got != want {
		t.Errorf("waits: got %s, want %s", got, want)
	}
	l := listing{next: began.Add(listEvery), soonest: began.Add(time.Second)}
	for _, c := range []struct{ reason, want time.Time }{
		{time.Time{}, l.next},
		{began, l.soonest},
		{began.Add(2 * time.Second), began.Add(2 * time.Second)},
		{began.Add(2 * listEvery), l.next},
	} {
		if got := l.due(c.reason); got != c.want {
			t.Errorf("list for a reason at %s: got %s, want %s", c.reason, got, c.want)
		}
	}
	l.failures = 1
	if got := l.due(began); got != l.next {
		t.Errorf("list of a runtime that fails: got %s, want %s", got, l.next)
	}
}

func TestUnresponsiveRuntimeBlocksNothing(t *testing.T) {
	t.Parallel()
	for _, method := range []string{"Version", "ListPodSandbox", "PodSandboxStatus"} {
		t.Run(method, func(t *testing.T) {
			t.Parallel()
			socket := filepath.Join(socketDir(t), "fake.sock")
			f := newFakeRuntime()
			for i := range 20 {
				id := fmt.Sprint(i)
				f.pods[id] = sandboxAnswer(id, "p"+id, "/run/netns/"+id)
			}
			f.hangs[method] = true
			f.serve(t, socket)
			a := ask(t, socket)
			a.await("a call to time out", func() bool {
				calls, _ := a.Counters()
				return calls[Call{method, "timeout"}] > 0
			})
			if method != "PodSandboxStatus" {
				a.await("a problem", func() bool { return a.problem() != "" })
			}
			f.set(func() { delete(f.hangs, method) })
			a.await("all sandboxes", func() bool { return len(a.Sandboxes()) == 20 })
			a.await("no problem", func() bool { return a.problem() == "" })
			if calls, _ := a.Counters(); calls[Call{method, "timeout"}] > 3*askAtOnce {
				t.Errorf("calls that timed out: got %d, want few", calls[Call{method, "timeout"}])
			}
		})
	}
}

func TestInvalidAnswersOfARuntimeAreRejected(t *testing.T) {
	long := strings.Repeat("x", table.MaxLength+1)
	ready := runtimev1.PodSandboxState_SANDBOX_READY
	for name, c := range map[string]struct {
		change func(r *runtimev1.PodSandboxStatusResponse)
		want   string // name, path, pid, addresses; or an error
	}{
		"as it is":         {func(*runtimev1.PodSandboxStatusResponse) {}, "web-0 /run/netns/a 0 [10.0.0.2 fd00::2]"},
		"nothing":          {func(r *runtimev1.PodSandboxStatusResponse) { r.Status = nil }, "not taken"}, // the zero state is READY
		"not ready":        {func(r *runtimev1.PodSandboxStatusResponse) { r.Status.State = ready + 1 }, "not taken"},
		"no name":          {func(r *runtimev1.PodSandboxStatusResponse) { r.Status.Metadata = nil }, "not taken"},
		"name without end": {func(r *runtimev1.PodSandboxStatusResponse) { r.Status.Metadata.Name = long }, "not taken"},
		"uid without end":  {func(r *runtimev1.PodSandboxStatusResponse) { r.Status.Metadata.Uid = long }, "not taken"},
		"label without end": {func(r *runtimev1.PodSandboxStatusResponse) {
			r.Status.Labels = map[string]string{"kubevirt.io/domain": long}
		}, "not taken"},
		"no info":           {func(r *runtimev1.PodSandboxStatusResponse) { r.Info = nil }, "web-0  0 [10.0.0.2 fd00::2]"},
		"info that is none": {func(r *runtimev1.PodSandboxStatusResponse) { r.Info["info"] = `{"runtimeSpec":7` }, "web-0  0 [10.0.0.2 fd00::2]"},
		"info without end":  {func(r *runtimev1.PodSandboxStatusResponse) { r.Info["info"] += strings.Repeat(" ", maxInfo) }, "web-0  0 [10.0.0.2 fd00::2]"},
		"no path":           {func(r *runtimev1.PodSandboxStatusResponse) { r.Info["info"] = `{"pid":12}` }, "web-0  12 [10.0.0.2 fd00::2]"},
		"no process":        {func(r *runtimev1.PodSandboxStatusResponse) { r.Info["info"] = `{"pid":-12}` }, "web-0  0 [10.0.0.2 fd00::2]"},
		"path that is none": {func(r *runtimev1.PodSandboxStatusResponse) {
			r.Info["info"] = `{"runtimeSpec":{"linux":{"namespaces":[{"type":"network","path":"a/b"}]}}}`
		}, "web-0  0 [10.0.0.2 fd00::2]"},
		"path of old": {func(r *runtimev1.PodSandboxStatusResponse) {
			r.Info["info"] = `{"runtimeSpec":{"linux":{"namespaces":[{"type":"network","path":"/var/run/netns/../netns/b"}]}}}`
		}, "web-0 /run/netns/b 0 [10.0.0.2 fd00::2]"},
		"no address":         {func(r *runtimev1.PodSandboxStatusResponse) { r.Status.Network = nil }, "web-0 /run/netns/a 0 []"},
		"address of IPv4in6": {func(r *runtimev1.PodSandboxStatusResponse) { r.Status.Network.Ip = "::ffff:10.0.0.3" }, "web-0 /run/netns/a 0 [10.0.0.3 fd00::2]"},
		"addresses of none": {func(r *runtimev1.PodSandboxStatusResponse) {
			r.Status.Network.Ip, r.Status.Network.AdditionalIps[0].Ip = "10.0.0.2/24", "fe80::1%eth0"
		}, "web-0 /run/netns/a 0 []"},
	} {
		t.Run(name, func(t *testing.T) {
			r := sandboxAnswer("1", "web-0", "/run/netns/a", "10.0.0.2", "fd00::2")
			c.change(r)
			got := "not taken"
			if s, err := parseSandbox(r); err == nil {
				got = fmt.Sprint(s.Workload.GetName(), " ", s.Path, " ", s.Process.PID, " ", s.IPs)
			}
			if got != c.want {
				t.Errorf("sandbox: got %q, want %q", got, c.want)
			}
		})
	}
	many := sandboxAnswer("1", "web-0", "/run/netns/a", slices.Repeat([]string{"10.0.0.2"}, 1000)...)
	if s, err := parseSandbox(many); err != nil || len(s.IPs) != maxIPs || s.Unparsed != nil {
		t.Errorf("too many addresses: got %v, want %d", err, maxIPs)
	}
	if s, err := parseSandbox(sandboxAnswer("1", "web-0", "/run/netns/a", "banana", "fd00::2")); err != nil || fmt.Sprint(s.IPs, s.Unparsed) != `[fd00::2] sandbox 1: "banana" is not an address` {
		t.Errorf("an address that cannot be parsed: got %+v, want it named", s)
	}
}

func TestInvalidDataFromASocketBlocksNothing(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(socketDir(t), "fake.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, "HTTP/1.1 400 Bad Request\r\n\r\n")
			_ = c.Close()
		}
	}()
	a := ask(t, socket)
	a.await("a problem", func() bool { return a.problem() != "" })
	_ = l.Close()
	f := newFakeRuntime()
	f.pods["odd"] = sandboxAnswer("even", "web-1", "/run/netns/b") // the answer is about another sandbox
	f.pods["1"] = sandboxAnswer("1", "web-0", "/run/netns/a")
	f.serve(t, socket)
	a.awaitNames("web-0")
}

func TestLabelsNameTheVirtualMachineOfAPod(t *testing.T) {
	for _, c := range []struct {
		labels map[string]string
		want   string
	}{
		{nil, ""},
		{map[string]string{"app": "web", "kubevirt.io/domain": "old"}, "old"},
		{map[string]string{"vm.kubevirt.io/name": "new", "kubevirt.io/domain": "old"}, "new"},
	} {
		r := sandboxAnswer("1", "virt-launcher-x", "/run/netns/a")
		r.Status.Labels = c.labels
		s, err := parseSandbox(r)
		if err != nil || s.Workload.GetVirtualMachine() != c.want {
			t.Errorf("machine by %v: got %q and %v, want %q", c.labels, s.Workload.GetVirtualMachine(), err, c.want)
		}
	}
}

func TestSocketFlagIsParsed(t *testing.T) {
	for flag, want := range map[string]string{
		"": "auto", "auto": "auto", "off": "off", "/run/x.sock": "/run/x.sock", "unix:///run/x.sock": "/run/x.sock", "/run//y/../x.sock": "/run/x.sock",
		"x.sock": "", "tcp://1.2.3.4:1": "", "Auto": "", "/" + strings.Repeat("x", 120): "",
	} {
		got, err := ParseRuntimeSocket(flag)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("--cri-socket %q: got %q and %v, want %q", flag, got, err, want)
		}
	}
}

func TestProbeFindsTheRuntimeOrReturnsAnError(t *testing.T) {
	socket := filepath.Join(socketDir(t), "fake.sock")
	probe := func(flag string) (name, at string, err error) {
		return NewRuntime(slog.New(slog.DiscardHandler), flag, "").Probe(t.Context())
	}
	if !NewRuntime(slog.New(slog.DiscardHandler), RuntimeOff, "").Off() || NewRuntime(slog.New(slog.DiscardHandler), socket, "").Off() {
		t.Error("off: got a client that is not turned off")
	}
	if name, _, err := probe(socket); name != "" || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("socket that is missing: got %q and error %v, want that it does not exist", name, err)
	}
	newFakeRuntime().serve(t, socket)
	if name, at, err := probe(socket); name != "fake 1.2.3" || at != socket || err != nil {
		t.Errorf("fake runtime: got %q at %q and error %v", name, at, err)
	}
}

var errSome = errors.New("some")

func TestCallsAreCountedByResult(t *testing.T) {
	c := NewRuntime(slog.New(slog.DiscardHandler), RuntimeOff, "")
	for _, err := range []error{nil, errSome, status.Error(codes.DeadlineExceeded, ""), status.Error(codes.Unimplemented, ""), nil} {
		c.count("Version", err)
	}
	calls, _ := c.Counters()
	if want := (map[Call]uint64{{"Version", "ok"}: 2, {"Version", "error"}: 1, {"Version", "timeout"}: 1, {"Version", "unimplemented"}: 1}); !maps.Equal(calls, want) {
		t.Errorf("calls: got %v, want %v", calls, want)
	}
}
