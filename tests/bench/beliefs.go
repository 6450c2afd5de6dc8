package main

import (
	"context"
	"fmt"
	"net/netip"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/ipwitness/ipwitness/tests/netlab"
)

const (
	// talkingPods send a packet to each of two others every talkEvery, for talkTime and while passingPods come and go, and to the
	// address of these.
	talkingPods, passingPods = 250, 500
	talkEvery, talkTime      = time.Second, time.Minute
	// heedless is the agent of this build that follows no neighbour tables; the Makefile makes it.
	heedless = "bin/heedless/ipwitness-agent"
)

// beliefRows measures what it costs the agent to follow neighbour tables.
func beliefRows(ctx context.Context, bin string) ([]row, error) {
	path, err := filepath.Abs(heedless)
	if err != nil {
		return nil, err
	}
	without, err := agentAmongTalkers(ctx, bin, path)
	if err != nil {
		return nil, err
	}
	with, err := agentAmongTalkers(ctx, bin, netlab.AgentOf(bin))
	if err != nil {
		return nil, err
	}
	if without.control || !with.control {
		return nil, fmt.Errorf("wrong entry reported: %t without following neighbour tables, %t with", without.control, with.control)
	}
	compared := func(what string, with, without time.Duration) row {
		ratio := with.Seconds() / without.Seconds()
		return row{what + ", by that without neighbour tables", fmt.Sprintf("%.2f × (%s, %s)", ratio, with, without), "≤ 1.1 ×", ratio <= 1.1}
	}
	return []row{
		compared(fmt.Sprintf("CPU of the agent while %d pods talk for %s", talkingPods, talkTime), with.talk, without.talk),
		compared(fmt.Sprintf("CPU of the agent while %d more come and go", passingPods), with.churn, without.churn),
		{"RSS of the agent, more than without neighbour tables", fmt.Sprintf("%.1f MiB (%.1f, %.1f)", with.rss-without.rss, with.rss, without.rss), "≤ 2 MiB", with.rss-without.rss <= 2},
		{"records of neighbour tables for each pod and minute", fmt.Sprintf("%.2f", with.rate()), "< 1", with.rate() < 1},
	}, nil
}

// talkMeasure is what an agent takes among pods that talk, and while others come and go: RSS in MiB.
type talkMeasure struct {
	talk, churn, took time.Duration
	rss               float64
	records           int
	control           bool // a wrong entry that was made afterwards is reported
}

// rate returns the records for each pod and minute.
func (m talkMeasure) rate() float64 { return float64(m.records) / talkingPods / m.took.Minutes() }

// agentAmongTalkers measures an agent that reports to an aggregator of bin.
func agentAmongTalkers(ctx context.Context, bin, agentPath string) (m talkMeasure, err error) {
	host, err := netlab.New()
	if err != nil {
		return m, err
	}
	defer host.Close()
	s := &site{Host: host}
	lines := []string{"ip link add cni0 type bridge", "ip link set cni0 up", "ip addr add 10.9.255.254/16 dev cni0"}
	talkers := make([]string, talkingPods)
	for i := range talkers {
		talkers[i] = fmt.Sprintf("p%d", i)
		lines = append(append(lines, podLines(talkers[i], talkerAddress(i).String()+"/16")...), "ip link set v"+talkers[i]+" master cni0")
	}
	if err := s.runAll(lines); err != nil {
		return m, err
	}
	if s.program, err = s.Aggregator(ctx, bin, "--data-dir", "off"); err != nil {
		return m, err
	}
	defer s.program.Kill()
	agent, err := s.LaunchAgent(ctx, s.Command(agentPath, "--node", "node1", "--aggregator", "127.0.0.1:9640"))
	if err != nil {
		return m, err
	}
	defer agent.Kill()
	pid := agent.Cmd.Process.Pid
	if err := s.settled(ctx, talkingPods); err != nil {
		return m, err
	}
	if _, err := idleOf(ctx, pid); err != nil { // after the frames of a start
		return m, err
	}
	begin := time.Now()
	start, err := cpuOf(pid)
	if err != nil {
		return m, err
	}
	during, stop := context.WithCancel(ctx)
	defer stop()
	g, during := errgroup.WithContext(during)
	g.Go(func() error { return s.talk(during, talkers) })
	g.Go(func() (err error) {
		defer stop()
		select {
		case <-during.Done():
			return nil
		case <-time.After(talkTime):
		}
		talked, err := cpuOf(pid)
		if err != nil {
			return err
		}
		for i := range passingPods {
			if err := s.pass(fmt.Sprintf("c%d", i), talkerAddress(i%talkingPods)); err != nil {
				return err
			}
		}
		if err := s.settled(ctx, talkingPods); err != nil {
			return err
		}
		end, err := cpuOf(pid)
		m.talk, m.churn, m.took = talked-start, end-talked, time.Since(begin)
		return err
	})
	if err := g.Wait(); err != nil {
		return m, err
	}
	if m.rss, err = memoryOf(pid, "VmRSS"); err != nil {
		return m, err
	}
	if m.records, err = s.beliefs(ctx); err != nil {
		return m, err
	}
	if err := s.runAll([]string{"ip -n p0 neigh replace " + talkerAddress(1).String() + " lladdr 02:00:00:00:00:99 nud permanent dev eth0"}); err != nil {
		return m, err
	}
	for deadline := time.Now().Add(10 * time.Second); !m.control && time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		n, err := s.beliefs(ctx)
		if err != nil {
			return m, err
		}
		m.control = n > m.records
	}
	return m, nil
}

// beliefs returns the number of records of neighbour tables that the aggregator has received.
func (s *site) beliefs(ctx context.Context) (int, error) {
	text, err := s.program.Text(ctx, "/metrics")
	return sum(text, `ipwitness_aggregator_records_total{record="belief"}`), err
}

// passing is the address of the pods that come and go.
var passing = netip.AddrFrom4([4]byte{10, 9, 1, 1})

// talkerAddress returns the address of a pod that talks.
func talkerAddress(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 9, 0, byte(i + 1)}) }

// talk has each pod send packets to the next one and the previous one until ctx ends. Their kernels answer: nobody listens.
func (s *site) talk(ctx context.Context, talkers []string) error {
	sockets := make([]int, len(talkers))
	for i, name := range talkers {
		var err error
		if sockets[i], err = s.udp(name); err != nil {
			return err
		}
		defer func() { _ = unix.Close(sockets[i]) }()
	}
	for {
		for i, socket := range sockets {
			for _, to := range []netip.Addr{talkerAddress((i + 1) % len(talkers)), talkerAddress((i + len(talkers) - 1) % len(talkers)), passing} {
				_ = say(socket, to) // which also returns the errors of earlier packets
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(talkEvery):
		}
	}
}

// pass creates a pod with the address of the previous one, has it send a packet, and deletes it.
func (s *site) pass(name string, to netip.Addr) error {
	if err := s.runAll(append(podLines(name, passing.String()+"/16"), "ip link set v"+name+" master cni0")); err != nil {
		return err
	}
	socket, err := s.udp(name)
	if err != nil {
		return err
	}
	err = say(socket, to)
	_ = unix.Close(socket) // it would keep the namespace alive
	if err != nil {
		return fmt.Errorf("send from %s: %w", name, err)
	}
	return s.runAll([]string{"ip netns del " + name})
}

// udp opens a UDP socket in a pod.
func (s *site) udp(name string) (socket int, err error) {
	pod, err := s.Pod(name)
	if err != nil {
		return 0, err
	}
	defer pod.Close()
	err = pod.Do(func() error {
		socket, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		return err
	})
	return socket, err
}

// say sends a packet.
func say(socket int, to netip.Addr) error {
	return unix.Sendto(socket, []byte("hello"), 0, &unix.SockaddrInet4{Port: 9, Addr: to.As4()})
}

// runAll runs commands in the host.
func (s *site) runAll(lines []string) error {
	for _, line := range lines {
		if _, err := s.Run("%s", line); err != nil {
			return err
		}
	}
	return nil
}
