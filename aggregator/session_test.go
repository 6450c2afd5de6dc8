package aggregator

import (
	"fmt"
	"log/slog"
	"slices"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// A snapshot that never ends, of what counts as no record, must not take all memory.
func TestASnapshotHasSoManyBytesAndNoMore(t *testing.T) {
	r := newSession(newStore(policyForTests, slog.New(slog.DiscardHandler), newMetrics()))
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

// Records beyond the limit of their kind are dropped; records that a node already has stay.
func TestRecordsOfEachKindAreLimited(t *testing.T) {
	s := newStore(policyForTests, slog.New(slog.DiscardHandler), newMetrics())
	n := newNode(nodeID{"boot", "1", "n1"})
	s.addNode(n)
	const more = 10
	m := &pb.ReportRequest{}
	for i := range uint32(maxNamespaces + more) {
		m.Namespaces = append(m.Namespaces, &pb.NamespaceRecord{Id: i + 1})
	}
	for i := range maxLinks + more {
		m.Links = append(m.Links, &pb.LinkRecord{Name: fmt.Sprint("veth", i), Kind: pb.LinkRecord_POINT_TO_POINT})
	}
	for i := range uint32(maxInterfaces + more) {
		m.Interfaces = append(m.Interfaces, &pb.InterfaceRecord{Namespace: 1, Index: i + 1, Name: "eth0", Attachment: pb.InterfaceRecord_OWN})
	}
	for range 2 { // sending them again changes nothing
		s.apply(n, m, 1, false)
	}
	if got, want := []int{n.namespaces.len(), n.links.len(), n.interfaces.len()}, []int{maxNamespaces, maxLinks, maxInterfaces}; !slices.Equal(got, want) {
		t.Errorf("namespaces, links, interfaces: got %d, want %d", got, want)
	}
}

func TestNodesAreLimited(t *testing.T) {
	s := newStore(verdict.Policy{}, slog.New(slog.DiscardHandler), newMetrics())
	more := nodeID{"boot", "1", "one more"}
	for i := range maxNodes {
		if err := s.mayBeOneMore(more); err != nil {
			t.Fatalf("node %d: %v", i+1, err)
		}
		s.addNode(newNode(nodeID{fmt.Sprint("boot", i), "1", fmt.Sprint("n", i)}))
	}
	if err := s.mayBeOneMore(more); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("one more than %d nodes: got %v, want ResourceExhausted", maxNodes, err)
	}
}

// A machine that boots again and again is not kept out for what it was.
func TestWhatANodeWasDoesNotKeepItOut(t *testing.T) {
	s := newStore(verdict.Policy{}, slog.New(slog.DiscardHandler), newMetrics())
	for i := range maxOfOneName {
		n := newNode(nodeID{fmt.Sprint("boot", i), "1", "n1"})
		n.name = "n1"
		s.addNode(n)
	}
	more := nodeID{"boot more", "1", "n1"}
	if err := s.mayBeOneMore(more); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("one boot more: got %v, want ResourceExhausted", err)
	}
	if err := s.mayBeOneMore(nodeID{"boot0", "1", "n2"}); err != nil {
		t.Errorf("of another name: %v", err)
	}
	s.nodes[nodeID{"boot0", "1", "n1"}].rec.TimedOut = true
	if err := s.mayBeOneMore(more); err != nil {
		t.Errorf("one boot more when one is given up: %v", err)
	}
}
