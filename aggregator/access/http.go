package access

import (
	"context"
	"net/http"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Refusal answers an HTTP request with an error, and calls Challenge.
type Refusal func(w http.ResponseWriter, r *http.Request, err error)

// REST authenticates the callers of REST requests. EnterREST authorizes them later, once the
// gRPC method of the request is known.
func (g *Guard) REST(next http.Handler, refuse Refusal) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		by := shown(r)
		c, err := g.authenticate(r.Context(), by, false)
		if err != nil {
			refuse(w, r, g.refuse(r.Context(), err, by, r.Method+" "+r.URL.Path))
			return
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), callerKey{}, c)))
	})
}

// Metrics admits requests of callers that may read metrics.
func (g *Guard) Metrics(next http.Handler, refuse Refusal) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		by := shown(r)
		c, err := g.admit(r.Context(), by, metrics)
		if err == nil {
			err = g.limits.call(c) // not its calls in progress, so watches of the same address do not stop scrapes
		}
		if err != nil {
			refuse(w, r, g.refuse(r.Context(), err, by, metrics.String()))
			return
		}
		next.ServeHTTP(w, r)
	})
}

// Challenge sets the header that names the authentication scheme (RFC 9110, section 11.6.1) if the
// error of a response has the code Unauthenticated. If the request has a token, the header says that the
// token is not valid (RFC 6750, section 3).
func Challenge(w http.ResponseWriter, r *http.Request, code codes.Code) {
	if code != codes.Unauthenticated {
		return
	}
	challenge := `Bearer realm="ipwitness"`
	if bearer(r.Header.Get("Authorization")) != "" {
		challenge += `, error="invalid_token"`
	}
	w.Header().Set("WWW-Authenticate", challenge)
}

func shown(r *http.Request) credential {
	by := credential{token: bearer(r.Header.Get("Authorization")), remote: address(r.RemoteAddr), host: r.Host}
	if r.TLS != nil && len(r.TLS.VerifiedChains) > 0 {
		by.chain = r.TLS.PeerCertificates
		by.certificate = by.chain[0]
	}
	return by
}

// EnterREST admits the gRPC call that a REST request has become, or returns why it is refused.
// ctx is the context of the request, which has passed REST. The caller calls end when the call
// is over.
func (g *Guard) EnterREST(ctx context.Context, method string) (_ context.Context, end func(), err error) {
	c := Of(ctx)
	if c == nil {
		return nil, nil, status.Errorf(codes.Internal, "the caller of %s was not authenticated", method)
	}
	what, err := action(method)
	if err == nil {
		err = g.authorize(ctx, c, what)
	}
	if err == nil {
		ctx, end, err = g.begin(ctx, c, what)
	}
	if err != nil {
		return nil, nil, g.refuse(ctx, err, c.from, what.String())
	}
	return ctx, end, nil
}
