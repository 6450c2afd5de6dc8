package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/ipwitness/ipwitness/tests/netlab"
)

const (
	stormBindings = 50_000
	// stormTime is a third of the interval at which the observer reports a binding again. In a longer
	// storm the listeners would need as much CPU per second, and ipwitness less.
	stormTime = 10 * time.Second
	// stormPause results in 1,000,000 frames a second.
	stormPause = time.Microsecond
	// openTime is how long frames are sent as fast as possible.
	openTime, openPairs = 2 * time.Second, 3
)

// stormRows compares a storm on ipwitness with the same storm on libpcap listeners, one after the
// other.
func stormRows(ctx context.Context, bin string) ([]row, error) {
	s, err := newStormSite(ctx, bin)
	if err != nil {
		return nil, err
	}
	sent, err := s.host.storm(stormPause, stormTime)
	if err != nil {
		s.close()
		return nil, err
	}
	known, err := s.known(ctx)
	used, cpuErr := s.used()
	rss, rssErr := s.rss()
	s.close()
	if err := errors.Join(err, cpuErr, rssErr); err != nil {
		return nil, err
	}
	ours := perFrame(used, sent.frames)
	rows := []row{
		{
			fmt.Sprintf("ARP storm of %s over %d bindings on one port: bindings known", rate(sent), stormBindings),
			fmt.Sprint(known), fmt.Sprint(stormBindings), known == stormBindings,
		},
		{"  user-space CPU of ipwitness", fmt.Sprintf("%.0f ns a frame (%d ms in all)", ours, used.Milliseconds()), "", true},
		{"  RSS after it", fmt.Sprintf("%.1f MiB", rss), "", true},
	}
	for _, l := range []struct {
		what, budget string
		listen       func(context.Context) (*heard, error)
	}{
		{"tcpdump writing lines", "≤ 0.1 ×", func(ctx context.Context) (*heard, error) {
			return tcpdump(ctx, "-l", "-n")
		}},
		{"tcpdump -w /dev/null, without decoding", "", func(ctx context.Context) (*heard, error) {
			return tcpdump(ctx, "-w", "/dev/null")
		}},
		{"arpwatch", "≤ 0.1 ×", arpwatch},
	} {
		h, err := l.listen(ctx)
		if err != nil {
			return rows, fmt.Errorf("storm on %s: %w", l.what, err)
		}
		theirs := perFrame(h.used, h.sent.frames)
		rows = append(rows, row{
			fmt.Sprintf("  by that of %s (%s; %s)", l.what, rate(h.sent), h.lost),
			fmt.Sprintf("%.3f × (%.0f ns a frame)", ours/theirs, theirs), l.budget, l.budget == "" || ours <= theirs/10,
		})
	}
	more, err := openRows(ctx, bin)
	return append(rows, more...), err
}

// openRows measures the observer itself, which runs while a frame is received, in the CPU time of
// the receiver.
func openRows(ctx context.Context, bin string) ([]row, error) {
	var with, without []time.Duration
	measure := func(h stormHost, into *[]time.Duration) error {
		sent, err := h.storm(0, openTime)
		if err == nil {
			*into = append(*into, sent.spent/time.Duration(sent.frames))
		}
		return err
	}
	for range openPairs {
		h, err := newStormHost()
		if err != nil {
			return nil, err
		}
		err = measure(h, &without)
		h.Close()
		if err != nil {
			return nil, err
		}
		s, err := newStormSite(ctx, bin)
		if err != nil {
			return nil, err
		}
		err = measure(s.host, &with)
		s.close()
		if err != nil {
			return nil, err
		}
	}
	a, b := quantile(with, 0.5), quantile(without, 0.5)
	return []row{{
		"  time in the observer, with frames sent as fast as one core can",
		fmt.Sprintf("%d ns a frame (%d with it, %d without)", (a - b).Nanoseconds(), a.Nanoseconds(), b.Nanoseconds()), "", true,
	}}, nil
}

// stormHost is a host with one pod, through whose port the storm enters.
type stormHost struct{ *netlab.Host }

func newStormHost() (stormHost, error) {
	host, err := netlab.New()
	if err != nil {
		return stormHost{}, err
	}
	for _, line := range podLines("a") {
		if _, err := host.Run("%s", line); err != nil {
			host.Close()
			return stormHost{}, err
		}
	}
	return stormHost{host}, nil
}

// storm injects frames into the pod's port.
func (h stormHost) storm(pause, d time.Duration) (sent, error) {
	return h.enter("va", stormBindings, pause, d)
}

// enter injects frames of the given number of bindings into a port.
func (h stormHost) enter(port string, bindings int, pause, d time.Duration) (out sent, err error) {
	err = h.Do(func() error {
		in, err := newInjector(port, bindings, pause)
		if err != nil {
			return err
		}
		defer in.close()
		out, err = in.run(d)
		return err
	})
	return out, err
}

// stormSite is a stormHost that runs ipwitness.
type stormSite struct {
	site
	host  stormHost
	begin time.Duration // CPU time of the start
}

func newStormSite(ctx context.Context, bin string) (*stormSite, error) {
	h, err := newStormHost()
	if err != nil {
		return nil, err
	}
	s := &stormSite{host: h, site: site{Host: h.Host}}
	if s.program, err = h.Ipwitness(ctx, bin); err != nil {
		h.Close()
		return nil, err
	}
	if err = s.settled(ctx, 1); err == nil {
		s.begin, err = s.cpu()
	}
	if err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// used returns the CPU time since the start.
func (s *stormSite) used() (time.Duration, error) {
	now, err := s.cpu()
	return now - s.begin, err
}

// known waits until all bindings are known, or until their number stops growing.
func (s *stormSite) known(ctx context.Context) (known int, err error) {
	for tries := 0; tries < 10 && known < stormBindings; tries++ {
		text, err := s.program.Text(ctx, "/metrics")
		if err != nil {
			return known, err
		}
		_, value, _ := strings.Cut(text, "\nipwitness_owners{scope_kind=\"node\"} ")
		value, _, _ = strings.Cut(value, "\n")
		n, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return known, fmt.Errorf("read number of owners: %w", err)
		}
		if int(n) > known {
			known, tries = int(n), 0
		}
		time.Sleep(50 * time.Millisecond)
	}
	return known, nil
}

// heard is the result of a listener during a storm.
type heard struct {
	sent sent
	used time.Duration
	lost string
}

// listen runs a listener during a storm, and returns its output.
func listen(ctx context.Context, h stormHost, cmd *exec.Cmd) (*heard, string, error) {
	log := &netlab.Log{}
	cmd.Stderr = log
	if err := h.Start(cmd); err != nil {
		return nil, "", err
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		// The file has one line for each packet socket of the namespace, below a header.
		sockets, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/packet", cmd.Process.Pid))
		if err == nil && bytes.Count(sockets, []byte("\n")) > 1 {
			break
		}
		if ctx.Err() != nil || time.Now().After(deadline) {
			return nil, "", fmt.Errorf("timed out waiting for %s to listen: %s", cmd.Args[6], log)
		}
	}
	var out heard
	var err error
	if out.sent, err = h.storm(stormPause, stormTime); err != nil {
		return nil, "", err
	}
	// On SIGTERM a listener processes what it has received, and then reports its losses.
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return nil, "", err
	}
	patience := time.AfterFunc(5*time.Second, func() { _ = cmd.Process.Kill() }) // arpwatch may hang here
	defer patience.Stop()
	_ = cmd.Wait()
	out.used = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	return &out, log.String(), nil
}

var dropped = regexp.MustCompile(`(\d+) packets dropped by kernel`)

// tcpdump measures libpcap with almost nothing on top.
func tcpdump(ctx context.Context, args ...string) (*heard, error) {
	h, err := newStormHost()
	if err != nil {
		return nil, err
	}
	defer h.Close()
	cmd := h.Command("tcpdump", append(args, "-Z", "root", "-i", "va", "arp")...)
	out, stderr, err := listen(ctx, h, cmd)
	if err != nil {
		return nil, err
	}
	m := dropped.FindStringSubmatch(stderr)
	if m == nil {
		return nil, fmt.Errorf("read the number of lost packets: %s", stderr)
	}
	lost, _ := strconv.ParseFloat(m[1], 64)
	out.lost = fmt.Sprintf("%.0f %% of frames lost", 100*lost/float64(out.sent.frames))
	return out, nil
}

// arpwatch does not report its losses, but it reports new bindings.
func arpwatch(ctx context.Context) (*heard, error) {
	h, err := newStormHost()
	if err != nil {
		return nil, err
	}
	defer h.Close()
	for _, name := range []string{"/run/arp.dat", "/run/reports"} {
		if err := os.WriteFile(h.Path(name), nil, 0o644); err != nil {
			return nil, err
		}
	}
	reports, err := os.OpenFile(h.Path("/run/reports"), os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = reports.Close() }()
	cmd := h.Command("arpwatch", "-d", "-N", "-i", "va", "-f", "/run/arp.dat", "-n", "10.0.0.0/8")
	cmd.Stdout = reports
	out, _, err := listen(ctx, h, cmd)
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(io.NewSectionReader(reports, 0, math.MaxInt64))
	if err != nil {
		return nil, err
	}
	out.lost = fmt.Sprintf("%d bindings known", bytes.Count(text, []byte("Subject: new station")))
	return out, nil
}

func perFrame(used time.Duration, frames uint64) float64 {
	return float64(used.Nanoseconds()) / float64(frames)
}

func rate(s sent) string {
	return fmt.Sprintf("%.2f M frames/s for %.0f s", float64(s.frames)/s.took.Seconds()/1e6, s.took.Seconds())
}

// podLines returns the commands that create a named namespace with a veth to the host, whose host
// end is vNAME.
func podLines(name string, addrs ...string) []string {
	lines := []string{
		"ip netns add " + name,
		fmt.Sprintf("ip link add v%s type veth peer name eth0 netns %s", name, name),
		fmt.Sprintf("ip link set v%s up", name),
		fmt.Sprintf("ip -n %s link set eth0 up", name),
	}
	for _, a := range addrs {
		lines = append(lines, fmt.Sprintf("ip -n %s addr add %s dev eth0", name, a))
	}
	return lines
}
