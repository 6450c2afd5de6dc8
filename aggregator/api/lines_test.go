package api

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

func TestWhichClientsWantEvents(t *testing.T) {
	for accept, want := range map[string]bool{
		"": false, "*/*": false, "application/json": false, "application/x-ndjson, text/event-stream": false,
		"text/event-stream": true, "Text/Event-Stream; charset=utf-8": true, "text/html, text/event-stream;q=0.5": true,
		"text/event-stream;q=0, */*": false, "text/event-stream, application/x-ndjson": true,
	} {
		r := httptest.NewRequest(http.MethodGet, "/", http.NoBody)
		r.Header.Set("Accept", accept)
		if got := wantsEvents(r); got != want {
			t.Errorf("%q: got %t, want %t", accept, got, want)
		}
	}
}

// A client learns that a connection is alive although nothing happens. Nothing is written after the end.
func TestSilenceIsInterruptedByComments(t *testing.T) {
	for _, events := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			out := httptest.NewRecorder()
			w := newLinesWriter(out, httptest.NewRequest(http.MethodGet, "/", http.NoBody))
			w.events = events
			time.Sleep(2 * heartbeatEvery) // nothing is sent before the first message
			if err := w.send(&pb.WatchNodesResponse{Type: pb.Watch_REMOVED, Node: &pb.Node{Name: "n1"}}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(heartbeatEvery - time.Second)
			if err := w.flush(); err != nil {
				t.Fatal(err)
			}
			time.Sleep(2*heartbeatEvery + time.Second)
			w.end(status.Error(codes.Unavailable, "over"))
			w.finish()
			time.Sleep(3 * heartbeatEvery)
			want := 0
			if events {
				want = 2
			}
			if got := strings.Count(out.Body.String(), heartbeat); got != want {
				t.Errorf("got %d comments in %q, want %d", got, out.Body, want)
			}
			if !strings.Contains(out.Body.String(), `"message":"over"`) {
				t.Errorf("got %q, want the error at the end", out.Body)
			}
		})
	}
}
