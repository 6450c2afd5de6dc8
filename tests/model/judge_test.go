package model_test

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/ipwitness/ipwitness/aggregator/audit"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// A world is the state of the reference, as the records that verdict judges. It is built again for
// each round of judgements.
type world struct {
	interfaces map[*iface]*verdict.Interface
	stations   []*verdict.Interface
	claims     map[netip.Addr][]*verdict.Claim
	of         map[*verdict.Claim]*claim
	namespaces []verdict.NamespaceFacts
	nodes      []verdict.NodeFacts
	answers    []verdict.Answer
	covered    bool
	linkOf     func(*link) *verdict.Link
}

func (r *reference) world() *world {
	w := &world{
		interfaces: map[*iface]*verdict.Interface{}, claims: map[netip.Addr][]*verdict.Claim{}, of: map[*verdict.Claim]*claim{},
		covered: len(r.nodes) > 0,
	}
	links, domains := map[*link]*verdict.Link{}, map[*domain]*verdict.Domain{}
	domainOf := func(d *domain) *verdict.Domain {
		if d != nil && domains[d] == nil {
			first := d.first()
			domains[d] = &verdict.Domain{Node: first.node.rec, Name: first.name}
		}
		return domains[d]
	}
	linkOf := func(l *link) *verdict.Link {
		if l != nil && links[l] == nil {
			links[l] = &verdict.Link{
				Node: l.node.rec, Name: l.name, Kind: l.kind, Routed: l.routed, CarrierLost: l.lost,
				Domain: domainOf(l.domain[bySight]), Proven: domainOf(l.domain[byProof]), BothWays: domainOf(l.domain[bothWays]),
			}
		}
		return links[l]
	}
	hadMAC := map[*verdict.Claim]*iface{}
	for _, n := range r.nodes {
		for _, ns := range n.namespaces {
			w.namespaces = append(w.namespaces, verdict.NamespaceFacts{Namespace: ns.rec, Nested: r.nested(ns.rec)})
		}
		for _, i := range n.interfaces {
			rec := i.rec
			rec.Namespace, rec.Link = i.namespace.rec, linkOf(i.link)
			rec.Macvtap = rec.Kind == "macvtap" && rec.Attachment == verdict.Own && !slices.ContainsFunc(n.claims, func(c *claim) bool {
				return c.port == i && c.Kind == verdict.Assigned && !c.addr.IsLinkLocalUnicast()
			})
			w.interfaces[i] = &rec
			if rec.MAC != "" {
				w.stations = append(w.stations, &rec)
			}
		}
		for _, c := range n.claims {
			rec := c.Claim
			rec.Interface, rec.Link = w.interfaces[c.port], linkOf(c.link)
			rec.FromOutside = c.Kind == verdict.Used && c.hasOwnMAC() && n.rec.Listed != 0 && c.Seen > n.outsideAfter && !n.blind
			rec.Alone = rec.Interface.Tap && rec.Wire() && !slices.ContainsFunc(n.claims, func(other *claim) bool {
				return other.port == c.port && other.Wire() && other.MAC != c.MAC
			})
			if by, ok := r.formerMACs[c.MAC]; ok && c.Kind == verdict.Announced && c.Seen > by.until {
				if i := by.node.iface(by.namespace, by.index); i != nil {
					hadMAC[&rec] = i
					rec.HadMACUntil = by.until
				}
			}
			w.claims[c.addr] = append(w.claims[c.addr], &rec)
			w.of[&rec] = c
		}
		facts := verdict.NodeFacts{Node: n.rec.Key(), Covered: n.live() && !n.blind, Subnets: n.subnets(w)}
		for _, p := range n.pools {
			facts.Pools = append(facts.Pools, p.rec)
		}
		w.nodes = append(w.nodes, facts)
		w.covered = w.covered && (!n.rec.Unheard || n.rec.TimedOut) && !n.blind
	}
	for c, i := range hadMAC {
		c.HadMAC = w.interfaces[i]
	}
	w.answers, w.linkOf = r.answered(linkOf), linkOf
	return w
}

// nested reports whether an agent reports from inside a namespace.
func (r *reference) nested(ns *verdict.Namespace) bool {
	return ns.Netns != "" && slices.ContainsFunc(r.nodes, func(n *node) bool { return n.rec.Boot == ns.Node.Boot && n.rec.Netns == ns.Netns })
}

// subnets returns the addresses of a node with their prefixes.
func (n *node) subnets(w *world) (list []verdict.Subnet) {
	for _, c := range n.claims {
		i := c.port
		if c.Kind != verdict.Assigned || i.namespace.rec.Record != verdict.OwnRecord || i.rec.Attachment == verdict.Local {
			continue
		}
		lan := i.rec.Kind == "bridge" && slices.ContainsFunc(n.interfaces, func(port *iface) bool {
			return port.namespace == i.namespace && port.link == i.link && (port.rec.Uplink || port.rec.Kind == "vlan")
		})
		list = append(list, verdict.Subnet{Prefix: netip.PrefixFrom(c.addr, int(c.PrefixLength)), Interface: w.interfaces[i], LAN: lan})
	}
	return list
}

// answered counts, for each MAC on each link, the addresses for which it only answered, and the
// owners whose kernels have one of those addresses.
func (r *reference) answered(linkOf func(*link) *verdict.Link) (list []verdict.Answer) {
	type sender struct {
		link *link
		mac  verdict.MAC
	}
	addresses, owners := map[sender]map[netip.Addr]bool{}, map[sender]map[string]bool{}
	for _, n := range r.nodes {
		for _, c := range n.claims {
			unasked := func(o *claim) bool {
				return o.addr == c.addr && o.MAC == c.MAC && o.link == c.link && !o.Weak() && (o.Kind == verdict.Announced || o.Kind == verdict.Used)
			}
			if c.Kind != verdict.Answered || c.Weak() || c.link == nil || slices.ContainsFunc(n.claims, unasked) {
				continue
			}
			s := sender{c.link, c.MAC}
			if addresses[s] == nil {
				addresses[s], owners[s] = map[netip.Addr]bool{}, map[string]bool{}
			}
			addresses[s][c.addr] = true
			first := ""
			for o := range r.claims(c.addr) {
				if at := o.port.rec.Attachment; o.Kind == verdict.Assigned && at != verdict.Local && at != verdict.Private {
					if id := o.port.namespace.rec.ID; first == "" || id < first {
						first = id
					}
				}
			}
			if first != "" {
				owners[s][first] = true
			}
		}
	}
	for s, known := range addresses {
		list = append(list, verdict.Answer{Link: linkOf(s.link).Key(), MAC: s.mac, Addresses: len(known), Owners: len(owners[s])})
	}
	return list
}

// caseOf returns everything that the judgement of an address needs.
func (r *reference) caseOf(w *world, a netip.Addr) *verdict.Case {
	m := r.of(a)
	c := &verdict.Case{
		Address: a, Now: r.now, Claims: w.claims[a], Namespaces: w.namespaces, Nodes: w.nodes, Answers: w.answers,
		IPAM: verdict.IPAM{Past: m.past, Vanished: m.vanished, Before: m.found}, Sight: verdict.Sight{Covered: w.covered},
		Beliefs: r.beliefs(w, a),
	}
	for i := range m.conflicts {
		c.Conflicts = append(c.Conflicts, m.conflicts[i].Memory())
	}
	for _, i := range w.stations {
		if slices.ContainsFunc(c.Claims, func(c *verdict.Claim) bool {
			if i.MAC != c.MAC && i.MAC != c.Source {
				return false
			}
			return i.Namespace.Node == c.Node() || i.Link != nil && i.Link.Kind != verdict.PointToPoint && i.Link.Domain != nil && c.Link != nil && i.Link.Domain == c.Link.Domain
		}) {
			c.Stations = append(c.Stations, i)
		}
	}
	for _, n := range r.nodes {
		if !slices.ContainsFunc(n.claims, func(c *claim) bool { return c.addr == a && !c.wire() }) {
			continue
		}
		for _, p := range n.pools {
			if p.rec.Contains(a) || len(p.rec.Ranges) == 0 && p.rec.Network != "" && slices.ContainsFunc(c.Claims, func(c *verdict.Claim) bool { return c.Network == p.rec.Network }) {
				c.Pools = append(c.Pools, p.rec)
			}
		}
	}
	for _, al := range m.allocations {
		c.Allocations = append(c.Allocations, verdict.AllocationFacts{Allocation: al.Allocation, Sandbox: r.sandbox(al.ContainerID)})
		if !slices.Contains(c.Pools, al.pool.rec) {
			c.Pools = append(c.Pools, al.pool.rec)
		}
	}
	return c
}

// sandbox reports whether the namespace of a sandbox exists.
func (r *reference) sandbox(id string) bool {
	for _, n := range r.nodes {
		for _, ns := range n.namespaces {
			if id != "" && ns.rec.Who.Workload().ContainerID == id {
				return true
			}
		}
	}
	return false
}

// addresses returns all known addresses, sorted.
func (r *reference) addresses() []netip.Addr {
	known := map[netip.Addr]bool{}
	for _, n := range r.nodes {
		for _, c := range n.claims {
			known[c.addr] = true
		}
		for _, b := range n.beliefs {
			known[b.addr] = true
		}
	}
	for a := range r.memory {
		known[a] = true
	}
	return slices.SortedFunc(maps.Keys(known), netip.Addr.Compare)
}

// judge judges all addresses until there are no further consequences: no claim has expired, and no
// connected node is asked to read an address again.
func (r *reference) judge() {
	r.changed = r.now
	r.merge()
	for again := true; again; {
		again = false
		w := r.world()
		for _, a := range r.addresses() {
			expired, learned := r.judgeOne(w, a)
			again = again || learned || len(expired) > 0
			for _, c := range expired {
				r.remove(c)
			}
		}
		for _, c := range r.checks {
			s := c.node.session
			if s == nil || s.agent.deaf.Load() || s.inside {
				continue // a deaf agent does not answer
			}
			s.heard = r.now
			if !s.lost && !c.ended && c.Read != r.now {
				c.Read = r.now
				again = true
			}
		}
		r.checks = nil
	}
	r.publish()
}

// judgeThose judges the addresses of some claims. A finding that ends here is no longer reported,
// even if it is found again later in the same step.
func (r *reference) judgeThose(claims []*claim) {
	r.merge()
	w := r.world()
	done := map[netip.Addr]bool{}
	for _, c := range claims {
		before := r.of(c.addr).found
		for !done[c.addr] {
			expired, _ := r.judgeOne(w, c.addr)
			for _, old := range expired {
				r.remove(old)
				w = r.world()
			}
			done[c.addr] = len(expired) == 0
		}
		for _, f := range before {
			if !slices.ContainsFunc(r.of(c.addr).found, func(now verdict.Finding) bool { return now.ID == f.ID && !now.Waiting }) {
				delete(r.since, f.ID)
			}
		}
	}
}

// judgeOne judges one address. It returns the claims that have expired, and whether the audit
// learned a possible cause of a conflict.
func (r *reference) judgeOne(w *world, a netip.Addr) (expired []*claim, learned bool) {
	m := r.of(a)
	in := r.caseOf(w, a)
	out := r.policy.Judge(in)
	for _, c := range out.Expired {
		expired = append(expired, w.of[c])
	}
	if len(expired) > 0 {
		return expired, false // the address is judged again without them
	}
	m.owners, m.again = out.Owners, out.Again
	r.forgetOld(m)
	clear(m.claims)
	for _, o := range out.Owners {
		for _, c := range o.Claims {
			m.claims[o.ID] = append(m.claims[o.ID], w.of[c])
		}
	}
	for i := range out.Ended {
		was := slices.IndexFunc(m.conflicts, func(was verdict.Conflict) bool { return was.ID == out.Ended[i].ID })
		m.conflicts[was] = m.conflicts[was].End(&out.Ended[i], out.Owners)
	}
	for _, c := range out.Conflicts {
		at := slices.IndexFunc(m.conflicts, func(was verdict.Conflict) bool { return was.ID == c.ID })
		if at < 0 {
			m.conflicts = append(m.conflicts, c)
		} else {
			m.conflicts[at] = c
		}
	}
	for c := range r.claims(a) {
		if c.Kind == verdict.Assigned && slices.Contains(out.Check, c.node.rec) {
			r.checks = append(r.checks, c)
		}
	}
	found := audit.Address(&r.policy, in, &out)
	learned = !slices.Equal(m.past, found.Past)
	m.vanished, m.past, m.found, m.clones = nil, found.Past, found.Findings, out.Clones
	if found.Again != 0 && (m.again == 0 || found.Again < m.again) {
		m.again = found.Again
	}
	return nil, learned
}

// next returns the time when the next timer is due, or 0 if there is none.
func (r *reference) next() (at verdict.Stamp) {
	due := func(when verdict.Stamp) {
		if when != 0 && (at == 0 || when < at) {
			at = when
		}
	}
	for _, n := range r.nodes {
		due(n.due)
		due(n.formerUntil)
	}
	due(r.lan.due)
	for _, m := range r.memory {
		due(m.again)
		for i := range m.conflicts {
			if c := &m.conflicts[i]; !c.Active() && !c.Explains(m.owners) {
				due(c.ResolvedAt.Add(keepResolvedFor))
			}
		}
	}
	for s := range r.sessions {
		due(s.due())
	}
	return at
}

// nextPing returns the first of the fixed times, at or after a time, at which an agent is pinged or
// found to be silent.
func (s *session) nextPing(from verdict.Stamp) verdict.Stamp {
	return s.start.Add(max(1, (from.Sub(s.start)+pingEvery-1)/pingEvery) * pingEvery)
}

// due returns the time when a session ends by itself: its snapshot is late, or its agent is silent.
// It returns 0 for never.
func (s *session) due() (at verdict.Stamp) {
	if s.asked != 0 {
		at = s.nextPing(max(s.asked, s.heard).Add(silentAfter))
	}
	if late := s.start.Add(snapshotWithin); !s.synced && (at == 0 || late < at) {
		at = late
	}
	return at
}

// tick handles all timers that are due.
func (r *reference) tick() {
	for s := range r.sessions {
		if at := s.due(); at != 0 && at <= r.now {
			r.disconnect(s)
		}
	}
	var late []*node
	for _, n := range r.nodes {
		if n.due != 0 && n.due <= r.now {
			late = append(late, n)
		}
	}
	if len(late) > 0 {
		r.stirred = r.now
	}
	r.timeOut(late)
	for _, n := range r.nodes {
		if n.formerUntil != 0 && n.formerUntil <= r.now {
			r.dropFormer(n)
			r.stirred = r.now
		}
	}
	if r.lan.due != 0 && r.lan.due <= r.now {
		r.rotate()
		r.stirred = r.now
	}
	for _, m := range r.memory {
		if m.again <= r.now {
			m.again = 0
		}
		r.forgetOld(m)
	}
	r.judge()
}

// forgetOld drops the resolved conflicts that are too old and explain nothing.
func (r *reference) forgetOld(m *memory) {
	m.conflicts = slices.DeleteFunc(m.conflicts, func(c verdict.Conflict) bool {
		return !c.Active() && c.ResolvedAt.Add(keepResolvedFor) <= r.now && !c.Explains(m.owners)
	})
}
