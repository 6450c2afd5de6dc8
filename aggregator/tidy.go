package aggregator

import (
	"context"
	"runtime"
	"runtime/debug"
	"time"
)

// tidyAfter is how long after the last large change unused memory is released.
const tidyAfter = 5 * time.Second

// How much the heap may grow before it is collected, in percent of the live heap (GOGC). When idle,
// it is a quarter of the default: most of the heap is long-lived tables without pointers, so a
// collection is cheap and rare. While snapshots arrive, collections would be so frequent that they
// take a quarter of the processor time.
const (
	garbageAtRest = 25
	garbageBusy   = 100
)

// tidier releases the memory that snapshots took while they were being applied. The runtime would
// keep it for minutes, and after a restart of many agents it is more than the facts take.
type tidier struct {
	// untidy holds one token after a large change.
	untidy chan struct{}
	// collect sets how much the heap may grow before it is collected.
	collect func(percent int)
}

// newTidier returns a tidier, which sets GOGC if eager is set.
func newTidier(eager bool) *tidier {
	t := &tidier{make(chan struct{}, 1), func(int) {}}
	if eager {
		t.collect = func(percent int) { debug.SetGCPercent(percent) }
	}
	return t
}

// later schedules a release of memory for when no large change has come for a while.
func (t *tidier) later() {
	select {
	case t.untidy <- struct{}{}:
	default:
	}
}

// run releases memory until ctx ends.
func (t *tidier) run(ctx context.Context) {
	quiet := time.NewTimer(tidyAfter)
	quiet.Stop()
	t.collect(garbageAtRest)
	for busy := false; ; {
		select {
		case <-ctx.Done():
			return
		case <-t.untidy:
			if !busy { // each setting stops the world
				busy = true
				t.collect(garbageBusy)
			}
			quiet.Reset(tidyAfter)
		case <-quiet.C:
			busy = false
			t.collect(garbageAtRest)
			// Each collection halves stacks that are not used, and sync.Pools are only emptied
			// by the second one.
			runtime.GC()
			runtime.GC()
			debug.FreeOSMemory()
		}
	}
}
