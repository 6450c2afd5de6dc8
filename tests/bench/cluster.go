package main

import (
	"context"
	"fmt"
	"time"

	"github.com/ipwitness/ipwitness/tests/netlab"
)

// clusterNodes is the number of nodes with an agent.
const clusterNodes = 3

// benchNode is a node that reports to the aggregator of a site.
type benchNode struct {
	*netlab.Host
	agent  *netlab.Program
	server string // the address of the aggregator
}

// newBenchNode creates the k-th node of a site, and starts its agent.
func newBenchNode(ctx context.Context, bin string, s *site, k int) (*benchNode, error) {
	host, err := netlab.New()
	if err != nil {
		return nil, err
	}
	n := &benchNode{Host: host, server: fmt.Sprintf("198.18.0.%d", 2*k)}
	if err := n.start(ctx, bin, s, k); err != nil {
		n.close()
		return nil, err
	}
	return n, nil
}

func (n *benchNode) start(ctx context.Context, bin string, s *site, k int) error {
	name := fmt.Sprintf("node%d", k)
	own := fmt.Sprintf("198.18.0.%d", 2*k+1)
	if err := n.Boot(fmt.Sprintf("b007%04d-0000-4000-8000-000000000000", k)); err != nil {
		return err
	}
	if err := n.Cable("mgmt", s.Host, name); err != nil {
		return err
	}
	if _, err := n.Run("ip addr add %s peer %s dev mgmt", own, n.server); err != nil {
		return err
	}
	if _, err := s.Run("ip addr add %s peer %s dev %s", n.server, own, name); err != nil {
		return err
	}
	var err error
	n.agent, err = n.Agent(ctx, bin, "--node", name, "--aggregator", n.server+":9640", "--exclude-interfaces", "mgmt")
	return err
}

func (n *benchNode) close() {
	if n.agent != nil {
		n.agent.Kill()
	}
	n.Close()
}

// clusterRows measures from just before the RTM_NEWADDR request on one node, for an address that a
// pod of another node has, until an HTTP client of the aggregator reads the line.
func clusterRows(ctx context.Context, bin string) ([]row, error) {
	s, err := openSite(ctx, func(h *netlab.Host) (*netlab.Program, error) {
		return h.Aggregator(ctx, bin, "--network", "pods=10.9.0.0/16")
	})
	if err != nil {
		return nil, err
	}
	defer s.close()
	var nodes []*benchNode
	for k := range clusterNodes {
		n, err := newBenchNode(ctx, bin, s, k)
		if err != nil {
			return nil, err
		}
		defer n.close()
		nodes = append(nodes, n)
	}

	address := func(i int) string { return fmt.Sprintf("10.9.%d.%d", i/250, i%250+1) }
	second := func(i int) *benchNode { return nodes[(i+1)%clusterNodes] }
	for i := range duplicates {
		a, b := podLines(fmt.Sprintf("a%d", i), address(i)+"/32"), podLines(fmt.Sprintf("b%d", i))
		for _, side := range []struct {
			*benchNode
			lines []string
		}{{nodes[i%clusterNodes], a}, {second(i), b}} {
			for _, line := range side.lines {
				if _, err := side.Run("%s", line); err != nil {
					return nil, err
				}
			}
		}
	}
	if err := s.settled(ctx, 2*duplicates); err != nil {
		return nil, err
	}
	var bare []*stamps
	for _, n := range nodes {
		heard, stop, err := bareReader(n.Host, 1)
		if err != nil {
			return nil, err
		}
		defer stop()
		bare = append(bare, heard)
	}
	hop, err := hopTime(ctx, nodes[0].Host, nodes[0].server, 1000, nil)
	if err != nil {
		return nil, err
	}

	requested := map[string]time.Time{}
	for i := range duplicates {
		at, err := request(second(i).Host, fmt.Sprintf("b%d", i), address(i))
		if err != nil {
			return nil, err
		}
		requested[address(i)] = at
		if err := s.suspected.await(ctx, "SUSPECTED lines", i+1); err != nil {
			return nil, fmt.Errorf("%w\n%s", err, s.program.Log)
		}
	}
	if err := s.confirmed.await(ctx, "CONFIRMED lines", duplicates); err != nil {
		return nil, fmt.Errorf("%w\n%s", err, s.program.Log)
	}
	suspected, confirmed := s.since(requested)
	var floor []time.Duration
	for _, b := range bare {
		floor = append(floor, after(b, requested)...)
	}
	p99, c99 := quantile(suspected, 0.99), quantile(confirmed, 0.99)
	return []row{
		{"On another node: RTM_NEWADDR request to the SUSPECTED line, p50", millis(quantile(suspected, 0.5)), "", true},
		{"  p99", millis(p99), "≤ 5 ms", p99 <= 5*time.Millisecond},
		{"  to the CONFIRMED line minus the settle time, p99", millis(c99), "≤ 20 ms", c99 <= 20*time.Millisecond},
		floorRow(suspected, floor, hop),
	}, nil
}
