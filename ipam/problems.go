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
	u.problems.Set(at, problem)
	u.publish(before)
}

// Replace replaces the problems of all objects.
func (u *Unread) Replace(all map[Key]string) {
	before := u.problems.Text()
	u.problems = Problems{}
	for at, problem := range all {
		u.problems.Set(at, problem)
	}
	u.publish(before)
}

// publish publishes the problems, if they are not those before.
func (u *Unread) publish(before string) {
	if text := u.problems.Text(); text != before {
		u.Unread(u.Kind, u.Allocates, text)
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
