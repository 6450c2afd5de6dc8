package tests

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ipwitness/ipwitness/agent"
	"github.com/ipwitness/ipwitness/bpf"
	"github.com/ipwitness/ipwitness/tests/netlab"
	"github.com/ipwitness/ipwitness/tests/situations"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// four are the capabilities of the agent.
var four = []string{"CAP_NET_ADMIN", "CAP_NET_BROADCAST", "CAP_BPF", "CAP_PERFMON"}

// only returns a set of capabilities in the syntax of setpriv.
func only(capabilities ...string) string {
	set := "-all"
	for _, c := range capabilities {
		set += ",+" + strings.ToLower(strings.TrimPrefix(c, "CAP_"))
	}
	return set
}

// startWith starts an aggregator on a host, and an agent that has only these capabilities. If the
// agent exits, startWith returns its last output.
func startWith(t *testing.T, capabilities ...string) (l *lab, output string) {
	t.Helper()
	l = &lab{Host: newHost(t), t: t}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	p, err := l.Aggregator(ctx, binary)
	if err != nil {
		t.Fatal(err)
	}
	killed(t, "the aggregator", p)
	l.service = &service{at: l.Host, program: p, watch: watchConflicts(t, p)}
	args := agentWithout(only(capabilities...), "--node", "node1", "--aggregator", "127.0.0.1:9640")
	a, err := l.LaunchAgent(ctx, l.Command(args[0], args[1:]...))
	if err != nil { // the agent exited before it served metrics
		_, output, _ = strings.Cut(err.Error(), "ipwitness-agent: ")
		return l, output
	}
	killed(t, "the agent", a)
	ended := false
	wait.Until(t, "the agent to report, or to end", func() bool {
		select {
		case <-a.Ended():
			ended = true
		default:
		}
		nodes, err := p.Nodes(t.Context())
		return ended || err == nil && len(nodes) == 1
	})
	if ended {
		_, output, _ = strings.Cut(a.Log.String(), "ipwitness-agent: ")
		return l, output
	}
	l.agent = a
	return l, ""
}

// lasting waits until all problems of the node are about one capability, or until there are none if
// capability is empty, and returns them. Other problems are temporary, for example a port that
// disappeared while the agent attached to it.
func (l *lab) lasting(capability string) string {
	l.t.Helper()
	var got []string
	wait.Until(l.t, "no problem but that of "+cmp.Or(capability, "none"), func() bool {
		got = l.node().GetProblems()
		return !slices.ContainsFunc(got, func(p string) bool { return capability == "" || !strings.Contains(p, capability) })
	})
	return strings.Join(got, "; ")
}

// witnesses returns what an agent sees of a pod that is created after its start.
func (l *lab) witnesses() (frames bool, addresses string) {
	l.t.Helper()
	l.pod("a", "10.244.0.7/24")
	owner := l.awaitOwners("10.244.0.7", 1)[0]
	addresses = "at once"
	if strings.Contains(strings.Join(l.node().GetProblems(), "\n"), "the addresses are read every 2s instead") {
		addresses = "every 2 s"
	}
	if l.node().GetWire() != "off" {
		l.ports(1) // its addresses may be known before its port
	}
	claimed := netip.MustParseAddr("10.244.0.99")
	l.in("a", func() error {
		return netlab.Send("eth0", netlab.ARP(1, net.HardwareAddr{2, 0, 0, 0, 0, 9}, claimed, claimed))
	})
	if l.node().GetWire() != "off" {
		l.awaitOwners(claimed.String(), 1)
		return true, addresses
	}
	// The result of the frame would have been reported before the next duplicate.
	l.plant()
	if got := l.owners("?address=" + claimed.String()); len(got) != 0 {
		l.t.Errorf("wire %s: got %v of a frame of %v, want nothing", l.node().GetWire(), got, owner)
	}
	return false, addresses
}

// privileges returns the capabilities of the agent's threads. It fails if the threads differ, or if
// a thread could gain capabilities.
func (l *lab) privileges() (permitted string) {
	l.t.Helper()
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", l.agent.Cmd.Process.Pid))
	if err != nil || len(tasks) < 2 {
		l.t.Fatalf("threads: got %q, %v", tasks, err)
	}
	for _, task := range tasks {
		status, err := os.ReadFile(task)
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
			continue // the thread has ended
		}
		if err != nil {
			l.t.Fatal(err)
		}
		has := map[string]string{}
		for line := range strings.Lines(string(status)) {
			name, value, _ := strings.Cut(line, ":")
			has[name] = strings.TrimSpace(value)
		}
		if permitted == "" {
			permitted = has["CapPrm"]
		}
		if has["CapPrm"] != permitted || has["CapEff"] != permitted || has["CapAmb"] != "0000000000000000" || has["NoNewPrivs"] != "1" {
			l.t.Errorf("thread %s: got permitted %s, effective %s, ambient %s, no_new_privs %s, want %s, 0 and 1",
				task, has["CapPrm"], has["CapEff"], has["CapAmb"], has["NoNewPrivs"], permitted)
		}
	}
	return permitted
}

// mask formats a set of capabilities as in /proc/PID/status.
func mask(capabilities ...int) string {
	var set uint64
	for _, c := range capabilities {
		set |= 1 << c
	}
	return fmt.Sprintf("%016x", set)
}

func TestAgentOfRootKeepsTheCapabilitiesItUses(t *testing.T) {
	t.Parallel()
	wires := []string{"clsact"}
	if bpf.HaveTCX() == nil {
		wires = append(wires, "tcx")
	}
	for _, wire := range wires {
		t.Run(wire, func(t *testing.T) {
			t.Parallel()
			l := newLab(t, "--wire", wire) // agent and aggregator in one process
			if got, want := l.privileges(), mask(unix.CAP_NET_ADMIN, unix.CAP_SYS_PTRACE, unix.CAP_DAC_READ_SEARCH); got != want {
				t.Errorf("capabilities after the start: got %s, want %s", got, want)
			}
			l.pod("a", "10.244.0.7/24") // attaching to its port, and detaching, needs no further capability
			l.ports(1)
			l.plant()
			l.sh("ip link del va")
			l.awaitOwners("10.244.0.7", 0)
			if took, err := l.agent.Stop(); err != nil {
				t.Errorf("stop after %v: %v", took, err)
			}
			if out, err := l.Run("tc qdisc show"); err != nil || strings.Contains(out, "clsact") {
				t.Errorf("qdiscs after the end: got %q, %v, want no clsact", out, err)
			}
		})
	}
}

// permissionsPage contains the table that this test generates.
const permissionsPage = "../docs/permissions.md"

func TestEachCapabilityIsMissedAsDoctorPredicts(t *testing.T) {
	purposes := map[string]string{}
	usable, checks := doctorWith(t, newHost(t), four...)
	for _, c := range checks {
		purposes[c.Feature] = c.Detail
	}
	if !usable {
		t.Errorf("doctor with all four: got %+v, want it usable", checks)
	}
	rows := make([]string, len(four))
	t.Run("group", func(t *testing.T) {
		var mu sync.Mutex
		for i, missing := range four {
			t.Run(missing, func(t *testing.T) {
				t.Parallel()
				row := missed(t, missing, purposes[missing])
				mu.Lock()
				defer mu.Unlock()
				rows[i] = row
			})
		}
		t.Run("none", func(t *testing.T) {
			t.Parallel()
			l, output := startWith(t, four...)
			if l.agent == nil {
				t.Fatal("the agent ended: ", output)
			}
			if frames, addresses := l.witnesses(); !frames || addresses != "at once" {
				t.Errorf("with all four: got frames %v, addresses %s", frames, addresses)
			}
			if got, want := l.privileges(), mask(unix.CAP_NET_ADMIN); got != want {
				t.Errorf("capabilities after the start: got %s, want %s", got, want)
			}
			awaitWords(t, "what the agent dropped", l.agent.Log.String, `dropped="CAP_NET_BROADCAST CAP_PERFMON CAP_BPF" kept=CAP_NET_ADMIN`)
			l.lasting("")
		})
	})
	if t.Failed() {
		return
	}
	const head, begin, end = "| Capability | For | Used | Without it: frames, addresses in pods | `ipwitness-agent doctor` says | The agent says |\n|---|---|---|---|---|---|\n",
		"<!-- The test TestEachCapabilityIsMissedAsDoctorPredicts makes this table: make update-situations -->\n", "<!-- end -->\n"
	page, err := os.ReadFile(permissionsPage)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, found := strings.Cut(string(page), begin)
	table, after, ended := strings.Cut(rest, end)
	if !found || !ended {
		t.Fatalf("%s lacks the markers of the table", permissionsPage)
	}
	want := head + strings.Join(rows, "")
	switch {
	case table == want:
	case situations.Updating():
		if err := os.WriteFile(permissionsPage, []byte(before+begin+want+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("table in %s: got\n%s\nwant (-args -update writes it)\n%s", permissionsPage, table, want)
	}
}

// doctorWith runs doctor with only these capabilities.
func doctorWith(t *testing.T, h *netlab.Host, capabilities ...string) (usable bool, checks []agent.Check) {
	t.Helper()
	args := agentWithout(only(capabilities...), "doctor", "-o", "json")
	out, err := h.Command(args[0], args[1:]...).Output()
	var output struct {
		Usable bool          `json:"usable"`
		Checks []agent.Check `json:"checks"`
	}
	if e := json.Unmarshal(out, &output); e != nil || output.Usable != (err == nil) {
		t.Fatalf("doctor: %v, %v: %s", err, e, out)
	}
	return output.Usable, output.Checks
}

// missed runs agent and doctor without one of the four capabilities, and returns the row
// of the table for it.
func missed(t *testing.T, missing, purpose string) string {
	t.Helper()
	rest := slices.DeleteFunc(slices.Clone(four), func(c string) bool { return c == missing })
	l, output := startWith(t, rest...)
	if l.agent == nil {
		page, err := os.ReadFile("../docs/troubleshooting.md")
		if begin, _, _ := strings.Cut(output, ":"); err != nil || !strings.Contains(string(page), "| `"+begin+": …`") {
			t.Errorf("the agent ends with %q, which is not in docs/troubleshooting.md (%v)", begin, err)
		}
	}
	agentSays, seen := "it ends: "+strings.ReplaceAll(strings.TrimSpace(output), "\n", "; "), "none, none"
	if l.agent != nil {
		frames, addresses := l.witnesses()
		seen = map[bool]string{true: "all", false: "none"}[frames] + ", " + addresses
		if agentSays = l.lasting(missing); agentSays == "" {
			agentSays = "nothing"
		} else {
			awaitWords(t, "what the agent lacks", l.agent.Log.String, "agent is limited", missing)
		}
	}

	usable, checks := doctorWith(t, l.Host, rest...)
	if usable != (l.agent != nil) {
		t.Errorf("doctor says usable: %v, but the agent runs: %v", usable, l.agent != nil)
	}
	var check agent.Check
	for _, c := range checks {
		others := strings.HasPrefix(c.Feature, "CAP_") && c.Feature != missing
		switch {
		case c.Feature == missing:
			check = c
		case others && c.Status != agent.StatusOK:
			t.Errorf("doctor reports %s: %+v, want ok", c.Feature, c)
		}
	}
	if check.Status == agent.StatusOK || check.Status == "" || !strings.Contains(check.Fix, missing) || !strings.Contains(check.Fix, "docs/permissions.md") {
		t.Errorf("doctor: got %+v, want the loss and the remedy", check)
	}
	// The promises of doctor agree with the behaviour of the agent.
	for promise, want := range map[string]bool{
		"frames":              !strings.HasPrefix(seen, "all"),
		"everything":          seen == "none, none",
		"two seconds late":    strings.HasSuffix(seen, "every 2 s"),
		"a listing every 2s":  strings.HasSuffix(seen, "every 2 s"),
		"as with --wire off)": seen == "none, at once",
	} {
		if got := strings.Contains(check.Lost+check.Used, promise); got != want {
			t.Errorf("doctor promises %q: got %v, but the agent sees %s", promise, got, seen)
		}
	}
	doctorSays := check.Status
	if check.Used != "" {
		doctorSays += "; used instead: " + check.Used
	}
	used := "at start"
	if missing == "CAP_NET_ADMIN" {
		used = "always"
	}
	return fmt.Sprintf("| `%s` | %s | %s | %s | %s; lost: %s | %s |\n", missing, purpose, used, seen, doctorSays, check.Lost, agentSays)
}
