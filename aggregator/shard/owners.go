package shard

import (
	"github.com/ipwitness/ipwitness/aggregator/facts"
	"github.com/ipwitness/ipwitness/aggregator/index"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// OwnersOf returns the owners of an address as they were last published. The facts are held, and
// the result is valid for as long as the case that the builder has.
func (s *Shards) OwnersOf(b *facts.Builder, a index.Address) []verdict.Owner {
	if owners, kept := s.Conflicts.Owners(a); kept {
		return owners
	}
	if owners, derived := s.Facts.Before(a); derived {
		return owners
	}
	return s.Policy.Judge(b.Case(a, false)).Owners
}
