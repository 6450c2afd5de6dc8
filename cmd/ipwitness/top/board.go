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
	if state != l.state {
		l.since = now
	}
	l.state, l.reason = state, reason
	if state == live {
		l.caughtUp = now
	}
}

// A board has the current state as the watches report it. The watches write it, and the program reads
// snapshots of it, so that many events make only one snapshot.
type board struct {
	now  func() time.Time
	wake chan struct{} // has a token if the board has changed since the last snapshot
	list chan struct{} // has a token if nodes are to be listed again

	mu        sync.Mutex
	conflicts rows[*pb.Conflict]
	findings  rows[*pb.Finding]
	nodes     *show.Changes[*pb.Node]
	nodesNew  bool
	health    health
}

// rows are the conflicts or findings of a board.
type rows[T any] struct {
	link    link
	changes *show.Changes[T]
	count   int
	cut     bool // some are not kept
	changed bool
}

// health is what the server says of itself and of what it sees.
type health struct {
	coverage   *pb.Coverage
	kubernetes *pb.Kubernetes
	problems   []string
	// nodesReason is why the nodes could not be listed; empty if they could.
	nodesReason string
}

// A snapshot is the state of a board. Lists are nil if they have not changed since the previous
// snapshot.
type snapshot struct {
	links     [2]link // of the conflicts and the findings
	conflicts []*pb.Conflict
	findings  []*pb.Finding
	nodes     []*pb.Node
	cut       [2]bool // some conflicts, or findings, are not kept
	health    health
}

func newBoard(now func() time.Time) *board {
	return &board{
		now:       now,
		wake:      make(chan struct{}, 1),
		list:      make(chan struct{}, 1),
		conflicts: rows[*pb.Conflict]{changes: show.NewChanges((*pb.Conflict).GetId), link: link{state: connecting, since: now()}},
		findings:  rows[*pb.Finding]{changes: show.NewChanges((*pb.Finding).GetId), link: link{state: connecting, since: now()}},
		nodes:     show.NewChanges(show.NodeKey),
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

// put keeps an item, unless there are too many.
func (r *rows[T]) put(item T) {
	if _, had := r.changes.Put(item); !had {
		if r.count == mostRows {
			r.changes.Drop(item)
			r.cut = true
			return
		}
		r.count++
	}
	r.changed = true
}

func (r *rows[T]) drop(item T) {
	if _, had := r.changes.Drop(item); had {
		r.count--
		r.changed = true
	}
}

// begin is called before the server sends the whole state.
func (r *rows[T]) begin() {
	r.changes.Begin()
	r.cut = false
}

// conflictStream returns the receiver of the watch of conflicts, which also reports nodes.
func (b *board) conflictStream() Stream[*pb.WatchConflictsResponse] {
	return streamInto(b, &b.conflicts, func(e *pb.WatchConflictsResponse) *pb.Conflict { return listedConflict(e.GetConflict()) },
		func(e *pb.WatchConflictsResponse) {
			switch e.GetType() {
			case pb.Watch_NODE:
				b.nodes.Put(e.GetNode())
				b.nodesNew = true
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
	return streamInto(b, &b.findings, func(e *pb.WatchFindingsResponse) *pb.Finding { return listedFinding(e.GetFinding()) },
		func(*pb.WatchFindingsResponse) {})
}

// streamInto returns the receiver of a watch of the rows of a board. also is called for each event.
func streamInto[E interface{ GetType() pb.Watch_Type }, T any](b *board, r *rows[T], item func(E) T, also func(E)) Stream[E] {
	return Stream[E]{
		Connected: func(whole bool) {
			b.change(func() {
				if whole {
					r.begin()
				}
				r.link.to(catchingUp, b.now(), "")
			})
		},
		Disconnected: func(err error) {
			b.change(func() {
				if r.link.state == live {
					r.link.caughtUp = b.now()
				}
				r.link.to(disconnected, b.now(), visible(err.Error()))
			})
		},
		Event: func(e E) {
			b.change(func() {
				switch e.GetType() {
				case pb.Watch_ADDED, pb.Watch_UPDATED:
					r.put(item(e))
				case pb.Watch_REMOVED:
					r.drop(item(e))
				case pb.Watch_LOST:
					r.begin()
					r.link.to(catchingUp, b.now(), "")
				case pb.Watch_BOOKMARK:
					gone := r.changes.Complete()
					r.count -= len(gone)
					r.changed = r.changed || len(gone) > 0
					r.link.to(live, b.now(), "")
				default:
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
		b.nodes.Begin()
		for _, n := range list.GetNodes() {
			b.nodes.Put(n)
		}
		b.nodes.Complete()
		b.nodesNew = true
		b.health = health{coverage: list.GetCoverage(), kubernetes: list.GetKubernetes(), problems: list.GetProblems()}
	})
}

// snapshot returns the current state.
func (b *board) snapshot() snapshot {
	b.mu.Lock()
	defer b.mu.Unlock()
	long := b.now().Add(-resolvedFor)
	for r := range b.conflicts.changes.All() {
		if !active(r) && r.GetResolvedAt().AsTime().Before(long) {
			b.conflicts.drop(r)
		}
	}
	s := snapshot{
		links:  [2]link{b.conflicts.link, b.findings.link},
		cut:    [2]bool{b.conflicts.cut, b.findings.cut},
		health: b.health,
	}
	s.conflicts, s.findings = b.conflicts.take(), b.findings.take()
	if b.nodesNew {
		b.nodesNew = false
		s.nodes = slices.AppendSeq([]*pb.Node{}, b.nodes.All())
	}
	return s
}

// take returns the items if they have changed.
func (r *rows[T]) take() []T {
	if !r.changed {
		return nil
	}
	r.changed = false
	return slices.AppendSeq(make([]T, 0, r.count), r.changes.All())
}
