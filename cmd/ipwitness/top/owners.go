package top

import (
	"context"
	"slices"
	"time"

	tea "charm.land/bubbletea/v2"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// owners is the list of owners. It has one page at a time, because there may be a million owners.
type owners struct {
	table table[*pb.Owner]
	// conflicts has the states of the addresses in conflict.
	conflicts map[string]pb.Conflict_State
	filter    string
	at        place
	before    []place // the pages before this one
	next      string  // token of the next page; empty on the last one
	loaded    time.Time
	reason    string // why the page could not be loaded; empty if it could
	serial    int    // of the last request; answers to earlier ones are dropped
	busy      bool
}

// A place is the beginning of a page.
type place struct {
	token string
	start int // number of owners before the page
}

// An ownersMsg is the answer to a request for a page of owners.
type ownersMsg struct {
	serial  int
	at      place
	before  []place
	list    *pb.ListOwnersResponse
	err     error
	fromEnd bool // the cursor goes to the last owner
}

// load requests a page.
func (o *owners) load(ctx context.Context, s *Server, at place, before []place, fromEnd bool) tea.Cmd {
	o.serial++
	o.busy = true
	serial, filter := o.serial, o.filter
	return func() tea.Msg {
		list, err := s.Owners(ctx, filter, at.token)
		return ownersMsg{serial, at, before, list, err, fromEnd}
	}
}

// move moves the cursor, and beyond the ends of the page requests the page that is there.
func (o *owners) move(ctx context.Context, s *Server, by int) tea.Cmd {
	at := o.table.cursor
	o.table.move(by)
	switch {
	case o.table.cursor != at || o.busy:
		return nil
	case by > 0 && o.next != "":
		here := append(slices.Clip(o.before), o.at)
		return o.load(ctx, s, place{o.next, o.at.start + len(o.table.all)}, here, false)
	case by < 0 && len(o.before) > 0:
		last := len(o.before) - 1
		return o.load(ctx, s, o.before[last], o.before[:last:last], true)
	}
	return nil
}

// answered shows a page.
func (o *owners) answered(m ownersMsg, now time.Time) {
	if m.serial != o.serial {
		return
	}
	o.busy, o.loaded, o.reason = false, now, ""
	if m.err != nil {
		o.reason = visible(m.err.Error())
		return
	}
	turned := m.at != o.at
	o.at, o.before, o.next = m.at, m.before, m.list.GetNextPageToken()
	if turned {
		o.table.cursor, o.table.offset = 0, 0
	}
	o.table.set(m.list.GetOwners())
	if turned && m.fromEnd {
		o.table.move(len(o.table.all))
	}
}

// whole reports whether the page has all owners that match.
func (o *owners) whole() bool { return o.next == "" && len(o.before) == 0 }
