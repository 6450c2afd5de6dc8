package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"syscall"
)

// addresses are the addresses on which an aggregator listens. metrics may be empty; health and
// metrics are then served only at http.
type addresses struct{ grpc, http, metrics string }

// listeners are the open listeners of these addresses. metrics is nil if there is no such
// address.
type listeners struct{ grpc, http, metrics net.Listener }

// listen opens all listeners or none.
func listen(ctx context.Context, at addresses) (listeners, error) {
	var l listeners
	for _, one := range []struct {
		address, flag string
		to            *net.Listener
	}{{at.grpc, grpcListen, &l.grpc}, {at.http, httpListen, &l.http}, {at.metrics, metricsListen, &l.metrics}} {
		if one.address == "" {
			continue
		}
		var err error
		if *one.to, err = listenOn(ctx, one.address, one.flag); err != nil {
			l.close()
			return listeners{}, err
		}
	}
	return l, nil
}

// listenOn listens on one address, which was set with flag.
func listenOn(ctx context.Context, address, flag string) (net.Listener, error) {
	var c net.ListenConfig
	l, err := c.Listen(ctx, "tcp", address)
	var op *net.OpError
	switch {
	case err == nil:
		return l, nil
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("listen on %s: address already in use: is another ipwitness running? Choose another with --%s", address, flag)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return nil, fmt.Errorf("listen on %s: this host does not have that address: choose another with --%s", address, flag)
	case errors.Is(err, syscall.EACCES):
		return nil, fmt.Errorf("listen on %s: permission denied: ports below 1024 need CAP_NET_BIND_SERVICE; choose another with --%s", address, flag)
	case errors.As(err, &op):
		return nil, fmt.Errorf("listen on %s: %w: choose another with --%s", address, op.Err, flag)
	default:
		return nil, fmt.Errorf("listen on %s: %w: choose another with --%s", address, err, flag)
	}
}

// onlyHere reports whether an address can be reached only from this host.
func onlyHere(address string) bool {
	host, _, err := net.SplitHostPort(address)
	return err == nil && (host == "localhost" || net.ParseIP(host).IsLoopback())
}

// warnOpen logs what callers without credentials may do at a listener that is reachable from
// other hosts. name is the operators' name for the listener.
func warnOpen(log *slog.Logger, l net.Listener, name, may string, encrypted bool, remedy string) {
	if l == nil || onlyHere(l.Addr().String()) {
		return
	}
	log.Warn("no authentication is configured: anyone who can reach this listener may use it",
		"listener", name, "address", l.Addr(), "unauthenticated_access", may, "encrypted", encrypted, "remedy", remedy+": docs/security.md")
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
