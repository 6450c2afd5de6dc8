package share

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/nats"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// program is the program under test.
const program = "../../bin/ipwitness"

// freePort returns a port that nothing listens on.
func (w *world) freePort() int {
	w.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		w.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().(*net.TCPAddr).Port
}

// A process is a replica in a process of its own.
type process struct {
	*aggregated
	w    *world
	args []string
	cmd  *exec.Cmd
	log  *os.File
}

// launch starts a replica in a process of its own.
func (w *world) launch(name string) *process {
	w.Helper()
	port := w.freePort()
	p := &process{aggregated: &aggregated{name: name, dir: w.TempDir(), address: fmt.Sprintf("127.0.0.1:%d", port)}, w: w}
	p.args = []string{
		"aggregator", "--cluster", "c", "--share", "--replica", name, "--nats", w.url, "--data-dir", p.dir, "--kubeconfig", "off", "--settle", "200ms",
		"--network", "pods=10.244.0.0/16", "--grpc-listen", p.address, "--http-listen", fmt.Sprintf("127.0.0.1:%d", w.freePort()),
	}
	var err error
	if p.log, err = os.Create(filepath.Join(w.TempDir(), name+".log")); err != nil {
		w.Fatal(err)
	}
	conn, err := grpc.NewClient(p.address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		w.Fatal(err)
	}
	p.client = pb.NewWitnessServiceClient(conn)
	w.Cleanup(func() {
		p.kill()
		_ = conn.Close()
		if raw, err := os.ReadFile(p.log.Name()); err == nil && w.Failed() {
			w.Logf("log of %s:\n%s", name, raw)
		}
	})
	p.start()
	return p
}

func (p *process) start() {
	p.w.Helper()
	p.cmd = exec.Command(program, p.args...)
	p.cmd.Stdout, p.cmd.Stderr = p.log, p.log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		p.w.Fatalf("%v: run make build", err)
	}
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	p.w.replicas = append(p.w.replicas, p.aggregated)
}

// kill ends the process without a warning. Its address is still in the DNS for a while, as that of a pod.
func (p *process) kill() {
	if p.cmd.Process != nil && p.cmd.ProcessState == nil {
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
	}
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	p.w.replicas = slices.DeleteFunc(p.w.replicas, func(other *aggregated) bool { return other == p.aggregated })
}

func (p *process) signal(s syscall.Signal) {
	p.w.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.w.Fatal(err)
	}
}

// servers are three NATS servers, which form a cluster.
func (w *world) servers() (all []*nats.Server) {
	w.Helper()
	bin, err := nats.Binary("../..")
	if err != nil {
		w.Fatal(err)
	}
	var ports, routes []int
	for range 3 {
		ports, routes = append(ports, w.freePort()), append(routes, w.freePort())
	}
	var urls []string
	for i := range 3 {
		s, err := nats.Start(nil, bin, w.TempDir(), nats.Config{Name: fmt.Sprint("nats", i), Port: ports[i], Cluster: "nats", Routes: routes, RoutePort: routes[i]})
		if err != nil {
			w.Fatal(err)
		}
		w.Cleanup(s.Kill)
		all = append(all, s)
		urls = append(urls, fmt.Sprintf("nats://127.0.0.1:%d", ports[i]))
	}
	w.url = strings.Join(urls, ",")
	return all
}

// churn has pods come and go until the returned function is called, which returns the number of changes.
func (w *world) churn() (stop func() int) {
	ctx, cancel := context.WithCancel(w.Context())
	done, changes := make(chan struct{}), 0
	go func() {
		defer close(done)
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for i := 0; ctx.Err() == nil; i++ {
			n := w.nodes[i%len(w.nodes)]
			record, addr := uint32(1000+i%50), fmt.Sprintf("10.244.%d.%d", 100+i%len(w.nodes), 1+i%50) //nolint:gosec // small
			n.pod(record, addr)
			n.lose(record, addr)
			changes += 2
			select {
			case <-tick.C:
			case <-ctx.Done():
			}
		}
	}()
	return sync.OnceValue(func() int { cancel(); <-done; return changes })
}

// plant makes a duplicate, and returns its address.
func (w *world) plant(i int) string {
	addr := fmt.Sprintf("10.244.0.%d", i+1)
	w.nodes[1].pod(uint32(100+i), addr) //nolint:gosec // small
	return addr
}

// wantOnce checks that each conflict is in the history once: suspected, perhaps confirmed, and perhaps
// resolved.
func (w *world) wantOnce(why string, addresses []string, resolved bool, of ...*aggregated) {
	w.Helper()
	for _, r := range of {
		for _, addr := range addresses {
			var got []string
			wait.Until(w, why+": the history of "+addr+" at "+r.name, func() bool {
				p, err := r.client.ListEvents(w.Context(), &pb.ListEventsRequest{Address: addr, Kind: pb.Event_CONFLICT})
				got = nil
				for _, e := range p.GetEvents() {
					if s := e.GetConflict().GetState().String(); len(got) == 0 || got[len(got)-1] != s {
						got = append(got, s)
					}
				}
				last := ""
				if len(got) > 0 {
					last = got[len(got)-1]
				}
				return err == nil && (resolved && last == "RESOLVED" || !resolved && last == "CONFIRMED")
			})
			text := strings.Join(got, " ")
			if resolved {
				text = strings.TrimSuffix(text, " RESOLVED")
			}
			if text != "SUSPECTED CONFIRMED" && text != "CONFIRMED" { // a replica that joined later may know only its end
				w.Errorf("%s: at %s, the history of %s is %v, want one episode", why, r.name, addr, got)
			}
		}
	}
}

// Replicas and NATS servers are killed and paused while pods come and go. No conflict is lost, invented or
// told twice, and new ones are detected all the time.
func TestReplicasShareTheAddressesUnderFaults(t *testing.T) {
	if testing.Short() {
		t.Skip("slow")
	}
	w := &world{lab: &lab{T: t}}
	servers := w.servers()
	a, b, c := w.launch("a"), w.launch("b"), w.launch("c")
	const nodes, pods = 8, 20
	for i := range nodes {
		n := w.join(fmt.Sprint("n", i))
		for k := range uint32(pods) {
			n.pod(k+2, fmt.Sprintf("10.244.%d.%d", i, k+1))
		}
	}
	w.wantOwners("at the start", nodes*pods, a.aggregated, b.aggregated, c.aggregated)
	stop := w.churn()
	defer stop()
	var planted, want []string
	plant := func(why string, of ...*aggregated) {
		t.Helper()
		addr := w.plant(len(planted))
		planted = append(planted, addr)
		want = append(want, addr+" CONFIRMED 1")
		slices.SortFunc(want, byAddress)
		w.wantConflicts(why, want, of...)
	}
	plant("at the start", a.aggregated, b.aggregated, c.aggregated)

	b.kill()
	for range 4 { // some are of the partitions of b
		plant("a replica was killed", a.aggregated, c.aggregated)
	}
	b.start()
	plant("it is back", a.aggregated, b.aggregated, c.aggregated)

	for i, s := range servers { // one of them leads the streams
		s.Kill()
		plant(fmt.Sprintf("NATS server %d was killed", i), a.aggregated, b.aggregated, c.aggregated)
		if err := s.Start(); err != nil {
			t.Fatal(err)
		}
	}

	c.signal(syscall.SIGSTOP)
	for range 4 {
		plant("a replica is paused", a.aggregated, b.aggregated)
	}
	c.signal(syscall.SIGCONT)
	plant("it goes on, with an expired lease", a.aggregated, b.aggregated, c.aggregated)

	for _, s := range servers {
		s.Kill()
	}
	// Without NATS, each answers for what it serves, says so, and goes on detecting.
	alone := w.plant(len(planted))
	planted, want = append(planted, alone), append(want, alone+" CONFIRMED 1")
	slices.SortFunc(want, byAddress)
	wait.Until(t, "some replica detects a duplicate without NATS", func() bool {
		return slices.ContainsFunc([]*process{a, b, c}, func(p *process) bool { return slices.Contains(p.conflicts(t.Context()), alone+" CONFIRMED 1") })
	})
	out, err := a.client.ListConflicts(t.Context(), &pb.ListConflictsRequest{})
	if err != nil || !out.GetCoverage().GetIncomplete() || out.GetCoverage().GetSilentReplicas()+out.GetCoverage().GetMissingPartitions() == 0 {
		t.Errorf("without NATS: got %v, %v, want an incomplete coverage that says why", out.GetCoverage(), err)
	}
	for _, s := range servers {
		if err := s.Start(); err != nil {
			t.Fatal(err)
		}
	}
	plant("NATS is back", a.aggregated, b.aggregated, c.aggregated)
	t.Logf("%d changes of pods meanwhile", stop())

	w.wantOnce("all", planted, false, a.aggregated)
	for i := range planted {
		w.nodes[1].lose(uint32(100+i), planted[i]) //nolint:gosec // small
	}
	w.wantConflicts("all are resolved", nil, a.aggregated, b.aggregated, c.aggregated)
	w.wantOnce("all are resolved", planted, true, a.aggregated, b.aggregated, c.aggregated)
	w.wantOwners("at the end", nodes*pods, a.aggregated, b.aggregated, c.aggregated)
}

func byAddress(x, y string) int {
	var a, b string
	_, _ = fmt.Sscan(x, &a)
	_, _ = fmt.Sscan(y, &b)
	return addressOf(a).Compare(addressOf(b))
}
