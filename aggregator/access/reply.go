package access

import (
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
)

// gRPC encodes the whole answer of a unary call into memory and ends the call before the
// client has read the answer. To bound that memory, a call here stays in progress until the
// buffer of its answer is released. A client that does not read the answer is disconnected.

// A reply is the answer of a unary call and the pool that its buffer is returned to. taken is called once
// the answer has been read or abandoned.
type reply struct {
	message any
	taken   func()
}

// Get implements mem.BufferPool.
func (*reply) Get(n int) *[]byte { b := make([]byte, n); return &b }

// Put implements mem.BufferPool. gRPC calls it when all of the answer was written or its stream
// has ended.
func (a *reply) Put(*[]byte) { a.taken() }

// answering is a codec that can also encode replies.
type answering struct{ encoding.CodecV2 }

// Marshal implements encoding.CodecV2.
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
		a.taken() // gRPC does not pool small buffers, so Put is not called for them
	}
	return mem.BufferSlice{mem.NewBuffer(&raw, a)}, nil
}
