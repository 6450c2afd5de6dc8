package api

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ipwitness/ipwitness/aggregator/facts"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// ListNodes lists the agents and their health.
func (s *Service) ListNodes(_ context.Context, q *pb.ListNodesRequest) (*pb.ListNodesResponse, error) {
	if err := s.own(q); err != nil {
		return nil, err
	}
	coverage := s.Coverage.Current()
	return &pb.ListNodesResponse{
		Nodes: s.nodes(""), Kubernetes: s.Kubernetes.Status(), Coverage: coverage, Problems: s.Problems(), Election: s.Kubernetes.Election(),
	}, nil
}

// GetNode returns a node by its name.
func (s *Service) GetNode(_ context.Context, q *pb.GetNodeRequest) (*pb.GetNodeResponse, error) {
	if err := s.own(q); err != nil {
		return nil, err
	}
	if q.GetName() != "" {
		for _, n := range s.nodes(q.GetName()) {
			return &pb.GetNodeResponse{Node: n}, nil
		}
	}
	return nil, status.Errorf(codes.NotFound, "no node has the name %q: /v1/nodes lists all nodes", q.GetName())
}

// nodes returns the node with a name, or all nodes by name if the name is empty.
func (s *Service) nodes(name string) []*pb.Node {
	out := []*pb.Node{}
	for some := range slices.Chunk(s.nodesInOrder(name), pageStep) {
		s.Facts.RLock()
		for _, n := range some {
			if slices.Contains(s.Facts.At(n.ID.Place()), n) {
				out = append(out, s.Convert.Node(n))
			}
		}
		s.Facts.RUnlock()
	}
	return out
}

// nodesInOrder returns the nodes with a name, or all nodes if the name is empty, by name and identity.
func (s *Service) nodesInOrder(name string) []*facts.Node {
	type named struct {
		name string
		node *facts.Node
	}
	var all []named
	s.Facts.RLock()
	for n := range s.Facts.Nodes {
		if name == "" || n.Rec.Name == name {
			all = append(all, named{n.Rec.Name, n})
		}
	}
	s.Facts.RUnlock()
	slices.SortFunc(all, func(a, b named) int { return cmp.Or(strings.Compare(a.name, b.name), a.node.ID.Compare(b.node.ID)) })
	nodes := make([]*facts.Node, 0, len(all))
	for _, one := range all {
		nodes = append(nodes, one.node)
	}
	return nodes
}
