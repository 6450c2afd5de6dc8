package report

import (
	"bytes"
	"strings"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

func TestMessagesWithTooManyPartsAreRefused(t *testing.T) {
	const claims, namespaces = 8, 5
	empty := func(field protowire.Number, n int) []byte {
		return bytes.Repeat(protowire.AppendBytes(protowire.AppendTag(nil, field, protowire.BytesType), nil), n)
	}
	intended := (&pb.NamespaceRecord{}).ProtoReflect().Descriptor().Fields().ByName("intended").Number()
	full := &pb.ReportRequest{}
	for range 4096 {
		full.Claims = append(full.Claims, &pb.ClaimRecord{Address: make([]byte, 16), Mac: make([]byte, 6), Link: strings.Repeat("x", 15)})
	}
	most, err := proto.Marshal(full)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		raw  []byte
		ok   bool
	}{
		{"message of an agent", most, true},
		{"empty claims", empty(claims, 2<<20-1), false},
		{"empty parts of one record", protowire.AppendBytes(protowire.AppendTag(nil, namespaces, protowire.BytesType), empty(intended, 1<<20)), false},
		{"one large text", protowire.AppendBytes(protowire.AppendTag(nil, 1000, protowire.BytesType), make([]byte, 3<<20)), true},
	} {
		err := bounded{encoding.GetCodecV2("proto"), newArrivals(0)}.Unmarshal(mem.BufferSlice{mem.SliceBuffer(c.raw)}, &pb.ReportRequest{})
		if (err == nil) != c.ok {
			t.Errorf("%s, %d bytes: got %v, want it to be read: %t", c.name, len(c.raw), err, c.ok)
		}
	}
}

// Messages that together exceed the memory limit are read one after another.
func TestMessagesBeingReadShareTheirMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		full := &pb.ReportRequest{}
		for range leastMessages / partCost {
			full.Links = append(full.Links, &pb.LinkRecord{})
		}
		raw, err := proto.Marshal(full)
		if err != nil {
			t.Fatal(err)
		}
		codec := bounded{encoding.GetCodecV2("proto"), newArrivals(0)}
		read := func(in *arrival) error { return codec.Unmarshal(mem.BufferSlice{mem.SliceBuffer(raw)}, in) }
		var one, other bool
		first, second := arrival{received: func() { one = true }}, arrival{received: func() { other = true }}
		if err := read(&first); err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() { done <- read(&second) }()
		synctest.Wait()
		select {
		case err := <-done:
			t.Errorf("the second message was read beside the first: %v", err)
			return
		default:
		}
		if !one || !other {
			t.Errorf("got messages that are received: %t, %t, want both: one of them waits", one, other)
		}
		first.release()
		if err := <-done; err != nil {
			t.Errorf("after the first was taken: %v", err)
		}
		second.release()
	})
}
