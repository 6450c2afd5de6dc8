// Package live has the present as messages of the API, and tells subscribers how it changes. A
// Converter makes the messages, Events publishes changes on buses, and a Notifier writes them to the log
// and to Kubernetes as Events. Here are also the coverage, the acknowledgements, the metrics, and what the
// journal recalls after a start. It decides nothing.
package live

import (
	"net/netip"

	"github.com/ipwitness/ipwitness/aggregator/audit"
	"github.com/ipwitness/ipwitness/aggregator/facts"
	"github.com/ipwitness/ipwitness/aggregator/incident"
	"github.com/ipwitness/ipwitness/aggregator/index"
	"github.com/ipwitness/ipwitness/aggregator/judge"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// Events holds the buses and publishes on them. Its methods are called with the facts locked.
type Events struct {
	Owners, Conflicts, Findings *Bus
	// Incidents are the incidents of the conflicts and findings that were published last.
	Incidents *incident.Index
	convert   *Converter
}

// NewEvents returns an Events without subscribers.
func NewEvents(c *Converter) *Events {
	of := func() *Bus { return NewBus((*Event).weight) }
	return &Events{of(), of(), of(), incident.NewIndex(), c}
}

// NodeChanged publishes the state of a node to all watches.
func (s *Events) NodeChanged(n *facts.Node) {
	e := Event{Type: pb.Watch_NODE, At: s.now(), Node: s.convert.Node(n)}
	s.Owners.Offer(func() Event { return e })
	s.Conflicts.Publish(e)
}

var watchTypes = [...]pb.Watch_Type{judge.Added: pb.Watch_ADDED, judge.Updated: pb.Watch_UPDATED, judge.Removed: pb.Watch_REMOVED}

// OwnerChanged publishes a change of one owner of an address. before is its previous state, nil if
// it was added; all are the owners of the address.
func (s *Events) OwnerChanged(what judge.OwnerChange, a index.Address, o, before *verdict.Owner, all []verdict.Owner) {
	s.Owners.Offer(func() Event {
		addr := a.Addr()
		out := Event{Type: watchTypes[what], At: s.now(), Address: addr, Holder: holderOf(o), Owner: s.convert.Owner(addr, o, all)}
		if before != nil {
			out.Before = holderOf(before)
		}
		return out
	})
}

// ConflictChanged publishes a conflict. before is its previous state; opened is set if it was not
// active then.
func (s *Events) ConflictChanged(c, before *verdict.Conflict, opened bool) {
	typ := pb.Watch_UPDATED
	if opened {
		typ = pb.Watch_ADDED
	}
	out := Event{
		Type: typ, At: s.now(), Address: c.Address, Conflict: s.convert.Conflict(c), Contest: contestOf(c), Contested: contestOf(before),
		Recalled: c.Recalled && c.Active(),
	}
	out.Contest.Incident = incident.OfMember(out.Conflict)
	out.Contested.Incident = s.Incidents.PutConflict(out.Conflict, "")
	s.Conflicts.Publish(out)
}

// FindingChanged publishes a finding that is new or has changed. was is its previous version, or nil
// if the finding is new.
func (s *Events) FindingChanged(now, was *judge.Found) {
	out := Event{Type: pb.Watch_ADDED, At: s.now(), Matter: s.matterOf(now), Finding: s.convert.Finding(now, false), Recalled: now.Recalled && was == nil}
	if was != nil {
		out.Type, out.Found = pb.Watch_UPDATED, s.matterOf(was)
	}
	out.Matter.Incident = incident.OfMember(out.Finding)
	out.Found.Incident = s.Incidents.PutFinding(out.Finding, "")
	s.Findings.Publish(out)
}

// FindingEnded publishes that a finding has ended. superseded is set if it became a conflict.
func (s *Events) FindingEnded(over *judge.Found, superseded bool) {
	last := s.matterOf(over)
	last.Incident = s.Incidents.End(over.ID)
	s.Findings.Publish(Event{Type: pb.Watch_REMOVED, At: s.now(), Finding: s.convert.Finding(over, superseded), Matter: last, Found: last})
}

func (s *Events) now() verdict.Stamp { return s.convert.Facts.Clock() }

func (s *Events) matterOf(f *judge.Found) Matter {
	m := MatterOf(f)
	m.Finding = s.convert.Findings.Whole(f.Finding)
	return m
}

// Event is one change. Nothing that it points to ever changes.
type Event struct {
	Type pb.Watch_Type
	// At is the time at which the event was published.
	At      verdict.Stamp
	Address netip.Addr
	// Values for filters. Before is the previous state of an owner that changed or is gone,
	// Contested that of a conflict, and Found that of a finding. Matter is the finding.
	Holder, Before     Holder
	Contest, Contested Contest
	Owner              *pb.Owner
	Conflict           *pb.Conflict
	Node               *pb.Node
	Matter, Found      Matter
	Finding            *pb.Finding
	// Recalled is set if the conflict or finding was published before the start, too.
	Recalled bool
}

// Holder is an owner with the name that its node had at that time.
type Holder struct {
	Owner verdict.Owner
	Node  string
}

func holderOf(o *verdict.Owner) Holder { return Holder{*o, o.Node.Name} }

// Matter is a finding with the names that its nodes had at that time. The zero value means no
// finding.
type Matter struct {
	*verdict.Finding
	Place judge.FindingPlace
	Nodes []string
	// PoolName is the name of the pool that the finding is about; empty for none. The pool itself changes with the facts.
	PoolName string
	// Incident is the ID of its incident; events set it.
	Incident string
}

// MatterOf returns the values of a finding that filters use. It is called with the facts locked.
func MatterOf(f *judge.Found) Matter {
	m := Matter{Finding: f.Finding, Place: f.Place, Nodes: audit.Nodes(f.Finding)}
	if f.Pool != nil {
		m.PoolName = f.Pool.Name
	}
	return m
}

// Contest contains the values of a conflict that filters use. The zero value means no conflict.
type Contest struct {
	ID      string
	Phase   verdict.Phase
	Cause   string
	Kind    verdict.ScopeKind
	Scope   string
	Holders []Holder
	// Incident is the ID of its incident; events set it.
	Incident string
}

func contestOf(c *verdict.Conflict) Contest {
	out := Contest{ID: c.ID, Phase: c.Phase, Cause: c.Cause, Kind: c.Kind, Scope: c.Scope, Holders: make([]Holder, 0, len(c.Owners))}
	for i := range c.Owners {
		out.Holders = append(out.Holders, holderOf(&c.Owners[i]))
	}
	return out
}

// weight returns how much of the bus's Weight an event takes.
func (e *Event) weight() int { return 1 + len(e.Conflict.GetOwners()) }

// Bus is a bus of the events of one kind.
type Bus = Ring[Event]
