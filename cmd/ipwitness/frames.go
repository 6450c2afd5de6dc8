package main

import (
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc/credentials"
)

const (
	// callsOfConnection is how many calls one connection of gRPC may begin or reset in a
	// second in the long run, and callsOfConnectionAtOnce how many at once: each of them
	// costs time, also one that is refused, or reset before it is looked at (CVE-2023-44487).
	callsOfConnection       = 1000
	callsOfConnectionAtOnce = 4000
	// resetsOfConnection and resetsAtOnce are the same for those that are reset, which
	// clients seldom do.
	resetsOfConnection = 100
	resetsAtOnce       = 1000
)

// errTooManyCalls ends a connection.
var errTooManyCalls = errors.New("too many calls, or too many that were reset, on one connection")

// framed is the credentials of a server that looks at the HTTP/2 frames of each
// connection, which TLS hides from a listener.
type framed struct {
	credentials.TransportCredentials
	// hungUp is told of each connection that is ended for its frames.
	hungUp func(from net.Addr, err error)
}

// ServerHandshake is for credentials.TransportCredentials.
func (f framed) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := f.TransportCredentials.ServerHandshake(raw)
	if err != nil {
		return nil, nil, err
	}
	counted := newFrames(conn)
	counted.hungUp = f.hungUp
	return counted, info, nil
}

// Clone is for credentials.TransportCredentials.
func (f framed) Clone() credentials.TransportCredentials {
	return framed{f.TransportCredentials.Clone(), f.hungUp}
}

// frames is a connection of HTTP/2, seen from the server, that may begin and reset so
// many calls.
type frames struct {
	net.Conn
	calls, resets *rate.Limiter
	hungUp        func(from net.Addr, err error)
	// skip is how many bytes come before the next frame; header is what is read of that.
	skip   int
	header []byte
}

const (
	// prefaceSize is the size of what a client begins with (RFC 9113, section 3.4),
	// frameHeader that of a frame's header (section 4.1).
	prefaceSize, frameHeader = 24, 9
	// The types of frames that begin and reset a call (sections 6.2 and 6.4).
	frameHeaders, frameReset = 1, 3
)

func newFrames(conn net.Conn) *frames {
	return &frames{
		Conn: conn, skip: prefaceSize, header: make([]byte, 0, frameHeader),
		calls:  rate.NewLimiter(callsOfConnection, callsOfConnectionAtOnce),
		resets: rate.NewLimiter(resetsOfConnection, resetsAtOnce),
	}
}

// Read is for net.Conn. It ends a connection that has too many calls.
func (f *frames) Read(into []byte) (int, error) {
	n, err := f.Conn.Read(into)
	if err := f.look(into[:n], time.Now()); err != nil {
		_ = f.Close() // the peer sees that
		f.hungUp(f.RemoteAddr(), err)
		return 0, fmt.Errorf("read from %s: %w", f.RemoteAddr(), err)
	}
	return n, err
}

// look counts the frames in what was read.
func (f *frames) look(data []byte, now time.Time) error {
	for len(data) > 0 {
		if f.skip > 0 {
			n := min(f.skip, len(data))
			f.skip, data = f.skip-n, data[n:]
			continue
		}
		n := min(frameHeader-len(f.header), len(data))
		f.header, data = append(f.header, data[:n]...), data[n:]
		if len(f.header) < frameHeader {
			return nil
		}
		f.skip = int(f.header[0])<<16 | int(f.header[1])<<8 | int(f.header[2])
		typ := f.header[3]
		f.header = f.header[:0]
		if typ == frameHeaders && !f.calls.AllowN(now, 1) || typ == frameReset && !f.resets.AllowN(now, 1) {
			return errTooManyCalls
		}
	}
	return nil
}
