package verdict

import (
	"cmp"
	"slices"
)

// comparison finds the conflicts of an address. The owners must be known.
type comparison struct {
	*evaluation
	grouped []group
	// groupAnswers are the answers for the address with a group MAC.
	groupAnswers []*Claim
}

// A group is the set of live owners in one scope. Owners are indexes.
type group struct {
	scope  extent
	owners []int
	// everywhere is set for a link if the same owners also meet in a wider scope.
	everywhere bool
}

// A member is an owner in a scope, according to one of its claims.
type member struct {
	scope    extent
	owner    int
	assigned bool
}

// groups returns the scopes with live owners that are compared, widest first.
func (j *comparison) groups() []group {
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
		return cmp.Or(compareScopes(a.scope.canonical(), b.scope.canonical()), a.owner-b.owner)
	})
	var groups []group
	for len(members) > 0 {
		n := 1
		for n < len(members) && members[n].scope.canonical() == members[0].scope.canonical() {
			n++
		}
		groups = append(groups, newGroup(members[:n]))
		members = members[n:]
	}
	return j.dropNetworks(groups)
}

// newGroup returns the group of the members of one scope; members must be sorted by owner. For a
// domain, the group is named after the first link on which a kernel has the address. This name does
// not depend on the time and on the other owners in the domain.
func newGroup(members []member) group {
	g := group{scope: members[0].scope.canonical()}
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

// dropNetworks drops discovered networks whose owners also meet on one node or link. The node or
// link is known at once, while it may take a moment until the network of both owners is known. The
// conflict thus has the same ID in either order of events.
func (j *comparison) dropNetworks(groups []group) []group {
	if name, _ := j.declared(); name != "" {
		return groups
	}
	kept := make([]group, 0, len(groups))
	for i := 0; i < len(groups); i++ {
		g, at := groups[i], -1
		if g.scope.Kind == NetworkScope && !j.remembers(g.scope) {
			at = slices.IndexFunc(groups, func(narrow group) bool {
				return narrow.scope.Kind != NetworkScope && slices.Equal(narrow.owners, g.owners)
			})
			if at < 0 {
				groups, at = j.onNode(groups, g)
			}
		}
		if at < 0 {
			kept = append(kept, g)
		} else {
			groups[at].everywhere = true // narrower scopes follow
		}
	}
	return kept
}

// onNode lets the owners in the pod network meet on their node if all of them are on one, and
// returns the index of the node's group. Otherwise, or if the node has other owners, it returns -1.
// That the node routes to a bridge may become known after the networks of the pods on it.
func (j *comparison) onNode(groups []group, pods group) ([]group, int) {
	first := &j.out.Owners[pods.owners[0]]
	if len(pods.owners) < 2 || pods.scope.Name != podNetwork || slices.ContainsFunc(pods.owners, func(i int) bool {
		o := &j.out.Owners[i]
		return !o.Node.Is(first.Node) || o.onOVSPort() // a node does not route to the ports of Open vSwitch
	}) {
		return groups, -1
	}
	node := group{scope: extent{Kind: NodeScope, Node: first.Node.Key()}, owners: pods.owners}
	at, known := slices.BinarySearchFunc(groups, node.scope, func(g group, s extent) int { return compareScopes(g.scope.canonical(), s) })
	switch {
	case !known:
		groups = slices.Insert(groups, at, node)
	case coverage{pods}.covers(groups[at]):
		groups[at] = node
	default:
		return groups, -1
	}
	return groups, at
}

// remembers reports whether a network has an active conflict.
func (j *comparison) remembers(s extent) bool {
	return slices.ContainsFunc(j.in.Conflicts, func(c Memory) bool { return c.Active() && c.Kind == NetworkScope && c.Scope == s.Text() })
}

// virtual reports whether one of the owners is a virtual router.
func virtual(owners []Owner) bool {
	return slices.ContainsFunc(owners, func(o Owner) bool {
		return o.MAC.Virtual() || slices.ContainsFunc(o.Claims, func(c *Claim) bool { return c.MAC.Virtual() })
	})
}
