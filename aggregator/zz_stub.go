package aggregator

import (
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

func allocationProto(al *verdict.Allocation) *pb.Allocation { return &pb.Allocation{Ipam: al.Pool.IPAM} }
