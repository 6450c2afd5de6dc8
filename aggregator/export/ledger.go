package export

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/episode"
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
	mostTold = 3000
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

// An entry is a transition in a ledger. Only claims have a subject and an ID, and what is not over has an
// address. Update is set for claims of updates.
type entry struct {
	Subject string    `json:"subject,omitempty"`
	ID      string    `json:"id,omitempty"`
	Rank    rank      `json:"rank"`
	At      time.Time `json:"at"`
	Began   time.Time `json:"began,omitzero"`
	Address string    `json:"address,omitempty"`
	Update  bool      `json:"update,omitempty"`
	// own is set if this replica has told it since it became the leader.
	own bool
}

// entryOf returns the entry of a transition.
func entryOf(t *transition) entry {
	e := entry{Rank: t.rank, At: t.at, Began: t.began}
	if t.rank != over {
		e.Address = address(t.Event)
	}
	return e
}

// compare returns whether a transition is of the same episode as one in the ledger (0), of an earlier one
// (less than 0) or a later one. The episodes of findings, and those of conflicts whose beginning is not known,
// are compared by the times at which the replicas have recorded them.
func (t *transition) compare(e *entry) int {
	switch {
	case !t.began.IsZero() && !e.Began.IsZero():
		if episode.Same(t.began, e.Began) {
			return 0
		}
		return t.began.Compare(e.Began)
	case t.at.Before(e.At.Add(-skew)):
		return -1
	case e.Rank == over && t.detected.After(e.At):
		return 1
	}
	return 0
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
	// complete is since when this replica has known everything, as far as it has looked. corrected is set once
	// what the former leaders have told was corrected.
	complete  time.Time
	corrected bool
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

// begin writes down that the receiver gets what happens from a time on, before it gets anything.
func (h *handover) begin(ctx context.Context, at time.Time) error {
	h.ledger.Until = at
	return h.save(ctx)
}

// news reports whether a transition has not been told, and notes it as being told. A transition that the
// former leader may have told gets the id that it had.
func (h *handover) news(t *transition) bool {
	if t.rank == unranked {
		return t.at.After(h.from.Add(-skew))
	}
	if h.untold(t) {
		if h.seen[t.subject].Rank == over && t.updates() {
			t.name = t.beginning() // this replica has not seen the end that was told
		}
		h.note(t)
		return true
	}
	if e := h.seen[t.subject]; t.rank == over && e.Rank == over && t.compare(&e) == 0 {
		e.At = t.at // by the own clock, with which the start of the next episode is compared
		h.seen[t.subject] = e
	}
	return false
}

// untold reports whether a transition has not been told.
func (h *handover) untold(t *transition) bool {
	e, known := h.seen[t.subject]
	switch {
	case !e.own && h.passed(t):
		return false
	case !known:
		return t.rank != over || t.continues // nothing was told that could end
	case e.own:
		return true // what follows in this replica's own journal
	}
	switch order := t.compare(&e); {
	case order < 0:
		return false
	case e.Rank == over:
		return order > 0 && t.rank != over
	case order > 0 || t.rank > e.Rank:
		return true
	case t.climbs:
		return false
	}
	return t.at.After(h.from.Add(-skew)) // an update, or a conflict that is not confirmed any longer
}

// passed reports whether the former leader was already telling something later when it ended.
func (h *handover) passed(t *transition) bool {
	claims := h.claimed[t.subject]
	if len(claims) == 0 || t.began.IsZero() || claims[0].Began.IsZero() {
		return false
	}
	order := t.compare(&claims[0])
	return order < 0 || order == 0 && t.rank < claims[0].Rank
}

// ended returns what was told, or may have been, of an earlier episode than that of a transition which is news, and
// has ended although this replica has not seen that; nil for nothing.
func (h *handover) ended(t *transition) *entry {
	e, known := h.seen[t.subject]
	if e.own || t.rank == over || h.passed(t) {
		return nil
	}
	earlier := known && t.compare(&e) > 0
	for _, c := range h.claimed[t.subject] {
		if t.compare(&c) > 0 {
			e, earlier = c, true
		}
	}
	if !earlier || e.Rank == over || t.continues && episode.Same(t.before, e.Began) {
		return nil
	}
	return &e
}

// note notes a transition as being told. If the former leader has claimed it, it gets the id that it had.
func (h *handover) note(t *transition) {
	claims := h.claimed[t.subject]
	if i := slices.IndexFunc(claims, func(c entry) bool {
		return c.Rank == t.rank && c.Update == t.updates() && t.compare(&c) == 0 && (!c.Update || t.at.Sub(c.At).Abs() <= skew)
	}); i >= 0 {
		t.id = claims[i].ID
		h.claimed[t.subject] = slices.Delete(claims, i, i+1)
	}
	e := entryOf(t)
	e.own = true
	h.seen[t.subject] = e
}

// open returns what was told to have begun and not to have ended, by subject, with what the former leader was
// telling when it ended.
func (h *handover) open() map[string]entry {
	open := maps.Clone(h.seen)
	for subject, claims := range h.claimed {
		for _, c := range claims {
			if c.Rank != over && !open[subject].own {
				open[subject] = c
			}
		}
	}
	maps.DeleteFunc(open, func(_ string, e entry) bool { return e.Rank == over })
	return open
}

// known notes that a transition was told before there was a ledger.
func (h *handover) known(t *transition) {
	if t.rank != unranked {
		h.ledger.Told[t.subject] = entryOf(t)
		h.seen[t.subject] = h.ledger.Told[t.subject]
	}
}

// claim writes down that transitions will be told. It fails if another replica has become the leader, so
// that a replica that was paused tells nothing twice.
func (h *handover) claim(ctx context.Context, some []transition) error {
	h.ledger.Claims = h.ledger.Claims[:0]
	for i := range some {
		if some[i].rank != unranked {
			e := entryOf(&some[i])
			e.Subject, e.ID, e.Update = some[i].subject, some[i].id, some[i].updates()
			h.ledger.Claims = append(h.ledger.Claims, e)
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
		h.ledger.Told[c.Subject] = entry{Rank: c.Rank, At: c.At, Began: c.Began, Address: c.Address}
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
