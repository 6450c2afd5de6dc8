package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/ipwitness/ipwitness/agent"
	"github.com/ipwitness/ipwitness/aggregator"
	"github.com/ipwitness/ipwitness/cmd/cli"
	"github.com/ipwitness/ipwitness/secure"
	"github.com/ipwitness/ipwitness/tests/pki"
)

// pipes is a listener without a network. Its deadlines follow the synctest clock.
type pipes struct {
	calls  chan net.Conn
	closed context.Context
	close  context.CancelFunc
}

func newPipes() *pipes {
	ctx, cancel := context.WithCancel(context.Background())
	return &pipes{calls: make(chan net.Conn), closed: ctx, close: cancel}
}

func (p *pipes) dial() net.Conn {
	client, server := net.Pipe()
	p.calls <- server
	return client
}

// Accept implements net.Listener.
func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.calls:
		return c, nil
	case <-p.closed.Done():
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (p *pipes) Close() error { p.close(); return nil }

// Addr implements net.Listener.
func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }

// servers are all HTTP servers of the aggregator, with TLS if a configuration is given.
var servers = map[string]func(*testing.T, *tls.Config) *http.Server{
	"rest": func(t *testing.T, tls *tls.Config) *http.Server {
		rest, _ := handlers(t)
		return cli.NewHTTPServer(rest, tls, slog.New(slog.DiscardHandler))
	},
	"probes": func(t *testing.T, tls *tls.Config) *http.Server {
		_, probes := handlers(t)
		return cli.NewProbeServer(probes, tls, slog.New(slog.DiscardHandler))
	},
	"agent": func(t *testing.T, tls *tls.Config) *http.Server {
		t.Helper()
		registry := cli.NewRegistry(cli.Build{})
		a, err := agent.New(agent.Config{Node: "node1"}, slog.New(slog.DiscardHandler), registry)
		if err != nil {
			t.Fatal(err)
		}
		return cli.NewProbeServer(a.Handler(registry), tls, slog.New(slog.DiscardHandler))
	},
}

func handlers(t *testing.T) (rest, probes http.Handler) {
	t.Helper()
	registry := cli.NewRegistry(cli.Build{})
	agg, err := aggregator.New(aggregator.Config{Kubeconfig: "off"}, slog.New(slog.DiscardHandler), registry)
	if err == nil {
		rest, probes, err = agg.Handlers(registry)
	}
	if err != nil {
		t.Fatal(err)
	}
	return rest, probes
}

// serve runs a server on pipes until the end of the test.
func (p *pipes) serve(t *testing.T, s *http.Server) {
	ended := make(chan error, 1)
	go func() { ended <- cli.RunHTTP(context.WithoutCancel(t.Context()), s, p) }()
	t.Cleanup(func() {
		_ = s.Close()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// drip sends one part per second until the other side hangs up, and returns how long that took.
func drip(c io.Writer, header, part string) time.Duration {
	begun := time.Now()
	_, err := io.WriteString(c, header)
	for err == nil {
		time.Sleep(time.Second)
		_, err = io.WriteString(c, part)
	}
	return time.Since(begun)
}

func TestSlowRequestsAreDisconnected(t *testing.T) {
	for name, paths := range map[string][]string{
		"rest": {
			"GET /healthz", "HEAD /healthz", "GET /readyz", "GET /metrics", "GET /", "GET /openapi.json", "GET /v1/owners",
			"GET /v1/owners:watch", "GET /nowhere", "PUT /v1/owners", "POST /healthz", "POST /v1/conflicts/abc:acknowledge",
		},
		"probes": {"GET /healthz", "GET /readyz", "GET /metrics", "GET /", "POST /metrics"},
		"agent":  {"GET /healthz", "GET /readyz", "GET /metrics", "GET /", "POST /metrics"},
	} {
		cutOff := func(t *testing.T, within time.Duration, header, part string) (answer []byte) {
			l := newPipes()
			l.serve(t, servers[name](t, nil))
			c := l.dial()
			read := make(chan []byte, 1)
			go func() {
				raw, _ := io.ReadAll(c) // until the server closes the connection
				read <- raw
			}()
			if took := drip(c, header, part); took > within+2*time.Second {
				t.Errorf("closed after %s, want %s", took, within)
			}
			return <-read
		}
		t.Run(name+" header", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { cutOff(t, cli.HeaderWithin, "GET / HTTP/1.1\r\nHost: localhost\r\n", "X: y\r\n") })
		})
		for _, path := range paths {
			t.Run(name+" "+path, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					within := time.Duration(0) // a request without a body is answered immediately
					if strings.HasPrefix(path, "POST") {
						within = cli.BodyWithin
					}
					answer := cutOff(t, within, path+" HTTP/1.1\r\nHost: localhost\r\nContent-Length: 60000\r\n\r\n", "x")
					if !bytes.HasPrefix(answer, []byte("HTTP/1.1 ")) {
						t.Errorf("got %q, want an answer", answer)
					}
				})
			})
		}
	}
}

// answerWithin is how long a client may take to read a response of the REST API that is not a stream.
const answerWithin = 5 * time.Minute

// A client that does not read the response to its request is disconnected.
func TestClientsThatDoNotReadAreDisconnected(t *testing.T) {
	for name, paths := range map[string][]string{
		"rest": {"/healthz", "/metrics", "/openapi.json", "/v1/owners"}, "probes": {"/healthz", "/metrics"}, "agent": {"/healthz", "/metrics"},
	} {
		within := cli.ReadWithin
		if name == "rest" {
			within = answerWithin
		}
		for _, path := range paths {
			t.Run(name+" "+path, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					l := newPipes()
					l.serve(t, servers[name](t, nil))
					// The server reads one byte past the request, to see whether the client is still there.
					if took := drip(l.dial(), "GET "+path+" HTTP/1.1\r\nHost: localhost\r\n\r\n", "xx"); took > within+2*time.Second {
						t.Errorf("closed after %s, want %s", took, within)
					}
				})
			})
		}
	}
}

// Over HTTP/2, an unfinished body holds its stream, and a client that drips frames holds a
// connection.
func TestConnectionsOfHTTP2EndToo(t *testing.T) {
	dir := t.TempDir()
	pair := issue(t, newCA(t, dir, "servers"), pki.Want{File: "server", CommonName: "server", Hosts: []string{"localhost"}})
	request := func(method, path string) []byte {
		var block bytes.Buffer
		fields := hpack.NewEncoder(&block)
		for _, f := range []hpack.HeaderField{
			{Name: ":method", Value: method},
			{Name: ":scheme", Value: "https"},
			{Name: ":authority", Value: "localhost"},
			{Name: ":path", Value: path},
		} {
			if err := fields.WriteField(f); err != nil {
				t.Fatal(err)
			}
		}
		return block.Bytes()
	}
	for name, s := range servers {
		for what, test := range map[string]struct {
			reads       bool
			begin, more func(*http2.Framer) error
			within      time.Duration
		}{
			"a header without an end": {true, func(f *http2.Framer) error {
				return f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: request("GET", "/healthz")})
			}, (*http2.Framer).WriteSettingsAck, cli.IdleConnection},
			"a body of a GET": {true, func(f *http2.Framer) error {
				return f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: request("GET", "/healthz"), EndHeaders: true})
			}, func(f *http2.Framer) error { return f.WriteData(1, false, []byte("x")) }, cli.IdleConnection},
			"a body of a POST": {true, func(f *http2.Framer) error {
				return f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: request("POST", "/v1/conflicts/abc:acknowledge"), EndHeaders: true})
			}, func(f *http2.Framer) error { return f.WriteData(1, false, []byte("x")) }, cli.BodyWithin + cli.IdleConnection},
			"an answer that is not read": {false, func(f *http2.Framer) error {
				return f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: request("GET", "/metrics"), EndHeaders: true, EndStream: true})
			}, func(f *http2.Framer) error { return f.WritePing(false, [8]byte{}) }, cli.ReadWithin},
		} {
			t.Run(name+": "+what, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					config, err := secure.Files{Cert: pair.Cert, Key: pair.Key}.Server(slog.New(slog.DiscardHandler), "h2")
					if err != nil {
						t.Fatal(err)
					}
					l := newPipes()
					l.serve(t, s(t, config))
					c := tls.Client(l.dial(), &tls.Config{NextProtos: []string{"h2"}, InsecureSkipVerify: true}) // the certificate is not valid at the time of the synctest clock
					if _, err := io.WriteString(c, http2.ClientPreface); err != nil {
						t.Fatal(err)
					}
					f := http2.NewFramer(c, c)
					if test.reads {
						go func() { _, _ = io.Copy(io.Discard, c) }()
					}
					begun := time.Now()
					err = f.WriteSettings()
					if err == nil {
						err = test.begin(f)
					}
					for err == nil {
						time.Sleep(time.Second)
						err = test.more(f)
					}
					if took := time.Since(begun); took > test.within+5*time.Second {
						t.Errorf("closed after %s, want %s: %v", took, test.within, err)
					}
				})
			})
		}
	}
}

// hold opens each connections from every address, and sends an unfinished request on them.
// It returns a function that closes them.
func hold(t *testing.T, to net.Addr, each int, from ...string) (hangUp func()) {
	t.Helper()
	var open []net.Conn
	hangUp = func() {
		for _, c := range open {
			_ = c.Close()
		}
	}
	t.Cleanup(hangUp)
	for _, address := range from {
		dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}
		for range each {
			c, err := dialer.DialContext(t.Context(), "tcp", to.String())
			if err == nil {
				_, err = io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\nX-Slow: ")
			}
			if err != nil {
				t.Fatal(err)
			}
			open = append(open, c)
		}
	}
	return hangUp
}

// askAt requests a page and returns its status.
func askAt(t *testing.T, at net.Addr, path string) (int, error) {
	t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+at.String()+path, http.NoBody)
	if err != nil {
		return 0, err
	}
	res, err := client.Do(req)
	if err != nil {
		return 0, err
	}
	return res.StatusCode, res.Body.Close()
}

var slow = []string{"127.0.0.2", "127.0.0.3", "127.0.0.4", "127.0.0.5"}

// Clients that only hold connections keep nobody out, on any listener.
func TestSlowClientsGiveWay(t *testing.T) {
	s, _ := startServer(t, addresses{grpc: "127.0.0.1:0", http: "127.0.0.1:0", metrics: "127.0.0.1:0"}, func(s *server) {
		s.http.ReadHeaderTimeout, s.probes.ReadHeaderTimeout = time.Hour, time.Hour
	})
	for at, path := range map[net.Addr]string{s.listeners.http.Addr(): "/v1/owners", s.listeners.metrics.Addr(): "/metrics"} {
		hold(t, at, cli.MaxIdle/len(slow)+1, slow...)
		if code, err := askAt(t, at, path); err != nil || code != http.StatusOK {
			t.Errorf("%s: got %d, %v, want 200", path, code, err)
		}
	}
}
