package aggregator

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ipwitness/ipwitness/aggregator/facts"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// A stream without messages, one with only a hello, and one whose snapshot never ends are all ended
// after a time limit, and leave nothing behind.
func TestStreamsWithoutASnapshotAreEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const each = 30
		l := newLab(t, Config{})
		good := l.dial().send(snapshot(hello("good", 1), podVeth(2, "a", addr))).sync()
		var idle, slow []*agent
		for n := range each {
			idle = append(idle, l.dial())
			idle = append(idle, l.dial().send(&pb.ReportRequest{Hello: hello(fmt.Sprintf("idle-%d", n), 1), SnapshotBegin: true}).sync())
			begun := snapshot(hello(fmt.Sprintf("slow-%d", n), 1), podVeth(2, "b", addr))
			begun.SnapshotEnd = false
			slow = append(slow, l.dial().send(begun).sync())
		}
		for step := range 11 { // for less than the minute that an agent is given
			time.Sleep(5 * time.Second)
			for _, a := range slow {
				a.send(podVeth(uint32(3+step), "c", addr)).sync()
			}
			good.send(podVeth(uint32(3+step), fmt.Sprintf("p%d", step), fmt.Sprintf("10.244.1.%d", step))).sync()
		}
		if got := l.owners(&pb.ListOwnersRequest{}); len(got) != 12 {
			t.Errorf("got %d owners, want the 12 of the valid node", len(got))
		}
		time.Sleep(time.Minute)
		for _, a := range append(idle, slow...) {
			if err := a.ended(); status.Code(err) != codes.DeadlineExceeded {
				t.Errorf("got %v, want DEADLINE_EXCEEDED", err)
			}
		}
		good.send(gone(assigned(2, addr))).sync()
		if got := l.owners(&pb.ListOwnersRequest{}); len(got) != 11 {
			t.Errorf("got %d owners, want the 11 of the valid node", len(got))
		}
		if got := l.conflicts(); len(got) != 0 {
			t.Errorf("got %v, want no conflict", got)
		}

		time.Sleep(DefaultNodeTimeout + facts.ForgetNodeAfter + time.Minute)
		nodes, err := l.client.ListNodes(l.ctx, &pb.ListNodesRequest{})
		if err != nil || len(nodes.GetNodes()) != 1 {
			t.Errorf("got %d nodes and %v, want only the valid node", len(nodes.GetNodes()), err)
		}
		// A duplicate would have been seen.
		good.send(podVeth(20, "duplicate", "10.244.1.0")).sync()
		l.conflict(pb.Conflict_SUSPECTED)
	})
}
