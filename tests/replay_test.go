package tests

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"syscall"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"

	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/wait"
)

// capture runs tcpdump on a host until the returned function is called, which returns the file.
func (l *lab) capture(args ...string) (end func() string) {
	l.t.Helper()
	file := filepath.Join(l.t.TempDir(), "lan.pcap")
	cmd := l.Command("tcpdump", append(args, "-U", "-w", file, "-Z", "root")...)
	if err := cmd.Start(); err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { _ = cmd.Process.Kill() })
	wait.Until(l.t, "tcpdump to capture", func() bool { s, err := os.Stat(file); return err == nil && s.Size() > 0 })
	return func() string {
		l.t.Helper()
		if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
			l.t.Fatal(err)
		}
		_ = cmd.Wait() // it may say how many frames it dropped
		return file
	}
}

// replayed returns what `ipwitness replay` prints of a file.
func replayed(t *testing.T, file string, command ...string) []byte {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), binary, append([]string{"replay", file, "--"}, command...)...).Output()
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// isAt matches a request as tcpdump prints it: the source of the frame, and the address of the sender.
var isAt = regexp.MustCompile(`([0-9a-f]{2}(?::[0-9a-f]{2}){5}).* tell ([0-9.]+),`)

// What a capture says is what was said live: of two machines outside, with the frames as they were on one port, and as all interfaces of the
// host had them. The claims are those that tcpdump reads.
func TestAReplayJudgesAsItWasJudgedLive(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	out := l.lan("192.0.2.1/24")
	l.ports(1)
	ends := []func() string{l.capture("-i", "eth0"), l.capture("-i", "any", "arp")}
	out.machine("one", "02:00:00:00:00:91", "192.0.2.50/24")
	out.machine("two", "02:00:00:00:00:92", "192.0.2.50/24")
	wait.Until(t, "192.0.2.50 to be suspected", func() bool {
		out.announce("one", "192.0.2.50")
		out.announce("two", "192.0.2.50")
		return inState("192.0.2.50", ipwitnessv1.Conflict_SUSPECTED)(l.watch.all())
	})
	live := l.only("192.0.2.50")
	for _, end := range ends {
		file := end()
		var list ipwitnessv1.ListConflictsResponse
		if err := protojson.Unmarshal(replayed(t, file, "conflicts", "-o", "json"), &list); err != nil {
			t.Fatal(err)
		}
		if got := list.GetConflicts(); len(got) != 1 || got[0].GetAddress() != live.GetAddress() || got[0].GetRule() != live.GetRule() || got[0].GetState() != live.GetState() {
			t.Errorf("got %v, live %v", got, live)
		}
		var owners struct {
			Owners []struct{ Address, MAC string }
		}
		if err := json.Unmarshal(replayed(t, file, "owners", "-o", "json"), &owners); err != nil {
			t.Fatal(err)
		}
		read, err := exec.CommandContext(t.Context(), "tcpdump", "-nn", "-e", "-r", file, "arp").Output()
		if err != nil {
			t.Fatal(err)
		}
		matches := isAt.FindAllStringSubmatch(string(read), -1)
		if len(matches) == 0 {
			t.Errorf("tcpdump reads no request:\n%s", read)
		}
		for _, m := range matches {
			if !slices.ContainsFunc(owners.Owners, func(o struct{ Address, MAC string }) bool { return o.Address == m[2] && o.MAC == m[1] }) {
				t.Errorf("tcpdump reads that %s is at %s, and the replay has %v", m[2], m[1], owners.Owners)
			}
		}
	}
}
