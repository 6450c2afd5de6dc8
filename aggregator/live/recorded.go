package live

import (
	"maps"
	"sync"

	"google.golang.org/protobuf/proto"

	"github.com/ipwitness/ipwitness/aggregator/explain"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// Recorded has the messages of the conflicts from before the start, as they were recorded. A conflict
// that was not judged since has only them for a description.
type Recorded struct {
	mu   sync.Mutex
	byID map[string]*pb.Conflict
}

// NewRecorded returns a Recorded without messages.
func NewRecorded() *Recorded { return &Recorded{byID: make(map[string]*pb.Conflict)} }

// Add adds a message, which must not change afterwards.
func (r *Recorded) Add(c *pb.Conflict) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.byID[c.GetId()] = c
}

// Keep drops the messages for whose IDs needed returns false.
func (r *Recorded) Keep(needed func(id string) bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.byID, func(id string, _ *pb.Conflict) bool { return !needed(id) })
}

func (r *Recorded) get(id string) *pb.Conflict {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.byID[id]
}

// recalled returns the message of a conflict from before the start that was not judged since; nil if
// there is none. It has no steps to take, which might not be safe any longer.
func (s *Converter) recalled(c *verdict.Conflict) *pb.Conflict {
	before := s.Recorded.get(c.ID)
	if before == nil {
		return nil
	}
	out := proto.CloneOf(before)
	out.Acknowledgement = s.Acknowledgements.Of(c.ID)
	if !c.Active() && before.GetState() == pb.Conflict_RESOLVED {
		return out
	}
	text := explain.Recalled(s.Facts.Policy, c)
	out.State, out.ResolvedAt, out.Summary = pb.Conflict_State(c.Phase), timestamp(c.ResolvedAt), text
	for i, o := range out.GetOwners() {
		if i < len(c.Owners) {
			o.State = pb.Owner_State(c.Owners[i].State)
		}
	}
	return out
}
