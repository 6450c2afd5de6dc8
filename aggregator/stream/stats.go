package stream

import (
	"errors"
	"fmt"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/journal"
)

// Stats are counters of a publisher.
type Stats struct {
	// Hosts are the servers.
	Hosts string
	// Sent transitions are in the stream. Refused ones are too large. Failures is the number of failed
	// attempts.
	Sent, Refused, Failures uint64
	// Lost is the number of periods of which the journal did not have all transitions any more.
	Lost uint64
	// Lag is the age of the oldest transition that is waiting. If none is known to wait, it is how long
	// NATS has been unreachable or has failed; 0 if it works.
	Lag time.Duration
}

// idle notes that nothing is waiting.
func (p *Publisher) idle() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waiting = time.Time{}
}

// published counts transitions.
func (p *Publisher) published(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stats.Sent += uint64(n)
	if p.failing != nil {
		p.Log.Info("NATS accepts transitions again", "since", p.since)
	}
	p.waiting, p.failing = time.Time{}, nil
}

// failed counts a failed attempt.
func (p *Publisher) failed(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stats.Failures++
	if p.failing == nil {
		p.since = p.Clock()
		p.Log.Warn("cannot publish transitions: trying again until NATS accepts them", "error", err)
	}
	p.failing = err
	if errors.Is(err, errOther) {
		if p.Clock().Sub(p.contestedAt) > contestedFor {
			p.contests = 0
		}
		p.contests++
		p.contestedAt = p.Clock()
	}
}

// refuse counts a transition that is too large.
func (p *Publisher) refuse(at time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stats.Refused++
	p.Log.Error("a transition is too large for NATS: it is not published", "time", at)
}

// lose counts periods of which transitions are missing.
func (p *Publisher) lose(lost []journal.Loss) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range lost {
		p.stats.Lost++
		p.Log.Error("the journal does not have all transitions that were not published yet", "from", l.From, "until", l.Until, "pruned", l.Pruned)
	}
}

// Stats returns the counters; nil if p is nil.
func (p *Publisher) Stats() *Stats {
	if p == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	out, since := p.stats, p.waiting
	if since.IsZero() {
		since, _ = p.trouble()
	}
	if !since.IsZero() {
		out.Lag = max(0, p.Clock().Sub(since))
	}
	return &out
}

// trouble returns why NATS accepts nothing, and since when; zero and nil if it does. The caller holds the
// lock.
func (p *Publisher) trouble() (since time.Time, err error) {
	if p.failing != nil {
		since, err = p.since, p.failing
	}
	if p.link != nil {
		if lost, down := p.link.Down(); down != nil && (err == nil || lost.Before(since)) {
			since, err = lost, down
		}
	}
	return since, err
}

// Problems describes why transitions are not published; empty if they are, or if that may be a matter of
// seconds.
func (p *Publisher) Problems() []string {
	if p == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	since, err := p.trouble()
	var problems []string
	now := p.Clock()
	if err != nil && now.Sub(since) >= complainAfter {
		problems = append(problems, fmt.Sprintf("NATS at %s has not accepted what happened since %s, which is published as soon as it does: %s",
			p.stats.Hosts, since.UTC().Format(time.RFC3339), err))
	}
	if p.contests > mostContests && now.Sub(p.contestedAt) < contestedFor {
		problems = append(problems, fmt.Sprintf("several aggregators publish to the stream %s at %s: give each cluster a --cluster of its own, and the replicas of one cluster the same --lease",
			Name(p.Cluster), p.stats.Hosts))
	}
	if p.small {
		problems = append(problems, fmt.Sprintf("the stream %s at %s has dropped the state within minutes: raise its max_bytes, or readers that begin do not learn the state",
			Name(p.Cluster), p.stats.Hosts))
	}
	return problems
}
