package verdict

import (
	"cmp"
	"slices"
)

// manyClaims is from when on owners are found by a map.
const manyClaims = 16

// evidence is what speaks for one owner, gathered while claims are attributed.
type evidence struct {
	assigned, failed, local, private bool  // by the kernel
	strong, old, weak                bool  // by the wire; old is what was strong
	until                            Stamp // when strong becomes old, if nothing is heard until then; 0 for never
	proxied                          Proxy // why what it says on the wire does not make it the holder
	plugin, cloned                   MAC   // that a plugin answers with, that is another owner's
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
	if o := &l.owners[i]; !o.Node.Is(ns.Node) && compareNodes(ns.Node, o.Node) < 0 {
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

// attributing finds the owners of an address.
type attributing struct {
	*judging
	// assigned are the claims by which kernels have the address, listed once the
	// wire shows somebody: of many claims on a LAN they are few.
	assigned []*Claim
	// spoken is who claimed it unasked, listed when that is asked for.
	spoken map[speaker]struct{}
}

// owners attributes every claim to an owner, and says of each owner whether it
// is there and whether it is compared.
func (j *attributing) owners() {
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
func (j *attributing) list() {
	j.assigned = make([]*Claim, 0, 1)
	for _, c := range j.in.Claims {
		if c.Kind == Assigned {
			j.assigned = append(j.assigned, c)
		}
	}
}

// kernelClaim enters what a kernel says; -1 for a claim of the wire.
func (j *attributing) kernelClaim(l *ledger, c *Claim) int32 {
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
func (j *attributing) wireClaim(l *ledger, c *Claim) int32 {
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
		j.noteSender(rule, c, ns, &l.owners[o])
	}
	switch e := &l.evidence[o]; {
	case c.Kind == Believed:
	case rule == RuleMACCloned:
		if e.cloned == "" || c.MAC < e.cloned { // whatever the order of claims
			e.cloned = c.MAC
		}
	case c.Source != "" || c.MAC.Group():
		e.weak = true
	case c.NoOverride && e.configured(): // its kernel's word says more
	default:
		var proxied Proxy
		if !e.configured() {
			proxied = j.proxied(c, ns, via)
		}
		switch {
		case proxied != 0: // whatever the order of claims
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

// Responder returns the network plugin that answers for others with a hardware address; empty
// for none.
func (m MAC) Responder() string { return responders[m] }

// proxied returns why a claim to an address that its sender's kernel does not have does not make
// the sender an owner; 0 if it does.
func (j *attributing) proxied(c *Claim, ns *Namespace, via *Interface) Proxy {
	switch {
	case c.NoOverride:
		return ByNoOverride
	case c.Kind != Answered:
		return 0
	case via != nil && (&Owner{Namespace: ns}).meantBy(j.in.Address) == "": // else what is in there has it, by a network of its own
		return ByOwnMAC
	case responders[c.MAC] != "":
		return ByPlugin
	case ns != nil, j.spoke(c):
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

// spoke tells whether the sender of an answer ever claimed the address unasked.
func (j *attributing) spoke(c *Claim) bool {
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
func (j *attributing) fresh(c *Claim) bool {
	n := c.Node()
	return !n.TimedOut && (n.Unheard || c.Seen.Add(j.policy.StaleAfter) > j.in.Now)
}

// weigh says of one owner whether it is there, and whether it is compared.
func (j *attributing) weigh(o *Owner, e *evidence) {
	o.Assigned = e.assigned
	j.face(o)
	o.State = j.state(o, e)
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
	o.Scope = widest.Scope()
}

// face chooses the interface and the MAC to show: those of the first claim, as
// the kernel's come before the wire's.
func (j *attributing) face(o *Owner) {
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
func (j *attributing) state(o *Owner, e *evidence) State {
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
func (j *attributing) expire(o *Owner, stale Stamp) {
	if end := stale.Add(j.policy.StaleAfter); j.in.Now < end {
		j.again(end)
		return
	}
	j.out.Expired = append(j.out.Expired, o.Claims...)
}

// exclusion returns why an owner is not compared; nil if it is.
func (j *attributing) exclusion(e *evidence) *Exclusion {
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
			j.again(e.until) // a neighbour table may show the owner for longer
		}
		return nil
	case e.proxied == ByPlugin:
		return &Exclusion{Rule: RuleReachableVia, Proxy: ByPlugin, MAC: e.plugin}
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
func (p *Policy) DeclaresShared(r Range) bool {
	return slices.ContainsFunc(p.Shared, func(s Shared) bool { return s.Prefix.Contains(r.First) && s.Prefix.Contains(r.Last) })
}

// shared is the declaration that covers the address; the longest prefix wins.
func (j *attributing) shared() (best Shared, ok bool) {
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
