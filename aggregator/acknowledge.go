package aggregator

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ipwitness/ipwitness/aggregator/access"
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

// AcknowledgeConflict silences one conflict until it expires, or takes that back.
func (w witness) AcknowledgeConflict(ctx context.Context, q *pb.AcknowledgeConflictRequest) (*pb.AcknowledgeConflictResponse, error) {
	s, by := w.store, access.Of(ctx).Name()
	// What is answered is on the disk, and nobody is kept waiting by the disk but
	// those who acknowledge.
	s.archive.dir.mu.Lock()
	defer s.archive.dir.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	c, ack, err := s.acknowledging(q, by)
	for err == nil && (ack != nil || s.acknowledged[c.ID] != nil) {
		episode := c.Episode
		if err = s.saveWith(c.ID, ack); err != nil {
			return nil, status.Errorf(codes.Unavailable,
				"the acknowledgement cannot be kept: %s: nothing was changed; see to the data directory of the aggregator, and try again", err)
		}
		var next *acknowledgement
		if c, next, err = s.acknowledging(q, by); err != nil {
			s.archive.changed() // what was written is not so
			break
		}
		if c.Episode != episode { // it ended and came back meanwhile
			ack = next
			continue
		}
		if delete(s.acknowledged, c.ID); ack != nil {
			s.acknowledged[c.ID] = ack
			s.arm(s.byID[c.ID], ack.until)
		}
		out := s.conflictProto(c)
		same := contestOf(c)
		s.conflicts.Publish(event{typ: updated, addr: c.Address, conflict: out, contest: same, contested: same})
		return &pb.AcknowledgeConflictResponse{Conflict: out}, nil
	}
	if err != nil {
		return nil, err
	}
	return &pb.AcknowledgeConflictResponse{Conflict: s.conflictProto(c)}, nil // as was asked for
}

// acknowledging is the conflict that a request is for, and the acknowledgement
// that it asks for; nil for one that takes back.
func (s *store) acknowledging(q *pb.AcknowledgeConflictRequest, by string) (*verdict.Conflict, *acknowledgement, error) {
	ack, err := newAcknowledgement(q, s.clock())
	if err != nil {
		return nil, nil, err
	}
	e := s.byID[q.GetId()]
	if e == nil {
		return nil, nil, noConflict(q.GetId())
	}
	c := e.conflict(q.GetId())
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
// more for the settle time, or when its time is up, and tells whether it did.
func (s *store) lapse(e *entry, c *verdict.Conflict) bool {
	ack := s.acknowledged[c.ID]
	if ack == nil {
		return false
	}
	if until := ack.covers(c, s.policy.Settle); c.Active() && s.clock() < until {
		s.arm(e, until)
		return false
	}
	delete(s.acknowledged, c.ID)
	s.archive.changed()
	return true
}
