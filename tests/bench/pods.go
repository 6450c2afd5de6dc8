package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/ipwitness/ipwitness/tests/netlab"
)

// After a start, the kernels of pods still send frames (duplicate address detection, router
// solicitations) during calmTime. idleTime is the measured idle period that follows.
const calmTime, idleTime = 15 * time.Second, 20 * time.Second

// formerBuild is the build that the agent is compared with, of the commit in its name; the Makefile
// makes it. Its agent is a command of the whole program.
const formerBuild = "bin/e4cfea1/ipwitness"

// podRows measures the cost of watching idle pods, by the agent of this build and by the former one. Both
// report to this aggregator.
func podRows(ctx context.Context, bin string) (rows []row, err error) {
	former, err := filepath.Abs(formerBuild)
	if err != nil {
		return nil, err
	}
	then, err := agentWithPods(ctx, bin, former, "agent")
	if err != nil {
		return nil, err
	}
	now, err := agentWithPods(ctx, bin, netlab.AgentOf(bin))
	if err != nil {
		return nil, err
	}
	budgets := map[int]float64{0: 26, 250: 32}
	for i, m := range now {
		memory := row{fmt.Sprintf("RSS of the agent with %d pods (anonymous, file)", m.pods), fmt.Sprintf("%.1f (%.1f, %.1f) MiB", m.rss, m.anonymous, m.file), "", true}
		ratio := row{"  by that of e4cfea1", fmt.Sprintf("%.2f × (%.1f MiB)", m.rss/then[i].rss, then[i].rss), "", true}
		idle := row{fmt.Sprintf("  CPU of a core while idle for %.0f s", idleTime.Seconds()), fmt.Sprintf("%.2f %%", m.percent), "", true}
		if most, ok := budgets[m.pods]; ok {
			memory.budget, memory.met = fmt.Sprintf("≤ %.0f MiB", most), m.rss <= most
			ratio.budget, ratio.met = "≤ 0.5 ×", m.rss <= then[i].rss/2
			idle.budget, idle.met = "≤ 0.1 %", m.percent <= 0.1
		}
		rows = append(rows, memory, ratio, idle)
	}
	return rows, nil
}

// podMeasure is what an agent takes on a node with pods: memory in MiB, and percent of a core.
type podMeasure struct {
	pods                          int
	rss, anonymous, file, percent float64
}

// agentWithPods measures an agent, which is started by a command line, and reports to an aggregator of bin.
func agentWithPods(ctx context.Context, bin string, command ...string) (measures []podMeasure, err error) {
	host, err := netlab.New()
	if err != nil {
		return nil, err
	}
	defer host.Close()
	s := &site{Host: host}
	if s.program, err = s.Aggregator(ctx, bin, "--data-dir", "off"); err != nil {
		return nil, err
	}
	defer s.program.Kill()
	agent, err := s.LaunchAgent(ctx, s.Command(command[0], append(command[1:], "--node", "node1", "--aggregator", "127.0.0.1:9640")...))
	if err != nil {
		return nil, err
	}
	defer agent.Kill()
	pid := agent.Cmd.Process.Pid
	have := 0
	for _, pods := range []int{0, 50, 250} {
		for ; have < pods; have++ {
			for _, line := range podLines(fmt.Sprintf("p%d", have), fmt.Sprintf("10.9.%d.%d/32", have/250, have%250+1)) {
				if _, err := s.Run("%s", line); err != nil {
					return nil, err
				}
			}
		}
		if err := s.settled(ctx, uint32(pods)); err != nil {
			return nil, err
		}
		used, err := idleOf(ctx, pid)
		if err != nil {
			return nil, err
		}
		m := podMeasure{pods: pods, percent: 100 * used.Seconds() / idleTime.Seconds()}
		for name, to := range map[string]*float64{"VmRSS": &m.rss, "RssAnon": &m.anonymous, "RssFile": &m.file} {
			if *to, err = memoryOf(pid, name); err != nil {
				return nil, err
			}
		}
		measures = append(measures, m)
	}
	return measures, nil
}

// The pods of the churn: after warmPods, caches and heaps have reached their size.
const warmPods, churnedPods = 100, 400

// churnRows measures the memory that remains after pods came and went, each with the address of the
// previous one.
func churnRows(ctx context.Context, bin string) (rows []row, err error) {
	// A frequent garbage collection, so that only live memory is measured.
	if err := os.Setenv("GOGC", "25"); err != nil { // this process has already read its own
		return nil, err
	}
	defer func() { err = errors.Join(err, os.Unsetenv("GOGC")) }()
	s, err := newSite(ctx, bin)
	if err != nil {
		return nil, err
	}
	defer s.close()
	var rss [2]float64
	have := 0
	for i, pods := range []int{warmPods, churnedPods} {
		for end := have + pods; have < end; have++ {
			name := fmt.Sprintf("c%d", have)
			for _, line := range append(podLines(name, "10.9.0.1/32"), "ip netns del "+name) {
				if _, err := s.Run("%s", line); err != nil {
					return nil, err
				}
			}
		}
		if err := s.settled(ctx, 0); err != nil {
			return nil, err
		}
		if rss[i], err = s.settledRSS(ctx); err != nil {
			return nil, err
		}
	}
	grown := rss[1] - rss[0]
	return []row{{
		fmt.Sprintf("RSS of agent and aggregator: growth after %d pods were created and deleted", churnedPods),
		fmt.Sprintf("%.1f MiB", grown), "≤ 8 MiB", grown <= 8,
	}}, nil
}

// idle returns the CPU time that the program used during an idle period.
func (s *site) idle(ctx context.Context) (time.Duration, error) {
	return idleOf(ctx, s.program.Cmd.Process.Pid)
}

// idleOf returns the CPU time that a process used during an idle period.
func idleOf(ctx context.Context, pid int) (time.Duration, error) {
	var before time.Duration
	for _, d := range []time.Duration{calmTime, idleTime} {
		var err error
		if before, err = cpuOf(pid); err != nil {
			return 0, err
		}
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-time.After(d):
		}
	}
	after, err := cpuOf(pid)
	return after - before, err
}
