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

// taken hears how far a report is brought into the facts.
type taken struct{ *core }

// Applied has it looked at what waited for the snapshot of a node.
func (c taken) Applied(n *facts.Node) { c.findings.Intended.Resume(n) }

// Judge waits until all that a change touched is judged.
func (c taken) Judge(b *facts.Batch) { c.judge(b) }

// Untidy has memory given back.
func (c taken) Untidy() { c.tidier.later() }

// Shared reports whether a node shares its name.
func (c taken) Shared(n *facts.Node) bool { return c.findings.Names.Shared(n) }

// heard hears what changed of the facts, beside addresses.
type heard struct{ *core }

// NodeChanged makes the state of a node known in all watches.
func (c heard) NodeChanged(n *facts.Node) {
	c.coverage.Changed()
	c.events.NodeChanged(n)
}

// NamesChanged looks whether a node has its name for itself.
func (c heard) NamesChanged(n *facts.Node) {
	c.coverage.Changed()
	c.findings.Names.Check(n)
}

// Answered looks whether a node that reports has its name for itself, if that is not known.
func (c heard) Answered(n *facts.Node) { c.findings.Names.Answered(n) }

// RangesChanged has ranges compared again.
func (c heard) RangesChanged(n *facts.Node) { c.findings.Overlaps.Changed(n) }

// MayLack has it looked at whether a namespace lacks an address.
func (c heard) MayLack(n *facts.Node, record uint32) { c.findings.Intended.MayLack(n, record) }

// PoolChanged has the pool's own findings made again.
func (c heard) PoolChanged(p *facts.Pool) { c.findings.Pools.Changed(p) }

// PoolEnded drops the pool's own findings.
func (c heard) PoolEnded(p *facts.Pool) { c.findings.Pools.Ended(p) }

// AtRisk returns the addresses in use that a pool takes for free.
func (c heard) AtRisk(p *facts.Pool) []netip.Addr { return c.findings.Pools.AtRisk(p) }

// CoverageChanged discards the cached coverage.
func (c heard) CoverageChanged() { c.coverage.Changed() }

// OwnersWatched reports whether owners are watched.
func (c heard) OwnersWatched() bool { return c.events.Owners.Wanted() }

// Contested yields the addresses that nodes look at more closely.
func (c heard) Contested(yield func(index.Address) bool) { c.shards.Conflicts.Contested(yield) }

// Dropped counts records that do not fit.
func (c heard) Dropped(record string, n int) { c.metrics.Dropped(record, n) }

// Refused counts a record that there is no memory for.
func (c heard) Refused(record string) { c.metrics.Refused(record) }

// judged hears what was judged.
type judged struct{ *core }

// OwnersWatched reports whether owners are watched.
func (c judged) OwnersWatched() bool { return c.events.Owners.Wanted() }

// OwnerChanged makes an owner known.
func (c judged) OwnerChanged(what shard.OwnerChange, a index.Address, o, before *verdict.Owner, all []verdict.Owner) {
	c.events.OwnerChanged(what, a, o, before, all)
}

// ConflictChanged makes a conflict known.
func (c judged) ConflictChanged(now, before *verdict.Conflict, opened bool) {
	c.events.ConflictChanged(now, before, opened)
}

// Detected observes how long it took to suspect a conflict.
func (c judged) Detected(took time.Duration) { c.metrics.Detected(took) }

// Acknowledged looks at the acknowledgement of a conflict.
func (c judged) Acknowledged(of *verdict.Conflict) (until verdict.Stamp, lapsed bool) {
	return c.acknowledgements.Lapse(of)
}

// Audited makes findings about an address known.
func (c judged) Audited(_ index.Address, owners []verdict.Owner, found, before []verdict.Finding, contested bool) {
	c.findings.Audited(owners, found, before, contested)
}

// Cloned makes cloned hardware addresses known.
func (c judged) Cloned(a index.Address, clones []verdict.Spoof) { c.findings.Clones.Note(a, clones) }

// Spoke has it looked at whether the address was meant for the owner.
func (c judged) Spoke(o *verdict.Owner) {
	if n := c.facts.Node(o.Namespace.Node); n != nil {
		c.findings.Intended.MayLack(n, o.Namespace.Record)
	}
}

// Rested has findings made that waited until all is judged.
func (c judged) Rested() { c.findings.Rested() }

// Panicked counts an address that could not be judged.
func (c judged) Panicked() { c.metrics.Panicked() }

// found hears of findings.
type found struct{ *core }

// FindingChanged makes a finding known.
func (c found) FindingChanged(now, was *findings.Found) { c.events.FindingChanged(now, was) }

// FindingEnded makes known that a finding is over.
func (c found) FindingEnded(over *findings.Found, superseded bool) {
	c.events.FindingEnded(over, superseded)
}
