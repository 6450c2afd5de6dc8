package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/ipwitness/ipwitness/tests/netlab"
	"github.com/ipwitness/ipwitness/tests/sim"
)

const (
	// Some nodes hold all shared addresses permanently, so that each has many claims to
	// judge. The same number of other nodes take and release a part of the addresses each.
	holders, sharers = 8, 8
	// partOfShared is the number of addresses that one node takes and releases.
	partOfShared = 500
	// coresTime is the duration of one run, coresRuns the number of runs with each number of
	// cores.
	coresTime, coresRuns = 5 * time.Second, 3
)

// coresRows compares the changes that are judged per second with one core and with two.
// All changes are of addresses that several nodes hold, so that judging takes longer than
// receiving. They are declared as shared, so that no conflict begins or ends.
func coresRows(ctx context.Context, bin string) ([]row, error) {
	var one, two, oneCPU, twoCPU []float64
	for range coresRuns {
		// Alternate between the two, so that slow changes of the machine affect both equally.
		for _, of := range []struct {
			cores      string
			rates, cpu *[]float64
		}{{"1", &one, &oneCPU}, {"2", &two, &twoCPU}} {
			rate, cpu, err := judgedBy(ctx, bin, of.cores)
			if err != nil {
				return nil, err
			}
			*of.rates, *of.cpu = append(*of.rates, rate), append(*of.cpu, cpu)
		}
	}
	ratio := median(two) / median(one)
	return []row{
		{
			fmt.Sprintf("throughput of judged changes of shared addresses, two cores (GOMAXPROCS) divided by one, median of %d", coresRuns),
			fmt.Sprintf("%.2f × (%.0f/s by %.0f/s)", ratio, median(two), median(one)), "≥ 1.7 ×", ratio >= 1.7,
		},
		{"  CPU of the aggregator for each change", fmt.Sprintf("%.2f µs, %.2f µs with one", median(twoCPU), median(oneCPU)), "", true},
	}, nil
}

// judgedBy returns the number of changes that are judged per second, and the CPU time of
// each in microseconds.
func judgedBy(ctx context.Context, bin, cores string) (rate, cpu float64, err error) {
	host, err := netlab.New()
	if err != nil {
		return 0, 0, err
	}
	defer host.Close()
	if err := os.Setenv("GOMAXPROCS", cores); err != nil { // this process has already read its own
		return 0, 0, err
	}
	c := &crowd{site: site{Host: host}, bin: bin, args: append(scaleNetwork, "--shared", "10.200.0.0/16=anycast")}
	err = c.start(ctx)
	if err := errors.Join(err, os.Unsetenv("GOMAXPROCS")); err != nil {
		return 0, 0, err
	}
	defer c.kill()
	if c.fleet, err = sim.Start(host, local+":9640", sim.Size{Nodes: holders + sharers, Owners: 2}); err != nil {
		return 0, 0, err
	}
	defer c.fleet.Stop()
	for node := range holders {
		for part := range sharers {
			if err := c.fleet.Assign(ctx, node, false, shared(part)...); err != nil {
				return 0, 0, err
			}
		}
	}
	owners := 2*(holders+sharers) + holders*sharers*partOfShared
	if err := c.known(ctx, holders+sharers, owners); err != nil {
		return 0, 0, err
	}
	before, err := c.cpu()
	if err != nil {
		return 0, 0, err
	}
	begin := time.Now()
	changes := make([]int, sharers)
	g, sending := errgroup.WithContext(ctx)
	for part := range sharers {
		g.Go(func() (err error) {
			changes[part], err = share(sending, c.fleet, part)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return 0, 0, err
	}
	// Each sharer ends with additional addresses that it has never held before: no earlier
	// state has this many owners.
	owners += 2 * sharers * partOfShared
	if err := c.known(ctx, holders+sharers, owners); err != nil {
		return 0, 0, err
	}
	took := time.Since(begin)
	after, err := c.cpu()
	total := 0
	for _, n := range changes {
		total += n
	}
	return float64(total) / took.Seconds(), float64((after - before).Microseconds()) / float64(total), err
}

// share alternately takes and releases one part of the shared addresses for coresTime. It
// ends by taking them and as many others. It returns the number of changes.
func share(ctx context.Context, fleet *sim.Fleet, part int) (changes int, err error) {
	node := holders + part
	take, takeErr := fleet.Assignment(node, false, shared(part)...)
	release, releaseErr := fleet.Assignment(node, true, shared(part)...)
	more, moreErr := fleet.Assignment(node, false, shared(sharers+part)...)
	if err := errors.Join(takeErr, releaseErr, moreErr); err != nil {
		return 0, err
	}
	send := func(messages ...[]byte) error {
		for _, records := range messages {
			if err := fleet.Send(ctx, node, records); err != nil {
				return err
			}
			changes += partOfShared
		}
		return nil
	}
	for begin := time.Now(); time.Since(begin) < coresTime; {
		if err := send(take, release); err != nil {
			return 0, err
		}
	}
	err = send(take, more)
	return changes, err
}

// shared returns the addresses of one part.
func shared(part int) (all []netip.Addr) {
	for i := range partOfShared {
		i += part * partOfShared
		all = append(all, netip.AddrFrom4([4]byte{10, 200, byte(i >> 8), byte(i)}))
	}
	return all
}

// median returns the middle value.
func median(of []float64) float64 {
	sorted := slices.Sorted(slices.Values(of))
	return sorted[len(sorted)/2]
}
