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
	if x.rejected != nil {
		x.Log.Info("the receiver accepts transitions again", "since", x.rejectedSince)
	}
	x.waiting, x.rejected = time.Time{}, nil
}

// failed counts a failed attempt.
func (x *exporter) failed(err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.stats.Failures++
	if x.rejected == nil {
		x.rejectedSince = x.Clock()
		x.Log.Warn("cannot deliver transitions: trying again until the receiver accepts them", "error", err)
	}
	x.rejected = err
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
	out := x.stats
	if !x.waiting.IsZero() {
		out.Lag = max(0, x.Clock().Sub(x.waiting))
	}
	return out
}

// problem describes why the receiver does not get transitions; empty if it does, or if that may be a
// matter of seconds.
func (x *exporter) problem() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	var answer *answerError
	wrong := errors.As(x.rejected, &answer) && answer.remedy() != ""
	if x.rejected == nil || !wrong && x.Clock().Sub(x.rejectedSince) < complainAfter {
		return ""
	}
	text := fmt.Sprintf("%s at %s has not accepted what happened since %s, which is sent as soon as it does: %s",
		titles[x.stats.Exporter], x.stats.Receiver, x.waiting.UTC().Format(time.RFC3339), x.rejected)
	if wrong {
		text += ": " + answer.remedy()
	}
	return text
}

// titles are the names of the receivers in sentences.
var titles = map[string]string{"otlp": "the OpenTelemetry receiver", "alertmanager": "Alertmanager", "webhook": "the webhook"}
