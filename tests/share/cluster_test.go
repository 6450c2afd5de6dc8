package share

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	agentreport "github.com/ipwitness/ipwitness/agent/report"
	"github.com/ipwitness/ipwitness/agent/table"
	"github.com/ipwitness/ipwitness/aggregator"
	"github.com/ipwitness/ipwitness/aggregator/stream"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/records"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// world is a cluster with replicas and nodes. The nodes have the real table and streams of an agent,
// and invented content.
type world struct {
	*lab
	// leakedAfter is how long an allocation may be unused; 0 for the default.
	leakedAfter time.Duration
	mu          sync.Mutex
	replicas    []*aggregated
	nodes       []*node
}

// aggregated is a real aggregator, in this process or in another one.
type aggregated struct {
	*aggregator.Aggregator
	name, address, dir string
	metrics            *prometheus.Registry
	client             pb.WitnessServiceClient
	stop               func()
}

func (w *world) start(name, dir string) *aggregated {
	w.Helper()
	return w.startAt(w.url, name, dir)
}

// startAt starts a replica that reaches NATS at a URL.
func (w *world) startAt(url, name, dir string) *aggregated {
	w.Helper()
	a := &aggregated{name: name, dir: dir, metrics: prometheus.NewRegistry()}
	log := slog.New(slog.NewTextHandler(w.Output(), nil)).With("replica", name)
	var err error
	a.Aggregator, err = aggregator.New(aggregator.Config{
		Cluster: "c", Settle: 200 * time.Millisecond, LeakedAfter: w.leakedAfter, NodeTimeout: time.Minute, DataDir: dir, Kubeconfig: "off",
		NATS: stream.Settings{Servers: []string{url}}, Share: true, Replica: name,
		Networks: []verdict.Network{{Name: "pods", Prefixes: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}}},
	}, log, a.metrics)
	if err != nil {
		w.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		w.Fatal(err)
	}
	a.address = l.Addr().String()
	server := grpc.NewServer()
	a.Register(server)
	ctx, cancel := context.WithCancel(context.Background())
	var group sync.WaitGroup
	group.Go(func() { _ = server.Serve(l) })
	group.Go(func() { _ = a.Run(ctx) })
	conn, err := grpc.NewClient(a.address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		w.Fatal(err)
	}
	a.client = pb.NewWitnessServiceClient(conn)
	a.stop = sync.OnceFunc(func() {
		w.mu.Lock()
		w.replicas = slices.DeleteFunc(w.replicas, func(other *aggregated) bool { return other == a })
		w.mu.Unlock()
		_ = conn.Close()
		cancel()
		server.Stop()
		group.Wait()
	})
	w.Cleanup(a.stop)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.replicas = append(w.replicas, a)
	return a
}

// addresses returns those of the replicas, as the name of a headless Service does.
func (w *world) addresses() (all []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, a := range w.replicas {
		all = append(all, a.address)
	}
	return all
}

// node is a node with some pods.
type node struct {
	*table.Table
	name string
}

func (w *world) join(name string) *node {
	w.Helper()
	n := &node{Table: table.New(), name: name}
	now := time.Now()
	n.Update(func() {
		n.Namespaces.Put(1, &pb.NamespaceRecord{Id: 1, Netns: "4026531840"}, now)
		n.SetStatus(&pb.StatusRecord{Wire: "tcx"})
	})
	contests, instances := agentreport.NewContests(slog.New(slog.DiscardHandler), func(netip.Addr, bool) {}), agentreport.NewInstances()
	hello := &pb.Hello{Node: name, BootId: "boot-" + name, Netns: "4026531840", Epoch: 1}
	group := agentreport.NewGroup(slog.New(slog.DiscardHandler), agentreport.Target{
		Name: "replicas", Find: func(context.Context) ([]string, error) {
			if all := w.addresses(); len(all) > 0 {
				return all, nil
			}
			return nil, errors.New("no replica runs")
		},
		Dial: func(address string) (agentreport.Conn, error) {
			return grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
		},
	}, func(log *slog.Logger, conn grpc.ClientConnInterface) *agentreport.Reporter {
		return agentreport.New(log, n.Table, hello, conn, func([]netip.Addr) bool { return true }, contests, instances)
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = group.Run(ctx) }()
	w.Cleanup(func() { cancel(); <-done })
	w.nodes = append(w.nodes, n)
	return n
}

// pod adds a pod with an address.
func (n *node) pod(record uint32, addr string) {
	now := time.Now()
	m := records.Veth(record, 4_000_000+int(record), &pb.Workload{Kind: pb.Workload_POD, Namespace: "default", Name: n.name + "-" + strconv.Itoa(int(record)), Uid: n.name + strconv.Itoa(int(record))})
	n.Update(func() {
		for _, r := range m.GetNamespaces() {
			n.Namespaces.Put(r.GetId(), r, now)
		}
		for _, r := range m.GetLinks() {
			n.Links.Put(r.GetName(), r, now)
		}
		for _, r := range m.GetInterfaces() {
			n.Interfaces.Put(table.InterfaceKey{Namespace: r.GetNamespace(), Index: int32(r.GetIndex())}, r, now)
		}
		n.Add(n.key(record, addr), table.Claim{First: now, Last: now, Assigned: now, Count: 1, PrefixLength: 24}, now)
	})
}

func (n *node) key(record uint32, addr string) table.ClaimKey {
	return table.ClaimKey{Address: netip.MustParseAddr(addr), Kind: pb.Evidence_ASSIGNED, At: table.InterfaceKey{Namespace: record, Index: 2}}
}

func (n *node) lose(record uint32, addr string) {
	n.Update(func() { n.RemoveClaim(n.key(record, addr), time.Now()) })
}

// wantDivided waits until each partition is served by one replica, and each replica serves some.
func (w *world) wantDivided(why string, of ...*aggregated) {
	w.Helper()
	wait.Until(w, why+": the partitions are divided", func() bool {
		served, complete := 0, 0
		for _, a := range of {
			all, err := a.metrics.Gather()
			if err != nil {
				w.Fatal(err)
			}
			some := 0
			for _, f := range all {
				for _, m := range f.GetMetric() {
					if f.GetName() != "ipwitness_share_partitions" {
						continue
					}
					switch m.GetLabel()[0].GetValue() {
					case "served":
						some = int(m.GetGauge().GetValue())
					case "complete":
						complete += int(m.GetGauge().GetValue())
					}
				}
			}
			if served += some; some == 0 {
				return false
			}
		}
		return served == pb.Partitions && complete == served
	})
}

// owners returns the addresses with owners, in pages.
func (a *aggregated) owners(ctx context.Context, size uint32) (all []string, incomplete bool, err error) {
	q := &pb.ListOwnersRequest{PageSize: size}
	for {
		p, err := a.client.ListOwners(ctx, q)
		if err != nil {
			return nil, false, err
		}
		if len(p.GetOwners()) > int(size) {
			return nil, false, fmt.Errorf("got %d owners, want %d at most", len(p.GetOwners()), size)
		}
		for _, o := range p.GetOwners() {
			all = append(all, o.GetAddress()+" "+o.GetWorkload().GetName())
		}
		incomplete = incomplete || p.GetCoverage().GetMissingPartitions()+p.GetCoverage().GetSilentReplicas() > 0
		if q.PageToken = p.GetNextPageToken(); q.PageToken == "" {
			return all, incomplete, nil
		}
	}
}

// conflicts returns the conflicts, as text.
func (a *aggregated) conflicts(ctx context.Context) (all []string) {
	p, err := a.client.ListConflicts(ctx, &pb.ListConflictsRequest{})
	if err != nil {
		return []string{err.Error()}
	}
	for _, c := range p.GetConflicts() {
		all = append(all, fmt.Sprintf("%s %s %d", c.GetAddress(), c.GetState(), c.GetEpisode()))
	}
	return all
}

func (w *world) wantConflicts(why string, want []string, of ...*aggregated) {
	w.Helper()
	w.wantAll(why, want, (*aggregated).conflicts, of)
}

// wantAll waits until each replica answers what is wanted.
func (w *world) wantAll(why string, want []string, ask func(*aggregated, context.Context) []string, of []*aggregated) {
	w.Helper()
	for _, a := range of {
		var got []string
		defer func() {
			if w.Failed() {
				w.Logf("%s at %s: got %q, want %q", why, a.name, got, want)
			}
		}()
		wait.Until(w, why+" at "+a.name, func() bool {
			got = ask(a, w.Context())
			return slices.Equal(got, want)
		})
	}
}

func (w *world) wantOwners(why string, n int, of ...*aggregated) {
	w.Helper()
	for _, a := range of {
		for _, size := range []uint32{7, 1000} {
			var all []string
			wait.Until(w, fmt.Sprintf("%s at %s by pages of %d", why, a.name, size), func() bool {
				got, incomplete, err := a.owners(w.Context(), size)
				all = got
				return err == nil && !incomplete && len(got) == n
			})
			ordered := slices.IsSortedFunc(all, func(x, y string) int {
				var a, b string
				_, _ = fmt.Sscan(x, &a)
				_, _ = fmt.Sscan(y, &b)
				return netip.MustParseAddr(a).Compare(netip.MustParseAddr(b))
			})
			if once := slices.Clone(all); !ordered || len(slices.Compact(once)) != len(all) {
				w.Errorf("%s at %s: got owners that are not in order, or twice: %v", why, a.name, all)
			}
		}
	}
}

func TestReplicasShareTheAddressesOfACluster(t *testing.T) {
	w := &world{lab: newLab(t)}
	a, b := w.start("a", t.TempDir()), w.start("b", t.TempDir())
	w.wantDivided("two replicas", a, b) // before that, both may send a change
	const nodes, pods = 6, 10
	for i := range nodes {
		n := w.join(fmt.Sprint("n", i))
		for k := range uint32(pods) {
			n.pod(k+2, fmt.Sprintf("10.244.%d.%d", i, k+1))
		}
	}
	w.wantOwners("all owners", nodes*pods, a, b)

	// Watches of both see a duplicate once, no matter which replica serves its address.
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var seen [2]events
	for i, r := range []*aggregated{a, b} {
		go seen[i].watch(ctx, r)
		wait.Until(t, "a watch of "+r.name, func() bool { return seen[i].ready() })
	}
	var want []string
	for i := range 8 { // some of either replica
		addr := fmt.Sprintf("10.244.0.%d", i+1)
		w.nodes[1].pod(uint32(100+i), addr)
		want = append(want, addr+" CONFIRMED 1")
	}
	w.wantConflicts("all duplicates", want, a, b)
	for i := range seen {
		wait.Until(t, "each is confirmed in the watch", func() bool { return seen[i].confirmed() == len(want) })
	}
	for _, r := range []*aggregated{a, b} {
		out, err := r.client.Explain(t.Context(), &pb.ExplainRequest{Address: "10.244.0.1"})
		if err != nil || len(out.GetConflicts()) != 1 || len(out.GetOwners()) != 2 {
			t.Errorf("explain at %s: got %v, %v, want the conflict and both owners", r.name, out, err)
		}
		for _, c := range []string{"10.244.0.1", "10.244.0.2", "10.244.0.3"} {
			p, err := r.client.ListConflicts(t.Context(), &pb.ListConflictsRequest{Address: c})
			if err != nil || len(p.GetConflicts()) != 1 || p.GetConflicts()[0].GetRemedy() == nil {
				t.Errorf("conflict of %s at %s: got %v, %v, want it with its remedy", c, r.name, p, err)
			}
		}
	}
	// The history of both has each duplicate once.
	var planted []string
	for i := range 8 {
		planted = append(planted, fmt.Sprintf("10.244.0.%d", i+1))
	}
	w.wantOnce("two replicas", planted, false, a, b)

	// A third one takes over some of both. Nothing ends, and nothing begins again.
	c := w.start("c", t.TempDir())
	w.wantOwners("three replicas", nodes*pods+8, a, b, c)
	w.wantConflicts("three replicas", want, a, b, c)
	w.nodes[2].pod(200, "10.244.5.1")
	want = append(want, "10.244.5.1 CONFIRMED 1")
	w.wantConflicts("a new one", want, a, b, c)

	// One stops. The others take over.
	b.stop()
	w.nodes[2].pod(201, "10.244.5.2")
	want = append(want, "10.244.5.2 CONFIRMED 1")
	w.wantConflicts("without b", want, a, c)
	w.wantOwners("without b", nodes*pods+10, a, c)
	w.wantOnce("after all that", planted, false, a, c)

	// It ends where it is served.
	for i := range 8 {
		w.nodes[1].lose(uint32(100+i), fmt.Sprintf("10.244.0.%d", i+1))
	}
	w.wantConflicts("most are resolved", want[8:], a, c)
}

// events are the messages of a watch of conflicts.
type events struct {
	mu     sync.Mutex
	marked bool
	// silent is set while the coverage says that a replica does not answer. lost is the number of LOST.
	silent bool
	lost   int
	all    []string
}

func (e *events) watch(ctx context.Context, r *aggregated) {
	stream, err := r.client.WatchConflicts(ctx, &pb.WatchConflictsRequest{})
	for err == nil {
		var m *pb.WatchConflictsResponse
		if m, err = stream.Recv(); err != nil {
			return
		}
		e.mu.Lock()
		switch m.GetType() {
		case pb.Watch_BOOKMARK:
			e.marked, e.silent = true, m.GetCoverage().GetSilentReplicas() > 0
		case pb.Watch_LOST:
			e.lost++
		case pb.Watch_ADDED, pb.Watch_UPDATED:
			e.all = append(e.all, m.GetConflict().GetAddress()+" "+m.GetConflict().GetState().String())
		}
		e.mu.Unlock()
	}
}

func (e *events) ready() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.marked
}

func (e *events) confirmed() (n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, one := range e.all {
		if len(one) > 9 && one[len(one)-9:] == "CONFIRMED" {
			n++
		}
	}
	return n
}

// conflicts returns the number of conflicts, each counted once.
func (e *events) conflicts() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	all := make(map[string]bool)
	for _, one := range e.all {
		all[one] = strings.HasSuffix(one, "CONFIRMED")
	}
	maps.DeleteFunc(all, func(_ string, confirmed bool) bool { return !confirmed })
	return len(all)
}

// While NATS is away, a watch goes on with what the asked replica serves, and says that others do not answer.
func TestAWatchWithoutNATS(t *testing.T) {
	w := &world{lab: newLab(t)}
	a, b := w.start("a", t.TempDir()), w.start("b", t.TempDir())
	w.wantDivided("two replicas", a, b)
	first, second := w.join("n0"), w.join("n1")
	const pods = 16
	for i := range uint32(pods) {
		first.pod(i+2, fmt.Sprintf("10.244.0.%d", i+1))
	}
	w.wantOwners("at the start", pods, a, b)
	var seen events
	go seen.watch(t.Context(), a)
	wait.Until(t, "the watch", seen.ready)
	state := func(get func() bool) func() bool {
		return func() bool {
			seen.mu.Lock()
			defer seen.mu.Unlock()
			return get()
		}
	}
	w.server.Kill()
	wait.Until(t, "the watch to say that a replica does not answer", state(func() bool { return seen.silent }))
	for i := range uint32(pods) { // some are of either replica
		second.pod(i+2, fmt.Sprintf("10.244.0.%d", i+1))
	}
	var own []string
	wait.Until(t, "a to detect its duplicates", func() bool {
		own = a.conflicts(t.Context())
		return len(own) > 0 && seen.conflicts() == len(own)
	})
	if state(func() bool { return seen.lost > 0 })() {
		t.Errorf("got %d times LOST while NATS was away, want the state to stay", seen.lost)
	}
	if len(own) == pods {
		t.Error("a detected all duplicates, want only its own")
	}
	if err := w.server.Restart(w.url); err != nil {
		t.Fatal(err)
	}
	wait.Until(t, "all duplicates in the watch", func() bool { return seen.conflicts() == pods })
	wait.Until(t, "a watch of all replicas", state(func() bool { return !seen.silent }))
}

func addressOf(text string) netip.Addr { return netip.MustParseAddr(text) }
