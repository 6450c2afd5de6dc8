package aggregator

import (
	"log/slog"

	"github.com/ipwitness/ipwitness/aggregator/acknowledge"
	"github.com/ipwitness/ipwitness/aggregator/api"
	"github.com/ipwitness/ipwitness/aggregator/coverage"
	"github.com/ipwitness/ipwitness/aggregator/events"
	"github.com/ipwitness/ipwitness/aggregator/explain"
	"github.com/ipwitness/ipwitness/aggregator/export"
	"github.com/ipwitness/ipwitness/aggregator/facts"
	"github.com/ipwitness/ipwitness/aggregator/findings"
	"github.com/ipwitness/ipwitness/aggregator/journal"
	"github.com/ipwitness/ipwitness/aggregator/kube"
	"github.com/ipwitness/ipwitness/aggregator/metrics"
	"github.com/ipwitness/ipwitness/aggregator/notify"
	"github.com/ipwitness/ipwitness/aggregator/recall"
	"github.com/ipwitness/ipwitness/aggregator/report"
	"github.com/ipwitness/ipwitness/aggregator/shard"
	"github.com/ipwitness/ipwitness/aggregator/stream"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// core joins the rooms. Each has a lock of its own. The facts are locked first, for reading, while
// something about them is published; otherwise, no lock is taken while another one is held.
type core struct {
	log              *slog.Logger
	kubernetes       *kube.Cluster
	facts            *facts.Facts
	shards           *shard.Shards
	findings         *findings.Findings
	acknowledgements *acknowledge.Acknowledgements
	coverage         *coverage.Coverage
	events           *events.Events
	exports          *export.Exporters
	stream           *stream.Publisher // nil if NATS is not used
	journal          *journal.Journal  // nil if nothing is kept
	recall           *recall.Recall    // nil if nothing is kept
	reports          *report.Service
	witness          *api.Service
	metrics          *metrics.Metrics
	notifier         *notify.Notifier
	tidier           *tidier
	// unsaved describes why the default data directory cannot be used; empty if it can, or is not used.
	unsaved string
	// stopped is closed when nothing is judged any more, ended when all streams are to end.
	stopped, ended chan struct{}
}

// ring runs the work that is due on nodes, links and resolved conflicts, and returns when more is due; 0
// for never.
func (c *core) ring() verdict.Stamp {
	next := c.facts.Ring()
	if at := c.shards.Forget(); at != 0 && (next == 0 || at < next) {
		next = at
	}
	return next
}

// judge waits until everything that a change touched is judged, and until the resulting findings
// about pools and missing addresses are published.
func (c *core) judge(b *facts.Batch) {
	select {
	case <-b.Done():
		c.findings.Judged()
	case <-c.stopped:
	}
}

// problems describes what is wrong with the aggregator itself.
func (c *core) problems() []string {
	problems := c.acknowledgements.Problems()
	if c.unsaved != "" {
		problems = append(problems, c.unsaved)
	}
	if c.journal != nil {
		for _, p := range c.journal.Problems() {
			problems = append(problems, journalProblem(p))
		}
	}
	problems = append(problems, c.exports.Problems()...)
	problems = append(problems, c.stream.Problems()...)
	if n := c.shards.Unjudged(); n > 0 {
		problems = append(problems, explain.Unjudged(n))
	}
	return problems
}

// journalProblem describes a problem of the journal.
func journalProblem(p journal.Problem) string {
	switch p.Kind {
	case journal.InMemory:
		return explain.JournalInMemory(p.Path, p.Err)
	case journal.Unreadable, journal.Damaged:
		return explain.JournalSetAside(p.At, p.Path, p.Kind == journal.Damaged, p.Err)
	case journal.NewerVersion:
		return explain.JournalOfNewerVersion(p.At, p.Path, p.Err)
	case journal.NotWritten:
		return explain.JournalNotWritten(p.Path, p.Err)
	default:
		return explain.JournalFailed(p.Err)
	}
}

// watches returns the number of watches, by type.
func (c *core) watches() map[string]int {
	return map[string]int{
		"owners": c.events.Owners.Subscribers(), "conflicts": c.events.Conflicts.Subscribers(), "findings": c.events.Findings.Subscribers(),
		"events": int(c.witness.EventWatches.Load()), "nodes": int(c.witness.NodeWatches.Load()),
	}
}
