package verdict

import (
	"cmp"
	"fmt"
	"slices"
)

// explanation puts a judgement in words.
func (j *judging) explanation(out Judgement) Explanation {
	e := Explanation{Owners: out.Owners}
	var compared []*Owner
	var widest Scope
	for i := range out.Owners {
		o := &out.Owners[i]
		j.noteOwner(o)
		if o.Excluded != "" || !o.Alive() {
			continue
		}
		compared = append(compared, o)
		if o.Scope.Kind != 0 && (widest.Kind == 0 || cmp.Or(cmp.Compare(widest.Kind, o.Scope.Kind), cmp.Compare(o.Scope.Node, widest.Node), cmp.Compare(o.Scope.Name, widest.Name)) < 0) {
			widest = o.Scope
		}
	}
	e.Kind, e.Scope = widest.Kind, widest.Text()
	for i := range out.Conflicts {
		if c := &out.Conflicts[i]; c.Active() {
			e.Kind, e.Scope = c.Kind, c.Scope
			break
		}
	}
	if j.in.Address.IsLinkLocalUnicast() && len(compared) > 0 {
		j.note(RuleLinkLocal, Scope{}, true,
			"A link-local address must be unique on its link only: what is configured on another link is another address.")
	}
	j.noteScopes(compared)
	j.noteApart(compared)
	e.Steps = j.steps
	e.Summary = j.answer(out, compared)
	return e
}

// answer is the explanation in short.
func (j *judging) answer(out Judgement, compared []*Owner) string {
	for i := range out.Conflicts {
		if c := &out.Conflicts[i]; c.Active() {
			verb := "Suspected conflict"
			if c.Phase == Confirmed {
				verb = "Conflict"
			}
			return verb + ". " + c.Summary
		}
	}
	a := j.in.Address
	names := make([]string, 0, len(compared))
	for _, o := range compared {
		names = append(names, o.placed())
	}
	switch {
	case len(out.Owners) == 0 && j.in.Incomplete:
		return fmt.Sprintf("Cannot tell: nobody is known to hold %s, but not all nodes are seen.", a)
	case len(out.Owners) == 0:
		return fmt.Sprintf("No conflict: nobody is known to hold %s.", a)
	case len(compared) == 0:
		return fmt.Sprintf("No conflict: %s is seen with %s, but that makes no rivals: %s.",
			a, list(each(out.Owners, (*Owner).placed)), j.why(out.Owners))
	case len(compared) == 1:
		return fmt.Sprintf("No conflict: %s is held by one owner, %s.%s", a, names[0], j.others(out.Owners))
	}
	if out.Contested {
		return fmt.Sprintf("No conflict so far: %s is claimed on the wire by %s, one after the other.", a, list(names))
	}
	for i, o := range compared {
		names[i] += " " + j.places(o)
	}
	if a.IsLinkLocalUnicast() {
		return fmt.Sprintf("No conflict: %s is held by %s. It is a link-local address, and on another link it is another address.", a, list(names))
	}
	return fmt.Sprintf("No conflict: %s is held by %s. They meet in no scope in which it must be unique.", a, list(names))
}

// others says of those that are seen with the address, too, why they are no
// rivals: in short where they are many, as what follows says it of each.
func (j *judging) others(owners []Owner) string {
	var names []string
	why := ""
	for i := range owners {
		if o := &owners[i]; o.Excluded != "" {
			names = append(names, o.name())
			why = o.Excluded
		}
	}
	switch len(names) {
	case 0:
		return ""
	case 1:
		return fmt.Sprintf(" %s is seen with it, too, but is no rival: %s.", capital(names[0]), why)
	}
	return fmt.Sprintf(" %s are seen with it, too, but are no rivals.", capital(list(names)))
}

// why is why none of the owners is compared.
func (j *judging) why(owners []Owner) string {
	var reasons []string
	for i := range owners {
		reason := "it was not seen for " + j.policy.StaleAfter.String()
		if owners[i].Excluded != "" {
			reason = owners[i].Excluded
		}
		if !slices.Contains(reasons, reason) {
			reasons = append(reasons, reason)
		}
	}
	if len(reasons) > 1 {
		return "the rules below say why of each"
	}
	return reasons[0]
}

// noteOwner tells what is particular about one owner.
func (j *judging) noteOwner(o *Owner) {
	if o.Excluded != "" {
		j.note(o.Rule, Scope{}, true, fmt.Sprintf("%s is not compared: %s.", capital(o.placed()), o.Excluded))
		return
	}
	switch o.State {
	case Unheard:
		j.note(RuleNodeUnheard, Scope{Kind: NodeScope, Node: o.Node.Name}, true, fmt.Sprintf(
			"%s was last seen on a node not heard from (%s). It counts as alive until the node has been silent for %s.",
			capital(o.name()), o.Node.Name, j.policy.NodeTimeout))
	case Stale:
		j.note(RuleStale, o.Scope, true, fmt.Sprintf("%s is known only from the wire and was not seen there for %s.",
			capital(o.placed()), j.policy.StaleAfter))
	}
	var places []string
	for _, c := range o.Claims {
		if w := place(c); !slices.Contains(places, w) {
			places = append(places, w)
		}
	}
	if len(places) > 1 {
		j.note(RuleOneNamespace, o.Scope, true, fmt.Sprintf(
			"%s is witnessed in %d ways (%s) and is one owner.", capital(o.name()), len(places), list(places)))
	}
}

// place is where a claim was witnessed, in words.
func place(c *Claim) string {
	if c.Wire() || c.Kind == Believed {
		return "frames on " + witness(c)
	}
	return "its kernel on " + c.Interface.Name
}

// noteScopes tells in which scopes the address is compared, and why.
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
		j.note(RuleInNetwork, Scope{}, false,
			"No declared network (--network) has it, nor the range of pods of a node, and neither a container runtime nor a CNI result says that a pod was given it: owners on several nodes are compared where they are on one link.")
	}
}

// noteScope tells why a claim of an owner is compared in a scope.
func (j *judging) noteScope(s extent, o *Owner, c *Claim) {
	switch s.Kind {
	case NetworkScope:
		if n := j.declared(); n.Name != "" {
			j.note(RuleInNetwork, s.Scope(), true, fmt.Sprintf(
				"It is in %s, which is declared as network %s: it must be unique on all nodes.", n.Prefixes[0], n.Name))
			return
		}
		if c.Network == "" || c.Interface.Attachment == Own {
			j.note(RuleInNetwork, s.Scope(), true,
				"It is in the range of pods of a node (Node.spec.podCIDRs): the addresses of pods must be unique on all nodes.")
			return
		}
		if c.Network == networkOfRuntime {
			j.note(RuleInNetwork, s.Scope(), true, fmt.Sprintf(
				"The container runtime says that it gave it to %s: the addresses of pods must be unique on all nodes.", o.name()))
			return
		}
		j.note(RuleInNetwork, s.Scope(), true, fmt.Sprintf(
			"A CNI result says that network %s gave it to %s: the addresses of pods must be unique on all nodes.", c.Network, o.name()))
	case NodeScope:
		in := ""
		if s.Name != "" {
			in = " in VRF " + s.Name
		}
		j.note(RuleOnNode, s.Scope(), true, fmt.Sprintf("Node %s itself routes to it%s: it must be unique there.", s.Node.Name, in))
	case LinkScope:
		if s.Domain == (LinkKey{}) {
			j.note(RuleOnLink, s.Scope(), true, "It must be unique on its link.")
			return
		}
		stitches := j.in.stitches(s.Domain)
		words := make([]string, 0, len(stitches))
		for i := range stitches {
			words = append(words, j.stitched(&stitches[i]))
		}
		j.note(RuleOnLink, s.Scope(), true, fmt.Sprintf("It must be unique on its link, which is one with links of other nodes: %s.", list(words)))
	}
}

// stitched tells why two links are one.
func (j *judging) stitched(s *Stitch) string {
	a, b := s.Entered.Node.Name+"/"+s.Entered.Name, s.Home.Node.Name+"/"+s.Home.Name
	switch {
	case s.Back != "":
		return fmt.Sprintf("%s with %s, as frames of each entered the other (%s of %s, %s of %s)", a, b, s.Back, s.Entered.Node.Name, s.MAC, s.Home.Node.Name)
	case s.Proof == Proven:
		return fmt.Sprintf("%s with %s, as frames from %s of %s entered %s for %s or longer", a, b, s.MAC, s.Home.Node.Name, a, j.policy.StaleAfter)
	}
	return fmt.Sprintf("%s with %s, which is not proven: a frame from %s of %s entered %s, but none the other way", a, b, s.MAC, s.Home.Node.Name, a)
}

// noteApart tells why owners that do not meet do not meet.
func (j *judging) noteApart(compared []*Owner) {
	switch len(compared) {
	case 0:
		return
	case 1:
		o := compared[0]
		j.note(RuleOneOwner, o.Scope, true, fmt.Sprintf("%s is the only owner %s.",
			capital(o.placed()), phrase(o.Scope.Kind, o.Scope.Text())))
		return
	}
	for i, a := range compared {
		for _, b := range compared[i+1:] {
			if !j.meet(a, b) {
				j.note(RuleDifferentLinks, Scope{}, true, fmt.Sprintf(
					"%s is compared %s, %s %s: no scope has both.", capital(a.placed()), j.places(a), b.placed(), j.places(b)))
			}
			if i >= 8 {
				return // enough to read
			}
		}
	}
}

// meet tells whether two owners are compared in some scope.
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

// places names the scopes of an owner.
func (j *judging) places(o *Owner) string {
	var names []string
	for _, c := range o.Claims {
		j.scopes(o, c, func(s extent) {
			if name := phrase(s.Kind, s.Text()); !slices.Contains(names, name) {
				names = append(names, name)
			}
		})
	}
	if len(names) == 0 {
		return "on a link that is not known yet"
	}
	return list(names)
}

// noteConflict tells by which rule a scope is a conflict.
func (j *judging) noteConflict(s extent, c *Conflict) {
	var reason string
	switch c.Rule {
	case RuleAssignedTwice:
		reason = fmt.Sprintf("%d owners have it configured: %s.", len(c.Owners), list(each(c.Owners, (*Owner).placed)))
	case RuleAssignedAndWire:
		reason = fmt.Sprintf("One owner has it configured and another claims it on the wire: %s.", list(each(c.Owners, (*Owner).placed)))
	case RuleExternalsAlternate:
		reason = fmt.Sprintf("Senders that no agent can look into take turns with it within %s: %s.", alternateWithin, list(each(c.Owners, (*Owner).placed)))
	case RuleDADFailed:
		reason = "The kernel's duplicate address detection found that somebody else has it."
	case RuleSplitBrain:
		reason = fmt.Sprintf("%d nodes hold it themselves: %s.", len(c.Owners), list(each(c.Owners, (*Owner).placed)))
	case RuleSameVM:
		reason = fmt.Sprintf("All owners are pods of virtual machine %s: a migration, unless it lasts.", c.Owners[0].virtualMachine())
	case RuleSamePod:
		reason = "All owners are sandboxes of one pod: a hand-over, unless it lasts."
	}
	j.note(c.Rule, s.Scope(), true, reason+" "+j.standing(c))
}

// noteCovered tells that a narrower scope is part of a conflict.
func (j *judging) noteCovered(g group) {
	if j.explain && len(g.owners) >= 2 {
		j.note(RuleWiderScope, g.scope.Scope(), false, "The same owners meet here, too; they are reported once, in the wider scope.")
	}
}

// noteHint tells that senders changed, which alone proves nothing.
func (j *judging) noteHint(s extent, owners []Owner) {
	j.note(RuleMACChanged, s.Scope(), false, fmt.Sprintf(
		"Claimed on the wire by %s, one after the other: that may be a hand-over. It is a conflict if the first one comes back within %s.",
		list(each(owners, (*Owner).placed)), alternateWithin))
}
