package aggregator

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ipwitness/ipwitness/aggregator/access"
	"github.com/ipwitness/ipwitness/aggregator/index"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

const (
	// maxReason is how many bytes a reason has at most.
	maxReason = 1024
	// longestAcknowledgement is a year, also a leap year.
	longestAcknowledgement = 366 * 24 * time.Hour
)

// acknowledgement says that a person knows of a conflict and lives with it: with
// the owners that it has, in this episode, for a time. It silences alerts and
// changes no verdict, which knows nothing of it. It never changes.
type acknowledgement struct {
	proto   *pb.Acknowledgement
	address netip.Addr
	until   verdict.Stamp
	owners  []string
}

// message is the acknowledgement in the contract's form; nil for none.
func (a *acknowledgement) message() *pb.Acknowledgement {
	if a == nil {
		return nil
	}
	return a.proto
}

// covers tells until when the acknowledgement holds: the settle time after an
// owner came that was not there when it was given, as one that goes again at once
// is none to speak of. One that left and came back was there.
func (a *acknowledgement) covers(c *verdict.Conflict, settle time.Duration) verdict.Stamp {
	until := a.until
	for i := range c.Owners {
		if o := &c.Owners[i]; !slices.Contains(a.owners, acknowledgedAs(o)) {
			until = min(until, o.Begun().Add(settle))
		}
	}
	return until
}

// acknowledgedAs is how an acknowledgement knows an owner again. A device outside
// is known by its hardware address: the links that it is seen on may become one.
func acknowledgedAs(o *verdict.Owner) string {
	if o.Namespace == nil && o.MAC != "" {
		return o.MAC.String()
	}
	return o.ID
}

// acknowledgements are those of active conflicts, by id.
type acknowledgements struct {
	mu   sync.Mutex
	byID map[string]*acknowledgement
	// recalled are those of before the start whose conflict did not come back yet.
	recalled map[string]*acknowledgement
}

func newAcknowledgements(recalled map[string]*acknowledgement) acknowledgements {
	return acknowledgements{byID: make(map[string]*acknowledgement), recalled: recalled}
}

// of is the acknowledgement of a conflict; nil for none.
func (a *acknowledgements) of(id string) *acknowledgement {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.byID[id]
}

// all are those of conflicts that are there, and of those that may come back.
func (a *acknowledgements) all() map[string]*acknowledgement {
	a.mu.Lock()
	defer a.mu.Unlock()
	all := make(map[string]*acknowledgement, len(a.recalled)+len(a.byID))
	maps.Copy(all, a.recalled)
	maps.Copy(all, a.byID)
	return all
}

// AcknowledgeConflict silences one conflict until it expires, or takes that back.
func (w witness) AcknowledgeConflict(ctx context.Context, q *pb.AcknowledgeConflictRequest) (*pb.AcknowledgeConflictResponse, error) {
	s, by := w.store, access.Of(ctx).Name()
	// What is answered is on the disk, and nobody is kept waiting by the disk but
	// those who acknowledge.
	s.archive.dir.mu.Lock()
	defer s.archive.dir.mu.Unlock()
	c, ack, err := s.acknowledging(q, by)
	for err == nil && (ack != nil || s.acknowledgements.of(c.ID) != nil) {
		episode := c.Episode
		all := s.acknowledgements.all()
		if delete(all, c.ID); ack != nil {
			all[c.ID] = ack
		}
		if err = s.archive.dir.save(all); err != nil {
			return nil, status.Errorf(codes.Unavailable,
				"the acknowledgement cannot be kept: %s: nothing was changed; see to the data directory of the aggregator, and try again", err)
		}
		var next *acknowledgement
		if c, next, err = s.acknowledging(q, by); err != nil {
			s.archive.changed() // what was written is not so
			break
		}
		if c.Episode != episode || !s.acknowledge(c.ID, episode, ack) { // it ended and came back meanwhile
			ack = next
			continue
		}
		s.judgedBy(s.facts.Retell([]index.Address{index.AddressOf(c.Address)}))
		break
	}
	if err != nil {
		return nil, err
	}
	s.facts.RLock()
	defer s.facts.RUnlock()
	if now := s.shards.Conflicts.Get(c.ID); now != nil {
		c = now
	}
	return &pb.AcknowledgeConflictResponse{Conflict: s.conflictProto(c)}, nil
}

// acknowledge enters an acknowledgement of an episode of a conflict, or takes it back with nil. It
// reports whether the episode is still there: whoever ends it looks at the acknowledgement after
// that.
func (s *store) acknowledge(id string, episode uint32, ack *acknowledgement) bool {
	a := &s.acknowledgements
	a.mu.Lock()
	defer a.mu.Unlock()
	if c := s.shards.Conflicts.Get(id); c == nil || !c.Active() || c.Episode != episode {
		return false
	}
	if delete(a.byID, id); ack != nil {
		a.byID[id] = ack
	}
	return true
}

// acknowledging is the conflict that a request is for, and the acknowledgement
// that it asks for; nil for one that takes back.
func (s *store) acknowledging(q *pb.AcknowledgeConflictRequest, by string) (*verdict.Conflict, *acknowledgement, error) {
	ack, err := newAcknowledgement(q, s.clock())
	if err != nil {
		return nil, nil, err
	}
	c := s.shards.Conflicts.Get(q.GetId())
	if c == nil {
		return nil, nil, noConflict(q.GetId())
	}
	if !c.Active() {
		return nil, nil, status.Errorf(codes.FailedPrecondition,
			"the conflict %s of %s is over since %s: wait whether it comes back, and acknowledge that",
			c.ID, c.Address, c.ResolvedAt.Time().Format(time.RFC3339))
	}
	if ack != nil {
		ack.address, ack.proto.AcknowledgedBy = c.Address, by
		for i := range c.Owners {
			ack.owners = append(ack.owners, acknowledgedAs(&c.Owners[i]))
		}
	}
	return c, ack, nil
}

// newAcknowledgement is what a request asks for; nil for one that takes back.
func newAcknowledgement(q *pb.AcknowledgeConflictRequest, now verdict.Stamp) (*acknowledgement, error) {
	bad := func(format string, args ...any) (*acknowledgement, error) {
		return nil, status.Errorf(codes.InvalidArgument, format, args...)
	}
	if q.GetWithdraw() {
		if q.GetReason() != "" || q.GetExpiresAt() != nil {
			return bad("withdraw ends the acknowledgement now: leave out reason and expires_at, or withdraw")
		}
		return nil, nil
	}
	reason := strings.TrimSpace(q.GetReason())
	expires := q.GetExpiresAt().AsTime()
	switch {
	case reason == "":
		return bad("reason is missing: say why the conflict is to be silent, for whoever finds it")
	case len(reason) > maxReason:
		return bad("reason has %d bytes: %d are the most", len(reason), maxReason)
	case q.GetExpiresAt() == nil:
		return bad("expires_at is missing: say until when, like %s", now.Add(24*time.Hour).Time().Format(time.RFC3339))
	case !q.GetExpiresAt().IsValid():
		return bad("expires_at is no time: give one like %s", now.Add(24*time.Hour).Time().Format(time.RFC3339))
	case !expires.After(now.Time()):
		return bad("expires_at is %s, and here it is %s: give a time that is to come, or withdraw the acknowledgement",
			expires.Format(time.RFC3339), now.Time().Format(time.RFC3339))
	case expires.After(now.Add(longestAcknowledgement).Time()):
		return bad("expires_at is %s: an acknowledgement lasts a year at most; it can be renewed", expires.Format(time.RFC3339))
	}
	return &acknowledgement{
		proto: &pb.Acknowledgement{Reason: reason, AcknowledgedAt: timestamp(now), ExpiresAt: q.GetExpiresAt()},
		until: verdict.At(expires),
	}, nil
}

// lapse ends the acknowledgement of a conflict that is over or has an owner
// more for the settle time, or when its time is up, and reports whether it did. Otherwise it returns
// until when it holds; 0 if there is none. A conflict that came back has the acknowledgement that it
// had before the start.
func (s *store) lapse(c *verdict.Conflict) (until verdict.Stamp, lapsed bool) {
	a := &s.acknowledgements
	a.mu.Lock()
	defer a.mu.Unlock()
	if ack := a.recalled[c.ID]; ack != nil && c.Active() {
		delete(a.recalled, c.ID)
		a.byID[c.ID] = ack
	}
	ack := a.byID[c.ID]
	if ack == nil {
		return 0, false
	}
	if until := ack.covers(c, s.policy.Settle); c.Active() && s.clock() < until {
		return until, false
	}
	delete(a.byID, c.ID)
	s.archive.changed()
	return 0, true
}
