package tests

import (
	"cmp"
	"flag"
	"math/rand/v2"
	"path/filepath"
	"testing"

	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/wait"
)

var kills = flag.Int("kills", 10, "how often TestTheHistoryOutlivesSIGKILLUnderLoad kills the aggregator")

// The history has every change that a watch had delivered before SIGKILL, except the last ones, and
// nothing that did not happen. Conflicts keep their ids, episodes and times.
func TestTheHistoryOutlivesSIGKILLUnderLoad(t *testing.T) {
	slow(t) // and without other tests, because it floods
	c := newAggregator(t, "--data-dir", filepath.Join(t.TempDir(), "data"), "--settle", "100ms")
	w, known := newCrashWorld(), make(map[string]*ipwitnessv1.Conflict)
	probe := startDiskProbe(t)
	var lives []*life
	for n := range *kills {
		l := newLife(t, c, w)
		lives = append(lives, l)
		if n%5 == 4 { // before anything is recorded
			l.awaitSome(rand.IntN(100))
		} else {
			l.awaitRecording()
			checkPairs(t, l, w, known)
			l.repeatConflict(n % crashPairs)
			l.awaitSome(500 + rand.IntN(4000))
		}
		l.kill(probe)
		c.serve()
	}
	l := newLife(t, c, w)
	l.awaitRecording()
	checkPairs(t, l, w, known)
	history, gaps := l.history()
	l.end()
	for _, g := range gaps {
		if g.GetReason() != ipwitnessv1.Gap_NOT_RUNNING {
			t.Errorf("got gap %v, want gaps only because of kills", g)
		}
	}

	checked := checkHistory(history, w.all(), lives)
	for _, problem := range checked.problems {
		t.Error(problem)
	}
	t.Log(checked)
	if checked.delivered < 500*(*kills-*kills/5) {
		t.Errorf("got %d delivered changes before %d kills, want more", checked.delivered, *kills)
	}
	wantCrashCheckerToSee(t, history, w.all(), lives)
}

// wantCrashCheckerToSee checks that the checker detects errors in the history.
func wantCrashCheckerToSee(t *testing.T, history []*ipwitnessv1.Event, happened map[crashChange]int, lives []*life) {
	t.Helper()
	busiest := lives[0]
	for _, l := range lives {
		if len(l.told) > len(busiest.told) {
			busiest = l
		}
	}
	// A record in the middle of what was delivered is missing.
	missing := busiest.told[len(busiest.told)/2].change
	without := make([]*ipwitnessv1.Event, 0, len(history))
	for _, e := range history {
		if changeOf(e) != missing {
			without = append(without, e)
		}
	}
	if len(checkHistory(without, happened, lives).problems) == 0 {
		t.Errorf("the checker does not see that %+v is missing", missing)
	}
	// A change that did not happen was recorded.
	changes := make(map[crashChange]int, len(happened))
	for one, at := range happened {
		if one != missing {
			changes[one] = at
		}
	}
	if len(checkHistory(history, changes, lives).problems) == 0 {
		t.Errorf("the checker does not see that %+v is invented", missing)
	}
}

// checkPairs waits until the duplicates are confirmed, and compares them with what they were before
// and with the number of times that they began.
func checkPairs(t *testing.T, l *life, w *crashWorld, known map[string]*ipwitnessv1.Conflict) {
	t.Helper()
	var all []*ipwitnessv1.Conflict
	wait.Until(t, "all duplicates to be confirmed", func() bool {
		all = l.conflicts("10.2.0.0/16", ipwitnessv1.Conflict_CONFIRMED)
		return len(all) == crashPairs
	})
	for _, now := range all {
		before := known[now.GetAddress()]
		known[now.GetAddress()] = now
		if want := w.episode(now.GetAddress()); now.GetEpisode() != want {
			t.Errorf("got episode %d of %s, want %d", now.GetEpisode(), now.GetAddress(), want)
		}
		if before == nil {
			continue
		}
		if now.GetId() != before.GetId() {
			t.Errorf("got id %s of the conflict of %s, want %s", now.GetId(), now.GetAddress(), before.GetId())
		}
		if now.GetEpisode() == before.GetEpisode() && !sameTimes(now, before) {
			t.Errorf("got %v, want the times of %v", now, before)
		}
	}
}

func sameTimes(a, b *ipwitnessv1.Conflict) bool {
	return cmp.Or(a.GetDetectedAt().AsTime().Compare(b.GetDetectedAt().AsTime()), a.GetConfirmedAt().AsTime().Compare(b.GetConfirmedAt().AsTime())) == 0
}
