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

	"github.com/spf13/pflag"

	"github.com/ipwitness/ipwitness/aggregator"
	"github.com/ipwitness/ipwitness/aggregator/fleet"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/cmd/cli"
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

// durationFlag adds a flag for a positive duration.
func durationFlag(fs *pflag.FlagSet, to *time.Duration, name string, byDefault time.Duration, usage string) {
	*to = byDefault
	fs.Var(cli.NewValue(to, "DURATION", parseDuration), name, usage)
}

func parseDuration(s string) (time.Duration, error) {
	d, err := time.ParseDuration(s)
	switch {
	case err != nil:
		return 0, fmt.Errorf("%q is not a duration: write it like 500ms, 10s or 5m", s)
	case d <= 0:
		return 0, fmt.Errorf("%q is not greater than 0", s)
	}
	return d, nil
}

// limitOff is the value of a limit that does not apply.
const limitOff = "off"

// parseLimit parses a duration; 0 for off.
func parseLimit(s string) (time.Duration, error) {
	if s == limitOff {
		return 0, nil
	}
	d, err := parseDuration(s)
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

// retentionFlag adds a flag for a number of days, or for a duration.
func retentionFlag(fs *pflag.FlagSet, to *time.Duration, name string, byDefault time.Duration, usage string) {
	*to = byDefault
	fs.Var(cli.NewValue(to, "DURATION", parseRetention), name, usage)
	fs.Lookup(name).DefValue = fmt.Sprintf("%.fd", byDefault.Hours()/24)
}

func parseRetention(s string) (time.Duration, error) {
	d, err := parseDays(s)
	if err != nil || d <= 0 {
		return 0, fmt.Errorf("%q is not a duration: write it like 30d or 12h", s)
	}
	return d, nil
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
