package verdict

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// conflicts compares the owners in every scope, and carries the conflicts that
// there were on.
func (j *judging) conflicts() {
	compared, failed := 0, false
	for i := range j.out.Owners {
		if o := &j.out.Owners[i]; o.Excluded == "" && o.Alive() {
			compared++
			failed = failed || o.dadFailed()
		}
	}
	var over coverage
	if compared >= 2 || failed {
		j.grouped = j.groups()
		for _, g := range j.grouped {
			if over.covers(g) {
				j.noteCovered(g)
				continue
			}
			if len(g.owners) == 1 && j.rivaled(g.owners[0]) {
				continue // reported with its rival
			}
			if j.conflict(g) {
				over = append(over, g)
			}
		}
	}
	for i := range j.in.Conflicts {
		if prev := &j.in.Conflicts[i]; prev.Active() && !j.continues(prev.ID) {
			j.out.Conflicts = append(j.out.Conflicts, j.resolved(prev, over))
		}
	}
	for i := range j.out.Conflicts {
		if j.out.Conflicts[i].Active() {
			j.out.Contested = true
		}
	}
}

// coverage is the groups that are reported already: a set of owners is
// reported once, in the widest scope.
type coverage []group

func (c coverage) covers(g group) bool {
	return slices.ContainsFunc(c, func(wider group) bool {
		for _, o := range g.owners {
			if !slices.Contains(wider.owners, o) {
				return false
			}
		}
		return true
	})
}

// rivaled tells whether an owner meets another one in some scope.
func (j *judging) rivaled(owner int) bool {
	return slices.ContainsFunc(j.grouped, func(g group) bool { return len(g.owners) >= 2 && slices.Contains(g.owners, owner) })
}

func (j *judging) continues(id string) bool {
	return slices.ContainsFunc(j.out.Conflicts, func(c Conflict) bool { return c.ID == id })
}

// conflict judges one scope and tells whether it is a conflict.
func (j *judging) conflict(g group) bool {
	owners := j.takingPart(g)
	prev := j.previous(g, owners)
	active := prev != nil && prev.Active()
	rule := j.rule(owners)
	if rule == "" && active && len(owners) >= 2 && (prev.Rule == RuleExternalsAlternate || prev.Rule == RuleSplitBrain) {
		rule = prev.Rule // what is silent now may still be there
	}
	if rule == "" && len(owners) >= 2 && j.explain {
		j.noteHint(g.scope, owners)
	}
	if rule == "" {
		return false
	}

	var c Conflict
	if active {
		c = *prev
	} else {
		c = Conflict{
			Address: j.in.Address, Kind: g.scope.Kind, Scope: g.scope.Text(),
			Phase: Suspected, DetectedAt: j.in.Now, Episode: 1,
		}
		c.ID = ID(j.policy.Cluster, c.Kind, c.Scope, c.Address)
		if prev != nil {
			c.Episode = prev.Episode + 1
		}
	}
	if rule == RuleExternalsAlternate {
		c.Phase, c.ConfirmedAt = Suspected, 0 // whom an agent could read has left
	}
	if !c.has(owners) {
		c.Phase, c.ConfirmedAt, c.Asked = Suspected, 0, 0 // those that were witnessed have all left
	}
	if active {
		recall(owners, prev.Owners)
	}
	c.Rule, c.Owners, c.Order = rule, owners, arrivals(owners)
	c.LinkProof = c.linkProof(g.across())
	if c.LinkProof == OneWay && rule != RuleDADFailed {
		c.Phase, c.ConfirmedAt = Suspected, 0 // even if it was proven before
	}
	if c.Phase == Suspected {
		j.settle(&c, g.across())
	}
	why := j.inquire(&c)
	c.Summary = j.summary(&c) + after(" ", why.short)
	j.out.Conflicts = append(j.out.Conflicts, c)
	if j.explain {
		j.noteConflict(g.scope, &c)
	}
	return true
}

// has tells whether one of some owners is in the conflict already. A device outside
// is known by its hardware address: its link may have become one with others.
func (c *Conflict) has(owners []Owner) bool {
	return slices.ContainsFunc(c.Owners, func(was Owner) bool {
		return slices.ContainsFunc(owners, func(o Owner) bool {
			return o.ID == was.ID || o.Namespace == nil && was.Namespace == nil && o.MAC == was.MAC
		})
	})
}

func (j *judging) members(g group) []Owner {
	owners := make([]Owner, len(g.owners))
	for i, o := range g.owners {
		owners[i] = j.out.Owners[o]
	}
	return owners
}

// previous is the conflict that a group continues: the one of its scope, active
// or not; else an active one with two of its owners, whose scope was widened
// since and has nobody else; nil for none.
func (j *judging) previous(g group, owners []Owner) *Conflict {
	text := g.scope.Text()
	var same *Conflict
	for i := range j.in.Conflicts {
		if c := &j.in.Conflicts[i]; c.Kind == g.scope.Kind && c.Scope == text {
			if c.Active() {
				return c
			}
			same = c
		}
	}
	for i := range j.in.Conflicts {
		c := &j.in.Conflicts[i]
		if !c.Active() || c.Kind > g.scope.Kind || j.continues(c.ID) || j.outgrows(c, g) {
			continue
		}
		both := 0
		for k := range owners {
			if slices.ContainsFunc(c.Owners, func(o Owner) bool { return o.ID == owners[k].ID }) {
				both++
			}
		}
		if both >= 2 {
			return c
		}
	}
	return same
}

// outgrows tells whether the scope of a conflict has an owner that a group
// lacks: then it is judged on its own, and the conflict is its.
func (j *judging) outgrows(c *Conflict, g group) bool {
	return slices.ContainsFunc(j.grouped, func(own group) bool {
		return own.scope.Kind == c.Kind && own.scope.Text() == c.Scope && !coverage{g}.covers(own)
	})
}

// quietGraces is after how many hand-over graces without a frame a node has
// handed over an address that its kernel does not have.
const quietGraces = 3

// takingPart are the owners of a group, without those of nodes that hold an
// address themselves that handed it over: their kernels do not have it, they fell
// silent, and somebody claimed it after them.
func (j *judging) takingPart(g group) []Owner {
	owners := j.members(g)
	if len(owners) < 2 || !hostsOnly(owners) {
		return owners
	}
	var newest Stamp
	assigned := false
	for i := range owners {
		assigned = assigned || owners[i].Assigned
		newest = max(newest, owners[i].claimed())
	}
	owners = owners[:0]
	for _, i := range g.owners {
		o := &j.out.Owners[i]
		if !o.Assigned && (assigned || o.claimed() != newest) && j.quiet(o) {
			o.Rule = RuleHandedOver
			o.Excluded = fmt.Sprintf("its kernel does not have the address, and others claimed it since, but it did not for %s: it has handed it over", j.quietAfter())
			continue
		}
		owners = append(owners, *o)
	}
	return owners
}

func (j *judging) quietAfter() time.Duration { return quietGraces * j.policy.HandoverGrace }

// quiet tells whether the wire has not shown an owner for so long that it counts
// as having handed its address over; and asks to be called when it has.
func (j *judging) quiet(o *Owner) bool {
	quiet := o.claimed().Add(j.quietAfter())
	if j.in.Now < quiet {
		j.again(quiet)
		return false
	}
	return true
}

// claimed is when the wire last showed an owner.
func (o *Owner) claimed() (newest Stamp) {
	for _, c := range o.Claims {
		if c.Wire() && !c.Weak() {
			newest = max(newest, c.Seen)
		}
	}
	return newest
}

// hostsOnly tells whether all owners are nodes themselves: a virtual address may
// be handed over from one to the other.
func hostsOnly(owners []Owner) bool {
	return !slices.ContainsFunc(owners, func(o Owner) bool { return o.kind() != Host })
}

// virtual tells whether one of the owners is a virtual router.
func virtual(owners []Owner) bool {
	return slices.ContainsFunc(owners, func(o Owner) bool {
		return o.MAC.Virtual() || slices.ContainsFunc(o.Claims, func(c *Claim) bool { return c.MAC.Virtual() })
	})
}

// rule is the rule by which a group is a conflict; empty for none.
func (j *judging) rule(owners []Owner) string {
	assigned := 0
	for i := range owners {
		switch {
		case owners[i].dadFailed():
			return RuleDADFailed
		case owners[i].Assigned:
			assigned++
		}
	}
	switch {
	case len(owners) < 2:
		return ""
	case samePod(owners):
		return RuleSamePod
	case sameVM(owners):
		return RuleSameVM
	case assigned >= 1 && hostsOnly(owners):
		return RuleSplitBrain
	case assigned >= 2:
		return RuleAssignedTwice
	case assigned == 1:
		return RuleAssignedAndWire
	}
	j.out.Contested = true // so that A-B-A is seen, if it is
	switch {
	case !alternate(owners):
		return ""
	case hostsOnly(owners):
		return RuleSplitBrain
	}
	return RuleExternalsAlternate
}

// settle confirms a suspected conflict when its time has come and both sides were witnessed
// again since. Otherwise it records the missing evidence. On a domain, both sides must have
// been witnessed on one link or on links that are proven to be one.
func (j *judging) settle(c *Conflict, across LinkKey) {
	if c.Rule == RuleDADFailed {
		c.confirm(j.in.Now)
		return
	}
	if c.Rule == RuleExternalsAlternate {
		return // no agent can read either of them again
	}
	due := max(c.DetectedAt, together(c.Owners)).Add(j.wait(c))
	if j.in.Now < due {
		j.again(due)
		return
	}
	met := meetings{}
	var silent []*Node
	for i := range c.Owners {
		o := &c.Owners[i]
		switch {
		case o.readSince(due):
			met.enter(o, across, byProof, due)
		case o.State != Live:
		case o.Assigned:
			silent = o.readers(silent)
		case o.claimedSince(due):
			met.enter(o, across, byProof, due)
		}
	}
	for _, m := range met {
		if len(m.owners) >= 2 && (m.configured || c.Rule == RuleSplitBrain) {
			c.confirm(j.in.Now)
			return
		}
	}
	if len(silent) == 0 {
		return
	}
	if c.Asked == 0 || c.Asked.Add(askEvery) <= j.in.Now {
		c.Asked = j.in.Now
		for _, n := range silent {
			if !slices.ContainsFunc(j.out.Check, n.is) {
				j.out.Check = append(j.out.Check, n)
			}
		}
	}
	j.again(c.Asked.Add(askEvery))
}

// across returns the domain on which the owners of a group meet. It is zero if they meet on
// one link of one node or in a wider scope, where no stitch is needed.
func (g *group) across() LinkKey {
	if g.everywhere || g.scope.Kind != LinkScope {
		return LinkKey{}
	}
	return g.scope.Domain
}

// A site is a place of an owner in a domain: a link of a node, or all links that are proven to
// be one.
type site struct{ link, proven LinkKey }

func byLink(l *Link) site { return site{link: l.Key()} }

func byProof(l *Link) site {
	if l.Proven != nil {
		return site{proven: l.Proven.Key()}
	}
	return byLink(l)
}

// meetings are the owners by site.
type meetings map[site]*meeting

// A meeting is the set of owners on one site.
type meeting struct {
	owners     []string // owner ids
	configured bool     // whether the kernel of an owner has the address
}

// enter adds an owner to the sites of a domain where it was witnessed at since or later. An
// owner whose kernel has the address in the domain is added only there, and not where other
// nodes saw it, because it is not proven that they saw this owner. Without a domain there is
// one site.
func (m meetings) enter(o *Owner, across LinkKey, siteOf func(*Link) site, since Stamp) {
	if across == (LinkKey{}) {
		m.add(site{}, o)
		return
	}
	on := func(c *Claim) *Link {
		l := c.Interface.Link
		if c.Wire() {
			l = c.Link
		}
		if l == nil || l.Domain.Key() != across {
			return nil
		}
		return l
	}
	here := slices.ContainsFunc(o.Claims, func(c *Claim) bool { return c.counts() && on(c) != nil })
	for _, c := range o.Claims {
		l := on(c)
		switch {
		case l == nil || since != 0 && c.Node().Unheard:
		case c.counts():
			if c.Read >= since {
				m.add(siteOf(l), o)
			}
		case !here && c.Wire() && !c.Weak() && (o.Assigned || c.Seen >= since):
			m.add(siteOf(l), o)
		}
	}
}

func (m meetings) add(at site, o *Owner) {
	if m[at] == nil {
		m[at] = &meeting{}
	}
	m[at].configured = m[at].configured || o.Assigned
	if !slices.Contains(m[at].owners, o.ID) {
		m[at].owners = append(m[at].owners, o.ID)
	}
}

// linkProof returns how the links on which the owners meet are known to be one; 0 if no stitch
// is needed.
func (c *Conflict) linkProof(across LinkKey) LinkProof {
	if across == (LinkKey{}) || len(c.Owners) < 2 {
		return 0
	}
	for _, kind := range []struct {
		siteOf func(*Link) site
		proof  LinkProof
	}{{byLink, 0}, {byProof, Proven}} {
		met := meetings{}
		for i := range c.Owners {
			met.enter(&c.Owners[i], across, kind.siteOf, 0)
		}
		for _, m := range met {
			if len(m.owners) >= 2 {
				return kind.proof
			}
		}
	}
	return OneWay
}

// wait is how long owners must live side by side before they are confirmed.
func (j *judging) wait(c *Conflict) time.Duration {
	if c.Rule == RuleSameVM {
		return j.policy.MigrationGrace
	}
	if c.Rule == RuleSamePod || c.Rule == RuleSplitBrain || virtual(c.Owners) {
		return j.policy.HandoverGrace
	}
	return j.policy.Settle
}

// waited is how long the owners of a confirmed conflict did. Names that came later may
// have made its rule another one, with a longer wait.
func (j *judging) waited(c *Conflict) time.Duration {
	if wait := j.wait(c); c.ConfirmedAt.Sub(c.DetectedAt) >= wait {
		return wait
	}
	return j.policy.Settle
}

func (c *Conflict) confirm(now Stamp) {
	c.Phase, c.ConfirmedAt = Confirmed, now
}

// together is when the owners that are there now became two.
func together(owners []Owner) Stamp {
	begun := make([]Stamp, 0, 8)
	for i := range owners {
		begun = append(begun, owners[i].Begun())
	}
	if len(begun) < 2 {
		return 0
	}
	slices.Sort(begun)
	return begun[1]
}

// arrivals returns the indexes of owners in the order in which they got the address. If that is
// not known, the time of the first sighting counts.
func arrivals(owners []Owner) []uint32 {
	order := make([]uint32, len(owners))
	for i := range owners {
		order[i] = uint32(i)
	}
	slices.SortStableFunc(order, func(a, b uint32) int { return cmp.Compare(owners[a].heldSince(), owners[b].heldSince()) })
	return order
}

// heldSince returns when an owner got the address or was first seen with it, by its node's
// clock minus the clock's skew.
func (o *Owner) heldSince() Stamp {
	since := o.AssignedAt()
	for _, c := range o.Claims {
		if since == 0 || o.AssignedAt() == 0 && c.First != 0 && c.First < since {
			since = c.First
		}
	}
	return since.Add(-o.Node.Skew)
}

// Begun is when the owner was first heard of.
func (o *Owner) Begun() Stamp {
	first := o.Claims[0].Begun
	for _, c := range o.Claims {
		first = min(first, c.Begun)
	}
	return first
}

// readSince tells whether a kernel that is heard from had the address at a time or later.
func (o *Owner) readSince(at Stamp) bool {
	return o.State == Live && slices.ContainsFunc(o.Claims, func(c *Claim) bool {
		return c.counts() && c.Read >= at && !c.Node().Unheard
	})
}

// claimedSince tells whether the wire showed the owner at a time or later.
func (o *Owner) claimedSince(at Stamp) bool {
	return slices.ContainsFunc(o.Claims, func(c *Claim) bool {
		return c.Wire() && !c.Weak() && c.Seen >= at && !c.Node().Unheard
	})
}

// readers adds the nodes that can read the owner's address again.
func (o *Owner) readers(nodes []*Node) []*Node {
	for _, c := range o.Claims {
		if n := c.Node(); c.counts() && !n.Unheard && !slices.ContainsFunc(nodes, n.is) {
			nodes = append(nodes, n)
		}
	}
	return nodes
}

// counts tells whether the claim makes its owner an assigned one.
func (c *Claim) counts() bool {
	return c.Kind == Assigned && c.Interface.Attachment != Local && c.Interface.Attachment != Private
}

func (o *Owner) dadFailed() bool {
	return o.Excluded == "" && slices.ContainsFunc(o.Claims, func(c *Claim) bool {
		return c.Kind == DADFailed && c.Interface.Attachment != Local && c.Interface.Attachment != Private
	})
}

// alternate tells whether two owners were seen A-B-A within ten seconds.
func alternate(owners []Owner) bool {
	for i := range owners {
		for k := range owners {
			if i != k && owners[i].surrounds(&owners[k]) {
				return true
			}
		}
	}
	return false
}

// surrounds tells whether the owner was seen before and after the other one.
func (o *Owner) surrounds(other *Owner) bool {
	for _, a := range o.Claims {
		if !a.Wire() || a.Weak() || a.Before == 0 || a.Seen.Sub(a.Before) > alternateWithin {
			continue
		}
		for _, b := range other.Claims {
			if b.Wire() && !b.Weak() && a.Before < b.Seen && b.Seen < a.Seen {
				return true
			}
		}
	}
	return false
}

// resolved ends a conflict: fewer than two of its owners are left in its scope.
func (j *judging) resolved(prev *Conflict, over coverage) Conflict {
	c := *prev
	c.Phase, c.ResolvedAt = Resolved, j.in.Now
	c.Owners = make([]Owner, len(prev.Owners))
	var left []*Owner
	for i := range prev.Owners {
		c.Owners[i] = prev.Owners[i]
		k := slices.IndexFunc(j.out.Owners, func(o Owner) bool { return o.ID == prev.Owners[i].ID })
		if k < 0 {
			c.Owners[i].State = Gone
			continue
		}
		c.Owners[i] = j.out.Owners[k]
		if o := &c.Owners[i]; o.Alive() && o.Rule != RuleHandedOver {
			left = append(left, o)
		}
	}
	c.Summary, c.Remedy = j.resolution(&c, left, over), nil
	return c
}
