package aggregator

import (
	"testing"
	"testing/synctest"
	"time"
)

// Streams that say nothing take all turns: others wait, but not for long.
func TestStreamsWithoutAWordDelayASnapshotByOnePing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{})
		for range snapshotsAtOnce {
			l.dial()
		}
		synctest.Wait()
		begin := time.Now()
		l.dial().send(snapshot(hello("good", 1), podVeth(2, "a", addr))).sync()
		if waited := time.Since(begin); waited == 0 || waited > pingEvery {
			t.Errorf("the snapshot was taken after %s, want it to wait for a turn, at most %s", waited, pingEvery)
		}
		begin = time.Now()
		l.dial().send(snapshot(hello("next", 1), podVeth(2, "b", "10.244.1.99"))).sync()
		if waited := time.Since(begin); waited != 0 {
			t.Errorf("the next one was taken after %s, want at once: nobody holds a turn any more", waited)
		}
	})
}
