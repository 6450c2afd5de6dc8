package main

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"time"

	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/netlab"
	"github.com/ipwitness/ipwitness/tests/sim"
)

// The number of simulated agents, and of owners that each reports.
const (
	crowdNodes  = 200
	crowdOwners = 110
	allOwners   = crowdNodes * crowdOwners
)

// awayTime is how long an aggregator must be away until all agents have reached their longest retry
// interval.
const awayTime = 10 * time.Second

// agentRows measures the cost of an aggregator with many simulated agents, and how soon it knows
// all owners again after it was killed.
func agentRows(ctx context.Context, bin string) (rows []row, err error) {
	host, err := netlab.New()
	if err != nil {
		return nil, err
	}
	defer host.Close()
	c := &crowd{site: site{Host: host}, bin: bin, nodes: crowdNodes, owners: allOwners}
	defer c.kill()
	if err := c.start(ctx); err != nil {
		return nil, err
	}
	if c.fleet, err = sim.Start(host, local+":9640", sim.Size{Nodes: crowdNodes, Owners: crowdOwners}); err != nil {
		return nil, err
	}
	defer c.fleet.Stop()
	if err := c.complete(ctx); err != nil {
		return nil, err
	}
	for _, away := range []time.Duration{0, awayTime} {
		back, err := c.restart(ctx, away)
		if err != nil {
			return rows, err
		}
		rows = append(rows, back...)
	}
	return rows, nil
}

// crowd is an aggregator with a fleet of agents.
type crowd struct {
	site
	bin   string
	args  []string // arguments of the aggregator
	fleet *sim.Fleet
	// nodes and owners are the complete numbers.
	nodes, owners int
	// began is the time when the process was started, listened the time of its first answer.
	began, listened time.Time
}

// start starts the aggregator and waits until it answers.
func (c *crowd) start(ctx context.Context) (err error) {
	c.began = time.Now()
	c.program, err = c.Aggregator(ctx, c.bin, c.args...)
	c.listened = time.Now()
	return err
}

// kill kills the aggregator if it runs.
func (c *crowd) kill() {
	if c.program != nil {
		c.program.Kill()
		c.program = nil
	}
}

// restart kills the aggregator, starts it again, and measures the time until it knows all nodes and
// owners again.
func (c *crowd) restart(ctx context.Context, away time.Duration) ([]row, error) {
	c.kill()
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(away):
	}
	if err := c.start(ctx); err != nil {
		return nil, err
	}
	if err := c.complete(ctx); err != nil {
		return nil, err
	}
	whole, heard := time.Since(c.began), time.Since(c.listened)
	used, err := c.cpu()
	if err != nil {
		return nil, err
	}
	conflicts, err := c.verify(ctx)
	if err != nil {
		return nil, err
	}
	what := fmt.Sprintf("aggregator killed and started at once, %d agents with %d owners each: until all are known", crowdNodes, crowdOwners)
	if away > 0 {
		what = fmt.Sprintf("aggregator away for %s: until all are known", away)
	}
	return []row{
		{what, millis(whole), "≤ 5 s", whole <= 5*time.Second},
		{"   measured from when it listens", millis(heard), "", true},
		{"   CPU of the aggregator until then, including the queries of this benchmark", millis(used), "", true},
		{"   conflicts reported", fmt.Sprint(conflicts), "0", conflicts == 0},
	}, nil
}

// complete waits until all agents are connected and all owners known.
func (c *crowd) complete(ctx context.Context) error { return c.known(ctx, c.nodes, c.owners) }

// known waits until the given numbers of agents are connected and of owners are known. It spends at
// most a tenth of the time on reading metrics, so as not to distort the measurement.
func (c *crowd) known(ctx context.Context, wantNodes, wantOwners int) error {
	var nodes, owners int
	for deadline := time.Now().Add(allWithin); ; {
		asked := time.Now()
		text, err := c.program.Text(ctx, "/metrics")
		if err != nil {
			return fmt.Errorf("%w\n%s", err, c.logged())
		}
		nodes, owners = sum(text, `ipwitness_nodes{state="live"}`), sum(text, "ipwitness_owners{")
		switch {
		case nodes == wantNodes && owners >= wantOwners:
			return nil
		case time.Now().After(deadline):
			return &incompleteError{fmt.Sprintf("%d of %d nodes, %d of %d owners after %s", nodes, wantNodes, owners, wantOwners, allWithin), c.logged()}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(max(50*time.Millisecond, 10*time.Since(asked))):
		}
	}
}

// allWithin limits the time until all nodes and owners are known.
const allWithin = 5 * time.Minute

// incompleteError is returned when not all nodes and owners are known in time.
type incompleteError struct{ have, log string }

func (e *incompleteError) Error() string { return e.have + "\n" + e.log }

// logged returns the end of the aggregator's log.
func (c *crowd) logged() string {
	log := c.program.Log.String()
	return log[max(0, len(log)-4096):]
}

// sum adds up the series whose lines begin with a text.
func sum(metrics, prefix string) (total int) {
	for line := range strings.Lines(metrics) {
		if strings.HasPrefix(line, prefix) {
			var value float64
			_, _ = fmt.Sscan(line[strings.LastIndex(line, " "):], &value)
			total += int(value)
		}
	}
	return total
}

// verify compares the owners with those that the agents report, and counts all conflicts, including
// resolved ones.
func (c *crowd) verify(ctx context.Context) (conflicts int, err error) {
	want := c.fleet.Holders()
	for token := ""; ; {
		var m ipwitnessv1.ListOwnersResponse
		if err := c.program.Get(ctx, "/v1/owners?page_size=5000&page_token="+token, &m); err != nil {
			return 0, err
		}
		for _, o := range m.GetOwners() {
			addr, err := netip.ParseAddr(o.GetAddress())
			if err != nil || want[addr] != o.GetNode() || o.GetState() != ipwitnessv1.Owner_LIVE {
				return 0, fmt.Errorf("owner of %s: got node %s, state %s, want node %s, LIVE", o.GetAddress(), o.GetNode(), o.GetState(), want[addr])
			}
			delete(want, addr)
		}
		if token = m.GetNextPageToken(); token == "" {
			break
		}
	}
	if len(want) > 0 {
		return 0, fmt.Errorf("%d owners are missing", len(want))
	}
	var m ipwitnessv1.ListConflictsResponse
	err = c.program.Get(ctx, "/v1/conflicts?all=true", &m)
	return len(m.GetConflicts()), err
}
