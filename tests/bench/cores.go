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
	// Each pair of nodes shares addresses: one node holds them permanently, the other one
	// alternately takes and releases them.
	sharingPairs, sharedAddresses = 8, 2000
	// sharedAtOnce is the number of addresses in one message.
	sharedAtOnce = 500
	// coresTime is the duration of one run, coresRuns the number of runs with each number of
	// cores.
	coresTime, coresRuns = 5 * time.Second, 3
)

// coresRows compares the changes that are judged per second with one core and with two.
// All changes are of addresses that two nodes hold. These are declared as shared, so that no
// conflict begins or ends, and the rate depends on receiving and judging alone.
func coresRows(ctx context.Context, bin string) ([]row, error) {
	var one, two, oneCPU, twoCPU []float64
	for range coresRuns {
		// By turns: what drifts with time takes neither side.
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
			fmt.Sprintf("judged changes of shared addresses, two cores (GOMAXPROCS) by one, median of %d", coresRuns),
			fmt.Sprintf("%.2f × (%.0f/s by %.0f/s)", ratio, median(two), median(one)), "≥ 1.7 ×", ratio >= 1.7,
		},
		{"  CPU of the aggregator for each", fmt.Sprintf("%.2f µs, %.2f µs with one", median(twoCPU), median(oneCPU)), "", true},
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
	if c.fleet, err = sim.Start(host, local+":9640", sim.Size{Nodes: 2 * sharingPairs, Owners: 2}); err != nil {
		return 0, 0, err
	}
	defer c.fleet.Stop()
	owners := 2 * 2 * sharingPairs
	if err := c.known(ctx, 2*sharingPairs, owners); err != nil {
		return 0, 0, err
	}
	for pair := range sharingPairs {
		if err := c.fleet.Assign(ctx, 2*pair, false, addresses(pair, 0, sharedAddresses)...); err != nil {
			return 0, 0, err
		}
	}
	owners += sharingPairs * sharedAddresses
	if err := c.known(ctx, 2*sharingPairs, owners); err != nil {
		return 0, 0, err
	}
	before, err := c.cpu()
	if err != nil {
		return 0, 0, err
	}
	begin := time.Now()
	changes := make([]int, sharingPairs)
	g, sending := errgroup.WithContext(ctx)
	for pair := range sharingPairs {
		g.Go(func() (err error) {
			changes[pair], err = share(sending, c.fleet, pair)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return 0, 0, err
	}
	// Each pair ends with additional addresses that it has never held before: no earlier
	// state has this many owners.
	owners += 2 * sharingPairs * sharedAddresses
	if err := c.known(ctx, 2*sharingPairs, owners); err != nil {
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

// share alternately takes and releases the shared addresses of a pair for coresTime. It
// ends by taking them and as many others. It returns the number of changes.
func share(ctx context.Context, fleet *sim.Fleet, pair int) (changes int, err error) {
	node := 2*pair + 1
	var take, give [][]byte
	for from := 0; from < 2*sharedAddresses; from += sharedAtOnce {
		for _, m := range []struct {
			gone bool
			to   *[][]byte
		}{{false, &take}, {true, &give}} {
			raw, err := fleet.Assignment(node, m.gone, addresses(pair, from, sharedAtOnce)...)
			if err != nil {
				return 0, err
			}
			*m.to = append(*m.to, raw)
		}
	}
	shared := len(take) / 2
	send := func(messages [][]byte) error {
		for _, raw := range messages {
			if err := fleet.Send(ctx, node, raw); err != nil {
				return err
			}
			changes += sharedAtOnce
		}
		return nil
	}
	for begin := time.Now(); time.Since(begin) < coresTime; {
		if err := errors.Join(send(take[:shared]), send(give[:shared])); err != nil {
			return 0, err
		}
	}
	err = send(take)
	return changes, err
}

// addresses returns n addresses of a pair, beginning with the one numbered from.
func addresses(pair, from, n int) (all []netip.Addr) {
	for i := range n {
		i += from
		all = append(all, netip.AddrFrom4([4]byte{10, 200, byte(16*pair + i>>8), byte(i)}))
	}
	return all
}

// median returns the middle value.
func median(of []float64) float64 {
	sorted := slices.Sorted(slices.Values(of))
	return sorted[len(sorted)/2]
}
