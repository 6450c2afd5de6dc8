package verdict

import "slices"

// compared returns the scopes in which an owner is compared.
func (j *judging) compared(o *Owner) Compared {
	c := Compared{Owner: o.ID}
	for _, claim := range o.Claims {
		j.scopes(o, claim, func(s extent) {
			if !slices.Contains(c.Scopes, s.Scope()) {
				c.Scopes = append(c.Scopes, s.Scope())
			}
		})
	}
	return c
}

// about returns owners without their scopes.
func about(owners ...*Owner) []Compared {
	all := make([]Compared, len(owners))
	for i, o := range owners {
		all[i].Owner = o.ID
	}
	return all
}

// noteOwner records what is particular about one owner.
func (j *judging) noteOwner(o *Owner) {
	if o.Excluded != nil {
		j.note(Step{Rule: o.Excluded.Rule, Applied: true, Owners: about(o), Excludes: true})
		return
	}
	if o.State == Unheard {
		j.note(Step{Rule: RuleNodeUnheard, Scope: Scope{Kind: NodeScope, Node: o.Node.Name}, Applied: true, Owners: about(o)})
	}
	var seen []Place
	for _, c := range o.Claims {
		if p := c.place(); !slices.Contains(seen, p) {
			seen = append(seen, p)
		}
	}
	if len(seen) > 1 {
		j.note(Step{Rule: RuleOneNamespace, Scope: o.Scope, Applied: true, Owners: about(o), Seen: seen})
	}
}

// place returns where a claim was witnessed.
func (c *Claim) place() Place {
	if c.Wire() || c.Kind == Believed {
		return c.seen()
	}
	return Place{Interface: c.Interface.Name}
}

// seen returns the interface on which the frame of a claim was seen.
func (c *Claim) seen() Place { return Place{c.Node().Name, c.Interface.Name} }

// noteScopes records in which scopes the address is compared, and why.
func (j *judging) noteScopes(compared []*Owner) {
	if len(compared) == 0 {
		return
	}
	type place struct {
		members []member
		owner   *Owner
		claim   *Claim
	}
	places := map[extent]*place{}
	var order []extent
	network := false
	for i, o := range compared {
		for _, c := range o.Claims {
			j.scopes(o, c, func(s extent) {
				network = network || s.Kind == NetworkScope
				at := places[s.whole()]
				if at == nil {
					at = &place{owner: o, claim: c}
					places[s.whole()] = at
					order = append(order, s.whole())
				}
				at.members = append(at.members, member{s, i, c.Counts()})
			})
		}
	}
	for _, s := range order {
		at := places[s]
		j.noteScope(newGroup(at.members).scope, at.owner, at.claim)
	}
	if !network && !j.in.Address.IsLinkLocalUnicast() {
		j.note(Step{Rule: RuleInNetwork})
	}
}

// noteScope records why a claim of an owner is compared in a scope.
func (j *judging) noteScope(s extent, o *Owner, c *Claim) {
	step := Step{Scope: s.Scope(), Applied: true}
	switch s.Kind {
	case NetworkScope:
		step.Rule = RuleInNetwork
		if name, prefix := j.declared(); name != "" {
			step.Network, step.Prefix = name, prefix
		} else if c.Network != "" && c.Interface.Attachment != Own {
			step.Network, step.Owners = c.Network, about(o)
		}
	case NodeScope:
		step.Rule = RuleOnNode
	case LinkScope:
		step.Rule = RuleOnLink
		if s.Domain != (LinkKey{}) {
			step.Joints = []Joint{}
			for _, stitch := range j.in.stitches(s.Domain) {
				step.Joints = append(step.Joints, Joint{stitch.Entered.Key(), stitch.Home.Key(), stitch.MAC, stitch.Back, stitch.Proof})
			}
		}
	}
	j.note(step)
}

// mostApart is the number of owners that are compared with the others in an explanation.
const mostApart = 9

// noteApart records which owners never meet.
func (j *judging) noteApart(compared []*Owner) {
	if len(compared) == 1 {
		j.note(Step{Rule: RuleOneOwner, Scope: compared[0].Scope, Applied: true, Owners: about(compared[0])})
		return
	}
	for i, a := range compared {
		for _, b := range compared[i+1:] {
			if !j.meet(a, b) {
				j.note(Step{Rule: RuleDifferentLinks, Applied: true, Owners: []Compared{j.compared(a), j.compared(b)}})
			}
			if i >= mostApart-1 {
				return
			}
		}
	}
}

// meet reports whether two owners are compared in a common scope.
func (j *judging) meet(a, b *Owner) bool {
	found := false
	for _, c := range a.Claims {
		j.scopes(a, c, func(s extent) {
			for _, d := range b.Claims {
				j.scopes(b, d, func(other extent) { found = found || s.whole() == other.whole() })
			}
		})
	}
	return found
}

// noteConflict records the rule by which a scope has a conflict.
func (j *judging) noteConflict(s extent, c *Conflict) {
	j.note(Step{Rule: c.Rule, Scope: s.Scope(), Applied: true, Conflict: c.ID})
}

// noteCovered records that a narrower scope is part of a conflict.
func (j *judging) noteCovered(g group) {
	if len(g.owners) >= 2 {
		j.note(Step{Rule: RuleWiderScope, Scope: g.scope.Scope()})
	}
}

// noteHint records that senders alternate, which alone proves nothing.
func (j *judging) noteHint(s extent, owners []Owner) {
	if !j.explain {
		return
	}
	step := Step{Rule: RuleMACChanged, Scope: s.Scope()}
	for i := range owners {
		step.Owners = append(step.Owners, about(&owners[i])...)
	}
	j.note(step)
}

// noteSender records how a wire claim was attributed to an owner if that is not obvious.
func (j *judging) noteSender(rule string, c *Claim, ns *Namespace, owner *Owner) {
	step := Step{Scope: linkScope(c).Scope(), Applied: true, MAC: c.MAC, Source: c.Source, Seen: []Place{c.seen()}}
	if c.MAC.Group() || c.Source != "" {
		step.Rule = RuleWeakSource
		j.note(step)
	}
	if rule != RuleNodeMAC && rule != RuleMACCloned && rule != RuleGuest {
		return
	}
	step.Rule, step.Source, step.Owners = rule, "", about(owner)
	if rule == RuleNodeMAC {
		step.Node = ns.Node.Name
	}
	j.note(step)
}
