package tests

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/records"
	"github.com/ipwitness/ipwitness/tests/sim"
	"github.com/ipwitness/ipwitness/tests/wait"
)

const (
	// crashSlots is the number of addresses that change: the pod of a slot appears and disappears in turn.
	crashSlots = 2000
	// crashPairs is the number of addresses that two pods have.
	crashPairs = 20
	// crashRate is the number of changes per second. It is lower on a machine that is too slow:
	// crashAhead is the number of changes that may be under way to the watch.
	crashRate  = 5000
	crashAhead = 500
	crashTick  = 10 * time.Millisecond
)

// crashChange is what happens to the pod of a slot. Each pod has a name of its own.
type crashChange struct {
	addr, pod string
	removed   bool
}

// crashWorld is what really happens on the one node.
type crashWorld struct {
	mu   sync.Mutex
	next int
	// pods is the number of pods that a slot has had. The last one exists if live is set.
	pods [crashSlots]int
	live [crashSlots]bool
	// second is the number of second pods that a pair has had.
	second [crashPairs]int
	// happened has all changes, numbered in their order.
	happened map[crashChange]int
}

func newCrashWorld() *crashWorld {
	w := &crashWorld{happened: make(map[crashChange]int)}
	for p := range w.second {
		w.second[p] = 1
	}
	return w
}

func slotAddress(slot int) string { return fmt.Sprintf("10.1.%d.%d", slot/250, 1+slot%250) }

func pairAddress(pair int) string { return fmt.Sprintf("10.2.0.%d", 1+pair) }

// all returns all changes.
func (w *crashWorld) all() map[crashChange]int { return w.happened }

// episode returns how often the duplicate of an address has begun.
func (w *crashWorld) episode(addr string) uint32 {
	for p := range crashPairs {
		if pairAddress(p) == addr {
			return uint32(w.second[p])
		}
	}
	return 0
}

// step makes some changes, and returns the message about them.
func (w *crashWorld) step() *ipwitnessv1.ReportRequest {
	w.mu.Lock()
	defer w.mu.Unlock()
	m := &ipwitnessv1.ReportRequest{}
	for range crashRate * int(crashTick) / int(time.Second) {
		s := w.next
		w.next = (w.next + 1) % crashSlots
		if w.live[s] = !w.live[s]; w.live[s] {
			w.pods[s]++
			records.Merge(m, w.slotPod(s))
		} else {
			m.Namespaces = append(m.Namespaces, &ipwitnessv1.NamespaceRecord{Id: w.slotRecord(s), Gone: true})
		}
		w.happened[crashChange{slotAddress(s), w.slotName(s), !w.live[s]}] = len(w.happened)
	}
	return m
}

// number returns the number of a change.
func (w *crashWorld) number(one crashChange) (n int, happened bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	n, happened = w.happened[one]
	return n, happened
}

// made returns the number of changes so far.
func (w *crashWorld) made() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.happened)
}

func (w *crashWorld) slotName(s int) string { return fmt.Sprintf("p%d-%d", s, w.pods[s]) }

// slotRecord returns the record number of the pod of a slot, which differs from that of the pod before.
func (w *crashWorld) slotRecord(s int) uint32 {
	return uint32(2 + 4*crashPairs + 2*s + w.pods[s]%2)
}

func (w *crashWorld) slotPod(s int) *ipwitnessv1.ReportRequest {
	return crashPod(w.slotRecord(s), w.pods[s], w.slotName(s), slotAddress(s))
}

func (w *crashWorld) pairRecord(p, k int) uint32 { return uint32(2 + 4*p + 2*k + k*w.second[p]%2) }

func (w *crashWorld) pairPod(p, k int) *ipwitnessv1.ReportRequest {
	return crashPod(w.pairRecord(p, k), k*w.second[p], fmt.Sprintf("pair%d-%d-%d", p, k, k*w.second[p]), pairAddress(p))
}

// crashPod returns the nth pod with a record number.
func crashPod(record uint32, nth int, name, addr string) *ipwitnessv1.ReportRequest {
	return records.Veth(record, 4_026_600_000+int(record)+10_000*nth, &ipwitnessv1.Workload{
		Kind: ipwitnessv1.Workload_POD, Namespace: "default", Name: name, Uid: "uid-" + name, Source: "cni-result",
	}, &ipwitnessv1.ClaimRecord{
		Address: netip.MustParseAddr(addr).AsSlice(), Kind: ipwitnessv1.Evidence_ASSIGNED, Namespace: record, Index: 2, PrefixLength: 32,
		FirstSeen: timestamppb.Now(), LastSeen: timestamppb.Now(), Count: 1,
	})
}

// snapshot returns everything.
func (w *crashWorld) snapshot() *ipwitnessv1.ReportRequest {
	w.mu.Lock()
	defer w.mu.Unlock()
	m := &ipwitnessv1.ReportRequest{
		Hello:         &ipwitnessv1.Hello{Node: "n1", BootId: "boot-n1", Netns: "4026531840", Epoch: 1, Version: "v0", Kernel: "6.18"},
		SnapshotBegin: true, SnapshotEnd: true,
		Namespaces: []*ipwitnessv1.NamespaceRecord{{Id: 1, Netns: "4026531840", Workload: &ipwitnessv1.Workload{Kind: ipwitnessv1.Workload_HOST, Name: "host"}}},
		Status:     &ipwitnessv1.StatusRecord{Wire: "off"},
	}
	for p := range crashPairs {
		records.Merge(m, w.pairPod(p, 0), w.pairPod(p, 1))
	}
	for s := range crashSlots {
		if w.live[s] {
			records.Merge(m, w.slotPod(s))
		}
	}
	return m
}

// A life is one process of the aggregator, with an agent that reports to it and a client that watches.
type life struct {
	t      *testing.T
	c      *cluster
	world  *crashWorld
	conn   *grpc.ClientConn
	client ipwitnessv1.WitnessServiceClient
	ctx    context.Context
	cancel context.CancelFunc
	ended  sync.WaitGroup
	began  time.Time

	sending  sync.Mutex
	stream   ipwitnessv1.ReportService_ReportClient
	sequence uint64

	mu sync.Mutex
	// present is set when the watch has the present state, recording when the journal records changes.
	// killed is set before the kill: what is delivered then does not count.
	present, recording, killed bool
	// told are the changes that were delivered while the journal recorded. delivered is the number of
	// all that were delivered, and last the number of the last one.
	told      []toldChange
	delivered int
	last      int
	// killedAt is the time of the kill, and slowest the time that the slowest write before it took.
	killedAt time.Time
	slowest  time.Duration
}

// toldChange is a change that a watch has delivered.
type toldChange struct {
	change crashChange
	at     time.Time
}

// newLife connects an agent and a watch to the aggregator.
func newLife(t *testing.T, c *cluster, w *crashWorld) *life {
	t.Helper()
	conn, err := sim.Dial(c.Host, grpcServer)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	l := &life{t: t, c: c, world: w, conn: conn, client: ipwitnessv1.NewWitnessServiceClient(conn), ctx: ctx, cancel: cancel, began: time.Now(), last: w.made()}
	l.ended.Go(l.report)
	l.ended.Go(l.watch)
	t.Cleanup(l.end)
	return l
}

// end ends the agent and the watch.
func (l *life) end() {
	l.cancel()
	_ = l.conn.Close()
	l.ended.Wait()
}

// kill kills the aggregator. Changes go on while there is none.
func (l *life) kill(p *diskProbe) {
	l.mu.Lock()
	l.killed, l.killedAt, l.slowest = true, time.Now(), p.slowest()
	l.mu.Unlock()
	l.c.program.Kill()
	l.end()
	for range 20 {
		l.world.step()
	}
}

// send sends a message of the agent.
func (l *life) send(m *ipwitnessv1.ReportRequest) error {
	l.sending.Lock()
	defer l.sending.Unlock()
	l.sequence++
	m.Sequence = l.sequence
	return l.stream.Send(m)
}

// report is the agent: it reports until the stream ends.
func (l *life) report() {
	stream, err := ipwitnessv1.NewReportServiceClient(l.conn).Report(l.ctx, grpc.WaitForReady(true))
	if err != nil {
		return
	}
	l.sending.Lock()
	l.stream = stream
	l.sending.Unlock()
	if l.send(l.world.snapshot()) != nil {
		return
	}
	l.ended.Go(func() {
		for {
			m, err := stream.Recv()
			if err != nil {
				return
			}
			if m.GetPing() != 0 {
				_ = l.send(&ipwitnessv1.ReportRequest{Pong: &ipwitnessv1.Pong{Id: m.GetPing(), SentAt: timestamppb.Now()}})
			}
			if m.GetCheck() != nil {
				_ = l.send(&ipwitnessv1.ReportRequest{Checked: []uint64{m.GetCheck().GetId()}})
			}
		}
	})
	ticker := time.NewTicker(crashTick)
	defer ticker.Stop()
	held := 0 // the number of ticks without a change
	for {
		select {
		case <-ticker.C:
		case <-l.ctx.Done():
			return
		}
		// A change that was not delivered, because the next one came too soon, holds the others up for
		// a second.
		if l.behind() > crashAhead && held < 100 {
			held++
			continue
		}
		held = 0
		if l.send(l.world.step()) != nil {
			return
		}
	}
}

// behind returns the number of changes that are under way to the watch.
func (l *life) behind() int {
	made := l.world.made()
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.present {
		return 2 * crashAhead
	}
	return made - l.last
}

// watch notes what a client learns.
func (l *life) watch() {
	stream, err := l.client.WatchOwners(l.ctx, &ipwitnessv1.WatchOwnersRequest{Cidr: "10.1.0.0/16"}, grpc.WaitForReady(true))
	for err == nil {
		var m *ipwitnessv1.WatchOwnersResponse
		if m, err = stream.Recv(); err == nil {
			l.deliver(m, time.Now())
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ctx.Err() == nil && !l.killed {
		l.t.Errorf("the watch ended: %v", err)
	}
}

func (l *life) deliver(m *ipwitnessv1.WatchOwnersResponse, at time.Time) {
	one := crashChange{m.GetOwner().GetAddress(), m.GetOwner().GetWorkload().GetName(), m.GetType() == ipwitnessv1.Watch_REMOVED}
	n, happened := l.world.number(one)
	l.mu.Lock()
	defer l.mu.Unlock()
	switch m.GetType() {
	case ipwitnessv1.Watch_BOOKMARK:
		if !l.present {
			l.present, l.last = true, l.last+crashAhead/2
		}
	case ipwitnessv1.Watch_LOST:
		l.present, l.last = false, l.world.made()
	case ipwitnessv1.Watch_ADDED, ipwitnessv1.Watch_REMOVED:
		if happened {
			l.last = max(l.last, n)
		}
		if !l.present || l.killed {
			return
		}
		l.delivered++
		if l.recording {
			l.told = append(l.told, toldChange{one, at})
		}
	default:
	}
}

// awaitRecording waits until the watch has the present state, and the journal records changes again.
// What is delivered before that is in the gap of the history, which only says how the states differ.
func (l *life) awaitRecording() {
	l.t.Helper()
	wait.Until(l.t, "the journal to record changes", func() bool {
		out, err := l.client.ListEvents(l.ctx, &ipwitnessv1.ListEventsRequest{
			PageSize: 10_000, Kind: ipwitnessv1.Event_OWNER, Cidr: "10.1.0.0/16", Since: timestamppb.New(l.began),
		})
		if err != nil {
			l.t.Fatal(err)
		}
		for _, g := range out.GetGaps() {
			if g.GetUntil() == nil {
				return false
			}
		}
		for _, e := range out.GetEvents() {
			if !e.GetPresent() && e.GetNotBefore() == nil {
				return true
			}
		}
		return false
	})
	wait.Until(l.t, "the present state in the watch", func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.recording = l.present
		return l.recording
	})
}

// awaitSome waits until n more changes were delivered.
func (l *life) awaitSome(n int) {
	l.t.Helper()
	delivered := func() int {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.delivered
	}
	n += delivered()
	wait.Until(l.t, "more changes", func() bool { return delivered() >= n })
}

// conflicts lists the conflicts in a prefix that are in a state.
func (l *life) conflicts(cidr string, state ipwitnessv1.Conflict_State) []*ipwitnessv1.Conflict {
	l.t.Helper()
	out, err := l.client.ListConflicts(l.ctx, &ipwitnessv1.ListConflictsRequest{State: state, All: true, Cidr: cidr})
	if err != nil {
		l.t.Fatal(err)
	}
	return out.GetConflicts()
}

// repeatConflict ends the duplicate of a pair, begins it again, and waits until the history has that.
func (l *life) repeatConflict(p int) {
	l.t.Helper()
	w, addr := l.world, pairAddress(p)
	send := func(m *ipwitnessv1.ReportRequest) {
		if err := l.send(m); err != nil {
			l.t.Fatal(err)
		}
	}
	send(&ipwitnessv1.ReportRequest{Namespaces: []*ipwitnessv1.NamespaceRecord{{Id: w.pairRecord(p, 1), Gone: true}}})
	wait.Until(l.t, "the end of a duplicate", func() bool { return len(l.conflicts(addr+"/32", ipwitnessv1.Conflict_RESOLVED)) == 1 })
	w.mu.Lock()
	w.second[p]++
	w.mu.Unlock()
	send(w.pairPod(p, 1))
	wait.Until(l.t, "the next episode in the history", func() bool {
		out, err := l.client.ListEvents(l.ctx, &ipwitnessv1.ListEventsRequest{Kind: ipwitnessv1.Event_CONFLICT, Address: addr, Since: timestamppb.New(l.began)})
		if err != nil {
			l.t.Fatal(err)
		}
		for _, e := range out.GetEvents() {
			if e.GetConflict().GetEpisode() == w.episode(addr) && e.GetConflict().GetState() == ipwitnessv1.Conflict_CONFIRMED {
				return true
			}
		}
		return false
	})
}

// history returns all recorded changes of the slots, and the gaps.
func (l *life) history() (all []*ipwitnessv1.Event, gaps []*ipwitnessv1.Gap) {
	l.t.Helper()
	q := &ipwitnessv1.ListEventsRequest{Kind: ipwitnessv1.Event_OWNER, Cidr: "10.1.0.0/16", PageSize: 10_000, Until: timestamppb.Now()} // changes go on
	for {
		out, err := l.client.ListEvents(l.ctx, q)
		if err != nil {
			l.t.Fatal(err)
		}
		all, gaps = append(all, out.GetEvents()...), append(gaps, out.GetGaps()...)
		if q.PageToken = out.GetNextPageToken(); q.PageToken == "" {
			return all, gaps
		}
	}
}
