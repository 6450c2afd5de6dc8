package main

import (
	"context"
	"fmt"
	"net/netip"
	"runtime/debug"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/ipwitness/ipwitness/tests/sim"
)

const (
	// plantedEvery is the interval between two duplicates, and between two requests.
	plantedEvery = 20 * time.Millisecond
	// The nodes on which duplicates are planted are connected before the others.
	firstProber, probers = 6000, 10
	proberPods           = 249
)

// resyncRows measures how fast the aggregator answers requests and detects duplicates on
// connected nodes, while all other agents of a large cluster send their snapshots.
func resyncRows(ctx context.Context, bin string) ([]row, error) {
	c, err := newCrowd(bin, largest, scaleNetwork...)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	if err := c.start(ctx); err != nil {
		return nil, err
	}
	defer c.kill()
	early, err := sim.Start(c.Host, local+":9640", sim.Size{First: firstProber, Nodes: probers, Owners: 1 + proberPods})
	if err != nil {
		return nil, err
	}
	defer early.Stop()
	const earlyOwners = probers * (1 + proberPods)
	if err := c.known(ctx, probers, earlyOwners); err != nil {
		return nil, err
	}
	if err := c.watchConflicts(ctx); err != nil {
		return nil, err
	}
	p := planter{site: &c.site, fleet: early, planted: map[string]time.Time{}}
	during, end := context.WithCancel(ctx)
	defer end()
	g, during := errgroup.WithContext(during)
	var explain, conflicts asked
	g.Go(func() error { return p.run(during) })
	g.Go(func() error {
		return explain.run(during, func(i int) error {
			_, err := c.program.Text(during, "/v1/explain?address="+early.Address(i%probers, i%proberPods))
			return err
		})
	})
	g.Go(func() error {
		return conflicts.run(during, func(int) error {
			_, err := c.program.Text(during, "/v1/conflicts")
			return err
		})
	})
	defer debug.SetGCPercent(debug.SetGCPercent(1000)) // garbage collections of the agents would delay the measured requests
	before, err := c.spent()
	if err != nil {
		return nil, err
	}
	begin := time.Now()
	if err := c.fleet.Connect(); err != nil {
		return nil, err
	}
	defer c.fleet.Stop()
	incomplete := c.known(ctx, c.nodes+probers, c.owners+earlyOwners)
	whole := time.Since(begin)
	after, err := c.spent()
	if err != nil {
		return nil, err
	}
	end()
	if err := g.Wait(); err != nil {
		return nil, err
	}
	suspected := p.latencies(ctx)
	p99 := quantile(suspected, 0.99)
	return []row{
		{fmt.Sprintf("%d agents, %d owners connect at once, with duplicates and requests meanwhile: until all owners are known", c.nodes, c.owners), millis(whole), "≤ 5 s", whole <= 5*time.Second},
		after.since(before).row(),
		{
			fmt.Sprintf("  %d duplicates that another node reports meanwhile: claim to the SUSPECTED line, p99", len(suspected)),
			fmt.Sprintf("%s (p50 %s, worst %s)", millis(p99), millis(quantile(suspected, 0.5)), millis(quantile(suspected, 1))), "≤ 50 ms", p99 <= 50*time.Millisecond,
		},
		explain.row("explain"), conflicts.row("conflicts"),
		{"  delay of a goroutine of this program, which the latencies include, p99", millis(quantile(slices.Concat(explain.late, conflicts.late), 0.99)), "", true},
	}, incomplete
}

// planter creates duplicates while other agents send their snapshots.
type planter struct {
	*site
	fleet   *sim.Fleet
	planted map[string]time.Time
}

// run creates a duplicate at each interval until ctx ends or no address is left, and
// removes duplicates that were suspected. Latencies count from the scheduled time: a
// blocked agent delays the duplicates that come after it.
func (p *planter) run(ctx context.Context) error {
	begin := time.Now()
	open := map[int]string{} // by number
	assign := func(i int, addr string, gone bool) error {
		err := p.fleet.Assign(ctx, (i+1)%probers, gone, netip.MustParseAddr(addr))
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	for i := range probers * proberPods {
		at := begin.Add(time.Duration(i) * plantedEvery)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(time.Until(at)):
		}
		addr := p.fleet.Address(i%probers, i/probers)
		if err := assign(i, addr, false); err != nil || ctx.Err() != nil {
			return err
		}
		p.planted[addr], open[i] = at, addr
		for i, addr := range open {
			if _, ok := p.suspected.get(addr); ok {
				delete(open, i)
				if err := assign(i, addr, true); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// latencies waits for the SUSPECTED lines of all duplicates. A line that does not arrive in time
// counts as the time spent waiting.
func (p *planter) latencies(ctx context.Context) (all []time.Duration) {
	_ = p.suspected.await(ctx, "SUSPECTED lines", len(p.planted))
	for addr, at := range p.planted {
		line, ok := p.suspected.get(addr)
		if !ok {
			line = time.Now()
		}
		all = append(all, line.Sub(at))
	}
	return all
}

// asked holds the latencies of one kind of request, and the delays with which the requests were
// sent.
type asked struct{ took, late []time.Duration }

// run makes a request at each interval until ctx ends. A slow answer also counts for the
// requests that were due while it was outstanding; otherwise one long stall would be a
// single sample among many fast ones.
func (a *asked) run(ctx context.Context, ask func(i int) error) error {
	tick := time.NewTicker(plantedEvery)
	defer tick.Stop()
	for i := 0; ; i++ {
		var due time.Time
		select {
		case <-ctx.Done():
			return nil
		case due = <-tick.C:
		}
		begin := time.Now()
		a.late = append(a.late, begin.Sub(due))
		err := ask(i)
		took := time.Since(begin)
		if err != nil && ctx.Err() == nil {
			return err
		}
		for ; took > 0; took -= plantedEvery {
			a.took = append(a.took, took)
		}
	}
}

func (a *asked) row(what string) row {
	p99 := quantile(a.took, 0.99)
	return row{
		fmt.Sprintf("  %s through REST meanwhile, p99", what),
		fmt.Sprintf("%s (p50 %s, worst %s)", millis(p99), millis(quantile(a.took, 0.5)), millis(quantile(a.took, 1))), "≤ 20 ms", p99 <= 20*time.Millisecond,
	}
}
