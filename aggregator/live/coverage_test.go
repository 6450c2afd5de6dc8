package live

import (
	"log/slog"
	"testing"

	"github.com/ipwitness/ipwitness/aggregator/facts"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/calico"
	"github.com/ipwitness/ipwitness/ipam/hostlocal"
	"github.com/ipwitness/ipwitness/ipam/podips"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// Findings wait for the records in the Kubernetes API that they are found by, and for no others.
func TestAFindingAwaitsOnlyTheRecordsThatItNeeds(t *testing.T) {
	node := &verdict.Node{Name: "n1"}
	owners := []verdict.Owner{{Node: node}}
	local := &verdict.Pool{Pool: ipam.Pool{IPAM: hostlocal.Name, Name: "pods"}, Node: node}
	cluster := &verdict.Pool{Pool: ipam.Pool{IPAM: calico.IPAM.Name, Name: "pods"}}
	f := facts.New(facts.Config{
		Policy: &verdict.Policy{}, Log: slog.New(slog.DiscardHandler), Clock: func() verdict.Stamp { return 1 }, Queues: 1,
	})
	for name, test := range map[string]struct {
		finding verdict.Finding
		// pods, calico and whereabouts are set if the finding waits for pods and nodes, and for the records of the IPAMs.
		pods, calico, whereabouts bool
	}{
		"a leak in a node's pool":    {verdict.Finding{Kind: verdict.FindingLeaked, Pool: local}, false, false, false},
		"a leak in a cluster's pool": {verdict.Finding{Kind: verdict.FindingLeaked, Pool: cluster, Owners: owners}, true, true, false},
		"frames":                     {verdict.Finding{Kind: verdict.FindingAddressSpoofed, Owners: owners}, false, false, false},
		"a pod":                      {verdict.Finding{Kind: verdict.FindingOrphanedSandbox, Owners: owners}, true, false, false},
		"a pod with a free address":  {verdict.Finding{Kind: verdict.FindingOrphanedSandbox, Pool: cluster, Owners: owners}, true, true, false},
		"an endpoint":                {verdict.Finding{Kind: verdict.FindingEndpointOfFormerOwner, Owners: owners}, true, false, false},
		"ranges":                     {verdict.Finding{Kind: verdict.FindingRangesOverlap, Overlap: &verdict.Overlap{Nodes: []string{"n1"}}}, true, true, true},
		"no node":                    {verdict.Finding{Kind: verdict.FindingPoolExhaustion, Pool: cluster}, true, true, true},
	} {
		for ipamName, want := range map[string]bool{podips.IPAM.Name: test.pods, calico.IPAM.Name: test.calico, "whereabouts": test.whereabouts} {
			s := &Coverage{CoverageConfig: CoverageConfig{Facts: f}, at: 1, coverage: &pb.Coverage{}, awaited: []*pb.Awaited{{What: pb.Awaited_RECORDS, Ipam: ipamName}}}
			if got := s.Awaits(&test.finding); got != want {
				t.Errorf("%s: awaits %s: %t, want %t", name, ipamName, got, want)
			}
		}
		for _, one := range []*pb.Awaited{{What: pb.Awaited_JOURNAL}, {What: pb.Awaited_REPORT, Node: "n1"}} {
			s := &Coverage{CoverageConfig: CoverageConfig{Facts: f}, at: 1, coverage: &pb.Coverage{}, awaited: []*pb.Awaited{one}}
			if !s.Awaits(&test.finding) {
				t.Errorf("%s does not await %v", name, one)
			}
		}
	}
}
