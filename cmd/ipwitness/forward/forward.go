// Package forward queries an aggregator in Kubernetes through the API server, like kubectl
// port-forward but without a local port: each HTTP connection is a stream to a pod.
//
// This is the only package of the commands that uses the Kubernetes API, and it does so as the user
// of the kubeconfig. It does not pass on the user's own credentials.
package forward

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/ipwitness/ipwitness/secure"
)

// Host is the host in the URLs that a Transport accepts. The first request determines the Service
// that it stands for.
const Host = "ipwitness.svc"

// Config selects the aggregator and how to connect to it.
type Config struct {
	// Kubeconfig is the file with the contexts; empty for the files that kubectl would use.
	Kubeconfig string
	// Context is the context of the kubeconfig; empty for the current one.
	Context string
	// Namespace is the namespace of the aggregator; empty for any namespace.
	Namespace string
	// UserAgent is the user agent of requests to the API server.
	UserAgent string
	// TLS is the user's TLS configuration, or nil.
	TLS *tls.Config
	// Verified is set if TLS contains the CA of the aggregator's certificate. Otherwise the CA is
	// read from the aggregator's ConfigMap.
	Verified bool
	// Token adds the user's own token to requests. If it is nil and TLS has no certificate, a token
	// is requested from the Kubernetes API.
	Token func(http.RoundTripper) http.RoundTripper
}

// failed returns an error that says why the aggregator cannot be reached, and what to do.
func failed(format string, args ...any) error {
	return secure.NewProblem(fmt.Errorf(format, args...))
}

// Transport is an http.RoundTripper that sends all requests to the aggregator.
type Transport struct {
	config Config

	mu      sync.Mutex
	cluster *cluster
	// route is the last known route to the aggregator. It is nil before the first request and after
	// a failure, because the aggregator may have moved or have another certificate.
	route *route
}

// New returns a Transport. It looks for the aggregator at the first request.
func New(c Config) *Transport { return &Transport{config: c} }

// RoundTrip implements http.RoundTripper.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	r, err := t.find(req.Context())
	if err != nil {
		return nil, err
	}
	ask := req.Clone(req.Context())
	// A port-forward ends at the loopback address of the pod.
	ask.URL.Scheme, ask.URL.Host, ask.Host = r.service.scheme, r.service.host(), "localhost"
	if r.token.text != "" {
		ask.Header.Set("Authorization", "Bearer "+r.token.text)
	}
	res, err := r.by.RoundTrip(ask)
	if err != nil {
		t.forget(r)
		return nil, err
	}
	if res.StatusCode == http.StatusUnauthorized || res.StatusCode == http.StatusForbidden {
		t.forget(r)
		if r.token.denied != nil {
			_ = res.Body.Close() // it only says that there was no token
			return nil, r.token.denied
		}
	}
	return res, nil
}

// find returns the route to the aggregator.
func (t *Transport) find(ctx context.Context) (_ *route, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.route != nil && (t.route.token.text == "" || time.Now().Before(t.route.token.until)) {
		return t.route, nil
	}
	if t.cluster == nil {
		if t.cluster, err = newCluster(t.config); err != nil {
			return nil, err
		}
	}
	r, err := t.cluster.route(ctx, t.config)
	if err == nil {
		t.route = r
	}
	return r, err
}

// forget makes the next request look for the aggregator again.
func (t *Transport) forget(r *route) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.route == r {
		t.route = nil
	}
	r.http.CloseIdleConnections()
}

// route is the connection data of an aggregator.
type route struct {
	service service
	token   token
	http    *http.Transport
	by      http.RoundTripper // http, with the user's token if there is one
}

// token is a bearer token for the aggregator.
type token struct {
	text string
	// until is the time at which a new token must be requested.
	until time.Time
	// denied is the reason why there is no token.
	denied error
}

// route looks for the aggregator and prepares the connection to it.
func (c *cluster) route(ctx context.Context, cfg Config) (*route, error) {
	s, err := c.service(ctx, cfg.Namespace)
	if err != nil {
		return nil, err
	}
	r := &route{service: s, http: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return c.dial(ctx, s) },
		// As long as a watch may be without an event.
		ResponseHeaderTimeout: 30 * time.Second,
	}}
	r.by = r.http
	if cfg.Token != nil {
		r.by = cfg.Token(r.by)
	}
	if s.scheme == "http" {
		return r, nil
	}
	ours := &tls.Config{MinVersion: tls.VersionTLS13}
	if cfg.TLS != nil {
		ours = cfg.TLS.Clone()
	}
	ours.ServerName = s.host()
	if !cfg.Verified {
		if ours.RootCAs, err = c.authority(ctx, s); err != nil {
			return nil, err
		}
	}
	r.http.TLSClientConfig = ours
	if cfg.Token == nil && len(ours.Certificates) == 0 {
		r.token = c.token(ctx, s)
	}
	return r, nil
}
