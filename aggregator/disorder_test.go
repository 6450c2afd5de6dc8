package aggregator

import (
	"math/rand/v2"
	"reflect"
	"testing"

	"google.golang.org/protobuf/proto"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// disorder is a way to an aggregator on which messages of changes are lost, come
// twice, late, or after the next one. Snapshots come twice at most.
type disorder struct {
	testing.TB
	*source
	rand  *rand.Rand
	model *model
	// late are messages that are still under way.
	late []*pb.ReportRequest
}

// send numbers a message and has it meet its fate.
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

// deliver has a message taken, and gives a snapshot if that is asked for.
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

// snapshot sends all that there is.
func (d *disorder) snapshot(h *pb.Hello) {
	m := d.model.message()
	m.Hello, m.SnapshotBegin, m.SnapshotEnd = h, true, true
	d.send(m)
}

// Whatever is lost, comes twice or late on the way: as soon as one message comes
// in its turn, what is known is what a snapshot tells.
func TestDisorderLeadsWhereASnapshotLeads(t *testing.T) {
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
		for range 2 { // the first one shows what is missing
			d.sequence++
			d.deliver(&pb.ReportRequest{Sequence: d.sequence})
		}
		for _, c := range d.model.claims { // as with all changes
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
