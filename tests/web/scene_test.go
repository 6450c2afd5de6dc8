package web

import (
	"context"
	"net/netip"
	"testing"

	"github.com/ipwitness/ipwitness/tests/netlab"
	"github.com/ipwitness/ipwitness/tests/sim"
)

// scene is a cluster with something to see on every page: a real node whose IPAM has lost its
// records, simulated nodes of which two hold one address, and a node that is not heard any more.
type scene struct {
	*host
	fleet, lost *sim.Fleet
	cni         *netlab.CNI
}

// firstNodes is the number of simulated nodes that report to the end, and podsPerNode the number of
// their pods, plus the node itself.
const firstNodes, podsPerNode = 10, 28

// calm starts the cluster of the scene in good order.
func calm(t *testing.T) *scene {
	t.Helper()
	s := &scene{host: newHost(t)}
	s.serve("aggregator", "--network", "pods=10.0.0.0/8", "--data-dir", "/var/lib/ipwitness")
	agent, err := s.Agent(t.Context(), binary, "--node", "node-12", "--aggregator", "127.0.0.1:9640")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(agent.Kill)
	if s.cni, err = s.CNI(netlab.PTP); err != nil {
		t.Fatal(err)
	}
	s.pods("web-1", "web-2", "web-3", "cache-1")
	s.fleet = s.simulate(sim.Size{First: 1, Nodes: firstNodes, Owners: podsPerNode, IPAM: true})
	s.lost = s.simulate(sim.Size{First: 1 + firstNodes, Nodes: 1, Owners: podsPerNode, IPAM: true})
	return s
}

// pods starts pods on the real node.
func (s *scene) pods(names ...string) {
	s.t.Helper()
	for _, name := range names {
		if err := s.cni.Add(name); err != nil {
			s.t.Fatal(err)
		}
	}
}

// simulate starts simulated agents.
func (s *scene) simulate(size sim.Size) *sim.Fleet {
	s.t.Helper()
	f, err := sim.Start(s.Host, "127.0.0.1:9640", size)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(f.Stop)
	return f
}

// accident plays what goes wrong in the scene.
func (s *scene) accident(ctx context.Context) {
	s.t.Helper()
	if err := s.cni.Forget(); err != nil {
		s.t.Fatal(err)
	}
	s.pods("api-1", "api-2")
	shared := netip.MustParseAddr(s.fleet.Address(4, 3))
	if err := s.fleet.Assign(ctx, 7, false, shared); err != nil {
		s.t.Fatal(err)
	}
	if err := s.fleet.Wipe(ctx, 2); err != nil {
		s.t.Fatal(err)
	}
	if err := s.fleet.Free(ctx, 8, 5); err != nil {
		s.t.Fatal(err)
	}
	s.lost.Stop()
}
