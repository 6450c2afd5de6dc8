package shard

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/facts"
	"github.com/ipwitness/ipwitness/aggregator/index"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// ear hears what the facts and the shards tell, and panics when it hears of one address.
type ear struct {
	broken index.Address

	mu        sync.Mutex
	panics    int
	conflicts []*verdict.Conflict
}

func (e *ear) NodeChanged(*facts.Node)            {}
func (e *ear) NamesChanged(*facts.Node)           {}
func (e *ear) Answered(*facts.Node)               {}
func (e *ear) RangesChanged(*facts.Node)          {}
func (e *ear) MayLack(*facts.Node, uint32)        {}
func (e *ear) PoolChanged(*facts.Pool)            {}
func (e *ear) PoolEnded(*facts.Pool)              {}
func (e *ear) CoverageChanged()                   {}
func (e *ear) OwnersWatched() bool                { return true }
func (e *ear) Contested(func(index.Address) bool) {}
func (e *ear) AtRisk(*facts.Pool) []netip.Addr    { return nil }
func (e *ear) Dropped(string, int)                {}
func (e *ear) Refused(string)                     {}

func (e *ear) OwnerChanged(_ OwnerChange, a index.Address, _, _ *verdict.Owner, _ []verdict.Owner) {
	if a == e.broken {
		panic("a defect")
	}
}

func (e *ear) ConflictChanged(c, _ *verdict.Conflict, _ bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.conflicts = append(e.conflicts, c)
}

func (e *ear) Panicked() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.panics++
}

func (e *ear) Detected(time.Duration)                                                             {}
func (e *ear) Acknowledged(*verdict.Conflict) (verdict.Stamp, bool)                               { return 0, false }
func (e *ear) Audited(index.Address, []verdict.Owner, []verdict.Finding, []verdict.Finding, bool) {}
func (e *ear) Cloned(index.Address, []verdict.Spoof)                                              {}
func (e *ear) Rested()                                                                            {}
func (e *ear) Spoke(*verdict.Owner)                                                               {}

type peer struct{}

func (*peer) End(error)                               {}
func (*peer) Contest(netip.Addr, bool)                {}
func (*peer) Check(netip.Addr)                        {}
func (*peer) AskResync()                              {}
func (*peer) Ping(verdict.Stamp)                      {}
func (*peer) Lag(verdict.Stamp) (time.Duration, bool) { return 0, false }

func pod(record uint32, addr string) *pb.ReportRequest {
	port := "veth" + strconv.Itoa(int(record))
	return &pb.ReportRequest{
		Namespaces: []*pb.NamespaceRecord{{Id: record, Netns: strconv.Itoa(4000 + int(record)), Workload: &pb.Workload{Kind: pb.Workload_POD, Name: port}}},
		Links:      []*pb.LinkRecord{{Name: port, Kind: pb.LinkRecord_POINT_TO_POINT}},
		Interfaces: []*pb.InterfaceRecord{{Namespace: record, Index: 2, Name: "eth0", Mac: []byte{2, 0, 0, 0, 0, byte(record)}, Attachment: pb.InterfaceRecord_PEER, Link: port}},
		Claims:     []*pb.ClaimRecord{{Address: netip.MustParseAddr(addr).AsSlice(), Kind: pb.Evidence_ASSIGNED, Namespace: record, Index: 2, Count: 1, PrefixLength: 24}},
	}
}

// A defect that makes one address impossible to judge harms no other one, and is known until the
// address can be judged.
func TestAPanicHarmsOneAddressOnly(t *testing.T) {
	bad, good := netip.MustParseAddr("10.0.0.66"), netip.MustParseAddr("10.0.0.1")
	e := &ear{broken: index.AddressOf(bad)}
	policy := &verdict.Policy{Cluster: "c", Settle: time.Hour, StaleAfter: time.Minute, NodeTimeout: time.Minute}
	began := time.Now()
	clock := func() verdict.Stamp { return verdict.At(began).Add(time.Since(began)) }
	log := slog.New(slog.DiscardHandler)
	f := facts.New(facts.Config{Policy: policy, Log: log, Clock: clock, Listener: e, Queues: 1})
	s := New(Config{Policy: policy, Log: log, Clock: clock, Facts: f, Listener: e, Workers: 1})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { s.Run(ctx); close(done) }()
	defer func() { cancel(); <-done }()

	p := &peer{}
	n, b, err := f.Connect(p, &pb.Hello{Node: "n1", BootId: "b", Netns: "1", Epoch: 1}, "")
	if err != nil {
		t.Fatal(err)
	}
	<-b.Done()
	send := func(messages ...*pb.ReportRequest) {
		t.Helper()
		batches, err := f.Snapshot(p, n, &facts.Snapshot{Messages: slices.Values(messages)}, func() {})
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range batches {
			<-b.Done()
		}
	}
	send(pod(2, bad.String()), pod(3, good.String()), pod(4, good.String()))
	if e.panics == 0 || s.Unjudged() != 1 || len(e.conflicts) != 1 || s.Conflicts.Len() != 1 {
		t.Errorf("got %d panics, %d addresses that are not judged and conflicts %v", e.panics, s.Unjudged(), e.conflicts)
	}
	e.broken = index.Address{}
	again := pod(2, bad.String())
	again.Claims[0].Count++
	send(again, pod(3, good.String()))
	if s.Unjudged() != 0 || s.Conflicts.All()[0].Active() {
		t.Errorf("got %d addresses that are not judged and conflict %v, want none", s.Unjudged(), s.Conflicts.All()[0])
	}
	var places []netip.Addr
	for p := range s.Places().All() {
		places = append(places, p.Address().Addr())
	}
	if !slices.Equal(places, []netip.Addr{good, bad}) {
		t.Errorf("got places %v, want those that have an owner", places)
	}
}

func TestTimersRingInOrderAndSoonerOnesReplaceLater(t *testing.T) {
	w := &worker{entries: map[index.Address]*entry{}}
	a, b, c := &entry{}, &entry{}, &entry{}
	w.arm(a, 30)
	w.arm(b, 10)
	w.arm(c, 20)
	w.arm(a, 40) // stays
	w.arm(c, 5)
	w.disarm(b)
	if len(w.timers) != 2 || w.timers[0] != c || c.again != 5 || a.again != 30 || b.again != 0 {
		t.Errorf("got %d timers, first %d; a %d, b %d", len(w.timers), w.timers[0].again, a.again, b.again)
	}
}
