package verdict

import (
	"cmp"
	"slices"
)

// scopes yields the scopes in which one claim of an owner is compared.
// (Declared and discovered networks belong here, as the widest of them.)
func (j *judging) scopes(o *Owner, c *Claim, yield func(Scope)) {
	a := c.Interface.Attachment
	if a == Local || (a == Private && !c.Wire()) || c.Kind == Believed || c.Weak() {
		return
	}
	link := c.Interface.Link
	if c.Wire() {
		link = c.Link
	}
	if !j.in.Address.IsLinkLocalUnicast() && routed(o, c, link) {
		yield(Scope{Kind: NodeScope, Node: c.Node(), Name: c.Interface.VRF})
	}
	if link != nil {
		yield(Scope{Kind: LinkScope, Node: link.Node, Name: link.Name})
	}
}

// routed tells whether the node itself routes to the interface that has the
// address: then it must be unique on the whole node.
func routed(o *Owner, c *Claim, link *Link) bool {
	reached := link != nil && (link.Kind == PointToPoint || link.Kind == Bridge && link.Routed)
	if c.Wire() {
		// What enters by a namespace's own port, or a virtual machine's, stands
		// where its interface does; what the node's own hardware address shows
		// does not stand where it was seen.
		return reached && !c.Interface.Uplink && (c.Interface.Peer != 0 || o.Namespace == nil && c.Interface.Kind == tap)
	}
	switch c.Interface.Attachment {
	case Own:
		return true
	case Peer:
		return reached
	}
	return false
}

// tap is the kind of the interfaces that virtual machines are behind.
const tap = "tun"

// compareScopes orders scopes, the widest first.
func compareScopes(a, b Scope) int {
	if c := cmp.Compare(b.Kind, a.Kind); c != 0 {
		return c
	}
	if a.Node != b.Node && a.Node != nil && b.Node != nil {
		if c := compareNodes(a.Node, b.Node); c != 0 {
			return c
		}
	}
	return cmp.Compare(a.Name, b.Name)
}

// group is the owners alive in one scope, by their position.
type group struct {
	scope  Scope
	owners []int
}

// groups are the scopes in which somebody is alive and compared, widest first.
func (j *judging) groups() []group {
	type member struct {
		scope Scope
		owner int
	}
	var members []member
	for i := range j.out.Owners {
		o := &j.out.Owners[i]
		if o.Excluded != "" || !o.Alive() {
			continue
		}
		for _, c := range o.Claims {
			j.scopes(o, c, func(s Scope) { members = append(members, member{s, i}) })
		}
	}
	slices.SortFunc(members, func(a, b member) int {
		return cmp.Or(compareScopes(a.scope, b.scope), a.owner-b.owner)
	})
	members = slices.Compact(members)
	var groups []group
	for i, m := range members {
		if i == 0 || members[i-1].scope != m.scope {
			groups = append(groups, group{scope: m.scope})
		}
		g := &groups[len(groups)-1]
		g.owners = append(g.owners, m.owner)
	}
	return groups
}

func linkScope(c *Claim) Scope {
	l := c.Link
	if !c.Wire() {
		l = c.Interface.Link
	}
	if l == nil {
		return Scope{}
	}
	return Scope{Kind: LinkScope, Node: l.Node, Name: l.Name}
}
