package findings

import (
	"slices"

	"github.com/ipwitness/ipwitness/aggregator/facts"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// A Listener hears of findings. Its methods are called with the facts held.
type Listener interface {
	// FindingChanged tells of a finding that says something new, and what it was before; nil for one
	// that was not there.
	FindingChanged(now, was *Found)
	// FindingEnded tells that a finding is over: it may have become a conflict.
	FindingEnded(over *Found, superseded bool)
}

// A Teller makes findings known.
type Teller struct {
	*Set
	facts    *facts.Facts
	tally    *tally
	listener Listener
}

// Audited makes known what the audit of an address found and what is over. The facts are held.
func (t *Teller) Audited(owners []verdict.Owner, found, before []verdict.Finding, contested bool) {
	// First what is over: with the name of its node, a finding gets another id.
	for i := range before {
		f := &before[i]
		if !f.Waiting && !slices.ContainsFunc(found, func(now verdict.Finding) bool { return now.ID == f.ID && !now.Waiting }) {
			t.End(f.ID, contested)
		}
	}
	for i := range found {
		if f := &found[i]; !f.Waiting {
			t.Tell(f)
			t.tally.atStake(t.facts.Pool(f.Pool), f, owners)
		}
	}
}

// Tell makes a finding known, if it says something new. The facts are held.
func (t *Teller) Tell(f *verdict.Finding) {
	one := *f
	now, was, news := t.put(&one)
	if !news {
		return
	}
	t.tally.count(t.facts.Pool(f.Pool), &one, true, was == nil)
	t.listener.FindingChanged(now, was)
}

// End tells that a finding is over: it may have become a conflict. The facts are held.
func (t *Teller) End(id string, superseded bool) {
	over := t.leave(id)
	if over == nil {
		return
	}
	t.tally.count(t.facts.Pool(over.Pool), over.Finding, false, false)
	t.listener.FindingEnded(over, superseded)
}
