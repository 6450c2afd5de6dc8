package ipam

import "iter"

// Problems are the problems of objects that cannot be read. Each concerns one object and no other. The
// zero value has none.
type Problems struct {
	by    map[Key]string
	shown Key // one of them
}

// Set replaces the problem of an object; empty for none.
func (p *Problems) Set(at Key, problem string) {
	if problem == "" {
		delete(p.by, at)
	} else {
		if p.by == nil {
			p.by = make(map[Key]string)
		}
		p.by[at] = problem
	}
	if p.by[p.shown] == "" {
		for p.shown = range p.by {
			break
		}
	}
}

// Text returns the problem of one of the objects; empty if none has a problem.
func (p *Problems) Text() string { return p.by[p.shown] }

// Unread publishes the problems of objects of one kind that cannot be read, so that their pools are not
// known. The driver's lock guards it.
type Unread struct {
	Publisher
	Kind Kind
	// Allocates is set if an object may have the only record of an address.
	Allocates bool
	problems  Problems
}

// Set replaces the problem of an object; empty for none.
func (u *Unread) Set(at Key, problem string) {
	before := u.problems.Text()
	if u.problems.Set(at, problem); u.problems.Text() != before {
		u.Unread(u.Kind, u.Allocates, u.problems.Text())
	}
}

// Keep ends the problems of all other objects.
func (u *Unread) Keep(stays func(at Key) bool) {
	for at := range u.problems.by {
		if !stays(at) {
			u.Set(at, "")
		}
	}
}

// UnreadPool returns the pool that stands for objects that cannot be read.
func UnreadPool(ipam string, k Kind, allocates bool, problem string) *Pool {
	return &Pool{IPAM: ipam, Name: k.Name + " objects", State: Known, Problem: problem, Unread: k.Name, Partial: allocates}
}

// Partial reports whether one of the pools that stand for objects of an IPAM has allocations of its other
// pools.
func Partial(unread iter.Seq[*Pool]) bool {
	for p := range unread {
		if p.Partial {
			return true
		}
	}
	return false
}

// Assignments publishes the nodes that a controller assigns virtual addresses to, as the allocations
// of one pool. It is for a controller with Traits.Assigns. The driver's lock guards it.
type Assignments struct {
	Publisher
	pool string
	// byObject has the assignments of each object.
	byObject map[Key][]Record
	problems Problems
}

// NewAssignments returns no assignments yet. pool is the name of the pool.
func NewAssignments(p Publisher, pool string) *Assignments {
	return &Assignments{Publisher: p, pool: pool, byObject: make(map[Key][]Record)}
}

// Set replaces the assignments of an object. problem says what is wrong with it; it concerns no other
// object.
func (s *Assignments) Set(at Key, assigned []Allocation, problem string) {
	before, after := s.byObject[at], make([]Record, 0, len(assigned))
	for _, al := range assigned {
		after = append(after, Record{Pool: s.pool, Allocation: al})
	}
	if s.byObject[at] = after; len(after) == 0 {
		delete(s.byObject, at)
	}
	s.problems.Set(at, problem)
	text := s.problems.Text()
	if len(s.byObject) > 0 || text != "" {
		s.Use()
		s.Put(Pool{Name: s.pool}, text, false)
	}
	Move(s, before, after)
	if len(s.byObject) == 0 && text == "" {
		s.Drop(s.pool)
	}
}
