// Package forward asks an aggregator that runs in Kubernetes through the API
// server, as kubectl port-forward does, but without a local port: each
// connection of HTTP is a stream to a pod.
//
// Only this package of the commands talks to the Kubernetes API, and only as the
// user whom the kubeconfig names. It gives nobody the user's own credentials.
package forward

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/ipwitness/ipwitness/cmd/ipwitness/secure"
)

// Host is the host of the URLs that a Transport takes; which Service it stands
// for is found out at the first request.
const Host = "ipwitness.svc"

// Config says where the aggregator is, and how to speak to it.
type Config struct {
	// Context of the kubeconfig; empty: the current one.
	Context string
	// Namespace of the aggregator; empty: wherever one is.
	Namespace string
	// UserAgent is what the API server knows us by.
	UserAgent string
	// TLS is what the user asked for, or nil.
	TLS *tls.Config
	// Verified says that TLS has who may have signed the aggregator's certificate.
	// Otherwise its ConfigMap says who may.
	Verified bool
	// Token adds the user's own token to requests. Where it is nil, and TLS has no
	// certificate, the Kubernetes API is asked for one.
	Token func(http.RoundTripper) http.RoundTripper
}

// failed says why the aggregator cannot be reached, and what to do.
func failed(format string, args ...any) error {
	return secure.NewProblem(fmt.Errorf(format, args...))
}

// Transport is an http.RoundTripper that leads all requests to the aggregator.
type Transport struct {
	config Config

	mu      sync.Mutex
	cluster *cluster
	// route leads to the aggregator as it was found last; nil before, and after a
	// failure: it may be elsewhere then, or have another certificate.
	route *route
}

// New makes a Transport. It finds the aggregator at the first request.
func New(c Config) *Transport { return &Transport{config: c} }

// RoundTrip is for http.RoundTripper.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	r, err := t.find(req.Context())
	if err != nil {
		return nil, err
	}
	ask := req.Clone(req.Context())
	// A port-forward comes out at the pod's own loopback address, and asks there.
	ask.URL.Scheme, ask.URL.Host, ask.Host = r.scheme(), r.service.host(), "localhost"
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
			_ = res.Body.Close() // it says only that there was no token
			return nil, r.token.denied
		}
	}
	return res, nil
}

// find gives the way to the aggregator.
func (t *Transport) find(ctx context.Context) (*route, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.route != nil && t.route.token.fresh() {
		return t.route, nil
	}
	if t.cluster == nil {
		c, err := newCluster(t.config)
		if err != nil {
			return nil, err
		}
		t.cluster = c
	}
	r, err := t.cluster.route(ctx, t.config)
	if err != nil {
		return nil, err
	}
	t.route = r
	return r, nil
}

// forget has the next request find the aggregator anew.
func (t *Transport) forget(r *route) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.route == r {
		t.route = nil
	}
	r.http.CloseIdleConnections()
}

// route is the way to an aggregator.
type route struct {
	service service
	token   token
	http    *http.Transport
	by      http.RoundTripper // http, with a token of the user's
}

func (r *route) scheme() string {
	if r.service.tls {
		return "https"
	}
	return "http"
}

// token proves who we are.
type token struct {
	text string
	// until is when another one is to be used.
	until time.Time
	// denied is why there is none.
	denied error
}

func (t token) fresh() bool { return t.text == "" || time.Now().Before(t.until) }

// route finds the aggregator and what it takes to speak to it.
func (c *cluster) route(ctx context.Context, cfg Config) (*route, error) {
	s, err := c.service(ctx, cfg.Namespace)
	if err != nil {
		return nil, err
	}
	r := &route{service: s, http: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return c.dial(ctx, s) },
		// As long as a watch may say nothing.
		ResponseHeaderTimeout: 30 * time.Second,
	}}
	r.by = r.http
	if cfg.Token != nil {
		r.by = cfg.Token(r.by)
	}
	if !s.tls {
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

// authority reads the CA of the aggregator's certificate.
func (c *cluster) authority(ctx context.Context, s service) (*x509.CertPool, error) {
	name := s.name + "-ca"
	text, err := c.configMap(ctx, s.namespace, name, "ca.crt")
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM([]byte(text)) {
		return nil, failed("ConfigMap %s/%s has no certificate in ca.crt: name the CA of the aggregator's certificate with --tls-ca", s.namespace, name)
	}
	return pool, nil
}
