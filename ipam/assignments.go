package ipam

import (
	"cmp"
	"slices"
)

// Assignments publishes the nodes that a controller assigns virtual addresses to, as the allocations
// of one pool. It is for a controller with Traits.Assigns. The driver's lock guards it.
type Assignments struct {
	Publisher
	pool string
	// byObject has the assignments of each object, and problems says what is wrong with objects that
	// cannot be read.
	byObject map[Key][]Allocation
	problems map[Key]string
}

// NewAssignments returns no assignments yet. pool is the name of the pool.
func NewAssignments(p Publisher, pool string) *Assignments {
	return &Assignments{Publisher: p, pool: pool, byObject: make(map[Key][]Allocation), problems: make(map[Key]string)}
}

// Set replaces the assignments of an object. problem says what is wrong with it; it concerns no other
// object.
func (s *Assignments) Set(at Key, assigned []Allocation, problem string) {
	before := s.byObject[at]
	if s.byObject[at] = assigned; len(assigned) == 0 {
		delete(s.byObject, at)
	}
	if s.problems[at] = problem; problem == "" {
		delete(s.problems, at)
	}
	if len(s.byObject) > 0 || len(s.problems) > 0 {
		s.Use()
		s.Put(Pool{Name: s.pool}, s.problem(), false)
	}
	for _, al := range assigned {
		if !slices.Contains(before, al) {
			s.Allocate(s.pool, al, 0)
		}
	}
	for _, al := range before {
		if !slices.ContainsFunc(assigned, func(now Allocation) bool { return now.Address == al.Address && now.Location == al.Location }) {
			s.Release(s.pool, al)
		}
	}
	if len(s.byObject) == 0 && len(s.problems) == 0 {
		s.Drop(s.pool)
	}
}

// problem returns the problem of the first object in order that has one; empty if none has.
func (s *Assignments) problem() (text string) {
	var first Key
	for at, problem := range s.problems {
		if text == "" || cmp.Or(cmp.Compare(at.Namespace, first.Namespace), cmp.Compare(at.Name, first.Name)) < 0 {
			first, text = at, problem
		}
	}
	return text
}
