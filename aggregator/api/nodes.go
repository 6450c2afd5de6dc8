package api

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/ipwitness/ipwitness/aggregator/facts"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// ListNodes lists the agents and their health.
func (s *Service) ListNodes(context.Context, *pb.ListNodesRequest) (*pb.ListNodesResponse, error) {
	coverage := s.Coverage.Current()
	out := &pb.ListNodesResponse{Nodes: []*pb.Node{}, Kubernetes: s.Kubernetes.Status(), Coverage: coverage, Problems: s.Problems(), Election: s.Kubernetes.Election()}
	for some := range slices.Chunk(s.nodesInOrder(), pageStep) {
		s.Facts.RLock()
		for _, n := range some {
			if slices.Contains(s.Facts.At(n.ID.Place()), n) {
				out.Nodes = append(out.Nodes, s.Convert.Node(n))
			}
		}
		s.Facts.RUnlock()
	}
	return out, nil
}

// nodesInOrder returns all nodes by name and identity.
func (s *Service) nodesInOrder() []*facts.Node {
	type named struct {
		name string
		node *facts.Node
	}
	var all []named
	s.Facts.RLock()
	for n := range s.Facts.Nodes {
		all = append(all, named{n.Rec.Name, n})
	}
	s.Facts.RUnlock()
	slices.SortFunc(all, func(a, b named) int { return cmp.Or(strings.Compare(a.name, b.name), a.node.ID.Compare(b.node.ID)) })
	nodes := make([]*facts.Node, 0, len(all))
	for _, one := range all {
		nodes = append(nodes, one.node)
	}
	return nodes
}
