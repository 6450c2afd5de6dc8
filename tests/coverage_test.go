package tests

import (
	"errors"
	"os/exec"
	"testing"

	"github.com/ipwitness/ipwitness/tests/wait"
)

// exits runs ipwitness against the aggregator and returns its exit code.
func (l *lab) exits(args ...string) int {
	l.t.Helper()
	err := l.at.Command(binary, args...).Run()
	exit, ok := errors.AsType[*exec.ExitError](err)
	if err != nil && !ok {
		l.t.Fatal(err)
	}
	if ok {
		return exit.ExitCode()
	}
	return 0
}

func TestExitCodeWithoutAgents(t *testing.T) {
	t.Parallel()
	c := newAggregator(t)
	for _, args := range [][]string{
		{"conflicts", "--exit-code"}, {"conflicts", "10.244.0.7", "--exit-code"}, {"audit", "--exit-code"}, {"audit", "--fix-plan"},
	} {
		wantWords(t, refused(t, c.Host, 3, args...), "No agent is connected: nothing is being observed.")
	}
	for _, args := range [][]string{{"owners"}, {"conflicts"}, {"audit"}, {"nodes"}, {"explain", "10.244.0.7"}} {
		wantWords(t, c.says(args...), "Warning: No agent is connected: nothing is being observed.")
	}
	wantWords(t, c.says("explain", "10.244.0.7"), "Cannot tell: no owner of 10.244.0.7 is known")
}

func TestExitCodeWithADisconnectedNode(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2)
	wait.Until(t, "all nodes to be seen", func() bool { return c.exits("conflicts", "--exit-code") == 0 })
	wantWords(t, c.says("explain", "10.244.0.7"), "No conflict: nobody is known to hold 10.244.0.7")
	refused(t, c.Host, 1, "audit", "nodee2")

	c.nodes[1].pause()
	wait.Until(t, "node2 to be missed", func() bool { return c.exits("conflicts", "--exit-code") == 3 })
	const silent = "1 of 2 nodes is disconnected (node2): what happens there is not observed."
	wantWords(t, refused(t, c.Host, 3, "conflicts", "--exit-code"), silent)
	wantWords(t, refused(t, c.Host, 3, "audit", "node2", "--exit-code"), silent, "node node2 is disconnected")
	wantWords(t, refused(t, c.Host, 3, "audit", "--fix-plan"), "# NOT SEEN: "+silent)
	wantWords(t, c.says("explain", "10.244.0.7"), "Cannot tell: no owner of 10.244.0.7 is known", silent)

	// A finding counts even if coverage is incomplete.
	c.nodes[0].pod("a", "10.244.0.7/32")
	c.nodes[0].pod("b", "10.244.0.7/32")
	wait.Until(t, "the duplicate of node1", func() bool { return c.exits("conflicts", "--exit-code") == 2 })
}
