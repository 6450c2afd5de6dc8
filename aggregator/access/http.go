package access

import (
	"context"
	"net/http"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Refusal answers a request of HTTP with an error.
type Refusal func(w http.ResponseWriter, r *http.Request, err error)

// REST finds out who sends requests of the API. What they may do is decided by the
// method of gRPC that they become: see EnterREST.
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

// EnterREST lets a call of gRPC in that a request has become, or returns why not. ctx is that of the
// request, which has passed REST. The caller calls end when the call is over.
func (g *Guard) EnterREST(ctx context.Context, method string, stream bool) (_ context.Context, end func(), err error) {
	c := Of(ctx)
	if c == nil {
		return nil, nil, status.Errorf(codes.Internal, "nobody knows who calls %s", method)
	}
	what, err := action(method)
	if err == nil {
		err = g.authorize(ctx, c, what)
	}
	if err == nil {
		ctx, end, err = g.begin(ctx, c, what, stream)
	}
	if err != nil {
		return nil, nil, g.refuse(ctx, err, c.from, what.String())
	}
	return ctx, end, nil
}
