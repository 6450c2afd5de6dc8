package ipam

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

// Unplaced publishes the problems of objects of one kind whose pools are not known, because the objects
// cannot be read. Their pool has no addresses. The driver's lock guards it.
type Unplaced struct {
	Publisher
	Kind     Kind
	problems Problems
}

// UnplacedPool is how the names of the pools of Unplaced end, after the name of the kind.
const UnplacedPool = " objects"

// Set replaces the problem of an object; empty for none.
func (u *Unplaced) Set(at Key, problem string) {
	before := u.problems.Text()
	u.problems.Set(at, problem)
	u.publish(before)
}

// Replace replaces the problems of all objects.
func (u *Unplaced) Replace(all map[Key]string) {
	before := u.problems.Text()
	u.problems = Problems{}
	for at, problem := range all {
		u.problems.Set(at, problem)
	}
	u.publish(before)
}

// publish publishes the problems, if they are not those before.
func (u *Unplaced) publish(before string) {
	switch text := u.problems.Text(); text {
	case before:
	case "":
		u.Drop(u.Kind.Name + UnplacedPool)
	default:
		u.Put(Pool{Name: u.Kind.Name + UnplacedPool}, text, false)
	}
}
