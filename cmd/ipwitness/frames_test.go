package main

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/ipwitness/ipwitness/cmd/ipwitness/secure"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// rawHTTP2 is a client that can send any HTTP/2 frames.
type rawHTTP2 struct {
	*http2.Framer
	conn    net.Conn
	headers []byte
	stream  uint32
}

// rawHTTP2 connects to the gRPC listener of the server. Each call of the client invokes
// method with token.
func (g *guarded) rawHTTP2(method, token string) *rawHTTP2 {
	g.t.Helper()
	config, err := secure.Files{CA: g.ca.File}.Client()
	if err != nil {
		g.t.Fatal(err)
	}
	config.NextProtos = []string{"h2"}
	conn, err := (&tls.Dialer{Config: config}).DialContext(g.t.Context(), "tcp", g.listeners.grpc.Addr().String())
	if err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(func() { _ = conn.Close() })
	if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
		g.t.Fatal(err)
	}
	var headers bytes.Buffer
	encoder := hpack.NewEncoder(&headers)
	for _, field := range [][2]string{
		{":method", "POST"},
		{":scheme", "https"},
		{":path", method},
		{":authority", "localhost"},
		{"content-type", "application/grpc"},
		{"te", "trailers"},
		{"authorization", "Bearer " + token},
	} {
		// Fields are never indexed, so that each call has the same bytes.
		if err := encoder.WriteField(hpack.HeaderField{Name: field[0], Value: field[1], Sensitive: true}); err != nil {
			g.t.Fatal(err)
		}
	}
	c := &rawHTTP2{http2.NewFramer(conn, conn), conn, headers.Bytes(), 1}
	if err := c.WriteSettings(); err != nil {
		g.t.Fatal(err)
	}
	go func() { _, _ = io.Copy(io.Discard, conn) }()
	return c
}

// call begins a call, and resets it if reset is set.
func (c *rawHTTP2) call(reset bool) error {
	id := c.stream
	c.stream += 2
	err := c.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: c.headers, EndHeaders: true})
	if err == nil && reset {
		err = c.WriteRSTStream(id, http2.ErrCodeCancel)
	}
	return err
}

// A client that begins and resets calls, or whose calls are all refused, is disconnected.
// The server keeps answering others meanwhile.
func TestConnectionsWithTooManyCallsAreClosed(t *testing.T) {
	const list = "/ipwitness.v1.WitnessService/ListNodes"
	for name, c := range map[string]struct {
		token string
		reset bool
		most  int
	}{
		"reset at once":                  {readerToken, true, 4 * resetsAtOnce},
		"refused":                        {"wrong-token-0123456789", false, 4 * callsOfConnectionAtOnce},
		"more than may be under way":     {readerToken, false, 4 * callsOfConnectionAtOnce},
		"reset, and refused before that": {"wrong-token-0123456789", true, 4 * resetsAtOnce},
	} {
		t.Run(name, func(t *testing.T) {
			g := newGuarded(t, false)
			raw := g.rawHTTP2(list, c.token)
			// The allowance refills while this machine is slow. The loop therefore stops as soon as
			// the connection is closed, and fails only after many times the allowance.
			var err error
			calls := 0
			for ; err == nil && calls < 50*c.most; calls++ {
				err = raw.call(c.reset)
			}
			if err == nil {
				t.Errorf("%d calls on one connection, which is still open", calls)
			}
			other := pb.NewWitnessServiceClient(g.connect(secure.Files{CA: g.ca.File, Token: g.file(readerToken)}))
			for err = errTooManyCalls; err != nil; { // until the running calls from this address have ended
				if _, err = other.ListNodes(t.Context(), &pb.ListNodesRequest{}); status.Code(err) != codes.ResourceExhausted && err != nil {
					t.Fatalf("another one: %v", err)
				}
			}
		})
	}
}

func TestFramesAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		frame := func(typ byte, payload int) []byte {
			return append([]byte{byte(payload >> 16), byte(payload >> 8), byte(payload), typ, 0, 0, 0, 0, 1}, make([]byte, payload)...)
		}
		preface := make([]byte, prefaceSize)
		feed := func(f *frames, frame []byte, most, piece int) (n int) {
			for ; n < most; n++ {
				for at := 0; at < len(frame); at += piece {
					if err := f.look(frame[at:min(at+piece, len(frame))], time.Now()); err != nil {
						if !errors.Is(err, errTooManyCalls) {
							t.Error(err)
						}
						return n
					}
				}
			}
			return n
		}
		const most = 10 * callsOfConnectionAtOnce
		for _, c := range []struct {
			typ     byte
			payload int
			want    int
		}{
			{frameHeaders, 0, callsOfConnectionAtOnce},
			{frameHeaders, 70_000, callsOfConnectionAtOnce},
			{frameReset, 4, resetsAtOnce},
			{0, 100, most}, // data
			{6, 8, most},   // ping
		} {
			for _, piece := range []int{1 << 20, 5} {
				if c.payload > 100 && piece == 5 {
					continue
				}
				f := newFrames(nil)
				if err := f.look(preface, time.Now()); err != nil {
					t.Fatal(err)
				}
				if got := feed(f, frame(c.typ, c.payload), most, piece); got != c.want {
					t.Errorf("frames of type %d with %d bytes in pieces of %d: %d were let through, want %d", c.typ, c.payload, piece, got, c.want)
				}
			}
		}
		f := newFrames(nil)
		_ = f.look(preface, time.Now())
		feed(f, frame(frameReset, 4), most, 100)
		time.Sleep(10 * time.Second)
		if got := feed(f, frame(frameReset, 4), most, 100); got < 10*resetsOfConnection || got > 10*resetsOfConnection+1 {
			t.Errorf("10 s later %d are let through, want %d", got, 10*resetsOfConnection)
		}
	})
}

// One caller may have a limited number of gRPC connections, and another caller can still
// connect.
func TestConnectionsOfACallerAreLimited(t *testing.T) {
	g := newGuarded(t, false)
	as := func(token string) error {
		conn := g.connect(secure.Files{CA: g.ca.File, Token: g.file(token)})
		_, err := pb.NewWitnessServiceClient(conn).ListNodes(t.Context(), &pb.ListNodesRequest{})
		return err
	}
	first := g.connect(secure.Files{CA: g.ca.File, Token: g.file(readerToken)})
	list := func() error {
		_, err := pb.NewWitnessServiceClient(first).ListNodes(t.Context(), &pb.ListNodesRequest{})
		return err
	}
	if err := list(); err != nil {
		t.Fatal(err)
	}
	for n := range connectionsOfCaller - 1 {
		if err := as(readerToken); err != nil {
			t.Fatalf("connection %d: %v", n+2, err)
		}
	}
	wantRefused(t, as(readerToken), codes.ResourceExhausted, "too many connections", "bob")
	if err := list(); err != nil {
		t.Errorf("on a connection that was there before: %v", err)
	}
	if err := as(operatorToken); err != nil {
		t.Errorf("another caller: %v", err)
	}
	if err := say(g.agent(secure.Files{CA: g.ca.File, Token: g.file(agentToken)}), hello("node1", "boot1", 1)); err != nil {
		t.Errorf("an agent: %v", err)
	}
	if _, err := healthpb.NewHealthClient(first).Check(t.Context(), &healthpb.HealthCheckRequest{}); err != nil {
		t.Error(err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	for g.preauth.of("bob") >= connectionsOfCaller { // until the server notices the close
		if t.Context().Err() != nil {
			t.Fatal("a connection that is closed is counted for ever")
		}
	}
	if err := as(readerToken); err != nil {
		t.Errorf("after one was closed: %v", err)
	}
}

// of returns how many connections a caller has.
func (s *preauth) of(caller string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.callers[caller]
}
