// Package records creates agent reports for the tests of the aggregator.
package records

import (
	"strconv"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// Port returns the name of the host's end of the veth of a pod.
func Port(record uint32) string { return "veth" + strconv.Itoa(int(record)) }

// MAC returns the MAC of a pod's eth0.
func MAC(record uint32) []byte { return []byte{2, 0, 0, 0, byte(record >> 8), byte(record)} }

// Veth returns the records of a pod with a point-to-point veth: its namespace, both ends of the
// veth, their link, and claims. The pod's end has index 2 in the namespace of that record, and
// the host's end index 100 + record in namespace 1.
func Veth(record uint32, netns int, pod *pb.Workload, claims ...*pb.ClaimRecord) *pb.ReportRequest {
	port := Port(record)
	return &pb.ReportRequest{
		Namespaces: []*pb.NamespaceRecord{{Id: record, Netns: strconv.Itoa(netns), Workload: pod}},
		Links:      []*pb.LinkRecord{{Name: port, Kind: pb.LinkRecord_POINT_TO_POINT}},
		Interfaces: []*pb.InterfaceRecord{
			{
				Namespace: record, Index: 2, Name: "eth0", Kind: "veth", Mac: MAC(record),
				Attachment: pb.InterfaceRecord_PEER, Link: port, HostInterface: port,
			},
			{
				Namespace: 1, Index: 100 + record, Name: port, Kind: "veth", Mac: []byte{2, 1, 0, 0, 0, byte(record)},
				Attachment: pb.InterfaceRecord_OWN, Link: port, PeerNamespace: record,
			},
		},
		Claims: claims,
	}
}

// Uplink returns the records of a node's eth0, which is in namespace 1.
func Uplink(index uint32, mac []byte) *pb.ReportRequest {
	return &pb.ReportRequest{
		Links: []*pb.LinkRecord{{Name: "eth0", Kind: pb.LinkRecord_UPLINK}},
		Interfaces: []*pb.InterfaceRecord{{
			Namespace: 1, Index: index, Name: "eth0", Mac: mac, Attachment: pb.InterfaceRecord_OWN, Link: "eth0", Uplink: true,
		}},
	}
}

// Claims returns a report of claims only.
func Claims(claims ...*pb.ClaimRecord) *pb.ReportRequest { return &pb.ReportRequest{Claims: claims} }

// Merge appends the records of other reports to those of the first report, and returns it.
func Merge(first *pb.ReportRequest, others ...*pb.ReportRequest) *pb.ReportRequest {
	for _, m := range others {
		first.Namespaces = append(first.Namespaces, m.Namespaces...)
		first.Links = append(first.Links, m.Links...)
		first.Interfaces = append(first.Interfaces, m.Interfaces...)
		first.Claims = append(first.Claims, m.Claims...)
		first.Pools = append(first.Pools, m.Pools...)
		first.Allocations = append(first.Allocations, m.Allocations...)
		first.Beliefs = append(first.Beliefs, m.Beliefs...)
	}
	return first
}
