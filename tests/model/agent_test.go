package model_test

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// An agent is the simulated agent of a node: its table, and the stream on which it reports that.
type agent struct {
	number int
	name   string
	boot   int
	epoch  uint64
	table  table
	// stream is the open stream; nil if there is none.
	stream *stream
	// deaf agents do not answer checks, mute agents do not answer pings.
	deaf, mute atomic.Bool
	// lost is the last message that was not delivered, with its sequence number.
	lost *pb.ReportRequest
	// last is the last delivered message with changes.
	last *pb.ReportRequest
}

func newAgent(number int) *agent {
	a := &agent{number: number, name: "n" + strconv.Itoa(number), boot: 1, epoch: 1}
	a.reset()
	return a
}

// reset clears the table, except for the agent's own namespace.
func (a *agent) reset() {
	a.table = newTable()
	a.table.namespaces[1] = &pb.NamespaceRecord{
		Id: 1, Netns: a.netns(), Workload: &pb.Workload{Kind: pb.Workload_HOST, Name: a.name, Source: "node"},
	}
}

func (a *agent) bootID() string { return fmt.Sprintf("boot-%d-%d", a.number, a.boot) }

func (a *agent) netns() string { return strconv.Itoa(4026531840 + a.number) }

func (a *agent) hello(epoch uint64) *pb.Hello {
	return &pb.Hello{Node: a.name, BootId: a.bootID(), Netns: a.netns(), Epoch: epoch, Version: "v1", Kernel: "6.18"}
}

// A stream is a Report stream without a network. It answers pings and checks immediately.
type stream struct {
	grpc.ServerStream // its other methods are not called
	ctx               context.Context
	cancel            context.CancelFunc
	in                chan *pb.ReportRequest
	agent             *agent
	session           *session
	epoch             uint64
	over              chan struct{} // closed once the aggregator has ended the stream

	mu       sync.Mutex
	sequence uint64
	ping     uint64 // the last unanswered ping
	inside   bool   // a snapshot is being sent
	resync   bool   // the aggregator has asked for a snapshot
}

// open opens a stream to a report service.
func (a *agent) open(service pb.ReportServiceServer) *stream {
	s := &stream{agent: a, in: make(chan *pb.ReportRequest, 1000), over: make(chan struct{})}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	go func() {
		_ = service.Report(s)
		s.cancel()
		close(s.over)
	}()
	return s
}

// Context implements grpc.ServerStream.
func (s *stream) Context() context.Context { return s.ctx }

// RecvMsg implements grpc.ServerStream.
func (s *stream) RecvMsg(m any) error {
	select {
	case <-s.ctx.Done():
		return s.ctx.Err()
	case next := <-s.in:
		proto.Merge(m.(proto.Message), next)
		return nil
	}
}

// Recv implements pb.ReportService_ReportServer.
func (s *stream) Recv() (*pb.ReportRequest, error) {
	m := new(pb.ReportRequest)
	return m, s.RecvMsg(m)
}

// Send implements pb.ReportService_ReportServer.
func (s *stream) Send(m *pb.ReportResponse) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m.GetPing() != 0 {
		s.ping = m.GetPing()
		s.pong()
	}
	if m.GetCheck() != nil && !s.agent.deaf.Load() && !s.inside {
		s.put(&pb.ReportRequest{Checked: []uint64{m.GetCheck().GetId()}})
	}
	s.resync = s.resync || m.GetResync()
	return nil
}

// pong answers the last ping, but not before the first message. It does not say when, because the reference knows no
// clocks that differ. The caller holds s.mu.
func (s *stream) pong() {
	if s.ping != 0 && s.sequence > 0 && !s.agent.mute.Load() {
		s.put(&pb.ReportRequest{Pong: &pb.Pong{Id: s.ping}})
		s.ping = 0
	}
}

// put assigns a sequence number to a message and sends it. The caller holds s.mu.
func (s *stream) put(m *pb.ReportRequest) {
	s.sequence++
	m.Sequence = s.sequence
	s.in <- m
}

// send sends a message of the agent.
func (s *stream) send(m *pb.ReportRequest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m.GetSnapshotBegin() {
		s.inside, s.resync = true, false
	}
	if m.GetSnapshotEnd() {
		s.inside = false
	}
	s.put(m)
	s.pong()
}

// skip consumes a sequence number, as if a message were lost.
func (s *stream) skip() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sequence++
	return s.sequence
}

// ended reports whether the aggregator has ended the stream.
func (s *stream) ended() bool {
	select {
	case <-s.over:
		return true
	default:
		return false
	}
}

// A table is the state that an agent reports, with the keys of the protocol.
type table struct {
	namespaces  map[uint32]*pb.NamespaceRecord
	links       map[string]*pb.LinkRecord
	interfaces  map[[2]uint32]*pb.InterfaceRecord
	claims      map[string]*pb.ClaimRecord
	pools       map[string]*pb.PoolRecord
	allocations map[string]*pb.AllocationRecord
	beliefs     map[string]*pb.BeliefRecord
	status      *pb.StatusRecord
}

func newTable() table {
	return table{
		namespaces: map[uint32]*pb.NamespaceRecord{}, links: map[string]*pb.LinkRecord{}, interfaces: map[[2]uint32]*pb.InterfaceRecord{},
		claims: map[string]*pb.ClaimRecord{}, pools: map[string]*pb.PoolRecord{}, allocations: map[string]*pb.AllocationRecord{}, beliefs: map[string]*pb.BeliefRecord{},
		status: &pb.StatusRecord{Wire: "tcx"},
	}
}

func claimName(c *pb.ClaimRecord) string {
	return fmt.Sprintf("%x %d %d %d %x %d %d %t %x", c.GetAddress(), c.GetKind(), c.GetNamespace(), c.GetIndex(), c.GetMac(), c.GetVlan(), c.GetInnerVlan(), c.GetNoOverride(), c.GetSource())
}

func allocationName(al *pb.AllocationRecord) string {
	return fmt.Sprintf("%s %x", al.GetPool(), al.GetAddress())
}

func beliefName(b *pb.BeliefRecord) string {
	return fmt.Sprintf("%s %x %x", b.GetLink(), b.GetAddress(), b.GetMac())
}

func fromKernel(c *pb.ClaimRecord) bool {
	return c.GetKind() == pb.Evidence_ASSIGNED || c.GetKind() == pb.Evidence_DAD_FAILED
}

// change applies changes to the table and returns the message that reports them. It drops records
// that no agent would report because their namespace, interface or pool does not exist, and sets
// the times and counts that an agent sets.
func (t *table) change(changes *pb.ReportRequest, now time.Time) *pb.ReportRequest {
	m := new(pb.ReportRequest)
	for _, r := range changes.GetNamespaces() {
		if r.GetGone() {
			delete(t.namespaces, r.GetId())
			t.endInterfaces(func(i *pb.InterfaceRecord) bool { return i.GetNamespace() == r.GetId() })
		} else {
			t.namespaces[r.GetId()] = r
		}
		m.Namespaces = append(m.Namespaces, r)
	}
	for _, r := range changes.GetLinks() {
		if delete(t.links, r.GetName()); !r.GetGone() {
			t.links[r.GetName()] = r
		}
		m.Links = append(m.Links, r)
	}
	for _, r := range changes.GetInterfaces() {
		key := [2]uint32{r.GetNamespace(), r.GetIndex()}
		switch {
		case r.GetGone():
			t.endInterfaces(func(i *pb.InterfaceRecord) bool { return [2]uint32{i.GetNamespace(), i.GetIndex()} == key })
		case t.namespaces[r.GetNamespace()] == nil:
			continue
		default:
			t.interfaces[key] = r
		}
		m.Interfaces = append(m.Interfaces, r)
	}
	for _, r := range changes.GetClaims() {
		if t.interfaces[[2]uint32{r.GetNamespace(), r.GetIndex()}] == nil {
			continue
		}
		m.Claims = append(m.Claims, t.claim(proto.CloneOf(r), now))
	}
	for _, r := range changes.GetPools() {
		if delete(t.pools, r.GetName()); !r.GetGone() {
			t.pools[r.GetName()] = r
		} else {
			maps.DeleteFunc(t.allocations, func(_ string, al *pb.AllocationRecord) bool { return al.GetPool() == r.GetName() })
		}
		m.Pools = append(m.Pools, r)
	}
	for _, r := range changes.GetAllocations() {
		if t.pools[r.GetPool()] == nil {
			continue
		}
		if name := allocationName(r); r.GetGone() {
			delete(t.allocations, name)
		} else {
			t.allocations[name] = r
		}
		m.Allocations = append(m.Allocations, r)
	}
	for _, r := range changes.GetBeliefs() {
		name := beliefName(r)
		switch {
		case r.GetGone():
			delete(t.beliefs, name)
		case !slices.ContainsFunc(r.GetHolders(), func(h *pb.BeliefRecord_Holder) bool {
			return t.interfaces[[2]uint32{h.GetNamespace(), h.GetIndex()}] != nil
		}):
			continue
		default:
			r = proto.CloneOf(r)
			if r.FirstSeen = timestamppb.New(now); t.beliefs[name] != nil {
				r.FirstSeen = t.beliefs[name].GetFirstSeen()
			}
			t.beliefs[name] = r
		}
		m.Beliefs = append(m.Beliefs, r)
	}
	if changes.GetStatus() != nil {
		t.status = changes.GetStatus()
		m.Status = t.status
	}
	return m
}

func (t *table) endInterfaces(gone func(*pb.InterfaceRecord) bool) {
	for key, i := range t.interfaces {
		if gone(i) {
			delete(t.interfaces, key)
			maps.DeleteFunc(t.claims, func(_ string, c *pb.ClaimRecord) bool { return [2]uint32{c.GetNamespace(), c.GetIndex()} == key })
		}
	}
}

// claim adds a claim, or records another sighting of it.
func (t *table) claim(c *pb.ClaimRecord, now time.Time) *pb.ClaimRecord {
	name := claimName(c)
	if c.GetGone() {
		delete(t.claims, name)
		return c
	}
	seen := timestamppb.New(now.Add(-c.GetAge().AsDuration()))
	c.FirstSeen, c.LastSeen, c.Count = seen, seen, 1
	if c.GetKind() == pb.Evidence_ASSIGNED {
		c.AssignedAt = seen
	}
	if before := t.claims[name]; before != nil {
		c.FirstSeen, c.AssignedAt, c.Count = before.GetFirstSeen(), before.GetAssignedAt(), before.GetCount()+1
		if before.GetLastSeen().AsTime().After(seen.AsTime()) {
			c.LastSeen = before.GetLastSeen()
		}
	}
	t.claims[name] = c
	return c
}

// snapshot returns the complete table in two messages, with the records in a random order.
func (t *table) snapshot(order uint64, now time.Time) (first, second *pb.ReportRequest) {
	r := rand.New(rand.NewPCG(order, 1))
	first = &pb.ReportRequest{
		Namespaces: shuffled(r, t.namespaces), Links: shuffled(r, t.links), Status: proto.CloneOf(t.status), SnapshotBegin: true,
	}
	second = &pb.ReportRequest{Pools: shuffled(r, t.pools), Allocations: shuffled(r, t.allocations), Beliefs: shuffled(r, t.beliefs), SnapshotEnd: true}
	first.Interfaces = shuffled(r, t.interfaces)
	for i, c := range shuffled(r, t.claims) {
		if !fromKernel(c) {
			c.Age = durationpb.New(now.Sub(c.GetLastSeen().AsTime()))
		}
		if i%2 == 0 {
			first.Claims = append(first.Claims, c)
		} else {
			second.Claims = append(second.Claims, c)
		}
	}
	return first, second
}

// shuffled returns copies of the values of a map in an order that depends only on r.
func shuffled[K comparable, V proto.Message](r *rand.Rand, records map[K]V) []V {
	keys := slices.SortedFunc(maps.Keys(records), func(a, b K) int { return cmp.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
	r.Shuffle(len(keys), func(i, k int) { keys[i], keys[k] = keys[k], keys[i] })
	list := make([]V, 0, len(keys))
	for _, key := range keys {
		list = append(list, proto.CloneOf(records[key]))
	}
	return list
}

// renumber changes the numbers of all namespaces except the agent's own, as a new agent does.
func (t *table) renumber(by uint32) {
	const numbers = 4 // 2 to 5
	next := func(id uint32) uint32 {
		if id < 2 {
			return id
		}
		return 2 + (id-2+by)%numbers
	}
	old := *t
	*t = newTable()
	t.links, t.pools, t.allocations, t.status = old.links, old.pools, old.allocations, old.status
	for id, r := range old.namespaces {
		r = proto.CloneOf(r)
		r.Id = next(id)
		t.namespaces[r.GetId()] = r
	}
	for _, r := range old.interfaces {
		r = proto.CloneOf(r)
		r.Namespace, r.PeerNamespace = next(r.GetNamespace()), next(r.GetPeerNamespace())
		t.interfaces[[2]uint32{r.GetNamespace(), r.GetIndex()}] = r
	}
	for _, r := range old.claims {
		r = proto.CloneOf(r)
		r.Namespace = next(r.GetNamespace())
		t.claims[claimName(r)] = r
	}
	for name, r := range old.beliefs {
		r = proto.CloneOf(r)
		for _, h := range r.GetHolders() {
			h.Namespace = next(h.GetNamespace())
		}
		t.beliefs[name] = r
	}
}
