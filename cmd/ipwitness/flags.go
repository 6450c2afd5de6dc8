//go:build linux

package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/ipwitness/ipwitness/aggregator"
	"github.com/ipwitness/ipwitness/aggregator/access"
	"github.com/ipwitness/ipwitness/aggregator/export"
	"github.com/ipwitness/ipwitness/aggregator/fleet"
	transitions "github.com/ipwitness/ipwitness/aggregator/stream"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/cmd/cli"
	"github.com/ipwitness/ipwitness/secure"
)

// aggregatorFlags adds the flags of an aggregator.
func aggregatorFlags(cmd *cobra.Command, cfg *aggregator.Config) {
	judgementFlags(cmd, cfg)
	fs := cmd.Flags()
	cfg.Cluster = aggregator.DefaultCluster
	fs.Var(cli.NewValue(&cfg.Cluster, "NAME", cli.ParseName), "cluster", "name of the cluster of the nodes; conflict ids depend on it")
	cfg.DataDir = aggregator.DataDirAuto
	fs.Var(cli.NewValue(&cfg.DataDir, "DIR", func(s string) (string, error) {
		switch s {
		case "":
			return "", errors.New("it is empty: give a directory, auto or off")
		case "off":
			return "", nil // no directory
		}
		return s, nil
	}), "data-dir", "data directory, off for no history, or auto for "+aggregator.DefaultDataDir+" if writable")
	fs.StringVar(&cfg.Kubeconfig, "kubeconfig", aggregator.DefaultKubeconfig,
		"kubeconfig `FILE` used to look up owners, off, or auto for the cluster of this pod")

	end := cli.Topic(cmd, "storage")
	durationFlag(fs, &cfg.Retention, "retention", aggregator.DefaultRetention, "time for which the history is kept, in whole days if possible")
	sizeFlag(fs, &cfg.JournalSize, "journal-size", aggregator.DefaultJournalSize, "disk space that the history may take")
	end()
	end = cli.Topic(cmd, "kubernetes")
	fs.StringVar(&cfg.Lease, "lease", "",
		"Lease used to elect a leader among replicas, as `NAMESPACE/NAME` (default: this one always leads)")
	fs.BoolVar(&cfg.NodeCondition, "node-condition", false, "write the condition AddressConflict of Kubernetes' Nodes, for nodes with confirmed conflicts")
	end()
	defer cli.Topic(cmd, "timing")()
	durationFlag(fs, &cfg.NodeTimeout, "node-timeout", aggregator.DefaultNodeTimeout, "time after which the owners of a disconnected node count as gone")
	durationFlag(fs, &cfg.LeakedAfter, "leaked-after", aggregator.DefaultLeakedAfter, "time for which an allocation may be unused before it is reported as leaked")
	fs.Var(cli.NewValue(&cfg.ReusedWithin, "DURATION", parseLimit), "reused-within",
		"time within which the reuse of an address is reported, such as 30s")
	fs.Lookup("reused-within").DefValue = limitOff
}

// judgementFlags adds the flags that decide how addresses are judged.
func judgementFlags(cmd *cobra.Command, cfg *aggregator.Config) {
	fs := cmd.Flags()
	fs.Var(cli.NewList(&cfg.Shared, "CIDR=REASON", "\n", parseShared), "shared",
		"addresses that are intentionally shared, such as anycast; repeatable")
	fs.Var(cli.NewList(&cfg.Routers, "WHO=REASON", "\n", parseRouter), "router",
		"workload that may answer for others: NAMESPACE/POD, with * and ?, or a MAC; repeatable")
	networks := cli.NewList(new([]string), "NAME=CIDR[,CIDR...]", "\n", func(s string) (string, error) { return s, addNetwork(cfg, s) })
	fs.Var(networks, "network", "addresses that must be unique in the cluster, or in a fleet (,clusters=NAME,NAME or *); repeatable")
	defer cli.Topic(cmd, "timing")()
	durationFlag(fs, &cfg.Settle, "settle", aggregator.DefaultSettle, "time after which a conflict is confirmed if both owners still hold the address")
	durationFlag(fs, &cfg.StaleAfter, "stale-after", aggregator.DefaultStaleAfter, "time without frames after which an owner known only from the wire is stale")
	durationFlag(fs, &cfg.HandoverGrace, "handover-grace", aggregator.DefaultHandoverGrace, "maximum duration of a hand-over between two nodes")
}

// exportFlags adds the flags of the systems that an aggregator tells of transitions.
func exportFlags(cmd *cobra.Command, cfg *export.Settings) {
	defer cli.Topic(cmd, "export")()
	fs := cmd.Flags()
	fs.Var(cli.NewValue(&cfg.OTLP, "URL", parseURL), "otlp-endpoint", "URL that gets all transitions as OpenTelemetry logs (OTLP/HTTP), like http://collector:4318")
	fs.Var(cli.NewList(&cfg.Alertmanagers, "URL", ",", parseURL), "alertmanager",
		"Alertmanager that gets alerts on conflicts and findings, like http://alertmanager:9093; repeatable")
	fs.StringVar(&cfg.AlertmanagerToken, "alertmanager-token-file", "", "bearer token `FILE` for Alertmanager")
	fs.Var(cli.NewValue(&cfg.Webhook, "URL", parseURL), "webhook", "URL of the webhook that gets conflicts and findings as CloudEvents, signed")
	fs.StringVar(&cfg.WebhookSecret, "webhook-secret-file", "", "`FILE` with the secret of the webhook's signature, as whsec_ and base64; several lines to change it")
	fs.StringVar(&cfg.CA, "export-ca", "", "CA `FILE` for --webhook, --alertmanager and --otlp-endpoint, in PEM (default: those of the system)")
}

// natsFlags adds the flags of the stream of transitions on NATS.
func natsFlags(cmd *cobra.Command, cfg *transitions.Settings) {
	defer cli.Topic(cmd, "export")()
	fs := cmd.Flags()
	fs.Var(cli.NewList(&cfg.Servers, "URL", ",", parseNATS), "nats",
		"NATS servers to publish all transitions to (JetStream), like nats://nats:4222; repeatable")
	fs.StringVar(&cfg.CA, "nats-ca", "", "CA bundle `FILE` of the NATS servers, in PEM; reloaded when it changes (default: that of the system)")
	fs.StringVar(&cfg.Cert, "nats-cert", "", "client certificate `FILE` for NATS, in PEM; reloaded when it changes")
	fs.StringVar(&cfg.Key, "nats-key", "", "private key `FILE` of --nats-cert, in PEM")
	fs.StringVar(&cfg.Creds, "nats-creds", "", "credentials `FILE` for NATS, with a JWT and its seed")
	fs.StringVar(&cfg.NKey, "nats-nkey", "", "`FILE` with the NKey seed for NATS")
	fs.StringVar(&cfg.Token, "nats-token-file", "", "token `FILE` for NATS; sent only with TLS, or to this host")
	durationFlag(fs, &cfg.Retention, "nats-retention", transitions.DefaultRetention, "time for which a new stream keeps transitions")
	sizeFlag(fs, &cfg.Size, "nats-size", transitions.DefaultSize, "disk space that a new stream may take on each NATS server")
}

// accessFlags adds the flags that control access to an aggregator.
func accessFlags(cmd *cobra.Command, files *secure.Files, cfg *access.Config) {
	defer cli.Topic(cmd, "access")()
	fs := cmd.Flags()
	cli.OwnCertFlags(fs, files, "server certificate `FILE`, in PEM; reloaded when it changes (default: no TLS)")
	cli.ClientCAFlag(fs, files, "CA bundle `FILE` used to verify client certificates, in PEM; agents must then present one")
	fs.StringVar(&cfg.Tokens, "tokens", "", "`FILE` of accepted bearer tokens, with lines of TOKEN agent|reader|operator NAME")
	fs.BoolVar(&cfg.TokenReview, "token-review", false, "authenticate bearer tokens with the Kubernetes API (TokenReview), and authorize them with RBAC")
	fs.StringVar(&cfg.Audience, "token-audience", access.DefaultAudience, "required `AUDIENCE` of Kubernetes tokens")
	fs.Var(cli.NewList(&cfg.AgentAccounts, "NAMESPACE/NAME", ",", parseText), "agent-account",
		"service account of the agents; repeatable")
	cli.ChoiceFlag(cmd, &cfg.Anonymous, "anonymous", "", "access for unauthenticated callers; auto: none with authentication, else read",
		access.AnonymousAuto, access.AnonymousNone, access.AnonymousRead)
	fs.BoolVar(&cfg.Required, "require-auth", false, "refuse to start without --tokens, --token-review or --tls-client-ca")
}

// listenFlags adds the flags for the addresses that an aggregator listens on.
func listenFlags(cmd *cobra.Command, to *addresses, byDefault addresses) {
	cli.ListenFlag(cmd.Flags(), &to.grpc, grpcListen, byDefault.grpc, "listen address of gRPC")
	cli.ListenFlag(cmd.Flags(), &to.http, cli.HTTPListen, byDefault.http, "listen address of the REST API and the metrics")
	cli.ListenFlag(cmd.Flags(), &to.metrics, metricsListen, "", "additional listen address of health, readiness and metrics (default none)")
}

// The names of the listen flags, which errors about listeners contain.
const (
	grpcListen    = "grpc-listen"
	metricsListen = "metrics-listen"
)

func parseURL(s string) (string, error) {
	u, err := url.Parse(s)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return "", errors.New("it must be a URL like https://receiver.example.net/path")
	}
	return s, nil
}

func parseNATS(s string) (string, error) {
	u, err := url.Parse(s)
	if err != nil || u.Host == "" || u.User != nil || !slices.Contains([]string{"nats", "tls", "ws", "wss"}, u.Scheme) {
		return "", errors.New("it must be a URL like nats://nats.example.net:4222, without credentials: see --nats-creds")
	}
	return s, nil
}

// durationFlag adds a flag for a duration greater than 0.
func durationFlag(fs *pflag.FlagSet, to *time.Duration, name string, byDefault time.Duration, usage string) {
	const day = 24 * time.Hour
	*to = byDefault
	fs.Var(cli.NewValue(to, "DURATION", parsePeriod), name, usage)
	if byDefault%day == 0 {
		fs.Lookup(name).DefValue = fmt.Sprintf("%dd", byDefault/day)
	}
}

// limitOff is the value of a limit that does not apply.
const limitOff = "off"

// parseLimit parses a duration; 0 for off.
func parseLimit(s string) (time.Duration, error) {
	if s == limitOff {
		return 0, nil
	}
	d, err := parsePeriod(s)
	if err != nil {
		return 0, fmt.Errorf("%w, or off", err)
	}
	return d, nil
}

// parseShared parses CIDR=REASON.
func parseShared(s string) (verdict.Shared, error) {
	cidr, reason, _ := strings.Cut(s, "=")
	reason = strings.TrimSpace(reason)
	prefix, err := parsePrefix(strings.TrimSpace(cidr))
	if err != nil {
		return verdict.Shared{}, err
	}
	if reason == "" {
		return verdict.Shared{}, fmt.Errorf("%q has no reason: write CIDR=REASON, like 10.9.0.0/24=anycast", s)
	}
	return verdict.Shared{Prefix: prefix, Reason: reason}, nil
}

// parseRouter parses WHO=REASON. WHO is a MAC, a pattern of NAMESPACE/POD, or a pattern of the name
// of a workload without a namespace.
func parseRouter(s string) (verdict.Router, error) {
	who, reason, _ := strings.Cut(s, "=")
	who, reason = strings.TrimSpace(who), strings.TrimSpace(reason)
	switch {
	case who == "":
		return verdict.Router{}, fmt.Errorf("%q has no workload: write WHO=REASON, like kube-system/vpn-*=gateway", s)
	case reason == "":
		return verdict.Router{}, fmt.Errorf("%q has no reason: write WHO=REASON, like kube-system/vpn-*=gateway", s)
	}
	if mac, err := net.ParseMAC(who); err == nil && len(mac) == 6 {
		return verdict.Router{MAC: verdict.MAC(mac), Reason: reason}, nil
	}
	if _, err := cli.ParseGlob(who); err != nil {
		return verdict.Router{}, err
	}
	return verdict.Router{Who: who, Reason: reason}, nil
}

// addNetwork parses NAME=CIDR[,CIDR…], and ,clusters=* or ,clusters=NAME[,NAME…] behind it. A network with clusters is
// shared: by these, or by all of them.
func addNetwork(cfg *aggregator.Config, s string) error {
	declared, of, shared := strings.Cut(s, ",clusters=")
	name, cidrs, _ := strings.Cut(declared, "=")
	name, err := cli.ParseName(strings.TrimSpace(name))
	if err != nil {
		return err
	}
	if strings.TrimSpace(cidrs) == "" {
		return fmt.Errorf("%q has no CIDR: write NAME=CIDR, like pods=10.244.0.0/16", s)
	}
	var prefixes []netip.Prefix
	for cidr := range strings.SplitSeq(cidrs, ",") {
		prefix, err := parsePrefix(strings.TrimSpace(cidr))
		if err != nil {
			return err
		}
		prefixes = append(prefixes, prefix)
	}
	if !shared {
		cfg.Networks = append(cfg.Networks, verdict.Network{Name: name, Prefixes: prefixes})
		return nil
	}
	var clusters []string
	if of != "*" {
		for cluster := range strings.SplitSeq(of, ",") {
			cluster, err := cli.ParseName(strings.TrimSpace(cluster))
			if err != nil {
				return fmt.Errorf("clusters=%s: %w", of, err)
			}
			clusters = append(clusters, cluster)
		}
		if len(clusters) < 2 {
			return fmt.Errorf("clusters=%s is one cluster: name at least two, or write clusters=*", of)
		}
	}
	cfg.SharedNetworks = append(cfg.SharedNetworks, fleet.Network{Name: name, Prefixes: prefixes, Clusters: clusters})
	return nil
}

// parsePrefix parses a CIDR or a single address.
func parsePrefix(s string) (netip.Prefix, error) {
	if addr, err := netip.ParseAddr(s); err == nil {
		return addr.WithZone("").Prefix(addr.BitLen())
	}
	prefix, err := netip.ParsePrefix(s)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("%q is not a CIDR: write it like 10.9.0.0/24 or fd00:9::/64", s)
	}
	if prefix != prefix.Masked() {
		one := netip.PrefixFrom(prefix.Addr(), prefix.Addr().BitLen())
		return netip.Prefix{}, fmt.Errorf("%q has bits beyond its mask: write %s or, for one address, %s", s, prefix.Masked(), one)
	}
	return prefix, nil
}

// sizeFlag adds a flag for a number of bytes.
func sizeFlag(fs *pflag.FlagSet, to *int64, name string, byDefault int64, usage string) {
	*to = byDefault
	fs.Var(cli.NewValue(to, "SIZE", parseSize), name, usage)
	fs.Lookup(name).DefValue = strconv.FormatInt(byDefault>>30, 10) + "GiB"
}

func parseSize(s string) (int64, error) {
	const least = 16 << 20 // of a journal
	for i, unit := range []string{"KiB", "MiB", "GiB", "TiB"} {
		number, is := strings.CutSuffix(s, unit)
		if n, err := strconv.ParseInt(number, 10, 20); is && err == nil && n<<(10*(i+1)) >= least {
			return n << (10 * (i + 1)), nil
		}
	}
	return 0, fmt.Errorf("%q is not a size of at least 16MiB: write it like 500MiB or 10GiB", s)
}
