// Package events tells subscribers what changes: of owners, conflicts, findings and nodes. An event has
// the message of the API, and the values that filters look at.
package events

import (
	"net/netip"

	"github.com/ipwitness/ipwitness/aggregator/audit"
	"github.com/ipwitness/ipwitness/aggregator/bus"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// Event is one change. All that it points to is never changed again.
type Event struct {
	Type    pb.Watch_Type
	Address netip.Addr
	// What filters look at: of an owner that changed or is gone, Before is what it was, and
	// Contested what a conflict was; Matter is a finding, and Found what it was.
	Holder, Before     Holder
	Contest, Contested Contest
	Owner              *pb.Owner
	Conflict           *pb.Conflict
	Node               *pb.Node
	Matter, Found      Matter
	Finding            *pb.Finding
}

// Holder is an owner with the name that its node had then.
type Holder struct {
	Owner verdict.Owner
	Node  string
}

func holderOf(o *verdict.Owner) Holder { return Holder{*o, o.Node.Name} }

// Matter is a finding with the names that its nodes had then; the zero one stands for none.
type Matter struct {
	*verdict.Finding
	Nodes []string
}

// MatterOf returns what filters look at in a finding. The facts are held.
func MatterOf(f *verdict.Finding) Matter { return Matter{f, audit.Nodes(f)} }

// Contest is what filters look at in a conflict; the zero one stands for none.
type Contest struct {
	Phase   verdict.Phase
	Cause   string
	Holders []Holder
}

func contestOf(c *verdict.Conflict) Contest {
	out := Contest{c.Phase, c.Cause, make([]Holder, 0, len(c.Owners))}
	for i := range c.Owners {
		out.Holders = append(out.Holders, holderOf(&c.Owners[i]))
	}
	return out
}

// weight is how much an event takes of the ring.
func (e *Event) weight() int { return 1 + len(e.Conflict.GetOwners()) }

// Bus passes on the events of one kind.
type Bus = bus.Bus[Event]
