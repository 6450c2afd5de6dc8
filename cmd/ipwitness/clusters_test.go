package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/ipwitness/ipwitness/aggregator"
)

func TestNetworksOfSeveralClusters(t *testing.T) {
	var cfg aggregator.Config
	cmd := &cobra.Command{}
	aggregatorFlags(cmd, &cfg)
	flag := cmd.Flags().Lookup("network").Value
	for _, text := range []string{"pods=10.244.0.0/16", "lan=10.0.0.0/8,fd00::/8,clusters=*", "dmz=192.0.2.0/24,clusters=west, east"} {
		if err := flag.Set(text); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
	}
	if len(cfg.Networks) != 1 || cfg.Networks[0].Name != "pods" {
		t.Errorf("got the networks %v, want pods", cfg.Networks)
	}
	if n := cfg.SharedNetworks; len(n) != 2 || n[0].Name != "lan" || len(n[0].Prefixes) != 2 || n[0].Clusters != nil || !slices.Equal(n[1].Clusters, []string{"west", "east"}) {
		t.Errorf("got the shared networks %v, want lan of all, and dmz of two", n)
	}
	for text, want := range map[string]string{
		"lan=10.0.0.0/8,clusters=west": "is one cluster: name at least two",
		"lan=10.0.0.0/8,clusters=":     "clusters=",
		"lan=clusters=*":               "is not a CIDR",
	} {
		if err := flag.Set(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want an error with %q", text, err, want)
		}
	}
}

// A fleet refuses the settings of detection, and networks whose clusters are not named.
func TestAFleetRefusesSettingsOfOneCluster(t *testing.T) {
	for _, name := range notForFleet {
		cmd := newAggregator(system{getenv: func(string) string { return "" }})
		flag := cmd.Flags().Lookup(name)
		if flag == nil {
			t.Errorf("an aggregator has no flag --%s", name)
			continue
		}
		if err := onlyForFleet(cmd); err != nil {
			t.Errorf("got %v without flags, want no error", err)
		}
		flag.Changed = true
		if err := onlyForFleet(cmd); err == nil || !strings.Contains(err.Error(), "--"+name) {
			t.Errorf("got %v with --%s, want that it is refused", err, name)
		}
	}
}
