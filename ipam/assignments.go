package ipam

import "slices"

// Assignments publishes the nodes that a controller assigns virtual addresses to, as the allocations
// of one pool. It is for a controller with Traits.Assigns. The driver's lock guards it.
type Assignments struct {
	Publisher
	pool string
	// byObject has the assignments of each object.
	byObject map[Key][]Allocation
	problems Problems
}

// NewAssignments returns no assignments yet. pool is the name of the pool.
func NewAssignments(p Publisher, pool string) *Assignments {
	return &Assignments{Publisher: p, pool: pool, byObject: make(map[Key][]Allocation)}
}

// Set replaces the assignments of an object. problem says what is wrong with it; it concerns no other
// object.
func (s *Assignments) Set(at Key, assigned []Allocation, problem string) {
	before := s.byObject[at]
	if s.byObject[at] = assigned; len(assigned) == 0 {
		delete(s.byObject, at)
	}
	s.problems.Set(at, problem)
	text := s.problems.Text()
	if len(s.byObject) > 0 || text != "" {
		s.Use()
		s.Put(Pool{Name: s.pool}, text, false)
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
	if len(s.byObject) == 0 && text == "" {
		s.Drop(s.pool)
	}
}
