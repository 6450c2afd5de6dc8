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
	// snapshotWithin is how long an agent may take for its snapshot. While one of its messages is
	// taken, or waits for room, it is not the agent that takes long.
	snapshotWithin = time.Minute
	// maxChecks is how many checks of one agent may be unanswered.
	maxChecks = 64
	// pingEvery is how often an agent is asked whether it is there, unless that is more than
	// pingsASecond for all agents together.
	pingEvery    = 3 * time.Second
	pingsASecond = 250
	// silentAfter is after what silence it is not.
	silentAfter = 10 * time.Second
)

// Session is one Report stream, without what carries it. A Session is a facts.Peer.
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
	// idle is since when the next message is waited for; 0 while one is taken.
	idle verdict.Stamp

	ended chan struct{}
	err   error
}

// intake is of the goroutine that receives: the place in the stream, and a snapshot that is not
// complete.
type intake struct {
	sequence uint64
	lost     bool
	inside   bool
	pending  pending
	parts    int
	// What of it is there, and how many claims of the wire had no room.
	records, kernelClaims, wireClaims, excess, bytes int
	// corrected counts strings that were corrected in the incomplete snapshot or in the last
	// message.
	corrected corrections
}

// outbox is what is to be sent, by key: it cannot grow beyond the agent's own table.
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

// Report takes an agent's table and the changes of it. One goroutine receives
// and judges, one sends, and this one sees that the agent is there: one that does
// not read delays nobody.
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

// send sends what there is to say until the stream ends.
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

// from is the address of who is at the other end of a stream.
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
		r.acknowledge() // taken before
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
		return nil // until the snapshot that was asked for
	}
	if err := validate(m); err != nil {
		return err
	}
	if err := r.bring(m, at); err != nil {
		return err
	}
	if onlyPong(m) { // the next response will do
		r.mu.Lock()
		r.acknowledged = r.sequence
		r.mu.Unlock()
		return nil
	}
	r.acknowledge()
	return nil
}

// onlyPong tells whether a message does nothing but answer a ping.
func onlyPong(m *pb.ReportRequest) bool {
	return m.GetPong() != nil && m.GetHello() == nil && !m.GetSnapshotBegin() && !m.GetSnapshotEnd() && m.GetStatus() == nil &&
		len(m.GetNamespaces())+len(m.GetLinks())+len(m.GetInterfaces())+len(m.GetClaims())+len(m.GetChecked()) == 0
}

// begin takes the first message.
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

// bring brings a message into the table; those of a snapshot are kept until it
// is complete.
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
	if r.bytes += proto.Size(m); r.bytes > maxSnapshot { // also of what we do not know
		return facts.TooMany("bytes", strconv.Itoa(maxSnapshot))
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

// count counts the claims of a snapshot's message, and takes out those of the
// wire that there is no room for.
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

// End has the stream end with an error; the first one counts.
func (r *Session) End(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err == nil {
		r.err = err
		close(r.ended)
	}
}

// say notes what is to be sent, and has it sent.
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

// Contest tells the agent to look closely at an address, or no longer.
func (r *Session) Contest(a netip.Addr, contested bool) {
	r.say(func() { r.contests[a] = contested })
}

// Check has the agent read an address again.
func (r *Session) Check(a netip.Addr) {
	r.say(func() { r.reread[a] = struct{}{} })
}

// checked gives the addresses of a check that was answered.
func (r *Session) checked(id uint64) []index.Address {
	r.mu.Lock()
	defer r.mu.Unlock()
	addrs := r.checks[id]
	delete(r.checks, id)
	return addrs
}

// Take gives the next message to send; nil for none. None has more than fits.
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
