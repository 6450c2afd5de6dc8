package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	// mostReplicas is the largest number of equal replicas that are measured.
	mostReplicas = 3
	// replicaNodes is the number of nodes that report to each replica, and movers that of those whose pods
	// take and release movedTogether addresses at a time, for replicaTime.
	replicaNodes, movers, movedTogether = 1000, 8, 100
	replicaTime                         = 10 * time.Second
)

// replicaRows measures what equal replicas cost. All of them get the same reports, and keep a journal. Of the traffic,
// that of one replica is measured: the others take the same.
func replicaRows(ctx context.Context, bin string) (rows []row, err error) {
	for n := 1; n <= mostReplicas; n++ {
		more, err := replicasOf(ctx, bin, n)
		if rows = append(rows, more...); err != nil {
			return rows, err
		}
	}
	return rows, nil
}

// replicasOf measures a number of replicas.
func replicasOf(ctx context.Context, bin string, number int) (rows []row, err error) {
	dir, err := os.MkdirTemp("", "ipwitness-bench")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	var all []*crowd
	for i := range number {
		c, err := newCrowd(bin, replicaNodes, append(scaleNetwork, "--data-dir", filepath.Join(dir, fmt.Sprint(i)))...)
		if err != nil {
			return nil, err
		}
		defer c.Close()
		defer c.kill()
		if err := c.start(ctx); err != nil {
			return nil, err
		}
		if err := c.fleet.Connect(); err != nil {
			return nil, err
		}
		defer c.fleet.Stop()
		all = append(all, c)
	}
	for _, c := range all {
		if err := c.complete(ctx); err != nil {
			return nil, err
		}
	}
	tables := all[0].fleet.Sent()
	rssBefore, err := largestRSS(ctx, all)
	if err != nil {
		return nil, err
	}
	begin, changes := time.Now(), 0
	before, err := cpuOfAll(all)
	if err != nil {
		return nil, err
	}
	if changes, err = moveAddresses(ctx, all); err != nil {
		return nil, err
	}
	took, moved := time.Since(begin), all[0].fleet.Sent()-tables
	after, err := cpuOfAll(all)
	if err != nil {
		return nil, err
	}
	rss, err := largestRSS(ctx, all)
	if err != nil {
		return nil, err
	}
	each := float64((after - before).Microseconds()) / float64(changes)
	return []row{
		{
			fmt.Sprintf("%d equal replicas, %d agents report to each: changes that all of them know, per second", number, replicaNodes),
			fmt.Sprintf("%.0f/s", float64(changes)/took.Seconds()), "", true,
		},
		{
			"  CPU for each change, of one replica and of all; RSS of the largest replica, before and after that",
			fmt.Sprintf("%.1f µs, %.1f µs; %.0f MiB, %.0f MiB", each/float64(number), each, rssBefore, rss), "", true,
		},
		{
			"  traffic that each replica takes: the tables of a node when it connects, and each change",
			fmt.Sprintf("%.1f kB, %.0f bytes", float64(tables)/replicaNodes/1000, float64(moved)/float64(changes)), "", true,
		},
	}, nil
}

// largestRSS returns the RSS of the largest replica.
func largestRSS(ctx context.Context, all []*crowd) (rss float64, err error) {
	for _, c := range all {
		one, err := c.settledRSS(ctx)
		if err != nil {
			return 0, err
		}
		rss = max(rss, one)
	}
	return rss, nil
}

// cpuOfAll returns the CPU time that some replicas have used.
func cpuOfAll(all []*crowd) (sum time.Duration, err error) {
	for _, c := range all {
		one, err := c.cpu()
		if err != nil {
			return 0, err
		}
		sum += one
	}
	return sum, nil
}

// moveAddresses makes pods take and release addresses, reports each change to all replicas, and waits until they
// know all of them. It returns the number of changes.
func moveAddresses(ctx context.Context, all []*crowd) (changes int, err error) {
	counts := make([]int, movers)
	g, sending := errgroup.WithContext(ctx)
	for node := range movers {
		g.Go(func() (err error) {
			counts[node], err = moveOn(sending, all, node)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return 0, err
	}
	for _, n := range counts {
		changes += n
	}
	for _, c := range all { // each pod ends with the addresses of the last step
		if err := c.known(ctx, replicaNodes, c.owners+movers*movedTogether); err != nil {
			return 0, err
		}
	}
	return changes, nil
}

// moveOn makes the first pod of a node take and release its addresses, and take others at the end.
func moveOn(ctx context.Context, all []*crowd, node int) (changes int, err error) {
	addresses := func(part int) (some []netip.Addr) {
		for i := range movedTogether {
			some = append(some, netip.AddrFrom4([4]byte{10, byte(200 + part), byte(node), byte(i)})) //nolint:gosec // two parts, few nodes
		}
		return some
	}
	fleet := all[0].fleet // the others are the same
	take, takeErr := fleet.Assignment(node, false, addresses(0)...)
	release, releaseErr := fleet.Assignment(node, true, addresses(0)...)
	others, othersErr := fleet.Assignment(node, false, addresses(1)...)
	if err := errors.Join(takeErr, releaseErr, othersErr); err != nil {
		return 0, err
	}
	send := func(messages ...[]byte) error {
		for _, m := range messages {
			for _, c := range all {
				if err := c.fleet.Send(ctx, node, m); err != nil {
					return err
				}
			}
			changes += movedTogether
		}
		return nil
	}
	for begin := time.Now(); time.Since(begin) < replicaTime; {
		if err := send(take, release); err != nil {
			return 0, err
		}
	}
	err = send(others)
	return changes, err
}
