package main

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/ipwitness/ipwitness/agent"
	"github.com/ipwitness/ipwitness/aggregator"
	"github.com/ipwitness/ipwitness/cmd/cli"
)

// settings runs a command line with flags of run, and returns the resulting configuration.
func settings(t *testing.T, env map[string]string, file string, args ...string) (agent.Config, aggregator.Config, addresses) {
	t.Helper()
	var a agent.Config
	var g aggregator.Config
	var l addresses
	run := &cobra.Command{Use: "run", RunE: func(cmd *cobra.Command, _ []string) error {
		return cli.ApplySettings(cmd, func(name string) string { return env[name] })
	}}
	cli.AgentFlags(run, &a)
	aggregatorFlags(run, &g)
	listenFlags(run, &l, addresses{grpc: ":1", http: ":2"})
	root := &cobra.Command{Use: "ipwitness", SilenceErrors: true, SilenceUsage: true}
	root.PersistentFlags().String("config", "", "")
	other := &cobra.Command{Use: "owners", Run: func(*cobra.Command, []string) {}}
	other.Flags().String("server", "", "")
	root.AddCommand(run, other)
	if file != "" {
		path := filepath.Join(t.TempDir(), "config.yaml")
		if err := os.WriteFile(path, []byte(file), 0o600); err != nil {
			t.Fatal(err)
		}
		args = append(args, "--config", path)
	}
	root.SetArgs(append([]string{"run"}, args...))
	if err := root.Execute(); err != nil {
		t.Fatal(err)
	}
	return a, g, l
}

func TestSettingsComeFromFlagThenEnvironmentThenFile(t *testing.T) {
	const file = `
cluster: from-file
settle: 2s
http-listen: 127.0.0.1:1111
server: http://elsewhere   # of another command
`
	tests := map[string]struct {
		env  map[string]string
		file string
		args []string
		want string
	}{
		"default":     {nil, "", nil, "default"},
		"file":        {nil, file, nil, "from-file"},
		"environment": {map[string]string{"IPWITNESS_CLUSTER": "from-env"}, file, nil, "from-env"},
		"empty":       {map[string]string{"IPWITNESS_CLUSTER": ""}, file, nil, "from-file"},
		"flag":        {map[string]string{"IPWITNESS_CLUSTER": "from-env"}, file, []string{"--cluster", "from-flag"}, "from-flag"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			_, g, l := settings(t, test.env, test.file, test.args...)
			if g.Cluster != test.want {
				t.Errorf("got cluster %q, want %q", g.Cluster, test.want)
			}
			if test.file != "" && (g.Settle != 2*time.Second || l.http != "127.0.0.1:1111") {
				t.Errorf("got settle %s and http-listen %q, want those of the file", g.Settle, l.http)
			}
		})
	}
}

func TestListsComeFromAllSources(t *testing.T) {
	check := func(a agent.Config, g aggregator.Config, _ addresses) {
		t.Helper()
		if len(a.Interfaces) != 2 || a.Interfaces[0] != "eth*" || a.Interfaces[1] != "veth*" {
			t.Errorf("got interfaces %q, want eth* and veth*", a.Interfaces)
		}
		if len(g.Shared) != 2 || g.Shared[0].Reason != "anycast, on purpose" || g.Shared[1].Prefix.String() != "fd00::1/128" {
			t.Errorf("got shared %v, want two", g.Shared)
		}
		if got, want := fmt.Sprint(g.Networks), "[{pods [10.1.0.0/16 fd00:1::/64]} {vms [10.2.0.0/16]}]"; got != want {
			t.Errorf("got networks %s, want %s", got, want)
		}
		if len(g.Routers) != 2 || g.Routers[0].Who != "kube-system/vpn-*" || g.Routers[0].Reason != "a gateway, it is" || g.Routers[1].MAC != "\x02\x00\x00\x00\x00\x09" {
			t.Errorf("got routers %+v, want two", g.Routers)
		}
	}
	check(settings(t, nil, "", "--interfaces", "eth*,veth*", "--shared", "10.9.0.0/24=anycast, on purpose", "--shared", "fd00::1=x",
		"--network", "pods=10.1.0.0/16,fd00:1::/64", "--network", "vms = 10.2.0.0/16",
		"--router", "kube-system/vpn-*=a gateway, it is", "--router", "02:00:00:00:00:09=x"))
	check(settings(t, map[string]string{
		"IPWITNESS_INTERFACES": "eth*, veth*", "IPWITNESS_SHARED": "10.9.0.0/24=anycast, on purpose\nfd00::1=x\n",
		"IPWITNESS_NETWORK": "pods=10.1.0.0/16, fd00:1::/64\nvms=10.2.0.0/16\n",
		"IPWITNESS_ROUTER":  "kube-system/vpn-*=a gateway, it is\n02:00:00:00:00:09=x",
	}, ""))
	check(settings(t, nil, `
interfaces: [eth*, veth*]
shared:
- 10.9.0.0/24=anycast, on purpose
- fd00::1=x
network:
- pods=10.1.0.0/16,fd00:1::/64
- vms=10.2.0.0/16
router:
- kube-system/vpn-*=a gateway, it is
- 02:00:00:00:00:09=x
`))
	check(settings(t, nil, `
interfaces: eth*,veth*
shared: |
  10.9.0.0/24=anycast, on purpose
  fd00::1=x
network: |
  pods=10.1.0.0/16,fd00:1::/64
  vms=10.2.0.0/16
router: |
  kube-system/vpn-*=a gateway, it is
  02:00:00:00:00:09=x
`))
}

func TestDefaultsOfRun(t *testing.T) {
	a, g, _ := settings(t, nil, "# nothing\n")
	host, _ := os.Hostname()
	if a.Node != host || a.Wire != agent.WireAuto {
		t.Errorf("got node %q, wire %q; want %q, auto", a.Node, a.Wire, host)
	}
	if g.Settle != time.Second || g.StaleAfter != 5*time.Minute || g.NodeTimeout != 5*time.Minute || g.HandoverGrace != 10*time.Second {
		t.Errorf("got %+v, want the default durations", g)
	}
}

func TestTheDataDirectoryComesFromTheEnvironmentToo(t *testing.T) {
	for set, want := range map[string]string{"": aggregator.DataDirAuto, "auto": aggregator.DataDirAuto, "off": "", "/srv/ipwitness": "/srv/ipwitness"} {
		_, cfg, _ := settings(t, map[string]string{"IPWITNESS_DATA_DIR": set}, "")
		if cfg.DataDir != want {
			t.Errorf("got %q for %q, want %q", cfg.DataDir, set, want)
		}
	}
}

func TestSizesAndRetentionsAreParsed(t *testing.T) {
	for text, want := range map[string]int64{"16MiB": 16 << 20, "10GiB": 10 << 30, "1TiB": 1 << 40, "20000KiB": 20000 << 10, "10": 0, "1MiB": 0, "-5GiB": 0, "x": 0, "5GB": 0} {
		got, err := parseSize(text)
		if got != want || (err == nil) != (want != 0) {
			t.Errorf("size %q: got %d and %v, want %d", text, got, err, want)
		}
	}
	for text, want := range map[string]time.Duration{"30d": 720 * time.Hour, "12h": 12 * time.Hour, "0d": 0, "-1h": 0, "d": 0, "1.5d": 0} {
		got, err := parsePeriod(text)
		if got != want || (err == nil) != (want != 0) {
			t.Errorf("retention %q: got %s and %v, want %s", text, got, err, want)
		}
	}
}
