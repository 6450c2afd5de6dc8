package aggregator

import (
	"net/netip"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/facts"
	"github.com/ipwitness/ipwitness/aggregator/findings"
	"github.com/ipwitness/ipwitness/aggregator/index"
	"github.com/ipwitness/ipwitness/aggregator/shard"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// taken is the report.Listener.
type taken struct{ *core }

// Applied resumes the checks that waited for the snapshot of a node.
func (c taken) Applied(n *facts.Node) { c.findings.Intended.Resume(n) }

// Judge waits until all that a change touched is judged.
func (c taken) Judge(b *facts.Batch) { c.judge(b) }

// Untidy schedules the release of unused memory.
func (c taken) Untidy() { c.tidier.later() }

// Shared reports whether a node shares its name.
func (c taken) Shared(n *facts.Node) bool { return c.findings.Names.Shared(n) }

// heard is the facts.Listener.
type heard struct{ *core }

// NodeChanged publishes the state of a node in all watches.
func (c heard) NodeChanged(n *facts.Node) {
	c.coverage.Changed()
	c.events.NodeChanged(n)
}

// NamesChanged checks whether a node shares its name.
func (c heard) NamesChanged(n *facts.Node) {
	c.coverage.Changed()
	c.findings.Names.Check(n)
}

// Answered checks whether a node that answered shares its name, if that is not known.
func (c heard) Answered(n *facts.Node) { c.findings.Names.Answered(n) }

// RangesChanged schedules a comparison of ranges.
func (c heard) RangesChanged(n *facts.Node) { c.findings.Overlaps.Changed(n) }

// MayLack schedules a check whether a namespace lacks an address.
func (c heard) MayLack(n *facts.Node, record uint32) { c.findings.Intended.MayLack(n, record) }

// PoolChanged schedules a check of a pool.
func (c heard) PoolChanged(p *facts.Pool) { c.findings.Pools.Changed(p) }

// PoolEnded drops the findings about a pool itself.
func (c heard) PoolEnded(p *facts.Pool) { c.findings.Pools.Ended(p) }

// AtRisk returns the addresses in use that a pool considers free.
func (c heard) AtRisk(p *facts.Pool) []netip.Addr { return c.findings.Pools.AtRisk(p) }

// CoverageChanged discards the cached coverage.
func (c heard) CoverageChanged() { c.coverage.Changed() }

// OwnersWatched reports whether owners are watched.
func (c heard) OwnersWatched() bool { return c.events.Owners.Wanted() }

// Contested yields the addresses that nodes look at more closely.
func (c heard) Contested(yield func(index.Address) bool) { c.shards.Conflicts.Contested(yield) }

// Dropped counts records that are invalid or exceed a limit.
func (c heard) Dropped(record string, n int) { c.metrics.Dropped(record, n) }

// Refused counts a record that did not fit into memory.
func (c heard) Refused(record string) { c.metrics.Refused(record) }

// judged is the shard.Listener.
type judged struct{ *core }

// OwnersWatched reports whether owners are watched.
func (c judged) OwnersWatched() bool { return c.events.Owners.Wanted() }

// OwnerChanged publishes an owner.
func (c judged) OwnerChanged(what shard.OwnerChange, a index.Address, o, before *verdict.Owner, all []verdict.Owner) {
	c.events.OwnerChanged(what, a, o, before, all)
}

// ConflictChanged publishes a conflict.
func (c judged) ConflictChanged(now, before *verdict.Conflict, opened bool) {
	c.events.ConflictChanged(now, before, opened)
}

// Detected observes how long it took to suspect a conflict.
func (c judged) Detected(took time.Duration) { c.metrics.Detected(took) }

// Acknowledged looks at the acknowledgement of a conflict.
func (c judged) Acknowledged(of *verdict.Conflict) (until verdict.Stamp, lapsed bool) {
	return c.acknowledgements.Lapse(of)
}

// Audited publishes the findings about an address.
func (c judged) Audited(_ index.Address, owners []verdict.Owner, found, before []verdict.Finding, contested bool) {
	c.findings.Audited(owners, found, before, contested)
}

// Cloned publishes cloned hardware addresses.
func (c judged) Cloned(a index.Address, clones []verdict.Spoof) { c.findings.Clones.Note(a, clones) }

// Spoke schedules a check whether the address was meant for the owner.
func (c judged) Spoke(o *verdict.Owner) {
	if n := c.facts.Node(o.Namespace.Node); n != nil {
		c.findings.Intended.MayLack(n, o.Namespace.Record)
	}
}

// Rested wakes the checks that wait until all queued addresses are judged.
func (c judged) Rested() { c.findings.Rested() }

// Panicked counts an address that could not be judged.
func (c judged) Panicked() { c.metrics.Panicked() }

// found is the findings.Listener.
type found struct{ *core }

// FindingChanged publishes a finding.
func (c found) FindingChanged(now, was *findings.Found) { c.events.FindingChanged(now, was) }

// FindingEnded publishes that a finding is over.
func (c found) FindingEnded(over *findings.Found, superseded bool) {
	c.events.FindingEnded(over, superseded)
}
