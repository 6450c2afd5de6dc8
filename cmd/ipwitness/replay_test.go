//go:build linux

package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
)

// A recording is a capture that is being written.
type recording struct {
	t    *testing.T
	name string
	out  bytes.Buffer
	w    *pcapgo.Writer
	at   time.Time
}

func record(t *testing.T, name string) *recording {
	t.Helper()
	r := &recording{t: t, name: filepath.Join(t.TempDir(), name), at: now}
	r.w = pcapgo.NewWriter(&r.out)
	if err := r.w.WriteFileHeader(262144, layers.LinkTypeEthernet); err != nil {
		t.Fatal(err)
	}
	return r
}

// answers adds an ARP reply for 192.0.2.5 by the host with a number.
func (r *recording) answers(host byte, after time.Duration) {
	mac := []byte{2, 0, 0, 0, 0, host}
	frame := slices.Concat([]byte{2, 0, 0, 0, 0, 99}, mac, []byte{0x08, 0x06, 0, 1, 8, 0, 6, 4, 0, 2}, mac, []byte{192, 0, 2, 5, 2, 0, 0, 0, 0, 99, 192, 0, 2, 99})
	r.at = r.at.Add(after)
	info := gopacket.CaptureInfo{Timestamp: r.at, CaptureLength: len(frame), Length: len(frame)}
	if err := r.w.WritePacket(info, frame); err != nil {
		r.t.Fatal(err)
	}
}

// saved writes the file, without its last bytes, and returns its name.
func (r *recording) saved(without int) string {
	raw := r.out.Bytes()
	if err := os.WriteFile(r.name, raw[:len(raw)-without], 0o600); err != nil {
		r.t.Fatal(err)
	}
	return r.name
}

// replayed runs replay and returns what it printed.
func replayed(t *testing.T, code int, args ...string) (stdout, stderr string) {
	t.Helper()
	c := newConsole()
	c.run(t, code, append([]string{"replay"}, args...)...)
	return c.stdout.String(), c.stderr.String()
}

func contains(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("got\n%s\nwhich lacks %q", text, part)
		}
	}
}

func TestADuplicateInACapture(t *testing.T) {
	r := record(t, "lan.pcap")
	r.answers(1, 0)
	for range 5 {
		r.answers(1, 5*time.Second)
		r.answers(2, time.Millisecond)
	}
	file := r.saved(0)
	out, said := replayed(t, 2, file)
	contains(t, out, "1 address seems to have more than one owner", "192.0.2.5 is claimed alternately by 2 devices on link capture/lan")
	contains(t, said, file+": 11 frames.", "Judged as of 2026-03-14T15:09:51Z, after 25.005s. Kernels and IPAM were not asked")
	out, _ = replayed(t, 0, file, "--", "owners", "--no-headers")
	if got := strings.Count(out, "LIVE"); got != 2 {
		t.Errorf("got\n%s\nwant two owners", out)
	}
	out, _ = replayed(t, 0, file, "--", "explain", "192.0.2.5")
	contains(t, out, "Suspected conflict. 192.0.2.5 is claimed alternately", "ANSWERED 5 times", "last seen 15:09:51.004")
	if strings.Contains(out, "Who sends to it") {
		t.Errorf("got\n%s\nbut nobody's neighbour table was read", out)
	}
	out, said = replayed(t, 0, file, "--", "history")
	contains(t, out+said, "15:09:26.000  ADDED    owner", "15:09:31.001  ADDED    owner", "ADDED    conflict", "The journal begins at 2026-03-14 15:09:26 UTC.")
	out, _ = replayed(t, 0, file, "--shared", "192.0.2.0/24=anycast", "--", "status")
	contains(t, out, "No address has two owners")
}

// An address that moves once has one owner: the former one is not heard again.
func TestAnAddressThatMovesInACapture(t *testing.T) {
	r := record(t, "lan.pcap")
	for range 3 {
		r.answers(1, time.Second)
	}
	for range 3 {
		r.answers(2, time.Minute)
	}
	_, said := replayed(t, 0, r.saved(0), "--", "conflicts")
	contains(t, said, "No conflicts")
}

// Each interface may be on a LAN of its own, in which another host may have the same address.
func TestInterfacesOfCapturesAreOnTheLinksThatTheUserNames(t *testing.T) {
	a, b := record(t, "a.pcap"), record(t, "b.pcap")
	b.at = b.at.Add(time.Second)
	for range 5 {
		a.answers(1, 5*time.Second)
		b.answers(2, 5*time.Second)
	}
	files := []string{a.saved(0), b.saved(0)}
	_, said := replayed(t, 0, append(files, "--", "conflicts")...)
	contains(t, said, "No conflicts")
	out, _ := replayed(t, 2, append(files, "--interface", "a=lan", "--interface", "b=lan")...)
	contains(t, out, "192.0.2.5 is claimed alternately by 2 devices on link capture/lan")
}

func TestAReplayTakesNoLongerThanItsFrames(t *testing.T) {
	r := record(t, "lan.pcap")
	r.answers(1, 0)
	r.answers(2, 5*365*24*time.Hour)
	out, said := replayed(t, 0, r.saved(0), "--", "owners")
	contains(t, said, "Judged as of 2031-03-13T15:09:26Z")
	if strings.Contains(out, "02:00:00:00:00:01") {
		t.Errorf("got\n%s\nwhich has a host that was last heard years ago", out)
	}
}

func TestWhatACaptureDoesNotSay(t *testing.T) {
	r := record(t, "lan.pcap")
	empty := r.name
	r.answers(1, 0)
	r.answers(1, time.Second)
	cut := r.saved(3)
	text := filepath.Join(t.TempDir(), "notes.txt")
	if err := os.WriteFile(text, []byte("these are notes about a network"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(empty+"2", r.out.Bytes()[:24], 0o600); err != nil {
		t.Fatal(err)
	}
	_, said := replayed(t, 0, cut, "--", "owners")
	contains(t, said, "Warning: "+cut+": the file ends within a frame. Everything else is judged.")
	for _, test := range []struct {
		args []string
		want string
	}{
		{nil, "replay needs a FILE that tcpdump or Wireshark wrote, or - for standard input"},
		{[]string{empty + "2"}, "none of the 0 frames claims an address: capture ARP and neighbour discovery"},
		{[]string{text}, "this is no capture of tcpdump or Wireshark (pcap or pcapng)"},
		{[]string{text + "x"}, "no such file or directory"},
		{[]string{cut, "--interface", "eth0"}, `--interface "eth0": write it as NAME=LINK, such as eth0=lan`},
	} {
		_, said := replayed(t, 1, test.args...)
		contains(t, said, test.want)
	}
}

// Ctrl-C in `tcpdump -w - | ipwitness replay -` ends tcpdump, and what it has captured is judged.
func TestAnInterruptedCaptureIsJudged(t *testing.T) {
	r := record(t, "lan.pcap")
	r.answers(1, 0)
	file, err := os.Open(r.saved(0))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	interrupted, cancel := context.WithCancel(t.Context())
	cancel()
	c := newConsole()
	c.stdin = file
	if code := execute(interrupted, c.system, []string{"replay", "-", "--", "owners"}); code != 0 {
		t.Errorf("got exit code %d and %s", code, &c.stderr)
	}
	contains(t, c.stdout.String(), "192.0.2.5")
}
