package aggregator

import (
	"math/rand/v2"
	"reflect"
	"testing"

	"google.golang.org/protobuf/proto"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// disorder is a connection to an aggregator on which messages with changes are lost, duplicated,
// delayed or reordered. Snapshots are at most duplicated.
type disorder struct {
	testing.TB
	*source
	rand  *rand.Rand
	model *model
	// late are delayed messages.
	late []*pb.ReportRequest
}

// send assigns a sequence number to a message and delivers it, or randomly disturbs the delivery.
func (d *disorder) send(m *pb.ReportRequest) {
	d.sequence++
	m.Sequence = d.sequence
	switch fate := d.rand.IntN(12); {
	case m.GetSnapshotBegin():
		d.deliver(m)
		if fate == 0 && m.GetHello() == nil {
			d.deliver(m)
		}
	case fate == 0: // lost
	case fate == 1:
		d.late = append(d.late, m)
	case fate == 2:
		d.deliver(m)
		d.deliver(m)
	default:
		d.deliver(m)
		if d.rand.IntN(3) == 0 {
			late := d.late
			d.late = nil
			for _, m := range late {
				d.deliver(m)
			}
		}
	}
}

// deliver delivers a message, and sends a snapshot if one is requested.
func (d *disorder) deliver(m *pb.ReportRequest) {
	d.Helper()
	if err := d.Accept(proto.CloneOf(m), d.core.facts.Clock()); err != nil {
		d.Fatal(err)
	}
	for answer := d.Take(); answer != nil; answer = d.Take() {
		if answer.GetResync() {
			d.snapshot(nil)
		}
	}
}

// snapshot sends the complete state.
func (d *disorder) snapshot(h *pb.Hello) {
	m := d.model.message()
	m.Hello, m.SnapshotBegin, m.SnapshotEnd = h, true, true
	d.send(m)
}

// Messages may be lost, duplicated or delayed: as soon as one arrives in sequence, the aggregator
// recovers the state that a snapshot describes.
func TestDisorderedMessagesConvergeToASnapshot(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 5))
		s := newTestCore(t)
		d := &disorder{TB: t, source: s.source(), rand: r, model: newModel()}
		d.snapshot(hello("n1", 1))
		for range 150 {
			if c := d.model.change(r); c != nil {
				d.send(proto.CloneOf(c))
			}
		}
		for range 2 { // the first one reveals the gap
			d.sequence++
			d.deliver(&pb.ReportRequest{Sequence: d.sequence})
		}
		for _, c := range d.model.claims { // report sightings again that ended with their owner
			if !s.hasClaim(c) {
				d.sequence++
				d.deliver(&pb.ReportRequest{Sequence: d.sequence, Claims: []*pb.ClaimRecord{c}})
			}
		}

		fresh := newTestCore(t)
		fresh.begin(t, hello("n1", 1)).must(t, d.model.last())
		if got, want := s.summary(t), fresh.summary(t); !reflect.DeepEqual(got, want) {
			t.Fatalf("seed %d: got\n%v\nwant\n%v", seed, got, want)
		}
	}
}
