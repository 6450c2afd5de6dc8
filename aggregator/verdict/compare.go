package verdict

import (
	"cmp"
	"slices"
	"time"
)

// conflicts compares the owners in every scope and continues the conflicts that were active.
func (j *comparison) conflicts() {
	compared, failed := 0, false
	for i := range j.out.Owners {
		if o := &j.out.Owners[i]; o.Excluded == nil && o.Alive() {
			compared++
			failed = failed || o.DADFailed()
		}
	}
	var over coverage
	if compared >= 2 || failed {
		j.hold()
		for _, c := range j.in.Claims {
			if c.answersForGroup() {
				j.groupAnswers = append(j.groupAnswers, c)
			}
		}
		j.grouped = j.groups()
		for _, g := range j.grouped {
			if over.covers(g) {
				if len(g.owners) >= 2 {
					j.note(Step{Rule: RuleWiderScope, Scope: g.scope.Scope()})
				}
				continue
			}
			if len(g.owners) == 1 && slices.ContainsFunc(j.grouped, func(other group) bool {
				return len(other.owners) >= 2 && slices.Contains(other.owners, g.owners[0])
			}) {
				continue // reported together with its rival
			}
			if j.conflict(g) {
				over = append(over, g)
			}
		}
	}
	for i := range j.in.Conflicts {
		if prev := &j.in.Conflicts[i]; prev.Active() && !prev.Awaited && !j.continues(prev.ID) {
			switch e := j.ended(prev, over); {
			case e.Kind == EndScopesApart && prev.Kind == NetworkScope && j.in.Unread:
			case e.Kind == EndNoCarrier && j.loose(prev, e.Owner):
			default:
				j.out.Ended = append(j.out.Ended, e)
			}
		}
	}
	if len(j.out.Conflicts) > 0 || j.claimedElsewhere() || compared == 1 && j.in.Address.Is4() && j.leaked() || compared > 0 && j.responds() {
		j.out.Contested = true
	}
}

// loose reports whether an owner of a conflict lost its carrier only a moment ago, after the conflict was confirmed: it lasts, so
// that a loose cable does not hide it.
func (j *comparison) loose(prev *Memory, owner string) bool {
	const moment = 30 * time.Second
	i := slices.IndexFunc(j.out.Owners, func(o Owner) bool { return o.ID == owner })
	lost := j.away(&j.out.Owners[i]).link().CarrierLost
	if prev.Phase != Confirmed || prev.ConfirmedAt >= lost || j.in.Now >= lost.Add(moment) {
		return false
	}
	j.again(lost.Add(moment))
	return true
}

// claimedElsewhere reports whether a node claims the address on the wire although a controller assigns
// it to another node. Its next frame shows whether it goes on to do so.
func (j *comparison) claimedElsewhere() bool {
	return j.in.Virtual() && slices.ContainsFunc(j.out.Owners, func(o Owner) bool {
		return o.Kind() == Host && o.Excluded == nil && !o.Assigned && !j.in.Assigns(&o)
	})
}

// leaked reports whether ARP requests with the address as the sender came from an owner that has it on a loopback or dummy
// device. The next one shows whether it goes on to use it.
func (j *comparison) leaked() bool {
	return slices.ContainsFunc(j.out.Owners, func(o Owner) bool {
		return o.ExcludedBy(RuleLoopbackOrDummy) && slices.ContainsFunc(o.Claims, func(c *Claim) bool { return c.Kind == Used && !c.Weak() && c.Seen.Add(j.policy.StaleAfter) > j.in.Now })
	})
}

// responds reports whether an owner that is not compared answers for one that is. The next answer shows whether it goes on.
func (j *comparison) responds() bool {
	since := j.in.Now.Add(-j.policy.StaleAfter)
	for i := range j.out.Owners {
		o := &j.out.Owners[i]
		if o.ExcludedBy(RuleReachableVia) && slices.ContainsFunc(j.out.Owners, func(r Owner) bool {
			return r.Excluded == nil && r.Alive() && o.RespondsFor(&r, since, false) != nil
		}) {
			return true
		}
	}
	return false
}

// coverage is the list of groups that are reported already. A set of owners is reported once, in
// the widest scope.
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

func (j *comparison) continues(id string) bool {
	return slices.ContainsFunc(j.out.Conflicts, func(c Conflict) bool { return c.ID == id })
}

// ProofLasts is how long a proof that links are one lasts without frames, as a multiple of --stale-after.
const ProofLasts = 3

// conflict judges one scope and reports whether it has a conflict.
func (j *comparison) conflict(g group) bool {
	owners := j.participants(g)
	if j.in.Unread && j.awaited(owners) {
		return true // its cause, and the scope in which it was detected, depend on what is not read yet
	}
	prev := j.previous(g, owners)
	active := prev != nil && prev.Active()
	rule, moves := j.rule(owners)
	if rule == RuleDADFailed && len(owners) == 1 && (owners[0].looped() || owners[0].Yielded() || j.knewRival(&owners[0])) {
		rule = "" // nobody else has the address; the audit says so
	}
	if rule != "" && j.in.NodesAwaited != 0 && mayBeOne(owners) {
		switch {
		case active && prev.Awaited:
			j.again(j.in.Now.Add(checkInterval))
			return false
		case !active && j.in.Now < j.in.NodesAwaited:
			j.again(j.in.Now.Add(awaitInterval))
			return false
		}
	}
	if rule == "" && active && len(owners) >= 2 { // an owner that is silent now may still be there
		switch {
		case prev.Rule == RuleExternalsAlternate || prev.Rule == RuleSplitBrain:
			rule, moves = prev.Rule, moves || prev.Rule == RuleSplitBrain
		case moves:
			rule = RuleExternalsAlternate
		}
	}
	if rule == "" {
		if len(owners) >= 2 && j.explain { // that senders alternate proves nothing
			step := Step{Rule: RuleMACChanged, Scope: g.scope.Scope()}
			for i := range owners {
				step.Owners = append(step.Owners, withoutScopes(&owners[i])...)
			}
			j.note(step)
		}
		return false
	}

	c := Conflict{Address: j.in.Address}
	if active && !prev.lasts(owners) {
		if prev.awaits() {
			return true // it is not known whether the others have left
		}
		j.out.Ended = append(j.out.Ended, j.ended(prev, nil))
		active = false // another one begins
	}
	if active {
		c.Identity, c.Course = prev.Identity, prev.Course
		if c.Awaited {
			c.Awaited, c.Resumed = false, j.in.Now
		}
	} else {
		c.Identity = Identity{Kind: g.scope.Kind, Scope: g.scope.Text(), Episode: 1}
		c.Course = Course{Phase: Suspected, DetectedAt: j.in.Now}
		c.ID = ID(j.policy.Cluster, c.Kind, c.Scope, c.Address)
		if prev != nil {
			c.Episode = prev.Episode + 1
		}
	}
	if active && !prev.has(owners) {
		c.Phase, c.ConfirmedAt, c.Asked = Suspected, 0, 0 // all owners that were witnessed have left
	}
	if active {
		restoreOrphaned(owners, prev.Owners)
	}
	if prev != nil {
		c.Parted = j.parted(prev, owners)
	}
	c.Rule, c.Owners, c.Order = rule, owners, arrivals(owners)
	c.Moves = moves
	c.Eldest = prev.eldest(c.Parties())
	if c.Unplaced() {
		c.Phase, c.ConfirmedAt = Suspected, 0 // the owner that an agent knows has left
	}
	c.LinkProof = c.linkProof(g.across())
	// Frames in one direction prove it only after a time. What was proven before a start lasts as long as such a proof.
	if until := c.Resumed.Add(ProofLasts * j.policy.StaleAfter); active && prev.LinkProof == Proven && c.LinkProof == OneWay && c.Resumed != 0 && j.in.Now < until {
		c.LinkProof = Proven
		j.again(until)
	}
	if c.LinkProof == OneWay && rule != RuleDADFailed && !oneMAC(owners) {
		c.Phase, c.ConfirmedAt = Suspected, 0 // even if it was proven before
	}
	if c.Phase == Suspected {
		j.settle(&c, g.across())
	}
	j.inquire(&c)
	if rule == RuleDADFailed && len(owners) == 1 {
		// A sender that only answers for the address may be the reason why detection failed.
		for i := range j.out.Owners {
			if o := &j.out.Owners[i]; o.ExcludedBy(RuleReachableVia) {
				c.Bystanders = append(c.Bystanders, *o)
			}
		}
	}
	for i := range j.out.Owners {
		o := &j.out.Owners[i]
		if o.Namespace == nil && o.MAC.multicast() && slices.ContainsFunc(owners, func(own Owner) bool { last := j.groupAnswer(&own); return last != nil && last.MAC == o.MAC }) {
			c.Bystanders = append(c.Bystanders, *o) // they may share the load
		}
	}
	j.out.Conflicts = append(j.out.Conflicts, c)
	j.note(Step{Rule: c.Rule, Scope: g.scope.Scope(), Applied: true, Conflict: c.ID})
	return true
}

// mayBeOne reports whether owners may be one, if a device outside of all nodes is a node that has not reported yet.
func mayBeOne(owners []Owner) bool {
	known := 0
	for i := range owners {
		if owners[i].Kind() != External {
			known++
		}
	}
	return known < 2 && known < len(owners)
}

// awaited reports whether all owners are in one conflict from before the start that is not judged yet.
func (j *comparison) awaited(owners []Owner) bool {
	return slices.ContainsFunc(j.in.Conflicts, func(m Memory) bool {
		return m.Active() && m.Awaited && !slices.ContainsFunc(owners, func(o Owner) bool { return !m.has([]Owner{o}) })
	})
}

// looped reports whether duplicate address detection failed because a bridge returned the owner's own
// solicitation.
func (o *Owner) looped() bool {
	return o.DADFailed() && o.Interface != nil && o.Interface.Hairpin
}

// knewRival reports whether a failed detection of duplicates was explained: a conflict, maybe in a wider scope, had an owner
// besides the one that is left.
func (j *comparison) knewRival(left *Owner) bool {
	return slices.ContainsFunc(j.in.Conflicts, func(m Memory) bool {
		return m.Rule == RuleDADFailed && len(m.Owners) > 1 && m.has([]Owner{*left}) || slices.ContainsFunc(m.Parted, func(p Parted) bool { return p.Owner.is(left) })
	})
}

// parted returns the owners whose detection of duplicates failed because of a conflict that goes on without them.
func (j *comparison) parted(prev *Memory, owners []Owner) (parted []Parted) {
	was := slices.Clone(prev.Parted)
	if prev.Rule == RuleDADFailed {
		until := cmp.Or(prev.ResolvedAt, j.in.Now)
		for _, m := range prev.Owners {
			for _, rival := range prev.Owners {
				if rival.ID != m.ID {
					was = append(was, Parted{m, rival, until})
					break
				}
			}
		}
	}
	for _, p := range was {
		failed := func(o Owner) bool { return o.DADFailed() && p.Owner.is(&o) }
		if slices.ContainsFunc(j.out.Owners, failed) && !slices.ContainsFunc(owners, failed) && !slices.ContainsFunc(parted, func(q Parted) bool { return q.Owner.ID == p.Owner.ID }) {
			parted = append(parted, p)
		}
	}
	return parted
}

// Refusal is why the kernel of an owner does not use the address although no rival is known.
type Refusal struct {
	// Looped is set if the owner's own solicitation came back.
	Looped bool
	// Rival is the owner that had the address and has left since; nil if there is none. Until is when it
	// was found to have left. GaveUp is set if its kernel reported that: devices without an agent only fall
	// silent, and so do disconnected nodes.
	Rival  *Member
	Until  Stamp
	GaveUp bool
}

// Refused returns why the kernel of an owner does not use the address although no rival is known, according to the
// judgement of the case.
func (c *Case) Refused(o *Owner, judged *Judgement) (r Refusal) {
	if o.looped() {
		return Refusal{Looped: true}
	}
	if !o.DADFailed() {
		return r
	}
	part := func(parted []Parted) {
		for i := range parted {
			if p := &parted[i]; p.Owner.is(o) && p.Until > r.Until {
				r = Refusal{Rival: &p.Rival, Until: p.Until}
			}
		}
	}
	for i := range judged.Conflicts {
		part(judged.Conflicts[i].Parted)
	}
	for i := range c.Conflicts {
		m := &c.Conflicts[i]
		part(m.Parted)
		ended, end := m.ResolvedAt, m.End
		if k := slices.IndexFunc(judged.Ended, func(e Ended) bool { return e.ID == m.ID }); k >= 0 {
			ended, end = judged.Ended[k].At, judged.Ended[k].Kind
		}
		if ended < max(r.Until, 1) || m.Rule != RuleDADFailed || !m.has([]Owner{*o}) {
			continue
		}
		for k := range m.Owners {
			if was := &m.Owners[k]; !was.is(o) && (ended > r.Until || was.ID < r.Rival.ID) {
				r = Refusal{Rival: was, Until: ended, GaveUp: was.Assigned && end == EndRefused}
			}
		}
	}
	return r
}

// Explains reports whether a resolved conflict is why the kernel of an owner does not use the address. It is
// kept as long as that lasts: without it, the rival would count as unknown.
func (c *Conflict) Explains(owners []Owner) bool {
	return slices.ContainsFunc(owners, func(o Owner) bool {
		return o.DADFailed() && (c.Rule == RuleDADFailed && c.Owner(o.ID) != nil || slices.ContainsFunc(c.Parted, func(p Parted) bool { return p.Owner.is(&o) }))
	})
}

// has reports whether one of the owners is part of the conflict already. An external device is
// identified by its hardware address, because its ID changes when links are merged into a domain.
func (m *Memory) has(owners []Owner) bool {
	return slices.ContainsFunc(m.Owners, func(was Member) bool {
		return slices.ContainsFunc(owners, func(o Owner) bool { return was.is(&o) })
	})
}

// lasts reports whether two of the owners that the conflict had, or its only one, are among those of now. Devices outside of all
// nodes may not have been seen since the start.
func (m *Memory) lasts(now []Owner) bool {
	left := 0
	for i := range m.Owners {
		if was := &m.Owners[i]; m.Awaited && was.External || slices.ContainsFunc(now, func(o Owner) bool { return was.continuesAs(&o) }) {
			left++
		}
	}
	return left >= min(2, len(m.Owners))
}

// awaits reports whether the node of an owner has not reported since the start.
func (m *Memory) awaits() bool {
	return m.Awaited && slices.ContainsFunc(m.Owners, func(was Member) bool { return was.Awaited })
}

func (m *Member) is(o *Owner) bool {
	return o.ID == m.ID || o.Namespace == nil && m.External && o.MAC == m.MAC
}

// continuesAs reports whether an owner is the one that was a member, or has come in its place: its namespace is known now, its node
// was restarted, or its workload has another network namespace.
func (m *Member) continuesAs(o *Owner) bool {
	known := m.Record != 0 && o.Namespace != nil && m.Record == o.Namespace.Record && m.Node == o.Node.Name && m.MAC == o.MAC
	return known || m.is(o) || o.Namespace != nil && !m.External && m.Node == o.Node.Name && m.Who.Kind() == o.Kind() &&
		m.Who.Namespace() == o.Namespace.Who.Namespace() && m.Who.Name() == o.Namespace.Who.Name() && (m.Who.Name() != "" || o.Kind() == Host)
}

// eldest returns the ID of the owner that had the address first when that became known; empty if it is not.
func (m *Memory) eldest(owners []*Owner) string {
	if m != nil {
		if i := slices.IndexFunc(m.Owners, func(was Member) bool { return was.ID == m.Eldest }); i >= 0 {
			if o := slices.IndexFunc(owners, m.Owners[i].continuesAs); o >= 0 {
				return owners[o].ID
			}
		}
	}
	if first := oldest(owners); first != nil {
		return first.ID
	}
	return ""
}

// previous returns the conflict that a group continues; nil if there is none. It is the conflict of
// the same scope, active or resolved. Otherwise it is an active conflict that shares two owners
// with the group, and whose scope has been widened since and has no owner outside of the group. Of
// several such conflicts, the one whose owners differ least is chosen.
func (j *comparison) previous(g group, owners []Owner) *Memory {
	text := g.scope.Text()
	var found *Memory
	for i := range j.in.Conflicts {
		if c := &j.in.Conflicts[i]; c.Kind == g.scope.Kind && c.Scope == text {
			if c.Active() {
				return c
			}
			found = c
		}
	}
	least := -1
	for i := range j.in.Conflicts {
		c := &j.in.Conflicts[i]
		if !c.Active() || c.Kind > g.scope.Kind || j.continues(c.ID) || j.hasOtherOwners(c, g) {
			continue
		}
		both := 0
		for k := range owners {
			if slices.ContainsFunc(c.Owners, func(was Member) bool { return was.ID == owners[k].ID }) {
				both++
			}
		}
		if differ := len(owners) + len(c.Owners) - 2*both; both >= 2 && (least < 0 || differ < least) {
			found, least = c, differ
		}
	}
	return found
}

// hasOtherOwners reports whether the scope of a conflict has an owner that a group lacks. That
// scope is judged on its own and continues the conflict.
func (j *comparison) hasOtherOwners(c *Memory, g group) bool {
	return slices.ContainsFunc(j.grouped, func(own group) bool {
		return own.scope.Kind == c.Kind && own.scope.Text() == c.Scope && !coverage{g}.covers(own)
	})
}

// participants returns the owners of a group with one of the nodes whose devices are a distributed gateway:
// they have one MAC, and a controller tells each bridge where MACs are. The machines on a bridge reach
// the gateway on their own node. It returns one of the nodes that answer with one group MAC, too: all of them receive the
// frames. Another owner is still compared with the one that is left. Time on another link, or in
// another network, is no tenure in the scope of the group.
func (j *comparison) participants(g group) (owners []Owner) {
	gateways, groups := map[MAC]bool{}, map[MAC]bool{}
	for _, i := range g.owners {
		o := &j.out.Owners[i]
		if mac := j.sharedMAC(o); mac != "" && len(g.owners) > 1 {
			if groups[mac] {
				o.Excluded = &Exclusion{Rule: RuleLoadShared, MAC: mac}
				continue
			}
			groups[mac] = true
		}
		if o.distributed() {
			if gateways[o.MAC] {
				o.Excluded = &Exclusion{Rule: RuleAnycastGateway}
				continue
			}
			gateways[o.MAC] = true
		}
		owners = append(owners, *o)
		j.placeIn(g.scope.canonical(), &owners[len(owners)-1])
	}
	return owners
}

// placeIn finds the claims of a kernel by which an owner is in a scope. On a link, the owner is displayed with its interface there.
func (j *comparison) placeIn(scope extent, o *Owner) {
	o.Here = []*Claim{}
	var frames []*Claim
	for _, c := range o.Claims {
		j.scopes(o, c, func(s extent) {
			switch {
			case s.canonical() != scope:
			case c.Wire():
				frames = append(frames, c)
			default:
				o.Here = append(o.Here, c)
			}
		})
	}
	if scope.Kind != LinkScope {
		return
	}
	if len(o.Here) == 0 { // link-local addresses are not compared across nodes
		for _, c := range o.Claims {
			if (c.Counts() || c.Kind == DADFailed) && slices.ContainsFunc(frames, func(frame *Claim) bool { return sameLink(c.Interface.Link, frame.Link) }) {
				o.Here = append(o.Here, c)
			}
		}
	}
	if o.OnLink = len(o.Here) > 0; o.OnLink {
		o.Interface, o.MAC = o.Here[0].Interface, o.Here[0].Interface.MAC
	}
}

// sharedMAC returns the group MAC with which a node answers for the address, so that all nodes that do so receive the frames for it
// (CLUSTERIP of Linux); empty if it does not, or if it has also answered with a MAC of its own lately.
func (j *comparison) sharedMAC(o *Owner) MAC {
	last := j.groupAnswer(o)
	if last == nil || slices.ContainsFunc(o.Claims, func(c *Claim) bool {
		return c.Kind == Answered && !c.Weak() && (c.Seen >= last.Seen || c.Seen.Add(j.policy.StaleAfter) > j.in.Now)
	}) {
		return ""
	}
	return last.MAC
}

// groupAnswer returns the last answer for the address that a node has sent with a group MAC, from an interface with the
// address; nil if there is none.
func (j *comparison) groupAnswer(o *Owner) (last *Claim) {
	if o.Kind() != Host || !o.Assigned {
		return nil
	}
	for _, c := range j.groupAnswers {
		if c.Seen >= o.Begun() && slices.ContainsFunc(o.Claims, func(own *Claim) bool {
			return own.Counts() && own.Interface.MAC == c.Source && sameLink(own.Interface.Link, c.Link)
		}) && (last == nil || c.Seen > last.Seen || c.Seen == last.Seen && c.MAC < last.MAC) {
			last = c
		}
	}
	return last
}

// answersForGroup reports whether the frame came from outside of the node and answered for all machines with a group MAC.
func (c *Claim) answersForGroup() bool {
	return c.Kind == Answered && c.MAC.multicast() && c.Source != "" && c.Interface.Uplink
}

// distributed reports whether a node has the address only on bridges to which a controller tells where MACs
// are, or on devices of them: for a VLAN of a bridge, or macvlan, which has the gateway's MAC if the bridge has
// an address of its own.
func (o *Owner) distributed() bool {
	return o.Kind() == Host && o.Assigned && !slices.ContainsFunc(o.Claims, func(c *Claim) bool {
		i := c.Interface
		return c.Counts() && (!i.isBridge() && i.Kind != "vlan" && i.Kind != "macvlan" || i.Link == nil || !i.Link.Distributed)
	})
}

// LastOnWire returns when the owner was last seen on the wire; 0 for never.
func (o *Owner) LastOnWire() (newest Stamp) {
	for _, c := range o.Claims {
		if c.Wire() && !c.Weak() {
			newest = max(newest, c.Seen)
		}
	}
	return newest
}

// mayMove reports whether all owners may hand over a virtual address.
func (j *comparison) mayMove(owners []Owner) bool {
	return !slices.ContainsFunc(owners, func(o Owner) bool { return !j.in.moves(&o) })
}

// moved reports whether a program in the namespace of one owner moves the address, or one on a node if another owner is
// a device without an agent. The programs of the other owners may have ended before their agents saw them, and no agent sees
// those of devices. An address that was given to an owner is no virtual one, nor is the main address of a node.
func (j *comparison) moved(owners []Owner) bool {
	outside := slices.ContainsFunc(owners, func(o Owner) bool { return o.Namespace == nil })
	return slices.ContainsFunc(owners, func(o Owner) bool { return o.hasVIPProgram() && (outside || o.Kind() != Host) }) &&
		!slices.ContainsFunc(owners, func(o Owner) bool {
			return o.Namespace != nil && (!o.Assigned || o.network() != "" || o.givenByRuntime() || o.Namespace.intent(j.in.Address).Source != "") ||
				outside && o.mainAddress(j.in.Address)
		}) &&
		!slices.ContainsFunc(j.in.Allocations, func(al AllocationFacts) bool { return al.Service == nil && !al.Pool.Assigns })
}

// movesRefused reports whether the address is one that its owners hand over, although detection of duplicates failed in the
// kernel of one of them: the former owner was slow to give it up.
func (j *comparison) movesRefused(owners []Owner) bool {
	return len(owners) > 1 && j.mayMove(owners) && !slices.ContainsFunc(owners, func(o Owner) bool {
		return j.in.asOwn(&o, owners) || slices.ContainsFunc(o.Claims, func(c *Claim) bool {
			return (c.Counts() || c.Kind == DADFailed) && c.Flags&FlagPermanent == 0 // of a client or a router advertisement
		})
	}) && (j.in.Virtual() || virtual(owners) || slices.ContainsFunc(owners, func(o Owner) bool {
		return o.hasVIPProgram() || slices.ContainsFunc(o.Claims, func(c *Claim) bool {
			return c.Kind == DADFailed && int(c.PrefixLength) == j.in.Address.BitLen()
		})
	}))
}

// meantToMove reports whether there is evidence that the address moves between its owners: inquiry.moves returns it.
func (j *comparison) meantToMove(owners []Owner) bool {
	return slices.ContainsFunc(j.in.Allocations, func(al AllocationFacts) bool { return al.Pool.Assigns }) || virtual(owners) ||
		slices.ContainsFunc(owners, func(o Owner) bool { return o.hasVIPProgram() }) ||
		slices.ContainsFunc(j.in.Former, func(f Former) bool {
			return slices.ContainsFunc(owners, func(o Owner) bool { return f.handedOver(&o, j.policy.HandoverGrace) })
		})
}

// rule returns the rule by which a group is a conflict, and whether its owners may hand the address over. The rule is empty
// if it is not one.
func (j *comparison) rule(owners []Owner) (rule string, moves bool) {
	assigned := 0
	for i := range owners {
		switch {
		case owners[i].DADFailed():
			return RuleDADFailed, j.movesRefused(owners)
		case owners[i].Assigned:
			assigned++
		}
	}
	switch {
	case len(owners) < 2:
		return "", false
	case samePod(owners) && len(copies(owners)) == 0:
		return RuleSamePod, false
	case sameVM(owners):
		return RuleSameVM, false
	}
	moves = j.mayMove(owners) && !slices.ContainsFunc(owners, func(o Owner) bool { return j.in.asOwn(&o, owners) }) || j.moved(owners)
	if assigned == 0 {
		j.out.Contested = true // a closer look shows whether the senders alternate
	}
	switch {
	case assigned == 0 && !alternate(owners):
		return "", moves
	case moves && j.meantToMove(owners):
		return RuleSplitBrain, moves
	case assigned >= 2:
		return RuleAssignedTwice, moves
	case assigned == 1:
		return RuleAssignedAndWire, moves
	}
	return RuleExternalsAlternate, moves
}

// ended returns how a conflict ended. Fewer than two of its owners are left in its scope.
func (j *comparison) ended(prev *Memory, over coverage) Ended {
	e := Ended{ID: prev.ID, At: j.in.Now}
	var left []*Owner
	for _, was := range prev.Owners {
		var o *Owner
		if i := slices.IndexFunc(j.out.Owners, func(o Owner) bool { return was.is(&o) }); i >= 0 {
			o = &j.out.Owners[i]
		}
		switch {
		case o == nil && was.TimedOut:
			e.Kind, e.Owner = EndTimedOut, was.ID
		case o == nil:
		case o.State == Gone && (o.Node.Rebooted || o.Node.TimedOut):
			if e.Kind == "" {
				e.Kind, e.Owner = EndTimedOut, o.ID
				if o.Node.Rebooted {
					e.Kind = EndRebooted
				}
			}
		case o.Alive():
			left = append(left, o)
			if o.Excluded != nil {
				e.Excluded = o.Excluded
			}
		}
	}
	switch {
	case e.Kind != "":
	case prev.Rule == RuleDADFailed && len(prev.Owners) == 1 && len(over) > 0:
		e.Kind = EndRivalKnown
	case len(left) == 0:
		e.Kind = EndNoOwner
	case len(left) == 1:
		e.Kind, e.Owner = EndOneOwner, left[0].ID
		switch {
		case left[0].Yielded():
			e.Kind = EndYielded
		case left[0].DADFailed():
			e.Kind = EndRefused
		}
	case e.Excluded != nil:
		e.Kind = EndExcluded
	case len(over) > 0:
		e.Kind = EndWiderScope
	case prev.LinkProof != 0:
		e.Kind = EndLinksApart
	default:
		e.Kind = EndScopesApart
	}
	if i := slices.IndexFunc(left, func(o *Owner) bool { return j.away(o) != nil }); i >= 0 && (e.Kind == EndLinksApart || e.Kind == EndScopesApart) {
		e.Kind, e.Owner = EndNoCarrier, left[i].ID
	}
	if e.Kind != EndExcluded {
		e.Excluded = nil
	}
	return e
}
