package access

import (
	"context"
	"net/http"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// Refusal answers a request of HTTP with an error.
type Refusal func(w http.ResponseWriter, r *http.Request, err error)

// REST finds out who sends requests of the API. What they may do is decided by the
// method of gRPC that they become: see Behind.
func (g *Guard) REST(next http.Handler, refuse Refusal) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		by := shown(r)
		c, err := g.authenticate(r.Context(), by, false)
		if err != nil {
			answer401(w, err)
			refuse(w, r, g.refuse(r.Context(), err, by, r.Method+" "+r.URL.Path))
			return
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), callerKey{}, c)))
	})
}

// Metrics lets through who may read metrics.
func (g *Guard) Metrics(next http.Handler, refuse Refusal) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		by := shown(r)
		c, err := g.admit(r.Context(), by, metrics)
		if err == nil {
			err = g.limits.call(c)
		}
		if err != nil {
			answer401(w, err)
			refuse(w, r, g.refuse(r.Context(), err, by, metrics.String()))
			return
		}
		next.ServeHTTP(w, r)
	})
}

// answer401 says by what a caller can say who it is (RFC 9110, section 11.6.1).
func answer401(w http.ResponseWriter, err error) {
	if status.Code(err) == codes.Unauthenticated {
		w.Header().Set("WWW-Authenticate", `Bearer realm="ipwitness"`)
	}
}

// shown is what a request shows.
func shown(r *http.Request) credential {
	by := credential{token: bearer(r.Header.Get("Authorization")), remote: address(r.RemoteAddr), host: r.Host}
	if r.TLS != nil && len(r.TLS.VerifiedChains) > 0 {
		by.chain = r.TLS.PeerCertificates
		by.certificate = by.chain[0]
	}
	return by
}

// Behind gives the connection in process by which REST calls gRPC: each call is
// authorized there, as what it is.
func (g *Guard) Behind(conn grpc.ClientConnInterface) grpc.ClientConnInterface {
	return behind{conn, g}
}

type behind struct {
	conn  grpc.ClientConnInterface
	guard *Guard
}

// Invoke is for grpc.ClientConnInterface.
func (b behind) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	ctx, end, err := b.enter(ctx, method, false)
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, end) // when the request ends: the answer stays in memory until then
	return b.conn.Invoke(ctx, method, args, reply, opts...)
}

// NewStream is for grpc.ClientConnInterface.
func (b behind) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	ctx, end, err := b.enter(ctx, method, true)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	revoked := Revoked(ctx)
	if revoked != nil {
		go func() {
			select {
			case <-revoked:
				cancel()
			case <-ctx.Done():
			}
		}()
	}
	context.AfterFunc(ctx, func() { cancel(); end() }) // with its request
	stream, err := b.conn.NewStream(ctx, desc, method, opts...)
	if err != nil {
		cancel()
		return nil, err
	}
	return revocable{stream, revoked}, nil
}

// revocable is a stream that says so when it ends because its caller is not any more
// who it was.
type revocable struct {
	grpc.ClientStream
	revoked <-chan struct{}
}

// RecvMsg is for grpc.ClientStream.
func (s revocable) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	select {
	case <-s.revoked:
		if err != nil {
			return ErrRevoked
		}
	default:
	}
	return err
}

// enter lets the call in that a request has become.
func (b behind) enter(ctx context.Context, method string, stream bool) (context.Context, func(), error) {
	c := Of(ctx)
	if c == nil {
		return nil, nil, status.Errorf(codes.Internal, "nobody knows who calls %s", method)
	}
	what, err := action(method)
	if err == nil {
		err = b.guard.authorize(ctx, c, what)
	}
	var end func()
	if err == nil {
		ctx, end, err = b.guard.begin(ctx, c, what, stream)
	}
	if err != nil {
		return nil, nil, b.guard.refuse(ctx, err, c.from, what.String())
	}
	return metadata.AppendToOutgoingContext(ctx, onBehalf, c.Name()), end, nil
}
