package access

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// quotasKept limits the names whose log quotas are remembered. A forgotten name has a full quota.
const quotasKept = 20_000

// A LogQuota keeps one node or peer from filling the log. Use NewLogQuota.
type LogQuota struct {
	lines rate.Limit
	burst int
	mu    sync.Mutex
	names map[string]*rate.Limiter
}

// NewLogQuota returns a quota of lines per second, and of burst at once, for each name.
func NewLogQuota(lines rate.Limit, burst int) *LogQuota {
	return &LogQuota{lines: lines, burst: burst, names: make(map[string]*rate.Limiter)}
}

// Allows reports whether a line about some names, or about none, may be logged. The line counts
// against each name. Lines about several names use only half of each burst, so a node that attacks
// another one leaves its victim the rest.
func (q *LogQuota) Allows(now time.Time, names ...string) bool {
	needed := 1
	switch len(names) {
	case 0:
		names = []string{""}
	case 1:
	default:
		needed = max(1, q.burst/2)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, name := range names {
		if q.names[name] == nil {
			if len(q.names) >= quotasKept {
				clear(q.names)
			}
			q.names[name] = rate.NewLimiter(q.lines, q.burst)
		}
		if q.names[name].TokensAt(now) < float64(needed) {
			return false
		}
	}
	for _, name := range names {
		if left := q.names[name]; left != nil {
			left.AllowN(now, 1)
		}
	}
	return true
}
