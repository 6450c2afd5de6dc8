//go:build linux

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
	"google.golang.org/grpc/test/bufconn"

	"github.com/ipwitness/ipwitness/cmd/cli"
)

const (
	// keepaliveAfter is the time without traffic after which the server sends a keepalive ping,
	// and keepaliveTimeout is how long the answer may take.
	keepaliveAfter   = 30 * time.Second
	keepaliveTimeout = 10 * time.Second
	// keepaliveMin is the shortest interval at which a client may send keepalive pings. Agents ask as
	// often.
	keepaliveMin = 10 * time.Second
)

const (
	// connectionWithin is the timeout of a gRPC handshake.
	connectionWithin = 10 * time.Second
	// idleWithin is how long a connection may be without a call.
	idleWithin = 5 * time.Minute
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

// newServer returns a server, which uses TLS if tls is set. It takes ownership of the listeners and
// starts nothing.
func newServer(l listeners, agg answering, tls *tls.Config, gatherer prometheus.Gatherer, log *slog.Logger) (*server, error) {
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
		grpc.MaxConcurrentStreams(cli.MaxStreams),
		grpc.MaxHeaderListSize(cli.MaxHeader),
		grpc.StaticStreamWindowSize(connWindow), grpc.StaticConnWindowSize(connWindow),
		grpc.ReadBufferSize(readBuffer),
		grpc.HeaderTableSize(headerTable),
	)
	creds := insecure.NewCredentials()
	if tls != nil {
		creds = credentials.NewTLS(tls)
	}
	options = append(options, grpc.Creds(creds))
	l.grpc, l.http = cli.Limit(l.grpc), cli.Limit(l.http)
	s := &server{
		pipe:   pipe,
		conn:   conn,
		grpc:   grpc.NewServer(options...),
		inside: grpc.NewServer(),
		http:   cli.NewHTTPServer(rest, tls, log),
	}
	if l.metrics != nil {
		l.metrics = cli.Limit(l.metrics)
		s.probes = cli.NewProbeServer(probes, tls, log)
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
	g.Go(func() error { return cli.RunHTTP(ctx, s.http, s.listeners.http) })
	if s.probes != nil {
		g.Go(func() error { return cli.RunHTTP(ctx, s.probes, s.listeners.metrics) })
	}
	g.Go(func() error {
		<-ctx.Done()
		force := time.AfterFunc(cli.StopGrace, func() { s.grpc.Stop(); s.inside.Stop() })
		defer force.Stop()
		s.inside.GracefulStop()
		s.grpc.GracefulStop()
		return nil
	})
	return g.Wait()
}

// addresses are the addresses on which an aggregator listens. metrics may be empty; health and
// metrics are then served only at http.
type addresses struct{ grpc, http, metrics string }

// listeners are the open listeners of these addresses. metrics is nil if there is no such
// address.
type listeners struct{ grpc, http, metrics net.Listener }

// listen opens all listeners or none.
func listen(ctx context.Context, at addresses) (l listeners, err error) {
	for _, one := range []struct {
		address, flag string
		to            *net.Listener
	}{{at.grpc, grpcListen, &l.grpc}, {at.http, cli.HTTPListen, &l.http}, {at.metrics, metricsListen, &l.metrics}} {
		if one.address == "" {
			continue
		}
		if *one.to, err = cli.Listen(ctx, one.address, one.flag); err != nil {
			l.close()
			return listeners{}, err
		}
	}
	return l, nil
}

// logged returns the addresses as attributes for the log.
func (l listeners) logged() []any {
	out := []any{"http", l.http.Addr(), "grpc", l.grpc.Addr()}
	if l.metrics != nil {
		out = append(out, "metrics", l.metrics.Addr())
	}
	return out
}

// close closes all listeners.
func (l listeners) close() {
	for _, one := range []net.Listener{l.grpc, l.http, l.metrics} {
		if one != nil {
			_ = one.Close() // the server that used it may have closed it already
		}
	}
}
