package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/nats"
	"github.com/ipwitness/ipwitness/tests/netlab"
)

const (
	// mostReplicas is the largest number of replicas that are measured.
	mostReplicas = 3
	// replicaNodes is the number of nodes that report to each replica, and movers that of those whose pods
	// take and release movedTogether addresses at a time, for replicaTime.
	replicaNodes, movers, movedTogether = 1000, 8, 100
	replicaTime                         = 10 * time.Second
)

// replicaRows measures what equal replicas cost, and replicas that share the addresses.
func replicaRows(ctx context.Context, bin string) (rows []row, err error) {
	for _, sharing := range []bool{false, true} {
		for n := 1; n <= mostReplicas; n++ {
			more, err := replicasOf(ctx, bin, n, sharing)
			if rows = append(rows, more...); err != nil {
				return rows, err
			}
		}
	}
	return rows, nil
}

// A team is several replicas with their agents. Each keeps a journal.
type team struct {
	all     []*crowd
	sharing bool
}

// newTeam starts replicas, each on a host of its own. If they share the addresses, hub is the host of their NATS server.
func newTeam(ctx context.Context, bin, dir string, number int, hub *netlab.Host) (*team, error) {
	t := &team{sharing: hub != nil}
	for i := range number {
		args := append(slices.Clone(scaleNetwork), "--data-dir", filepath.Join(dir, fmt.Sprint(i)))
		if t.sharing {
			args = append(args, "--share", "--cluster", "bench", "--replica", fmt.Sprint("r", i), "--nats", fmt.Sprintf("nats://198.18.0.%d:4222", 2*i))
		}
		c, err := newCrowd(bin, replicaNodes, args...)
		if err != nil {
			return t, err
		}
		t.all = append(t.all, c)
		if t.sharing {
			if err := c.wire(hub, fmt.Sprintf("198.18.0.%d", 2*i+1), fmt.Sprintf("198.18.0.%d", 2*i), i); err != nil {
				return t, err
			}
		}
		if err := c.start(ctx); err != nil {
			return t, err
		}
		if err := c.fleet.Connect(); err != nil {
			return t, err
		}
	}
	return t, nil
}

// wire connects the host of the aggregator to the hub.
func (c *crowd) wire(hub *netlab.Host, own, other string, i int) error {
	if err := c.Cable("hub", hub, fmt.Sprint("r", i)); err != nil {
		return err
	}
	_, err := c.Run("ip addr add %s peer %s dev hub", own, other)
	if err == nil {
		_, err = hub.Run("ip addr add %s peer %s dev r%d", other, own, i)
	}
	return err
}

func (t *team) stop() {
	for _, c := range t.all {
		c.fleet.Stop()
		c.kill()
		c.Close()
	}
}

// known waits until the replicas know all nodes, and so many owners: each all of them, or all together if they share
// the addresses.
func (t *team) known(ctx context.Context, owners int) error {
	if !t.sharing {
		for _, c := range t.all {
			if err := c.known(ctx, c.nodes, owners); err != nil {
				return err
			}
		}
		return nil
	}
	for deadline := time.Now().Add(allWithin); ; {
		var nodes, served, complete, have, waiting int
		for _, c := range t.all {
			text, err := c.program.Text(ctx, "/metrics")
			if err != nil {
				return fmt.Errorf("%w\n%s", err, c.logged())
			}
			nodes += sum(text, `ipwitness_nodes{state="live"}`)
			served += sum(text, `ipwitness_share_partitions{state="served"}`)
			complete += sum(text, `ipwitness_share_partitions{state="complete"}`)
			have += sum(text, "ipwitness_owners{")
			waiting += sum(text, "ipwitness_share_waiting_bytes ")
		}
		switch {
		case nodes == len(t.all)*replicaNodes && served == pb.Partitions && complete == served && have >= owners && waiting == 0:
			return nil
		case time.Now().After(deadline):
			return &incompleteError{fmt.Sprintf("%d nodes, %d partitions of which %d are complete, %d of %d owners, and %d bytes wait after %s", nodes, served, complete, have, owners, waiting, allWithin), t.all[0].logged()}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// sent returns the bytes that agents have sent to all replicas.
func (t *team) sent() (bytes int64) {
	for _, c := range t.all {
		bytes += c.fleet.Sent()
	}
	return bytes
}

// replicasOf measures a number of replicas, equal ones or such that share the addresses.
func replicasOf(ctx context.Context, bin string, number int, sharing bool) (rows []row, err error) {
	dir, err := os.MkdirTemp("", "ipwitness-bench")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	var hub *netlab.Host
	if sharing {
		if hub, err = netlab.New(); err != nil {
			return nil, err
		}
		defer hub.Close()
		server, err := nats.Binary(".")
		if err != nil {
			return nil, err
		}
		s, err := nats.Start(hub, server, dir, nats.Config{Name: "nats", Listen: "0.0.0.0", Port: 4222})
		if err != nil {
			return nil, err
		}
		defer s.Kill()
	}
	t, err := newTeam(ctx, bin, dir, number, hub)
	defer t.stop()
	if err != nil {
		return nil, err
	}
	if err := t.known(ctx, replicaNodes*scaleOwners); err != nil {
		return nil, err
	}
	return t.measure(ctx)
}

func (t *team) measure(ctx context.Context) ([]row, error) {
	number := len(t.all)
	kind := fmt.Sprintf("%d equal replicas", number)
	switch {
	case t.sharing && number == 1:
		kind = "1 replica with --share"
	case t.sharing:
		kind = fmt.Sprintf("%d replicas with --share", number)
	case number == 1:
		kind = "1 replica"
	}
	tables, err := t.settled(ctx)
	if err != nil {
		return nil, err
	}
	sent, begin := t.sent(), time.Now()
	before, err := cpuOfAll(t.all)
	if err != nil {
		return nil, err
	}
	changes, err := t.moveAddresses(ctx)
	if err != nil {
		return nil, err
	}
	took, moved := time.Since(begin), t.sent()-sent
	after, err := cpuOfAll(t.all)
	if err != nil {
		return nil, err
	}
	last, err := t.settled(ctx)
	if err != nil {
		return nil, err
	}
	each := float64((after - before).Microseconds()) / float64(changes)
	return []row{
		{
			fmt.Sprintf("%s, %d agents report to each: changes that they know, per second", kind, replicaNodes),
			fmt.Sprintf("%.0f/s", float64(changes)/took.Seconds()), "", true,
		},
		{
			"  CPU for each change, of one replica and of all; RSS of the largest replica, before and after that",
			fmt.Sprintf("%.1f µs, %.1f µs; %.0f MiB, %.0f MiB", each/float64(number), each, tables, last), "", true,
		},
		{
			"  traffic that each replica takes: the tables of a node when it connects, and each change",
			fmt.Sprintf("%.1f kB, %.0f bytes", float64(sent)/float64(number)/replicaNodes/1000, float64(moved)/float64(number)/float64(changes)), "", true,
		},
	}, nil
}

// settled returns the RSS of the largest replica, when it falls no longer.
func (t *team) settled(ctx context.Context) (rss float64, err error) {
	for _, c := range t.all {
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

// moveAddresses makes pods take and release addresses, reports each change to the replicas, and waits until they know
// all of them. It returns the number of changes.
func (t *team) moveAddresses(ctx context.Context) (changes int, err error) {
	counts := make([]int, movers)
	g, sending := errgroup.WithContext(ctx)
	for node := range movers {
		g.Go(func() (err error) {
			counts[node], err = t.moveOn(sending, node)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return 0, err
	}
	for _, n := range counts {
		changes += n
	}
	// Each pod ends with the addresses of the last step.
	return changes, t.known(ctx, replicaNodes*scaleOwners+movers*movedTogether)
}

// moveOn makes the first pod of a node take and release its addresses, and take others at the end.
func (t *team) moveOn(ctx context.Context, node int) (changes int, err error) {
	step := func(part int, gone bool) (messages [][]byte, err error) {
		var addresses []netip.Addr
		for i := range movedTogether {
			addresses = append(addresses, netip.AddrFrom4([4]byte{10, byte(200 + part), byte(node), byte(i)})) //nolint:gosec // two parts, few nodes
		}
		for _, c := range t.all {
			m, err := c.fleet.Assignment(node, gone, addresses...)
			if err != nil {
				return nil, err
			}
			messages = append(messages, m)
		}
		return messages, nil
	}
	take, takeErr := step(0, false)
	release, releaseErr := step(0, true)
	others, othersErr := step(1, false)
	if err := errors.Join(takeErr, releaseErr, othersErr); err != nil {
		return 0, err
	}
	send := func(steps ...[][]byte) error {
		for _, messages := range steps {
			for i, c := range t.all {
				if err := c.fleet.Send(ctx, node, messages[i]); err != nil {
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
