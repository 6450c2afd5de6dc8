package tests

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/ipwitness/ipwitness/bpf"
	"github.com/ipwitness/ipwitness/tests/netlab"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// refused runs ipwitness inside the host, wants the exit code, and returns the output.
func refused(t *testing.T, h *netlab.Host, code int, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := h.Command(binary, args...)
	cmd.Cancel = nil
	stop := context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() })
	defer stop()
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != code {
		t.Fatalf("ipwitness %s: got %v, want exit code %d\n%s", strings.Join(args, " "), err, code, out)
	}
	return string(out)
}

// wantWords fails if one of the words is missing from the output.
func wantWords(t *testing.T, said string, words ...string) {
	t.Helper()
	for _, w := range words {
		if !strings.Contains(said, w) {
			t.Errorf("%q is not in:\n%s", w, said)
		}
	}
}

func TestSecondAgentInOneNetworkNamespaceIsRefused(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	said := refused(t, l.Host, 1, "run", "--http-listen", "127.0.0.1:19641", "--grpc-listen", "127.0.0.1:19640")
	wantWords(t, said, "another ipwitness agent runs in this network namespace", "stop it")
}

func TestPortInUseIsExplained(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	said := refused(t, l.Host, 1, "run")
	wantWords(t, said, "address already in use", "-listen")
}

func TestUnknownFlagPointsToHelp(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	wantWords(t, refused(t, h, 1, "run", "--wires", "tcx"), "--wires", "--help")
	wantWords(t, refused(t, h, 1, "run", "--wire", "carrier-pigeon"), "carrier-pigeon", "clsact")
	wantWords(t, refused(t, h, 1, "run", "--interfaces", "[eth"), "[eth")
}

func TestUnreachableServerIsExplained(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	wantWords(t, refused(t, h, 1, "owners"), "127.0.0.1:9641", "ipwitness run", "--server")
}

// without returns a command line that runs args without the given capabilities.
func without(capabilities string, args ...string) []string {
	return append([]string{"setpriv", "--bounding-set", capabilities, "--inh-caps", capabilities, "--ambient-caps", "-all", binary}, args...)
}

// agentWithout is like without, for the agent.
func agentWithout(capabilities string, args ...string) []string {
	line := without(capabilities, args...)
	line[len(line)-len(args)-1] = netlab.AgentOf(binary)
	return line
}

func TestAgentWithoutPrivilegesNamesTheMissingCapabilities(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	for _, c := range []struct {
		args []string
		want []string
	}{
		{[]string{"run"}, []string{"CAP_NET_ADMIN", "CAP_BPF"}},
		{[]string{"run", "--wire", "off"}, []string{"CAP_NET_ADMIN"}},
	} {
		args := without("-net_admin,-bpf,-perfmon,-sys_admin", c.args...)
		out, err := h.Command(args[0], args[1:]...).CombinedOutput()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 1 {
			t.Fatalf("%v: got %v, want exit code 1\n%s", c.args, err, out)
		}
		wantWords(t, string(out), c.want...)
	}
}

func TestGlobsChooseWhichPortsAreWatched(t *testing.T) {
	t.Parallel()
	l := newLab(t, "--interfaces", "v*", "--exclude-interfaces", "vb,vx*")
	for _, pod := range []string{"a", "b", "c"} {
		l.pod(pod)
	}
	l.ports(2)
	l.sh("ip link set vc name vx") // the new name no longer matches
	l.ports(1)
	l.sh("ip link set vb name vd") // the new name matches
	l.ports(2)
}

func TestMalformedFramesAreCountedAndNotLogged(t *testing.T) {
	t.Parallel()
	l := newLab(t, "--log-level", "debug")
	l.pod("a", "10.244.0.7/24")
	l.ports(1)
	p, err := l.Pod("a")
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	mac := net.HardwareAddr{2, 0, 0, 0, 0, 1}
	frame := netlab.ARP(1, mac, netip.MustParseAddr("10.244.0.7"), netip.MustParseAddr("10.244.0.1"))
	frame[18] = 8 // hlen
	logged := strings.Count(l.program.Log.String(), "\n")
	var frames [][]byte
	for range 1000 {
		frames = append(frames, frame, frame[:20])
	}
	if err := p.Do(func() error { return netlab.Send("eth0", frames...) }); err != nil {
		t.Fatal(err)
	}
	l.frames("malformed", 2000)
	if got := strings.Count(l.program.Log.String(), "\n") - logged; got > 100 {
		t.Errorf("log lines while 2000 malformed frames came: got %d", got)
	}
	l.awaitOwners("10.244.0.7", 1)
}

func TestSIGTERMDetachesAndLeftoversOfSIGKILLAreRemoved(t *testing.T) {
	t.Parallel()
	l := newLab(t, "--wire", "clsact")
	for _, pod := range []string{"a", "b", "c"} {
		l.pod(pod)
	}
	l.ports(3)
	l.program.Kill()
	if out, err := l.Run("tc filter show dev va ingress"); err != nil || strings.Count(out, "ipwitness_observe") != 1 {
		t.Fatalf("filters after SIGKILL: got %q, %v, want ours: clsact filters survive", out, err)
	}

	l.start("--wire", "clsact")
	l.ports(3)
	if out, err := l.Run("tc filter show dev va ingress"); err != nil || strings.Count(out, "ipwitness_observe") != 1 {
		t.Errorf("filters of the second run: got %q, %v, want one", out, err)
	}
	took, err := l.program.Stop()
	if err != nil {
		t.Errorf("stop by SIGTERM: %v\n%s", err, l.program.Log)
	}
	t.Log("stopped in ", took)
	l.wantNoFilters()
}

func TestTooFewFilesForAllPorts(t *testing.T) {
	t.Parallel()
	if bpf.HaveTCX() != nil {
		t.Skip("without TCX, no port needs a file")
	}
	l := &lab{Host: newHost(t), t: t}
	l.launch(l.Command("bash", "-c", "ulimit -n 48; exec "+binary+" run --node node1"))
	for i := range 40 {
		l.pod(fmt.Sprintf("p%d", i), fmt.Sprintf("10.244.0.%d/24", i+2))
	}
	l.ports(40)
	wait.Until(t, "the problem", func() bool {
		return strings.Contains(strings.Join(l.node().GetProblems(), "\n"), "interfaces are watched by clsact instead of tcx")
	})
	l.plant()
	for _, f := range l.findings("") {
		if f.GetKind() == "ipam-unreadable" {
			t.Errorf("got %v, want nothing about IPAMs that the node does not have", f)
		}
	}
}
