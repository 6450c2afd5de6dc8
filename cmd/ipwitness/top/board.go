package top

import (
	"slices"
	"sync"
	"time"

	"github.com/ipwitness/ipwitness/cmd/ipwitness/show"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// mostRows is the maximum number of conflicts, and of findings, that are kept. A conflict takes about
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

// A board has the current state as the watches report it. The watches write it, and the program reads
// snapshots of it, so that many events make only one snapshot.
type board struct {
	now  func() time.Time
	wake chan struct{} // has a token if the board has changed since the last snapshot
	list chan struct{} // has a token if nodes are to be listed again

	mu sync.Mutex
	status
	conflicts rows[*pb.Conflict]
	findings  rows[*pb.Finding]
	nodes     rows[*pb.Node]
}

// The watches, as indices.
const (
	conflicts = iota
	findings
)

// A status is what is known of the watches and of the server.
type status struct {
	links  [2]link
	cut    [2]bool // some conflicts, or findings, are not kept
	health health
}

// rows are the items of a list.
type rows[T any] struct {
	changes *show.Changes[T]
	changed bool // since the last snapshot
}

// apply applies an event.
func (r *rows[T]) apply(kind pb.Watch_Type, item T) {
	r.changed = len(r.changes.Apply(kind, item)) > 0 || r.changed
}

// health is what the server says of itself and of what it sees.
type health struct {
	coverage *pb.Coverage
	problems []string
	// nodesReason is why the nodes could not be listed; empty if they could.
	nodesReason string
}

// A snapshot is the state of a board. Lists are nil if they have not changed since the previous
// snapshot.
type snapshot struct {
	status
	conflicts []*pb.Conflict
	findings  []*pb.Finding
	nodes     []*pb.Node
}

func newBoard(now func() time.Time) *board {
	return &board{
		now:       now,
		wake:      make(chan struct{}, 1),
		list:      make(chan struct{}, 1),
		status:    status{links: [2]link{{state: connecting, since: now()}, {state: connecting, since: now()}}},
		conflicts: rows[*pb.Conflict]{changes: show.NewChanges(show.ConflictKind.Key)},
		findings:  rows[*pb.Finding]{changes: show.NewChanges(show.FindingKind.Key)},
		nodes:     rows[*pb.Node]{changes: show.NewChanges(show.NodeKind.Key)},
	}
}

// raise puts a token into a channel with room for one.
func raise(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// change changes the board.
func (b *board) change(f func()) {
	b.mu.Lock()
	f()
	b.mu.Unlock()
	raise(b.wake)
}

// conflictStream returns the receiver of the watch of conflicts, which also reports nodes.
func (b *board) conflictStream() Stream[*pb.WatchConflictsResponse] {
	item := func(e *pb.WatchConflictsResponse) *pb.Conflict { return listedConflict(e.GetConflict()) }
	return streamInto(b, conflicts, &b.conflicts, item, func(e *pb.WatchConflictsResponse) {
		switch e.GetType() {
		case pb.Watch_NODE:
			b.nodes.apply(pb.Watch_UPDATED, e.GetNode())
		case pb.Watch_BOOKMARK:
			if e.GetCoverage() != nil {
				b.health.coverage = e.GetCoverage()
			}
			raise(b.list)
		default:
		}
	})
}

// findingStream returns the receiver of the watch of findings.
func (b *board) findingStream() Stream[*pb.WatchFindingsResponse] {
	item := func(e *pb.WatchFindingsResponse) *pb.Finding { return listedFinding(e.GetFinding()) }
	return streamInto(b, findings, &b.findings, item, func(*pb.WatchFindingsResponse) {})
}

// streamInto returns the receiver of a watch of the rows of a board. also is called for each event.
func streamInto[E interface{ GetType() pb.Watch_Type }, T any](b *board, watch int, r *rows[T], item func(E) T, also func(E)) Stream[E] {
	link, cut := &b.links[watch], &b.cut[watch]
	return Stream[E]{
		Connected: func(whole bool) {
			b.change(func() {
				if whole {
					r.changes.Begin()
					*cut = false
				}
				link.to(catchingUp, b.now(), "")
			})
		},
		Disconnected: func(err error) {
			b.change(func() { link.to(disconnected, b.now(), visible(err.Error())) })
		},
		Event: func(e E) {
			b.change(func() {
				r.apply(e.GetType(), item(e))
				switch e.GetType() {
				case pb.Watch_LOST:
					*cut = false
					link.to(catchingUp, b.now(), "")
				case pb.Watch_BOOKMARK:
					link.to(live, b.now(), "")
				default:
					if r.changes.Len() > mostRows {
						r.changes.Apply(pb.Watch_REMOVED, item(e))
						*cut = true
					}
				}
				also(e)
			})
		},
	}
}

// listed is called with the list of nodes, or the reason why there is none.
func (b *board) listed(list *pb.ListNodesResponse, err error) {
	b.change(func() {
		if err != nil {
			b.health.nodesReason = visible(err.Error())
			return
		}
		b.nodes.changes.Begin()
		for _, n := range list.GetNodes() {
			b.nodes.apply(pb.Watch_UPDATED, n)
		}
		b.nodes.apply(pb.Watch_BOOKMARK, nil)
		b.health = health{coverage: list.GetCoverage(), problems: list.GetProblems()}
	})
}

// snapshot returns the current state.
func (b *board) snapshot() snapshot {
	b.mu.Lock()
	defer b.mu.Unlock()
	long := b.now().Add(-resolvedFor)
	for r := range b.conflicts.changes.All() {
		if !active(r) && r.GetResolvedAt().AsTime().Before(long) {
			b.conflicts.apply(pb.Watch_REMOVED, r)
		}
	}
	return snapshot{b.status, b.conflicts.take(), b.findings.take(), b.nodes.take()}
}

// take returns the items if they have changed.
func (r *rows[T]) take() []T {
	if !r.changed {
		return nil
	}
	r.changed = false
	return slices.AppendSeq(make([]T, 0, r.changes.Len()), r.changes.All())
}
