package verdict

import (
	"cmp"
	"slices"
)

// comparing finds the conflicts of an address, whose owners are known.
type comparing struct {
	*judging
	grouped []group
}

// group is the owners alive in one scope, by their position.
type group struct {
	scope  extent
	owners []int
	// everywhere is set for a link if the same owners also meet in a wider scope.
	everywhere bool
}

// member is one owner in one scope, as one of its claims has it there.
type member struct {
	scope    extent
	owner    int
	assigned bool
}

// groups are the scopes in which somebody is alive and compared, widest first.
func (j *comparing) groups() []group {
	var members []member
	for i := range j.out.Owners {
		o := &j.out.Owners[i]
		if o.Excluded != nil || !o.Alive() {
			continue
		}
		for _, c := range o.Claims {
			j.scopes(o, c, func(s extent) { members = append(members, member{s, i, c.Counts()}) })
		}
	}
	slices.SortFunc(members, func(a, b member) int {
		return cmp.Or(compareScopes(a.scope.whole(), b.scope.whole()), a.owner-b.owner)
	})
	var groups []group
	for len(members) > 0 {
		n := 1
		for n < len(members) && members[n].scope.whole() == members[0].scope.whole() {
			n++
		}
		groups = append(groups, newGroup(members[:n]))
		members = members[n:]
	}
	return j.leaveOut(groups)
}

// newGroup makes a group of the members of one scope, in order of owners. Of the
// links of a domain it has the name of the first on which a kernel has the
// address: so it has one name wherever and whenever it is found, and whoever else
// is on the domain.
func newGroup(members []member) group {
	g := group{scope: members[0].scope.whole()}
	named := false
	for i, m := range members {
		if i == 0 || members[i-1].owner != m.owner {
			g.owners = append(g.owners, m.owner)
		}
		if m.assigned && (!named || compareScopes(m.scope, g.scope) < 0) {
			g.scope, named = m.scope, true
		}
	}
	return g
}

// leaveOut leaves out the network of pods where the same owners meet on one node
// or link: that is known at once, and it is not known at once who is a pod. So what
// is found there has one id, whatever came first.
func (j *comparing) leaveOut(groups []group) []group {
	if len(groups) == 0 || groups[0].scope.Kind != NetworkScope {
		return groups
	}
	if name, _ := j.declared(); name != "" {
		return groups
	}
	pods := groups[0]
	for i := range j.in.Conflicts {
		if c := &j.in.Conflicts[i]; c.Active() && c.Kind == NetworkScope && c.Scope == pods.scope.Text() {
			return groups
		}
	}
	if at := slices.IndexFunc(groups[1:], func(g group) bool { return slices.Equal(g.owners, pods.owners) }); at >= 0 {
		groups[1+at].everywhere = true
		return groups[1:]
	}
	return groups
}

// virtual tells whether one of the owners is a virtual router.
func virtual(owners []Owner) bool {
	return slices.ContainsFunc(owners, func(o Owner) bool {
		return o.MAC.Virtual() || slices.ContainsFunc(o.Claims, func(c *Claim) bool { return c.MAC.Virtual() })
	})
}
