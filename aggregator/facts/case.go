package facts

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/ipwitness/ipwitness/aggregator/index"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// A lender hands out records and takes all of them back at once. Each record is allocated
// separately, so that retaining one does not retain others.
type lender[T any] struct {
	records []lent[T]
	used    int
}

// lent is a record with the node and the index that it was made from.
type lent[T any] struct {
	rec   *T
	node  *Node
	index uint32
}

// few is the number of records that find searches, starting with the latest.
const few = 16

// find returns the record that was made from the one with an index of a node for this case; nil if there is none.
func (l *lender[T]) find(n *Node, i uint32) *T {
	for k := l.used - 1; k >= max(0, l.used-few); k-- {
		if l.records[k].node == n && l.records[k].index == i {
			return l.records[k].rec
		}
	}
	return nil
}

func (l *lender[T]) next(n *Node, i uint32) *T {
	if l.used == len(l.records) {
		l.records = append(l.records, lent[T]{rec: new(T)})
	}
	one := &l.records[l.used]
	one.node, one.index = n, i
	l.used++
	return one.rec
}

// keep passes the records to change and leaves them to their holders, so that they are not reused.
// Builder.reset must follow before the next record is handed out.
func (l *lender[T]) keep(change func(*T)) {
	for _, one := range l.records[:l.used] {
		change(one.rec)
	}
	l.records = slices.Delete(l.records, 0, l.used)
}

// A Builder makes cases, one at a time. A case is valid until the next one is made, unless Keep is
// called. Use Facts.Builder. A Builder is not safe for concurrent use.
type Builder struct {
	facts *Facts
	c     verdict.Case
	refs  []ref // records of the claims of the case
	kept  bool

	claims     lender[verdict.Claim]
	interfaces lender[verdict.Interface]
	namespaces lender[verdict.Namespace]
	links      lender[verdict.Link]
}

// Builder returns a new builder of cases.
func (f *Facts) Builder() *Builder { return &Builder{facts: f} }

// Keep makes the records of the last case valid beyond the next one. It copies their texts, which
// would otherwise retain all texts of their nodes. It must be called before the records are shared.
func (b *Builder) Keep() {
	if b.kept {
		return
	}
	b.kept = true
	b.namespaces.keep(func(ns *verdict.Namespace) {
		ns.Who, ns.Intended = verdict.Who(strings.Clone(string(ns.Who))), strings.Clone(ns.Intended)
	})
	b.interfaces.keep(func(i *verdict.Interface) {
		i.Name, i.HostInterface, i.VRF, i.Kind = strings.Clone(i.Name), strings.Clone(i.HostInterface), strings.Clone(i.VRF), strings.Clone(i.Kind)
		i.MAC = verdict.MAC(strings.Clone(string(i.MAC)))
	})
	b.links.keep(func(l *verdict.Link) { l.Name = strings.Clone(l.Name) })
	b.claims.keep(func(c *verdict.Claim) {
		c.Network = strings.Clone(c.Network)
		c.MAC, c.Source = verdict.MAC(strings.Clone(string(c.MAC))), verdict.MAC(strings.Clone(string(c.Source)))
	})
}

// Case returns the case of an address without remembered state, which the caller adds. The caller
// holds the lock for as long as it uses the case. disputed is set if a conflict is remembered.
func (b *Builder) Case(a index.Address, disputed bool) *verdict.Case { return b.of(a, disputed) }

// Explained returns a case with the facts that only an explanation needs.
func (b *Builder) Explained(a index.Address) *verdict.Case {
	c := b.of(a, true)
	c.Stitches = b.stitches()
	return c
}

func (b *Builder) reset() {
	b.claims.used, b.interfaces.used, b.namespaces.used, b.links.used = 0, 0, 0, 0
	b.refs, b.kept = b.refs[:0], false
}

func (b *Builder) of(key index.Address, several bool) *verdict.Case {
	f := b.facts
	b.reset()
	a := key.Addr()
	old := &b.c
	b.c = verdict.Case{
		Address: a, Now: f.now(), Claims: old.Claims[:0], Stations: old.Stations[:0], Namespaces: old.Namespaces[:0],
		Nodes: old.Nodes[:0], Answers: old.Answers[:0], Beliefs: old.Beliefs[:0],
	}
	c := &b.c
	c.NodesAwaited = f.awaitedUntil
	if f.Followed {
		c.Unread = len(f.Unread()) > 0
		c.InPodCIDR, c.PodsKnownUntil, c.OneTenant = f.Kubernetes.InPodCIDR(a), f.Kubernetes.KnownUntil(), f.Kubernetes.OneTenant()
		c.Endpoints, c.EndpointsKnown = f.Kubernetes.FormerEndpoints(a)
	}
	for n, i := range f.claimsTo(key) {
		c.Claims = append(c.Claims, b.claim(n, i))
		b.refs = append(b.refs, refOf(n.number, i))
	}
	several = several || b.several()
	allocations := f.allocations[key]
	c.Pools, c.ServicePools = b.covering(a, allocations)
	b.addStations()
	b.addNamespaces()
	b.addAnswers()
	b.addBeliefs(key)
	for _, al := range allocations {
		c.Allocations = append(c.Allocations, verdict.AllocationFacts{
			Allocation: &al.Allocation, Object: f.podNamed(al.Namespace, al.Pod),
			Sandbox: al.ContainerID != "" && f.sandbox(al.ContainerID),
			Covered: al.Node != "" && (several || al.Pool.Assigns) && f.covered(al.Node),
		})
	}
	if several || len(c.Allocations) > 0 {
		c.Covered = f.coveredAll()
	}
	b.addNodes(several)
	return c
}

func (f *Facts) podNamed(namespace, name string) *verdict.PodObject {
	if !f.Followed {
		return nil
	}
	return f.Kubernetes.PodNamed(namespace, name)
}

// refOf returns the record from which a claim of the case was made.
func (b *Builder) refOf(c *verdict.Claim) ref { return b.refs[slices.Index(b.c.Claims, c)] }

// Refs returns the records from which claims of the last case were made.
func (b *Builder) Refs(claims []*verdict.Claim) []Ref {
	refs := make([]Ref, 0, len(claims))
	for i, c := range b.c.Claims {
		if slices.Contains(claims, c) {
			refs = append(refs, b.refs[i])
		}
	}
	return refs
}

// wireOf returns the node and the record of a wire claim of the case.
func (b *Builder) wireOf(k int) (*Node, *wire) {
	n := b.facts.nodes[b.refs[k].node()]
	return n, n.wires.at(n.claims.at(b.refs[k].index()).wire())
}

// claim makes the record of a claim.
func (b *Builder) claim(n *Node, i uint32) *verdict.Claim {
	one := n.claims.at(i)
	h := n.history(one)
	out := b.claims.next(n, i)
	*out = verdict.Claim{
		Interface: b.iface(n, one.port), Kind: one.kind, PrefixLength: one.prefix, Flags: uint32(one.flags &^ ours), Count: h.count,
		Network: n.texts.get(one.network), TakenAlong: one.flags&takenAlong != 0, Peer: one.flags&hasPeer != 0,
		Answer: verdict.KernelAnswer{By: verdict.AnswerSource(one.answer & 0xf), Filter: verdict.AnswerFilter(one.answer >> 4)},
		Times:  verdict.Times{First: one.first, Last: h.last, AssignedAt: one.assigned, Begun: one.begun},
	}
	if one.wire() == 0 {
		out.Seen, out.Read = h.mark, h.mark
		out.Routed = one.flags&leadsHere != 0
		return out
	}
	w := n.wires.at(one.wire())
	out.Seen, out.Before, out.Read = w.seen, h.mark, one.begun
	out.Frame = verdict.Frame{
		MAC: n.texts.macOf(n.hardware.at(w.hardware).mac), Source: n.texts.macOf(w.source),
		VLAN: w.vlan, InnerVLAN: w.inner, NoOverride: w.flags.has(noOverride), Routed: w.flags.has(byNode), FromOutside: n.isFromOutside(i), Alone: out.Interface.Tap && n.alone(i),
	}
	if w.link != 0 {
		out.Link = b.link(n, w.link)
	}
	if by, ok := b.facts.formerMACs[n.hardware.at(w.hardware).mac.bytes]; ok && one.kind == verdict.Announced && w.seen > by.until {
		if k := by.node.iface(by.namespace, by.index); k != 0 {
			out.HadMAC, out.HadMACUntil = b.iface(by.node, k), by.until
		}
	}
	return out
}

func (b *Builder) iface(n *Node, i uint32) *verdict.Interface {
	if rec := b.interfaces.find(n, i); rec != nil {
		return rec
	}
	one := n.interfaces.at(i)
	var l *verdict.Link
	if one.link != 0 {
		l = b.link(n, one.link)
	}
	return n.fillInterface(i, b.namespace(n, one.namespace), l, b.interfaces.next(n, i))
}

func (b *Builder) namespace(n *Node, ns uint32) *verdict.Namespace {
	if rec := b.namespaces.find(n, ns); rec != nil {
		return rec
	}
	return n.fillNamespace(ns, b.namespaces.next(n, ns))
}

func (b *Builder) link(n *Node, l uint32) *verdict.Link {
	if rec := b.links.find(n, l); rec != nil {
		return rec
	}
	return n.fillLink(l, b.links.next(n, l))
}

// wired reports whether a claim is a wire claim and not a claim of a kernel.
func wired(c *verdict.Claim) bool { return !c.Kind.Kernel() }

// several reports whether the claims to the address may have several owners. Different owners may
// have the same hardware address if it is derived from the IP address.
func (b *Builder) several() bool {
	claims := b.c.Claims
	if len(claims) == 0 {
		return false
	}
	first := claims[0]
	for _, c := range claims {
		if !wired(c) {
			first = c
			break
		}
	}
	mac := first.MAC
	if !wired(first) {
		mac = first.Interface.MAC
	}
	for k, c := range claims {
		switch {
		case c.Kind == verdict.DADFailed, !wired(c) && c.Interface.Namespace.ID != first.Interface.Namespace.ID:
			return true
		case !wired(c):
		case c.MAC != mac, c.Interface.Peer != 0 && (wired(first) && !c.Interface.Is(first.Interface) || !wired(first) && c.Interface.Peer != first.Interface.Namespace.Record):
			return true
		default:
			n, w := b.wireOf(k)
			if i := n.holder(n.hardware.at(w.hardware).mac); i != 0 && n.interfaces.at(i).alike != 0 {
				return true
			}
		}
	}
	return false
}

// addStations adds the interfaces that have a hardware address named by a claim.
func (b *Builder) addStations() {
	f, c := b.facts, &b.c
	type station struct {
		node *Node
		mac  mac
	}
	var some [8]station
	looked := some[:0]
	add := func(n *Node, m mac) {
		if m.form == noMAC || slices.Contains(looked, station{n, m}) {
			return
		}
		looked = append(looked, station{n, m})
		for i := n.holder(m); i != 0; i = n.interfaces.at(i).alike {
			c.Stations = append(c.Stations, b.iface(n, i))
		}
	}
	for k, claim := range c.Claims {
		if wired(claim) {
			n, w := b.wireOf(k)
			add(n, n.hardware.at(w.hardware).mac)
			add(n, w.source)
		}
	}
	var found []ref
	for k, claim := range c.Claims {
		if !wired(claim) || claim.Link == nil || claim.Link.Domain == nil || claim.MAC.Shared() {
			continue
		}
		m := mac{form: sixBytes}
		copy(m.bytes[:], claim.MAC)
		for n, i := range f.holdersOf(m.bytes) {
			if claim.Kind != verdict.Believed && n.Rec.Rebooted && n.Name == f.nodes[b.refs[k].node()].Name {
				continue // a frame that the machine has seen since it rebooted is of none that it had before
			}
			j := n.joints[n.interfaces.at(i).link]
			if j.Domain(BySight) != claim.Link.Domain || slices.Contains(found, refOf(n.number, i)) || slices.Contains(looked, station{n, m}) {
				continue
			}
			found = append(found, refOf(n.number, i))
			c.Stations = append(c.Stations, b.iface(n, i))
		}
	}
}

// addNamespaces adds the namespaces of claims and those behind the ports through which frames
// entered.
func (b *Builder) addNamespaces() {
	f, c := b.facts, &b.c
	add := func(ns *verdict.Namespace, behind bool) {
		if slices.ContainsFunc(c.Namespaces, func(f verdict.NamespaceFacts) bool { return f.Record == ns.Record && f.Node == ns.Node }) {
			return
		}
		facts := verdict.NamespaceFacts{Namespace: ns, Pod: f.PodObject(ns)}
		if behind {
			facts.Nested = ns.Netns != "" && len(f.places[NodeID{Boot: ns.Node.Boot, Netns: ns.Netns}]) > 0
		}
		if facts.Pod != nil || behind {
			c.Namespaces = append(c.Namespaces, facts)
		}
	}
	for k, claim := range c.Claims {
		if peer := claim.Interface.Peer; wired(claim) && peer != 0 {
			n := f.nodes[b.refs[k].node()]
			if ns := n.namespace(peer); ns != 0 {
				add(b.namespace(n, ns), true)
			}
		}
	}
	if !f.Followed {
		return
	}
	for _, claim := range c.Claims {
		add(claim.Interface.Namespace, false)
	}
	for _, i := range c.Stations {
		add(i.Namespace, false)
	}
}

// addAnswers adds the numbers of addresses for which the senders of answers answer. The interface
// with the hardware address need not be the sender, because several interfaces may share it by
// design.
func (b *Builder) addAnswers() {
	f, c := b.facts, &b.c
	for k, claim := range c.Claims {
		if claim.Link == nil || claim.Kind != verdict.Answered {
			continue
		}
		n, w := b.wireOf(k)
		if !f.onlyAnswered(n, b.refs[k].index()) {
			continue
		}
		a := verdict.Answer{Link: claim.Link.Key(), MAC: claim.MAC}
		if !slices.ContainsFunc(c.Answers, func(other verdict.Answer) bool { return other.Link == a.Link && other.MAC == a.MAC }) {
			a.Addresses, a.Owners = f.answers(n, w.link, w.hardware)
			c.Answers = append(c.Answers, a)
		}
	}
}

// answers returns the number of addresses for which a hardware address only ever answered on a
// link, and the number of owners whose kernels have one of them. It stops once the numbers show a
// proxy.
func (f *Facts) answers(n *Node, l, hw uint32) (addresses, owners int) {
	var answered []index.Address
	var owned []string
	for c := range n.by(hw) {
		one := n.claims.at(c)
		if n.wires.at(one.wire()).link != l || slices.Contains(answered, one.addr) || !f.onlyAnswered(n, c) {
			continue
		}
		answered = append(answered, one.addr)
		if id := f.assignee(one.addr); id != "" && !slices.Contains(owned, id) {
			owned = append(owned, id)
		}
		if len(answered) >= verdict.ManyAnswers || len(owned) >= verdict.SeveralOwned {
			break
		}
	}
	return len(answered), len(owned)
}

// weak is like Claim.Weak for a record.
func (t *tables) weak(c uint32) bool {
	w := t.wires.at(t.claims.at(c).wire())
	return w.source.form != noMAC || w.flags.has(noOverride) || t.texts.macOf(t.hardware.at(w.hardware).mac).Group()
}

// onlyAnswered reports whether a claim is an answer whose sender never sent an unsolicited claim to
// the address on that link.
func (f *Facts) onlyAnswered(n *Node, c uint32) bool {
	one := n.claims.at(c)
	if one.kind != verdict.Answered || n.weak(c) {
		return false
	}
	w := n.wires.at(one.wire())
	for k := range n.same(f.addresses.of(one.addr, n.number)) {
		other := n.claims.at(k)
		if other.kind != verdict.Announced && other.kind != verdict.Used {
			continue
		}
		if o := n.wires.at(other.wire()); o.hardware == w.hardware && o.link == w.link && !n.weak(k) {
			return false
		}
	}
	return true
}

// assignee returns the ID of the owner whose kernel has an address, the smallest one if there are
// several; empty if there is none.
func (f *Facts) assignee(a index.Address) (id string) {
	for n, c := range f.claimsTo(a) {
		one := n.claims.at(c)
		at := n.interfaces.at(one.port)
		if one.kind != verdict.Assigned || at.attachment == verdict.Local || at.attachment == verdict.Private {
			continue
		}
		if other := n.idOf(at.namespace); id == "" || other < id {
			id = other
		}
	}
	return id
}

// addNodes adds the facts about the nodes of claims, of stations and of pools.
func (b *Builder) addNodes(several bool) {
	f, c := b.facts, &b.c
	add := func(rec *verdict.Node, pool bool) {
		if slices.ContainsFunc(c.Nodes, func(f verdict.NodeFacts) bool { return f.Node == rec.Key() }) {
			return
		}
		facts := verdict.NodeFacts{Node: rec.Key(), InPodCIDR: c.InPodCIDR && f.Kubernetes.InPodCIDROf(rec.Name, c.Address)}
		facts.Internal = (several || len(c.ServicePools)+len(c.Allocations) > 0) && f.Followed && f.Kubernetes.Internal(rec.Name, c.Address)
		if pool && len(c.Allocations) > 0 {
			n := f.Node(rec) // found by its identity, because names may be shared
			facts.Covered = n != nil && n.Covers()
		}
		if several {
			if n := f.Node(rec); n != nil {
				for _, p := range n.Pools {
					facts.Pools = append(facts.Pools, &p.Rec)
				}
				facts.Subnets = n.subnets(func(p netip.Prefix) bool { return p.Contains(c.Address) })
				for k := range facts.Subnets {
					s := &facts.Subnets[k]
					s.Leased = slices.ContainsFunc(f.allocations[index.AddressOf(s.Prefix.Addr())], func(al *allocation) bool {
						return al.Pool.Leases && !al.Pool.Client && al.MAC != "" && al.MAC == s.Interface.MAC.String()
					})
				}
			}
		}
		if facts.InPodCIDR || facts.Internal || facts.Covered || len(facts.Pools)+len(facts.Subnets) > 0 {
			c.Nodes = append(c.Nodes, facts)
		}
	}
	for _, p := range c.Pools {
		if p.Node != nil {
			add(p.Node, true)
		}
	}
	for _, claim := range c.Claims {
		add(claim.Node(), false)
	}
	for _, i := range c.Stations {
		add(i.Namespace.Node, false)
	}
}
