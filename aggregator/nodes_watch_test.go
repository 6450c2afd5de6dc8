package aggregator

import (
	"context"
	"strings"
	"testing"
	"time"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// nodeWatch reads a watch of nodes.
type nodeWatch struct {
	*lab
	stream pb.WitnessService_WatchNodesClient
}

func (l *lab) watchNodes(q *pb.WatchNodesRequest) *nodeWatch {
	l.Helper()
	ctx, cancel := context.WithCancel(l.ctx)
	l.Cleanup(cancel)
	stream, err := l.client.WatchNodes(ctx, q)
	if err != nil {
		l.Fatal(err)
	}
	return &nodeWatch{l, stream}
}

// next returns the next message.
func (w *nodeWatch) next(what string) *pb.WatchNodesResponse {
	w.Helper()
	m, err := w.stream.Recv()
	if err != nil {
		w.Fatalf("waiting for %s: %v", what, err)
	}
	return m
}

// until returns the messages up to the first one of a type.
func (w *nodeWatch) until(typ pb.Watch_Type) (all []*pb.WatchNodesResponse) {
	w.Helper()
	for {
		m := w.next(typ.String())
		if all = append(all, m); m.GetType() == typ {
			return all
		}
	}
}

// await returns the first message that is like this.
func (w *nodeWatch) await(what string, is func(*pb.WatchNodesResponse) bool) *pb.WatchNodesResponse {
	w.Helper()
	for {
		if m := w.next(what); is(m) {
			return m
		}
	}
}

// A watch of nodes sends what lists of nodes have, at once and in the order of changes.
func TestNodesAreWatched(t *testing.T) {
	cfg := Config{DataDir: t.TempDir(), NodeTimeout: 5 * time.Second}
	l := newLab(t, cfg)
	url := l.serve()
	n1 := l.dial().send(snapshot(hello("n1", 1), podVeth(2, "a", addr))).sync()
	l.settled()
	w, only := l.watchNodes(&pb.WatchNodesRequest{}), l.watchNodes(&pb.WatchNodesRequest{Name: "n2"})
	got := w.until(pb.Watch_BOOKMARK)
	for !outlives(got[len(got)-1].GetResumeToken()) { // until the journal is written
		w = l.watchNodes(&pb.WatchNodesRequest{})
		got = w.until(pb.Watch_BOOKMARK)
	}
	if len(got) != 2 || got[0].GetType() != pb.Watch_ADDED || got[0].GetNode().GetName() != "n1" || got[0].GetNode().GetClaims() != 1 {
		t.Errorf("got %v, want n1 and a bookmark", got)
	}
	if mark := got[len(got)-1]; mark.GetCoverage().GetHeard() != 1 || mark.GetKubernetes().GetState() != pb.Kubernetes_OFF {
		t.Errorf("got %v, want the coverage, the state of Kubernetes, and a token", mark)
	}
	token := got[len(got)-1].GetResumeToken()
	if got := only.until(pb.Watch_BOOKMARK); len(got) != 1 {
		t.Errorf("got %v, want only a bookmark", got)
	}

	l.dial().send(snapshot(hello("n2", 2))).sync()
	live := w.await("n2 is live", func(m *pb.WatchNodesResponse) bool {
		return m.GetNode().GetName() == "n2" && m.GetNode().GetState() == pb.Node_LIVE
	})
	w.await("the new coverage", func(m *pb.WatchNodesResponse) bool { return m.GetCoverage().GetHeard() == 2 })
	only.await("n2", func(m *pb.WatchNodesResponse) bool { return m.GetNode().GetName() == "n2" })
	n1.cancel()
	w.await("n1 is disconnected", func(m *pb.WatchNodesResponse) bool {
		return m.GetType() == pb.Watch_UPDATED && m.GetNode().GetName() == "n1" && m.GetNode().GetState() == pb.Node_DISCONNECTED
	})
	if r, body := ask(t, "GET", url+"/v1/nodes/n2"); r.StatusCode != 200 || !strings.Contains(compact(t, body), `"name":"n2"`) || live.GetNode().GetBootId() == "" {
		t.Errorf("got %d %s, want n2", r.StatusCode, body)
	}
	for path, want := range map[string]string{"/v1/nodes/n3": "no node has the name", "/v1/findings/nope": "no finding has the id"} {
		if r, body := ask(t, "GET", url+path); r.StatusCode != 404 || !strings.Contains(message(t, body), want) {
			t.Errorf("%s: got %d %s, want 404", path, r.StatusCode, body)
		}
	}
	l.settled()
	l.stop()

	// After a restart, a node that is gone is REMOVED once that is certain.
	l = newLab(t, cfg)
	resumed := l.watchNodes(&pb.WatchNodesRequest{ResumeToken: token})
	if got := resumed.until(pb.Watch_BOOKMARK); len(got) != 1 || got[0].GetResumeToken() == "" {
		t.Errorf("got %v, want nothing but a bookmark before an agent has connected", got)
	}
	l.dial().send(snapshot(hello("n2", 2))).sync()
	for _, m := range resumed.until(pb.Watch_REMOVED) {
		if m.GetType() == pb.Watch_LOST || m.GetType() == pb.Watch_REMOVED && m.GetNode().GetName() != "n1" {
			t.Errorf("got %v, want that n1 is removed", m)
		}
	}
	if got := l.watchNodes(&pb.WatchNodesRequest{ResumeToken: "elsewhere-1"}).until(pb.Watch_BOOKMARK); got[0].GetType() != pb.Watch_LOST {
		t.Errorf("got %v, want LOST first", got)
	}
}
