package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"
)

// addresses are what an aggregator listens on.
type addresses struct{ grpc, http string }

// listeners are the addresses, taken.
type listeners struct{ grpc, http net.Listener }

// listen takes both addresses or none.
func listen(ctx context.Context, at addresses) (listeners, error) {
	g, err := listenOn(ctx, at.grpc, grpcListen)
	if err != nil {
		return listeners{}, err
	}
	h, err := listenOn(ctx, at.http, httpListen)
	if err != nil {
		_ = g.Close() // nobody has connected
		return listeners{}, err
	}
	return listeners{grpc: g, http: h}, nil
}

// listenOn takes one address; flag is how to choose another.
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

// onlyHere tells whether an address can be reached from this host only.
func onlyHere(address string) bool {
	host, _, err := net.SplitHostPort(address)
	return err == nil && (host == "localhost" || net.ParseIP(host).IsLoopback())
}

// close gives up both addresses.
func (l listeners) close() {
	// A server that used one has closed it already.
	_ = l.grpc.Close()
	_ = l.http.Close()
}
