package main

import (
	"context"
	"net"

	"github.com/ipwitness/ipwitness/cmd/cli"
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
	}{{at.grpc, grpcListen, &l.grpc}, {at.http, cli.HTTPListen, &l.http}, {at.metrics, metricsListen, &l.metrics}} {
		if one.address == "" {
			continue
		}
		var err error
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
