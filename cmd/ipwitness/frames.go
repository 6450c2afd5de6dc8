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
	// callsOfConnection is the sustained number of calls per second that one gRPC connection
	// may begin or reset, and callsOfConnectionAtOnce the burst. Every call costs time, even
	// if it is refused, or reset before the server looks at it (CVE-2023-44487).
	callsOfConnection       = 1000
	callsOfConnectionAtOnce = 4000
	// resetsOfConnection and resetsAtOnce are the corresponding limits for resets, which clients
	// rarely send.
	resetsOfConnection = 100
	resetsAtOnce       = 1000
)

// errTooManyCalls is the error that ends a connection over its limit.
var errTooManyCalls = errors.New("too many calls or too many reset calls on one connection")

// framed are transport credentials of a server that inspects the HTTP/2 frames of each
// connection. A listener cannot do so, because TLS hides the frames from it.
type framed struct {
	credentials.TransportCredentials
	// disconnected is called for each connection that is closed because of its frames.
	disconnected func(from net.Addr, err error)
}

// ServerHandshake implements credentials.TransportCredentials.
func (f framed) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := f.TransportCredentials.ServerHandshake(raw)
	if err != nil {
		return nil, nil, err
	}
	counted := newFrames(conn)
	counted.disconnected = f.disconnected
	return counted, info, nil
}

// Clone implements credentials.TransportCredentials.
func (f framed) Clone() credentials.TransportCredentials {
	return framed{f.TransportCredentials.Clone(), f.disconnected}
}

// frames is the server side of an HTTP/2 connection. It limits how many calls the client
// may begin and reset.
type frames struct {
	net.Conn
	calls, resets *rate.Limiter
	disconnected  func(from net.Addr, err error)
	// skip is the number of bytes before the next frame; header holds the bytes of that
	// frame's header that were read so far.
	skip   int
	header []byte
}

const (
	// prefaceSize is the size in bytes of the client connection preface (RFC 9113, section
	// 3.4), frameHeader that of a frame header (section 4.1).
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

// Read implements net.Conn. It closes a connection that has too many calls.
func (f *frames) Read(into []byte) (int, error) {
	n, err := f.Conn.Read(into)
	if err := f.look(into[:n], time.Now()); err != nil {
		_ = f.Close() // the peer sees the close
		f.disconnected(f.RemoteAddr(), err)
		return 0, fmt.Errorf("read from %s: %w", f.RemoteAddr(), err)
	}
	return n, err
}

// look counts the frames in data.
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
