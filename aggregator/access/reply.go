package access

import (
	"context"
	"time"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/peer"
)

// gRPC takes the whole answer of a unary call into memory and ends the call, and then
// waits for the client to read. So an answer counts as under way until its bytes are
// given back, and a client that does not read it loses the connection.

// Connection is a peer's address (net.Addr) that can close the connection to it.
type Connection interface{ HangUp() }

// reply is the answer of a unary call, and the pool that its bytes are given back to.
type reply struct {
	message any
	taken   func()
}

// newReply makes a reply that ends the call once it has been read, or is given up.
func newReply(ctx context.Context, message any, end func()) *reply {
	late := time.AfterFunc(takenWithin, func() {
		if p, ok := peer.FromContext(ctx); ok {
			if c, ok := p.Addr.(Connection); ok {
				c.HangUp()
			}
		}
		end()
	})
	return &reply{message, func() { late.Stop(); end() }}
}

// Get is for mem.BufferPool.
func (*reply) Get(n int) *[]byte { b := make([]byte, n); return &b }

// Put is for mem.BufferPool: all of the answer was written, or its stream has ended.
func (a *reply) Put(*[]byte) { a.taken() }

// answering is a codec that can encode replies.
type answering struct{ encoding.CodecV2 }

// Marshal is for encoding.CodecV2.
func (c answering) Marshal(v any) (mem.BufferSlice, error) {
	a, ok := v.(*reply)
	if !ok {
		return c.CodecV2.Marshal(v)
	}
	encoded, err := c.CodecV2.Marshal(a.message)
	if err != nil {
		a.taken()
		return nil, err
	}
	defer encoded.Free()
	raw := encoded.Materialize()
	if mem.IsBelowBufferPoolingThreshold(cap(raw)) {
		a.taken() // so few bytes have no pool
	}
	return mem.BufferSlice{mem.NewBuffer(&raw, a)}, nil
}
