package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/net/netutil"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/test/bufconn"

	"github.com/ipwitness/ipwitness/aggregator"
	"github.com/ipwitness/ipwitness/aggregator/access"
)

// stopGrace is how long open calls may take to end when the server stops.
const stopGrace = time.Second

const (
	// keepaliveAfter is how long a client may be silent before it is asked
	// whether it is there, keepaliveTimeout how long it may take to say so.
	keepaliveAfter   = 30 * time.Second
	keepaliveTimeout = 10 * time.Second
	// keepaliveMin is how often a client may ask us the same.
	keepaliveMin = 10 * time.Second
)

const (
	// connectionWithin is how long a client may take to begin to speak gRPC.
	connectionWithin = 10 * time.Second
	// idleWithin is how long a connection may have no call.
	idleWithin = 5 * time.Minute
	// maxStreams is how many calls of one connection are under way.
	maxStreams = 128
	// maxHeader is how many bytes the header of a request has at most.
	maxHeader = 64 << 10
)

// streamWindow is how many bytes of one call in process may be under way, and not read.
const streamWindow = 64 << 10

// pipeBuffer is how many bytes may be under way in process.
const pipeBuffer = 1 << 20

// server offers one aggregator by gRPC and by REST, and by a pipe in process.
type server struct {
	listeners listeners
	preauth   *preauth // at the listener of gRPC
	pipe      *bufconn.Listener
	conn      *grpc.ClientConn // through the pipe
	grpc      *grpc.Server
	inside    *grpc.Server // at the pipe
	http      *http.Server
}

// newServer makes a server, which speaks TLS where there is any. It takes over the
// listeners, and starts nothing.
func newServer(l listeners, agg *aggregator.Aggregator, tls *tls.Config, gatherer prometheus.Gatherer, log *slog.Logger) (*server, error) {
	pipe := bufconn.Listen(pipeBuffer)
	conn, err := grpc.NewClient("passthrough:///in-process",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return pipe.DialContext(ctx) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		// Windows that grow would hold megabytes for each watcher of REST that does not read.
		grpc.WithStaticStreamWindowSize(streamWindow), grpc.WithStaticConnWindowSize(pipeBuffer),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(math.MaxInt32))) // a page has up to 10000 owners
	if err != nil {
		return nil, fmt.Errorf("connect in process: %w", err)
	}
	handler, err := agg.Handler(conn, gatherer)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("make the REST API: %w", err), conn.Close())
	}
	options := append(agg.Guarded(),
		// A node that died sends no end of its stream.
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: keepaliveAfter, Timeout: keepaliveTimeout, MaxConnectionIdle: idleWithin}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: keepaliveMin, PermitWithoutStream: true}),
		grpc.ConnectionTimeout(connectionWithin),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.MaxHeaderListSize(maxHeader),
	)
	options = append(options, authenticated()...)
	creds := insecure.NewCredentials()
	if tls != nil {
		creds = credentials.NewTLS(tls)
	}
	options = append(options, grpc.Creds(framed{creds}))
	s := &server{
		listeners: l,
		preauth:   newPreauth(l.grpc, maxPreauth, preauthGrace),
		pipe:      pipe,
		conn:      conn,
		grpc:      grpc.NewServer(options...),
		inside:    grpc.NewServer(access.Inside()...),
		http:      newHTTPServer(handler, tls, log),
	}
	agg.Register(s.grpc)
	agg.Register(s.inside)
	return s, nil
}

// run serves until ctx ends, and gives nil then.
func (s *server) run(ctx context.Context) error {
	defer func() { _ = s.conn.Close() }() // nothing is under way any more
	g, ctx := errgroup.WithContext(ctx)
	serveGRPC := func(s *grpc.Server, l net.Listener) error {
		if err := s.Serve(l); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			return fmt.Errorf("serve gRPC: %w", err)
		}
		return nil
	}
	g.Go(func() error { return serveGRPC(s.grpc, netutil.LimitListener(s.preauth, maxAgents)) })
	g.Go(func() error { return serveGRPC(s.inside, s.pipe) })
	g.Go(func() error { return serveHTTP(s.http, s.listeners.http) })
	g.Go(func() error {
		<-ctx.Done()
		s.stop()
		return nil
	})
	return g.Wait()
}

// stop ends all calls: at once, if they can, or else after stopGrace.
func (s *server) stop() {
	ctx, cancel := context.WithTimeout(context.Background(), stopGrace)
	defer cancel()
	force := context.AfterFunc(ctx, func() { s.grpc.Stop(); s.inside.Stop() })
	defer force()
	stopHTTP(ctx, s.http) // REST first: it asks gRPC
	s.inside.GracefulStop()
	s.grpc.GracefulStop()
}

// newHTTPServer makes a server of HTTP, over TLS where there is any.
func newHTTPServer(handler http.Handler, tls *tls.Config, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler:           handler,
		TLSConfig:         tls,
		MaxHeaderBytes:    maxHeader,
		ReadHeaderTimeout: 10 * time.Second,
		HTTP2:             &http.HTTP2Config{MaxConcurrentStreams: maxStreams},
		IdleTimeout:       2 * time.Minute, // and no WriteTimeout: a watch has no end
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
}

// serveHTTP serves until the server is shut down, and gives nil then.
func serveHTTP(s *http.Server, l net.Listener) error {
	l = newCrowd(l)
	serve := s.Serve
	if s.TLSConfig != nil {
		serve = func(l net.Listener) error { return s.ServeTLS(l, "", "") }
	}
	if err := serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve HTTP: %w", err)
	}
	return nil
}

// stopHTTP ends a server: at once, if its requests can end, or else with ctx.
func stopHTTP(ctx context.Context, s *http.Server) {
	if s.Shutdown(ctx) != nil {
		_ = s.Close() // what is left is cut off
	}
}
