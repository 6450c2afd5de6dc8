package show

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

const (
	// burstLines is the number of events per burstWindow that have a line each. The others are
	// counted.
	burstLines = 20
	// burstWindow is the time over which events are counted.
	burstWindow = time.Second
)

// burst decides which events have a line of their own. After a window with too many events, all
// events are counted until a window has few events.
type burst struct {
	since time.Time
	seen  int            // events in this window
	rest  map[string]int // events in this window without a line, by kind
	busy  bool           // the previous window had too many events
}

// take reports whether an event has a line. It first calls end if the previous window is over.
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

// tick ends the window if it is over, and passes the counts to end.
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

// countKinds formats counts: "12 came, 3 left", or "12 more came" if other events had lines.
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
