package sim

import (
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // registers the codec that codec extends
	"google.golang.org/grpc/mem"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// message is a ReportRequest: the fields of head, and records that are already encoded.
// Encoded messages are merged by concatenation.
type message struct {
	head    *pb.ReportRequest
	records []byte
}

// encoded makes a call accept a message.
var encoded = grpc.ForceCodecV2(codec{encoding.GetCodecV2("proto")})

// codec sends encoded records unchanged: thousands of agents must use little CPU time, which the
// aggregator needs.
type codec struct{ encoding.CodecV2 }

// Marshal implements encoding.CodecV2.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	m, ok := v.(message)
	if !ok {
		return c.CodecV2.Marshal(v)
	}
	out, err := c.CodecV2.Marshal(m.head)
	if len(m.records) > 0 {
		out = append(out, mem.SliceBuffer(m.records))
	}
	return out, err
}
