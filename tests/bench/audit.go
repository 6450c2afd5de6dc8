package main

import (
	"context"
	"fmt"
	"time"

	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/netlab"
	"github.com/ipwitness/ipwitness/tests/sim"
)

// The number of audited pods, and of addresses that IPAM loses one by one.
const (
	auditNodes, auditPods = 500, 200
	auditAll              = auditNodes * auditPods
	auditSingle           = 200
	// auditGrace is how long an address may be in use after its record was removed before it is
	// reported.
	auditGrace = 5 * time.Second
)

// auditRows measures an aggregator that compares many allocations with as many owners: their cost,
// how soon a lost allocation is reported, and the cost of losing all of them.
func auditRows(ctx context.Context, bin string) (rows []row, err error) {
	var without float64
	for _, ipam := range []bool{false, true} {
		more, rss, err := auditOf(ctx, bin, ipam, without)
		if rows = append(rows, more...); err != nil {
			return rows, err
		}
		without = rss
	}
	return rows, nil
}

// auditOf measures with or without IPAM, and returns the aggregator's RSS.
func auditOf(ctx context.Context, bin string, ipam bool, without float64) (rows []row, rss float64, err error) {
	host, err := netlab.New()
	if err != nil {
		return nil, 0, err
	}
	defer host.Close()
	s := site{Host: host}
	if s.program, err = host.Aggregator(ctx, bin); err != nil {
		return nil, 0, err
	}
	defer func() { s.program.Kill() }()
	begin := time.Now()
	fleet, err := sim.Start(host, local+":9640", sim.Size{Nodes: auditNodes, Owners: auditPods + 1, IPAM: ipam})
	if err != nil {
		return nil, 0, err
	}
	defer fleet.Stop()
	if _, err := s.until(ctx, func(text string) bool {
		return sum(text, "ipwitness_owners{") == auditAll+auditNodes && (!ipam || sum(text, "ipwitness_ipam_allocations{") == auditAll)
	}); err != nil {
		return nil, 0, err
	}
	known := time.Since(begin)
	used, err := s.cpu()
	if err != nil {
		return nil, 0, err
	}
	if _, err := s.idle(ctx); err != nil { // wait until memory that was needed only for the start is released
		return nil, 0, err
	}
	if rss, err = s.rss(); err != nil {
		return nil, 0, err
	}
	what := fmt.Sprintf("%d agents with %d pods each: until all owners are known", auditNodes, auditPods)
	if ipam {
		what = fmt.Sprintf("  with %d allocations, all of them audited", auditAll)
	}
	rows = append(rows, row{what, fmt.Sprintf("%s, %.1f s of CPU, RSS %.0f MiB", millis(known), used.Seconds(), rss), "", true})
	if !ipam {
		return rows, rss, nil
	}
	rows = append(rows, row{"  RSS for each allocation", fmt.Sprintf("%.0f bytes", (rss-without)*(1<<20)/auditAll), "", true})
	text, err := s.program.Text(ctx, "/metrics")
	if err != nil {
		return rows, rss, err
	}
	found := sum(text, "ipwitness_findings{")
	rows = append(rows, row{"   findings while nothing is wrong", fmt.Sprint(found), "0", found == 0})
	single, err := s.forget(ctx, fleet)
	if rows = append(rows, single...); err != nil {
		return rows, rss, err
	}
	all, err := s.forgetAll(ctx, fleet)
	return append(rows, all...), rss, err
}

// until waits until a condition holds for the metrics, and returns the time that this took.
func (s *site) until(ctx context.Context, is func(text string) bool) (time.Duration, error) {
	begin := time.Now()
	for {
		text, err := s.program.Text(ctx, "/metrics")
		if err != nil {
			return 0, fmt.Errorf("%w\n%s", err, s.program.Log)
		}
		if is(text) {
			return time.Since(begin), nil
		}
		if time.Since(begin) > 2*time.Minute {
			return 0, fmt.Errorf("waited in vain\n%s\n%s", text, s.program.Log)
		}
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// forget removes allocations one by one, and measures the time until each is reported.
func (s *site) forget(ctx context.Context, fleet *sim.Fleet) ([]row, error) {
	found, ready, ended := newStamps(), make(chan struct{}), make(chan error, 1)
	watching, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		ended <- s.program.WatchFindings(watching, func(e netlab.FindingEvent) bool {
			switch e.GetType() {
			case ipwitnessv1.Watch_BOOKMARK:
				select {
				case <-ready:
				default:
					close(ready)
				}
			case ipwitnessv1.Watch_ADDED:
				if e.GetFinding().GetAddress() != "" {
					found.set(e.GetFinding().GetAddress(), e.Read)
				}
			}
			return true
		})
	}()
	select {
	case <-ready:
	case err := <-ended:
		return nil, err
	}
	before, err := s.cpu()
	if err != nil {
		return nil, err
	}
	sentAt := make(map[string]time.Time)
	for i := range auditSingle {
		node, pod := i%auditNodes, i%auditPods
		sentAt[fleet.Address(node, pod)] = time.Now()
		if err := fleet.Free(ctx, node, pod); err != nil {
			return nil, err
		}
	}
	if _, err := s.until(ctx, func(text string) bool {
		return sum(text, `ipwitness_findings{kind="in-use-unallocated"}`) == auditSingle
	}); err != nil {
		return nil, err
	}
	used, err := s.cpu()
	if err != nil {
		return nil, err
	}
	var took []time.Duration
	for address, at := range sentAt {
		if read, ok := found.get(address); ok {
			took = append(took, read.Sub(at)-auditGrace)
		}
	}
	if len(took) != auditSingle {
		return nil, fmt.Errorf("watched %d findings, want %d", len(took), auditSingle)
	}
	return []row{{
		fmt.Sprintf("   %d records lost one by one: until the line of the finding, minus the grace of 5 s, p50 / p99", auditSingle),
		fmt.Sprintf("%s / %s, CPU of each %.2f ms", millis(quantile(took, 0.5)), millis(quantile(took, 0.99)), 1000*(used-before).Seconds()/auditSingle), "", true,
	}}, nil
}

// forgetAll makes all nodes lose their IPAM directories.
func (s *site) forgetAll(ctx context.Context, fleet *sim.Fleet) ([]row, error) {
	before, err := s.cpu()
	if err != nil {
		return nil, err
	}
	begin := time.Now()
	for node := range auditNodes {
		if err := fleet.Wipe(ctx, node); err != nil {
			return nil, err
		}
	}
	if _, err := s.until(ctx, func(text string) bool {
		return sum(text, `ipwitness_findings{kind="in-use-unallocated"}`) == auditAll && sum(text, `ipwitness_findings{kind="ipam-state-lost"}`) == auditNodes
	}); err != nil {
		return nil, err
	}
	took := time.Since(begin)
	used, err := s.cpu()
	if err != nil {
		return nil, err
	}
	rss, err := s.rss()
	if err != nil {
		return nil, err
	}
	return []row{{
		fmt.Sprintf("  all %d directories lost at once: until each of %d addresses is a finding", auditNodes, auditAll),
		fmt.Sprintf("%s, %.1f s of CPU, RSS %.0f MiB", millis(took), (used - before).Seconds(), rss), "", true,
	}}, nil
}
