package report

import (
	"log/slog"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ipwitness/ipwitness/aggregator/facts"
	"github.com/ipwitness/ipwitness/aggregator/index"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// A snapshot that never ends, of what counts as no record, must not take all memory.
func TestASnapshotHasSoManyBytesAndNoMore(t *testing.T) {
	r := newService(t).Session(nil)
	hello := &pb.Hello{Node: "n1", BootId: "boot", Netns: "4026531840", Epoch: 1}
	if err := r.Accept(&pb.ReportRequest{Sequence: 1, Hello: hello, SnapshotBegin: true}, 1); err != nil {
		t.Fatal(err)
	}
	m := &pb.ReportRequest{}
	m.ProtoReflect().SetUnknown(protowire.AppendBytes(protowire.AppendTag(nil, 1000, protowire.BytesType), make([]byte, 3<<20)))
	var err error
	taken := 0
	for ; err == nil && taken < 200; taken++ {
		err = r.bring(m, 0)
	}
	if status.Code(err) != codes.ResourceExhausted {
		t.Errorf("got %v after %d messages of 3 MiB, want ResourceExhausted", err, taken)
	}
}

// newService returns a service whose facts nothing is judged of.
func newService(t *testing.T) *Service {
	t.Helper()
	f := facts.New(facts.Config{
		Policy: &verdict.Policy{Cluster: "c"}, Log: slog.New(slog.DiscardHandler), Clock: func() verdict.Stamp { return verdict.At(time.Now()) },
		Listener: deaf{}, Queues: 1,
	})
	s, err := New(Config{Facts: f, Log: f.Log, Listener: deaf{}, Metrics: prometheus.NewRegistry(), Stopped: make(chan struct{})})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// deaf is told things in vain.
type deaf struct{ facts.Listener }

func (deaf) NodeChanged(*facts.Node)            {}
func (deaf) NamesChanged(*facts.Node)           {}
func (deaf) Answered(*facts.Node)               {}
func (deaf) CoverageChanged()                   {}
func (deaf) RangesChanged(*facts.Node)          {}
func (deaf) Contested(func(index.Address) bool) {}
func (deaf) OwnersWatched() bool                { return false }
func (deaf) Applied(*facts.Node)                {}
func (deaf) Judge(*facts.Batch)                 {}
func (deaf) Untidy()                            {}
func (deaf) Shared(*facts.Node) bool            { return false }
