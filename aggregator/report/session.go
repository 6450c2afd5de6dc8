package report

import (
	"errors"
	"io"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/ipwitness/ipwitness/aggregator/access"
	"github.com/ipwitness/ipwitness/aggregator/explain"
	"github.com/ipwitness/ipwitness/aggregator/facts"
	"github.com/ipwitness/ipwitness/aggregator/index"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

const (
	// snapshotWithin is the time in which an agent must complete its first snapshot. Time in which
	// the aggregator processes a message, or the message waits for memory, does not count.
	snapshotWithin = time.Minute
	// maxChecks is the largest number of unanswered checks per agent that are remembered.
	maxChecks = 64
)

// Session is one Report stream, independent of its transport. It implements facts.Peer.
type Session struct {
	service *Service
	// stream is the transport; nil if the session was not started by Report.
	stream pb.ReportService_ReportServer
	intake
	// node is set by the first message.
	node   *facts.Node
	caller *access.Caller

	mu sync.Mutex
	outbox
	watchdog
	pings

	ended chan struct{}
	err   error
}

// intake is the state of the receiving goroutine: the position in the stream and the incomplete
// snapshot.
type intake struct {
	sequence uint64
	lost     bool
	inside   bool
	pending  pending
	parts    int
	// The numbers of records and bytes in the incomplete snapshot. excess is the number of wire
	// claims above the limit.
	records, kernelClaims, wireClaims, excess, bytes int
	// corrected counts the corrected strings in the incomplete snapshot or in the last message.
	corrected corrections
}

// outbox has the requests to the agent that have not been sent. They are keyed, so that their
// number is limited by the size of the agent's own table.
type outbox struct {
	acknowledged uint64
	news, resync bool
	sending      bool
	contests     map[netip.Addr]bool
	reread       map[netip.Addr]struct{}
	departed     map[departure]struct{}
	checkID      uint64
	checks       map[uint64][]index.Address
	// questions have not been sent, and askers wait for the answers to these and earlier ones.
	questions []*pb.BeliefQuestion
	askID     uint64
	askers    map[uint64]asker
}

// departure is an owner that has given an address up.
type departure struct {
	addr netip.Addr
	mac  verdict.MAC
}

// Report receives an agent's table and its changes. Because thousands of agents are idle at a time,
// a session has only two goroutines with small stacks: this one waits for the end of the session,
// and another one for the next message. A third one exists while there is something to send, so
// that an agent that does not read delays no other agent.
func (s *Service) Report(stream pb.ReportService_ReportServer) error {
	r := s.Session(access.Of(stream.Context()))
	if err := stream.Send(&pb.ReportResponse{Instance: s.instance}); err != nil {
		return err
	}
	r.stream = stream
	s.sessions.Add(1)
	defer s.sessions.Add(-1)
	r.mu.Lock()
	now := s.Facts.Clock()
	r.late, r.pinged = now.Add(snapshotWithin), now
	r.ping(now)
	r.timer = time.AfterFunc(pingEvery, r.check)
	r.mu.Unlock()
	go r.receive()
	select {
	case <-r.ended:
	case <-s.Stopped:
		r.End(errStopping)
	case <-access.Revoked(stream.Context()):
		r.End(access.ErrRevoked)
	}
	return r.err
}

// receive handles one message and starts a new goroutine for the next one. The new goroutine has a
// small stack, however much stack this message needed.
func (r *Session) receive() {
	err := r.receiveOne()
	if err == nil {
		go r.receive()
		return
	}
	r.service.forgetPending(r)
	if r.node != nil {
		for _, b := range r.service.Facts.Disconnect(r, r.node, r.service.Shared) {
			r.service.Judge(b)
		}
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	r.End(err)
}

func (r *Session) receiveOne() error {
	r.waiting(r.service.Facts.Clock())
	in := arrival{received: func() { r.waiting(0) }}
	err := r.stream.RecvMsg(&in)
	r.waiting(0)
	if err != nil {
		return err
	}
	defer in.release()
	now := r.service.Facts.Clock()
	if err := r.Accept(&in.ReportRequest, now); err != nil {
		from, name := "", ""
		if p, ok := peer.FromContext(r.stream.Context()); ok {
			from = p.Addr.String()
		}
		if r.node != nil {
			name = r.node.Name
		}
		if r.service.shouldLog(from, status.Convert(err).Message(), now) {
			r.service.Log.Warn("report stream ended", "node", name, "from", from, "reason", err)
		}
		return err
	}
	if p := in.GetPong(); p != nil {
		r.pong(p, now)
	}
	return nil
}

// Accept handles the next message of the stream.
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
		return status.Error(codes.InvalidArgument, "only the first message of a stream may contain hello")
	}
	switch sequence := m.GetSequence(); {
	case sequence <= r.sequence:
		r.service.Facts.Heard(r, r.node, nil)
		r.acknowledge() // a repetition
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
		r.service.Facts.Heard(r, r.node, nil)
		return nil // ignored until the requested snapshot begins
	}
	if err := validate(m); err != nil {
		return err
	}
	if err := r.apply(m, at); err != nil {
		return err
	}
	r.answered(m.GetAnswers())
	// The answer to a ping alone is acknowledged by the next response.
	if m.GetPong() != nil && m.GetHello() == nil && !m.GetSnapshotBegin() && !m.GetSnapshotEnd() && m.GetStatus() == nil &&
		len(m.GetNamespaces())+len(m.GetLinks())+len(m.GetInterfaces())+len(m.GetClaims())+len(m.GetChecked()) == 0 {
		r.mu.Lock()
		r.acknowledged = r.sequence
		r.mu.Unlock()
		return nil
	}
	r.acknowledge()
	return nil
}

func (r *Session) begin(m *pb.ReportRequest) error {
	hello := m.GetHello()
	switch {
	case hello == nil || !m.GetSnapshotBegin() || m.GetSequence() != 1:
		return status.Error(codes.InvalidArgument,
			"the first message of a stream must have sequence 1, contain hello and begin a snapshot: this is not an ipwitness agent of this version")
	case hello.GetNode() == "" || hello.GetBootId() == "" || hello.GetNetns() == "" || hello.GetEpoch() == 0:
		return status.Error(codes.InvalidArgument, "hello must have node, boot_id, netns and epoch")
	}
	if err := r.caller.Reports(hello.GetNode()); err != nil {
		return err
	}
	n, b, err := r.service.Facts.Connect(r, hello, r.caller.Vouched(hello.GetNode()))
	r.service.Judge(b)
	r.node = n
	return err
}

// apply applies a message to the facts. Messages of a snapshot are kept until it is complete.
func (r *Session) apply(m *pb.ReportRequest, at verdict.Stamp) error {
	for i, n := range [len(facts.RecordKinds)]int{
		len(m.GetNamespaces()), len(m.GetLinks()), len(m.GetInterfaces()), len(m.GetClaims()), len(m.GetPools()), len(m.GetAllocations()), len(m.GetBeliefs()),
	} {
		if n > 0 {
			r.service.counters.received.WithLabelValues(facts.RecordKinds[i]).Add(float64(n))
		}
	}
	if !r.inside {
		s := r.service
		if len(r.corrected) > 0 {
			s.Facts.Update(func() {
				all := corrections(r.node.Corrections)
				all.add(r.corrected)
				r.node.Corrections = all
			})
			s.logCorrected(r.node, r.corrected)
		}
		b, err := s.Facts.Delta(r, r.node, m, at, r.checked)
		s.Judge(b)
		return err
	}
	m.Claims = slices.DeleteFunc(m.Claims, func(c *pb.ClaimRecord) bool { // wire claims above the limit
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
	if r.kernelClaims > facts.MaxClaims {
		return facts.TooMany("claims", strconv.Itoa(facts.MaxClaims))
	}
	r.parts++
	r.records += len(m.GetClaims()) + len(m.GetInterfaces()) + len(m.GetNamespaces()) + len(m.GetLinks())
	if whole := r.parts == 1 && m.GetSnapshotEnd(); !whole { // gRPC limits the size of a single message
		if r.bytes += proto.Size(m); r.bytes > maxSnapshot { // includes unknown fields
			return facts.TooMany("bytes", strconv.Itoa(maxSnapshot))
		}
	}
	const maxRecords = 2*facts.MaxClaims + facts.MaxInterfaces + facts.MaxNamespaces + facts.MaxLinks
	if r.records > maxRecords || r.parts > facts.MaxClaims {
		return facts.TooMany("records", strconv.Itoa(maxRecords))
	}
	if !m.GetSnapshotEnd() {
		r.service.Facts.Heard(r, r.node, nil)
		return r.pending.add(r, m)
	}
	if err := r.service.snapshot(r, m); err != nil {
		return err
	}
	r.inside = false
	r.mu.Lock()
	first := !r.synced
	r.synced = true
	r.mu.Unlock()
	if !first {
		return nil
	}
	s := r.service
	s.Facts.RLock()
	name, others, now := r.node.Rec.Name, s.Facts.InOnePlace(r.node), s.Facts.Clock()
	s.Facts.RUnlock()
	if others != nil && s.shouldLog(name, "place "+strings.Join(others, " "), now) {
		s.Log.Warn("several nodes report the same boot ID and network namespace", "node", name, "problem", explain.Text("shared-place", "others", explain.Names(others)))
	}
	return nil
}

// End ends the stream with an error or with nil. Only the first call counts.
func (r *Session) End(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.end(err)
}

// end is like End. The caller holds the lock.
func (r *Session) end(err error) {
	select {
	case <-r.ended:
	default:
		r.err = err
		close(r.ended)
		if r.timer != nil {
			r.timer.Stop()
			r.timer = nil
		}
	}
}

// update changes the outbox and starts sending it.
func (r *Session) update(note func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	note()
	r.startSending()
}

// startSending starts sending the outbox. The caller holds the lock.
func (r *Session) startSending() {
	r.news = true
	if r.stream != nil && !r.sending {
		r.sending = true
		go func() {
			for m := r.Take(); m != nil; m = r.Take() {
				if err := r.stream.Send(m); err != nil {
					r.End(err) // no further response can be sent
					return
				}
			}
		}()
	}
}

func (r *Session) acknowledge() {
	r.update(func() { r.acknowledged = r.sequence })
}

// AskResync asks the agent for a snapshot.
func (r *Session) AskResync() {
	r.update(func() { r.resync = true })
}

// Contest asks the agent to watch an address more closely, or to stop doing so.
func (r *Session) Contest(a netip.Addr, contested bool) {
	r.update(func() { r.contests[a] = contested })
}

// Check asks the agent to read an address again.
func (r *Session) Check(a netip.Addr) {
	r.update(func() { r.reread[a] = struct{}{} })
}

// Departed tells the agent that an owner on another node does not have an address with a hardware address any more.
func (r *Session) Departed(a netip.Addr, mac verdict.MAC) {
	r.update(func() { r.departed[departure{a, mac}] = struct{}{} })
}

// checked removes and returns the addresses of an answered check.
func (r *Session) checked(id uint64) []index.Address {
	r.mu.Lock()
	defer r.mu.Unlock()
	addrs := r.checks[id]
	delete(r.checks, id)
	return addrs
}

// Take returns the next response to send; nil if there is none, in which case the sending goroutine must end.
// The size of a response is limited, and the rest follows in the next one.
func (r *Session) Take() *pb.ReportResponse {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.sending = r.news; !r.news {
		return nil
	}
	const atOnce = 10_000
	m := &pb.ReportResponse{Acknowledged: r.acknowledged, Resync: r.resync, Ping: r.due}
	r.resync, r.due = false, 0
	m.Questions, r.questions = r.questions, nil
	for a, contested := range r.contests {
		if len(m.Contests) == atOnce {
			break
		}
		m.Contests = append(m.Contests, &pb.Contest{Address: a.AsSlice(), Contested: contested})
		delete(r.contests, a)
	}
	for d := range r.departed {
		if len(m.Departures) == atOnce {
			break
		}
		m.Departures = append(m.Departures, &pb.Departure{Address: d.addr.AsSlice(), Mac: []byte(d.mac)})
		delete(r.departed, d)
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
				delete(r.checks, id) // a new check will replace it
			}
		}
	}
	r.news = len(r.contests)+len(r.departed)+len(r.reread) > 0
	return m
}
