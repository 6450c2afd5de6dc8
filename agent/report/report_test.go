package report

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"github.com/ipwitness/ipwitness/agent/table"
	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/agenttest"
)

// fakeAggregator passes its streams to a test.
type fakeAggregator struct {
	ipwitnessv1.UnimplementedReportServiceServer
	streams chan *fakeStream
}

type fakeStream struct {
	ipwitnessv1.ReportService_ReportServer
	t   *testing.T
	end chan error
}

func (f *fakeAggregator) Report(s ipwitnessv1.ReportService_ReportServer) error {
	if err := s.Send(&ipwitnessv1.ReportResponse{Instance: "a"}); err != nil {
		return err
	}
	fs := &fakeStream{ReportService_ReportServer: s, end: make(chan error)}
	f.streams <- fs
	select {
	case err := <-fs.end:
		return err
	case <-s.Context().Done():
		return nil
	}
}

func (s *fakeStream) next() *ipwitnessv1.ReportRequest {
	s.t.Helper()
	m, err := s.Recv()
	if err != nil {
		s.t.Fatal("receive report: ", err)
	}
	return m
}

// startReporter runs a reporter against a fake aggregator until the test ends.
func startReporter(t *testing.T, r *Reporter) func() *fakeStream {
	t.Helper()
	listener := bufconn.Listen(1 << 20)
	server := grpc.NewServer()
	agg := &fakeAggregator{streams: make(chan *fakeStream)}
	ipwitnessv1.RegisterReportServiceServer(server, agg)
	go func() { _ = server.Serve(listener) }()
	conn, err := grpc.NewClient("passthrough:///bufconn",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	r.log = slog.New(slog.DiscardHandler)
	if r.contests == nil {
		r.contests = NewContests(r.log, func(netip.Addr, bool) {})
	}
	r.instances = NewInstances()
	r.client = ipwitnessv1.NewReportServiceClient(conn)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("reporter: got %v after cancel, want nil", err)
		}
		_ = conn.Close()
		server.Stop()
	})
	return func() *fakeStream {
		s := <-agg.streams
		s.t = t
		return s
	}
}

func TestStreamBeginsWithASnapshotAndContinuesWithChanges(t *testing.T) {
	tab := table.New()
	tab.Update(func() { tab.Add(agenttest.Claim(1), table.Claim{Count: 1}, time.Now()) })
	r := &Reporter{table: tab, hello: &ipwitnessv1.Hello{Node: "node1"}}
	s := startReporter(t, r)()

	m := s.next()
	if m.GetSequence() != 1 || m.GetHello().GetNode() != "node1" || !m.GetSnapshotBegin() || !m.GetSnapshotEnd() || len(m.GetClaims()) != 1 {
		t.Fatalf("first message: got %v, want hello and a complete snapshot", m)
	}
	tab.Update(func() { tab.Add(agenttest.Claim(2), table.Claim{Count: 1}, time.Now()) })
	if m = s.next(); m.GetSequence() != 2 || m.GetHello() != nil || m.GetSnapshotBegin() || len(m.GetClaims()) != 1 {
		t.Fatalf("second message: got %v, want one change", m)
	}

	if err := s.Send(&ipwitnessv1.ReportResponse{Resync: true}); err != nil {
		t.Fatal(err)
	}
	if m = s.next(); m.GetSequence() != 3 || !m.GetSnapshotBegin() || !m.GetSnapshotEnd() || len(m.GetClaims()) != 2 {
		t.Fatalf("answer to resync: got %v, want a snapshot of two claims", m)
	}
}

func TestReporterReconnectsAndSendsMissedChanges(t *testing.T) {
	tab := table.New()
	r := &Reporter{table: tab, hello: &ipwitnessv1.Hello{Node: "node1"}}
	next := startReporter(t, r)
	first := next()
	if m := first.next(); !m.GetSnapshotEnd() {
		t.Fatalf("snapshot of an empty table: got %v", m)
	}
	first.end <- context.Canceled
	tab.Update(func() { tab.Add(agenttest.Claim(1), table.Claim{Count: 1}, time.Now()) })
	second := next()
	if m := second.next(); m.GetSequence() != 1 || m.GetHello() == nil || len(m.GetClaims()) != 1 {
		t.Fatalf("first message of the second stream: got %v, want hello and the claim", m)
	}
}

func TestCheckIsAnsweredAfterItsChanges(t *testing.T) {
	tab := table.New()
	asked := make(chan []netip.Addr, 1)
	r := &Reporter{table: tab, hello: &ipwitnessv1.Hello{}}
	readable := false
	r.check = func(addrs []netip.Addr) bool {
		if !readable {
			readable = true
			return false
		}
		tab.Update(func() { tab.Add(agenttest.Claim(9), table.Claim{Count: 1}, time.Now()) })
		asked <- addrs
		return true
	}
	contested := make(chan netip.Addr, 1)
	r.contests = NewContests(slog.New(slog.DiscardHandler), func(addr netip.Addr, on bool) {
		if on {
			contested <- addr
		}
	})
	departed := make(chan string, 1)
	r.departed = func(addr netip.Addr, mac string) { departed <- addr.String() + " " + mac }
	s := startReporter(t, r)()
	s.next()
	addr := netip.MustParseAddr("10.0.0.9")
	// The address cannot be read the first time, so there is no answer.
	if err := s.Send(&ipwitnessv1.ReportResponse{Check: &ipwitnessv1.Check{Id: 41, Addresses: [][]byte{addr.AsSlice()}}}); err != nil {
		t.Fatal(err)
	}
	err := s.Send(&ipwitnessv1.ReportResponse{
		Check:      &ipwitnessv1.Check{Id: 42, Addresses: [][]byte{addr.AsSlice(), {1, 2, 3}}},
		Contests:   []*ipwitnessv1.Contest{{Address: addr.AsSlice(), Contested: true}},
		Departures: []*ipwitnessv1.Departure{{Address: addr.AsSlice(), Mac: []byte("former")}, {Address: []byte{1, 2, 3}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for {
		m := s.next()
		found = found || len(m.GetClaims()) == 1
		if len(m.GetChecked()) == 0 {
			continue
		}
		if m.GetChecked()[0] != 42 || !found {
			t.Errorf("answer: got %v, claim sent before %v, want check 42 after its claim", m.GetChecked(), found)
		}
		break
	}
	if got := <-asked; len(got) != 1 || got[0] != addr {
		t.Errorf("addresses that were read again: got %v, want %v", got, addr)
	}
	if got := <-departed; got != "10.0.0.9 former" {
		t.Errorf("departed owner: got %q, want that of the message", got)
	}
	if got := <-contested; got != addr {
		t.Errorf("contested address: got %v, want %v", got, addr)
	}
}

func TestQuestionAboutBeliefsIsAnswered(t *testing.T) {
	r := &Reporter{table: table.New(), hello: &ipwitnessv1.Hello{}, believed: func(addr netip.Addr) *ipwitnessv1.BeliefAnswer {
		return &ipwitnessv1.BeliefAnswer{Beliefs: []*ipwitnessv1.BeliefRecord{{Address: addr.AsSlice()}}}
	}}
	s := startReporter(t, r)()
	s.next()
	if err := s.Send(&ipwitnessv1.ReportResponse{Questions: []*ipwitnessv1.BeliefQuestion{{Id: 1}, {Id: 2, Address: []byte{10, 0, 0, 9}}}}); err != nil {
		t.Fatal(err)
	}
	if a := s.next().GetAnswers(); len(a) != 1 || a[0].GetId() != 2 || string(a[0].GetBeliefs()[0].GetAddress()) != "\x0a\x00\x00\x09" {
		t.Errorf("got %v, want the answer to the second question, because the first one has no address", a)
	}
}
