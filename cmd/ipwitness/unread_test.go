package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/protobuf/proto"

	"github.com/ipwitness/ipwitness/aggregator"
	"github.com/ipwitness/ipwitness/cmd/cli"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// callsOfOne is how many calls of one caller may be in progress before it has read their responses.
const callsOfOne = 8

// lister is a gRPC connection whose client lists owners and never opens the HTTP/2 window:
// it reads at most 64 KiB of the answers.
type lister struct {
	*testing.T
	conn   net.Conn
	framer *http2.Framer
	write  sync.Mutex
	opened uint32
	// begun receives each call whose answer begins, and status each call that ended. closed is
	// closed with the connection.
	begun  chan uint32
	status chan callStatus
	closed chan struct{}
}

// callStatus is an HTTP/2 stream and its final grpc-status.
type callStatus struct {
	stream uint32
	code   string
}

func newLister(t *testing.T, conn net.Conn) *lister {
	t.Helper()
	l := &lister{T: t, conn: conn, framer: http2.NewFramer(conn, conn), begun: make(chan uint32, 100), status: make(chan callStatus, 100), closed: make(chan struct{})}
	l.framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	t.Cleanup(func() { _ = conn.Close() })
	go l.read()
	l.do(func() error {
		if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
			return err
		}
		return l.framer.WriteSettings()
	})
	return l
}

func (l *lister) do(write func() error) {
	l.Helper()
	l.write.Lock()
	defer l.write.Unlock()
	if err := write(); err != nil {
		l.Error(err)
	}
}

// read answers pings, as a live client does, and records how calls end.
func (l *lister) read() {
	defer close(l.closed)
	for {
		frame, err := l.framer.ReadFrame()
		if err != nil {
			return
		}
		switch f := frame.(type) {
		case *http2.PingFrame:
			if !f.IsAck() {
				l.do(func() error { return l.framer.WritePing(true, f.Data) })
			}
		case *http2.MetaHeadersFrame:
			if !f.StreamEnded() {
				l.begun <- f.StreamID
			} else {
				for _, field := range f.Fields {
					if field.Name == "grpc-status" {
						l.status <- callStatus{f.StreamID, field.Value}
					}
				}
			}
		}
	}
}

// list requests a page of owners and returns the stream of the call.
func (l *lister) list() (stream uint32) {
	l.Helper()
	var header bytes.Buffer
	fields := hpack.NewEncoder(&header)
	for _, f := range []hpack.HeaderField{
		{Name: ":method", Value: "POST"},
		{Name: ":scheme", Value: "http"},
		{Name: ":authority", Value: "localhost"},
		{Name: ":path", Value: pb.WitnessService_ListOwners_FullMethodName},
		{Name: "content-type", Value: "application/grpc"},
		{Name: "te", Value: "trailers"},
	} {
		if err := fields.WriteField(f); err != nil {
			l.Fatal(err)
		}
	}
	request, err := proto.Marshal(&pb.ListOwnersRequest{PageSize: 10_000})
	if err != nil {
		l.Fatal(err)
	}
	message := append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(request))), request...)
	stream = 1 + 2*l.opened
	l.opened++
	l.do(func() error {
		if err := l.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: header.Bytes(), EndHeaders: true}); err != nil {
			return err
		}
		return l.framer.WriteData(stream, true, message)
	})
	return stream
}

// awaitOwners waits until the server knows the given number of owners.
func awaitOwners(t *testing.T, s *server, want int) {
	t.Helper()
	watch, err := pb.NewWitnessServiceClient(s.conn).WatchOwners(t.Context(), &pb.WatchOwnersRequest{})
	for got := 0; err == nil && got < want; {
		var m *pb.WatchOwnersResponse
		if m, err = watch.Recv(); m.GetType() == pb.Watch_ADDED {
			got++
		}
	}
	if err != nil {
		t.Fatal(err)
	}
}

func dialFrom(t *testing.T, from string, to net.Addr) net.Conn {
	t.Helper()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	c, err := dialer.DialContext(t.Context(), "tcp", to.String())
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// Only a few unread responses of a caller are kept in memory, and they do not block other callers.
func TestUnreadAnswersAreLimited(t *testing.T) {
	s, _ := testServer(t)
	reportMany(t, s, 5000)
	awaitOwners(t, s, 5000)
	greedy := newLister(t, dialFrom(t, "127.0.0.2", s.listeners.grpc.Addr()))
	for range callsOfOne {
		greedy.list()
	}
	for range callsOfOne {
		<-greedy.begun
	}
	// One more call waits. It uses another connection, because its response needs the window.
	other := newLister(t, dialFrom(t, "127.0.0.2", s.listeners.grpc.Addr()))
	other.list()
	type answer struct {
		code int
		err  error
	}
	rest := make(chan answer, 1)
	go func() {
		code, err := askFrom(t, "127.0.0.2", s.listeners.http.Addr())
		rest <- answer{code, err}
	}()
	if got := <-other.status; got.code != "8" {
		t.Errorf("call %d of a caller that reads nothing: got status %s, want 8 (RESOURCE_EXHAUSTED)", callsOfOne+1, got.code)
	}
	if code, err := askFrom(t, "127.0.0.3", s.listeners.http.Addr()); err != nil || code != http.StatusOK {
		t.Errorf("another caller: got %d, %v, want 200", code, err)
	}
	if got := <-rest; got.err != nil || got.code != http.StatusTooManyRequests {
		t.Errorf("the same caller by REST: got %d, %v, want 429", got.code, got.err)
	}
	greedy.do(func() error { return greedy.framer.WriteRSTStream(1, http2.ErrCodeCancel) })
	if code, err := askFrom(t, "127.0.0.2", s.listeners.http.Addr()); err != nil || code != http.StatusOK {
		t.Errorf("after it cancelled one of the calls: got %d, %v, want 200", code, err)
	}
}

// askFrom requests one owner by REST.
func askFrom(t *testing.T, from string, at net.Addr) (int, error) {
	t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(context.Context, string, string) (net.Conn, error) {
		return dialFrom(t, from, at), nil
	}}}
	return ask1(t, &client)
}

func ask1(t *testing.T, client *http.Client) (int, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://localhost/v1/owners?"+url.Values{"page_size": {"1"}}.Encode(), http.NoBody)
	if err != nil {
		return 0, err
	}
	res, err := client.Do(req)
	if err != nil {
		return 0, err
	}
	return res.StatusCode, res.Body.Close()
}

// onPipes returns a server without a network, on the synctest clock.
func onPipes(t *testing.T) (s *server, grpc, http *pipes) {
	t.Helper()
	registry := cli.NewRegistry(cli.Build{})
	log := slog.New(slog.DiscardHandler)
	agg, err := aggregator.New(aggregator.Config{Kubeconfig: "off"}, log, registry)
	if err != nil {
		t.Fatal(err)
	}
	grpc, http = newPipes(), newPipes()
	if s, err = newServer(listeners{grpc: grpc, http: http}, agg, nil, registry, log); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	for _, run := range []func(context.Context) error{agg.Run, s.run} {
		running.Go(func() {
			if err := run(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	t.Cleanup(func() { cancel(); running.Wait() })
	return s, grpc, http
}

// No response stays in memory forever: the connection is closed.
func TestUnreadAnswersTimeOut(t *testing.T) {
	for name, test := range map[string]struct {
		within time.Duration
		hang   func(t *testing.T, grpc, rest *pipes) (closed <-chan struct{})
	}{
		"grpc": {cli.ReadWithin, func(t *testing.T, grpc, _ *pipes) <-chan struct{} {
			l := newLister(t, grpc.dial())
			for range callsOfOne {
				l.list()
			}
			return l.closed
		}},
		"rest": {answerWithin, func(t *testing.T, _, rest *pipes) <-chan struct{} {
			closed := make(chan struct{})
			var open sync.WaitGroup
			for i := range callsOfOne {
				c := rest.dial()
				t.Cleanup(func() { _ = c.Close() })
				if _, err := io.WriteString(c, "GET /v1/owners HTTP/1.1\r\nHost: localhost\r\nX-Call: "+strconv.Itoa(i)+"\r\n\r\n"); err != nil {
					t.Fatal(err)
				}
				open.Go(func() { // until the server closes the connection
					for err := error(nil); err == nil; time.Sleep(time.Second) {
						_, err = io.WriteString(c, "x")
					}
				})
			}
			go func() { open.Wait(); close(closed) }()
			return closed
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, grpc, rest := onPipes(t)
				reportMany(t, s, 1000)
				awaitOwners(t, s, 1000)
				client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(context.Context, string, string) (net.Conn, error) {
					return rest.dial(), nil
				}}}
				begun := time.Now()
				closed := test.hang(t, grpc, rest)
				synctest.Wait()
				if code, err := ask1(t, client); err != nil || code != http.StatusTooManyRequests {
					t.Errorf("while nothing is read: got %d, %v, want 429", code, err)
				}
				<-closed
				if took := time.Since(begun); took > test.within+2*time.Second {
					t.Errorf("closed after %s, want %s", took, test.within)
				}
				if code, err := ask1(t, client); err != nil || code != http.StatusOK {
					t.Errorf("after the connections were closed: got %d, %v, want 200", code, err)
				}
			})
		})
	}
}
