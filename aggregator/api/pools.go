package api

import (
	"context"
	"encoding/base64"
	"iter"
	"strings"

	"github.com/ipwitness/ipwitness/aggregator/convert"
	"github.com/ipwitness/ipwitness/aggregator/findings"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// poolPlace is where a page of pools ends.
type poolPlace findings.PoolPlace

func (p poolPlace) token() string {
	return base64.RawURLEncoding.EncodeToString([]byte(p.IPAM + "\n" + p.Node + "\n" + p.Name))
}

func parsePoolPlace(token string) (p findings.PoolPlace, err error) {
	if token == "" {
		return p, nil
	}
	raw, err := base64.RawURLEncoding.DecodeString(token)
	parts := strings.Split(string(raw), "\n")
	if err != nil || len(parts) != 3 {
		return p, ErrPageToken
	}
	return findings.PoolPlace{IPAM: parts[0], Node: parts[1], Name: parts[2]}, nil
}

// walkPools returns a walk of the pools after a place, with their use over time if history is set.
func (s *Service) walkPools(from findings.PoolPlace, history bool) *walk[findings.PoolPlace, *pb.Pool] {
	return &walk[findings.PoolPlace, *pb.Pool]{
		facts: s.Facts, less: findings.PoolPlace.Less, last: &from,
		keys: func(last *findings.PoolPlace) iter.Seq[findings.PoolPlace] {
			return s.Findings.Pools.InOrder().Snapshot().From(*last)
		},
		read: func(at findings.PoolPlace, _ int, into []item[*pb.Pool]) ([]item[*pb.Pool], bool) {
			if !at.Pool.Ended {
				one := convert.Pool(&at.Pool.Rec, s.Findings.Pools.Use(at.Pool))
				if history {
					one.History = convert.PoolHistory(s.Findings.Pools.History(at.Pool))
				}
				into = append(into, item[*pb.Pool]{poolPlace(at), one})
			}
			return into, false
		},
	}
}

// ListPools lists the pools from which IPAM allocates addresses, with their usage.
func (s *Service) ListPools(_ context.Context, q *pb.ListPoolsRequest) (*pb.ListPoolsResponse, error) {
	from, err := parsePoolPlace(q.GetPageToken())
	if err != nil {
		return nil, err
	}
	coverage := s.Coverage.Current()
	pools := NewPage[*pb.Pool](q.GetPageSize())
	next := fill(pools, s.walkPools(from, q.GetHistory()))
	return &pb.ListPoolsResponse{Pools: pools.Items, NextPageToken: next, Coverage: coverage}, nil
}
