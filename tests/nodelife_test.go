package tests

import "testing"

func TestSmokeCluster(t *testing.T) {
	c := newCluster(t, 3)
	c.shared()
	c.plant()
	for _, n := range c.allNodes() {
		t.Log(n)
	}
	for _, o := range c.everyOwner() {
		t.Log(o.GetAddress(), o.GetNode(), o.GetInterface(), o.GetWorkload().GetName(), o.GetMac(), o.GetState(), o.GetScope(), o.GetExcluded())
	}
}
