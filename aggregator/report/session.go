package report

import (
	"errors"
	"io"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/ipwitness/ipwitness/aggregator/access"
	"github.com/ipwitness/ipwitness/aggregator/facts"
	"github.com/ipwitness/ipwitness/aggregator/index"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

const (
	// snapshotWithin is the time in which an agent must complete its snapshot. A message that is
	// being processed, or waits for memory, extends it: that delay is not the agent's.
	snapshotWithin = time.Minute
	// maxChecks is the number of unanswered checks of one agent that are remembered.
	maxChecks = 64
	// pingEvery is the interval between pings of one agent. It is longer if all agents together
	// would exceed pingsASecond.
	pingEvery    = 3 * time.Second
	pingsASecond = 250
	// silentAfter is the time without an answer after which an agent counts as gone.
	silentAfter = 10 * time.Second
)

// Session is one Report stream, independent of its transport. A Session is a facts.Peer.
type Session struct {
	service *Service
	intake
	// node is set with the first message.
	node   *facts.Node
	caller *access.Caller

	synced chan struct{} // closed with the first snapshot
	wake   chan struct{}

	mu sync.Mutex
	outbox
	pings
	// idle is the time since which the next message is awaited; 0 while one is processed.
	idle verdict.Stamp

	ended chan struct{}
	err   error
}

// intake is the state of the goroutine that receives: the position in the stream, and a snapshot
// that is not complete.
type intake struct {
	sequence uint64
	lost     bool
	inside   bool
	pending  pending
	parts    int
	// Counts of the incomplete snapshot so far. excess counts the wire claims that exceed the
	// limit.
	records, kernelClaims, wireClaims, excess, bytes int
	// corrected counts strings that were corrected in the incomplete snapshot or in the last
	// message.
	corrected corrections
}

// outbox holds what is to be sent, by key, so that it cannot outgrow the agent's own table.
type outbox struct {
	acknowledged uint64
	news, resync bool
	contests     map[netip.Addr]bool
	reread       map[netip.Addr]struct{}
	checkID      uint64
	checks       map[uint64][]index.Address
}

func newSession(s *Service) *Session {
	return &Session{
		service: s, synced: make(chan struct{}), wake: make(chan struct{}, 1), ended: make(chan struct{}),
		outbox: outbox{contests: make(map[netip.Addr]bool), reread: make(map[netip.Addr]struct{}), checks: make(map[uint64][]index.Address)},
	}
}

// Report receives an agent's table and the changes to it. One goroutine receives and judges, one
// sends, and this one checks that the agent is alive. An agent that does not read delays no other
// agent.
func (s *Service) Report(stream pb.ReportService_ReportServer) error {
	r := s.Session(access.Of(stream.Context()))
	revoked := access.Revoked(stream.Context())
	done := make(chan error, 2)
	go func() {
		err := r.receive(stream)
		s.disconnect(r)
		done <- err
	}()
	go func() {
		if err := r.send(stream); err != nil {
			done <- err
		}
	}()
	late := time.NewTimer(snapshotWithin)
	defer late.Stop()
	synced := r.synced
	s.sessions.Add(1)
	defer s.sessions.Add(-1)
	ping := time.NewTimer(pingEvery)
	defer ping.Stop()
	asked := s.Facts.Clock()
	r.Ping(asked)
	for {
		select {
		case err := <-done:
			return err
		case <-s.Stopped:
			return errStopping
		case <-r.ended:
			return r.err
		case <-revoked:
			return access.ErrRevoked
		case <-synced:
			late.Stop()
			synced = nil
		case <-late.C:
			if r.busy() {
				late.Reset(snapshotWithin)
				continue
			}
			select {
			case <-synced:
				continue
			default:
			}
			return status.Errorf(codes.DeadlineExceeded, "no complete snapshot within %s: connect again", snapshotWithin)
		case <-ping.C:
			now := s.Facts.Clock()
			if r.silent(now) {
				return status.Errorf(codes.DeadlineExceeded, "nothing was heard of the agent for %s: connect again", silentAfter)
			}
			if rest := asked.Add(pingInterval(s.sessions.Load())).Sub(now); rest > 0 && !r.waits() {
				ping.Reset(rest)
				continue
			}
			asked = now
			r.Ping(now)
			ping.Reset(pingEvery) // to see whether it was answered
		}
	}
}

// send sends responses until the stream ends.
func (r *Session) send(stream pb.ReportService_ReportServer) error {
	for {
		select {
		case <-stream.Context().Done():
			return nil
		case <-r.wake:
		}
		for m := r.Take(); m != nil; m = r.Take() {
			if err := stream.Send(m); err != nil {
				return err
			}
		}
	}
}

// receive takes messages until the stream ends.
func (r *Session) receive(stream pb.ReportService_ReportServer) error {
	for {
		r.waiting(r.service.Facts.Clock())
		in := arrival{received: func() { r.waiting(0) }}
		err := stream.RecvMsg(&in)
		r.waiting(0)
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		now := r.service.Facts.Clock()
		m := &in.ReportRequest
		err = r.Accept(m, now)
		in.leave()
		if err != nil {
			if r.service.complaints.first(from(stream), status.Convert(err).Message(), now) {
				r.service.Log.Warn("report stream ended", "node", r.name(), "from", from(stream), "reason", err)
			}
			return err
		}
		if p := m.GetPong(); p != nil {
			r.pong(p, now)
		}
	}
}

// from returns the address of the peer of a stream.
func from(stream pb.ReportService_ReportServer) string {
	if p, ok := peer.FromContext(stream.Context()); ok {
		return p.Addr.String()
	}
	return ""
}

func (r *Session) name() string {
	if r.node == nil {
		return ""
	}
	return r.node.Name
}

// Accept takes the next message of the stream.
func (r *Session) Accept(m *pb.ReportRequest, at verdict.Stamp) error {
	if m.GetSnapshotBegin() || !r.inside {
		r.corrected = nil
	}
	corrected, err := Check(m)
	r.corrected.add(corrected)
	if err != nil {
		return err
	}
	if r.node == nil {
		if err := r.begin(m); err != nil {
			return err
		}
	} else if m.GetHello() != nil {
		return status.Error(codes.InvalidArgument, "only the first message of a stream says hello")
	}
	switch sequence := m.GetSequence(); {
	case sequence <= r.sequence:
		r.service.Facts.Heard(r, r.node)
		r.acknowledge() // received before
		return nil
	case sequence != r.sequence+1 && !m.GetSnapshotBegin() && !r.lost:
		r.lost = true
		r.AskResync()
		fallthrough
	default:
		r.sequence = sequence
	}
	if m.GetSnapshotBegin() {
		r.service.forgetPending(r)
		r.lost, r.inside, r.parts = false, true, 0
		r.records, r.kernelClaims, r.wireClaims, r.excess, r.bytes = 0, 0, 0, 0, 0
	}
	if r.lost {
		r.service.Facts.Heard(r, r.node)
		return nil // ignored until the requested snapshot begins
	}
	if err := validate(m); err != nil {
		return err
	}
	if err := r.bring(m, at); err != nil {
		return err
	}
	if onlyPong(m) { // the next response acknowledges it
		r.mu.Lock()
		r.acknowledged = r.sequence
		r.mu.Unlock()
		return nil
	}
	r.acknowledge()
	return nil
}

// onlyPong reports whether a message does nothing but answer a ping.
func onlyPong(m *pb.ReportRequest) bool {
	return m.GetPong() != nil && m.GetHello() == nil && !m.GetSnapshotBegin() && !m.GetSnapshotEnd() && m.GetStatus() == nil &&
		len(m.GetNamespaces())+len(m.GetLinks())+len(m.GetInterfaces())+len(m.GetClaims())+len(m.GetChecked()) == 0
}

// begin handles the first message.
func (r *Session) begin(m *pb.ReportRequest) error {
	hello := m.GetHello()
	switch {
	case hello == nil || !m.GetSnapshotBegin() || m.GetSequence() != 1:
		return status.Error(codes.InvalidArgument,
			"the first message of a stream must have sequence 1, say hello and begin a snapshot: this is not an ipwitness agent of this version")
	case hello.GetNode() == "" || hello.GetBootId() == "" || hello.GetNetns() == "" || hello.GetEpoch() == 0:
		return status.Error(codes.InvalidArgument, "hello must have node, boot_id, netns and epoch")
	}
	if err := r.caller.Reports(hello.GetNode()); err != nil {
		return err
	}
	return r.service.connect(r, hello)
}

// bring applies a message to the facts. Messages of a snapshot are kept until it is complete.
func (r *Session) bring(m *pb.ReportRequest, at verdict.Stamp) error {
	if !r.inside {
		return r.service.delta(r, m, at)
	}
	r.count(m)
	if r.kernelClaims > facts.MaxClaims {
		return facts.TooMany("claims", strconv.Itoa(facts.MaxClaims))
	}
	r.parts++
	r.records += len(m.GetClaims()) + len(m.GetInterfaces()) + len(m.GetNamespaces()) + len(m.GetLinks())
	if whole := r.parts == 1 && m.GetSnapshotEnd(); !whole { // the size of a single message is limited by gRPC
		if r.bytes += proto.Size(m); r.bytes > maxSnapshot { // including unknown fields
			return facts.TooMany("bytes", strconv.Itoa(maxSnapshot))
		}
	}
	const maxRecords = 2*facts.MaxClaims + facts.MaxInterfaces + facts.MaxNamespaces + facts.MaxLinks
	if r.records > maxRecords || r.parts > facts.MaxClaims {
		return facts.TooMany("records", strconv.Itoa(maxRecords))
	}
	if !m.GetSnapshotEnd() {
		r.service.Facts.Heard(r, r.node)
		return r.pending.add(r, m)
	}
	if err := r.service.snapshot(r, []*pb.ReportRequest{m}); err != nil {
		return err
	}
	r.inside = false
	select {
	case <-r.synced:
	default:
		close(r.synced)
		r.service.warnOfPlace(r.node)
	}
	return nil
}

// count counts the claims of a snapshot's message, and removes the wire claims that exceed the
// limit.
func (r *Session) count(m *pb.ReportRequest) {
	m.Claims = slices.DeleteFunc(m.Claims, func(c *pb.ClaimRecord) bool {
		switch {
		case facts.FromKernel(c):
			r.kernelClaims++
		case r.wireClaims == facts.MaxClaims:
			r.excess++
			return true
		default:
			r.wireClaims++
		}
		return false
	})
}

// End ends the stream with an error; only the first error counts.
func (r *Session) End(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err == nil {
		r.err = err
		close(r.ended)
	}
}

// say changes the outbox and wakes the sender.
func (r *Session) say(note func()) {
	r.mu.Lock()
	note()
	r.news = true
	r.mu.Unlock()
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

func (r *Session) acknowledge() {
	r.say(func() { r.acknowledged = r.sequence })
}

// AskResync asks for a snapshot.
func (r *Session) AskResync() {
	r.say(func() { r.resync = true })
}

// Contest tells the agent to look closely at an address, or to stop doing so.
func (r *Session) Contest(a netip.Addr, contested bool) {
	r.say(func() { r.contests[a] = contested })
}

// Check has the agent read an address again.
func (r *Session) Check(a netip.Addr) {
	r.say(func() { r.reread[a] = struct{}{} })
}

// checked returns, and forgets, the addresses of a check that was answered.
func (r *Session) checked(id uint64) []index.Address {
	r.mu.Lock()
	defer r.mu.Unlock()
	addrs := r.checks[id]
	delete(r.checks, id)
	return addrs
}

// Take returns the next message to send; nil if there is none. A message has a limited size: the
// rest follows in the next one.
func (r *Session) Take() *pb.ReportResponse {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.news {
		return nil
	}
	const atOnce = 10_000
	m := &pb.ReportResponse{Acknowledged: r.acknowledged, Resync: r.resync, Ping: r.due}
	r.resync, r.due = false, 0
	for a, contested := range r.contests {
		if len(m.Contests) == atOnce {
			break
		}
		m.Contests = append(m.Contests, &pb.Contest{Address: a.AsSlice(), Contested: contested})
		delete(r.contests, a)
	}
	if len(r.reread) > 0 {
		r.checkID++
		m.Check = &pb.Check{Id: r.checkID}
		var addrs []index.Address
		for a := range r.reread {
			if len(addrs) == atOnce {
				break
			}
			addrs = append(addrs, index.AddressOf(a))
			m.Check.Addresses = append(m.Check.Addresses, a.AsSlice())
			delete(r.reread, a)
		}
		r.checks[r.checkID] = addrs
		for id := range r.checks {
			if id+maxChecks <= r.checkID {
				delete(r.checks, id) // it is asked again
			}
		}
	}
	r.news = len(r.contests) > 0 || len(r.reread) > 0
	return m
}
