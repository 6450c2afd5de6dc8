package aggregator

import (
	"iter"
	"slices"

	"google.golang.org/protobuf/proto"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// pending is a snapshot that is not complete. Its messages are kept as they are on the
// wire, which takes a fraction of the memory, and claims of the wire apart: they come
// last, so that they do not take the room of what kernels say.
type pending struct {
	first, wire [][]byte
	// held is what the snapshot is charged until it is taken, leftOut what of it there
	// was no memory for.
	held    int64
	leftOut leftOut
}

// add keeps a message of the snapshot.
func (p *pending) add(r *session, m *pb.ReportRequest) error {
	wire := takeWire(m)
	rest, err := proto.Marshal(m)
	if err != nil {
		return err
	}
	if r.store.hold(r, len(rest)) {
		p.first = append(p.first, rest)
	} else {
		p.leftOut.records += max(1, len(m.GetNamespaces())+len(m.GetLinks())+len(m.GetInterfaces())+len(m.GetClaims())+len(m.GetPools())+len(m.GetAllocations()))
	}
	if len(wire.GetClaims()) == 0 {
		return nil
	}
	claims, err := proto.Marshal(wire)
	if err != nil {
		return err
	}
	if r.store.hold(r, len(claims)) {
		p.wire = append(p.wire, claims)
	} else {
		p.leftOut.wire += len(wire.GetClaims())
	}
	return nil
}

// all yields the messages of the snapshot, of which the last ones were not kept: those
// that were are read one at a time.
func (p *pending) all(last []*pb.ReportRequest) iter.Seq[*pb.ReportRequest] {
	return func(yield func(*pb.ReportRequest) bool) {
		kept := func(messages [][]byte) bool {
			for _, raw := range messages {
				m := new(pb.ReportRequest)
				if proto.Unmarshal(raw, m) == nil && !yield(m) { // it is ours
					return false
				}
			}
			return true
		}
		if !kept(p.first) {
			return
		}
		for _, m := range last {
			if !yield(m) {
				return
			}
		}
		kept(p.wire)
	}
}

// kernelFirst are claims in another order: those of the wire come last.
func kernelFirst(claims []*pb.ClaimRecord) []*pb.ClaimRecord {
	ordered := make([]*pb.ClaimRecord, 0, len(claims))
	for _, kernel := range []bool{true, false} {
		for _, c := range claims {
			if fromKernel(c) == kernel {
				ordered = append(ordered, c)
			}
		}
	}
	return ordered
}

// takeWire takes the claims of the wire out of a message.
func takeWire(m *pb.ReportRequest) *pb.ReportRequest {
	wire := new(pb.ReportRequest)
	m.Claims = slices.DeleteFunc(m.Claims, func(c *pb.ClaimRecord) bool {
		if fromKernel(c) {
			return false
		}
		wire.Claims = append(wire.Claims, c)
		return true
	})
	return wire
}

// hold charges the node of a session with a message that is kept for later.
func (s *store) hold(r *session, bytes int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.budget.limit > 0 && !s.makeRoom(r.node, int64(bytes), true) {
		return false
	}
	s.budget.add(r.node.account, int64(bytes))
	r.pending.held += int64(bytes)
	return true
}

// forgetPending drops the snapshot of a session that begins another one.
func (s *store) forgetPending(r *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.letGo(r)
}

// letGo drops the snapshot of a session that is not complete, or was taken; s.mu is held.
func (s *store) letGo(r *session) {
	if r.node != nil {
		s.budget.add(r.node.account, -r.pending.held)
	}
	r.pending = pending{}
}
