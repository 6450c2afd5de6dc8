package judge

import (
	"cmp"
	"slices"
	"sync"

	"github.com/ipwitness/ipwitness/aggregator/audit"
	"github.com/ipwitness/ipwitness/aggregator/facts"
	"github.com/ipwitness/ipwitness/aggregator/index"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// A FindingsListener is notified of findings. Its methods are called while the facts are held.
type FindingsListener interface {
	// FindingChanged is called with a new or changed finding and with its previous version, which
	// is nil for a new finding.
	FindingChanged(now, was *Found)
	// FindingEnded is called when a finding has ended. superseded is set if a conflict replaced it.
	FindingEnded(over *Found, superseded bool)
}

// Set holds the current findings and publishes their changes.
type Set struct {
	facts    *facts.Facts
	pools    *Pools
	listener FindingsListener
	// inOrder has the findings in the order of lists.
	inOrder *index.Set[*Found]

	mu    sync.Mutex
	byID  map[string]*Found
	kinds map[string]int
	// recalled has the times at which findings began that were known before the start and have not
	// been found again yet.
	recalled map[string]verdict.Stamp
}

// Found is a finding with the time at which it began. There may be a hundred thousand of them, so
// their text is made only when they are published. It is immutable.
type Found struct {
	*verdict.Finding
	Place FindingPlace
	Since verdict.Stamp
	// Recalled is set if the finding was known before the start.
	Recalled bool
}

// Less reports whether a finding comes before another one in lists.
func (f *Found) Less(o *Found) bool { return f.Place.Compare(o.Place) < 0 }

// InOrder returns the findings in the order of lists.
func (f *Set) InOrder() *index.Set[*Found] { return f.inOrder }

// Audited publishes the findings of an audit of an address, and ends the previous ones that are
// gone. The caller holds the facts.
func (f *Set) Audited(_ index.Address, owners []verdict.Owner, found, before []verdict.Finding, contested bool) {
	// Old findings end first, because a finding of a renamed node gets another ID.
	for i := range before {
		was := &before[i]
		if !was.Waiting && !slices.ContainsFunc(found, func(now verdict.Finding) bool { return now.ID == was.ID && !now.Waiting }) {
			f.End(was.ID, contested)
		}
	}
	for i := range found {
		if now := &found[i]; !now.Waiting {
			f.Publish(now)
			f.pools.updateOwners(now, owners)
		}
	}
}

// Publish publishes a finding if it is new or has changed. The caller holds the facts.
func (f *Set) Publish(one *verdict.Finding) {
	one = new(*one)
	now := &Found{Finding: one, Place: PlaceOf(one), Since: f.facts.Clock()}
	f.mu.Lock()
	was := f.byID[one.ID]
	if since := f.recalled[one.ID]; was != nil {
		now.Since, now.Recalled = was.Since, was.Recalled
	} else if since != 0 {
		now.Since, now.Recalled = since, true
		delete(f.recalled, one.ID)
	}
	f.store(now)
	f.mu.Unlock()
	if was != nil && audit.Same(was.Finding, one) {
		return // only the stored owners are updated
	}
	f.pools.count(one, true, was == nil)
	f.listener.FindingChanged(now, was)
}

// End removes a finding and publishes its end. superseded is set if a conflict replaced it. The
// caller holds the facts.
func (f *Set) End(id string, superseded bool) {
	f.mu.Lock()
	over := f.byID[id]
	if over != nil {
		delete(f.byID, id)
		f.inOrder.Delete(over)
		f.kinds[over.Kind]--
	}
	f.mu.Unlock()
	if over != nil {
		f.pools.count(over.Finding, false, false)
		f.listener.FindingEnded(over, superseded)
	}
}

// Recall sets the times at which findings began that were known before the start: of those that were
// found again already, and of those that will be. It replaces the times of the previous call.
func (f *Set) Recall(since map[string]verdict.Stamp) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.recalled = since
	for id, at := range since {
		if one := f.byID[id]; one != nil {
			now := *one
			now.Since, now.Recalled = at, true
			f.store(&now)
			delete(since, id)
		}
	}
}

// store adds a finding and replaces the one with the same ID, if any.
func (f *Set) store(one *Found) {
	if before := f.byID[one.ID]; before == nil {
		f.kinds[one.Kind]++
	} else if before.Place != one.Place {
		f.inOrder.Delete(before)
	}
	f.byID[one.ID] = one
	f.inOrder.Put(one)
}

// Get returns a finding; nil if there is none.
func (f *Set) Get(id string) *Found {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.byID[id]
}

// finding returns the finding with an ID; nil if there is none.
func (f *Set) finding(id string) *verdict.Finding {
	if one := f.Get(id); one != nil {
		return one.Finding
	}
	return nil
}

// All returns all findings, in no order.
func (f *Set) All() (all []*Found) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, one := range f.byID {
		all = append(all, one)
	}
	return all
}

// Count returns the number of findings of each kind, including kinds without findings.
func (f *Set) Count() map[string]int {
	f.mu.Lock()
	defer f.mu.Unlock()
	count := make(map[string]int)
	for _, kind := range verdict.FindingKinds() {
		count[kind] = f.kinds[kind]
	}
	return count
}

// FindingPlace is the sort key of a finding in lists.
type FindingPlace struct{ Kind, Address, ID string }

// PlaceOf returns the place of a finding.
func PlaceOf(f *verdict.Finding) FindingPlace {
	at := FindingPlace{Kind: f.Kind, ID: f.ID}
	switch {
	case f.Overlap != nil:
		at.Address = f.Overlap.Range.String()
	case f.Address.IsValid():
		at.Address = f.Address.String()
	}
	return at
}

// Compare orders places by kind, address and ID.
func (p FindingPlace) Compare(other FindingPlace) int {
	return cmp.Or(cmp.Compare(p.Kind, other.Kind), cmp.Compare(p.Address, other.Address), cmp.Compare(p.ID, other.ID))
}
