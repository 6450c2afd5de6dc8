package export

import (
	"errors"
	"fmt"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/journal"
)

// complainAfter is how long a receiver may fail before that is a problem.
const complainAfter = time.Minute

// Stats are the counters of one exporter.
type Stats struct {
	// Exporter is otlp, alertmanager or webhook, and Receiver is the host of the receiver.
	Exporter, Receiver string
	// Sent transitions were accepted. Refused ones were not, because of their content. Failures is the
	// number of attempts that failed.
	Sent, Refused, Failures uint64
	// Lost is the number of periods of which the journal did not have all transitions any more.
	Lost uint64
	// Lag is the age of the oldest transition that is waiting; 0 if there is none.
	Lag time.Duration
}

// trouble is an error that has lasted for some time; zero for none.
type trouble struct {
	since time.Time
	err   error
}

// note notes an error. It reports whether it is the first one in a row.
func (t *trouble) note(err error, now time.Time) (first bool) {
	if first = t.err == nil; first {
		t.since = now
	}
	t.err = err
	return first
}

// delivered counts transitions. answer says how many of them were refused; nil for none.
func (x *exporter) delivered(n int, answer *answerError) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if answer != nil {
		refused := min(n, answer.refused)
		n -= refused
		x.stats.Refused += uint64(refused)
		x.Log.Error("the receiver refused transitions: it does not get them", "transitions", refused, "error", answer)
	}
	x.stats.Sent += uint64(n)
	if x.rejected.err != nil {
		x.Log.Info("the receiver accepts transitions again", "since", x.rejected.since)
	}
	x.waiting, x.rejected = time.Time{}, trouble{}
}

// failed counts a failed attempt.
func (x *exporter) failed(err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.stats.Failures++
	if x.rejected.note(err, x.Clock()) {
		x.Log.Warn("cannot deliver transitions: trying again until the receiver accepts them", "error", err)
	}
}

// interrupt notes that the journal or the ledger cannot be used.
func (x *exporter) interrupt(err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.interrupted.note(err, x.Clock())
}

// proceed notes that the journal and the ledger can be used.
func (x *exporter) proceed() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.interrupted = trouble{}
}

// refuse counts transitions that the receiver does not accept.
func (x *exporter) refuse(some []transition, err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.stats.Refused += uint64(len(some))
	first := ""
	if len(some) > 0 {
		first = some[0].id
	}
	x.Log.Error("the receiver does not accept the content of transitions: it does not get them", "transitions", len(some), "first_id", first, "error", err)
	x.waiting = time.Time{}
}

// lose counts periods of which transitions are missing.
func (x *exporter) lose(lost []journal.Loss) {
	if len(lost) == 0 {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, l := range lost {
		x.stats.Lost++
		if l.Pruned {
			x.Log.Error("the journal dropped transitions before the receiver got them: raise --retention or --journal-size", "from", l.From, "until", l.Until)
		} else {
			x.Log.Error("the journal lost transitions before the receiver got them", "from", l.From, "until", l.Until, "events", l.Events)
		}
	}
}

// Stats returns the counters.
func (x *exporter) Stats() Stats {
	x.mu.Lock()
	defer x.mu.Unlock()
	out, since := x.stats, x.waiting
	if since.IsZero() {
		since = x.interrupted.since
	}
	if !since.IsZero() {
		out.Lag = max(0, x.Clock().Sub(since))
	}
	return out
}

// problem describes why the receiver does not get transitions; empty if it does, or if that may be a
// matter of seconds.
func (x *exporter) problem() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	now := x.Clock()
	if i := x.interrupted; i.err != nil && now.Sub(i.since) >= complainAfter {
		return fmt.Sprintf("exports to %s at %s have failed since %s and are tried again: %s",
			titles[x.stats.Exporter], x.stats.Receiver, i.since.UTC().Format(time.RFC3339), i.err)
	}
	var answer *answerError
	wrong := errors.As(x.rejected.err, &answer) && answer.remedy() != ""
	if x.rejected.err == nil || !wrong && now.Sub(x.rejected.since) < complainAfter {
		return ""
	}
	text := fmt.Sprintf("%s at %s has not accepted what happened since %s, which is sent as soon as it does: %s",
		titles[x.stats.Exporter], x.stats.Receiver, x.waiting.UTC().Format(time.RFC3339), x.rejected.err)
	if wrong {
		text += ": " + answer.remedy()
	}
	return text
}

// titles are the names of the receivers in sentences.
var titles = map[string]string{"otlp": "the OpenTelemetry receiver", "alertmanager": "Alertmanager", "webhook": "the webhook"}
