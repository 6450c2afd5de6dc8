package verdict

import (
	"slices"
)

// A cause follows from facts; without them it is unknown. Causes are tried in a fixed order. For
// each cause that does not fit, the fact that rules it out is recorded.

// causes are all causes in order of preference.
var causes = []struct {
	name string
	ask  func(*inquiry) reason
}{
	{CauseOrphanedSandbox, (*inquiry).orphanedSandbox},
	{CauseReplacedNamespace, (*inquiry).replacedNamespace},
	{CauseLeftoverNamespace, (*inquiry).leftoverNamespace},
	{CauseDHCPClientIdentity, (*inquiry).dhcpClientIdentity},
	{CauseTwoDHCPServers, (*inquiry).twoDHCPServers},
	{CauseTakenAlong, (*inquiry).takenAlong},
	{CauseSplitBrain, (*inquiry).splitBrain},
	{CauseExternalDevice, (*inquiry).externalDevice},
	{CauseTunnelAddress, (*inquiry).tunnelAddress},
	{CauseIPAMBookedElsewhere, (*inquiry).bookedElsewhere},
	{CausePodCIDROverlap, (*inquiry).podCIDROverlap},
	{CauseOverlappingNetworks, (*inquiry).overlappingNetworks},
	{CauseIPAMStateLost, (*inquiry).stateLost},
	{CauseIPAMAllocatedTwice, (*inquiry).allocatedTwice},
	{CauseClonedMachine, (*inquiry).clonedMachine},
	{CauseStaticAddress, (*inquiry).staticAddress},
}

// circumstances are what can be said about a conflict whose cause is unknown.
var circumstances = []func(*inquiry) reason{(*inquiry).routersAnycast, (*inquiry).oneGateway, (*inquiry).leaseEnded}

// Causes returns the names of all causes, in alphabetical order.
func Causes() []string {
	names := []string{CauseUnknown}
	for _, c := range causes {
		names = append(names, c.name)
	}
	slices.Sort(names)
	return names
}

// inquire determines the cause of a conflict and records the facts that it follows from.
func (j *evaluation) inquire(c *Conflict) {
	q := inquiry{evaluation: j, c: c, owners: c.Parties()}
	q.gather()
	c.Pools, c.Past, c.Why = q.pools, j.in.Past, q.why()
	if first := oldest(q.owners); first != nil && c.Eldest != first.ID {
		c.Facts = append(c.Facts, Fact{Kind: FactGotAgain, Owners: []string{c.Eldest}})
	}
	c.Checks = q.checks()
	for _, o := range q.owners {
		c.Titles = append(c.Titles, q.title(o))
	}
	if keep, right := c.Rightful(q.owners); keep != nil {
		c.Keeper, c.Right = keep.ID, right
	}
}

// quietGraces is the number of hand-over graces without a frame after which a conflict says that an owner is
// silent. That does not end it: answers go only to those who ask, and agents do not see them.
const quietGraces = 3

// why returns the first cause that fits, and the reasons why others do not.
func (q *inquiry) why() Why {
	found := Why{Cause: CauseUnknown}
	var others []RuledOut
	for _, cause := range causes {
		r := cause.ask(q)
		switch {
		case r.fits() && found.Cause == CauseUnknown:
			found = r.Why
			found.Cause = cause.name
		case !r.fits() && r.contrary.Kind != "":
			others = append(others, RuledOut{Cause: cause.name, Fact: r.contrary, Open: r.open})
		}
	}
	for _, ask := range circumstances {
		if r := ask(q); found.Cause == CauseUnknown && found.Headline == nil && r.fits() {
			found = r.Why
			found.Cause = CauseUnknown
		}
	}
	if q.c.Moves && q.c.Rule != RuleDADFailed {
		for _, o := range q.owners {
			last := o.LastOnWire()
			switch quiet := last.Add(quietGraces * q.policy.HandoverGrace); {
			case o.Assigned:
			case q.in.Now < quiet:
				q.again(quiet)
			default:
				found.Facts = append(found.Facts, Fact{Kind: FactSilent, Owners: ids(o), At: last})
			}
		}
	}
	found.RuledOut = slices.DeleteFunc(others, func(r RuledOut) bool { return r.Open && (found.Cause != CauseUnknown || found.Headline != nil) })
	return found
}

// orphanedSandbox: the pod of an owner no longer exists in the Kubernetes API.
func (q *inquiry) orphanedSandbox() (r reason) {
	if gone := orphans(q.c.Owners); len(gone) > 0 { // includes a virt-launcher pod that ended after a migration
		for _, o := range gone {
			r.Wrong = append(r.Wrong, o.ID)
			left := Fact{Kind: FactSandboxLeft, Owners: ids(o)}
			if !o.Pod.Absent {
				left.Text = o.Pod.Phase
			}
			r.fact(left)
		}
		r.Headline = &Fact{Kind: FactSandboxLeft, Owners: r.Wrong}
		return r
	}
	if q.c.Expected() {
		return reason{}
	}
	var there []*Owner
	for _, o := range q.owners {
		if o.Kind() == Pod && o.Has() {
			if o.Pod == nil || o.Pod.Absent || o.Pod.Ended() {
				return reason{} // the API is not followed, or may lag behind
			}
			there = append(there, o)
		}
	}
	if len(there) == 0 {
		return reason{}
	}
	return ruledOut(Fact{Kind: NotPodsThere, Owners: ids(there...)})
}

// splitBrain: several nodes have an address that moves between them.
func (q *inquiry) splitBrain() (r reason) {
	switch c := q.c; {
	case c.SameVM() && c.Phase == Confirmed:
		r.fact(Fact{Kind: FactOneMachine})
		return r
	case !c.Moves:
		return reason{}
	case !meetOnLink(q.owners):
		return ruledOut(Fact{Kind: NotOneLink})
	}
	if r.fact(q.moves()...); !r.fits() {
		return ruledOut(Fact{Kind: NotMoving, Owners: ids(q.owners...)})
	}
	r.fact(Fact{Kind: FactOneLink})
	if q.c.Phase == Confirmed && q.c.Rule != RuleDADFailed {
		r.fact(Fact{Kind: FactBeyondGrace})
	}
	return r
}

// meetOnLink reports whether all owners have the address on one link, whatever the widest scope is in which they meet.
func meetOnLink(owners []*Owner) bool {
	return slices.ContainsFunc(owners[0].Claims, func(c *Claim) bool {
		l := linkScope(c).canonical()
		return c.on(l) && !slices.ContainsFunc(owners[1:], func(o *Owner) bool {
			return !slices.ContainsFunc(o.Claims, func(c *Claim) bool { return c.on(l) })
		})
	})
}

// on reports whether a claim makes its owner one on a link.
func (c *Claim) on(l extent) bool {
	return l != (extent{}) && (c.Counts() || c.Kind == DADFailed || c.Wire() && !c.Weak()) && linkScope(c).canonical() == l
}

// moves returns the evidence that the address is meant to move between its owners.
func (q *inquiry) moves() (facts []Fact) {
	for _, al := range q.assignments {
		if Alternates(q.in.Past, q.c.DetectedAt) {
			facts = append(facts, Fact{Kind: FactAlternates, Pool: al.Pool.Label(), Nodes: nodesOf(q.owners)})
			break
		}
		facts = append(facts, Fact{Kind: FactController, Pool: al.Pool.Label(), Records: al.records()})
	}
	for _, o := range q.owners {
		switch program, ended := o.VIPProgram(); {
		case ended:
			facts = append(facts, Fact{Kind: FactProgramEnded, Owners: ids(o), Text: program})
		case program != "":
			facts = append(facts, Fact{Kind: FactProgram, Owners: ids(o), Text: program})
		case virtual([]Owner{*o}):
			facts = append(facts, Fact{Kind: FactVirtualMAC, Owners: ids(o)})
		}
	}
	for i := range q.in.Former { // a node that had the address before and gave it to another one
		f := &q.in.Former[i]
		if slices.ContainsFunc(q.owners, func(o *Owner) bool { return f.handedOver(o, q.policy.HandoverGrace) }) {
			facts = append(facts, Fact{Kind: FactHandedOver, Nodes: []string{f.Owner.Node.Name}, At: f.Until})
		}
	}
	return facts
}
