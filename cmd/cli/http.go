package cli

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"syscall"
	"time"

	"google.golang.org/grpc/peer"
)

// StopGrace is the time that open calls have to end when the server stops.
const StopGrace = time.Second

// HTTPListen is the name of the flag for the address of the HTTP server.
const HTTPListen = "http-listen"

const (
	// HeaderWithin is how long an HTTP client may take to send the header of a request, including
	// the TLS handshake.
	HeaderWithin = 10 * time.Second
	// BodyWithin is how long it may take to send the body.
	BodyWithin = 10 * time.Second
	// ReadWithin is how long a client may take to read an answer that is not a stream, such as a
	// probe or a scrape. It is also how long an HTTP/2 connection may be stuck.
	ReadWithin = time.Minute
	// MaxStreams is the maximum number of concurrent calls of one connection.
	MaxStreams = 128
	// MaxHeader is the maximum size of a request header in bytes.
	MaxHeader = 64 << 10
	// IdleConnection is how long an HTTP connection may be idle.
	IdleConnection = 2 * time.Minute
)

// Listen listens on one address, which was set with flag.
func Listen(ctx context.Context, address, flag string) (net.Listener, error) {
	var c net.ListenConfig
	l, err := c.Listen(ctx, "tcp", address)
	var op *net.OpError
	switch {
	case err == nil:
		return l, nil
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("listen on %s: address already in use: is another ipwitness running? Choose another with --%s", address, flag)
	case errors.Is(err, syscall.EACCES):
		return nil, fmt.Errorf("listen on %s: permission denied: ports below 1024 need CAP_NET_BIND_SERVICE; choose another with --%s", address, flag)
	case errors.As(err, &op):
		err = op.Err // without the address
	}
	return nil, fmt.Errorf("listen on %s: %w: choose another with --%s", address, err, flag)
}

// OnlyHere reports whether an address can be reached only from this host.
func OnlyHere(address string) bool {
	host, _, err := net.SplitHostPort(address)
	return err == nil && (host == "localhost" || net.ParseIP(host).IsLoopback())
}

// WarnOpen logs what callers without credentials may do at a listener that is reachable from
// other hosts. name is the operators' name for the listener.
func WarnOpen(log *slog.Logger, l net.Listener, name, may string, encrypted bool, remedy string) {
	if l == nil || OnlyHere(l.Addr().String()) {
		return
	}
	log.Warn("no authentication is configured: anyone who can reach this listener may use it",
		"listener", name, "address", l.Addr(), "unauthenticated_access", may, "encrypted", encrypted, "remedy", remedy+": docs/security.md")
}

// NewHTTPServer returns an HTTP server, with TLS if tls is set. The handler may answer with
// streams, so the handler itself limits how long a client may take to read.
func NewHTTPServer(handler http.Handler, tls *tls.Config, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.ContentLength != 0 {
				// A request other than POST does not wait for its body: an HTTP/1 server would read it before it answers.
				deadline := time.Now()
				if r.Method == http.MethodPost || r.ProtoMajor > 1 {
					deadline = deadline.Add(BodyWithin)
				}
				// Setting the deadline fails only if the request did not come from a network.
				_ = http.NewResponseController(w).SetReadDeadline(deadline)
			}
			handler.ServeHTTP(w, r)
		}),
		ConnContext: func(ctx context.Context, c net.Conn) context.Context { // so that access finds the connection of a request
			return peer.NewContext(ctx, &peer.Peer{Addr: c.RemoteAddr()})
		},
		TLSConfig:         tls.Clone(), // the server modifies its own copy
		MaxHeaderBytes:    MaxHeader,
		ReadHeaderTimeout: HeaderWithin,
		IdleTimeout:       IdleConnection, // no WriteTimeout: a watch never ends
		HTTP2:             &http.HTTP2Config{WriteByteTimeout: ReadWithin, MaxConcurrentStreams: MaxStreams},
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
}

// NewProbeServer returns a server for health and metrics, which have no streams.
func NewProbeServer(handler http.Handler, tls *tls.Config, log *slog.Logger) *http.Server {
	s := NewHTTPServer(handler, tls, log)
	s.WriteTimeout = ReadWithin
	return s
}

// RunHTTP serves until ctx ends, and then returns nil. Requests in progress have StopGrace to end.
func RunHTTP(ctx context.Context, s *http.Server, l net.Listener) error {
	ended := make(chan struct{})
	running := context.AfterFunc(ctx, func() {
		defer close(ended)
		grace, cancel := context.WithTimeout(context.Background(), StopGrace)
		defer cancel()
		if s.Shutdown(grace) != nil {
			_ = s.Close() // disconnects the remaining clients
		}
	})
	var err error
	if s.TLSConfig != nil {
		err = s.ServeTLS(l, "", "")
	} else {
		err = s.Serve(l)
	}
	if !running() {
		<-ended
	}
	if !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve HTTP: %w", err)
	}
	return nil
}
