package main

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/ipwitness/ipwitness/agent"
	"github.com/ipwitness/ipwitness/agent/cri"
	"github.com/ipwitness/ipwitness/aggregator"
	"github.com/ipwitness/ipwitness/aggregator/access"
	"github.com/ipwitness/ipwitness/aggregator/form"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/cmd/ipwitness/secure"
	"github.com/ipwitness/ipwitness/cmd/ipwitness/show"
)

// agentFlags adds the flags of an agent.
func agentFlags(cmd *cobra.Command, cfg *agent.Config) {
	fs := cmd.Flags()
	hostname, _ := os.Hostname() // if there is none, the agent requires --node
	cfg.Node = form.Node.Correct(hostname)
	cfg.Node = strings.ReplaceAll(cfg.Node, string(form.Replaced), "-")
	cfg.Node = strings.TrimLeft(cfg.Node, "-._")
	fs.Var(value[string]{&cfg.Node, "NAME", parseNode}, "node", "the name of this node")
	choiceFlag(cmd, &cfg.Wire, "wire", "", "how to watch frames; auto is tcx where the kernel has it (Linux 6.6)",
		agent.WireAuto, agent.WireTCX, agent.WireClsact, agent.WireOff)
	globsFlag(fs, &cfg.Interfaces, "interfaces", "watch frames only on interfaces with these names (default all)")
	fs.StringVar(&cfg.CRISocket, "cri-socket", cri.Auto, "where the container runtime offers CRI: auto, off or a `PATH`")
	globsFlag(fs, &cfg.ExcludeInterfaces, "exclude-interfaces", "watch no frames on interfaces with these names")
}

// aggregatorFlags adds the flags of an aggregator.
func aggregatorFlags(cmd *cobra.Command, cfg *aggregator.Config) {
	fs := cmd.Flags()
	cfg.Cluster = aggregator.DefaultCluster
	fs.Var(value[string]{&cfg.Cluster, "NAME", parseName}, "cluster", "the cluster that the nodes are of; conflict ids depend on it")
	fs.Var(&list[verdict.Shared]{to: &cfg.Shared, kind: "CIDR=REASON", separator: "\n", parse: parseShared}, "shared",
		"addresses that are meant to be held more than once; repeatable")
	fs.Var(&list[verdict.Router]{to: &cfg.Routers, kind: "WHO=REASON", separator: "\n", parse: parseRouter}, "router",
		"workload that answers for addresses of others: NAMESPACE/POD, with * and ?, or a MAC; repeatable")
	fs.StringVar(&cfg.DataDir, "data-dir", "", "the `DIR` where acknowledgements are kept over restarts (default in memory only)")
	fs.Var(&list[verdict.Network]{to: &cfg.Networks, kind: "NAME=CIDR[,CIDR...]", separator: "\n", parse: parseNetwork}, "network",
		"addresses that may be held once in the whole cluster; repeatable")
	fs.StringVar(&cfg.Kubeconfig, "kubeconfig", aggregator.DefaultKubeconfig,
		"kubeconfig `FILE` used to look up owners; off, or auto: the cluster of this pod")
	durationFlag(fs, &cfg.Settle, "settle", aggregator.DefaultSettle, "how long two owners must live side by side to be confirmed")
	durationFlag(fs, &cfg.StaleAfter, "stale-after", aggregator.DefaultStaleAfter, "when an owner that only the wire shows is stale")
	durationFlag(fs, &cfg.NodeTimeout, "node-timeout", aggregator.DefaultNodeTimeout, "when a node that is not heard from is given up")
	durationFlag(fs, &cfg.HandoverGrace, "handover-grace", aggregator.DefaultHandoverGrace, "how long a hand-over between two nodes may take")
	durationFlag(fs, &cfg.LeakedAfter, "leaked-after", aggregator.DefaultLeakedAfter, "how long an allocation may be unused before it is reported as leaked")
}

// accessFlags adds the flags that say who may do what with an aggregator.
func accessFlags(cmd *cobra.Command, files *secure.Files, cfg *access.Config) {
	fs := cmd.Flags()
	ownCertFlags(fs, files, "the `FILE` of the certificate by which TLS is offered, in PEM; read again when it changes")
	clientCAFlag(fs, files, "CA bundle `FILE` used to verify client certificates, in PEM; agents must then present one")
	fs.StringVar(&cfg.Tokens, "tokens", "", "the `FILE` of accepted bearer tokens: lines of TOKEN agent|reader|operator NAME")
	fs.BoolVar(&cfg.TokenReview, "token-review", false, "authenticate bearer tokens with the Kubernetes API (TokenReview), and authorize them with RBAC")
	fs.StringVar(&cfg.Audience, "token-audience", access.DefaultAudience, "the `AUDIENCE` that tokens of Kubernetes must be meant for")
	fs.Var(&list[string]{to: &cfg.AgentAccounts, kind: "NAMESPACE/NAME", separator: ",", parse: parseText}, "agent-account",
		"service account of the agents, whose tokens they present; repeatable")
	choiceFlag(cmd, &cfg.Anonymous, "anonymous", "", "access for unauthenticated callers; auto is none where authentication is configured",
		access.AnonymousAuto, access.AnonymousNone, access.AnonymousRead)
	fs.BoolVar(&cfg.Required, "require-auth", false, "refuse to start without --tokens, --token-review or --tls-client-ca")
}

func parseText(s string) (string, error) { return s, nil }

// clientTLSFlags adds the flags of who speaks to an aggregator.
func clientTLSFlags(fs *pflag.FlagSet, files *secure.Files) {
	fs.StringVar(&files.CA, "tls-ca", "", "the `FILE` with who signs the aggregator's certificate, in PEM, or system")
	ownCertFlags(fs, files, "the `FILE` of our certificate, in PEM")
	fs.StringVar(&files.Token, "token-file", "", "the `FILE` with our bearer token; sent by TLS only")
}

func ownCertFlags(fs *pflag.FlagSet, files *secure.Files, usage string) {
	fs.StringVar(&files.Cert, "tls-cert", "", usage)
	fs.StringVar(&files.Key, "tls-key", "", "the `FILE` of the key of --tls-cert, in PEM")
}

func clientCAFlag(fs *pflag.FlagSet, files *secure.Files, usage string) {
	fs.StringVar(&files.ClientCA, "tls-client-ca", "", usage)
}

// listenFlags adds the addresses that an aggregator listens on.
func listenFlags(cmd *cobra.Command, to *addresses, byDefault addresses) {
	listenFlag(cmd.Flags(), &to.grpc, grpcListen, byDefault.grpc, "where gRPC is offered")
	listenFlag(cmd.Flags(), &to.http, httpListen, byDefault.http, "where the REST API and the metrics are offered")
	listenFlag(cmd.Flags(), &to.metrics, metricsListen, "", "separate listener for health, readiness and metrics, beside --http-listen (default none)")
}

// exitCodeHelp returns the help text of --exit-code. found names the results that make
// the command exit with 2.
func exitCodeHelp(found string) string {
	return "exit 2 on " + found + ", 0 on none, 3 if not everything is seen, 1 on an error"
}

// The names of the flags that an error about a listener names.
const (
	grpcListen    = "grpc-listen"
	httpListen    = "http-listen"
	metricsListen = "metrics-listen"
)

// logging has the flags that say how to log.
type logging struct {
	level  logLevel
	format logFormat
	// live is the account in which log records appear as lines; nil if the log is
	// written separately.
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
	choiceFlag(cmd, &l.level, "log-level", "", "what to log; in a terminal the default is warn", logLevel("info"), "debug", "warn", "error")
	choiceFlag(cmd, &l.format, "log-format", "", "how to log", logText, logJSON)
}

// logger makes the logger that the flags ask for.
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
