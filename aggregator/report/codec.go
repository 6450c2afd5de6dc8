package report

import (
	"context"
	"fmt"
	"runtime"

	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // the codec that is bounded
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

const (
	// maxParts is the largest number of nested messages and list items in one message. An agent
	// sends 4096 records at a time.
	maxParts = 200_000
	// harmless is the size in bytes up to which a message cannot have enough parts to matter.
	harmless = 64 << 10
)

// messageShare is the divisor of the aggregator's memory that gives the limit for messages that
// are being read and applied. leastMessages and mostMessages are the smallest and the largest limit
// in bytes: few snapshots are applied at a time, and decoded ones that wait leave a fragmented heap.
// partCost is the memory in bytes that one part of a message takes once it is decoded. A message
// that takes up to smallMessage bytes needs no reservation: a change does not wait for snapshots.
const (
	messageShare  = 16
	leastMessages = 16 << 20
	mostMessages  = 32 << 20
	partCost      = 300
	smallMessage  = 16 << 10
)

// arrivals limits the memory of all messages together from when they are read until they are
// applied, and their number: everything else waits behind the goroutines that work on them.
type arrivals struct {
	room *semaphore.Weighted
	size int64
	// turns is how many large messages are worked on at a time. While one half of them changes the
	// facts, the other half is decoded.
	turns *semaphore.Weighted
}

func newArrivals(memory int64) *arrivals {
	size := min(max(leastMessages, memory/messageShare), mostMessages)
	return &arrivals{semaphore.NewWeighted(size), size, semaphore.NewWeighted(2 * int64(runtime.GOMAXPROCS(0)))}
}

// An arrival is a message of an agent, with its turn and its reservation among the arrivals.
type arrival struct {
	pb.ReportRequest
	// received is called when the message has come, before it waits for anything.
	received func()
	// leaving gives back what the message holds.
	leaving []func()
}

// turn waits until few enough large messages are worked on.
func (a *arrival) turn(of *arrivals) error { return a.acquire(of.turns, 1) }

// reserve waits until there is room for the message.
func (a *arrival) reserve(of *arrivals, size int64) error { return a.acquire(of.room, size) }

func (a *arrival) acquire(of *semaphore.Weighted, n int64) error {
	if err := of.Acquire(context.Background(), n); err != nil {
		return err
	}
	a.leaving = append(a.leaving, func() { of.Release(n) })
	return nil
}

// leave gives back what a message holds that was applied.
func (a *arrival) leave() {
	for _, giveBack := range a.leaving {
		giveBack()
	}
	a.leaving = nil
}

// bounded refuses, before it is decoded, a message that would take a hundred times its size in
// memory: an empty record is two bytes.
type bounded struct {
	encoding.CodecV2
	arrivals *arrivals
}

func newBounded(a *arrivals) encoding.CodecV2 { return bounded{encoding.GetCodecV2("proto"), a} }

// Unmarshal is for encoding.CodecV2. It blocks while other large messages have all turns, or hold
// the reservations. Both are given back once the messages are applied, and applying a message
// waits for no client.
func (b bounded) Unmarshal(data mem.BufferSlice, v any) error {
	m, ok := v.(proto.Message)
	in, arrives := v.(*arrival)
	if !ok || !arrives && data.Len() <= harmless {
		return b.CodecV2.Unmarshal(data, v)
	}
	if arrives && data.Len() > smallMessage {
		in.received()
		if err := in.turn(b.arrivals); err != nil {
			return err
		}
	}
	raw := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer raw.Free()
	of := reportShape
	if !arrives {
		of = newShape(m.ProtoReflect().Descriptor())
	}
	err := b.reserve(in, raw.Len(), of.parts(raw.ReadOnlyData(), maxParts))
	if err == nil {
		err = proto.Unmarshal(raw.ReadOnlyData(), m)
	}
	if err != nil && arrives {
		in.leave()
	}
	return err
}

// reserve refuses a message of too many parts, and reserves memory for one of an agent.
func (b bounded) reserve(in *arrival, length, found int) error {
	if found > maxParts {
		return fmt.Errorf("the message has more than %d parts: this is not what an ipwitness agent sends", maxParts)
	}
	size := int64(length + found*partCost)
	if in == nil || size <= smallMessage {
		return nil
	}
	in.received()
	return in.reserve(b.arrivals, min(b.arrivals.size, size))
}

// A shape says which fields of a message type hold parts, by number: looking them up in the
// descriptor takes longer than everything else.
type shape struct {
	fields []shapedField
}

type shapedField struct {
	// counted is set if each occurrence is a nested message or a list item; inside is the shape of
	// a nested message.
	counted bool
	inside  *shape
}

// reportShape is the shape of ReportRequest messages.
var reportShape = newShape((*pb.ReportRequest)(nil).ProtoReflect().Descriptor())

// newShape returns the shape of a message type that does not contain itself.
func newShape(of protoreflect.MessageDescriptor) *shape {
	s := new(shape)
	for i := range of.Fields().Len() {
		field := of.Fields().Get(i)
		if field.Message() == nil && !field.IsList() {
			continue
		}
		for len(s.fields) <= int(field.Number()) {
			s.fields = append(s.fields, shapedField{})
		}
		at := &s.fields[field.Number()]
		if at.counted = true; field.Message() != nil {
			at.inside = newShape(field.Message())
		}
	}
	return s
}

// parts counts the nested messages and list items in a message. It stops counting above most.
func (s *shape) parts(raw []byte, most int) (n int) {
	for len(raw) > 0 && n <= most {
		number, typ, size := protowire.ConsumeTag(raw)
		if size < 0 {
			return n // the decoder reports what is wrong
		}
		raw = raw[size:]
		if size = protowire.ConsumeFieldValue(number, typ, raw); size < 0 {
			return n
		}
		if typ == protowire.BytesType && int(number) < len(s.fields) && s.fields[number].counted {
			n++
			if inside := s.fields[number].inside; inside != nil {
				nested, _ := protowire.ConsumeBytes(raw)
				n += inside.parts(nested, most-n)
			}
		}
		raw = raw[size:]
	}
	return n
}
