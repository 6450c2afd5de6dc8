package export

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// shelf is what the replicas of a test share.
type shelf struct {
	mu     sync.Mutex
	values map[string][]byte
	leader *bench
	// lost makes it lose what is saved after that many writes. broken fails all writes, and failed counts
	// them.
	saves, lost, failed int
	broken              error
}

// seat is the access of one replica to a shelf.
type seat struct {
	*shelf
	of *bench
}

var errFollower = errors.New("not the leader")

func (s seat) Load(_ context.Context, name string) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.leader != s.of {
		return nil, errFollower
	}
	return s.values[name], nil
}

func (s seat) Save(_ context.Context, name string, value []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.leader != s.of {
		return errFollower
	}
	if s.broken != nil {
		s.failed++
		return s.broken
	}
	if s.saves++; s.lost == 0 || s.saves <= s.lost {
		s.values[name] = value
	}
	return nil
}

// replicas returns two replicas with journals of their own that export to one receiver. The clock of the
// second is ahead.
func replicas(t *testing.T, settings Settings, ahead time.Duration) (a, b *bench, s *shelf) {
	s = &shelf{values: make(map[string][]byte)}
	a, b = newReplica(t, settings, s), newReplica(t, settings, s)
	b.now = a.now.Add(ahead)
	for _, r := range []*bench{a, b} {
		r.start()
		t.Cleanup(func() { r.stop() })
	}
	return a, b, s
}

// lead makes a replica the leader, which the other one ends to be.
func (s *shelf) lead(next *bench) {
	s.mu.Lock()
	before := s.leader
	s.mu.Unlock()
	if before != nil {
		before.follow()
	}
	s.mu.Lock()
	s.leader = next
	s.mu.Unlock()
	next.lead()
}

// awaitWritten waits until the leader has written down that everything it claimed was told. The receiver
// knows earlier; a leader that ends in between leaves its claims to the next one.
func (s *shelf) awaitWritten(t *testing.T) {
	t.Helper()
	wait.Until(t, "no claims are left", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		for name, value := range s.values {
			var l ledger
			if err := json.Unmarshal(value, &l); err != nil {
				t.Fatalf("ledger of %s: %v", name, err)
			}
			if len(l.Claims) > 0 {
				return false
			}
		}
		return len(s.values) > 0
	})
}

// both records a change in both journals, which learn of it at slightly different times.
func both(c *pb.Conflict, replicas ...*bench) {
	for i, r := range replicas {
		own := proto.CloneOf(c)
		for _, at := range []*timestamppb.Timestamp{own.GetDetectedAt(), own.GetConfirmedAt(), own.GetResolvedAt()} {
			if at != nil {
				at.Nanos += int32(i) * 3e6
			}
		}
		r.changed(own)
	}
}

// A new leader goes on where the former one stopped: it tells nothing twice, and leaves nothing out.
func TestANewLeaderContinues(t *testing.T) {
	for _, ahead := range []time.Duration{0, 1500 * time.Millisecond, -1500 * time.Millisecond} {
		h := newHook(t)
		a, b, s := replicas(t, Settings{Webhook: h.URL}, ahead)
		a.state()
		b.state()
		s.lead(a)
		first, second := a.conflict(1), a.conflict(2)
		first.Owners[0].AssignedAt = first.GetDetectedAt()
		both(first, a, b)
		both(second, a, b)
		f := &pb.Finding{Id: "f1", Kind: "leaked", Address: "10.0.0.9", Severity: pb.Finding_WARNING, DetectedAt: timestamppb.New(a.clock())}
		a.found(pb.Watch_ADDED, f)
		b.found(pb.Watch_ADDED, f)
		a.awaitTypes(h, "10.0.0.1 conflict.confirmed", "10.0.0.2 conflict.confirmed", "10.0.0.9 finding.detected")

		s.awaitWritten(t)
		s.lead(b)
		both(resolved(first, a.clock()), a, b)
		third := a.conflict(3)
		both(third, a, b)
		got := a.awaitTypes(h, "10.0.0.1 conflict.confirmed", "10.0.0.2 conflict.confirmed", "10.0.0.9 finding.detected",
			"10.0.0.1 conflict.resolved", "10.0.0.3 conflict.confirmed")

		// The first one leads again. It has followed meanwhile.
		s.awaitWritten(t)
		s.lead(a)
		again := proto.CloneOf(first)
		again.Episode, again.DetectedAt = 2, timestamppb.New(a.clock())
		again.ConfirmedAt, again.Owners[0].AssignedAt = again.DetectedAt, again.DetectedAt
		both(again, a, b)
		got = a.awaitTypes(h, append(types(got), "10.0.0.1 conflict.confirmed")...)
		ids := make(map[string]bool)
		for _, e := range got {
			ids[e.ID] = true
		}
		if len(ids) != len(got) {
			t.Errorf("clock %s ahead: got ids %q, want different ones", ahead, slices.Sorted(maps.Keys(ids)))
		}
	}
}

// A leader that is killed while it tells something leaves it to the next one, which tells it with the same
// id: the receiver may have got it.
func TestAKilledLeaderLeavesItsClaims(t *testing.T) {
	h := newHook(t)
	a, b, s := replicas(t, Settings{Webhook: h.URL}, 0)
	a.state()
	b.state()
	s.lead(a)
	both(a.conflict(1), a, b)
	first := a.awaitTypes(h, "10.0.0.1 conflict.confirmed")
	wait.Until(t, "the first delivery is written down", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.saves >= 3
	})
	s.mu.Lock()
	s.lost = s.saves + 1 // the claim only
	s.mu.Unlock()
	both(a.conflict(2), a, b)
	second := a.awaitTypes(h, "10.0.0.1 conflict.confirmed", "10.0.0.2 conflict.confirmed")[1]
	s.lead(b)
	got := a.awaitTypes(h, "10.0.0.1 conflict.confirmed", "10.0.0.2 conflict.confirmed", "10.0.0.2 conflict.confirmed")
	if got[2].ID != second.ID || got[2].ID == first[0].ID {
		t.Errorf("got the ids %s, %s and %s, want the second one again", got[0].ID, got[1].ID, got[2].ID)
	}
}

// A replica whose journal begins after the former leader's last delivery tells what the former leader
// cannot have told, and nothing else.
func TestALeaderWithANewJournal(t *testing.T) {
	h := newHook(t)
	a, b, s := replicas(t, Settings{Webhook: h.URL}, 0)
	a.state()
	s.lead(a)
	known := a.conflict(1)
	a.changed(known)
	a.awaitTypes(h, "10.0.0.1 conflict.confirmed")
	for range 90 { // nothing happens for longer than the ledger is compared
		a.add(time.Second)
	}
	b.add(a.clock().Sub(b.clock()))
	late := proto.CloneOf(known) // detected anew, with the time of the new replica
	late.DetectedAt = timestamppb.New(b.clock().Add(-80 * time.Second))
	late.ConfirmedAt = late.DetectedAt
	unknown := b.conflict(2)
	b.state(late, unknown)
	s.lead(b)
	a.awaitTypes(h, "10.0.0.1 conflict.confirmed", "10.0.0.2 conflict.confirmed")
}

// A leader tells the end of what the former leader has told of, even if it was itself away when it ended, once
// it knows everything: whether it restarted afterwards, or never knew the conflict.
func TestANewLeaderTellsEndsThatItHasNotSeen(t *testing.T) {
	h := newHook(t)
	a, b, s := replicas(t, Settings{Webhook: h.URL}, 0)
	a.state()
	b.state()
	s.lead(a)
	known, unknown, lasting := a.conflict(1), a.conflict(2), a.conflict(3)
	both(known, a, b)
	a.changed(unknown)
	both(lasting, a, b)
	a.awaitTypes(h, "10.0.0.1 conflict.confirmed", "10.0.0.2 conflict.confirmed", "10.0.0.3 conflict.confirmed")
	s.awaitWritten(t)

	// Both end while neither replica runs, and the other one leads then.
	a.follow()
	b.stop()
	b.add(a.clock().Sub(b.clock()) + time.Minute)
	b.start()
	b.state(lasting)
	s.lead(b)
	b.add(2 * completeFor)
	both(b.conflict(4), b) // it does not know everything yet
	told := []string{
		"10.0.0.1 conflict.confirmed", "10.0.0.2 conflict.confirmed", "10.0.0.3 conflict.confirmed",
		"10.0.0.1 conflict.resolved", "10.0.0.4 conflict.confirmed", // its journal recorded what changed while it was away
	}
	b.awaitTypes(h, told...)
	b.complete.Store(true)
	wait.Until(t, "the end of the conflict that it never knew", func() bool {
		b.add(time.Second)
		return len(h.accepted(t)) > len(told)
	})
	got := b.awaitTypes(h, append(told, "10.0.0.2 conflict.resolved")...)

	// The next leader does not tell them again.
	s.awaitWritten(t)
	a.complete.Store(true)
	a.changed(resolved(known, a.clock()))
	a.changed(resolved(unknown, a.clock()))
	a.changed(b.conflict(4))
	a.add(b.clock().Sub(a.clock()))
	s.lead(a)
	a.changed(resolved(lasting, a.clock()))
	b.awaitTypes(h, append(types(got), "10.0.0.3 conflict.resolved")...)
}

// A leader that ends before it has told anything leaves everything since its beginning to the next one.
func TestALeaderThatHasToldNothingIsContinued(t *testing.T) {
	h := newHook(t)
	h.answers(func(http.ResponseWriter, int) int { return http.StatusServiceUnavailable })
	a, b, s := replicas(t, Settings{Webhook: h.URL}, 0)
	a.state()
	b.state()
	s.lead(a)
	s.awaitWritten(t)
	short := a.conflict(1)
	both(short, a, b)
	wait.Until(t, "an attempt", func() bool { return len(h.all()) > 0 })
	both(resolved(short, a.clock()), a, b)
	s.lead(b)
	h.answers(nil)
	both(a.conflict(2), a, b)
	b.awaitTypes(h, "10.0.0.1 conflict.confirmed", "10.0.0.1 conflict.resolved", "10.0.0.2 conflict.confirmed")
}

// Once a new leader knows everything, it corrects what the receiver believes: it tells the end of a conflict that
// the former leader was telling when it ended, and that a conflict lasts whose end the former leader told.
func TestANewLeaderCorrectsWhatTheReceiverBelieves(t *testing.T) {
	h := newHook(t)
	a, b, s := replicas(t, Settings{Webhook: h.URL}, 0)
	a.state()
	b.state()
	s.lead(a)
	lasting, unknown := a.conflict(1), a.conflict(2)
	both(lasting, a, b)
	a.changed(resolved(lasting, a.clock()))
	a.awaitTypes(h, "10.0.0.1 conflict.confirmed", "10.0.0.1 conflict.resolved")
	s.awaitWritten(t)
	s.mu.Lock()
	s.lost = s.saves + 1 // the claim only
	s.mu.Unlock()
	a.changed(unknown)
	told := []string{"10.0.0.1 conflict.confirmed", "10.0.0.1 conflict.resolved", "10.0.0.2 conflict.confirmed"}
	a.awaitTypes(h, told...)
	a.follow()
	s.mu.Lock()
	s.lost = 0
	s.mu.Unlock()

	b.complete.Store(true)
	s.lead(b)
	wait.Until(t, "corrections", func() bool {
		b.add(time.Second)
		return len(h.accepted(t)) >= len(told)+2
	})
	b.awaitTypes(h, append(told, "10.0.0.1 conflict.confirmed", "10.0.0.2 conflict.resolved")...)
}

// A leader that cannot write its ledger delivers nothing, and says so, until it can.
func TestALedgerThatCannotBeWrittenIsAProblem(t *testing.T) {
	h := newHook(t)
	a, _, s := replicas(t, Settings{Webhook: h.URL}, 0)
	a.state()
	s.lead(a)
	a.add(2 * overlap) // then it reads again what follows the last delivery, not its present state
	a.changed(a.conflict(1))
	a.awaitTypes(h, "10.0.0.1 conflict.confirmed")
	s.awaitWritten(t)
	attempts := func(n int) {
		t.Helper()
		s.mu.Lock()
		n += s.failed
		s.mu.Unlock()
		wait.Until(t, "some more attempts to write the ledger", func() bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.failed >= n
		})
	}
	s.mu.Lock()
	s.broken = errors.New("no permission")
	s.mu.Unlock()
	a.changed(a.conflict(2))
	attempts(2)
	a.add(2 * complainAfter)
	attempts(2)
	if got := a.Exporters.Problems(); len(got) != 1 || !strings.Contains(got[0], "no permission") {
		t.Errorf("got problems %q, want one about the permission", got)
	}
	if got := a.stats().Lag; got < 2*complainAfter {
		t.Errorf("got a lag of %s, want at least %s", got, 2*complainAfter)
	}
	if got := types(h.accepted(t)); len(got) > 1 {
		t.Errorf("got %q delivered, want nothing more without a ledger", got)
	}
	s.mu.Lock()
	s.broken = nil
	s.mu.Unlock()
	a.awaitTypes(h, "10.0.0.1 conflict.confirmed", "10.0.0.2 conflict.confirmed")
	wait.Until(t, "no problem is left", func() bool { return len(a.Exporters.Problems()) == 0 && a.stats().Lag == 0 })
}

// Two full ledgers fit in one ConfigMap, which may have 1 MiB.
func TestAFullLedgerIsSmall(t *testing.T) {
	h := &handover{ledger: ledger{Until: time.Now(), Told: make(map[string]entry)}, seen: make(map[string]entry)}
	for i := range mostTold + 1 {
		h.ledger.Told[fmt.Sprintf("conflict-%016x", i)] = entry{
			Rank: confirmed, At: h.ledger.Until.Add(time.Duration(i) * time.Microsecond), Began: h.ledger.Until.Add(-time.Microsecond), Address: "fd00:10:244::1234",
		}
	}
	for i := range claimedAtOnce {
		e := entry{Subject: fmt.Sprintf("conflict-%016x", i), Rank: confirmed, At: h.ledger.Until, Address: "fd00:10:244::1234"}
		e.ID = fmt.Sprintf("%s-1-%d", e.Subject, e.At.UnixMicro())
		h.ledger.Claims = append(h.ledger.Claims, e)
	}
	h.prune()
	if _, found := h.ledger.Told[fmt.Sprintf("conflict-%016x", 0)]; found || len(h.ledger.Told) != mostTold {
		t.Errorf("got %d entries, want %d without the oldest one", len(h.ledger.Told), mostTold)
	}
	raw, err := json.Marshal(&h.ledger)
	if err != nil {
		t.Fatal(err)
	}
	if len(raw) > 500_000 {
		t.Errorf("it has %d bytes", len(raw))
	}
}
