package export

import (
	"fmt"
	"strings"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/episode"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// A transition is an event of the journal, as it is exported.
type transition struct {
	*pb.Event
	// id is the same each time that the transition is exported, and differs from that of all others.
	id string
	// name says what has happened, such as conflict.confirmed. subject identifies what it has happened to.
	name, subject string
	// at is the time of the transition. present is set if the item was like this before the exporter
	// began.
	at      time.Time
	present bool
	// rank is how far the conflict or finding has come, and detected is when this replica detected it. began
	// is when the episode began, for all replicas (episode.Began); zero if that is not known.
	rank            rank
	detected, began time.Time
	// climbs is set if this replica has not seen before that the episode had come as far. before is the began
	// of the last transition that it has seen of the same conflict without an end; continues is set if
	// there is one.
	climbs, continues bool
	before            time.Time
	// confirmed is set if the conflict is confirmed or was, since this replica detected it.
	confirmed bool
}

// The names of updates, which change neither state nor episode, and of the beginning of a finding.
const (
	conflictUpdated = "conflict.updated"
	findingUpdated  = "finding.updated"
	findingDetected = "finding.detected"
)

// updates reports whether the transition is an update.
func (t *transition) updates() bool { return t.name == conflictUpdated || t.name == findingUpdated }

// beginning returns the name of a transition that is the first one of its episode.
func (t *transition) beginning() string {
	if c := t.GetConflict(); c != nil {
		return conflictName(c.GetState())
	}
	return findingDetected
}

// conflictName returns the name of a transition to a state.
func conflictName(state pb.Conflict_State) string {
	return "conflict." + strings.ToLower(state.String())
}

// A rank orders the transitions of one episode of a conflict or finding: a later one means that the earlier
// ones were told.
type rank int

const (
	unranked rank = iota // of an owner or a node
	begun
	confirmed
	over
)

// phase is the last state of a conflict or finding that was exported.
type phase struct {
	episode   uint32
	state     pb.Conflict_State
	began     time.Time
	reached   rank // in the episode that began then
	confirmed bool
}

// phases are the states of the active conflicts and findings, by subject. One without a phase was not active.
type phases map[string]phase

// The beginnings of subjects, before the id.
const (
	conflictSubject = "conflict-"
	findingSubject  = "finding-"
)

// subjectOf returns what an event has happened to.
func subjectOf(e *pb.Event) string {
	switch {
	case e.GetConflict() != nil:
		return conflictSubject + e.GetConflict().GetId()
	case e.GetFinding() != nil:
		return findingSubject + e.GetFinding().GetId()
	case e.GetNode() != nil:
		return "node-" + e.GetNode().GetName()
	}
	return "owner-" + e.GetOwner().GetAddress()
}

// transition returns the transition of an event, and remembers the state of its conflict or finding.
func (p phases) transition(e *pb.Event, present bool) transition {
	t := transition{Event: e, present: present, subject: subjectOf(e)}
	since, number := e.GetTime(), ""
	switch {
	case e.GetConflict() != nil:
		c := e.GetConflict()
		before, active := p[t.subject]
		t.name = conflictName(c.GetState())
		if active && before.episode == c.GetEpisode() && before.state == c.GetState() {
			t.name = conflictUpdated
		}
		t.rank = map[pb.Conflict_State]rank{pb.Conflict_SUSPECTED: begun, pb.Conflict_CONFIRMED: confirmed, pb.Conflict_RESOLVED: over}[c.GetState()]
		t.detected, t.began = c.GetDetectedAt().AsTime(), episode.Began(c)
		t.confirmed = c.GetConfirmedAt() != nil
		p.follow(&t, c.GetEpisode(), c.GetState())
		number = fmt.Sprintf("-%d", c.GetEpisode())
		switch {
		case !present:
		case c.GetState() == pb.Conflict_CONFIRMED && c.GetConfirmedAt() != nil:
			since = c.GetConfirmedAt()
		case c.GetDetectedAt() != nil:
			since = c.GetDetectedAt()
		}
	case e.GetFinding() != nil:
		f := e.GetFinding()
		t.name = changed(e.GetType(), findingDetected, findingUpdated, "finding.ended")
		t.rank, t.detected = begun, f.GetDetectedAt().AsTime()
		if e.GetType() == pb.Watch_REMOVED {
			t.rank = over
		}
		p.follow(&t, 0, 0)
		if present && f.GetDetectedAt() != nil {
			since = f.GetDetectedAt()
		}
	case e.GetNode() != nil:
		t.name = "node.disconnected"
		if e.GetNode().GetState() == pb.Node_LIVE {
			t.name = "node.connected"
		}
	default:
		t.name = "owner." + changed(e.GetType(), "added", "updated", "removed")
	}
	// The journal has no two records with the same time. The time of a record of the present state may
	// change, so the time of the item is used instead.
	t.at = since.AsTime()
	t.id = fmt.Sprintf("%s%s-%d", t.subject, number, t.at.UnixMicro())
	return t
}

// follow compares a transition with the one before, and remembers it.
func (p phases) follow(t *transition, number uint32, state pb.Conflict_State) {
	before, active := p[t.subject]
	now := phase{episode: number, state: state, began: t.began, reached: t.rank}
	t.climbs = true
	if t.continues = active && before.episode == number; t.continues {
		t.before = before.began
		t.confirmed = t.confirmed || before.confirmed
		if before.began.Equal(t.began) || episode.Same(before.began, t.began) {
			t.climbs, now.reached = t.rank > before.reached, max(t.rank, before.reached)
		}
	}
	if now.confirmed = t.confirmed; t.rank == over {
		delete(p, t.subject)
	} else {
		p[t.subject] = now
	}
}

// changed returns the word for the type of a change.
func changed(typ pb.Watch_Type, added, updated, removed string) string {
	switch typ {
	case pb.Watch_ADDED:
		return added
	case pb.Watch_REMOVED:
		return removed
	default:
		return updated
	}
}
