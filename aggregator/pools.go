package aggregator

import (
	"cmp"
	"context"
	"encoding/base64"
	"iter"
	"strings"

	"github.com/ipwitness/ipwitness/aggregator/facts"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// poolPlace is where a pool is in the order of lists, and the pool.
type poolPlace struct {
	ipam, node, name string
	pool             *facts.Pool
}

func poolPlaceOf(p *facts.Pool) poolPlace {
	at := poolPlace{ipam: p.Rec.IPAM, name: p.Rec.Name, pool: p}
	if p.Node != nil {
		at.node = p.Node.Rec.Name
	}
	return at
}

func (p poolPlace) less(other poolPlace) bool { return p.compare(other) < 0 }

// compare orders places by IPAM, node and name. Two nodes may have one name for a moment: their
// pools are in the order of the nodes' identities, and a place without a pool is behind them.
func (p poolPlace) compare(other poolPlace) int {
	order := cmp.Or(cmp.Compare(p.ipam, other.ipam), cmp.Compare(p.node, other.node), cmp.Compare(p.name, other.name))
	switch {
	case order != 0 || p.pool == other.pool:
		return order
	case p.pool == nil:
		return 1
	case other.pool == nil:
		return -1
	case p.pool.Node == nil || other.pool.Node == nil:
		return 0
	}
	return p.pool.Node.ID.Compare(other.pool.Node.ID)
}

func (p poolPlace) token() string {
	return base64.RawURLEncoding.EncodeToString([]byte(p.ipam + "\n" + p.node + "\n" + p.name))
}

func parsePoolPlace(token string) (p poolPlace, err error) {
	if token == "" {
		return p, nil
	}
	raw, err := base64.RawURLEncoding.DecodeString(token)
	parts := strings.Split(string(raw), "\n")
	if err != nil || len(parts) != 3 {
		return p, errPageToken
	}
	return poolPlace{ipam: parts[0], node: parts[1], name: parts[2]}, nil
}

// walkPools returns a walk of the pools that come after a place.
func (s *store) walkPools(from poolPlace) *walk[poolPlace, *pb.Pool] {
	return &walk[poolPlace, *pb.Pool]{
		store: s, less: poolPlace.less, last: &from,
		keys: func(last *poolPlace) iter.Seq[poolPlace] { return s.pools.inOrder.Snapshot().From(*last) },
		read: func(at poolPlace, _ int, into []item[*pb.Pool]) ([]item[*pb.Pool], bool) {
			if !at.pool.Ended {
				into = append(into, item[*pb.Pool]{at, poolProto(&at.pool.Rec, s.use(at.pool))})
			}
			return into, false
		},
	}
}

// ListPools lists what IPAM gives addresses from, and how full it is.
func (w witness) ListPools(_ context.Context, q *pb.ListPoolsRequest) (*pb.ListPoolsResponse, error) {
	from, err := parsePoolPlace(q.GetPageToken())
	if err != nil {
		return nil, err
	}
	coverage := w.store.currentCoverage()
	pools := newPage[*pb.Pool](q.GetPageSize())
	next := fill(pools, w.store.walkPools(from))
	return &pb.ListPoolsResponse{Pools: pools.items, NextPageToken: next, Coverage: coverage}, nil
}
