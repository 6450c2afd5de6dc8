package aggregator

import (
	"cmp"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ipwitness/ipwitness/aggregator/index"
	"github.com/ipwitness/ipwitness/aggregator/kube"
	"github.com/ipwitness/ipwitness/aggregator/report"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/records"
)

// lab is a running aggregator with a client.
type lab struct {
	testing.TB
	*Aggregator
	registry *prometheus.Registry
	conn     *grpc.ClientConn
	client   pb.WitnessServiceClient
	ctx      context.Context
	stop     func()
}

func newLab(t testing.TB, cfg Config) *lab {
	t.Helper()
	return newLoggingLab(t, cfg, slog.New(slog.DiscardHandler))
}

// newLoggingLab is like newLab, with a logger.
func newLoggingLab(t testing.TB, cfg Config, log *slog.Logger) *lab {
	t.Helper()
	l := &lab{TB: t, registry: prometheus.NewPedanticRegistry()}
	cfg.Kubeconfig = cmp.Or(cfg.Kubeconfig, kube.Off) // tests may run in a pod
	var err error
	l.Aggregator, err = New(cfg, log, l.registry)
	if err != nil {
		t.Fatal(err)
	}
	keepDetectorAlive(t)
	listener := bufconn.Listen(1 << 20)
	server := grpc.NewServer()
	if cfg.Access.Tokens != "" {
		server = grpc.NewServer(l.Guarded()...)
	}
	l.Register(server)
	go func() { _ = server.Serve(listener) }()
	l.conn, err = grpc.NewClient("passthrough:///lab", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithStaticStreamWindowSize(64<<10), // a growing window would delay the detection of clients that do not read
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	l.client = pb.NewWitnessServiceClient(l.conn)
	ctx, cancel := context.WithCancel(context.Background())
	l.ctx = ctx
	done := make(chan struct{})
	runCtx, stopRun := context.WithCancel(context.Background())
	go func() { _ = l.Run(runCtx); close(done) }()
	l.stop = func() { stopRun(); <-done }
	t.Cleanup(func() {
		l.stop()
		cancel()
		_ = l.conn.Close()
		server.Stop()
	})
	return l
}

// newIdleCore returns a core that judges nothing yet.
func newIdleCore(t testing.TB, log *slog.Logger) *core {
	t.Helper()
	s, err := newCore(coreConfig{policy: policyForTests, log: log, registry: prometheus.NewRegistry()})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// newTestCore returns a core that judges, without an aggregator around it.
func newTestCore(t testing.TB) *core {
	t.Helper()
	s := newIdleCore(t, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { s.run(ctx); close(done) }()
	t.Cleanup(func() { cancel(); <-done })
	return s
}

// source is the stream of a node without a connection. When send returns, the message has been
// processed and judged.
type source struct {
	*report.Session
	core     *core
	sequence uint64
}

func (c *core) source() *source { return &source{c.reports.Session(nil), c, 0} }

// begin starts the snapshot of a node.
func (c *core) begin(t testing.TB, h *pb.Hello) *source {
	t.Helper()
	r := c.source()
	r.must(t, &pb.ReportRequest{Hello: h, SnapshotBegin: true})
	return r
}

// filled returns the source of a node that has sent a snapshot.
func (c *core) filled(t testing.TB, h *pb.Hello, parts ...*pb.ReportRequest) *source {
	t.Helper()
	r := c.source()
	r.must(t, snapshot(h, parts...))
	return r
}

// send assigns a sequence number to a message and processes it.
func (r *source) send(m *pb.ReportRequest) error {
	r.sequence++
	m.Sequence = r.sequence
	return r.Accept(m, r.core.facts.Clock())
}

// must is like send, but the message must be accepted.
func (r *source) must(t testing.TB, m *pb.ReportRequest) {
	t.Helper()
	if err := r.send(m); err != nil {
		t.Fatal(err)
	}
}

// allocations returns the number of allocations that are known.
func (l *lab) allocations() int {
	l.core.facts.RLock()
	defer l.core.facts.RUnlock()
	return l.core.facts.Allocations()
}

// past returns the remembered allocations of an address.
func (l *lab) past(addr string) []verdict.Past {
	past, _, _ := l.core.shards.Conflicts.Remembered(index.AddressOf(netip.MustParseAddr(addr)))
	return past
}

// agent speaks the Report protocol.
type agent struct {
	testing.TB
	mu        sync.Mutex                                // guards stream.Send
	mute      atomic.Bool                               // leaves pings unanswered
	asked     uint64                                    // a ping that arrived before the first message
	answer    func(*pb.BeliefQuestion) *pb.BeliefAnswer // to questions about neighbour tables; set before they are asked
	stream    pb.ReportService_ReportClient
	cancel    func()
	sequence  uint64
	acked     uint64
	responses chan *pb.ReportResponse
	end       error
	// Requests to the agent that the test has not looked at yet.
	checks   []*pb.Check
	contests map[string]bool
	departed []string
	resyncs  int
}

func (l *lab) dial() *agent { return l.dialAs("") }

// dialAs is like dial, with a token.
func (l *lab) dialAs(token string) *agent {
	l.Helper()
	ctx, cancel := context.WithCancel(l.ctx)
	if token != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
	}
	stream, err := pb.NewReportServiceClient(l.conn).Report(ctx)
	if err != nil {
		l.Fatal(err)
	}
	a := &agent{TB: l.TB, stream: stream, cancel: cancel, responses: make(chan *pb.ReportResponse, 1000), contests: map[string]bool{}}
	go func() {
		var acked uint64
		for {
			m, err := stream.Recv()
			if err != nil {
				a.end = err
				close(a.responses)
				return
			}
			if m.GetPing() != 0 && !a.mute.Load() {
				a.mu.Lock()
				if a.asked = m.GetPing(); a.sequence > 0 {
					a.pong()
				}
				a.mu.Unlock()
			}
			for _, q := range m.GetQuestions() {
				if a.answer != nil {
					out := a.answer(q)
					out.Id = q.GetId()
					a.send(&pb.ReportRequest{Answers: []*pb.BeliefAnswer{out}})
				}
			}
			if m.GetAcknowledged() > acked || m.GetCheck() != nil || len(m.GetContests())+len(m.GetDepartures()) > 0 || m.GetResync() {
				acked = m.GetAcknowledged()
				a.responses <- m
			}
		}
	}()
	l.Cleanup(cancel)
	return a
}

// send assigns a sequence number to a message and sends it.
func (a *agent) send(m *pb.ReportRequest) *agent {
	a.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.sequence++
	m.Sequence = a.sequence
	if err := a.stream.Send(m); err != nil && !errors.Is(err, io.EOF) {
		a.Fatal(err)
	}
	if a.asked != 0 && !a.mute.Load() {
		a.pong()
	}
	return a
}

// pong answers the last ping.
func (a *agent) pong() {
	_ = a.stream.Send(&pb.ReportRequest{Pong: &pb.Pong{Id: a.asked, SentAt: timestamppb.Now()}})
	a.asked = 0
}

// take processes one response. It returns false at the end of the stream.
func (a *agent) take() bool {
	m, ok := <-a.responses
	if !ok {
		return false
	}
	a.acked = max(a.acked, m.GetAcknowledged())
	if m.GetCheck() != nil {
		a.checks = append(a.checks, m.GetCheck())
	}
	for _, c := range m.GetContests() {
		addr, _ := netip.AddrFromSlice(c.GetAddress())
		a.contests[addr.String()] = c.GetContested()
	}
	for _, d := range m.GetDepartures() {
		addr, _ := netip.AddrFromSlice(d.GetAddress())
		a.departed = append(a.departed, addr.String()+" "+verdict.MAC(d.GetMac()).String())
	}
	if m.GetResync() {
		a.resyncs++
	}
	return true
}

// sync waits until all sent messages have been processed.
func (a *agent) sync() *agent {
	a.Helper()
	for a.acked < a.sequence {
		if !a.take() {
			a.Fatalf("the stream ended: %v", a.end)
		}
	}
	return a
}

// ended waits for the end of the stream.
func (a *agent) ended() error {
	for a.take() {
	}
	return a.end
}

// check waits for a check and answers it.
func (a *agent) check() *pb.Check {
	a.Helper()
	for len(a.checks) == 0 {
		if !a.take() {
			a.Fatalf("the stream ended: %v", a.end)
		}
	}
	c := a.checks[0]
	a.checks = a.checks[1:]
	return c
}

func hello(node string, epoch uint64) *pb.Hello {
	return &pb.Hello{Node: node, BootId: "boot-" + node, Netns: "4026531840", Epoch: epoch, Version: "v0", Kernel: "6.18"}
}

// snapshot returns a complete snapshot in one message.
func snapshot(h *pb.Hello, parts ...*pb.ReportRequest) *pb.ReportRequest {
	m := &pb.ReportRequest{
		Hello: h, SnapshotBegin: true, SnapshotEnd: true,
		Namespaces: []*pb.NamespaceRecord{{Id: 1, Netns: "4026531840", Workload: &pb.Workload{Kind: pb.Workload_HOST, Name: "host"}}},
		Status:     &pb.StatusRecord{Wire: "tcx", Ports: []*pb.Node_Port{{Interface: "eth0", Mode: "tcx"}}},
	}
	return records.Merge(m, parts...)
}

// podVeth returns a ptp pod: its namespace, its veth, and its address. Record numbers begin with 2.
func podVeth(record uint32, name, addr string) *pb.ReportRequest {
	pod := podNamespace(record, name)
	netns, _ := strconv.Atoi(pod.Netns)
	return records.Veth(record, netns, pod.Workload, assigned(record, addr))
}

func podNamespace(record uint32, name string) *pb.NamespaceRecord {
	return &pb.NamespaceRecord{Id: record, Netns: strconv.Itoa(4026532000 + int(record)), Workload: &pb.Workload{
		Kind: pb.Workload_POD, Namespace: "default", Name: name, Uid: "uid-" + name, Source: "cni-result",
	}}
}

func assigned(record uint32, addr string) *pb.ClaimRecord {
	return &pb.ClaimRecord{
		Address: netip.MustParseAddr(addr).AsSlice(), Kind: pb.Evidence_ASSIGNED, Namespace: record, Index: 2,
		PrefixLength: 24, FirstSeen: timestamppb.Now(), LastSeen: timestamppb.Now(), AssignedAt: timestamppb.Now(), Count: 1,
		Residence: durationpb.New(20 * time.Microsecond),
	}
}

// announced returns a frame that entered by a pod's port.
func announced(record uint32, addr string, mac []byte) *pb.ClaimRecord {
	return &pb.ClaimRecord{
		Address: netip.MustParseAddr(addr).AsSlice(), Kind: pb.Evidence_ANNOUNCED, Namespace: 1, Index: 100 + record,
		Mac: mac, Link: "veth" + strconv.Itoa(int(record)), FirstSeen: timestamppb.Now(), LastSeen: timestamppb.Now(), Count: 1,
	}
}

func gone(c *pb.ClaimRecord) *pb.ReportRequest {
	c.Gone = true
	return &pb.ReportRequest{Claims: []*pb.ClaimRecord{c}}
}

// conflicts lists all conflicts.
func (l *lab) conflicts() []*pb.Conflict {
	l.Helper()
	out, err := allPages(func(token string) (*pb.ListConflictsResponse, error) {
		return l.client.ListConflicts(l.ctx, &pb.ListConflictsRequest{All: true, PageToken: token})
	})
	if err != nil {
		l.Fatal(err)
	}
	return out.GetConflicts()
}

// conflict returns the only conflict, and checks its state.
func (l *lab) conflict(state pb.Conflict_State) *pb.Conflict {
	l.Helper()
	all := l.conflicts()
	if len(all) != 1 || all[0].GetState() != state {
		l.Fatalf("got conflicts %v, want one that is %s", all, state)
	}
	return all[0]
}

func (l *lab) owners(q *pb.ListOwnersRequest) []*pb.Owner {
	l.Helper()
	out, err := l.client.ListOwners(l.ctx, q)
	if err != nil {
		l.Fatal(err)
	}
	return out.GetOwners()
}

// metric returns the value of the series with the given label value, or of the series without
// labels. For a histogram it returns the count.
func (l *lab) metric(name, label string) float64 {
	l.Helper()
	families, err := l.registry.Gather()
	if err != nil {
		l.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			if label == "" && m.GetHistogram() != nil {
				return float64(m.GetHistogram().GetSampleCount())
			}
			if label == "" && len(m.GetLabel()) == 0 || len(m.GetLabel()) > 0 && m.GetLabel()[0].GetValue() == label {
				return m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return 0
}

const (
	added       = pb.Watch_ADDED
	updated     = pb.Watch_UPDATED
	removed     = pb.Watch_REMOVED
	nodeChanged = pb.Watch_NODE
)

// streamOf is the stream of a watch without a connection.
type streamOf[M any] struct {
	grpc.ServerStream
	ctx  context.Context //nolint:containedctx // a stream has one
	send func(*M) error
}

func (s *streamOf[M]) Context() context.Context { return s.ctx }
func (s *streamOf[M]) Send(m *M) error          { return s.send(m) }

// page returns a page of owners.
func (c *core) page(t testing.TB, q *pb.ListOwnersRequest) *pb.ListOwnersResponse {
	t.Helper()
	out, err := c.witness.ListOwners(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// pages returns all matching owners. It requests pages of a size, and each but the last must be
// full.
func (c *core) pages(t testing.TB, q *pb.ListOwnersRequest, size int) (owners []*pb.Owner) {
	t.Helper()
	q = proto.CloneOf(q)
	q.PageSize = uint32(size)
	for {
		page := c.page(t, q)
		q.PageToken = page.GetNextPageToken()
		if n := len(page.GetOwners()); n > size || q.PageToken != "" && n != size {
			t.Fatalf("got a page of %d items with the token %q, want %d items", n, q.PageToken, size)
		}
		if owners = append(owners, page.GetOwners()...); q.PageToken == "" {
			return owners
		}
	}
}

// Limits and times of other packages, as observed from outside.
const (
	maxBody          = 64 << 10
	maxPage          = 10_000
	maxPageBytes     = 1 << 20
	answerPart       = 64 << 10
	readWithin       = time.Minute
	bookmarkEvery    = 15 * time.Second
	coverageFor      = time.Second
	poolPause        = 200 * time.Millisecond
	overlapPause     = 300 * time.Millisecond
	maxPoolSeries    = 1000
	maxConflictInfo  = 1000
	maxFindingSeries = 1000
)
