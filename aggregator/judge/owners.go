package judge

import (
	"github.com/ipwitness/ipwitness/aggregator/facts"
	"github.com/ipwitness/ipwitness/aggregator/index"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// A Reader returns the owners of addresses. Use Shards.Reader. A Reader is not safe for concurrent
// use.
type Reader struct {
	shards  *Shards
	builder *facts.Builder
	judge   *verdict.Judge
}

// Reader returns a new Reader.
func (s *Shards) Reader() *Reader {
	return &Reader{s, s.Facts.Builder(), verdict.NewJudge(s.Policy)}
}

// OwnersOf returns the owners of an address as they were last published. The caller holds the
// facts. The result is valid until the next call.
func (r *Reader) OwnersOf(a index.Address) []verdict.Owner {
	s := r.shards
	if owners, kept := s.Conflicts.Owners(a); kept {
		return owners
	}
	if owners, derived := s.Facts.Before(a); derived {
		return owners
	}
	return r.judge.Judge(r.builder.Case(a, false)).Owners
}
