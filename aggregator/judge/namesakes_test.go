package judge

import (
	"testing"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/facts"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

type pinged struct {
	stream
	pings int
}

func (p *pinged) Ping(verdict.Stamp) { p.pings++ }

// The stream of a node ends in two steps. Between them, a change of its namesake asks it no longer whether it is there.
func TestANamesakeThatIsLeavingIsNotAsked(t *testing.T) {
	w := newWorld(t, nil)
	var nodes []*facts.Node
	first := &pinged{}
	for i, p := range []facts.Peer{first, &pinged{}} {
		n, _, err := w.facts.Connect(p, &pb.Hello{Node: "n1", BootId: []string{"a", "b"}[i], Netns: "4026531840", Epoch: 1}, "")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.facts.Snapshot(p, n, &facts.Snapshot{Messages: func(func(*pb.ReportRequest) bool) {}}, func() {}); err != nil {
			t.Fatal(err)
		}
		nodes = append(nodes, n)
		time.Sleep(time.Millisecond) // so that the second one connects after the first one has been heard
	}
	w.facts.Update(func() { w.namesChanged(nodes[1]) })
	if first.pings == 0 {
		t.Error("the first node was not asked, want it asked")
	}
	asked := first.pings
	w.facts.Update(func() {
		nodes[0].Peer = nil
		w.namesChanged(nodes[1])
	})
	if first.pings != asked {
		t.Errorf("the node was asked %d times after it began to leave, want never", first.pings-asked)
	}
}
