package aggregator

import (
	"net/netip"

	"github.com/ipwitness/ipwitness/aggregator/audit"
	"github.com/ipwitness/ipwitness/aggregator/bus"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// watchType is what an event tells.
type watchType = pb.Watch_Type

const (
	added       = pb.Watch_ADDED
	updated     = pb.Watch_UPDATED
	removed     = pb.Watch_REMOVED
	nodeChanged = pb.Watch_NODE
)

// event is one change. All that it points to is never changed again.
type event struct {
	typ  watchType
	addr netip.Addr
	// What filters look at: of an owner that changed or is gone, before is what it was, and
	// contested what a conflict was; matter is a finding, and found what it was.
	holder, before     holder
	contest, contested contest
	owner              *pb.Owner
	conflict           *pb.Conflict
	node               *pb.Node
	matter, found      matter
	finding            *pb.Finding
}

// holder is an owner with the name that its node had then.
type holder struct {
	owner verdict.Owner
	node  string
}

func holderOf(o *verdict.Owner) holder { return holder{*o, o.Node.Name} }

// matter is a finding with the names that its nodes had then; the zero one stands for none.
type matter struct {
	*verdict.Finding
	nodes []string
}

// matterOf returns what filters look at in a finding. The facts are held.
func matterOf(f *verdict.Finding) matter { return matter{f, audit.Nodes(f)} }

// contest is what filters look at in a conflict; the zero one stands for none.
type contest struct {
	phase   verdict.Phase
	cause   string
	holders []holder
}

func contestOf(c *verdict.Conflict) contest {
	out := contest{c.Phase, c.Cause, make([]holder, 0, len(c.Owners))}
	for i := range c.Owners {
		out.holders = append(out.holders, holderOf(&c.Owners[i]))
	}
	return out
}

// weight is how much an event takes of the ring.
func (e *event) weight() int { return 1 + len(e.conflict.GetOwners()) }

// events passes on the events of one kind.
type events = bus.Bus[event]

func newEvents(instance int64) *events { return bus.New(instance, (*event).weight) }
