package tests

import (
	"path/filepath"
	"testing"

	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/wait"
)

func TestAnAcknowledgementOutlivesSIGKILL(t *testing.T) {
	t.Parallel()
	const addr = "10.244.0.7"
	dir := filepath.Join(t.TempDir(), "data")
	c := newAggregator(t, "--data-dir", dir)
	n := c.addNode("node1")
	n.pod("a", addr+"/32")
	n.pod("b", addr+"/32")
	c.watch.await("the duplicate to be confirmed", inState(addr, ipwitnessv1.Conflict_CONFIRMED))
	wantWords(t, refused(t, c.Host, 1, "aggregator", "--data-dir", dir, "--grpc-listen", ":1", "--http-listen", ":2"),
		"another ipwitness process uses it", "--data-dir")
	before := c.only(addr)
	c.says("acknowledge", addr, "--reason", "NET-42", "--for", "1d")

	c.program.Kill()
	c.serve()
	c.watch.await("the duplicate to be confirmed again", inState(addr, ipwitnessv1.Conflict_CONFIRMED))
	if after := c.only(addr); after.GetId() != before.GetId() || after.GetAcknowledgement().GetReason() != "NET-42" {
		t.Errorf("got %v, want the acknowledged conflict %s", after, before.GetId())
	}
	wantWords(t, c.says("conflicts"), addr, "CONFIRMED (ack)")
	wait.Until(t, "the aggregator to be sure that no other agent comes back", func() bool { return c.exits("conflicts", "--exit-code") == 0 })
}
