package kube

import (
	"net/netip"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

type NodeRange struct {
	Node   string
	Prefix netip.Prefix
}

func (c *Cluster) NodeRanges() []NodeRange                                  { return nil }
func (c *Cluster) NodesCovered(reports func(string) bool) (all, known bool) { return false, false }
func (c *Cluster) AnnounceFinding(f *pb.Finding, over bool)                 {}
