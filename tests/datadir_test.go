package tests

import (
	"os"
	"path/filepath"
	"testing"

	"google.golang.org/protobuf/proto"

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
	after := c.only(addr)
	if after.GetId() != before.GetId() || after.GetAcknowledgement().GetReason() != "NET-42" {
		t.Errorf("got %v, want the acknowledged conflict %s", after, before.GetId())
	}
	if before.GetEpisode() != after.GetEpisode() || !proto.Equal(before.GetDetectedAt(), after.GetDetectedAt()) {
		t.Errorf("got %v, want the episode and time of %v", after, before)
	}
	wantWords(t, c.says("conflicts"), addr, "CONFIRMED (ack)")
	wait.Until(t, "the aggregator to be sure that no other agent comes back", func() bool { return c.exits("conflicts", "--exit-code") == 0 })
}

// By default, an aggregator keeps its data in /var/lib/ipwitness, which the host of a test has for
// itself, and in memory if that cannot be written.
func TestTheDataDirectoryByDefault(t *testing.T) {
	t.Parallel()
	const addr = "10.244.0.7"
	c := newAggregator(t, "--data-dir", "auto")
	c.addNode("node1").pod("a", addr+"/32")
	wait.Until(t, "the owner in the history", func() bool { return len(c.history(addr).events) > 0 })
	if _, err := os.Stat(c.Path("/var/lib/ipwitness/journal")); err != nil {
		t.Errorf("got %v, want a journal", err)
	}
	c.program.Kill()
	c.serve()
	if got := c.history(addr); len(got.events) == 0 {
		t.Error("got no history after a restart")
	}

	h := newHost(t)
	if err := os.WriteFile(h.Path("/var/lib/ipwitness"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	c = newAggregatorOn(t, h, "--data-dir", "auto")
	c.addNode("node1").pod("a", addr+"/32")
	wait.Until(t, "the owner in the history in memory", func() bool { return len(c.history(addr).events) > 0 })
	wantWords(t, c.says("nodes"), "in memory only", "/var/lib/ipwitness", "--data-dir")
	wantWords(t, c.program.Log.String(), "in memory only")
}
