package report

import (
	"iter"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/ipwitness/ipwitness/aggregator/facts"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// pending is an incomplete snapshot. Its messages are kept encoded, which takes a fraction of the
// memory. Wire claims are kept separately and applied last, so that they never displace kernel
// records.
type pending struct {
	first, wire [][]byte
	// held is the memory in bytes that is charged for the snapshot. leftOut counts the records that
	// did not fit.
	held    int64
	leftOut facts.LeftOut
}

// add keeps a message of the snapshot, if there is memory for it.
func (p *pending) add(r *Session, m *pb.ReportRequest) error {
	keep := func(m *pb.ReportRequest, into *[][]byte, leftOut *int, records int) error {
		raw, err := proto.Marshal(m)
		switch {
		case err != nil:
			return err
		case !r.service.Facts.Hold(r.node, len(raw)):
			*leftOut += records
			return nil
		}
		p.held += int64(len(raw))
		*into = append(*into, raw)
		return nil
	}
	wire := new(pb.ReportRequest)
	m.Claims = slices.DeleteFunc(m.Claims, func(c *pb.ClaimRecord) bool {
		if facts.FromKernel(c) {
			return false
		}
		wire.Claims = append(wire.Claims, c)
		return true
	})
	records := len(m.GetNamespaces()) + len(m.GetLinks()) + len(m.GetInterfaces()) + len(m.GetClaims()) + len(m.GetPools()) + len(m.GetAllocations()) + len(m.GetBeliefs())
	err := keep(m, &p.first, &p.leftOut.Records, max(1, records))
	if n := len(wire.GetClaims()); n > 0 && err == nil {
		err = keep(wire, &p.wire, &p.leftOut.Wire, n)
	}
	return err
}

// all yields the messages of the snapshot and the last one, which is not among the kept ones. It decodes
// one kept message at a time.
func (p *pending) all(last *pb.ReportRequest) iter.Seq[*pb.ReportRequest] {
	return func(yield func(*pb.ReportRequest) bool) {
		kept := func(messages [][]byte) bool {
			for _, raw := range messages {
				m := new(pb.ReportRequest)
				if proto.Unmarshal(raw, m) == nil && !yield(m) { // encoded by add, so decoding cannot fail
					return false
				}
			}
			return true
		}
		if kept(p.first) && yield(last) {
			kept(p.wire)
		}
	}
}

// forgetPending drops the incomplete snapshot of a session.
func (s *Service) forgetPending(r *Session) { s.Facts.Update(func() { s.releasePending(r) }) }

// releasePending drops the snapshot of a session after it was applied or interrupted. The caller
// holds the facts for writing.
func (s *Service) releasePending(r *Session) {
	if r.node != nil {
		s.Facts.Release(r.node, r.pending.held)
	}
	r.pending = pending{}
}
