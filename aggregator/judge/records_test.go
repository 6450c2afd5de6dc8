package judge_test

import (
	"net/netip"
	"strconv"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/records"
)

// Messages of agents.

// pod returns a report of a pod with a point-to-point veth and addresses.
func pod(record uint32, addrs ...string) *pb.ReportRequest {
	m := records.Veth(record, 4000+int(record), &pb.Workload{Kind: pb.Workload_POD, Namespace: "default", Name: "p" + strconv.Itoa(int(record))})
	for _, addr := range addrs {
		m.Claims = append(m.Claims, assigned(record, addr).GetClaims()...)
	}
	return m
}

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
func uplink() *pb.ReportRequest { return records.Uplink(9, []byte{2, 2, 0, 0, 0, 1}) }

// announced returns a report of a frame that entered through an uplink.
func announced(addr string, by []byte, count uint32) *pb.ReportRequest {
	return &pb.ReportRequest{Claims: []*pb.ClaimRecord{{
		Address: netip.MustParseAddr(addr).AsSlice(), Kind: pb.Evidence_ANNOUNCED, Namespace: 1, Index: 9, Mac: by, Link: "eth0", Count: count,
	}}}
}
