package share

import (
	"bytes"
	"fmt"
	"log/slog"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// If too much waits for NATS, everything that waits is dropped. Of a state of which a part was dropped,
// nothing more is published, and its end least of all: the items of that part would count as gone.
func TestAStateOfWhichAPartWasDroppedIsNotEnded(t *testing.T) {
	s := &Share{Config: Config{Log: slog.New(slog.DiscardHandler)}, mail: mailbox{wake: make(chan struct{}, 1)}}
	post := func(part pb.ShareBatch_Part, kind pb.Event_Kind) { s.post(&pb.ShareBatch{Part: part, Kind: kind}) }
	waiting := func() (all []string) {
		for _, one := range s.mail.all {
			m := new(pb.ShareBatch)
			if err := proto.Unmarshal(one.raw, m); err != nil {
				t.Fatal(err)
			}
			all = append(all, fmt.Sprint(m.GetPart(), " ", m.GetKind()))
		}
		return all
	}
	post(pb.ShareBatch_BEGINS, pb.Event_OWNER)
	large := &pb.ShareBatch{Part: pb.ShareBatch_STATE, Kind: pb.Event_OWNER, Partitions: bytes.Repeat([]byte{1}, mostBytes)}
	for n := 0; !s.mail.overflown; n++ {
		if n > mostWaiting/mostBytes {
			t.Fatalf("got %d bytes that wait, want %d at most", s.mail.bytes, mostWaiting)
		}
		s.post(large)
	}
	post(pb.ShareBatch_UNSPECIFIED, pb.Event_UNSPECIFIED)
	if got := waiting(); got != nil || s.mail.bytes != 0 {
		t.Fatalf("got %q, want that nothing waits", got)
	}
	s.mail.overflown = false // NATS is back
	post(pb.ShareBatch_STATE, pb.Event_OWNER)
	post(pb.ShareBatch_UNSPECIFIED, pb.Event_UNSPECIFIED)
	post(pb.ShareBatch_ENDS, pb.Event_OWNER)
	post(pb.ShareBatch_BEGINS, pb.Event_CONFLICT)
	post(pb.ShareBatch_ENDS, pb.Event_CONFLICT)
	post(pb.ShareBatch_BEGINS, pb.Event_OWNER)
	post(pb.ShareBatch_STATE, pb.Event_OWNER)
	post(pb.ShareBatch_ENDS, pb.Event_OWNER)
	want := []string{"UNSPECIFIED UNSPECIFIED", "BEGINS CONFLICT", "ENDS CONFLICT", "BEGINS OWNER", "STATE OWNER", "ENDS OWNER"}
	if got := waiting(); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
