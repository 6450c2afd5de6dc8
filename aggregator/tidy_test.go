package aggregator

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// Garbage is collected less often from the first large change until none has come for a while.
func TestGarbageIsCollectedLessOftenDuringLargeChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var set []int
		tidy := newTidier(false)
		tidy.collect = func(percent int) { set = append(set, percent) }
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { tidy.run(ctx); close(done) }()
		want := func(when string, all ...int) {
			t.Helper()
			synctest.Wait()
			if !slices.Equal(set, all) {
				t.Errorf("%s: got settings %v, want %v", when, set, all)
			}
		}
		want("at the start", garbageAtRest)
		for range 3 {
			tidy.later()
			want("during large changes", garbageAtRest, garbageBusy)
			time.Sleep(tidyAfter - time.Nanosecond)
		}
		want("before it was quiet for long enough", garbageAtRest, garbageBusy)
		time.Sleep(time.Nanosecond)
		want("after it was quiet", garbageAtRest, garbageBusy, garbageAtRest)
		tidy.later()
		want("at the next large change", garbageAtRest, garbageBusy, garbageAtRest, garbageBusy)
		cancel()
		<-done
	})
}
