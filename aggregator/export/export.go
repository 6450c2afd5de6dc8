// Package export tells other systems what the journal has recorded: an OpenTelemetry collector,
// Alertmanager, and a webhook. It never decides what a conflict is.
//
// Each receiver has a goroutine of its own and a cursor in the journal, so a receiver that is slow or
// down delays no other one, and nothing is lost while it is down or the aggregator restarts. There is no
// other queue. Events are delivered in order, each at least once, with an id that is the same in each
// attempt, so that a receiver can drop duplicates.
//
// Of several replicas, the leader exports. A new leader begins some minutes before: it does not know what the former
// one has delivered. The former one delivers what it recorded until then, which the new one may not know, also after a
// restart: a replica has a cursor until it has done that.
package export

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/journal"
	"github.com/ipwitness/ipwitness/secure"
)

// Settings are the receivers. A URL that is empty is not used.
type Settings struct {
	// OTLP is the base URL of an OpenTelemetry receiver (OTLP/HTTP), and Environment returns the values
	// of the variables OTEL_EXPORTER_OTLP_….
	OTLP        string
	Environment func(name string) string
	// Alertmanagers are the base URLs of the Alertmanagers of a cluster, and AlertmanagerToken is a file
	// with a bearer token for them.
	Alertmanagers     []string
	AlertmanagerToken string
	// Webhook is the URL of a webhook, and WebhookSecret is the file with the secrets for its signature.
	Webhook       string
	WebhookSecret string
	// CA is a file with the CA bundle used to verify receivers; empty for the CAs of the system.
	CA string
}

// Any reports whether there is a receiver.
func (s *Settings) Any() bool { return s.OTLP != "" || len(s.Alertmanagers) > 0 || s.Webhook != "" }

// Config is the configuration of Exporters.
type Config struct {
	Settings
	Journal  *journal.Journal
	Replicas bool
	Log      *slog.Logger
	Clock    func() time.Time
	// Cluster is the name of the cluster, and Version that of this program.
	Cluster, Version string
}

// Exporters are the exporters of all receivers. Use New.
type Exporters struct {
	all   []*exporter
	clock func() time.Time
	mu    sync.Mutex
	role  role
}

// A role is whether a replica leads, since when, and what is closed when that changes.
type role struct {
	leads   bool
	since   time.Time
	changed chan struct{}
}

// New returns exporters that do nothing before Run. It checks the files of the settings.
func New(cfg Config) (*Exporters, error) {
	files := secure.Files{CA: cfg.CA}
	if _, err := tlsConfig(files); err != nil {
		return nil, err
	}
	e := &Exporters{clock: cfg.Clock}
	e.turn(false)
	secure.WarnExposed(cfg.Log, cfg.AlertmanagerToken, cfg.WebhookSecret)
	var errs []error
	// add adds an exporter of a kind. cursor is its name in the journal.
	add := func(kind, cursor string, to *receiver, err error) {
		if errs = append(errs, err); err == nil {
			e.all = append(e.all, &exporter{
				Delivery: journal.Delivery{Log: cfg.Log.With("exporter", kind, "receiver", to.host), Clock: cfg.Clock},
				Journal:  cfg.Journal, replicas: cfg.Replicas, kind: kind, name: cursor, to: to,
			})
		}
	}
	if cfg.OTLP != "" {
		to, err := newOTLP(&cfg, files)
		add("otlp", "otlp", to, err)
	}
	for _, base := range cfg.Alertmanagers {
		to, err := newAlertmanager(&cfg, files, base)
		add("alertmanager", "alertmanager "+base, to, err)
	}
	if cfg.Webhook != "" {
		to, err := newWebhook(&cfg, files)
		add("webhook", "webhook", to, err)
	}
	return e, errors.Join(errs...)
}

// Run exports until ctx ends, while this replica leads, and what it recorded until then.
func (e *Exporters) Run(ctx context.Context) {
	var group sync.WaitGroup
	for _, x := range e.all {
		group.Go(func() { x.run(ctx, e.now) })
	}
	group.Wait()
}

// Lead notes that this replica leads until ctx ends.
func (e *Exporters) Lead(ctx context.Context) {
	e.turn(true)
	<-ctx.Done()
	e.turn(false)
}

func (e *Exporters) turn(leads bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.role.changed != nil {
		close(e.role.changed)
	}
	e.role = role{leads, e.clock(), make(chan struct{})}
}

func (e *Exporters) now() role {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.role
}

// Problems describes the receivers that do not accept what they are sent.
func (e *Exporters) Problems() (problems []string) {
	for _, x := range e.all {
		if p := x.problem(); p != "" {
			problems = append(problems, p)
		}
	}
	return problems
}

// Stats are the counters of one exporter.
type Stats struct {
	// Exporter is otlp, alertmanager or webhook, and Receiver is the host of the receiver.
	Exporter, Receiver string
	journal.DeliveryStats
}

// Stats returns the counters of each receiver.
func (e *Exporters) Stats() (all []Stats) {
	for _, x := range e.all {
		all = append(all, Stats{x.kind, x.to.host, x.Stats()})
	}
	return all
}
