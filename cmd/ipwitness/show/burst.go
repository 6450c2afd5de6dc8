package show

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

const (
	// burstLines is how many events of one second have a line each; the rest are counted.
	burstLines = 20
	// burstWindow is that second.
	burstWindow = time.Second
)

// burst decides which events have a line of their own. After a second that had
// too many, all are counted until a second comes that has few.
type burst struct {
	since time.Time
	seen  int            // events in this window
	rest  map[string]int // events in this window that had no line, by kind
	busy  bool           // the window before had too many
}

// take tells whether an event has a line. It ends the window before, if that
// is over, by calling end.
func (b *burst) take(now time.Time, kind string, end func(time.Time, string)) bool {
	b.tick(now, end)
	if b.seen == 0 {
		b.since = now
	}
	b.seen++
	if !b.busy && b.seen <= burstLines {
		return true
	}
	if b.rest == nil {
		b.rest = map[string]int{}
	}
	b.rest[kind]++
	return false
}

// tick ends the window if its second is over, and gives end what was counted.
func (b *burst) tick(now time.Time, end func(now time.Time, count string)) {
	if now.Sub(b.since) < burstWindow {
		return
	}
	if len(b.rest) > 0 {
		end(now, countKinds(b.rest, !b.busy))
	}
	b.busy = b.seen > burstLines
	b.seen, b.rest = 0, nil
}

// countKinds gives 12 came, 3 left; or, where some had lines before, 12 more came.
func countKinds(rest map[string]int, more bool) string {
	format := "%d %s"
	if more {
		format = "%d more %s"
	}
	var out []string
	for _, kind := range slices.Sorted(maps.Keys(rest)) {
		out = append(out, fmt.Sprintf(format, rest[kind], kind))
	}
	return strings.Join(out, ", ")
}
