package aggregator

import (
	"log/slog"
	"slices"
	"strings"
	"time"

	"golang.org/x/time/rate"
)

const (
	// linesPerSecond is how many lines the log has of one node's conflicts, findings and
	// state in the long run, and linesAtOnce how many at once.
	linesPerSecond, linesAtOnce = 10, 1000
	// quotasKept is how many nodes are remembered of which there were lines.
	quotasKept = 20_000
)

// logQuota keeps one node from filling the log.
type logQuota struct {
	log   *slog.Logger
	nodes map[string]*nodeQuota
}

// nodeQuota is how many lines the log may have of a node, and how many were left out.
type nodeQuota struct {
	lines   *rate.Limiter
	leftOut int
	said    time.Time
}

func newLogQuota(log *slog.Logger) *logQuota {
	return &logQuota{log: log, nodes: make(map[string]*nodeQuota)}
}

// allows tells whether the log is to have a line about some nodes. It counts for the one
// of which there were the most. Where there are several, they have half of that together,
// so that one that attacks another does not take all of the lines of that one.
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
	if now.Sub(of.said) >= complainEvery {
		q.log.Warn("lines are left out of the log: there are too many of one node; ask the API", "node", name, "lines", of.leftOut)
		of.said, of.leftOut = now, 0
	}
	return false
}

// of is the quota of one node, or a part of that for several.
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

// nodesOfEvent are the nodes that an event is about.
func nodesOfEvent(e *event) (nodes []string) {
	switch {
	case e.node != nil:
		return []string{e.node.GetName()}
	case e.finding != nil:
		return e.finding.GetNodes()
	}
	for _, o := range e.conflict.GetOwners() {
		if !slices.Contains(nodes, o.GetNode()) {
			nodes = append(nodes, o.GetNode())
		}
	}
	return nodes
}
