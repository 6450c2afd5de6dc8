package aggregator

import (
	"sync"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/coverage"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

const (
	// unfitAfter is how long a replica has to lack its agents before another one should lead: agents that
	// reconnect are not gone.
	unfitAfter = 5 * time.Second
	// unfitFor is how long it leaves the lead to others then. If none takes it, they lack the agents, too.
	unfitFor = time.Minute
)

// fitness decides whether a replica should lead: a leader that is cut off from the agents would tell nobody what
// the other replicas see.
type fitness struct {
	coverage *coverage.Coverage
	clock    func() verdict.Stamp

	mu sync.Mutex
	// lacking is since when most agents have been disconnected; 0 if they are not.
	lacking verdict.Stamp
}

// fit reports whether the replica should lead.
func (f *fitness) fit() bool {
	c := f.coverage.Current()
	f.mu.Lock()
	defer f.mu.Unlock()
	if c.GetExpected() == 0 || 2*c.GetHeard() >= c.GetExpected() {
		f.lacking = 0
		return true
	}
	now := f.clock()
	if f.lacking == 0 {
		f.lacking = now
	}
	lacks := now.Sub(f.lacking)
	return lacks < unfitAfter || lacks >= unfitAfter+unfitFor
}
