package tests

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// journalProblem returns the aggregator's problem about its journal; empty if there is none.
func (l *lab) journalProblem() string {
	l.t.Helper()
	var m ipwitnessv1.ListNodesResponse
	if err := l.program.Get(l.t.Context(), "/v1/nodes", &m); err != nil {
		l.t.Fatal(err)
	}
	i := slices.IndexFunc(m.GetProblems(), func(p string) bool { return strings.Contains(p, "journal") })
	if i < 0 {
		return ""
	}
	return m.GetProblems()[i]
}

// A filesystem that is really full: a tmpfs of 16 MiB.
func TestAFullFilesystemDelaysNoVerdict(t *testing.T) {
	t.Parallel()
	c := newAggregator(t) // in whose mount namespace the filesystem is mounted
	c.program.Kill()
	c.sh("mkdir -p /run/small", "mount -t tmpfs -o size=16m none /run/small")
	c.flags = []string{"--data-dir", "/run/small/data"}
	c.serve()
	n := c.addNode("node1")
	c.awaitNodes(n)
	n.pod("before", "10.244.0.1/32")
	wait.Until(t, "the first record", func() bool { return len(c.history("10.244.0.1").events) > 0 })

	if _, err := c.Run("dd if=/dev/zero of=/run/small/fill bs=64k"); err == nil {
		t.Fatal("got no error of dd: the filesystem is not full")
	}
	n.pod("many", "10.244.0.2/32")
	i := 0
	wait.Until(t, "the journal to notice", func() bool { // the log may have some space left
		i++
		var batch strings.Builder
		for k := range 250 {
			fmt.Fprintf(&batch, "addr add 10.244.%d.%d/32 dev eth0\n", i, k+1)
		}
		if err := os.WriteFile(n.Path("/run/batch"), []byte(batch.String()), 0o600); err != nil {
			t.Fatal(err)
		}
		n.sh("ip -n many -batch /run/batch")
		return c.journalProblem() != ""
	})
	n.plant() // suspected and confirmed while nothing is written
	n.pod("while", "10.250.0.1/32")
	c.awaitOwner("10.250.0.1", "while")
	if p := c.journalProblem(); p == "" {
		t.Error("got no problem about the journal while the filesystem is full")
	}

	c.sh("rm /run/small/fill")
	wait.Until(t, "the journal to go on", func() bool { return c.journalProblem() == "" })
	n.pod("after", "10.250.0.2/32")
	var all history
	wait.Until(t, "a record after the gap", func() bool {
		all = c.history("10.250.0.2")
		return len(all.events) > 0 && all.open == 0
	})
	if known := c.history("10.250.0.1"); len(known.events) == 0 {
		t.Errorf("got %+v, want what has changed in the gap", known)
	}
}
