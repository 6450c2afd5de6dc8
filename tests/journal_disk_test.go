package tests

import (
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
	flood := newLife(t, c, newCrashWorld()) // more than the log has space for
	wait.Until(t, "the journal to notice", func() bool { return c.journalProblem() != "" })
	flood.end()
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

// A real device that returns errors: a loop device without space for what is written to it. The kernel
// drops what it could not write, and reports that once.
func TestADiskThatReturnsErrorsDelaysNoVerdict(t *testing.T) {
	slow(t)
	t.Parallel()
	c := newAggregator(t) // in whose mount namespace the filesystem is mounted
	c.program.Kill()
	c.sh("mkdir -p /run/thin /run/disk", "mount -t tmpfs -o size=96m none /run/thin", "truncate -s 64m /run/thin/image",
		"mkfs.ext4 -q -O ^has_journal -E lazy_itable_init=0,nodiscard -N 256 /run/thin/image",
		"mount -o loop,errors=continue /run/thin/image /run/disk")
	c.flags = []string{"--data-dir", "/run/disk/data"}
	c.serve()
	n := c.addNode("node1")
	c.awaitNodes(n)
	n.pod("before", "10.244.0.1/32")
	wait.Until(t, "the first record", func() bool { return len(c.history("10.244.0.1").events) > 0 })

	w := newCrashWorld()
	flood := newLife(t, c, w)
	flood.awaitRecording()
	if _, err := c.Run("dd if=/dev/zero of=/run/thin/fill bs=64k"); err == nil {
		t.Fatal("got no error of dd: the device has space")
	}
	wait.Until(t, "the journal to notice", func() bool { return c.journalProblem() != "" })
	n.plant() // suspected and confirmed while nothing is written
	n.pod("while", "10.250.0.1/32")
	c.awaitOwner("10.250.0.1", "while")
	wait.Until(t, "the problem of the journal again, as often as it is tried again", func() bool { return c.journalProblem() != "" })
	flood.awaitSome(12_000) // more than the journal can keep in memory

	c.sh("rm /run/thin/fill")
	wait.Until(t, "the journal to go on", func() bool { return c.journalProblem() == "" })
	wait.Until(t, "a gap that says how many changes are lost", func() bool {
		var m ipwitnessv1.ListEventsResponse
		if err := c.program.Get(t.Context(), "/v1/events?page_size=1", &m); err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(m.GetGaps(), func(g *ipwitnessv1.Gap) bool {
			return g.GetReason() == ipwitnessv1.Gap_NOT_WRITTEN && g.GetLost() > 0 && g.GetUntil() != nil
		})
	})
	n.pod("after", "10.250.0.2/32")
	recorded := func(addr string) bool {
		known := c.history(addr)
		return len(known.events) > 0 && known.open == 0
	}
	wait.Until(t, "a record after the errors", func() bool { return recorded("10.250.0.2") })

	// What was written is on the device, and not only in the memory of the kernel.
	before, _ := flood.history()
	flood.end()
	c.program.Kill()
	c.sh("umount /run/disk", "mount -o loop,errors=continue /run/thin/image /run/disk")
	c.serve()
	again := newLife(t, c, w) // its node is awaited
	wait.Until(t, "the end of the gap after the restart", func() bool { return recorded("10.250.0.2") })
	if p := c.journalProblem(); p != "" {
		t.Errorf("got problem %q after a restart", p)
	}
	after := make(map[crashChange]bool)
	recordedAgain, _ := again.history()
	for _, e := range recordedAgain {
		after[changeOf(e)] = true
	}
	for _, e := range before {
		if !after[changeOf(e)] {
			t.Errorf("the history lacks %v after a restart", e)
		}
	}
}
