package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/test/bufconn"
)

// stopGrace is the time that open calls have to end when the server stops.
const stopGrace = time.Second

const (
	// keepaliveAfter is the time without traffic after which the server sends a keepalive ping,
	// and keepaliveTimeout is how long the answer may take.
	keepaliveAfter   = 30 * time.Second
	keepaliveTimeout = 10 * time.Second
	// keepaliveMin is the shortest interval at which a client may send keepalive pings.
	keepaliveMin = 10 * time.Second
)

const (
	// connectionWithin is the timeout of a gRPC handshake.
	connectionWithin = 10 * time.Second
	// idleWithin is how long a connection may be without a call.
	idleWithin = 5 * time.Minute
	// maxStreams is the maximum number of concurrent calls of one connection.
	maxStreams = 128
	// maxHeader is the maximum size of a request header in bytes.
	maxHeader = 64 << 10
)

const (
	// headerWithin and bodyWithin are how long an HTTP client may take to send the header of a
	// request, including the TLS handshake, and its body.
	headerWithin = 10 * time.Second
	bodyWithin   = 10 * time.Second
	// readWithin is how long a client may take to read an answer that is not a stream, such as a
	// probe or a scrape. It is also how long an HTTP/2 connection may be stuck.
	readWithin = time.Minute
	// idleConnection is how long an HTTP connection may be idle.
	idleConnection = 2 * time.Minute
)

// connWindow is the number of bytes that a client may send before the aggregator has read them. A
// fixed window needs no frames to measure the connection with. readBuffer is the size of the buffer
// that each connection keeps: the rest of a longer frame is read without it. A client opens few
// calls, so no connection keeps a table of their headers (RFC 7541, section 4.2).
const connWindow, readBuffer, headerTable = 256 << 10, 512, 0

// pipeBuffer is the buffer size in bytes of the in-process connection.
const pipeBuffer = 1 << 20

// server serves one aggregator, or one fleet, by gRPC, by REST, and by an in-process pipe.
type server struct {
	listeners listeners
	pipe      *bufconn.Listener
	conn      *grpc.ClientConn // uses the pipe
	grpc      *grpc.Server
	inside    *grpc.Server // serves the pipe
	http      *http.Server
	probes    *http.Server // health and metrics on a separate listener; nil if there is none
}

// served is what a server serves: an aggregator, or a fleet.
type served interface {
	Handlers(prometheus.Gatherer) (rest, probes http.Handler, err error)
	Guarded() []grpc.ServerOption
	Register(reflection.GRPCServer)
}

// newServer returns a server, which uses TLS if tls is set. It takes ownership of the listeners and
// starts nothing.
func newServer(l listeners, agg served, tls *tls.Config, gatherer prometheus.Gatherer, log *slog.Logger) (*server, error) {
	pipe := bufconn.Listen(pipeBuffer)
	conn, err := grpc.NewClient("passthrough:///in-process",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return pipe.DialContext(ctx) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, fmt.Errorf("connect in process: %w", err)
	}
	rest, probes, err := agg.Handlers(gatherer)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("create the REST API: %w", err), conn.Close())
	}
	options := append(agg.Guarded(),
		// A node that crashes does not end its stream.
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: keepaliveAfter, Timeout: keepaliveTimeout, MaxConnectionIdle: idleWithin}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: keepaliveMin, PermitWithoutStream: true}),
		grpc.ConnectionTimeout(connectionWithin),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.MaxHeaderListSize(maxHeader),
		grpc.StaticStreamWindowSize(connWindow), grpc.StaticConnWindowSize(connWindow),
		grpc.ReadBufferSize(readBuffer),
		grpc.HeaderTableSize(headerTable),
	)
	creds := insecure.NewCredentials()
	if tls != nil {
		creds = credentials.NewTLS(tls)
	}
	options = append(options, grpc.Creds(creds))
	l.grpc, l.http = limit(l.grpc), limit(l.http)
	s := &server{
		pipe:   pipe,
		conn:   conn,
		grpc:   grpc.NewServer(options...),
		inside: grpc.NewServer(),
		http:   newHTTPServer(rest, tls, log),
	}
	if l.metrics != nil {
		l.metrics = limit(l.metrics)
		s.probes = newProbeServer(probes, tls, log)
	}
	s.listeners = l
	agg.Register(s.grpc)
	agg.Register(s.inside)
	return s, nil
}

// run serves until ctx ends, and then returns nil.
func (s *server) run(ctx context.Context) error {
	defer func() { _ = s.conn.Close() }() // no call is in progress any more
	g, ctx := errgroup.WithContext(ctx)
	serveGRPC := func(s *grpc.Server, l net.Listener) error {
		if err := s.Serve(l); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			return fmt.Errorf("serve gRPC: %w", err)
		}
		return nil
	}
	g.Go(func() error { return serveGRPC(s.grpc, s.listeners.grpc) })
	g.Go(func() error { return serveGRPC(s.inside, s.pipe) })
	g.Go(func() error { return serveHTTP(s.http, s.listeners.http) })
	if s.probes != nil {
		g.Go(func() error { return serveHTTP(s.probes, s.listeners.metrics) })
	}
	g.Go(func() error {
		<-ctx.Done()
		s.stop()
		return nil
	})
	return g.Wait()
}

// stop ends all calls: immediately if possible, and otherwise after stopGrace.
func (s *server) stop() {
	ctx, cancel := context.WithTimeout(context.Background(), stopGrace)
	defer cancel()
	force := context.AfterFunc(ctx, func() { s.grpc.Stop(); s.inside.Stop() })
	defer force()
	stopHTTP(ctx, s.http)
	s.inside.GracefulStop()
	s.grpc.GracefulStop()
	if s.probes != nil {
		stopHTTP(ctx, s.probes)
	}
}

// newHTTPServer returns an HTTP server, with TLS if tls is set. The handler may answer with
// streams, so the handler itself limits how long a client may take to read.
func newHTTPServer(handler http.Handler, tls *tls.Config, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler: bodyDeadline(handler),
		ConnContext: func(ctx context.Context, c net.Conn) context.Context { // so that access finds the connection of a request
			return peer.NewContext(ctx, &peer.Peer{Addr: c.RemoteAddr()})
		},
		TLSConfig:         tls.Clone(), // the server modifies its own copy
		MaxHeaderBytes:    maxHeader,
		ReadHeaderTimeout: headerWithin,
		IdleTimeout:       idleConnection, // no WriteTimeout: a watch never ends
		HTTP2:             &http.HTTP2Config{WriteByteTimeout: readWithin, MaxConcurrentStreams: maxStreams},
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
}

// newProbeServer returns a server for health and metrics, which have no streams.
func newProbeServer(handler http.Handler, tls *tls.Config, log *slog.Logger) *http.Server {
	s := newHTTPServer(handler, tls, log)
	s.WriteTimeout = readWithin
	return s
}

// bodyDeadline limits how long the body of a request may take. A request other than POST does
// not wait for its body; an HTTP/1 server would otherwise read the body before it answers.
func bodyDeadline(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength != 0 {
			deadline := time.Now()
			if r.Method == http.MethodPost || r.ProtoMajor > 1 {
				deadline = deadline.Add(bodyWithin)
			}
			// Setting the deadline fails only if the request did not come from a network.
			_ = http.NewResponseController(w).SetReadDeadline(deadline)
		}
		next.ServeHTTP(w, r)
	})
}

// serveHTTP serves until the server is shut down, and then returns nil.
func serveHTTP(s *http.Server, l net.Listener) error {
	serve := s.Serve
	if s.TLSConfig != nil {
		serve = func(l net.Listener) error { return s.ServeTLS(l, "", "") }
	}
	if err := serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve HTTP: %w", err)
	}
	return nil
}

// stopHTTP stops a server: immediately if its requests end, and otherwise when ctx ends.
func stopHTTP(ctx context.Context, s *http.Server) {
	if s.Shutdown(ctx) != nil {
		_ = s.Close() // disconnects the remaining clients
	}
}
