package judge

import (
	"slices"

	"github.com/ipwitness/ipwitness/aggregator/facts"
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

// A Publisher publishes findings.
type Publisher struct {
	*Set
	facts    *facts.Facts
	tally    *tally
	listener FindingsListener
}

// Audited publishes the findings of an audit of an address, and ends the previous ones that are
// gone. The caller holds the facts.
func (t *Publisher) Audited(owners []verdict.Owner, found, before []verdict.Finding, contested bool) {
	// Old findings end first, because a finding of a renamed node gets another ID.
	for i := range before {
		f := &before[i]
		if !f.Waiting && !slices.ContainsFunc(found, func(now verdict.Finding) bool { return now.ID == f.ID && !now.Waiting }) {
			t.End(f.ID, contested)
		}
	}
	for i := range found {
		if f := &found[i]; !f.Waiting {
			t.Publish(f)
			t.tally.updateOwners(t.facts.Pool(f.Pool), f, owners)
		}
	}
}

// Publish publishes a finding if it is new or has changed. The caller holds the facts.
func (t *Publisher) Publish(f *verdict.Finding) {
	one := *f
	now, was, news := t.put(&one)
	if !news {
		return
	}
	t.tally.count(t.facts.Pool(f.Pool), &one, true, was == nil)
	t.listener.FindingChanged(now, was)
}

// End removes a finding and publishes its end. superseded is set if a conflict replaced it. The
// caller holds the facts.
func (t *Publisher) End(id string, superseded bool) {
	over := t.remove(id)
	if over == nil {
		return
	}
	t.tally.count(t.facts.Pool(over.Pool), over.Finding, false, false)
	t.listener.FindingEnded(over, superseded)
}
