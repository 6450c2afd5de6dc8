package show

import (
	"time"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// incidents returns lost records, a duplicate, and leaked allocations.
func incidents() []*pb.Incident {
	return []*pb.Incident{
		{
			Id: "3ee4lhidss5ghev2", Cause: "ipam-state-lost", Severity: pb.Finding_CRITICAL, Nodes: []string{"worker-1"}, AddressCount: 12, Confirmed: 1, Acknowledged: 1, Findings: 13,
			Summary: "IPAM records lost on worker-1: 12 addresses, 2 held twice.", Addresses: []string{"10.244.0.2", "10.244.0.3", "10.244.0.4", "10.244.0.7"},
			DetectedAt: at(3 * time.Minute), Pool: &pb.Pool{Ipam: "host-local", Name: "cbr0", Node: "worker-1"}, Runbook: "https://example.com/ipam-state-lost.md",
			Remedy: []*pb.Action{{Text: "Restore the records.", Command: "ipwitness audit --fix-plan > plan.sh"}},
		},
		{
			Id: "aaaabbbbccccdddd", Cause: "unknown", Severity: pb.Finding_WARNING, Nodes: []string{"worker-1"}, AddressCount: 1, Suspected: 1,
			Summary: "192.168.1.5 is claimed alternately by 2 devices on link br0 of node worker-1.", Addresses: []string{"192.168.1.5"}, DetectedAt: at(time.Minute), Conflict: "b4c5d6",
		},
		{
			Id: "eeeeffff22223333", Cause: "leaked", Severity: pb.Finding_INFO, AddressCount: 2, Findings: 2, Summary: "Leaked allocations: 2 addresses.",
			Addresses: []string{"192.0.2.3", "192.0.2.4"}, DetectedAt: at(time.Hour),
		},
	}
}
