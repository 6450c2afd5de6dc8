package shard_test

import (
	"net/netip"
	"strconv"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// Messages of agents.

func port(record uint32) string { return "veth" + strconv.Itoa(int(record)) }

// pod returns a report of a pod with a point-to-point veth and addresses.
func pod(record uint32, addrs ...string) *pb.ReportRequest {
	m := &pb.ReportRequest{
		Namespaces: []*pb.NamespaceRecord{{Id: record, Netns: strconv.Itoa(4000 + int(record)), Workload: &pb.Workload{Kind: pb.Workload_POD, Namespace: "default", Name: "p" + strconv.Itoa(int(record))}}},
		Links:      []*pb.LinkRecord{{Name: port(record), Kind: pb.LinkRecord_POINT_TO_POINT}},
		Interfaces: []*pb.InterfaceRecord{
			{Namespace: record, Index: 2, Name: "eth0", Mac: mac(record), Attachment: pb.InterfaceRecord_PEER, Link: port(record)},
			{Namespace: 1, Index: 100 + record, Name: port(record), Mac: []byte{2, 1, 0, 0, 0, byte(record)}, Attachment: pb.InterfaceRecord_OWN, Link: port(record), PeerNamespace: record},
		},
	}
	for _, addr := range addrs {
		m.Claims = append(m.Claims, assigned(record, addr).GetClaims()...)
	}
	return m
}

func mac(record uint32) []byte { return []byte{2, 0, 0, 0, 0, byte(record)} }

// assigned returns a report of an address on the interface of a pod.
func assigned(record uint32, addr string) *pb.ReportRequest {
	return &pb.ReportRequest{Claims: []*pb.ClaimRecord{{
		Address: netip.MustParseAddr(addr).AsSlice(), Kind: pb.Evidence_ASSIGNED, Namespace: record, Index: 2, Count: 1, PrefixLength: 24,
	}}}
}

// gone marks the claims of a message as ended.
func gone(m *pb.ReportRequest) *pb.ReportRequest {
	for _, c := range m.GetClaims() {
		c.Gone = true
	}
	return m
}

// uplink returns a report of the uplink of a node.
func uplink() *pb.ReportRequest {
	return &pb.ReportRequest{
		Links:      []*pb.LinkRecord{{Name: "eth0", Kind: pb.LinkRecord_UPLINK}},
		Interfaces: []*pb.InterfaceRecord{{Namespace: 1, Index: 9, Name: "eth0", Mac: []byte{2, 2, 0, 0, 0, 1}, Attachment: pb.InterfaceRecord_OWN, Link: "eth0", Uplink: true}},
	}
}

// announced returns a report of a frame that entered through an uplink.
func announced(addr string, by []byte, count uint32) *pb.ReportRequest {
	return &pb.ReportRequest{Claims: []*pb.ClaimRecord{{
		Address: netip.MustParseAddr(addr).AsSlice(), Kind: pb.Evidence_ANNOUNCED, Namespace: 1, Index: 9, Mac: by, Link: "eth0", Count: count,
	}}}
}
