package aggregator

import (
	"context"
	"runtime"
	"runtime/debug"
	"time"
)

// tidyAfter is how long after the last large change unused memory is released.
const tidyAfter = 5 * time.Second

// tidier releases the memory that snapshots took while they were being applied. The runtime would
// keep it for minutes, and after a restart of many agents it is more than the facts take.
type tidier struct {
	// untidy holds one token after a large change.
	untidy chan struct{}
}

func newTidier() *tidier { return &tidier{make(chan struct{}, 1)} }

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
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.untidy:
			quiet.Reset(tidyAfter)
		case <-quiet.C:
			// Each collection halves stacks that are not used, and pools give up what they hold
			// with the second one.
			runtime.GC()
			runtime.GC()
			debug.FreeOSMemory()
		}
	}
}
