package aggregator

import (
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// A snapshot that never ends, of what counts as no record, must not take all memory.
func TestASnapshotHasSoManyBytesAndNoMore(t *testing.T) {
	r := newSession(newTestStore(t))
	if err := r.store.connect(r, hello("n1", 1)); err != nil {
		t.Fatal(err)
	}
	r.inside = true
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
