package verdict

import (
	"cmp"
	"fmt"
	"slices"
)

// manyClaims is from when on owners are found by a map.
const manyClaims = 16

// evidence is what speaks for one owner, gathered while claims are attributed.
type evidence struct {
	assigned, failed, local, private bool   // by the kernel
	strong, old, weak                bool   // by the wire; old is what was strong
	until                            Stamp  // when strong becomes old, if nothing is heard until then; 0 for never
	proxied                          string // why what it says on the wire does not make it the holder
	cloned                           string // owner of the hardware address that its frames have
	claims                           int
}

// configured tells whether a kernel has the address for the owner, wherever.
func (e *evidence) configured() bool { return e.assigned || e.failed || e.local || e.private }

// ledger collects claims by owner.
type ledger struct {
	owners   []Owner
	evidence []evidence
	byID     map[string]int // only where there are many claims
}

// at is the position of the owner with an id; -1 where it is new.
func (l *ledger) at(id string) int {
	if l.byID != nil {
		if i, ok := l.byID[id]; ok {
			return i
		}
		return -1
	}
	return slices.IndexFunc(l.owners, func(o Owner) bool { return o.ID == id })
}

func (l *ledger) enter(o Owner) int {
	if l.byID != nil {
		l.byID[o.ID] = len(l.owners)
	}
	l.owners = append(l.owners, o)
	l.evidence = append(l.evidence, evidence{})
	return len(l.owners) - 1
}

// namespace is the position of the owner that a namespace is. Of two agents
// that see one namespace, the first by name is shown.
func (l *ledger) namespace(ns *Namespace) int {
	i := l.at(ns.ID)
	if i < 0 {
		return l.enter(Owner{ID: ns.ID, Node: ns.Node, Namespace: ns})
	}
	if o := &l.owners[i]; !o.Node.is(ns.Node) && compareNodes(ns.Node, o.Node) < 0 {
		o.Node, o.Namespace = ns.Node, ns
	}
	return i
}

// external is the position of the owner that a foreign MAC on a link is.
func (l *ledger) external(c *Claim) int {
	n, name := c.Node(), linkName(c.Link)
	if c.Link != nil && c.Link.Domain != nil {
		n, name = c.Link.Domain.Node, c.Link.Domain.Name
	}
	id := n.Boot + "/" + n.Netns + "/" + name + "/" + c.MAC.String()
	if i := l.at(id); i >= 0 {
		return i
	}
	return l.enter(Owner{ID: id, Node: c.Node(), MAC: c.MAC})
}

// owners attributes every claim to an owner, and says of each owner whether it
// is there and whether it is compared.
func (j *judging) owners() {
	claims := j.in.Claims
	if len(claims) == 0 {
		return
	}
	var fewEvidence [4]evidence
	l := ledger{owners: make([]Owner, 0, 1), evidence: fewEvidence[:0]} // most addresses have one
	if len(claims) > manyClaims {
		l.byID = make(map[string]int, len(claims))
	}
	var few [manyClaims]int32
	belongs := few[:0]
	for _, c := range claims {
		belongs = append(belongs, j.kernelClaim(&l, c))
	}
	for i, c := range claims {
		if belongs[i] < 0 {
			if j.assigned == nil {
				j.list()
			}
			belongs[i] = j.wireClaim(&l, c)
		}
		l.evidence[belongs[i]].claims++
	}

	// One array holds the claims of all owners, one after the other.
	all := make([]*Claim, len(claims))
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
		j.weigh(&l.owners[o], &l.evidence[o])
		j.join(&l.owners[o])
	}
	slices.SortFunc(l.owners, compareOwners)
	j.out.Owners = l.owners
}

// list lists the claims of kernels.
func (j *judging) list() {
	j.assigned = make([]*Claim, 0, 1)
	for _, c := range j.in.Claims {
		if c.Kind == Assigned {
			j.assigned = append(j.assigned, c)
		}
	}
}

// kernelClaim enters what a kernel says; -1 for a claim of the wire.
func (j *judging) kernelClaim(l *ledger, c *Claim) int32 {
	if c.Kind != Assigned && c.Kind != DADFailed {
		return -1
	}
	o := l.namespace(c.Interface.Namespace)
	e := &l.evidence[o]
	switch {
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

// wireClaim enters what a frame says, for the owner whose frame it is.
func (j *judging) wireClaim(l *ledger, c *Claim) int32 {
	ns, via, rule := j.sender(c)
	var o int
	if ns != nil {
		o = l.namespace(ns)
		if known := l.owners[o].Interface; via != nil && (known == nil || compareInterfaces(via, known) < 0) {
			l.owners[o].Interface = via
		}
	} else {
		o = l.external(c)
	}
	if j.explain {
		j.noteSender(rule, c, ns)
	}
	switch e := &l.evidence[o]; {
	case c.Kind == Believed:
	case rule == RuleMACCloned:
		e.cloned = c.MAC.String()
	case c.Source != "" || c.MAC.Group():
		e.weak = true
	case c.NoOverride && e.configured(): // its kernel's word says more
	default:
		proxied := ""
		if !e.configured() {
			proxied = j.proxied(c, ns, via)
		}
		switch {
		case proxied != "":
			if e.proxied == "" || proxied < e.proxied { // whatever the order of claims
				e.proxied = proxied
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

// A stranger is taken for a proxy that only answers for so many addresses, or
// for addresses of so many owners: those are not all duplicates.
const (
	ManyAnswers  = 16
	SeveralOwned = 2
)

// responders are hardware addresses that network plugins answer with for others.
var responders = map[MAC]string{
	"\xaa\xbb\xcc\xdd\xee\xff": "Antrea",
	"\xee\xee\xee\xee\xee\xee": "Calico",
}

// proxied says why a claim to an address that its sender's kernel does not have
// is no holding; empty where it is one.
func (j *judging) proxied(c *Claim, ns *Namespace, via *Interface) string {
	switch {
	case c.NoOverride:
		return "it advertises the address without the Override flag, as a proxy does (NDP proxy): the address is reachable via it"
	case c.Kind != Answered:
		return ""
	case via != nil && (&Owner{Namespace: ns}).meantBy(j.in.Address) == "": // else what is in there has it, by a network of its own
		return "it answers for the address with a hardware address of its own, but its kernel does not have it: the address is reachable via it (proxy ARP or NDP)"
	case responders[c.MAC] != "":
		return fmt.Sprintf("%s is the hardware address with which %s answers for others: the address is reachable via it", c.MAC, responders[c.MAC])
	case ns != nil:
		return ""
	case j.spoke(c):
		return ""
	}
	switch addresses, owners := j.in.answers(c.Link, c.MAC); {
	case owners >= SeveralOwned:
		return "it answers for what several owners have, and never announced or used any of it: the address is reachable via it (a router with proxy ARP or NDP)"
	case addresses >= ManyAnswers:
		return fmt.Sprintf("it answers for %d addresses or more, and never announced or used them: the address is reachable via it (a router with proxy ARP or NDP)", ManyAnswers)
	}
	return ""
}

// spoke tells whether the sender of an answer ever claimed the address unasked.
func (j *judging) spoke(c *Claim) bool {
	if j.spoken == nil { // once, as many nodes may have heard the answers of one router
		j.spoken = map[speaker]struct{}{}
		for _, o := range j.in.Claims {
			if (o.Kind == Announced || o.Kind == Used) && !o.Weak() {
				j.spoken[speaker{o.MAC, linkScope(o).whole()}] = struct{}{}
			}
		}
	}
	_, ok := j.spoken[speaker{c.MAC, linkScope(c).whole()}]
	return ok
}

// speaker is a MAC on a link, whichever node's.
type speaker struct {
	mac  MAC
	link extent
}

// fresh tells whether the wire's word still counts. What was heard from a node
// that is silent now cannot be taken back by silence.
func (j *judging) fresh(c *Claim) bool {
	n := c.Node()
	return !n.TimedOut && (n.Unheard || c.Seen.Add(j.policy.StaleAfter) > j.in.Now)
}

// weigh says of one owner whether it is there, and whether it is compared.
func (j *judging) weigh(o *Owner, e *evidence) {
	o.Assigned = e.assigned
	j.face(o)
	o.State = j.state(o, e)
	o.Rule, o.Excluded = j.exclusion(e)
	if o.Excluded != "" {
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
	o.Scope = widest.Scope()
}

// face chooses the interface and the MAC to show: those of the first claim, as
// the kernel's come before the wire's.
func (j *judging) face(o *Owner) {
	first := o.Claims[0]
	if first.Wire() || first.Kind == Believed {
		o.MAC = first.MAC
		if o.Namespace == nil {
			o.Node = first.Node()
		}
		if o.Interface == nil {
			o.Interface = first.Interface
		}
		return
	}
	o.Interface, o.MAC = first.Interface, first.Interface.MAC
	o.Namespace, o.Node = first.Interface.Namespace, first.Node()
}

// state says whether an owner is there. The kernel's word lasts until it is
// taken back; the wire's word wears off, unless its node is silent.
func (j *judging) state(o *Owner, e *evidence) State {
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

// expire ends an owner that the wire alone shows, after twice the time that
// makes it stale.
func (j *judging) expire(o *Owner, stale Stamp) {
	if end := stale.Add(j.policy.StaleAfter); j.in.Now < end {
		j.again(end)
		return
	}
	j.out.Expired = append(j.out.Expired, o.Claims...)
}

// exclusion says by which rule, and why, an owner is not compared.
func (j *judging) exclusion(e *evidence) (rule, why string) {
	if s, ok := j.shared(); ok {
		return RuleDeclaredShared, "it is declared as shared on purpose (" + s.Reason + ")"
	}
	switch {
	case e.assigned, e.failed:
		return "", ""
	case e.local, j.in.Address.IsLoopback():
		return RuleLoopbackOrDummy, "the address is on a loopback or dummy device, where service and anycast addresses stand on purpose"
	case e.strong:
		if e.until != 0 {
			j.again(e.until) // a neighbour table may show the owner for longer
		}
		return "", ""
	case e.proxied != "":
		return RuleReachableVia, e.proxied
	case e.private:
		return RulePrivateLink, "the address is on a link inside this network namespace that does not lead to the node"
	case e.old:
		return RuleStale, "known only from the wire, and not seen there for " + j.policy.StaleAfter.String()
	case e.cloned != "":
		return RuleMACCloned, "its frames carry " + e.cloned + ", the hardware address of another owner on the link (finding " + FindingMACCloned + ")"
	case e.weak:
		return RuleWeakSource, "known only from frames whose Ethernet source is not the hardware address they claim it for, or which no host can have"
	}
	return RuleBelieved, "known only from a neighbour table, which shows what others believe"
}

// DeclaresShared reports whether all addresses of a range are declared as shared on purpose.
func (p *Policy) DeclaresShared(r Range) bool {
	return slices.ContainsFunc(p.Shared, func(s Shared) bool { return s.Prefix.Contains(r.First) && s.Prefix.Contains(r.Last) })
}

// shared is the declaration that covers the address; the longest prefix wins.
func (j *judging) shared() (best Shared, ok bool) {
	for _, s := range j.policy.Shared {
		if s.Prefix.Contains(j.in.Address) && (!ok || s.Prefix.Bits() > best.Prefix.Bits()) {
			best, ok = s, true
		}
	}
	return best, ok
}

// compareClaims orders the claims of one owner: the kernel's before the wire's,
// interfaces that count before those that do not.
func compareClaims(a, b *Claim) int {
	return cmp.Or(
		cmp.Compare(a.Kind, b.Kind),
		cmp.Compare(a.Interface.Attachment, b.Interface.Attachment),
		compareNodes(a.Node(), b.Node()),
		cmp.Compare(a.Interface.Name, b.Interface.Name),
		cmp.Compare(a.Interface.Index, b.Interface.Index),
		cmp.Compare(a.MAC, b.MAC),
		cmp.Compare(a.VLAN, b.VLAN),
		cmp.Compare(a.InnerVLAN, b.InnerVLAN),
		compareBools(a.NoOverride, b.NoOverride),
		cmp.Compare(a.Source, b.Source),
	)
}

// compareOwners is the order of the contract: node, namespace, interface.
func compareOwners(a, b Owner) int {
	return cmp.Or(
		cmp.Compare(a.Node.Name, b.Node.Name),
		compareNumbers(a.netns(), b.netns()),
		cmp.Compare(a.Interface.Name, b.Interface.Name),
		cmp.Compare(a.ID, b.ID),
	)
}

// compareNodes orders nodes by name, then by identity.
func compareNodes(a, b *Node) int {
	return a.Key().compare(b.Key())
}

// compare orders keys as compareNodes does.
func (k NodeKey) compare(other NodeKey) int {
	return cmp.Or(cmp.Compare(k.Name, other.Name), cmp.Compare(k.Boot, other.Boot), cmp.Compare(k.Netns, other.Netns), cmp.Compare(k.Vouched, other.Vouched))
}

// compareBools orders false before true.
func compareBools(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

// compareNumbers orders decimal numbers without leading zeros.
func compareNumbers(a, b string) int {
	return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b))
}

func (o *Owner) netns() string {
	if o.Namespace == nil {
		return ""
	}
	return o.Namespace.Netns
}
