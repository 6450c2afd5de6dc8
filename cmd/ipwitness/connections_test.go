package main

import (
	"errors"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/ipwitness/ipwitness/aggregator/access"
	"github.com/ipwitness/ipwitness/cmd/cli"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/secure"
)

func disconnected(c net.Conn) bool {
	_ = c.SetReadDeadline(time.Now().Add(time.Millisecond))
	_, err := c.Read(make([]byte, 1))
	late, ok := errors.AsType[net.Error](err)
	return !ok || !late.Timeout()
}

// Connections with calls stay open. Of the others, the oldest gives way to a new one.
func TestIdleConnectionsGiveWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pipes := newPipes()
		l := cli.Limit(pipes)
		accepted := make(chan net.Conn, 4*cli.MaxIdle)
		go func() {
			defer close(accepted)
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				accepted <- c
			}
		}()
		begin := func(c net.Conn) (end func()) { return c.RemoteAddr().(access.Connection).Begin() }
		first, second := pipes.dial(), pipes.dial()
		one, two := <-accepted, <-accepted
		end, endToo := begin(one), begin(two)
		oldest := pipes.dial()
		for range cli.MaxIdle - 1 {
			pipes.dial()
		}
		synctest.Wait()
		if len(accepted) != cli.MaxIdle {
			t.Fatalf("accepted %d connections, want %d", len(accepted), cli.MaxIdle)
		}
		pipes.dial()
		synctest.Wait()
		if len(accepted) != cli.MaxIdle {
			t.Error("one more is accepted at once")
		}
		time.Sleep(cli.IdleGrace)
		synctest.Wait()
		if len(accepted) != cli.MaxIdle+1 || !disconnected(oldest) {
			t.Error("the oldest one without a call did not give way")
		}
		if disconnected(first) || disconnected(second) {
			t.Error("a connection with a call is closed")
		}
		end()
		time.Sleep(2 * cli.IdleGrace)
		for range cli.MaxIdle + 1 {
			pipes.dial()
		}
		synctest.Wait()
		if !disconnected(first) || disconnected(second) {
			t.Error("want the connection closed whose call is over, and the other one open")
		}
		endToo()
		_ = two.Close()
		waits := pipes.dial()
		_ = l.Close() // also ends connections that wait
		for c := range accepted {
			_ = c.Close()
		}
		if !disconnected(waits) {
			t.Error("a connection waits after the end")
		}
		if n := l.Idle(); n != 0 {
			t.Errorf("%d connections are still counted", n)
		}
	})
}

// Only authorized calls keep a connection open, by gRPC and by REST.
func TestAuthorizedCallsKeepConnections(t *testing.T) {
	g := newGuarded(t, false)
	as := func(token string) pb.WitnessServiceClient {
		conn := g.connect(secure.Files{CA: g.ca.File, Token: g.file(token)})
		if _, err := healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{}); err != nil {
			t.Fatal(err)
		}
		return pb.NewWitnessServiceClient(conn)
	}
	idle := func(l net.Listener) int { return l.(*cli.Limited).Idle() }
	for token, want := range map[string]error{"wrong-token-0123456789": errors.New("refused"), readerToken: nil} {
		before := idle(g.listeners.grpc)
		watch, err := as(token).WatchConflicts(t.Context(), &pb.WatchConflictsRequest{})
		if err == nil {
			_, err = watch.Recv()
		}
		if (err == nil) != (want == nil) {
			t.Fatalf("gRPC with %s: got %v, want %v", token, err, want)
		}
		if got := idle(g.listeners.grpc) - before; (got == 0) != (want == nil) {
			t.Errorf("gRPC with %s: got %d more connections without a call", token, got)
		}
	}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+g.listeners.http.Addr().String()+"/v1/conflicts:watch", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+readerToken)
	config, err := secure.Files{CA: g.ca.File}.Client()
	if err != nil {
		t.Fatal(err)
	}
	response, err := (&http.Client{Transport: &http.Transport{TLSClientConfig: config}}).Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	if got := idle(g.listeners.http); response.StatusCode != http.StatusOK || got != 0 {
		t.Errorf("watch by REST: got %s, and %d connections without a call, want 0", response.Status, got)
	}
}
