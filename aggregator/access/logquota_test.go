package access

import (
	"strconv"
	"testing"
	"time"

	"golang.org/x/time/rate"
)

// A node that attacks others neither fills the log nor uses up the lines of its victims.
func TestLogQuotaOfAttackedNodes(t *testing.T) {
	const atOnce = 100
	for _, attacked := range []int{1, 10} {
		q := NewLogQuota(1, atOnce)
		now := time.Now()
		victim := func(i int) string { return "attacked " + strconv.Itoa(i%attacked) }
		lines := 0
		for i := range 10 * atOnce * attacked {
			if q.Allows(now, victim(i), "bad") {
				lines++
			}
		}
		if want := atOnce/2 + 1; lines != want {
			t.Errorf("%d attacked nodes: got %d lines, want %d", attacked, lines, want)
		}
		for i := range attacked * atOnce / 3 {
			if !q.Allows(now, victim(i)) {
				t.Fatalf("%d attacked nodes: %s has no lines left", attacked, victim(i))
			}
		}
	}
	q, now := NewLogQuota(1, atOnce), time.Now()
	for range atOnce {
		if !q.Allows(now) {
			t.Error("a line about no node is suppressed")
		}
	}
	if q.Allows(now) || !q.Allows(now.Add(time.Second)) {
		t.Errorf("got another rate than one line a second after %d at once", atOnce)
	}
}

func TestLogQuotasTakeBoundedMemory(t *testing.T) {
	q := NewLogQuota(rate.Every(time.Minute), 1)
	for i := range 3 * quotasKept {
		q.Allows(time.Now(), strconv.Itoa(i))
	}
	if len(q.names) > quotasKept {
		t.Errorf("got %d names in memory, want %d at most", len(q.names), quotasKept)
	}
}
