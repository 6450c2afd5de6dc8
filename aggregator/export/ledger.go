package export

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

const (
	// overlap is how long before the last delivery of the former leader a new leader begins to compare
	// what it has recorded with what was told. Replicas learn of a change at slightly different times,
	// and their clocks differ.
	overlap = 30 * time.Second
	// skew is the largest difference between the times at which two replicas usually record a change.
	skew = 2 * time.Second
	// mostTold is the largest number of conflicts and findings in a ledger. Two ledgers of this size take
	// most of the 1 MiB that a ConfigMap may have.
	mostTold = 5000
	// savedEvery is the shortest time between two writes of a ledger without a claim, and savedIn is the
	// time that the last write may take.
	savedEvery = time.Second
	savedIn    = 2 * time.Second
)

// Shared keeps what each exporter has told, so that another replica continues when it becomes the
// leader.
type Shared interface {
	// Load returns what was saved for an exporter; nil if nothing was.
	Load(ctx context.Context, name string) ([]byte, error)
	// Save replaces it. It fails if another replica has become the leader.
	Save(ctx context.Context, name string, value []byte) error
}

// A ledger is what the leaders have told a receiver. Times are those of the replica that wrote it.
type ledger struct {
	// Until is the time up to which all transitions were told; zero if none were.
	Until time.Time `json:"until"`
	// Told is the last transition that was told of each conflict and finding. The ones that are over
	// are kept for a while. Claims are being told: a leader that ends meanwhile leaves them to the next
	// one, which tells them with the same ids.
	Told   map[string]entry `json:"told,omitempty"`
	Claims []entry          `json:"claims,omitempty"`
}

// An entry is a transition in a ledger. Only claims have a subject and an ID.
type entry struct {
	Subject string    `json:"subject,omitempty"`
	ID      string    `json:"id,omitempty"`
	Rank    rank      `json:"rank"`
	At      time.Time `json:"at"`
}

// A rank orders the transitions of one conflict or finding: a later one means that the earlier ones were
// told.
type rank int

const (
	unranked rank = iota // of an owner or a node
	begun
	confirmed
	over
)

// rankOf returns the rank of a transition, and the time at which its conflict or finding began.
func rankOf(t *transition) (r rank, since time.Time) {
	switch {
	case t.GetConflict() != nil:
		c := t.GetConflict()
		r = map[pb.Conflict_State]rank{pb.Conflict_SUSPECTED: begun, pb.Conflict_CONFIRMED: confirmed, pb.Conflict_RESOLVED: over}[c.GetState()]
		return r, c.GetDetectedAt().AsTime()
	case t.GetFinding() != nil && t.GetType() == pb.Watch_REMOVED:
		return over, t.GetFinding().GetDetectedAt().AsTime()
	case t.GetFinding() != nil:
		return begun, t.GetFinding().GetDetectedAt().AsTime()
	}
	return unranked, time.Time{}
}

// A handover decides which transitions the former leaders have told, and writes down what this one tells.
// Its journal has the same transitions, but neither their exact times nor always their number.
type handover struct {
	shared Shared
	name   string
	ledger ledger
	// from is the value of ledger.Until with which it began.
	from time.Time
	// seen is ledger.Told with the transitions that are being told. claimed are the claims of the former
	// leader, by subject.
	seen    map[string]entry
	claimed map[string][]entry
	savedAt time.Time
	// dirty is set if the ledger has changed since it was saved.
	dirty bool
}

// loadLedger returns the state that the former leaders have left.
func loadLedger(ctx context.Context, shared Shared, name string) (*handover, error) {
	raw, err := shared.Load(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("read the ledger of exports: %w", err)
	}
	h := &handover{shared: shared, name: name, claimed: make(map[string][]entry)}
	if raw != nil {
		if err := json.Unmarshal(raw, &h.ledger); err != nil {
			return nil, fmt.Errorf("read the ledger of exports to %s: %w", name, err)
		}
	}
	if h.ledger.Told == nil {
		h.ledger.Told = make(map[string]entry)
	}
	h.from, h.seen = h.ledger.Until, maps.Clone(h.ledger.Told)
	for _, c := range h.ledger.Claims {
		h.claimed[c.Subject] = append(h.claimed[c.Subject], c)
	}
	return h, nil
}

// news reports whether a transition has not been told, and notes it as being told. A transition that the
// former leader may have told gets the id that it had.
func (h *handover) news(t *transition) bool {
	r, since := rankOf(t)
	if r == unranked {
		return t.at.After(h.from.Add(-skew))
	}
	e, known := h.seen[t.subject]
	if known && t.at.Before(e.At.Add(-skew)) {
		return false // it was told before the last transition, which is the only one in the ledger
	}
	// The conflict began before the last transition that was told of it, so this is the same episode.
	same := known && (e.Rank != over && !since.After(e.At.Add(overlap)) || e.Rank == over && !since.After(e.At))
	if same && r <= e.Rank && (t.present || !t.at.After(h.from.Add(overlap)) && !t.at.After(e.At.Add(skew))) {
		if r == over && t.at.Sub(e.At).Abs() <= skew {
			e.At = t.at // by the own clock, with which the start of the next episode is compared
			h.seen[t.subject] = e
		}
		return false
	}
	claims := h.claimed[t.subject]
	if i := slices.IndexFunc(claims, func(c entry) bool { return c.Rank == r && !t.at.After(c.At.Add(overlap)) }); i >= 0 {
		t.id = claims[i].ID
		h.claimed[t.subject] = slices.Delete(claims, i, i+1)
	}
	h.seen[t.subject] = entry{Rank: r, At: t.at}
	return true
}

// known notes that a transition was told before there was a ledger.
func (h *handover) known(t *transition) {
	if r, _ := rankOf(t); r != unranked {
		h.ledger.Told[t.subject] = entry{Rank: r, At: t.at}
		h.seen[t.subject] = h.ledger.Told[t.subject]
	}
}

// claim writes down that transitions will be told. It fails if another replica has become the leader, so
// that a replica that was paused tells nothing twice.
func (h *handover) claim(ctx context.Context, some []transition) error {
	h.ledger.Claims = h.ledger.Claims[:0]
	for i := range some {
		if r, _ := rankOf(&some[i]); r != unranked {
			h.ledger.Claims = append(h.ledger.Claims, entry{Subject: some[i].subject, ID: some[i].id, Rank: r, At: some[i].at})
		}
	}
	if len(h.ledger.Claims) == 0 {
		return nil
	}
	return h.save(ctx)
}

// told notes that the transitions that were claimed have been told, and all others up to a time.
func (h *handover) told(ctx context.Context, until time.Time, now time.Time) error {
	claims := h.ledger.Claims
	for _, c := range claims {
		h.ledger.Told[c.Subject] = entry{Rank: c.Rank, At: c.At}
	}
	if len(claims) == 0 && !until.After(h.ledger.Until) {
		return nil
	}
	h.ledger.Claims, h.ledger.Until, h.dirty = nil, until, true
	if len(claims) == 0 && now.Sub(h.savedAt) < savedEvery {
		return nil
	}
	h.savedAt = now
	h.prune()
	return h.save(ctx)
}

// prune forgets what was over a while before, and the oldest entries if there are too many.
func (h *handover) prune() {
	old := func(_ string, e entry) bool { return e.Rank == over && e.At.Before(h.ledger.Until.Add(-2*overlap)) }
	maps.DeleteFunc(h.ledger.Told, old)
	maps.DeleteFunc(h.seen, old)
	if len(h.ledger.Told) <= mostTold {
		return
	}
	subjects := slices.SortedFunc(maps.Keys(h.ledger.Told), func(a, b string) int { return h.ledger.Told[a].At.Compare(h.ledger.Told[b].At) })
	for _, s := range subjects[:len(subjects)-mostTold] {
		delete(h.ledger.Told, s)
		delete(h.seen, s)
	}
}

// save saves the ledger.
func (h *handover) save(ctx context.Context) error {
	raw, err := json.Marshal(&h.ledger)
	if err != nil {
		return err
	}
	if err := h.shared.Save(ctx, h.name, raw); err != nil {
		return fmt.Errorf("save the ledger of exports: %w", err)
	}
	h.dirty = false
	return nil
}

// close saves what was not saved yet.
func (h *handover) close(ctx context.Context) error {
	if h == nil || !h.dirty {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), savedIn)
	defer cancel()
	return h.save(ctx)
}
