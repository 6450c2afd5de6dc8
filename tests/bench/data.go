package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/ipwitness/ipwitness/tests/netlab"
)

// frameRows runs the benchmarks of the observer (BPF_PROG_TEST_RUN).
func frameRows(ctx context.Context, _ string) ([]row, error) {
	cmd := exec.CommandContext(ctx, "go", "test", "-run", "^$", "-bench", "^Benchmark(NonNeighbourFrame|KnownBinding)$", "./bpf")
	out, err := cmd.CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("run the observer's benchmarks: %w\n%s", err, out)
	}
	metrics := benchmarks(out)
	// Report the worse result of both protocols.
	worse := "NonNeighbourFrame/ipv4"
	for _, name := range []string{worse, "NonNeighbourFrame/ipv6"} {
		ratio := metrics[name+" x-empty"]
		if ratio == 0 {
			return nil, fmt.Errorf("the observer's benchmarks gave no ratio for %s:\n%s", name, out)
		}
		if ratio > metrics[worse+" x-empty"] {
			worse = name
		}
	}
	ratio := metrics[worse+" x-empty"]
	return []row{
		{
			"frame that is neither ARP nor NDP (the slower of IPv4 and IPv6), divided by an empty program",
			fmt.Sprintf("%.3f × (%.0f ns by %.0f ns)", ratio, metrics[worse+" ns/frame"], metrics[worse+" ns/frame-empty"]),
			"≤ 1.05 ×", ratio <= 1.05,
		},
		{"ARP frame of a known binding", fmt.Sprintf("%.0f ns", metrics["KnownBinding/arp ns/frame"]), "", true},
		{"NDP frame of a known binding", fmt.Sprintf("%.0f ns", metrics["KnownBinding/ndp ns/frame"]), "", true},
	}, nil
}

// benchmarks returns the values in the output of go test -bench, by the benchmark's name and the unit.
func benchmarks(out []byte) map[string]float64 {
	metrics := map[string]float64{}
	for lines := bufio.NewScanner(bytes.NewReader(out)); lines.Scan(); {
		words := strings.Fields(lines.Text())
		if len(words) < 2 || !strings.HasPrefix(words[0], "Benchmark") {
			continue
		}
		name := strings.TrimPrefix(words[0], "Benchmark")
		if i := strings.LastIndexByte(name, '-'); i > 0 { // the number of processors follows
			name = name[:i]
		}
		for i := 2; i+1 < len(words); i += 2 {
			var v float64
			if _, err := fmt.Sscan(words[i], &v); err == nil {
				metrics[name+" "+words[i+1]] = v
			}
		}
	}
	return metrics
}

// pairs is the number of pairs of runs: single runs differ by a fifth on a shared machine.
const pairs = 16

// tcpRows compares TCP between two pods with and without the agent, in pairs
// of runs.
func tcpRows(ctx context.Context, bin string) ([]row, error) {
	host, err := netlab.New()
	if err != nil {
		return nil, err
	}
	defer host.Close()
	for _, line := range []string{
		"ip link add br0 type bridge", "ip link set br0 up", "ip addr add 10.9.0.1/24 dev br0",
		"ip netns add a", "ip link add va type veth peer name eth0 netns a", "ip link set va up master br0",
		"ip -n a link set eth0 up", "ip -n a addr add 10.9.0.2/24 dev eth0",
		"ip netns add b", "ip link add vb type veth peer name eth0 netns b", "ip link set vb up master br0",
		"ip -n b link set eth0 up", "ip -n b addr add 10.9.0.3/24 dev eth0",
	} {
		if _, err := host.Run("%s", line); err != nil {
			return nil, err
		}
	}
	a, err := host.Pod("a")
	if err != nil {
		return nil, err
	}
	defer a.Close()
	b, err := host.Pod("b")
	if err != nil {
		return nil, err
	}
	defer b.Close()

	if _, err := transfer(ctx, a, b); err != nil { // warm up
		return nil, err
	}
	with := func() (float64, error) {
		p, err := host.Ipwitness(ctx, bin)
		if err != nil {
			return 0, err
		}
		s := &site{Host: host, program: p}
		if err := s.settled(ctx, 2); err != nil {
			return 0, err
		}
		time.Sleep(500 * time.Millisecond) // do not measure the start
		rate, err := transfer(ctx, a, b)
		_, stopErr := p.Stop()
		return rate, errors.Join(err, stopErr)
	}
	without := func() (float64, error) {
		time.Sleep(500 * time.Millisecond)
		return transfer(ctx, a, b)
	}
	var ratios []float64
	for i := range pairs {
		// Alternate the order, so that slow changes of the machine affect both equally.
		first, second := with, without
		if i%2 == 1 {
			first, second = without, with
		}
		x, err := first()
		if err != nil {
			return nil, err
		}
		y, err := second()
		if err != nil {
			return nil, err
		}
		if i%2 == 1 {
			x, y = y, x
		}
		ratios = append(ratios, x/y)
	}
	slices.Sort(ratios)
	median := ratios[len(ratios)/2]
	return []row{{
		fmt.Sprintf("TCP throughput between two pods, with the agent divided by without, median of %d pairs", pairs), fmt.Sprintf("%.3f × (%.3f … %.3f)", median, ratios[0], ratios[len(ratios)-1]),
		"≥ 0.98 ×", median >= 0.98,
	}}, nil
}

// transfer sends data from one pod to the other for a second, and returns bytes per second.
func transfer(ctx context.Context, from, to *netlab.Pod) (float64, error) {
	var l net.Listener
	err := to.Do(func() (err error) {
		l, err = net.Listen("tcp", "10.9.0.3:0")
		return err
	})
	if err != nil {
		return 0, err
	}
	defer func() { _ = l.Close() }()
	received := make(chan int64, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			received <- 0
			return
		}
		defer func() { _ = c.Close() }()
		buf := make([]byte, 1<<20)
		var n int64
		for {
			m, err := c.Read(buf)
			n += int64(m)
			if err != nil {
				received <- n
				return
			}
		}
	}()
	var c net.Conn
	err = from.Do(func() (err error) {
		c, err = (&net.Dialer{}).DialContext(ctx, "tcp", l.Addr().String())
		return err
	})
	if err != nil {
		return 0, err
	}
	begin := time.Now()
	buf := make([]byte, 1<<20)
	for time.Since(begin) < time.Second {
		if _, err := c.Write(buf); err != nil {
			return 0, err
		}
	}
	if err := c.Close(); err != nil {
		return 0, err
	}
	return float64(<-received) / time.Since(begin).Seconds(), nil
}
