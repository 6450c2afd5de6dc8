package export

import (
	"fmt"
	"strings"
	"time"

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
}

// phase is the last state of a conflict that was exported.
type phase struct {
	episode uint32
	state   pb.Conflict_State
}

// phases are the states of the active conflicts, by id. A conflict without one was not active.
type phases map[string]phase

// transition returns the transition of an event, and remembers the state of its conflict.
func (p phases) transition(e *pb.Event, present bool) transition {
	t := transition{Event: e, present: present}
	since, number := e.GetTime(), ""
	switch {
	case e.GetConflict() != nil:
		c := e.GetConflict()
		now := phase{c.GetEpisode(), c.GetState()}
		t.name = "conflict." + strings.ToLower(c.GetState().String())
		if p[c.GetId()] == now {
			t.name = "conflict.updated"
		}
		if p[c.GetId()] = now; now.state == pb.Conflict_RESOLVED {
			delete(p, c.GetId())
		}
		t.subject, number = "conflict-"+c.GetId(), fmt.Sprintf("-%d", c.GetEpisode())
		switch {
		case !present:
		case c.GetState() == pb.Conflict_CONFIRMED && c.GetConfirmedAt() != nil:
			since = c.GetConfirmedAt()
		case c.GetDetectedAt() != nil:
			since = c.GetDetectedAt()
		}
	case e.GetFinding() != nil:
		f := e.GetFinding()
		t.name = "finding." + changed(e.GetType(), "detected", "updated", "ended")
		t.subject = "finding-" + f.GetId()
		if present && f.GetDetectedAt() != nil {
			since = f.GetDetectedAt()
		}
	case e.GetNode() != nil:
		t.name = "node.disconnected"
		if e.GetNode().GetState() == pb.Node_LIVE {
			t.name = "node.connected"
		}
		t.subject = "node-" + e.GetNode().GetName()
	default:
		t.name = "owner." + changed(e.GetType(), "added", "updated", "removed")
		t.subject = "owner-" + e.GetOwner().GetAddress()
	}
	// The journal has no two records with the same time. The time of a record of the present state may
	// change, so the time of the item is used instead.
	t.at = since.AsTime()
	t.id = fmt.Sprintf("%s%s-%d", t.subject, number, t.at.UnixMicro())
	return t
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
