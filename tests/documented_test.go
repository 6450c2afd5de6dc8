package tests

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nkeys"

	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/netlab"
	"github.com/ipwitness/ipwitness/tests/pki"
	"github.com/ipwitness/ipwitness/tests/recording"
	"github.com/ipwitness/ipwitness/tests/snippets"
	"github.com/ipwitness/ipwitness/tests/wait"
)

var (
	// recorded matches the pages whose commands and outputs come from the tests that are named there.
	recorded = regexp.MustCompile(`^docs/(incidents|situations/.*)\.md$`)
	// runElsewhere matches the pages whose sh blocks other tests run as they are (tests/docs).
	runElsewhere = regexp.MustCompile(`^docs/(install-kubernetes|install-linux|tutorial)\.md$`)
	// inCluster matches commands that need Kubernetes: TestInstallGuide runs the same ones.
	inCluster = regexp.MustCompile(` -P\b| exec .*-- /ipwitness|^ipwitness conflicts --server https://ipwitness\.example\.net `)
	asking    = regexp.MustCompile(`^(ipwitness(-agent)? |source <\(ipwitness )`)
	drawing   = regexp.MustCompile(`^ipwitness top\b`)
	daemon    = regexp.MustCompile(`^ipwitness(?: (aggregator|run)|(-agent) --.*) `)
	staying   = regexp.MustCompile(`^ipwitness ui\b| (-w|--watch)\b`)
	// findsSomething are the commands whose exit code says what they found.
	findsSomething = regexp.MustCompile(`--exit-code|^ipwitness status\b`)
	comment        = regexp.MustCompile(`\s#.*$`)
)

// documentedHost is a host on which commands of the documentation run, with a directory for what
// they write.
type documentedHost struct {
	*lab
	dir string
}

func newDocumentedHost(t *testing.T) *documentedHost {
	t.Helper()
	h := &documentedHost{&lab{Host: newHost(t), t: t}, t.TempDir()}
	h.sh("mkdir -p /etc/ipwitness /etc/bash_completion.d")
	return h
}

// command returns a shell that runs a command line.
func (h *documentedHost) command(line string) *exec.Cmd {
	shell := "sh"
	if strings.HasPrefix(line, "source ") {
		shell = "bash"
	}
	cmd := h.Command(shell, "-euc", "cd '"+h.dir+"'\n"+line)
	cmd.Env = append(cmd.Env, "PATH="+filepath.Dir(binary)+":"+h.dir+":"+os.Getenv("PATH"), "HOME="+h.dir)
	return cmd
}

// exits runs a command line and returns an error unless it succeeds. With --exit-code, other codes say
// what was found. An aggregator that has just started knows that it does not know an earlier time.
func (h *documentedHost) exits(line string) error {
	out, err := h.Output(h.command(line))
	if strings.Contains(line, " --at ") && strings.Contains(out, ", before the journal begins") {
		return nil
	}
	if exit, is := errors.AsType[*exec.ExitError](err); is && findsSomething.MatchString(line) && exit.ExitCode() > 1 {
		return nil
	}
	return err
}

// onTerminal runs a command line on a terminal until it draws something, and quits it.
func (h *documentedHost) onTerminal(line string) error {
	terminal, inside, err := recording.Terminal(100, 30)
	if err != nil {
		return err
	}
	defer func() { _ = terminal.Close() }()
	cmd := h.command("exec " + line)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = inside, inside, inside
	cmd.Env = append(cmd.Env, "TERM=xterm-256color")
	err = h.Start(cmd)
	_ = inside.Close()
	if err != nil {
		return err
	}
	defer time.AfterFunc(patience, func() { _ = cmd.Process.Kill() }).Stop()
	if _, err := terminal.Read(make([]byte, 1024)); err != nil {
		return fmt.Errorf("read what it draws: %w", err)
	}
	if _, err := terminal.WriteString("q"); err != nil {
		return err
	}
	_, _ = io.Copy(io.Discard, terminal) // ends with EIO when the program has ended
	return cmd.Wait()
}

// starts runs a command line, and returns when it is ready. It runs until the test ends; if it ends
// before it is ready, that is an error.
func (h *documentedHost) starts(line string, ready func(said string) bool) (err error) {
	h.t.Helper()
	log := &netlab.Log{}
	cmd := h.command("exec " + line)
	cmd.Stdout, cmd.Stderr = log, log
	if err := h.Start(cmd); err != nil {
		h.t.Fatal(err)
	}
	end := make(chan error, 1)
	go func() { end <- cmd.Wait() }()
	h.t.Cleanup(func() { _ = cmd.Process.Kill() })
	wait.Until(h.t, line+" to begin", func() bool {
		select {
		case err = <-end:
			err = fmt.Errorf("it ended (%w): %s", err, log)
			return true
		default:
			return ready(log.String())
		}
	})
	return err
}

// listens reports whether a port of the host is open.
func (h *documentedHost) listens(port string) bool {
	return h.Do(func() error {
		conn, err := net.Dial("tcp", "127.0.0.1:"+port)
		if err == nil {
			_ = conn.Close()
		}
		return err
	}) == nil
}

// newAccident returns a host on which the commands find something: a conflict, findings, a journal.
func newAccident(t *testing.T) (*documentedHost, *strings.Replacer) {
	t.Helper()
	h := newDocumentedHost(t)
	h.start("--node", "node-7", "--data-dir", filepath.Join(h.dir, "data"))
	cni := h.cni(netlab.PTP)
	for _, pod := range []string{"web-1", "web-2"} {
		if err := cni.Add(pod); err != nil {
			t.Fatal(err)
		}
	}
	if err := cni.Forget(); err != nil {
		t.Fatal(err)
	}
	if err := cni.Add("api-1"); err != nil {
		t.Fatal(err)
	}
	h.watch.await("the conflict", inState("10.244.0.2", ipwitnessv1.Conflict_CONFIRMED))
	owner := h.owners("?address=10.244.0.2")[0]
	id, incident := h.watch.find("10.244.0.2")[0].GetId(), h.watch.find("10.244.0.2")[0].GetIncident()
	var found ipwitnessv1.ListFindingsResponse
	wait.Until(t, "the finding about an address without an allocation", func() bool {
		return h.program.Get(t.Context(), "/v1/findings?address=10.244.0.3", &found) == nil && len(found.GetFindings()) > 0
	})
	return h, strings.NewReplacer(
		"bin/ipwitness", "ipwitness", "NAMESPACE/POD", "default/web-1", "ADDRESS:9641", "127.0.0.1:9641",
		"ADDRESS", "10.244.0.2", "RANGE", "10.244.0.0/16", "MAC", owner.GetMac(), "NODE", "node-7", "audit ID", "audit "+found.GetFindings()[0].GetId(), "incidents ID", "incidents "+incident, "ID", id, "10.244.0.7", "10.244.0.2",
		"{{ $labels.id }}", id, "{{ $labels.address }}", "10.244.0.2", "/backup/ipwitness-2026-11-23", filepath.Join(h.dir, "backup"),
		"backup DIR", "backup "+filepath.Join(h.dir, "backup2"), "judge FILE", "judge case.json", " | less", "")
}

// Each command of ipwitness in the documentation runs: those that ask, on a host with an accident, and
// those that stay, on a host of their own, with the commands of their block.
func TestDocumentedCommandsRun(t *testing.T) {
	t.Parallel()
	blocks, err := snippets.Blocks("..")
	if err != nil {
		t.Fatal(err)
	}
	h, filled := newAccident(t)
	// What commands need that do not stand behind the ones that make it.
	for _, line := range []string{
		`ipwitness explain 10.244.0.2 -o case > case.json`, `ipwitness acknowledge 10.244.0.2 --reason known --for 1h`,
		`printf 'ts,src,dst,pod_ip,vpc\n1773482400,10.244.0.2,10.244.0.3,10.244.0.2,pods\n' > flows.csv`,
		`echo '{"src":"10.244.0.2","end":"2026-03-14T10:00:00Z"}' > flows.jsonl`,
	} {
		if err := h.exits(line); err != nil {
			t.Fatal(err)
		}
	}
	// A capture of ARP requests of one host, half a minute apart.
	const request = "000000002a0000002a000000" + "ffffffffffff020000000001" + "080600010800060400010200000000010af400020000000000000af40003"
	capture, err := hex.DecodeString("d4c3b2a102000400000000000000000000000400010000" + "00" + "80052d69" + request + "9e052d69" + request)
	if err := errors.Join(err, os.WriteFile(filepath.Join(h.dir, "lan.pcap"), capture, 0o600)); err != nil {
		t.Fatal(err)
	}
	ran := map[string]bool{}
	for _, b := range blocks {
		if recorded.MatchString(b.Page) || b.Language == "sh" && runElsewhere.MatchString(b.Page) {
			continue
		}
		commands := b.Commands()
		if slices.ContainsFunc(commands, daemon.MatchString) {
			t.Run(b.Page, func(t *testing.T) { runDaemons(t, commands) })
			continue
		}
		for _, line := range commands {
			plugin := strings.HasPrefix(line, "kubectl ") // asks a cluster: TestInstallGuide
			line = comment.ReplaceAllString(filled.Replace(line), "")
			if plugin || inCluster.MatchString(line) || !asking.MatchString(line) || ran[line] {
				continue
			}
			ran[line] = true
			line = strings.ReplaceAll(line, "{.owners[*].address}", "'{.owners[*].address}'")
			var err error
			switch {
			case drawing.MatchString(line):
				err = h.onTerminal(line)
			case staying.MatchString(line):
				err = h.starts(line, func(said string) bool { return said != "" })
			default:
				err = h.exits(line)
			}
			if err != nil {
				t.Errorf("%s: %s: %v", b.Page, line, err)
			}
		}
	}
	if len(ran) < 60 {
		t.Errorf("got %d commands, want all of the documentation", len(ran))
	}
}

// runDaemons runs the commands of a block, on a host with the files and names that they expect.
func runDaemons(t *testing.T, commands []string) {
	h := newDocumentedHost(t)
	ca, err := pki.New(h.dir, "ca")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ca.Issue(pki.Want{File: "agg", CommonName: "agg", Hosts: []string{"agg.example.net"}}); err != nil {
		t.Fatal(err)
	}
	h.sh(fmt.Sprintf("cp %s %s/ca.crt", ca.File, h.dir))
	for path, content := range map[string]string{
		"/etc/hosts":                "127.0.0.1 localhost agg.example.net\n",
		"/etc/ipwitness/tokens":     strings.Repeat("a", 32) + " agent node1\n" + strings.Repeat("b", 32) + " reader you\n",
		"/etc/ipwitness/token":      strings.Repeat("a", 32) + "\n",
		"/etc/ipwitness/nats.creds": natsCredentials(t),
		h.dir + "/.ipwitness-token": strings.Repeat("b", 32) + "\n",
	} {
		if err := os.WriteFile(h.Path(path), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, line := range commands {
		line = comment.ReplaceAllString(line, "")
		m := daemon.FindStringSubmatch(line + " ")
		if m == nil {
			if err := h.exits(line); err != nil {
				t.Errorf("%s: %v", line, err)
			}
			continue
		}
		port := "9641"
		if m[2] == "-agent" {
			port = "9642"
		}
		if err := h.starts(line, func(string) bool { return h.listens(port) }); err != nil {
			t.Errorf("%s: %v", line, err)
		}
	}
}

// natsCredentials returns the content of a file with credentials for NATS, whose server does not run.
func natsCredentials(t *testing.T) string {
	t.Helper()
	user, err := nkeys.CreateUser()
	if err != nil {
		t.Fatal(err)
	}
	seed, err := user.Seed()
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("-----BEGIN NATS USER JWT-----\neyJ0.eyJ0.eyJ0\n------END NATS USER JWT------\n\n-----BEGIN USER NKEY SEED-----\n%s\n------END USER NKEY SEED------\n", seed)
}
