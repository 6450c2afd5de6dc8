package aggregator

import (
	"context"
	"runtime"
	"runtime/debug"
	"time"
)

// tidyAfter is how long no large change came when what they left behind is given back.
const tidyAfter = 5 * time.Second

// tidier gives the memory back that snapshots took while they were under way: the runtime would keep
// it for minutes, and a restart of many agents leaves more of it than what is known of them.
type tidier struct {
	// untidy holds one token after a large change.
	untidy chan struct{}
}

func newTidier() *tidier { return &tidier{make(chan struct{}, 1)} }

// later has memory given back when no large change has come for a while.
func (t *tidier) later() {
	select {
	case t.untidy <- struct{}{}:
	default:
	}
}

// run gives memory back until ctx ends.
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
