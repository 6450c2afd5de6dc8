package live

import (
	"log/slog"
	"slices"
	"strings"
	"time"

	"golang.org/x/time/rate"
)

const (
	// linesPerSecond is the average rate of log lines about one node's conflicts, findings and
	// state. linesAtOnce is the largest burst.
	linesPerSecond, linesAtOnce = 10, 1000
	// quotasKept limits the nodes whose quotas are remembered.
	quotasKept = 20_000
	// complainEvery is the interval at which the log reports suppressed lines or lost events.
	complainEvery = time.Minute
)

// logQuota prevents one node from filling the log.
type logQuota struct {
	log   *slog.Logger
	nodes map[string]*nodeQuota
}

// nodeQuota is the quota of log lines about a node, with the number of suppressed lines.
type nodeQuota struct {
	lines      *rate.Limiter
	leftOut    int
	lastReport time.Time
}

func newLogQuota(log *slog.Logger) *logQuota {
	return &logQuota{log: log, nodes: make(map[string]*nodeQuota)}
}

// allows reports whether a line about some nodes may be logged. The line counts against the node
// with the fewest lines left. A line about several nodes also counts against their shared quota,
// which is half as large. A node that attacks another node therefore cannot use up all lines of its
// victim.
func (q *logQuota) allows(now time.Time, nodes ...string) bool {
	var of *nodeQuota
	var name string
	for _, n := range nodes {
		if one := q.of(n, 1); of == nil || one.lines.TokensAt(now) < of.lines.TokensAt(now) {
			of, name = one, n
		}
	}
	if of == nil {
		of = q.of("", 1)
	}
	allowed := true
	if len(nodes) > 1 {
		slices.Sort(nodes)
		allowed = q.of(strings.Join(nodes, "\n"), 2).lines.AllowN(now, 1)
	}
	if allowed && of.lines.AllowN(now, 1) {
		return true
	}
	of.leftOut++
	if now.Sub(of.lastReport) >= complainEvery {
		q.log.Warn("too many log lines about one node: suppressing further ones; use the API to list its owners and conflicts", "node", name, "lines", of.leftOut)
		of.lastReport, of.leftOut = now, 0
	}
	return false
}

// of returns the quota of a node, or of several nodes together. part divides it.
func (q *logQuota) of(nodes string, part int) *nodeQuota {
	of := q.nodes[nodes]
	if of == nil {
		if len(q.nodes) >= quotasKept {
			clear(q.nodes)
		}
		of = &nodeQuota{lines: rate.NewLimiter(linesPerSecond/rate.Limit(part), linesAtOnce/part)}
		q.nodes[nodes] = of
	}
	return of
}

func nodesOfEvent(e *Event) (nodes []string) {
	switch {
	case e.Node != nil:
		return []string{e.Node.GetName()}
	case e.Finding != nil:
		return e.Finding.GetNodes()
	}
	for _, o := range e.Conflict.GetOwners() {
		if !slices.Contains(nodes, o.GetNode()) {
			nodes = append(nodes, o.GetNode())
		}
	}
	return nodes
}
