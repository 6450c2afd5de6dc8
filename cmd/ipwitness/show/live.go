package show

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ipwitness/ipwitness/proto/form"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// Live is the output of ipwitness run in a terminal: one line for each owner that appears or
// disappears, and the details of each conflict. Each block is written at once, so that no other
// output interrupts it.
type Live struct {
	w      io.Writer
	layout Layout
	paint  painter

	mu   sync.Mutex
	text bytes.Buffer // not yet written
	err  error

	owners    *Changes[*pb.Owner]
	conflicts *Changes[*pb.Conflict]
	opened    bool   // the initial owners have been summarized
	looked    bool   // the initial conflicts have been shown
	table     *Table // the lines of owners

	ownerBurst, conflictBurst burst
}

// NewLive returns a Live that writes to w.
func NewLive(w io.Writer, layout Layout) *Live {
	l := &Live{
		w: w, layout: layout, paint: painter(layout.Color),
		owners: NewChanges(OwnerKind.Key), conflicts: NewChanges(ConflictKind.Key),
	}
	l.table = newTable(&l.text, layout, []trait{{}, {}, {}, {}, {rank: 2}, {folds: true}})
	l.table.widths = []int{len(time.TimeOnly), len("+"), 15, 30, 22, 0} // time, sign, address, name, place, note
	return l
}

// Err returns the first write error.
func (l *Live) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// block begins a block of output. The returned function writes the block.
func (l *Live) block() (write func()) {
	l.mu.Lock()
	return func() {
		if l.err == nil && l.text.Len() > 0 {
			_, l.err = l.w.Write(l.text.Bytes())
		}
		l.text.Reset()
		l.mu.Unlock()
	}
}

// Start prints which node is watched, as its agent reported it, and how to query it, with the addresses at which the
// servers listen.
func (l *Live) Start(version string, n *pb.Node, grpc, http string) {
	defer l.block()()
	l.print("%s %s watches node %s (Linux %s)\n", l.paint.tone(StrongTone, "ipwitness"), version, clean(n.GetName()), clean(n.GetKernel()))
	l.print("  addresses   with netlink, in %s\n", Count(int(n.GetNamespaces()), "network namespace", "network namespaces"))
	l.print("  wire        %s\n", wire(n))
	l.print("  API         http://%s (REST, metrics), %s (gRPC)\n", http, grpc)
	l.print("  times       %s\n", zone)
	for _, p := range n.GetProblems() {
		l.print("  %s     %s\n", l.paint.tone(WarnTone, "problem"), clean(p))
	}
	server := ""
	if http != "127.0.0.1:9641" {
		server = " --server http://" + http
	}
	l.print("In another terminal: %s owners%s (or: conflicts, explain ADDRESS, nodes). Stop with Ctrl-C.\n\n", l.layout.Program, server)
}

func wire(n *pb.Node) string {
	if n.GetPorts() == 0 {
		return clean(cmp.Or(n.GetWire(), "off")) + ", no ports yet"
	}
	return clean(n.GetWire()) + " on " + Count(int(n.GetPorts()), "port", "ports")
}

// Stop prints what remains, in a directory, or that nothing does if there is none.
func (l *Live) Stop(directory string) {
	defer l.block()()
	if directory == "" {
		l.print("Stopped. The history was in memory only.\n")
		return
	}
	l.print("Stopped. The history is kept in %s.\n", directory)
}

// Owner handles one event of the watch of owners.
func (l *Live) Owner(e *pb.WatchOwnersResponse, now time.Time) {
	defer l.block()()
	line := func(sign, event string, o *pb.Owner, note ...string) {
		if l.ownerBurst.take(now, event, l.endOwners) {
			l.table.add([]Tone{DimTone}, append([]string{now.UTC().Format(time.TimeOnly), sign, o.GetAddress(), pb.OwnerName(o), place(o)}, note...)...)
			_ = l.table.Flush() // writing to a buffer cannot fail
		}
	}
	for _, c := range l.owners.Apply(e.GetType(), e.GetOwner()) {
		switch o := c.Item; {
		case !l.opened || quiet(o):
		case c.Kind == pb.Watch_REMOVED:
			line("-", "left", o)
		case c.Kind == pb.Watch_ADDED:
			line("+", "came", o)
		case pb.OwnerName(c.Before) != pb.OwnerName(o):
			line("~", "got a name", o, "was "+pb.OwnerName(c.Before))
		case c.Before.GetState() != o.GetState():
			line("~", "changed", o, strings.ToLower(o.GetState().String()))
		}
	}
	if e.GetType() == pb.Watch_BOOKMARK && !l.opened {
		l.opened = true
		l.say(now, "%s\n", l.summary())
	}
}

// quiet reports whether an owner is not shown: every interface has link-local addresses, and owners
// that are not compared cannot be in conflict.
func quiet(o *pb.Owner) bool {
	addr, err := netip.ParseAddr(o.GetAddress())
	return err == nil && addr.Is6() && addr.IsLinkLocalUnicast() || o.GetExcluded() != ""
}

// summary counts the addresses and their owners.
func (l *Live) summary() string {
	addresses, holders := map[string]bool{}, map[string]bool{}
	for o := range l.owners.All() {
		if !quiet(o) {
			addresses[o.GetAddress()] = true
			holders[holder(o)] = true
		}
	}
	return Count(len(addresses), "address", "addresses") + " held by " + Count(len(holders), "owner", "owners")
}

// Conflict handles one event of the watch of conflicts.
func (l *Live) Conflict(e *pb.WatchConflictsResponse, now time.Time) {
	defer l.block()()
	for _, change := range l.conflicts.Apply(e.GetType(), e.GetConflict()) {
		switch c, before := change.Item, change.Before; {
		case change.Kind == pb.Watch_REMOVED:
		case before.GetState() != c.GetState() || before.GetEpisode() != c.GetEpisode() || ConflictNames(before) != ConflictNames(c):
			if l.conflictBurst.take(now, strings.ToLower(ConflictState(c)), l.endConflicts) {
				l.conflict(now, c)
			}
		case before.GetAcknowledgement() == nil && c.GetAcknowledgement() != nil:
			l.about(now, PlainTone, "ACK       ", fmt.Sprintf("%s: %s  id %s", c.GetAddress(), until(c.GetAcknowledgement(), time.TimeOnly, now), c.GetId()))
		case before.GetAcknowledgement() != nil && c.GetAcknowledgement() == nil:
			l.about(now, PlainTone, "ACK ENDED ", fmt.Sprintf("%s: %s again  id %s", c.GetAddress(), ConflictState(c), c.GetId()))
		}
	}
	if e.GetType() == pb.Watch_BOOKMARK {
		if !l.looked && l.conflicts.Len() == 0 {
			l.say(now, "no conflicts\n")
		}
		l.looked = true
	}
}

func (l *Live) conflict(now time.Time, c *pb.Conflict) {
	state := ConflictState(c)
	if c.GetState() == pb.Conflict_RESOLVED {
		l.about(now, GoodTone, state, fmt.Sprintf("  %s: after %s  id %s", c.GetAddress(), age(c.GetDetectedAt(), c.GetResolvedAt().AsTime()), c.GetId()))
		return
	}
	l.about(now, conflictTone(c), state, fmt.Sprintf(" %s: %s  id %s", c.GetAddress(), ConflictNames(c), c.GetId()))
	if c.GetState() != pb.Conflict_CONFIRMED || c.GetAcknowledgement() != nil {
		return
	}
	l.note("", c.GetSummary())
	for i, name := range OwnerNames(c.GetOwners()) {
		o := c.GetOwners()[i]
		l.note("- ", join(", ", name, prefixed("node ", o.GetNode()), place(o), o.GetMac(), evidenceKinds(o), prefixed("since ", clock(heldSince(o), now))))
	}
	if cause := c.GetCause(); cause != "" && cause != "unknown" {
		l.note("cause: ", cause)
	}
	l.note("more: ", l.layout.Program+" conflicts "+c.GetId())
}

// Tick ends bursts whose window is over. It should be called about every second.
func (l *Live) Tick(now time.Time) {
	defer l.block()()
	l.ownerBurst.tick(now, l.endOwners)
	l.conflictBurst.tick(now, l.endConflicts)
}

func (l *Live) endOwners(now time.Time, count string) {
	l.say(now, "%s\n", l.paint.tone(DimTone, "…  "+count+": "+l.summary()+" now"))
}

func (l *Live) endConflicts(now time.Time, count string) {
	l.say(now, "%s\n", l.paint.tone(StrongTone, "…  conflicts: "+count+" ("+l.layout.Program+" conflicts lists them)"))
}

// say writes a line that begins with the time.
func (l *Live) say(now time.Time, format string, args ...any) {
	l.print("%s  "+format, append([]any{l.paint.tone(DimTone, now.UTC().Format(time.TimeOnly))}, args...)...)
}

// about writes a state in its tone and a text about it, after the time.
func (l *Live) about(now time.Time, t Tone, state, text string) {
	l.say(now, "%s", l.folded(t, state, len(time.TimeOnly+gap), "", state+" "+text))
}

// note writes a text that belongs to the previous line.
func (l *Live) note(lead, text string) {
	const margin = "            "
	l.print("%s%s", margin, l.folded(PlainTone, "", len(margin), lead, text))
}

// folded folds a text that begins in a column of the terminal. The lines after the first are aligned
// with the text.
func (l *Live) folded(t Tone, word string, column int, lead, text string) string {
	lines := []string{clean(text)}
	margin := column + len(lead)
	if width := l.layout.current(l.layout.Width); width > 0 {
		lines = folded(lines[0], max(min(width, textWidth+column)-margin, leastTextWidth), 0)
	}
	return lead + l.paint.tint(t, word, strings.Join(lines, "\n"+strings.Repeat(" ", margin))) + "\n"
}

func (l *Live) print(format string, args ...any) { fmt.Fprintf(&l.text, format, args...) }

// Write adds lines of the log.
func (l *Live) Write(lines []byte) (int, error) {
	defer l.block()()
	return l.text.WriteString(form.VisibleLines(string(lines)))
}

const (
	// burstLines is the number of events per burstWindow that have a line each. The others are
	// counted.
	burstLines  = 20
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
		b.since, b.rest = now, map[string]int{}
	}
	b.seen++
	if !b.busy && b.seen <= burstLines {
		return true
	}
	b.rest[kind]++
	return false
}

// tick ends the window if it is over, and passes the counts to end: "12 came, 3 left", or "12 more came" if other
// events had lines.
func (b *burst) tick(now time.Time, end func(now time.Time, count string)) {
	if now.Sub(b.since) < burstWindow {
		return
	}
	more := " "
	if !b.busy {
		more = " more "
	}
	var counts []string
	for _, kind := range slices.Sorted(maps.Keys(b.rest)) {
		counts = append(counts, fmt.Sprint(b.rest[kind])+more+kind)
	}
	if len(counts) > 0 {
		end(now, strings.Join(counts, ", "))
	}
	b.busy = b.seen > burstLines
	b.seen, b.rest = 0, nil
}
