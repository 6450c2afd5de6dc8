package main

import (
	"context"
	"errors"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/test/bufconn"

	"github.com/ipwitness/ipwitness/cmd/ipwitness/secure"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// callers is a listener of strangers with those that called it.
type callers struct {
	*strangers
	t        *testing.T
	calls    *bufconn.Listener
	accepted chan net.Conn
}

func newCallers(t *testing.T, most int) *callers {
	calls := bufconn.Listen(1)
	c := &callers{newStrangers(calls, most, strangerWithin), t, calls, make(chan net.Conn, 10)}
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

// call connects, and gives the server's end once it is accepted, nil if it is not.
func (c *callers) call() (server net.Conn) {
	c.t.Helper()
	go func() { _, _ = c.calls.Dial() }()
	return c.next()
}

// next is one that waited, nil if none is accepted.
func (c *callers) next() net.Conn {
	synctest.Wait()
	select {
	case conn := <-c.accepted:
		return conn
	default:
		return nil
	}
}

func hungUp(c net.Conn) bool {
	_ = c.SetReadDeadline(time.Unix(1, 0))
	_, err := c.Read(make([]byte, 1))
	var late net.Error
	return !errors.As(err, &late)
}

func TestStrangersAreFew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCallers(t, 2)
		known := c.call()
		addr := known.RemoteAddr().(strangerAddr)
		if !c.leave(addr.of) || c.leave(addr.of) {
			t.Error("who is known was no stranger, or is one still")
		}
		first := c.call()
		time.Sleep(strangerWithin / 2)
		second := c.call()
		if first == nil || second == nil {
			t.Fatal("there is room for two, and they are not let in")
		}
		if c.call() != nil {
			t.Error("a third one is let in at once")
		}
		time.Sleep(strangerWithin)
		third := c.next()
		switch {
		case third == nil:
			t.Error("the third one is not let in, though the first had its time")
		case !hungUp(first):
			t.Error("the first one is not hung up, which had its time")
		case hungUp(known), hungUp(third):
			t.Error("one is hung up that is known, or just came")
		}
		time.Sleep(10 * strangerWithin)
		if hungUp(third) {
			t.Error("one is hung up though nobody waits")
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

// The end of a listener ends who waits for room.
func TestStrangersEndWhileOneWaits(t *testing.T) {
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

// Who shows a token that is good is known; who shows a wrong one, or asks for what is
// open to anybody, is not.
func TestWhoMayCallIsNoStranger(t *testing.T) {
	g := newGuarded(t, false)
	strangers := func() int {
		g.strangers.mu.Lock()
		defer g.strangers.mu.Unlock()
		return len(g.strangers.those)
	}
	config, err := secure.Files{CA: g.ca.File}.Client()
	if err != nil {
		t.Fatal(err)
	}
	connect := func() *grpc.ClientConn {
		conn, err := grpc.NewClient(g.listeners.grpc.Addr().String(), grpc.WithTransportCredentials(credentials.NewTLS(config)))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	shows := func(token string) context.Context {
		return metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+token)
	}
	anybody := connect()
	if _, err := healthpb.NewHealthClient(anybody).Check(t.Context(), &healthpb.HealthCheckRequest{}); err != nil {
		t.Fatal(err)
	}
	if _, err := pb.NewWitnessServiceClient(anybody).ListNodes(shows("wrong-token-0123456789"), &pb.ListNodesRequest{}); err == nil {
		t.Fatal("a wrong token is good")
	}
	if got := strangers(); got != 1 {
		t.Errorf("got %d strangers, want the one that asked for its health and showed a wrong token", got)
	}
	if _, err := pb.NewWitnessServiceClient(connect()).ListNodes(shows(readerToken), &pb.ListNodesRequest{}); err != nil {
		t.Fatal(err)
	}
	watch, err := pb.NewWitnessServiceClient(connect()).WatchConflicts(shows(readerToken), &pb.WatchConflictsRequest{})
	if err == nil {
		_, err = watch.Recv()
	}
	if err != nil {
		t.Fatal(err)
	}
	if got := strangers(); got != 1 {
		t.Errorf("got %d strangers, want 1: readers are none", got)
	}
}
