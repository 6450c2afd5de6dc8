package api

import (
	"context"
	"iter"

	"github.com/ipwitness/ipwitness/aggregator/judge"
	"github.com/ipwitness/ipwitness/aggregator/live"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// poolPlace is where a page of pools ends.
type poolPlace struct{ IPAM, Node, Name string }

// walkPools returns a walk of the pools after a place, with their use over time if history is set.
func (s *Service) walkPools(from judge.PoolPlace, history bool) *walk[judge.PoolPlace, *pb.Pool] {
	return &walk[judge.PoolPlace, *pb.Pool]{
		facts: s.Facts, less: judge.PoolPlace.Less, last: &from,
		keys: func(last *judge.PoolPlace) iter.Seq[judge.PoolPlace] {
			return s.Findings.Places().Snapshot().From(*last)
		},
		read: func(at judge.PoolPlace, _ int, into []item[*pb.Pool]) ([]item[*pb.Pool], bool) {
			if !at.Pool.Ended {
				one := live.Pool(&at.Pool.Rec, s.Findings.Use(at.Pool))
				if history {
					one.History = live.PoolHistory(s.Findings.History(at.Pool))
				}
				into = append(into, item[*pb.Pool]{poolPlace{at.IPAM, at.Node, at.Name}, one})
			}
			return into, false
		},
	}
}

// ListPools lists the pools from which IPAM allocates addresses, with their usage.
func (s *Service) ListPools(_ context.Context, q *pb.ListPoolsRequest) (*pb.ListPoolsResponse, error) {
	from, err := ParseToken[poolPlace](q.GetPageToken())
	if err != nil {
		return nil, err
	}
	coverage := s.Coverage.Current()
	pools := NewPage[*pb.Pool](q.GetPageSize())
	next := fill(pools, s.walkPools(judge.PoolPlace{IPAM: from.IPAM, Node: from.Node, Name: from.Name}, q.GetHistory()))
	return &pb.ListPoolsResponse{Pools: pools.Items, NextPageToken: next, Coverage: coverage}, nil
}
