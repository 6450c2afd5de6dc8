package top

import (
	"context"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/ipwitness/ipwitness/cmd/ipwitness/show"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// mostRows is the maximum number of items of a watch that are kept. A conflict takes about
// 500 bytes.
const mostRows = 50_000

// A linkState is the state of the connection of a watch, from the best to the worst.
type linkState int

const (
	live linkState = iota
	catchingUp
	connecting
	disconnected
)

// A link is the connection of a watch.
type link struct {
	state  linkState
	since  time.Time // of the state
	reason string    // of a disconnect
	// caughtUp is when the watch was last known to be complete.
	caughtUp time.Time
}

// to changes the state.
func (l *link) to(state linkState, now time.Time, reason string) {
	if l.state == live || state == live {
		l.caughtUp = now
	}
	if state != l.state {
		l.since = now
	}
	l.state, l.reason = state, reason
}

// The watches, as indices.
const (
	conflicts = iota
	findings
	incidents
	watches // the number of watches
)

// A status is what is known of the watches and of the server.
type status struct {
	links  [watches]link
	cut    [watches]bool // some items are not kept
	health health
}

// health is what the server says of itself and of what it sees.
type health struct {
	coverage *pb.Coverage
	problems []string
	// nodesReason is why the nodes could not be listed; empty if they could.
	nodesReason string
}

// A change is what an event of a watch changes. It returns what has to be requested then.
type change func(*model) tea.Cmd

// changesMsg are changes in their order.
type changesMsg []change

// collect passes on changes, those of some time at once, so that the screen is not drawn for each. While they
// are not taken, the watches wait.
func collect(ctx context.Context, changes <-chan change, send func(changesMsg)) {
	pause := time.NewTicker(drawEvery)
	defer pause.Stop()
	var pending changesMsg
	for {
		var due <-chan time.Time
		if pending != nil {
			due = pause.C
		}
		select {
		case <-ctx.Done():
			return
		case c := <-changes:
			pending = append(pending, c)
		case <-due:
			send(pending)
			pending = nil
		}
	}
}

// conflictStream returns the receiver of the watch of conflicts, which also reports nodes.
func conflictStream(send func(change)) Stream[*pb.WatchConflictsResponse] {
	list := func(l *lists) *table[*pb.Conflict] { return &l.conflicts }
	item := func(e *pb.WatchConflictsResponse) *pb.Conflict { return listedConflict(e.GetConflict()) }
	return stream(send, conflicts, list, item, func(m *model, e *pb.WatchConflictsResponse) tea.Cmd {
		switch e.GetType() {
		case pb.Watch_NODE:
			m.lists.nodes.apply(pb.Watch_UPDATED, e.GetNode())
		case pb.Watch_BOOKMARK:
			if e.GetCoverage() != nil {
				m.health.coverage = e.GetCoverage()
			}
			return func() tea.Msg {
				list := &pb.ListNodesResponse{}
				return nodesMsg{list, m.server.Get(m.ctx, "/v1/nodes", nil, list)}
			}
		default:
		}
		return nil
	})
}

// findingStream returns the receiver of the watch of findings.
func findingStream(send func(change)) Stream[*pb.WatchFindingsResponse] {
	list := func(l *lists) *table[*pb.Finding] { return &l.findings }
	item := func(e *pb.WatchFindingsResponse) *pb.Finding { return listedFinding(e.GetFinding()) }
	return stream(send, findings, list, item, func(*model, *pb.WatchFindingsResponse) tea.Cmd { return nil })
}

// incidentStream returns the receiver of the watch of incidents.
func incidentStream(send func(change)) Stream[*pb.WatchIncidentsResponse] {
	list := func(l *lists) *table[*pb.Incident] { return &l.incidents }
	return stream(send, incidents, list, (*pb.WatchIncidentsResponse).GetIncident, func(*model, *pb.WatchIncidentsResponse) tea.Cmd { return nil })
}

// stream returns the receiver of a watch of the items of a list. also is called for each event.
func stream[E interface{ GetType() pb.Watch_Type }, T any](
	send func(change), watch int, list func(*lists) *table[T], item func(E) T, also func(*model, E) tea.Cmd,
) Stream[E] {
	return Stream[E]{
		Connected: func(whole bool) {
			send(func(m *model) tea.Cmd {
				if whole {
					list(&m.lists).changes.Begin()
					m.cut[watch] = false
				}
				m.links[watch].to(catchingUp, m.now, "")
				return nil
			})
		},
		Disconnected: func(err error) {
			send(func(m *model) tea.Cmd {
				m.links[watch].to(disconnected, m.now, visible(err.Error()))
				return nil
			})
		},
		Event: func(e E) {
			send(func(m *model) tea.Cmd {
				t := list(&m.lists)
				t.apply(e.GetType(), item(e))
				switch e.GetType() {
				case pb.Watch_LOST:
					m.cut[watch] = false
					m.links[watch].to(catchingUp, m.now, "")
				case pb.Watch_BOOKMARK:
					m.links[watch].to(live, m.now, "")
				default:
					if t.changes.Len() > mostRows {
						t.apply(pb.Watch_REMOVED, item(e))
						m.cut[watch] = true
					}
				}
				return also(m, e)
			})
		},
	}
}

// nodesMsg is the list of nodes, or the reason why there is none.
type nodesMsg struct {
	list *pb.ListNodesResponse
	err  error
}

// settle shows what has changed, and requests again what depends on it.
func (m *model) settle() tea.Cmd {
	m.seen = true
	shown := &m.lists.conflicts
	long := m.now.Add(-resolvedFor)
	for c := range shown.changes.All() {
		if !show.Active(c) && c.GetResolvedAt().AsTime().Before(long) {
			shown.apply(pb.Watch_REMOVED, c)
		}
	}
	changed := shown.settle()
	if changed {
		states := m.lists.owners.conflicts
		clear(states)
		for _, c := range shown.all {
			if show.Active(c) {
				states[c.GetAddress()] = max(states[c.GetAddress()], c.GetState())
			}
		}
	}
	changed = m.lists.findings.settle() || changed
	changed = m.lists.incidents.settle() || changed
	if changed = m.lists.nodes.settle() || changed; !changed {
		return nil
	}
	return m.refresh(time.Second)
}
