package tests

import (
	"fmt"
	"net/netip"
	"testing"

	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/sim"
	"github.com/ipwitness/ipwitness/tests/wait"
)

func TestFiftyAgentsReconnectAfterTheAggregatorWasKilled(t *testing.T) {
	slow(t)
	t.Parallel()
	c := newAggregator(t)
	fleet, err := sim.Start(c.Host, grpcServer, sim.Size{Nodes: 50, Owners: 110})
	if err != nil {
		t.Fatal(err)
	}
	defer fleet.Stop()
	c.wantFleet(fleet)
	for range 2 {
		c.program.Kill()
		c.serve()
		c.wantFleet(fleet)
	}
}

// wantFleet waits until the owners are exactly those that a fleet reports, and fails if there is or
// was a conflict.
func (c *cluster) wantFleet(fleet *sim.Fleet) {
	c.t.Helper()
	want := fleet.Holders()
	wrong := "nothing"
	defer func() {
		if c.t.Failed() {
			c.t.Log("of the fleet: ", wrong)
		}
	}()
	wait.Until(c.t, "exactly the owners of the fleet", func() bool {
		owners := c.everyOwner()
		if wrong = fmt.Sprintf("got %d owners, want %d", len(owners), len(want)); len(owners) != len(want) {
			return false
		}
		for _, o := range owners {
			if holder := want[netip.MustParseAddr(o.GetAddress())]; holder != o.GetNode() || o.GetState() != ipwitnessv1.Owner_LIVE {
				wrong = fmt.Sprintf("owner of %s: got node %s, state %s, want node %s, LIVE", o.GetAddress(), o.GetNode(), o.GetState(), holder)
				return false
			}
		}
		return true
	})
	var m ipwitnessv1.ListConflictsResponse
	if err := c.program.Get(c.t.Context(), "/v1/conflicts?all=true", &m); err != nil {
		c.t.Fatal(err)
	}
	if len(m.GetConflicts()) > 0 {
		c.t.Errorf("got %v, want no conflict at any time", m.GetConflicts())
	}
}
