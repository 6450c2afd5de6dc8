package access

import (
	"context"
	"net/netip"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"
)

// recheckEvery is how often the credential of a stream is checked again.
const recheckEvery = time.Minute

type callerKey struct{}

// Of returns the caller of a method. It is nil for calls within this process.
func Of(ctx context.Context) *Caller {
	c, _ := ctx.Value(callerKey{}).(*Caller)
	return c
}

// Revoked returns a channel that is closed when the credential of a stream is no longer valid.
func Revoked(ctx context.Context) <-chan struct{} {
	if c := Of(ctx); c != nil {
		return c.revoked
	}
	return nil
}

// ErrRevoked ends a stream whose credential is no longer valid.
var ErrRevoked = status.Error(codes.Unauthenticated, "the token or certificate of this stream is no longer valid: reconnect with a new one")

// Outside returns the options of a server that is reachable from the network: the guard checks
// all its calls. codec encodes its messages.
func (g *Guard) Outside(codec encoding.CodecV2) []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.InTapHandle(g.tap), grpc.UnaryInterceptor(g.unary), grpc.StreamInterceptor(g.stream), grpc.ForceServerCodecV2(answering{codec}),
	}
}

// tap refuses calls before any message is read. It checks the rights of callers without a
// token. gRPC reads the whole message of a unary call before the interceptor runs, so tap also
// limits the number and duration of such calls per address. It makes no requests, because it
// is called with a lock of the connection held.
func (g *Guard) tap(ctx context.Context, info *tap.Info) (tapped context.Context, err error) {
	aside(func() {
		tapped = ctx
		by := shownBy(ctx, info.Header)
		what, unknown := action(info.FullMethodName)
		if unknown != nil {
			return // gRPC reports unknown methods itself
		}
		if by.token == "" {
			_, err = g.admit(ctx, by, what)
		}
		if err == nil && !what.long {
			tapped, err = g.limits.come(ctx, by)
		}
		err = g.refuse(ctx, err, by, what.String())
	})
	return tapped, err
}

// aside calls a function in a goroutine of its own and waits until it returns. The goroutines
// of a connection's transport and streams live as long as the connection, and their stacks
// hardly ever shrink. Checking a caller there would double the size of both.
func aside(call func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		call()
	}()
	<-done
}

func (g *Guard) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	ctx, end, err := g.enter(ctx, info.FullMethod)
	if err != nil {
		return nil, err
	}
	message, err := next(ctx, req)
	if err != nil {
		end()
		return nil, err
	}
	late := time.AfterFunc(takenWithin, func() {
		if c := connection(ctx); c != nil {
			c.HangUp()
		}
		end()
	})
	return &reply{message, func() { late.Stop(); end() }}, nil
}

func (g *Guard) stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	var entered context.Context
	var end func()
	var err error
	aside(func() { entered, end, err = g.enter(stream.Context(), info.FullMethod) })
	if err != nil {
		return err
	}
	defer end()
	return next(srv, guarded{stream, entered})
}

type guarded struct {
	grpc.ServerStream
	ctx context.Context
}

// Context implements grpc.ServerStream.
func (s guarded) Context() context.Context { return s.ctx }

// enter admits a gRPC call, or returns why it is refused.
func (g *Guard) enter(ctx context.Context, method string) (context.Context, func(), error) {
	md, _ := metadata.FromIncomingContext(ctx)
	by := shownBy(ctx, md)
	what, err := action(method)
	if err == nil && !what.open {
		var c *Caller
		if c, err = g.admit(ctx, by, what); err == nil {
			ctx, end, err := g.begin(ctx, c, what)
			return ctx, end, g.refuse(ctx, err, by, what.String())
		}
	}
	return ctx, func() {}, g.refuse(ctx, err, by, method)
}

func shownBy(ctx context.Context, md metadata.MD) (by credential) {
	if p, ok := peer.FromContext(ctx); ok {
		by.remote = address(p.Addr.String())
		if tls, ok := p.AuthInfo.(credentials.TLSInfo); ok && len(tls.State.VerifiedChains) > 0 {
			by.chain = tls.State.PeerCertificates
			by.certificate = by.chain[0]
		}
	}
	if header := md.Get("authorization"); len(header) > 0 {
		by.token = bearer(header[0])
	}
	return by
}

func (g *Guard) admit(ctx context.Context, by credential, what Action) (*Caller, error) {
	c, err := g.authenticate(ctx, by, what.report)
	if err != nil {
		return nil, err
	}
	return c, g.authorize(ctx, c, what)
}

// begin applies the limits to a call. For a stream, it also checks the credential again at
// intervals. The caller calls end when the call is over.
func (g *Guard) begin(ctx context.Context, c *Caller, what Action) (context.Context, func(), error) {
	end, err := g.limits.begin(ctx, c, what)
	if err == nil && what.long {
		c.revoked = make(chan struct{})
		if !g.Open() {
			stop, left := g.recheck(ctx, c, what), end
			end = func() { stop(); left() }
		}
	}
	return context.WithValue(ctx, callerKey{}, c), end, err
}

// recheck checks the credential at intervals until stop is called, and closes revoked once the
// caller may no longer do what it does. If the check is impossible, the caller keeps its
// rights. A timer runs the checks, so that a stream needs no goroutine for them.
func (g *Guard) recheck(ctx context.Context, c *Caller, what Action) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var mu sync.Mutex // guards timer
	var timer *time.Timer
	check := func() {
		again, err := g.admit(ctx, c.from, what)
		code := status.Code(err)
		mu.Lock()
		defer mu.Unlock()
		switch {
		case ctx.Err() != nil:
		case code == codes.Unauthenticated, code == codes.PermissionDenied, err == nil && again.node != c.node:
			close(c.revoked)
		default:
			timer.Reset(recheckEvery)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	timer = time.AfterFunc(recheckEvery, check)
	return func() {
		cancel()
		mu.Lock()
		defer mu.Unlock()
		timer.Stop()
	}
}

// bearer returns the token of an Authorization header, or the empty string for other schemes.
func bearer(header string) string {
	scheme, token, ok := strings.Cut(header, " ")
	if !ok || !strings.EqualFold(scheme, "bearer") {
		return ""
	}
	return strings.TrimSpace(token)
}

func address(hostport string) netip.Addr {
	a, _ := netip.ParseAddrPort(hostport)
	return a.Addr().Unmap().WithZone("")
}

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
