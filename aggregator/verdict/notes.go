package verdict

import "slices"

// compared returns the scopes in which an owner is compared.
func (j *evaluation) compared(o *Owner) Compared {
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

// withoutScopes returns owners without their scopes.
func withoutScopes(owners ...*Owner) []Compared {
	all := make([]Compared, len(owners))
	for i, o := range owners {
		all[i].Owner = o.ID
	}
	return all
}

// noteOwner records the rules that apply to one owner alone.
func (j *evaluation) noteOwner(o *Owner) {
	if o.Excluded != nil {
		j.note(Step{Rule: o.Excluded.Rule, Applied: true, Owners: withoutScopes(o), Excludes: true})
		return
	}
	if o.State == Unheard {
		j.note(Step{Rule: RuleNodeDisconnected, Scope: Scope{Kind: NodeScope, Node: o.Node.Name}, Applied: true, Owners: withoutScopes(o)})
	}
	if c := j.away(o); c != nil {
		j.note(Step{Rule: RuleNoCarrier, Scope: linkScope(c).Scope(), Applied: true, Owners: withoutScopes(o)})
	}
	var seen []Place
	for _, c := range o.Claims {
		if p := c.place(); c.Kind != WouldAnswer && !slices.Contains(seen, p) {
			seen = append(seen, p)
		}
	}
	if len(seen) > 1 {
		j.note(Step{Rule: RuleOneNamespace, Scope: o.Scope, Applied: true, Owners: withoutScopes(o), Seen: seen})
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
func (j *evaluation) noteScopes(compared []*Owner) {
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
				at := places[s.canonical()]
				if at == nil {
					at = &place{owner: o, claim: c}
					places[s.canonical()] = at
					order = append(order, s.canonical())
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
func (j *evaluation) noteScope(s extent, o *Owner, c *Claim) {
	step := Step{Scope: s.Scope(), Applied: true}
	switch s.Kind {
	case NetworkScope:
		step.Rule = RuleInNetwork
		if name, prefix := j.declared(); name != "" {
			step.Network, step.Prefix = name, prefix
			break
		}
		switch {
		case c.Interface.Attachment == Inner:
			step.Network, step.Overlay = s.Name, true
		case s.Name != podNetwork:
			step.Network, step.Annotated, step.Owners = s.Name, true, withoutScopes(o)
		case c.Interface.Attachment != Own && c.Network != "", c.Wire() && o.networkOf(c) != "":
			step.Network, step.Owners = o.networkOf(c), withoutScopes(o)
		case !j.in.InPodCIDR && c.Interface.PodDevice:
			step.Network, step.Owners = NetworkOfDevice, withoutScopes(o)
		case !j.in.InPodCIDR:
			step.Network, step.Owners = NetworkOfAPI, withoutScopes(o)
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

// maxApart is the number of owners that are compared with the others in an explanation.
const maxApart = 9

// noteApart records which owners never meet.
func (j *evaluation) noteApart(compared []*Owner) {
	if len(compared) == 1 {
		j.note(Step{Rule: RuleOneOwner, Scope: compared[0].Scope, Applied: true, Owners: withoutScopes(compared[0])})
		return
	}
	for i, a := range compared {
		for _, b := range compared[i+1:] {
			if !j.meet(a, b) {
				j.note(Step{Rule: RuleDifferentLinks, Applied: true, Owners: []Compared{j.compared(a), j.compared(b)}})
			}
			if i >= maxApart-1 {
				return
			}
		}
	}
}

// meet reports whether two owners are compared in a common scope.
func (j *evaluation) meet(a, b *Owner) bool {
	found := false
	for _, c := range a.Claims {
		j.scopes(a, c, func(s extent) {
			for _, d := range b.Claims {
				j.scopes(b, d, func(other extent) { found = found || s.canonical() == other.canonical() })
			}
		})
	}
	return found
}

// noteSender records how a wire claim was attributed to an owner if that is not obvious.
func (j *evaluation) noteSender(rule string, c *Claim, ns *Namespace, owner *Owner) {
	step := Step{Scope: linkScope(c).Scope(), Applied: true, MAC: c.MAC, Source: c.Source, Seen: []Place{c.seen()}}
	if c.MAC.Group() || c.Source != "" {
		step.Rule = RuleWeakSource
		j.note(step)
	}
	if rule != RuleNodeMAC && rule != RuleMACCloned && rule != RuleGuest {
		return
	}
	step.Rule, step.Source, step.Owners = rule, "", withoutScopes(owner)
	if rule == RuleNodeMAC {
		step.Node = ns.Node.Name
	}
	j.note(step)
}
