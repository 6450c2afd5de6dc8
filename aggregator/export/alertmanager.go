package export

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/secure"
)

const (
	// resendEvery is how often firing alerts are sent again. They end resendEndsAfter later, unless they
	// are sent again. resolvedKept is how long alerts that have ended are sent again. All three are those
	// of Prometheus.
	resendEvery     = time.Minute
	resendEndsAfter = 4 * resendEvery
	resolvedKept    = 15 * time.Minute
	// evaluateEvery is how often conflicts and findings are checked that alert after some time.
	evaluateEvery = 15 * time.Second
	// mostAlerts is the largest number of conflicts, and of findings, that have an alert.
	mostAlerts = 1000
	// alertsAtOnce is the largest number of alerts in a request.
	alertsAtOnce = 256
)

// An alertmanager gets an alert for each conflict and each finding, through its API v2.
type alertmanager struct {
	*client
	cluster, token string
	clock          func() time.Time
	conflicts      map[string]transition // active ones
	findings       map[string]*pb.Finding
	// known are the alerts that Alertmanager has been sent, by their labels.
	known map[string]*alert
	// resentAt is the time at which all of them were sent, and evaluatedAt that of the last evaluation.
	resentAt, evaluatedAt time.Time
}

func newAlertmanager(cfg *Config, files secure.Files, base string) (*receiver, error) {
	c, err := newClient(base, "/api/v2/alerts", files, cfg.Log, help{url: "alertmanager", credentials: "the token of --alertmanager-token-file"})
	if err != nil {
		return nil, err
	}
	if cfg.AlertmanagerToken != "" {
		if _, err := readSecret(cfg.AlertmanagerToken); err != nil {
			return nil, fmt.Errorf("read the token for Alertmanager: %w", err)
		}
	}
	a := &alertmanager{
		client: c, cluster: cfg.Cluster, token: cfg.AlertmanagerToken, clock: cfg.Clock,
		conflicts: make(map[string]transition), findings: make(map[string]*pb.Finding), known: make(map[string]*alert),
	}
	return &receiver{client: c, kinds: []pb.Event_Kind{pb.Event_CONFLICT, pb.Event_FINDING}, atOnce: alertsAtOnce, deliver: a.deliver, alerts: a}, nil
}

// begin forgets the state, but not the alerts that were sent: those without a reason in the state that
// follows will end.
func (a *alertmanager) begin() {
	if a != nil {
		clear(a.conflicts)
		clear(a.findings)
	}
}

func (a *alertmanager) apply(t *transition) {
	if c := t.GetConflict(); c != nil {
		if a.conflicts[c.GetId()] = *t; c.GetState() == pb.Conflict_RESOLVED {
			delete(a.conflicts, c.GetId())
		}
		return
	}
	f := t.GetFinding()
	if a.findings[f.GetId()] = f; t.GetType() == pb.Watch_REMOVED {
		delete(a.findings, f.GetId())
	}
}

// due returns when the alerts have to be evaluated again; zero for never, as for a receiver without alerts.
func (a *alertmanager) due() time.Time {
	if a == nil || len(a.conflicts)+len(a.findings)+len(a.known) == 0 {
		return time.Time{}
	}
	return a.evaluatedAt.Add(evaluateEvery)
}

func (a *alertmanager) deliver(ctx context.Context, some []transition) error {
	now := a.clock()
	for i := range some {
		a.apply(&some[i])
	}
	firing := a.alerts(now)
	resend := now.Sub(a.resentAt) >= resendEvery
	next := make(map[string]*alert, len(firing))
	var changed []*alert
	for key, one := range firing {
		before := a.known[key]
		next[key] = one
		if resend || before == nil || before.over || !maps.Equal(before.Annotations, one.Annotations) {
			changed = append(changed, one)
		}
	}
	for key, before := range a.known {
		switch {
		case firing[key] != nil:
		case !before.over:
			over := *before
			over.EndsAt, over.over = now, true
			next[key] = &over
			changed = append(changed, &over)
		case now.Sub(before.EndsAt) < resolvedKept:
			if next[key] = before; resend {
				changed = append(changed, before)
			}
		}
	}
	slices.SortFunc(changed, func(x, y *alert) int { return strings.Compare(x.key(), y.key()) })
	for some := range slices.Chunk(changed, alertsAtOnce) {
		body, err := json.Marshal(some)
		if err != nil {
			return err
		}
		header := http.Header{"Content-Type": {"application/json"}}
		if a.token != "" {
			token, err := readSecret(a.token)
			if err != nil {
				return fmt.Errorf("read the token for Alertmanager: %w", err)
			}
			header.Set("Authorization", "Bearer "+token)
		}
		if _, err := a.post(ctx, header, body); err != nil {
			return err
		}
	}
	a.known, a.evaluatedAt = next, now
	if resend {
		a.resentAt = now
	}
	return nil
}

func (a *alertmanager) alerts(now time.Time) map[string]*alert {
	var conflicts, findings []*alert
	for _, c := range a.conflicts {
		if one := conflictAlert(c.GetConflict(), c.since, now); one != nil {
			conflicts = append(conflicts, one)
		}
	}
	for _, f := range a.findings {
		findings = append(findings, findingAlerts(f, now)...)
	}
	firing := make(map[string]*alert)
	for _, one := range append(most(conflicts), most(findings)...) {
		one.Labels["cluster"] = a.cluster
		one.EndsAt = now.Add(resendEndsAfter)
		firing[one.key()] = one
	}
	return firing
}
