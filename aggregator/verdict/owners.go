package verdict

import (
	"cmp"
	"slices"

	"github.com/ipwitness/ipwitness/ipam"
)

// owners attributes every claim to an owner, and determines the state of each owner and whether it
// is compared.
func (j *attribution) owners() {
	claims := j.in.Claims
	if len(claims) == 0 {
		return
	}
	l := j.memory.ownerTable(claims)
	var few [manyClaims]int32
	belongs := few[:0]
	for _, c := range claims {
		belongs = append(belongs, j.kernelClaim(&l, c))
	}
	for i, c := range claims {
		if belongs[i] < 0 {
			if j.assigned == nil {
				j.assigned = slices.Grow(j.memory.assigned[:0], 1)
				for _, c := range claims {
					if c.Kind == Assigned {
						j.assigned = append(j.assigned, c)
					}
				}
				j.memory.assigned = j.assigned
			}
			belongs[i] = j.wireClaim(&l, c)
		}
		l.evidence[belongs[i]].claims++
	}

	// The claims of all owners share one array.
	j.memory.claims = slices.Grow(j.memory.claims[:0], len(claims))[:len(claims)]
	all := j.memory.claims
	from := 0
	for o := range l.owners {
		n := l.evidence[o].claims
		l.owners[o].Claims = all[from : from : from+n]
		from += n
	}
	for i, c := range claims {
		o := &l.owners[belongs[i]]
		o.Claims = append(o.Claims, c)
	}
	for o := range l.owners {
		slices.SortFunc(l.owners[o].Claims, compareClaims)
		j.evaluate(&l.owners[o], &l.evidence[o])
		j.joinPod(&l.owners[o])
	}
	slices.SortFunc(l.owners, compareOwners)
	j.memory.owners, j.memory.evidence = l.owners, l.evidence
	j.out.Owners = l.owners
}

// kernelClaim attributes a claim of a kernel and returns the index of the owner; -1 for a claim on
// the wire.
func (j *attribution) kernelClaim(l *ownerTable, c *Claim) int32 {
	if !c.Kind.Kernel() {
		return -1
	}
	o := l.namespace(c.Interface.Namespace)
	e := &l.evidence[o]
	switch {
	case c.Kind == WouldAnswer:
		e.answers = true
	case c.Interface.Attachment == Local:
		e.local = true
	case c.Interface.Attachment == Private:
		e.private = true
	case c.Kind == DADFailed:
		e.failed = true
	default:
		e.assigned = true
	}
	return int32(o)
}

// wireClaim attributes a claim on the wire and returns the index of the owner that sent it.
func (j *attribution) wireClaim(l *ownerTable, c *Claim) int32 {
	ns, via, rule := j.sender(c)
	var o int
	if ns != nil {
		o = l.namespace(ns)
		if known := l.owners[o].Interface; via != nil && (known == nil || compareInterfaces(via, known) < 0) {
			l.owners[o].Interface = via
		}
	} else {
		o = l.external(c)
		if known := l.owners[o].Interface; via != nil && (known == nil || compareFrom(nil, via, known) < 0) {
			l.owners[o].Interface = via
		}
		via = nil // not an interface of the sender
	}
	if j.explain {
		j.noteSender(rule, c, ns, &l.owners[o])
	}
	switch e := &l.evidence[o]; {
	case c.Kind == Believed:
	case rule == RuleMACCloned:
		if e.cloned == "" || c.MAC < e.cloned { // independent of the order of claims
			e.cloned = c.MAC
		}
	case c.Source != "" || c.MAC.Group():
		e.weak = true
	case c.NoOverride && e.configured(): // the kernel is better evidence
	default:
		var proxied Proxy
		if !e.configured() {
			switch proxied = j.proxied(c, ns, via); {
			case e.answers && via != nil && c.Kind == Announced:
				proxied = ByKernel // Linux answers announcements, and its answer looks like one
			case proxied == ByOwnMAC && !e.answers && ns.Who.Kind() == Host && j.sentUnsolicited(c):
				proxied = 0 // a program on the node has announced the address, and goes on to answer for it
			}
		}
		switch {
		case proxied != 0: // independent of the order of claims
			if e.proxied == 0 || proxied < e.proxied {
				e.proxied = proxied
			}
			if proxied == ByPlugin && (e.plugin == "" || c.MAC < e.plugin) {
				e.plugin = c.MAC
			}
		case j.fresh(c):
			until := c.Seen.Add(j.policy.StaleAfter)
			if c.Node().Unheard {
				until = 0
			}
			if !e.strong || e.until != 0 && (until == 0 || until > e.until) {
				e.until = until
			}
			e.strong = true
		default:
			e.old = true
		}
	}
	return int32(o)
}

// An external sender that only ever answers counts as a proxy if it answers for this many
// addresses, or for addresses of this many owners. It is unlikely that they are all duplicates.
const (
	ManyAnswers  = 16
	SeveralOwned = 2
)

// proxied returns why a claim to an address that its sender's kernel does not have does not make
// the sender an owner; 0 if it does.
func (j *attribution) proxied(c *Claim, ns *Namespace, via *Interface) Proxy {
	switch {
	case c.NoOverride:
		return ByNoOverride
	case c.Kind != Answered:
		return 0
	case via != nil && ns.Who.Kind() == Host && j.in.Virtual():
		return 0 // a program on the node answers, as the controller of the address wants of one node
	case via != nil && ns.intent(j.in.Address).Source == "": // otherwise a guest behind the interface has the address
		return ByOwnMAC
	case responders[c.MAC] != "":
		return ByPlugin
	case ns != nil, j.sentUnsolicited(c):
		return 0
	}
	switch addresses, owners := j.in.answers(c.Link, c.MAC); {
	case owners >= SeveralOwned:
		return BySeveralOwners
	case addresses >= ManyAnswers:
		return ByManyAddresses
	}
	return 0
}

// sentUnsolicited reports whether the sender of an answer ever claimed the address unsolicited.
func (j *attribution) sentUnsolicited(c *Claim) bool {
	if j.unsolicited == nil { // computed once, because many nodes may have seen the answers of one router
		j.unsolicited = map[unsolicitedSender]struct{}{}
		for _, o := range j.in.Claims {
			if (o.Kind == Announced || o.Kind == Used) && !o.Weak() {
				j.unsolicited[unsolicitedSender{o.MAC, linkScope(o).canonical()}] = struct{}{}
			}
		}
	}
	_, ok := j.unsolicited[unsolicitedSender{c.MAC, linkScope(c).canonical()}]
	return ok
}

// fresh reports whether a claim on the wire still counts. Claims seen by a disconnected node do not
// expire, because nothing can refresh them.
func (j *attribution) fresh(c *Claim) bool {
	n := c.Node()
	return !n.TimedOut && (n.Unheard || c.Seen.Add(j.policy.StaleAfter) > j.in.Now)
}

// evaluate determines whether an owner exists and whether it is compared.
func (j *attribution) evaluate(o *Owner, e *evidence) {
	o.Assigned = e.assigned
	j.setDisplayed(o)
	o.State, o.Served = j.state(o, e), j.served(o, e)
	if o.Excluded = j.exclusion(e); o.Excluded != nil {
		return
	}
	var widest extent
	for _, c := range o.Claims {
		j.scopes(o, c, func(s extent) {
			if widest.Kind == 0 || compareScopes(s, widest) < 0 {
				widest = s
			}
		})
	}
	if o.Scope = widest.Scope(); widest.Kind == 0 && slices.ContainsFunc(o.Claims, j.passedOn) {
		o.Excluded = &Exclusion{Rule: RulePassthru}
	}
}

// setDisplayed chooses the interface and the hardware address to display from the first claim.
// Claims of kernels come before claims on the wire.
func (j *attribution) setDisplayed(o *Owner) {
	if o.Namespace != nil { // its own port comes before those of other nodes that have received its frames
		slices.SortStableFunc(o.Claims, func(a, b *Claim) int { return compareBools(!o.behind(a), !o.behind(b)) })
	} else if tap := o.tap(); tap != nil { // and so does the tap of a virtual machine
		slices.SortStableFunc(o.Claims, func(a, b *Claim) int { return compareBools(!a.Interface.Is(tap), !b.Interface.Is(tap)) })
	}
	first := o.Claims[0]
	if first.Wire() || first.Kind == Believed {
		o.MAC = first.MAC
		if o.Interface == nil || o.Namespace == nil && first.Interface.Tap {
			o.Interface = first.Interface
		}
		if o.Namespace == nil {
			o.Node = o.Interface.Namespace.Node
		}
		return
	}
	o.Interface, o.MAC = first.Interface, first.Interface.MAC
	o.Namespace, o.Node = first.Interface.Namespace, first.Node()
}

// tap returns the tap through which the frames of a virtual machine enter its node, the one with the latest frame if it was
// migrated; nil if there is none.
func (o *Owner) tap() (tap *Interface) {
	var latest Stamp
	for _, c := range o.Claims {
		if c.Interface.Tap && c.Wire() && !c.Weak() && c.Seen > latest {
			tap, latest = c.Interface, c.Seen
		}
	}
	return tap
}

// Copies returns the latest frame of a virtual machine through the tap of each node, if these are several nodes: it is being
// migrated, or runs on all of them. Other hosts, such as those of a virtual private network, send through taps, too; these show
// several hardware addresses.
func (o *Owner) Copies() (latest []*Claim) {
	for _, c := range o.Claims {
		if o.Namespace != nil || !c.Alone || !c.Wire() || c.Weak() {
			continue
		}
		if i := slices.IndexFunc(latest, func(other *Claim) bool { return other.Node().Is(c.Node()) }); i < 0 {
			latest = append(latest, c)
		} else if c.Seen > latest[i].Seen {
			latest[i] = c
		}
	}
	if len(latest) < 2 {
		return nil
	}
	slices.SortFunc(latest, func(a, b *Claim) int { return cmp.Compare(a.Node().Name, b.Node().Name) })
	return latest
}

// behind reports whether a claim is a kernel's, or a frame that entered through the owner's own port.
func (o *Owner) behind(c *Claim) bool {
	return !c.Wire() && c.Kind != Believed || c.Interface.Peer == o.Namespace.Record && c.Node().Is(o.Namespace.Node)
}

// state returns the state of an owner. A claim of a kernel lasts until it is withdrawn. A claim on
// the wire expires unless its node is disconnected.
func (j *attribution) state(o *Owner, e *evidence) State {
	var kernel, unheard, heard bool
	var newest Stamp
	for _, c := range o.Claims {
		switch n := c.Node(); {
		case n.TimedOut:
		case n.Unheard:
			unheard = true
		case c.Wire() || c.Kind == Believed:
			heard = true
			newest = max(newest, c.Seen)
		default:
			kernel = true
		}
	}
	stale := newest.Add(j.policy.StaleAfter)
	switch {
	case kernel:
		return Live
	case heard && j.in.Now < stale:
		j.again(stale)
		return Live
	case unheard:
		return Unheard
	case heard && !e.configured():
		j.expire(o, stale)
		return Stale
	}
	return Gone
}

// expire deletes the claims of an owner that is only seen on the wire after twice the stale time.
// Later claims of a node that timed out are deleted with the node.
func (j *attribution) expire(o *Owner, stale Stamp) {
	if end := stale.Add(j.policy.StaleAfter); j.in.Now < end {
		j.again(end)
		return
	}
	for _, c := range o.Claims {
		if c.Seen.Add(2*j.policy.StaleAfter) <= j.in.Now && !j.sentByHolder(c) {
			j.out.Expired = append(j.out.Expired, c)
		}
	}
}

// sentByHolder reports whether a node that has the address has answered for it with a group MAC. Nobody may ask again
// for long, and without this answer, nodes that share the load of the address would be in conflict.
func (j *attribution) sentByHolder(c *Claim) bool {
	return c.answersForGroup() && slices.ContainsFunc(j.in.Claims, func(own *Claim) bool { return own.Counts() && own.Interface.MAC == c.Source })
}

// exclusion returns why an owner is not compared; nil if it is.
func (j *attribution) exclusion(e *evidence) *Exclusion {
	if s, ok := j.shared(); ok {
		return &Exclusion{Rule: RuleDeclaredShared, Reason: s.Reason}
	}
	switch {
	case e.assigned, e.failed:
		return nil
	case e.local, j.in.Address.IsLoopback():
		return &Exclusion{Rule: RuleLoopbackOrDummy}
	case e.strong:
		if e.until != 0 {
			j.again(e.until) // a neighbour table may keep the owner alive for longer
		}
		return nil
	case e.proxied == ByPlugin:
		return &Exclusion{Rule: RuleReachableVia, Proxy: ByPlugin, MAC: e.plugin}
	case e.answers:
		return &Exclusion{Rule: RuleReachableVia, Proxy: ByKernel}
	case e.proxied != 0:
		return &Exclusion{Rule: RuleReachableVia, Proxy: e.proxied}
	case e.private:
		return &Exclusion{Rule: RulePrivateLink}
	case e.old:
		return &Exclusion{Rule: RuleStale}
	case e.cloned != "":
		return &Exclusion{Rule: RuleMACCloned, MAC: e.cloned}
	case e.weak:
		return &Exclusion{Rule: RuleWeakSource}
	}
	return &Exclusion{Rule: RuleBelieved}
}

// DeclaresShared reports whether all addresses of a range are declared as shared on purpose.
func (p *Policy) DeclaresShared(r ipam.Range) bool {
	return slices.ContainsFunc(p.Shared, func(s Shared) bool { return s.Prefix.Contains(r.First) && s.Prefix.Contains(r.Last) })
}

// shared returns the declaration that covers the address; the longest prefix wins.
func (j *attribution) shared() (best Shared, ok bool) {
	for _, s := range j.policy.Shared {
		if s.Prefix.Contains(j.in.Address) && (!ok || s.Prefix.Bits() > best.Prefix.Bits()) {
			best, ok = s, true
		}
	}
	return best, ok
}
