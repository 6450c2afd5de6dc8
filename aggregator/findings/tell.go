package findings

import (
	"slices"

	"github.com/ipwitness/ipwitness/aggregator/facts"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// A Listener is notified of findings. Its methods are called with the facts held.
type Listener interface {
	// FindingChanged is called with a finding that says something new, and with its previous
	// version; nil for a new finding.
	FindingChanged(now, was *Found)
	// FindingEnded is called when a finding is over. superseded is set if it became a conflict.
	FindingEnded(over *Found, superseded bool)
}

// A Teller publishes findings.
type Teller struct {
	*Set
	facts    *facts.Facts
	tally    *tally
	listener Listener
}

// Audited publishes what the audit of an address found, and ends what it no longer finds. The facts
// are held.
func (t *Teller) Audited(owners []verdict.Owner, found, before []verdict.Finding, contested bool) {
	// First end old findings: when its node is renamed, a finding gets another id.
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

// Tell publishes a finding if it says something new. The facts are held.
func (t *Teller) Tell(f *verdict.Finding) {
	one := *f
	now, was, news := t.put(&one)
	if !news {
		return
	}
	t.tally.count(t.facts.Pool(f.Pool), &one, true, was == nil)
	t.listener.FindingChanged(now, was)
}

// End removes a finding and publishes that. superseded is set if it became a conflict. The facts
// are held.
func (t *Teller) End(id string, superseded bool) {
	over := t.leave(id)
	if over == nil {
		return
	}
	t.tally.count(t.facts.Pool(over.Pool), over.Finding, false, false)
	t.listener.FindingEnded(over, superseded)
}
