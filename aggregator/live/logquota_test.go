package live

import (
	"fmt"
	"log/slog"
	"testing"
	"time"
)

// A node that other nodes attack keeps its own log quota.
func TestLogQuotaOfAnAttackedNode(t *testing.T) {
	q := newLogQuota(slog.New(slog.DiscardHandler))
	now := time.Now()
	lines := 0
	for range 10 * linesAtOnce {
		if q.allows(now, "attacked", "bad") {
			lines++
		}
	}
	if lines != linesAtOnce/2 {
		t.Errorf("got %d lines of two nodes, want %d", lines, linesAtOnce/2)
	}
	for i := range linesAtOnce / 4 {
		if !q.allows(now, "attacked") || !q.allows(now, "attacked", "other") {
			t.Fatalf("a line of another conflict is suppressed after %d", i)
		}
	}
	for n := range 10 { // a node in conflict with many others uses up only its own lines
		for range linesAtOnce {
			q.allows(now, fmt.Sprint("good", n), "worse")
		}
	}
	for n := range 10 {
		if !q.allows(now, fmt.Sprint("good", n)) {
			t.Errorf("node %d has no lines left", n)
		}
	}
}
