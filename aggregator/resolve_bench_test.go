package aggregator

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ipwitness/ipwitness/aggregator/journal"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// BenchmarkResolve measures ten requests with 10,000 questions each through REST, about random addresses at random times
// of a month in which the owners of 110,000 addresses on 1,000 nodes changed b.N times.
func BenchmarkResolve(b *testing.B) { b.Run("month", benchmarkResolve) }

func benchmarkResolve(b *testing.B) {
	if b.N == 1 {
		return // the framework tries with 1 first
	}
	const addresses, nodes, month = 110_000, 1000, 30 * 24 * time.Hour
	end := time.Now().Add(-time.Minute)
	begin := end.Add(-month)
	dir, now := b.TempDir(), begin
	random := rand.New(rand.NewPCG(1, 2))
	must := func(err error) {
		b.Helper()
		if err != nil {
			b.Fatal(err)
		}
	}
	address := func(n int) netip.Addr { return netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)}) }
	pod := func(n, nth int) *journal.Change {
		random := rand.New(rand.NewPCG(uint64(n), uint64(nth)))
		return &journal.Change{At: now, Type: pb.Watch_ADDED, ID: fmt.Sprintf("%d/%d", n, nth), Owner: &pb.Owner{
			Address: address(n).String(), Scope: &pb.Scope{Kind: pb.Scope_NETWORK, Name: "pods"}, Node: fmt.Sprint("node-", random.IntN(nodes)),
			Mac: fmt.Sprintf("0a:58:0a:%02x:%02x:%02x", byte(n>>16), byte(n>>8), byte(n)), Interface: "eth0", HostInterface: fmt.Sprintf("veth%08x", random.Uint32()),
			Netns: fmt.Sprint(4026532000 + random.IntN(10000)), State: pb.Owner_LIVE, FirstSeen: timestamppb.New(now), AssignedAt: timestamppb.New(now),
			Workload: &pb.Workload{
				Kind: pb.Workload_POD, Namespace: fmt.Sprint("team-", random.IntN(50)), Name: fmt.Sprintf("service-%d-%08x-%05x", random.IntN(200), random.Uint32(), random.IntN(1<<20)),
				Uid:         fmt.Sprintf("%08x-%04x-4%03x-a%03x-%012x", random.Uint32(), random.IntN(1<<16), random.IntN(1<<12), random.IntN(1<<12), random.Uint64N(1<<48)),
				ContainerId: fmt.Sprintf("%016x%016x%016x%016x", random.Uint64(), random.Uint64(), random.Uint64(), random.Uint64()), Source: "cri",
			},
		}}
	}
	node := func(n int, state pb.Node_State) *journal.Change {
		return &journal.Change{At: now, Type: pb.Watch_UPDATED, Node: &pb.Node{Name: fmt.Sprint("node-", n), State: state, Version: "v1.0.0", Kernel: "6.12.0", Wire: "tcx"}}
	}

	cpu := func() time.Duration {
		var usage syscall.Rusage
		must(syscall.Getrusage(syscall.RUSAGE_SELF, &usage))
		return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
	}
	idle := func() {
		b.Helper()
		wait.Until(b, "the end of compactions", func() bool {
			before := cpu()
			time.Sleep(500 * time.Millisecond)
			return cpu()-before < 10*time.Millisecond
		})
	}

	j := journal.New(journal.Config{Dir: dir, Retention: 2 * month, Size: journal.DefaultSize, Instance: 1, Clock: func() time.Time { return now }, Log: slog.New(slog.DiscardHandler)})
	ctx, stop := context.WithCancel(b.Context())
	stopped := make(chan struct{})
	go func() { j.Run(ctx); close(stopped) }()
	<-j.Opened()
	for _, kind := range []pb.Event_Kind{pb.Event_OWNER, pb.Event_CONFLICT, pb.Event_FINDING, pb.Event_NODE} {
		feed := j.Feed(kind)
		must(feed.Begin())
		for n := range addresses {
			if kind == pb.Event_OWNER {
				must(feed.Present(pod(n, 0)))
			} else if kind == pb.Event_NODE && n < nodes {
				must(feed.Present(node(n, pb.Node_LIVE)))
			}
		}
		must(feed.Complete())
	}
	owners, nth := j.Feed(pb.Event_OWNER), make([]int, addresses)
	step := month / time.Duration(b.N)
	for n := 0; n < b.N; n += 2 {
		at := random.IntN(addresses)
		change := pod(at, nth[at])
		now = now.Add(step)
		change.At, change.Type = now, pb.Watch_REMOVED
		must(owners.Changed(change))
		now = now.Add(step)
		nth[at]++
		must(owners.Changed(pod(at, nth[at])))
		if n%500 == 0 { // a node is away for a while
			must(j.Feed(pb.Event_NODE).Changed(node(n/500%nodes, pb.Node_DISCONNECTED)))
			must(j.Feed(pb.Event_NODE).Changed(node(n/500%nodes, pb.Node_LIVE)))
		}
	}
	must(owners.Flush())
	idle() // closing the journal waits for a compaction, but not for long
	stop()
	<-stopped

	l := newLab(b, Config{DataDir: dir, Retention: 2 * month, JournalSize: journal.DefaultSize})
	url := l.serve()
	idle()
	certain, size := map[pb.Resolution_Certainty]int{}, 0
	b.ResetTimer()
	b.StopTimer()
	var took, used time.Duration
	for range 10 {
		q := &pb.ResolveOwnersRequest{}
		for range 10_000 {
			at := begin.Add(time.Duration(random.Int64N(int64(month))))
			q.Questions = append(q.Questions, &pb.ResolveOwnersRequest_Question{Address: address(random.IntN(addresses)).String(), Time: timestamppb.New(at)})
		}
		body, err := protojson.Marshal(q)
		must(err)
		sent, before := time.Now(), cpu()
		r, err := http.Post(url+"/v1/owners:resolve", "application/json", bytes.NewReader(body))
		must(err)
		raw, err := io.ReadAll(r.Body)
		must(err)
		took, used = took+time.Since(sent), used+cpu()-before
		must(r.Body.Close())
		out := &pb.ResolveOwnersResponse{}
		must(protojson.Unmarshal(raw, out))
		size += len(raw)
		for _, a := range out.GetAnswers() {
			certain[a.GetCertainty()]++
		}
	}
	if certain[pb.Resolution_KNOWN] < 95_000 {
		b.Errorf("got certainties %v, want nearly all KNOWN", certain)
	}
	b.ReportMetric(float64(took.Milliseconds()), "resolve-100k-ms")
	b.ReportMetric(float64(used.Milliseconds()), "resolve-100k-cpu-ms")
	b.ReportMetric(float64(size)/10/1e6, "MB/answer")
}
