package agent

import (
	"os"
	"slices"
	"testing"
)

func TestInvalidConfigurationIsRefused(t *testing.T) {
	c := Config{CRISocket: "x.sock"}
	if _, err := c.defaults(); err == nil {
		t.Errorf("configuration %+v: got no error", c)
	}
	checks := Doctor(c)
	if len(checks) != 1 || checks[0].Status != StatusMissing || checks[0].Fix == "" {
		t.Errorf("checks of configuration %+v: got %v, want only that it is wrong", c, checks)
	}
}

func TestEmptyConfigurationHasDefaults(t *testing.T) {
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	c, err := Config{}.defaults()
	if err != nil {
		t.Fatal(err)
	}
	if c.Node != host || c.Wire != WireAuto || c.CNIResults != "/var/lib/cni/results" || c.CalicoDir != "" || c.CRISocket == "" {
		t.Errorf("defaults: got %+v", c)
	}
	if !slices.Contains(c.NetnsDirs, "/run/netns") || !slices.Contains(c.CNIConfig, "/etc/cni/net.d") || !slices.Contains(c.CNIConfig, "/opt/cni/config") || !slices.Contains(c.IPAMDirs, "/run/cni-ipam-state") || !slices.Contains(c.IPAMDirs, "/run/cni") {
		t.Errorf("default directories: got %v, %v and %v", c.NetnsDirs, c.CNIConfig, c.IPAMDirs)
	}
	set := Config{Node: "n", Wire: WireOff, NetnsDirs: []string{"/a"}, CNIResults: "/b", CNIConfig: []string{"/c"}, IPAMDirs: []string{"/d"}, CalicoDir: "/e"}
	got, err := set.defaults()
	if err != nil {
		t.Fatal(err)
	}
	if got.Node != "n" || got.Wire != WireOff || got.NetnsDirs[0] != "/a" || got.CNIResults != "/b" || got.CNIConfig[0] != "/c" || got.IPAMDirs[0] != "/d" || got.CalicoDir != "/e" {
		t.Errorf("configuration that was set: got %+v", got)
	}
}
