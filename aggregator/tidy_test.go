package aggregator

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// The garbage collector runs less often from the first large change until a while after the last.
func TestGarbageIsCollectedLessOftenDuringLargeChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		set := make(chan int, 8)
		tidy := newTidier(false)
		tidy.collect = func(percent int) { set <- percent }
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { tidy.run(ctx); close(done) }()
		want := func(when string, settings ...int) {
			t.Helper()
			synctest.Wait()
			var got []int
			for len(set) > 0 {
				got = append(got, <-set)
			}
			if !slices.Equal(got, settings) {
				t.Errorf("%s: got settings %v, want %v", when, got, settings)
			}
		}
		want("at the start", garbageAtRest)
		tidy.later()
		want("at a large change", garbageBusy)
		for range 3 {
			time.Sleep(tidyAfter - time.Nanosecond)
			tidy.later()
			want("before it was quiet for long enough")
		}
		time.Sleep(tidyAfter)
		want("after it was quiet", garbageAtRest)
		tidy.later()
		want("at the next large change", garbageBusy)
		cancel()
		<-done
	})
}
