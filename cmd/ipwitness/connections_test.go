package main

import (
	"errors"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/test/bufconn"

	"github.com/ipwitness/ipwitness/cmd/ipwitness/secure"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// callers is a listener of unauthenticated connections, with the clients that connected to it.
type callers struct {
	*preauth
	t        *testing.T
	calls    *bufconn.Listener
	accepted chan net.Conn
}

func newCallers(t *testing.T, most int) *callers {
	calls := bufconn.Listen(1)
	c := &callers{newPreauth(calls, most, preauthGrace), t, calls, make(chan net.Conn, 10)}
	go func() {
		defer close(c.accepted)
		for {
			conn, err := c.Accept()
			if err != nil {
				return
			}
			c.accepted <- conn
		}
	}()
	return c
}

// call connects a client. It returns the server's end once the connection is accepted, or nil if it
// is not.
func (c *callers) call() (server net.Conn) {
	c.t.Helper()
	go func() { _, _ = c.calls.Dial() }()
	return c.next()
}

// next returns a connection that was waiting, or nil if none is accepted.
func (c *callers) next() net.Conn {
	synctest.Wait()
	select {
	case conn := <-c.accepted:
		return conn
	default:
		return nil
	}
}

func disconnected(c net.Conn) bool {
	_ = c.SetReadDeadline(time.Unix(1, 0))
	_, err := c.Read(make([]byte, 1))
	var late net.Error
	return !errors.As(err, &late)
}

func TestPreauthConnectionsAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCallers(t, 2)
		known := c.call()
		addr := known.RemoteAddr().(preauthAddr)
		if !c.leave(addr.of) || c.leave(addr.of) {
			t.Error("who is authenticated was so before, or is not now")
		}
		first := c.call()
		time.Sleep(preauthGrace / 2)
		second := c.call()
		if first == nil || second == nil {
			t.Fatal("there is room for two, and they are not let in")
		}
		if c.call() != nil {
			t.Error("a third one is let in at once")
		}
		time.Sleep(preauthGrace)
		third := c.next()
		switch {
		case third == nil:
			t.Error("the third one is not let in, though the first had its time")
		case !disconnected(first):
			t.Error("the first one, whose time is over, is not closed")
		case disconnected(known), disconnected(third):
			t.Error("an authenticated or a new connection is closed")
		}
		time.Sleep(10 * preauthGrace)
		if disconnected(third) {
			t.Error("a connection is closed although none waits")
		}
		_ = third.Close()
		fourth := c.call()
		if fourth == nil {
			t.Error("one is not let in though another one left")
		}
		_ = c.Close()
		if conn, ok := <-c.accepted; ok {
			t.Errorf("accepted %v after the end", conn)
		}
		if err := c.Close(); err != nil {
			t.Errorf("closed twice: %v", err)
		}
	})
}

// Closing a listener also ends connections that wait for a slot.
func TestPreauthListenerEndsWhileOneWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCallers(t, 1)
		c.call()
		if c.call() != nil {
			t.Error("a second one is let in")
		}
		_ = c.Close()
		if conn, ok := <-c.accepted; ok {
			t.Errorf("accepted %v after the end", conn)
		}
	})
}

// A caller with a valid token counts as authenticated. A caller with a wrong token, or one that
// requests a public page, does not.
func TestCallersAreAuthenticated(t *testing.T) {
	g := newGuarded(t, false)
	unauthenticated := func() int {
		g.preauth.mu.Lock()
		defer g.preauth.mu.Unlock()
		return len(g.preauth.open)
	}
	as := func(token string) *grpc.ClientConn {
		return g.connect(secure.Files{CA: g.ca.File, Token: g.file(token)})
	}
	withoutRights := as("wrong-token-0123456789")
	if _, err := healthpb.NewHealthClient(withoutRights).Check(t.Context(), &healthpb.HealthCheckRequest{}); err != nil {
		t.Fatal(err)
	}
	if _, err := pb.NewWitnessServiceClient(withoutRights).ListNodes(t.Context(), &pb.ListNodesRequest{}); err == nil {
		t.Fatal("a wrong token is good")
	}
	if got := unauthenticated(); got != 1 {
		t.Errorf("got %d unauthenticated connections, want the connection that called the health check with a wrong token", got)
	}
	if _, err := pb.NewWitnessServiceClient(as(readerToken)).ListNodes(t.Context(), &pb.ListNodesRequest{}); err != nil {
		t.Fatal(err)
	}
	watch, err := pb.NewWitnessServiceClient(as(readerToken)).WatchConflicts(t.Context(), &pb.WatchConflictsRequest{})
	if err == nil {
		_, err = watch.Recv()
	}
	if err != nil {
		t.Fatal(err)
	}
	if got := unauthenticated(); got != 1 {
		t.Errorf("got %d unauthenticated connections, want 1: readers are authenticated", got)
	}
}
