package stream

import (
	"errors"
	"fmt"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/journal"
)

func (p *Publisher) fail(err error) {
	p.Fail(err)
	if !errors.Is(err, errOther) {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.Delivery.Clock().Sub(p.contestedAt) > contestedFor {
		p.contests = 0
	}
	p.contests++
	p.contestedAt = p.Delivery.Clock()
}

// Foreign are the messages of a stream that no aggregator of its cluster has published.
type Foreign struct {
	count, last uint64
	at          time.Time
}

// Note notes the number of a message.
func (f *Foreign) Note(number uint64, now time.Time) {
	if number != f.last {
		f.count++
	}
	f.last, f.at = number, now
}

// foreignFor is how long a foreign message is a problem.
const foreignFor = 5 * time.Minute

// Problem describes the messages; empty if none has come lately.
func (f *Foreign) Problem(cluster string, now time.Time) string {
	if f.count == 0 || now.Sub(f.at) >= foreignFor {
		return ""
	}
	return fmt.Sprintf("%d messages of the stream %s are no transitions of the cluster and were skipped, the last one with number %d: find out who publishes to %s, or whether a mirror has several sources; only the aggregators of the cluster may",
		f.count, Name(cluster), f.last, Subjects(cluster))
}

func (p *Publisher) skip(number uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if number != p.foreign.last {
		p.Delivery.Log.Warn("something else has published to the stream: skipping its message", "number", number)
	}
	p.foreign.Note(number, p.Delivery.Clock())
}

func (p *Publisher) skipped() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.foreign.count
}

// Stats returns the counters; nil if p is nil. If nothing is known to wait, the lag is how long NATS has been
// unreachable or has failed.
func (p *Publisher) Stats() *journal.DeliveryStats {
	if p == nil {
		return nil
	}
	out := p.Delivery.Stats()
	if since, err := p.trouble(); err != nil && out.Lag == 0 {
		out.Lag = max(0, p.Delivery.Clock().Sub(since))
	}
	return &out
}

// trouble returns why NATS accepts nothing, and since when; nil if it does.
func (p *Publisher) trouble() (since time.Time, err error) {
	since, _, err = p.Failing()
	p.mu.Lock()
	link := p.link
	p.mu.Unlock()
	if link != nil {
		if lost, down := link.Down(); down != nil && (err == nil || lost.Before(since)) {
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
	since, err := p.trouble()
	var problems []string
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.Delivery.Clock()
	if err != nil && now.Sub(since) >= complainAfter {
		problems = append(problems, fmt.Sprintf("NATS at %s has not accepted what happened since %s, which is published as soon as it does: %s",
			p.Hosts(), since.UTC().Format(time.RFC3339), err))
	}
	if p.contests > mostContests && now.Sub(p.contestedAt) < contestedFor {
		problems = append(problems, fmt.Sprintf("several aggregators publish to the stream %s at %s: give each cluster a --cluster of its own, and the replicas of one cluster the same --lease",
			Name(p.Cluster), p.Hosts()))
	}
	if problem := p.foreign.Problem(p.Cluster, now); problem != "" {
		problems = append(problems, problem)
	}
	if p.small {
		problems = append(problems, fmt.Sprintf("the stream %s at %s has dropped the state within minutes: raise its max_bytes, or readers that begin do not learn the state",
			Name(p.Cluster), p.Hosts()))
	}
	return problems
}
