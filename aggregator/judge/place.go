package judge

import (
	"cmp"

	"github.com/ipwitness/ipwitness/aggregator/facts"
)

// PoolPlace is a pool with its sort key in lists.
type PoolPlace struct {
	IPAM, Node, Name string
	Pool             *facts.Pool
}

// PoolPlaceOf returns the place of a pool.
func PoolPlaceOf(p *facts.Pool) PoolPlace {
	at := PoolPlace{IPAM: p.Rec.IPAM, Name: p.Rec.Name, Pool: p}
	if p.Node != nil {
		at.Node = p.Node.Rec.Name
	}
	return at
}

// Less reports whether a pool comes before another one in lists.
func (p PoolPlace) Less(other PoolPlace) bool { return p.Compare(other) < 0 }

// Compare orders places by IPAM, node and name. If two nodes briefly share a name, their pools are
// ordered by the identities of the nodes. A place without a pool comes last.
func (p PoolPlace) Compare(other PoolPlace) int {
	order := cmp.Or(cmp.Compare(p.IPAM, other.IPAM), cmp.Compare(p.Node, other.Node), cmp.Compare(p.Name, other.Name))
	switch {
	case order != 0 || p.Pool == other.Pool:
		return order
	case p.Pool == nil:
		return 1
	case other.Pool == nil:
		return -1
	case p.Pool.Node == nil || other.Pool.Node == nil:
		return 0
	}
	return p.Pool.Node.ID.Compare(other.Pool.Node.ID)
}
