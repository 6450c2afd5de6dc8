package kubernetes

import (
	"fmt"
	"slices"
	"testing"

	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

func TestPodsOfTwoNodesWithOneAddress(t *testing.T) {
	l := newLab(t, "two-nodes")
	l.witness()
	l.deploy("web", 2)
	l.deploy("db", 2)

	// Each node gives out its addresses in the same order.
	at := map[string][]pod{}
	for _, p := range l.pods("app") {
		at[p.Address] = append(at[p.Address], p)
	}
	if len(at) != 2 {
		t.Fatalf("addresses of four pods: got %v, want two", at)
	}
	for addr, pods := range at {
		c := l.awaitConflict(addr, ipwitnessv1.Conflict_CONFIRMED)
		if got := fmt.Sprint(c.GetScope().GetKind(), " ", c.GetScope().GetName()); got != "NETWORK pods" {
			t.Errorf("scope of %s: got %s, want NETWORK pods", addr, got)
		}
		var got, want []string
		for _, o := range c.GetOwners() {
			got = append(got, nameOf(o))
		}
		for _, p := range pods {
			want = append(want, l.owner(p))
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("owners of %s: got %v, want %v", addr, got, want)
		}
	}

	// One of the two ends. Where its Deployment makes another one, it gets another
	// address: host-local goes on where it stopped.
	pods := at[l.pods("app=web")[0].Address]
	l.in("delete", "pod", pods[0].Name)
	l.awaitConflict(pods[0].Address, ipwitnessv1.Conflict_RESOLVED)
	l.until("one holder", func() error {
		if got := l.holders(pods[0].Address); !slices.Equal(got, []string{l.owner(pods[1])}) {
			return fmt.Errorf("got %v, want %s", got, l.owner(pods[1]))
		}
		return nil
	})
}
