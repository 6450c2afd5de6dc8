package aggregator

import (
	"fmt"

	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // the codec that is bounded
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

const (
	// maxParts is how many messages one message has in it at most. An agent sends 4096
	// records at a time.
	maxParts = 200_000
	// harmless is how many bytes cannot have so many that it matters.
	harmless = 64 << 10
)

// bounded refuses, before it is read, what would take a hundred times its size in
// memory: two bytes are an empty record.
type bounded struct{ encoding.CodecV2 }

func newBounded() encoding.CodecV2 { return bounded{encoding.GetCodecV2("proto")} }

// Unmarshal is for encoding.CodecV2.
func (b bounded) Unmarshal(data mem.BufferSlice, v any) error {
	if m, ok := v.(proto.Message); ok && data.Len() > harmless {
		raw := data.MaterializeToBuffer(mem.DefaultBufferPool())
		defer raw.Free()
		if parts(m.ProtoReflect().Descriptor(), raw.ReadOnlyData(), maxParts) > maxParts {
			return fmt.Errorf("the message has more than %d parts: this is not what an ipwitness agent sends", maxParts)
		}
	}
	return b.CodecV2.Unmarshal(data, v)
}

// parts counts the messages and the items of lists in a message, or until there are
// more than most.
func parts(of protoreflect.MessageDescriptor, raw []byte, most int) (n int) {
	for len(raw) > 0 && n <= most {
		number, typ, size := protowire.ConsumeTag(raw)
		if size < 0 {
			return n // whoever reads it says what is wrong
		}
		raw = raw[size:]
		if size = protowire.ConsumeFieldValue(number, typ, raw); size < 0 {
			return n
		}
		field := of.Fields().ByNumber(number)
		if field != nil && typ == protowire.BytesType && (field.Message() != nil || field.IsList()) {
			n++
			if field.Message() != nil {
				inside, _ := protowire.ConsumeBytes(raw)
				n += parts(field.Message(), inside, most-n)
			}
		}
		raw = raw[size:]
	}
	return n
}
