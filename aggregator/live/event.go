package live

import (
	"net/netip"

	"github.com/ipwitness/ipwitness/aggregator/audit"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

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
	Nodes []string
}

// MatterOf returns the values of a finding that filters use. It is called with the facts locked.
func MatterOf(f *verdict.Finding) Matter { return Matter{f, audit.Nodes(f)} }

// Contest contains the values of a conflict that filters use. The zero value means no conflict.
type Contest struct {
	Phase   verdict.Phase
	Cause   string
	Kind    verdict.ScopeKind
	Scope   string
	Holders []Holder
}

func contestOf(c *verdict.Conflict) Contest {
	out := Contest{c.Phase, c.Cause, c.Kind, c.Scope, make([]Holder, 0, len(c.Owners))}
	for i := range c.Owners {
		out.Holders = append(out.Holders, holderOf(&c.Owners[i]))
	}
	return out
}

// weight returns how much of the bus's Weight an event takes.
func (e *Event) weight() int { return 1 + len(e.Conflict.GetOwners()) }

// Bus is a bus of the events of one kind.
type Bus = Ring[Event]
