package report

import (
	"context"
	"fmt"
	"runtime"

	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // registers the codec that bounded wraps
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

const (
	// maxParts is the largest number of nested messages and list items in one message. Agents send
	// up to 4096 records at a time.
	maxParts = 200_000
	// maxUnchecked is the size in bytes up to which the number of parts of a message does not
	// matter.
	maxUnchecked = 64 << 10
)

// messageShare determines the limit for messages that are being read and applied: the memory of the
// aggregator is divided by it. leastMessages and mostMessages are the smallest and the largest
// limit in bytes. More would not help, because few snapshots are applied at a time, and decoded
// messages that wait fragment the heap. partCost is the memory in bytes that one part of a decoded
// message takes. Messages of up to smallMessage bytes need no reservation, so that changes do not
// wait for snapshots.
const (
	messageShare  = 16
	leastMessages = 16 << 20
	mostMessages  = 32 << 20
	partCost      = 300
	smallMessage  = 16 << 10
)

// newArrivals returns the arrivals of a process with a memory limit in bytes.
func newArrivals(memory int64) *arrivals {
	size := min(max(leastMessages, memory/messageShare), mostMessages)
	return &arrivals{semaphore.NewWeighted(size), size, semaphore.NewWeighted(2 * int64(runtime.GOMAXPROCS(0)))}
}

// arrivals limits the total memory of messages from when they are read until they are applied, and
// the number of large messages, because all other goroutines compete with those that work on them.
type arrivals struct {
	memory *semaphore.Weighted
	size   int64
	// turns limits the number of large messages that are processed at a time. While one half of
	// them changes the facts, the other half is decoded.
	turns *semaphore.Weighted
}

// An arrival is a message of an agent with its turn and its reservation.
type arrival struct {
	pb.ReportRequest
	// received is called when the message has arrived, before it waits.
	received func()
	// releases has the functions that release what the message holds.
	releases []func()
}

func (a *arrival) acquire(of *semaphore.Weighted, n int64) error {
	if err := of.Acquire(context.Background(), n); err != nil {
		return err
	}
	a.releases = append(a.releases, func() { of.Release(n) })
	return nil
}

// release releases what the message holds after it was applied.
func (a *arrival) release() {
	for _, giveBack := range a.releases {
		giveBack()
	}
	a.releases = nil
}

// bounded is a codec that refuses messages whose decoded size would be about a hundred times their
// encoded size: an empty record takes two bytes. It refuses them before they are decoded.
type bounded struct {
	encoding.CodecV2
	arrivals *arrivals
}

// Unmarshal implements encoding.CodecV2. It blocks while other large messages have all turns or all
// memory. They release both once they are applied, which does not depend on any client.
func (b bounded) Unmarshal(data mem.BufferSlice, v any) error {
	m, ok := v.(proto.Message)
	in, arrives := v.(*arrival)
	if !ok || !arrives && data.Len() <= maxUnchecked {
		return b.CodecV2.Unmarshal(data, v)
	}
	if arrives && data.Len() > smallMessage {
		in.received()
		if err := in.acquire(b.arrivals.turns, 1); err != nil { // the number of large messages is limited
			return err
		}
	}
	raw := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer raw.Free()
	of := reportShape
	if !arrives {
		of = newShape(m.ProtoReflect().Descriptor())
	}
	found := of.parts(raw.ReadOnlyData(), maxParts)
	size, err := int64(raw.Len()+found*partCost), error(nil)
	switch {
	case found > maxParts:
		err = fmt.Errorf("the message has more than %d parts: this is not what an ipwitness agent sends", maxParts)
	case arrives && size > smallMessage:
		in.received()
		err = in.acquire(b.arrivals.memory, min(b.arrivals.size, size))
	}
	if err == nil {
		err = proto.Unmarshal(raw.ReadOnlyData(), m)
	}
	if err != nil && arrives {
		in.release()
	}
	return err
}

// A shape has what is inside the parts of each field of a message type, by field number; nil for a field that holds no
// parts. Looking that up in the descriptor would take most of the time.
type shape []*shape

var reportShape = newShape((*pb.ReportRequest)(nil).ProtoReflect().Descriptor())

// newShape returns the shape of a message type, which must not be recursive.
func newShape(of protoreflect.MessageDescriptor) (s shape) {
	for i := range of.Fields().Len() {
		field := of.Fields().Get(i)
		if field.Message() == nil && !field.IsList() {
			continue
		}
		for len(s) <= int(field.Number()) {
			s = append(s, nil)
		}
		inside := shape{}
		if field.Message() != nil {
			inside = newShape(field.Message())
		}
		s[field.Number()] = &inside
	}
	return s
}

// parts returns the number of nested messages and list items in a message. It stops counting above
// most.
func (s shape) parts(raw []byte, most int) (n int) {
	for len(raw) > 0 && n <= most {
		number, typ, size := protowire.ConsumeTag(raw)
		if size < 0 {
			return n // the decoder reports the error
		}
		raw = raw[size:]
		if size = protowire.ConsumeFieldValue(number, typ, raw); size < 0 {
			return n
		}
		if typ == protowire.BytesType && int(number) < len(s) && s[number] != nil {
			n++
			if inside := *s[number]; len(inside) > 0 {
				nested, _ := protowire.ConsumeBytes(raw)
				n += inside.parts(nested, most-n)
			}
		}
		raw = raw[size:]
	}
	return n
}
