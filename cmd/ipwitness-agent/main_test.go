//go:build linux

package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/ipwitness/ipwitness/cmd/cli"
	"github.com/ipwitness/ipwitness/tests/pki"
	"github.com/ipwitness/ipwitness/tests/snippets"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// run runs a command line, and ends it when its log contains end.
func run(t *testing.T, env map[string]string, end string, args ...string) (code int, out string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), wait.Patience())
	defer cancel()
	log := &output{end: end, cancel: cancel}
	code = execute(ctx, log, log, func(name string) string { return env[name] }, args)
	return code, log.String()
}

// output calls cancel when it contains end.
type output struct {
	strings.Builder
	end    string
	cancel func()
}

func (o *output) Write(p []byte) (int, error) {
	n, err := o.Builder.Write(p)
	if o.end != "" && strings.Contains(o.String(), o.end) {
		o.cancel()
	}
	return n, err
}

// The agent runs on each node: what only an aggregator or a terminal needs is not in it.
func TestTheAgentHasNothingOfTheAggregator(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	deps := string(out)
	if !strings.Contains(deps, "ipwitness/ipwitness/agent\n") {
		t.Fatalf("got the dependencies %s, want those of the agent", deps)
	}
	unwanted := regexp.MustCompile(`(?m)^(k8s\.io/(client-go|api|apimachinery)|github\.com/(cockroachdb/pebble|nats-io|ipwitness/ipwitness/aggregator)|charm\.land|.*bubbletea)(/.*)?$`)
	if found := unwanted.FindAllString(deps, -1); len(found) > 0 {
		t.Errorf("the agent depends on %q", found)
	}
}

func TestErrorsSayWhatToDo(t *testing.T) {
	const help = "Run 'ipwitness-agent --help' for usage.\n"
	dir := t.TempDir()
	token := filepath.Join(dir, "token")
	if err := os.WriteFile(token, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		args []string
		env  map[string]string
		want string
	}{
		"without an aggregator": {nil, nil, "no aggregator is configured: use --aggregator HOST:PORT, or 'ipwitness run' for agent and aggregator in one process\n"},
		"a URL": {
			[]string{"--aggregator", "http://agg:9640"},
			nil,
			"--aggregator: \"http://agg:9640\" is not HOST:PORT: write it like ipwitness.example.net:9640, 192.0.2.1:9640 or [2001:db8::1]:9640\n" + help,
		},
		"without a port": {
			nil,
			map[string]string{"IPWITNESS_AGGREGATOR": "a:9640,b"},
			"IPWITNESS_AGGREGATOR: \"b\" is not HOST:PORT: write it like ipwitness.example.net:9640, 192.0.2.1:9640 or [2001:db8::1]:9640\n" + help,
		},
		"port 0":          {[]string{"--aggregator", "[2001:db8::1]:0"}, nil, "--aggregator: \"[2001:db8::1]:0\" has no port from 1 to 65535 after the last colon\n" + help},
		"twice":           {[]string{"--aggregator", "agg:9640", "--aggregator", "agg:9640"}, nil, "the aggregator agg:9640 is configured twice: remove one\n"},
		"a long name":     {[]string{"--aggregator", "agg:9640", "--node", strings.Repeat("n", 254)}, nil, "--node: the name has 254 bytes, but the limit is 253\n" + help},
		"an argument":     {[]string{"agent"}, nil, "ipwitness-agent takes no arguments, but got \"agent\"\n" + help},
		"token, no TLS":   {[]string{"--aggregator", "127.0.0.1:1", "--token-file", token}, nil, "--token-file is not sent without TLS, because it could be read in transit: set --tls-ca to the CA of the aggregator's certificate\n"},
		"not a CA":        {[]string{"--aggregator", "127.0.0.1:1", "--tls-ca", token}, nil, token + " has no certificate in PEM: it must begin with -----BEGIN CERTIFICATE-----\n"},
		"flag of another": {[]string{"--aggregator", "127.0.0.1:1", "--cluster", "x"}, nil, "unknown flag --cluster\n" + help},
	} {
		t.Run(name, func(t *testing.T) {
			code, out := run(t, test.env, "", test.args...)
			if want := "ipwitness-agent: " + test.want; code != 1 || out != want {
				t.Errorf("got %d and %q, want 1 and %q", code, out, want)
			}
		})
	}
}

// A listener that other hosts can reach without authentication logs one warning.
func TestAListenerWithoutAuthenticationLogsAWarning(t *testing.T) {
	ca, err := pki.New(t.TempDir(), "servers")
	if err != nil {
		t.Fatal(err)
	}
	pair, err := ca.Issue(pki.Want{File: "server", CommonName: "agent", Hosts: []string{"localhost"}})
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		args []string
		want int
	}{
		"open":           {[]string{"--http-listen", ":0"}, 1},
		"this host only": {[]string{"--http-listen", "127.0.0.1:0"}, 0},
		"authenticated":  {[]string{"--http-listen", ":0", "--tls-ca", ca.File, "--tls-cert", pair.Cert, "--tls-key", pair.Key, "--tls-client-ca", ca.File}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			_, out := run(t, nil, `"msg":"starting"`, append(test.args, "--wire", "off", "--node", "n", "--aggregator", "127.0.0.1:1", "--log-format", "json")...)
			if got := strings.Count(out, "no authentication is configured"); got != test.want || !strings.Contains(out, `"msg":"stopped"`) {
				t.Errorf("got %d warnings, want %d:\n%s", got, test.want, out)
			}
		})
	}
}

// The example settings in the package, including those that are commented out, are flags.
func TestShippedSettingsAreFlags(t *testing.T) {
	text, err := os.ReadFile("../../deploy/systemd/agent.yaml")
	if err != nil {
		t.Fatal(err)
	}
	text = regexp.MustCompile(`(?m)^#([a-z]|  - )`).ReplaceAll(text, []byte("$1"))
	var keys map[string]any
	if err := yaml.Unmarshal(text, &keys); err != nil || len(keys) < 3 {
		t.Fatalf("got the keys %v and %v, want some", keys, err)
	}
	known := cli.NewAgent(os.Stderr).Flags()
	for key := range keys {
		if known.Lookup(key) == nil {
			t.Errorf("%s is no flag of the agent", key)
		}
	}
}

// Commands in the documentation parse, because users copy them in urgent situations.
func TestDocumentedCommandsAreTaken(t *testing.T) {
	blocks, err := snippets.Blocks("../..")
	if err != nil {
		t.Fatal(err)
	}
	start := regexp.MustCompile(`^(.*-- /|(sudo )?(bin/)?)ipwitness-agent\b`)
	parsed := 0
	for _, b := range blocks {
		for _, line := range b.Commands() {
			if !start.MatchString(line) || strings.Contains(line, "[") { // or the form of a command
				continue
			}
			parsed++
			command, _, _ := strings.Cut(start.ReplaceAllString(line, ""), "#")
			root := newRoot(os.Stdout, os.Stderr)
			cmd, rest, err := root.Find(strings.Fields(command))
			if err == nil {
				err = cmd.ParseFlags(rest)
			}
			if err == nil {
				err = cmd.ValidateArgs(cmd.Flags().Args())
			}
			if err != nil {
				t.Errorf("%s: %s: %v", b.Page, line, err)
			}
		}
	}
	if parsed < 5 {
		t.Errorf("got only %d commands", parsed)
	}
}
