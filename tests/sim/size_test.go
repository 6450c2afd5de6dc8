package sim

import (
	"testing"

	"google.golang.org/protobuf/proto"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// BenchmarkSnapshot measures the bytes of the snapshot of a node with 110 pods, by the kinds of its
// records.
func BenchmarkSnapshot(b *testing.B) {
	var a *agent
	for b.Loop() {
		a = newAgent(7, Size{Nodes: 5000, Owners: 111, LinkLocal: true, IPAM: true})
	}
	t := a.table
	for _, part := range []struct {
		unit   string
		fields *pb.ReportRequest
	}{
		{"namespaces", &pb.ReportRequest{Namespaces: t.GetNamespaces()}},
		{"interfaces", &pb.ReportRequest{Interfaces: t.GetInterfaces()}},
		{"links", &pb.ReportRequest{Links: t.GetLinks()}},
		{"claims", &pb.ReportRequest{Claims: t.GetClaims()}},
		{"allocations", &pb.ReportRequest{Pools: t.GetPools(), Allocations: t.GetAllocations()}},
		{"status", &pb.ReportRequest{Status: t.GetStatus()}},
	} {
		b.ReportMetric(float64(proto.Size(part.fields)), part.unit+"-B")
	}
	b.ReportMetric(float64(proto.Size(t)), "snapshot-B")
}
