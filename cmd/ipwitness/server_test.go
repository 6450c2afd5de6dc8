package main

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"log/slog"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/ipwitness/ipwitness/aggregator"
	"github.com/ipwitness/ipwitness/cmd/cli"
	"github.com/ipwitness/ipwitness/cmd/ipwitness/show"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// testServer runs a server with an aggregator and without an agent. stop ends it and returns its
// error.
func testServer(t *testing.T) (s *server, stop func() error) {
	t.Helper()
	return startServer(t, addresses{grpc: "127.0.0.1:0", http: "127.0.0.1:0"}, func(*server) {})
}

// startServer is like testServer, with the given addresses. It calls change before the server runs.
func startServer(t *testing.T, at addresses, change func(*server)) (s *server, stop func() error) {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	registry := cli.NewRegistry(cli.Build{Version: "v1.2.3", Go: runtime.Version()})
	l, err := listen(t.Context(), at)
	if err != nil {
		t.Fatal(err)
	}
	agg, err := aggregator.New(aggregator.Config{}, log, registry)
	if err != nil {
		t.Fatal(err)
	}
	if s, err = newServer(l, agg, nil, registry, log); err != nil {
		t.Fatal(err)
	}
	change(s)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 2)
	go func() { ended <- agg.Run(ctx) }()
	go func() { ended <- s.run(ctx) }()
	stop = sync.OnceValue(func() error {
		cancel()
		if err := <-ended; err != nil {
			return err
		}
		return <-ended
	})
	t.Cleanup(func() { _ = stop() })
	return s, stop
}

func TestServerStopsInTimeWithWatchesOpen(t *testing.T) {
	s, stop := testServer(t)
	res, err := http.Get("http://" + s.listeners.http.Addr().String() + "/v1/owners:watch")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	lines := bufio.NewReader(res.Body)
	if line, err := lines.ReadString('\n'); err != nil || !strings.Contains(line, "BOOKMARK") {
		t.Fatalf("got %q, %v; want a bookmark", line, err)
	}
	watch, err := pb.NewWitnessServiceClient(s.conn).WatchConflicts(t.Context(), &pb.WatchConflictsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := watch.Recv(); err != nil {
		t.Fatal(err)
	}
	if err := stop(); err != nil {
		t.Errorf("got %v, want nil", err)
	}
	if line, err := lines.ReadString('\n'); err != nil || !strings.Contains(line, "the aggregator is stopping") {
		t.Errorf("end of the watch: got %q, %v; want that the aggregator is stopping", line, err)
	}
}

func TestMetricsSayWhichBuildThisIs(t *testing.T) {
	s, _ := testServer(t)
	res, err := http.Get("http://" + s.listeners.http.Addr().String() + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`ipwitness_build_info{goversion="go`, `version="v1.2.3"} 1`, "go_goroutines ", "process_open_fds "} {
		if !strings.Contains(string(body), want) {
			t.Errorf("got no %s in the metrics", want)
		}
	}
}

// report sends a snapshot of a node with one address, and keeps the stream open.
func report(t *testing.T, s *server) {
	t.Helper()
	reportMany(t, s, 1)
}

// reportMany is like report, with the given number of addresses.
func reportMany(t *testing.T, s *server, addresses int) {
	t.Helper()
	var claims []*pb.ClaimRecord
	for i := range addresses {
		claims = append(claims, &pb.ClaimRecord{
			Address: []byte{10, 0, byte((i + 1) >> 8), byte(i + 1)}, Kind: pb.Evidence_ASSIGNED, Namespace: 1, Index: 2, PrefixLength: 24,
		})
	}
	stream, err := pb.NewReportServiceClient(s.conn).Report(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	err = stream.Send(&pb.ReportRequest{
		Sequence:      1,
		Hello:         &pb.Hello{Node: "n1", BootId: "b", Netns: "1", Epoch: 1, Kernel: "6.18"},
		SnapshotBegin: true, SnapshotEnd: true,
		Namespaces: []*pb.NamespaceRecord{{Id: 1, Netns: "1", Workload: &pb.Workload{Kind: pb.Workload_HOST, Name: "n1"}}},
		Links:      []*pb.LinkRecord{{Name: "eth0", Kind: pb.LinkRecord_UPLINK}},
		Interfaces: []*pb.InterfaceRecord{{
			Namespace: 1, Index: 2, Name: "eth0", Mac: []byte{2, 0, 0, 0, 0, 1}, Link: "eth0",
			Attachment: pb.InterfaceRecord_OWN, Uplink: true,
		}},
		Claims: claims,
		Status: &pb.StatusRecord{Wire: "off"},
	})
	if err != nil {
		t.Fatal(err)
	}
}

// lineWriter cancels a context at the first line that contains the text.
type lineWriter struct {
	bytes.Buffer
	text string
	end  func()
}

func (w *lineWriter) Write(b []byte) (int, error) {
	n, err := w.Buffer.Write(b)
	if strings.Contains(w.String(), w.text) {
		w.end()
	}
	return n, err
}

func TestLiveBeginsWithTheCurrentState(t *testing.T) {
	s, _ := testServer(t)
	report(t, s)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	out := &lineWriter{text: "no conflicts", end: cancel}
	c := newConsole()
	r := &runCommand{serving: serving{sys: c.system}, account: show.NewLive(out, show.Layout{Program: "ipwitness"})}
	if err := r.showLive(ctx, s, cli.Build{Version: "v1.2.3"}); err != nil {
		t.Errorf("got %v, want nil", err)
	}
	for _, want := range []string{"ipwitness v1.2.3 watches node n1 (Linux 6.18)\n", "1 address held by 1 owner\n", "no conflicts\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("got\n%s\nwant %q in it", out, want)
		}
	}
}

func TestLiveEndsWhenTheOutputIsClosed(t *testing.T) {
	s, _ := testServer(t)
	report(t, s)
	c := newConsole()
	r := &runCommand{serving: serving{sys: c.system}, account: show.NewLive(errWriter{}, show.Layout{})}
	if err := r.showLive(t.Context(), s, cli.Build{}); err == nil || !strings.Contains(err.Error(), "no space left") {
		t.Errorf("got %v, want the error of writing", err)
	}
}
