package aggregator

import (
	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// PoolsOf is for verdict.Tables.
func (s *store) PoolsOf(*verdict.Node) []*verdict.Pool { return nil }

// Subnets is for verdict.Tables.
func (s *store) Subnets(*verdict.Node) []verdict.Subnet { return nil }

// Covered is for verdict.Tables.
func (s *store) Covered(string) bool { return false }
