package main

import (
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/ipwitness/ipwitness/aggregator"
	"github.com/ipwitness/ipwitness/aggregator/access"
	"github.com/ipwitness/ipwitness/aggregator/export"
	transitions "github.com/ipwitness/ipwitness/aggregator/stream"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/cmd/ipwitness/secure"
	"github.com/ipwitness/ipwitness/cmd/ipwitness/show"
)

// aggregatorFlags adds the flags of an aggregator.
func aggregatorFlags(cmd *cobra.Command, cfg *aggregator.Config) {
	fs := cmd.Flags()
	cfg.Cluster = aggregator.DefaultCluster
	fs.Var(value[string]{&cfg.Cluster, "NAME", parseName}, "cluster", "name of the cluster of the nodes; conflict ids depend on it")
	fs.Var(&list[verdict.Shared]{to: &cfg.Shared, kind: "CIDR=REASON", separator: "\n", parse: parseShared}, "shared",
		"addresses that are intentionally shared, such as anycast; repeatable")
	fs.Var(&list[verdict.Router]{to: &cfg.Routers, kind: "WHO=REASON", separator: "\n", parse: parseRouter}, "router",
		"workload that may answer for others: NAMESPACE/POD, with * and ?, or a MAC; repeatable")
	cfg.DataDir = aggregator.DataDirAuto
	fs.Var(dataDir{&cfg.DataDir}, "data-dir",
		"data `DIR`, off to record no history, or auto for "+aggregator.DefaultDataDir+" if writable")
	cfg.Retention, cfg.JournalSize = aggregator.DefaultRetention, aggregator.DefaultJournalSize
	fs.Var(retention{&cfg.Retention}, "retention", "time for which the history is kept, in whole days if possible")
	fs.Var(size{&cfg.JournalSize}, "journal-size", "disk space that the history may take")
	fs.Var(newDeclaredNetworks(cfg), "network",
		"addresses that must be unique in the cluster, or in a fleet (,clusters=NAME,NAME or *); repeatable")
	fs.StringVar(&cfg.Lease, "lease", "",
		"Lease used to elect a leader among replicas, as `NAMESPACE/NAME` (default: this one always leads)")
	fs.StringVar(&cfg.Kubeconfig, "kubeconfig", aggregator.DefaultKubeconfig,
		"kubeconfig `FILE` used to look up owners, off, or auto for the cluster of this pod")
	durationFlag(fs, &cfg.Settle, "settle", aggregator.DefaultSettle, "time after which a conflict is confirmed if both owners still hold the address")
	durationFlag(fs, &cfg.StaleAfter, "stale-after", aggregator.DefaultStaleAfter, "time without frames after which an owner known only from the wire is stale")
	durationFlag(fs, &cfg.NodeTimeout, "node-timeout", aggregator.DefaultNodeTimeout, "time after which the owners of a disconnected node count as gone")
	durationFlag(fs, &cfg.HandoverGrace, "handover-grace", aggregator.DefaultHandoverGrace, "maximum duration of a hand-over between two nodes")
	durationFlag(fs, &cfg.LeakedAfter, "leaked-after", aggregator.DefaultLeakedAfter, "time for which an allocation may be unused before it is reported as leaked")
	fs.Var(value[time.Duration]{&cfg.ReusedWithin, "duration", parseLimit}, "reused-within",
		"time within which the reuse of an address is reported, such as 30s")
	fs.Lookup("reused-within").DefValue = limitOff
}

// exportFlags adds the flags of the systems that an aggregator tells of transitions.
func exportFlags(cmd *cobra.Command, cfg *export.Settings) {
	fs := cmd.Flags()
	fs.Var(value[string]{&cfg.OTLP, "URL", parseURL}, "otlp-endpoint", "OpenTelemetry receiver of all transitions as logs (OTLP/HTTP), like http://collector:4318")
	fs.Var(&list[string]{to: &cfg.Alertmanagers, kind: "URL", separator: ",", parse: parseURL}, "alertmanager",
		"Alertmanager that gets alerts on conflicts and findings, like http://alertmanager:9093; repeatable")
	fs.StringVar(&cfg.AlertmanagerToken, "alertmanager-token-file", "", "bearer token `FILE` for Alertmanager")
	fs.Var(value[string]{&cfg.Webhook, "URL", parseURL}, "webhook", "webhook that gets conflicts and findings as CloudEvents, signed")
	fs.StringVar(&cfg.WebhookSecret, "webhook-secret-file", "", "`FILE` with the secret of the webhook's signature, as whsec_ and base64; several lines to change it")
	fs.StringVar(&cfg.CA, "export-ca", "", "CA bundle `FILE` of these receivers, in PEM; reloaded when it changes (default: that of the system)")
}

// natsFlags adds the flags of the stream of transitions on NATS.
func natsFlags(cmd *cobra.Command, cfg *transitions.Settings) {
	fs := cmd.Flags()
	fs.Var(&list[string]{to: &cfg.Servers, kind: "URL", separator: ",", parse: parseNATS}, "nats",
		"NATS servers to publish all transitions to (JetStream), like nats://nats:4222; repeatable")
	fs.StringVar(&cfg.CA, "nats-ca", "", "CA bundle `FILE` of the NATS servers, in PEM; reloaded when it changes (default: that of the system)")
	fs.StringVar(&cfg.Cert, "nats-cert", "", "client certificate `FILE` for NATS, in PEM; reloaded when it changes")
	fs.StringVar(&cfg.Key, "nats-key", "", "private key `FILE` of --nats-cert, in PEM")
	fs.StringVar(&cfg.Creds, "nats-creds", "", "credentials `FILE` for NATS, with a JWT and its seed")
	fs.StringVar(&cfg.NKey, "nats-nkey", "", "`FILE` with the NKey seed for NATS")
	fs.StringVar(&cfg.Token, "nats-token-file", "", "token `FILE` for NATS; sent only with TLS, or to this host")
	cfg.Retention, cfg.Size = transitions.DefaultRetention, transitions.DefaultSize
	fs.Var(retention{&cfg.Retention}, "nats-retention", "time for which a new stream keeps transitions")
	fs.Var(size{&cfg.Size}, "nats-size", "disk space that a new stream may take on each NATS server")
}

// accessFlags adds the flags that control access to an aggregator.
func accessFlags(cmd *cobra.Command, files *secure.Files, cfg *access.Config) {
	fs := cmd.Flags()
	ownCertFlags(fs, files, "server certificate `FILE`, in PEM; reloaded when it changes (default: no TLS)")
	clientCAFlag(fs, files, "CA bundle `FILE` used to verify client certificates, in PEM; agents must then present one")
	fs.StringVar(&cfg.Tokens, "tokens", "", "`FILE` of accepted bearer tokens, with lines of TOKEN agent|reader|operator NAME")
	fs.BoolVar(&cfg.TokenReview, "token-review", false, "authenticate bearer tokens with the Kubernetes API (TokenReview), and authorize them with RBAC")
	fs.StringVar(&cfg.Audience, "token-audience", access.DefaultAudience, "required `AUDIENCE` of Kubernetes tokens")
	fs.Var(&list[string]{to: &cfg.AgentAccounts, kind: "NAMESPACE/NAME", separator: ",", parse: parseText}, "agent-account",
		"service account of the agents; repeatable")
	choiceFlag(cmd, &cfg.Anonymous, "anonymous", "", "access for unauthenticated callers; auto: none with authentication, else read",
		access.AnonymousAuto, access.AnonymousNone, access.AnonymousRead)
	fs.BoolVar(&cfg.Required, "require-auth", false, "refuse to start without --tokens, --token-review or --tls-client-ca")
}

func parseText(s string) (string, error) { return s, nil }

// clientTLSFlags adds the TLS and token flags of a client of an aggregator.
func clientTLSFlags(fs *pflag.FlagSet, files *secure.Files) {
	fs.StringVar(&files.CA, "tls-ca", "", "CA bundle `FILE` used to verify the aggregator's certificate, in PEM, or system")
	ownCertFlags(fs, files, "client certificate `FILE`, in PEM")
	fs.StringVar(&files.Token, "token-file", "", "bearer token `FILE`; the token is sent only over TLS")
}

func ownCertFlags(fs *pflag.FlagSet, files *secure.Files, usage string) {
	fs.StringVar(&files.Cert, "tls-cert", "", usage)
	fs.StringVar(&files.Key, "tls-key", "", "private key `FILE` of --tls-cert, in PEM")
}

func clientCAFlag(fs *pflag.FlagSet, files *secure.Files, usage string) {
	fs.StringVar(&files.ClientCA, "tls-client-ca", "", usage)
}

// listenFlags adds the flags for the addresses that an aggregator listens on.
func listenFlags(cmd *cobra.Command, to *addresses, byDefault addresses) {
	listenFlag(cmd.Flags(), &to.grpc, grpcListen, byDefault.grpc, "listen address of gRPC")
	listenFlag(cmd.Flags(), &to.http, httpListen, byDefault.http, "listen address of the REST API and the metrics")
	listenFlag(cmd.Flags(), &to.metrics, metricsListen, "", "additional listen address of health, readiness and metrics (default none)")
}

// exitCodeHelp returns the help text of --exit-code. found names the results that make
// the command exit with 2.
func exitCodeHelp(found string) string {
	return "exit 2 on " + found + ", 0 if none, 3 if not everything is seen, 1 on error"
}

// The names of the listen flags, which errors about listeners contain.
const (
	grpcListen    = "grpc-listen"
	httpListen    = "http-listen"
	metricsListen = "metrics-listen"
)

// logging contains the log flags.
type logging struct {
	level  logLevel
	format logFormat
	// live is the live output in which log records appear as lines; nil if the log is written
	// separately.
	live *show.Live
}

type (
	logLevel  string
	logFormat string
)

const (
	logText logFormat = "text"
	logJSON logFormat = "json"
)

func (l *logging) addFlags(cmd *cobra.Command) {
	choiceFlag(cmd, &l.level, "log-level", "", "lowest level to log; the default of run in a terminal is warn", logLevel("info"), "debug", "warn", "error")
	choiceFlag(cmd, &l.format, "log-format", "", "log format", logText, logJSON)
}

// logger returns the logger that the flags select.
func (l *logging) logger(w io.Writer) (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(l.level)); err != nil {
		return nil, fmt.Errorf("--log-level: %w", err)
	}
	if l.live != nil {
		return l.live.Logger(level), nil
	}
	options := &slog.HandlerOptions{Level: level}
	if l.format == logJSON {
		return slog.New(slog.NewJSONHandler(w, options)), nil
	}
	return slog.New(slog.NewTextHandler(w, options)), nil
}
