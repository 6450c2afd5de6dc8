package main

import (
	"context"
	"fmt"
	"time"

	"github.com/ipwitness/ipwitness/tests/netlab"
	"github.com/ipwitness/ipwitness/tests/sim"
)

// scaleOwners is the number of owners on a node: the node itself and 109 pods, each with a
// network address and a link-local address.
const scaleOwners = 2 * crowdOwners

// scaleNodes are the cluster sizes in nodes: 22,000, 550,000 and 1,100,000 owners.
var scaleNodes = [...]int{100, 2500, 5000}

// largest is the last of scaleNodes.
const largest = 5000

// scaleNetwork declares the pod network, so that pod addresses must be unique in the whole
// cluster.
var scaleNetwork = []string{"--network", "pods=10.0.0.0/8"}

// scaleRows measures the aggregator's memory for each owner in clusters of several sizes.
func scaleRows(ctx context.Context, bin string) (rows []row, err error) {
	for _, nodes := range scaleNodes {
		more, err := scaleOf(ctx, bin, nodes)
		if rows = append(rows, more...); err != nil {
			return rows, err
		}
	}
	return rows, nil
}

// newCrowd prepares agents on a new host, without connecting them or starting the
// aggregator. The caller closes the host.
func newCrowd(bin string, nodes int, args ...string) (*crowd, error) {
	host, err := netlab.New()
	if err != nil {
		return nil, err
	}
	c := &crowd{site: site{Host: host}, bin: bin, args: args, nodes: nodes, owners: nodes * scaleOwners}
	if c.fleet, err = sim.New(host, local+":9640", sim.Size{Nodes: nodes, Owners: crowdOwners, LinkLocal: true}); err != nil {
		host.Close()
		return nil, err
	}
	return c, nil
}

// scaleOf measures one cluster size: without connections, after all agents have reported
// and disconnected, and with a connection for each agent.
func scaleOf(ctx context.Context, bin string, nodes int) (rows []row, err error) {
	c, err := newCrowd(bin, nodes, append(scaleNetwork, "--node-timeout", "1h")...)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	defer c.kill()
	if err := c.start(ctx); err != nil {
		return nil, err
	}
	empty, err := c.rss()
	if err != nil {
		return nil, err
	}
	begin := time.Now()
	if err := c.fleet.Deliver(ctx); err != nil {
		return nil, err
	}
	if err := c.known(ctx, 0, c.owners); err != nil {
		return nil, err
	}
	delivered := time.Since(begin)
	state, err := c.perOwner(ctx, "state alone", empty, 300)
	if err != nil {
		return nil, err
	}
	rows = append(rows, row{fmt.Sprintf("%d nodes report, 8 at a time, and disconnect: until all owners are known", nodes), millis(delivered), "", true})
	rows = append(rows, state...)
	c.kill()
	if err := c.start(ctx); err != nil {
		return rows, err
	}
	if err := c.fleet.Connect(); err != nil {
		return rows, err
	}
	defer c.fleet.Stop()
	if err := c.complete(ctx); err != nil {
		return rows, err
	}
	connected, err := c.perOwner(ctx, fmt.Sprintf("with the connections of %d agents", nodes), empty, 450)
	return append(rows, connected...), err
}

// largeRows measures restarts, agents that connect again, idle CPU, pages and a watch in the largest cluster.
func largeRows(ctx context.Context, bin string) (rows []row, err error) {
	c, err := newCrowd(bin, largest, scaleNetwork...)
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
	if err := c.complete(ctx); err != nil {
		return nil, err
	}
	for _, measure := range []func(context.Context) ([]row, error){c.resync, c.reconnect, c.rest, c.pages, c.watch} {
		more, err := measure(ctx)
		if rows = append(rows, more...); err != nil {
			return rows, err
		}
	}
	return rows, nil
}

// resyncs is the number of measured restarts.
const resyncs = 3

// resync kills the aggregator, restarts it immediately and measures the time until it knows all
// owners again.
func (c *crowd) resync(ctx context.Context) ([]row, error) {
	var whole, aggregator, agents []time.Duration
	most := 0.0
	for range resyncs {
		c.kill()
		if err := c.start(ctx); err != nil {
			return nil, err
		}
		before, err := c.spent()
		if err != nil {
			return nil, err
		}
		if err := c.complete(ctx); err != nil {
			return nil, err
		}
		whole = append(whole, time.Since(c.began))
		after, err := c.spent()
		if err != nil {
			return nil, err
		}
		aggregator, agents = append(aggregator, after.aggregator), append(agents, after.agents-before.agents)
		peak, err := c.memory("VmHWM")
		if err != nil {
			return nil, err
		}
		most = max(most, peak)
	}
	median := quantile(whole, 0.5)
	return []row{
		{
			fmt.Sprintf("aggregator killed and started at once, %d agents, %d owners: until all are known, median of %d", c.nodes, c.owners, resyncs),
			fmt.Sprintf("%.2f s (%.2f … %.2f)", median.Seconds(), quantile(whole, 0).Seconds(), quantile(whole, 1).Seconds()), "≤ 5 s", median <= 5*time.Second,
		},
		spent{quantile(aggregator, 0.5), quantile(agents, 0.5)}.row(),
		{"  peak RSS of the aggregator until then", fmt.Sprintf("%.0f MiB", most), "", true},
	}, nil
}

// cutOffFor is how long the agents' network fails.
const cutOffFor = 5 * time.Second

// reconnect ends all streams, and measures the CPU until the aggregator, which goes on, knows all nodes again. It begins
// before the streams end, because the aggregator also judges the addresses of nodes that it no longer hears.
func (c *crowd) reconnect(ctx context.Context) ([]row, error) {
	before, err := c.spent()
	if err != nil {
		return nil, err
	}
	c.fleet.Stop()
	if err := c.known(ctx, 0, c.owners); err != nil {
		return nil, err
	}
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(cutOffFor):
	}
	begin := time.Now()
	if err := c.fleet.Connect(); err != nil {
		return nil, err
	}
	if err := c.complete(ctx); err != nil {
		return nil, err
	}
	whole := time.Since(begin)
	after, err := c.spent()
	if err != nil {
		return nil, err
	}
	return []row{
		{fmt.Sprintf("%d agents whose network fails for %.0f s: until all are known again", c.nodes, cutOffFor.Seconds()), fmt.Sprintf("%.2f s", whole.Seconds()), "", true},
		after.since(before).row(),
	}, nil
}

// spent is the CPU time of the aggregator, and of this process, which runs the agents.
type spent struct{ aggregator, agents time.Duration }

func (c *crowd) spent() (s spent, err error) {
	all, err := processors()
	if err != nil {
		return s, err
	}
	s.agents = all.self
	s.aggregator, err = c.cpu()
	return s, err
}

func (s spent) since(before spent) spent {
	return spent{s.aggregator - before.aggregator, s.agents - before.agents}
}

func (s spent) row() row {
	return row{"  CPU of the aggregator until then; CPU of the agents on the same processors", fmt.Sprintf("%.2f s, %.2f s", s.aggregator.Seconds(), s.agents.Seconds()), "", true}
}

// perOwner measures the memory for each owner, after the aggregator has returned the memory that it
// needed only while agents reported.
func (c *crowd) perOwner(ctx context.Context, what string, empty float64, budget float64) ([]row, error) {
	rss, err := c.settledRSS(ctx)
	if err != nil {
		return nil, err
	}
	peak, err := c.memory("VmHWM")
	if err != nil {
		return nil, err
	}
	text, err := c.program.Text(ctx, "/metrics")
	if err != nil {
		return nil, err
	}
	each := func(mib float64) float64 { return mib * (1 << 20) / float64(c.owners) }
	// The next collection begins when the heap has grown by a quarter (GOGC=25).
	heap := float64(sum(text, "go_memstats_next_gc_bytes ")) / 1.25 / (1 << 20)
	stacks := float64(sum(text, "go_memstats_stack_inuse_bytes ")) / (1 << 20)
	return []row{
		{
			fmt.Sprintf("RSS for each of %d owners, minus that of an empty aggregator, %s", c.owners, what),
			fmt.Sprintf("%.0f bytes (%.0f MiB of %.0f)", each(rss-empty), rss-empty, rss), fmt.Sprintf("≤ %.0f bytes", budget), each(rss-empty) <= budget,
		},
		{"  heap after the last garbage collection; stacks; peak", fmt.Sprintf("%.0f bytes, %.0f bytes; %.0f MiB", each(heap), each(stacks), peak), "", true},
	}, nil
}

// rest measures the CPU time of the idle aggregator.
func (c *crowd) rest(ctx context.Context) ([]row, error) {
	used, err := c.idle(ctx)
	percent := 100 * used.Seconds() / idleTime.Seconds()
	return []row{{
		fmt.Sprintf("CPU of a core with %d connected agents while idle for %.0f s", c.nodes, idleTime.Seconds()),
		fmt.Sprintf("%.2f %%", percent), "≤ 5 %", percent <= 5,
	}}, err
}
