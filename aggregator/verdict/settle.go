package verdict

import (
	"slices"
	"time"
)

// settle confirms a suspected conflict when the settle time has passed and both sides were
// witnessed again after it. Otherwise it asks nodes to read the address again. On a domain, both
// sides must have been witnessed on one link or on links that are proven to be one.
func (j *comparison) settle(c *Conflict, across LinkKey) {
	if c.Unplaced() {
		return
	}
	due := max(c.DetectedAt, secondBegun(c.Owners)).Add(j.policy.Wait(c))
	if c.SameVM() {
		migrating, until := j.policy.migrates(c.Owners)
		if migrating {
			return // judged again when that changes
		}
		due = max(due, until)
	}
	if j.in.Now < due {
		j.again(due)
		return
	}
	if c.Rule == RuleDADFailed {
		c.confirm(j.in.Now) // a kernel has seen both
		return
	}
	if c.AllExternal() && !c.severalGuests(due) {
		return // judged again when a frame shows it
	}
	met, siteOf := meetings{}, byProof
	if oneMAC(c.Owners) {
		siteOf = func(*Owner, *Link) []site { return []site{{}} } // none of their frames can prove their links to be one
	}
	seen := due
	if c.Moves { // who was silent may have handed the address over, and taken it again
		seen = max(due, j.in.Now.Add(-quietGraces*j.policy.HandoverGrace))
	}
	var silent []*Node
	for i := range c.Owners {
		o := &c.Owners[i]
		switch {
		case o.readSince(due):
			met.addOwner(o, across, siteOf, due)
		case o.State != Live:
		case o.Assigned:
			silent = o.readers(silent)
		case o.claimedSince(seen):
			met.addOwner(o, across, siteOf, due)
		}
	}
	for _, m := range met {
		if len(m.owners) >= 2 && (m.configured || c.Moves || c.Rule == RuleExternalsAlternate) {
			c.confirm(j.in.Now)
			return
		}
	}
	if len(silent) == 0 {
		return
	}
	if c.Asked == 0 || c.Asked.Add(checkInterval) <= j.in.Now {
		c.Asked = j.in.Now
		for _, n := range silent {
			if !slices.ContainsFunc(j.out.Check, n.Is) {
				j.out.Check = append(j.out.Check, n)
			}
		}
	}
	j.again(c.Asked.Add(checkInterval))
}

// across returns the domain on which the owners of a group meet. It is zero if they meet on
// one link of one node or in a wider scope, where no stitch is needed.
func (g *group) across() LinkKey {
	if g.everywhere || g.scope.Kind != LinkScope {
		return LinkKey{}
	}
	return g.scope.Domain
}

// A site is where an owner is in a domain: a link of a node, all links that are proven to be one, or
// those of which frames in both directions prove it.
type site struct{ link, proven, bothWays LinkKey }

func byLink(_ *Owner, l *Link) []site { return []site{{link: l.Key()}} }

// byProof returns the sites of an owner by the proofs about a link. An external device that only other
// nodes see may be a repeater with the owner behind it. It replaces the owner's hardware address, so that
// frames in one direction, however many, do not prove that the device is another owner.
func byProof(o *Owner, l *Link) []site {
	sites := byLink(o, l)
	if l.BothWays != nil {
		sites = append(sites, site{bothWays: l.BothWays.Key()})
	}
	if l.Proven != nil && o.Namespace != nil {
		sites = append(sites, site{proven: l.Proven.Key()})
	}
	return sites
}

// meetings maps sites to their owners.
type meetings map[site]*meeting

// A meeting is the set of owners on one site.
type meeting struct {
	owners     []string // owner ids
	configured bool     // whether the kernel of an owner has the address
}

// addOwner adds an owner to the sites of a domain where it was witnessed at since or later. An
// owner whose kernel has the address in the domain is added only there. Sightings by other nodes do
// not prove that they saw this owner. Outside of a domain there is one site.
func (m meetings) addOwner(o *Owner, across LinkKey, siteOf func(*Owner, *Link) []site, since Stamp) {
	if across == (LinkKey{}) {
		m.add([]site{{}}, o)
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
	here := slices.ContainsFunc(o.Claims, func(c *Claim) bool { return c.Counts() && on(c) != nil })
	for _, c := range o.Claims {
		l := on(c)
		switch {
		case l == nil || since != 0 && c.Node().Unheard:
		case c.Counts():
			if c.Read >= since {
				m.add(siteOf(o, l), o)
			}
		case !here && c.Wire() && !c.Weak() && (o.Assigned || c.Seen >= since):
			m.add(siteOf(o, l), o)
		}
	}
}

func (m meetings) add(sites []site, o *Owner) {
	for _, at := range sites {
		if m[at] == nil {
			m[at] = &meeting{}
		}
		m[at].configured = m[at].configured || o.Assigned
		if !slices.Contains(m[at].owners, o.ID) {
			m[at].owners = append(m[at].owners, o.ID)
		}
	}
}

// linkProof returns the evidence that the links on which the owners meet are the same; 0 if none is
// needed.
func (c *Conflict) linkProof(across LinkKey) LinkProof {
	if across == (LinkKey{}) || len(c.Owners) < 2 {
		return 0
	}
	for _, kind := range []struct {
		siteOf func(*Owner, *Link) []site
		proof  LinkProof
	}{{byLink, 0}, {byProof, Proven}} {
		met := meetings{}
		for i := range c.Owners {
			met.addOwner(&c.Owners[i], across, kind.siteOf, 0)
		}
		for _, m := range met {
			if len(m.owners) >= 2 {
				return kind.proof
			}
		}
	}
	return OneWay
}

// Wait returns how long the owners of a conflict must coexist before it is confirmed.
func (p *Policy) Wait(c *Conflict) time.Duration {
	switch {
	case c.SameVM():
		return p.MigrationGrace
	case c.SamePod(), c.Copied(), c.Moves, c.Rule == RuleExternalsAlternate: // a container may be migrated live
		return p.HandoverGrace
	case c.Rule == RuleDADFailed:
		return 0
	case virtual(c.Owners):
		return p.HandoverGrace
	}
	return p.Settle
}

// Waited returns how long the owners of a confirmed conflict coexisted before it was confirmed.
// Names that became known later may have changed the rule to one with a longer wait.
func (p *Policy) Waited(c *Conflict) time.Duration {
	if wait := p.Wait(c); c.ConfirmedAt.Sub(c.DetectedAt) >= wait {
		return wait
	}
	return p.Settle
}

func (c *Conflict) confirm(now Stamp) {
	c.Phase, c.ConfirmedAt = Confirmed, now
}

// secondBegun returns the time since which at least two of the owners have existed; 0 if there are
// fewer.
func secondBegun(owners []Owner) Stamp {
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
