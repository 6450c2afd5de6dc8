package aggregator

import (
	"net/netip"
	"testing"
	"testing/synctest"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

func TestANodeThatKubernetesNamesOtherwiseDoesNotOverlapItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{})
		one := verdict.RangeOf(netip.MustParsePrefix("10.244.0.0/24"))
		compare := func(agent, kubernetes string) {
			l.store.mu.Lock()
			defer l.store.mu.Unlock()
			l.store.overlaps.found = make(map[string]struct{})
			l.store.compareGroup([]side{
				{node: kubernetes, Range: one},
				{node: agent, rec: &verdict.Node{Name: agent}, Range: one},
			})
		}
		for agent, kubernetes := range map[string]string{"n1": "n1.example.org", "N1.example.org": "n1", "worker": "Worker"} {
			compare(agent, kubernetes)
			l.wantFindings(agent + " is " + kubernetes)
		}
		compare("n1", "n10")
		l.wantFindings("two nodes", "pod-cidr-overlap 10.244.0.0/24")
	})
}
