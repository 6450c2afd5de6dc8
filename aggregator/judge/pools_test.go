package judge

import (
	"slices"
	"testing"

	"github.com/ipwitness/ipwitness/aggregator/kube"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/calico"
)

func TestAPoolThatIsMadeAgainInOneStepIsListed(t *testing.T) {
	w := newWorld(t, nil)
	p := kube.IPAMChange{Pool: &verdict.Pool{Pool: ipam.Pool{IPAM: calico.IPAM.Name, Name: "p", State: ipam.Known}}}
	gone := p
	gone.Gone = true
	for what, test := range map[string]struct {
		changes []kube.IPAMChange
		want    int
	}{"made": {[]kube.IPAMChange{p}, 1}, "made again": {[]kube.IPAMChange{gone, p}, 1}, "removed": {[]kube.IPAMChange{gone}, 0}} {
		w.facts.IPAMChanged([]kube.IPAMChange{p})
		w.facts.IPAMChanged(test.changes)
		if got := slices.Collect(w.Places().Snapshot().From(PoolPlace{})); len(got) != test.want {
			t.Errorf("%s: got %v, want %d", what, got, test.want)
		}
	}
}
