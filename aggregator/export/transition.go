package export

import (
	"fmt"
	"maps"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ipwitness/ipwitness/aggregator/episode"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

const (
	// promptly is the longest time between the beginning of a conflict and its detection for which the
	// beginning is part of its ids. A conflict that is detected later may be another one with the same owners.
	promptly = time.Minute
	// mostPhases is the number of conflicts above which resolved ones are forgotten.
	mostPhases = 20_000
)

type transition struct {
	*pb.Event
	// id is the same each time that the transition is exported, and differs from that of all others. It is
	// made of a conflict or finding, its beginning and its state.
	id string
	// name says what has happened, such as conflict.confirmed.
	name string
	// at is the time of the transition. present is set if the item was like this before the exporter
	// began.
	at      time.Time
	present bool
	// confirmed is set if the conflict is confirmed, or was since this replica detected it.
	confirmed bool
	// since is when a conflict reached its state: it may have been confirmed before it was suspected again.
	since time.Time
}

// A phase is the last state of a conflict that was exported.
type phase struct {
	episode   uint32
	beginning time.Time
	state     pb.Conflict_State
	// reached is the most advanced state since the beginning.
	reached   pb.Conflict_State
	confirmed bool
	since     time.Time
}

// phases are the last states of conflicts, by id.
type phases map[string]phase

func (p phases) transition(e *pb.Event, present bool) transition {
	t := transition{Event: e, present: present, at: e.GetTime().AsTime()}
	// The journal has no two records with the same time.
	record := fmt.Sprintf("-%d", t.at.UnixMicro())
	switch {
	case e.GetConflict() != nil:
		p.conflict(&t, record)
	case e.GetFinding() != nil:
		f := e.GetFinding()
		began := f.GetDetectedAt().AsTime()
		if present {
			t.at = began
		}
		change := changed(e.GetType(), "detected", "updated", "ended")
		t.name, t.id = "finding."+change, fmt.Sprintf("finding-%s-%d-%s", f.GetId(), began.UnixMicro(), change)
		if e.GetType() == pb.Watch_UPDATED {
			t.id += record
		}
	case e.GetNode() != nil:
		t.name, t.id = "node.disconnected", "node-"+e.GetNode().GetName()+record
		if e.GetNode().GetState() == pb.Node_LIVE {
			t.name = "node.connected"
		}
	default:
		t.name, t.id = "owner."+changed(e.GetType(), "added", "updated", "removed"), "owner-"+e.GetOwner().GetAddress()+record
	}
	if present { // the journal has another time for what there was when it began a segment
		e.Time = timestamppb.New(t.at)
	}
	return t
}

func (p phases) conflict(t *transition, record string) {
	c := t.GetConflict()
	before, known := p[c.GetId()]
	lasts := known && before.state != pb.Conflict_RESOLVED && before.episode == c.GetEpisode()
	state := strings.ToLower(c.GetState().String())
	now := phase{episode: c.GetEpisode(), state: c.GetState(), reached: c.GetState()}
	// All replicas know when a conflict began. If that is not known, it is when this replica detected the conflict.
	if now.beginning = episode.Began(c); now.beginning.Sub(c.GetDetectedAt().AsTime()).Abs() > promptly {
		if now.beginning = c.GetDetectedAt().AsTime(); lasts {
			now.beginning = before.beginning
		}
	}
	now.confirmed = c.GetConfirmedAt() != nil || lasts && before.confirmed
	switch {
	case !lasts:
		now.since = c.GetDetectedAt().AsTime()
	case before.state == now.state:
		now.since = before.since
	default:
		now.since = t.at
	}
	t.confirmed, t.since = now.confirmed, now.since
	t.name = "conflict." + state
	t.id = fmt.Sprintf("conflict-%s-%d-%s", c.GetId(), now.beginning.UnixMicro(), state)
	if known && before.beginning.Equal(now.beginning) {
		now.reached = max(now.state, before.reached)
		if now.state < before.reached || now.state == before.reached && !t.present {
			t.id += record // not the first time since the beginning
		}
		if now.state == before.state && !t.present { // also of one that is over, about which more became known
			t.name = "conflict.updated"
		}
	}
	switch {
	case !t.present:
	case c.GetConfirmedAt() != nil:
		t.at = c.GetConfirmedAt().AsTime()
	default:
		t.at = c.GetDetectedAt().AsTime()
	}
	if len(p) >= mostPhases {
		maps.DeleteFunc(p, func(_ string, of phase) bool { return of.state == pb.Conflict_RESOLVED })
	}
	p[c.GetId()] = now
}

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
