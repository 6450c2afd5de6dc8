package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"
)

// After a start, the kernels of pods still send frames (duplicate address detection, router
// solicitations) during calmTime. idleTime is the measured idle period that follows.
const calmTime, idleTime = 15 * time.Second, 20 * time.Second

// podRows measures the cost of watching idle pods.
func podRows(ctx context.Context, bin string) (rows []row, err error) {
	s, err := newSite(ctx, bin)
	if err != nil {
		return nil, err
	}
	defer s.close()
	have := 0
	for _, pods := range []int{0, 50, 250} {
		for ; have < pods; have++ {
			for _, line := range podLines(fmt.Sprintf("p%d", have), fmt.Sprintf("10.9.%d.%d/32", have/250, have%250+1)) {
				if _, err := s.Run("%s", line); err != nil {
					return rows, err
				}
			}
		}
		if err := s.settled(ctx, uint32(pods)); err != nil {
			return rows, err
		}
		used, err := s.idle(ctx)
		if err != nil {
			return rows, err
		}
		rss, err := s.rss()
		if err != nil {
			return rows, err
		}
		percent := 100 * used.Seconds() / idleTime.Seconds()
		memory := row{fmt.Sprintf("RSS of agent and aggregator with %d pods", pods), fmt.Sprintf("%.1f MiB", rss), "", true}
		idle := row{fmt.Sprintf("  CPU of a core while idle for %.0f s", idleTime.Seconds()), fmt.Sprintf("%.2f %%", percent), "", true}
		if pods == 250 {
			memory.budget, memory.met = "≤ 48 MiB", rss <= 48
			idle.budget, idle.met = "≤ 0.2 %", percent <= 0.2
		}
		rows = append(rows, memory, idle)
	}
	return rows, nil
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

// idle returns the CPU time used during an idle period.
func (s *site) idle(ctx context.Context) (time.Duration, error) {
	var before time.Duration
	for _, d := range []time.Duration{calmTime, idleTime} {
		var err error
		if before, err = s.cpu(); err != nil {
			return 0, err
		}
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-time.After(d):
		}
	}
	after, err := s.cpu()
	return after - before, err
}
