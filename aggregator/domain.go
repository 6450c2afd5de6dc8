package aggregator

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// Links of several nodes become one domain when a frame that entered one of them by an uplink
// carried a hardware address that exactly one other node has. Such a frame is easy to forge, so
// links are joined in two layers. In the layer bySight, one frame is enough: conflicts across
// such a domain are only suspected. In the layer byProof, frames must have entered in both
// directions, or in one direction again and again (provenAfter). A host that is on only one of
// two LANs cannot forge the former.
//
// Each layer is a forest of stitches, so that a LAN of n nodes needs n stitches and not n times
// n. Stitches age in generations. Each generation builds its own forest; domains are the links
// that the current and the previous generation connect. Links therefore separate when no frame
// has joined them for a whole generation. This also applies if a conflict depends on them:
// frames of the conflict, if there are any, join them again.

const (
	// generationOf is the length of a generation in units of --stale-after.
	generationOf = 3
	// provenAfter is the number of times that a frame in one direction must be seen to prove
	// that two links are one. The times must be at least a quarter of --stale-after apart, with
	// at least one in each generation. The proof thus takes at least --stale-after, so a burst
	// proves nothing.
	provenAfter = 5
)

// A layer is a level of evidence that links are one.
type layer uint8

const (
	bySight layer = iota
	byProof
	layers
)

// A domain is a set of links of several nodes that are one in a layer.
type domain struct {
	layer layer
	rec   *verdict.Domain
	links []*link
}

// A stitch records why two links are one: a frame with mac, which home has, entered the other
// link by an uplink. In the layer byProof, back is the hardware address of a frame in the other
// direction. It is empty if frames in one direction were seen again and again.
type stitch struct {
	entered, home *link
	mac, back     verdict.MAC
	seen          verdict.Stamp
}

// oneWay collects frames from one link that entered another one, until they prove that the two
// links are one.
type oneWay struct {
	mac  verdict.MAC
	seen verdict.Stamp
	// counted is when a frame was last counted, times the number of counted frames.
	counted verdict.Stamp
	times   int
	// generation is the generation in which a frame was last seen.
	generation uint32
}

// rotation is the alarm at the end of a generation.
type rotation struct{ alarm alarm }

// topology records which links of different nodes are one.
type topology struct {
	generation        uint32
	present, previous [layers][]stitch
	domains           [layers]map[*domain]struct{}
	// named finds the domain of a record.
	named map[*verdict.Domain]*domain
	// oneWays is keyed by the entered link and the link that has the hardware address.
	oneWays  map[[2]*link]*oneWay
	rotation rotation
	// sightings are claims that may show that links are one, and are not looked at yet.
	sightings []*holding
}

func newTopology() topology {
	return topology{
		domains: [layers]map[*domain]struct{}{{}, {}},
		named:   map[*verdict.Domain]*domain{},
		oneWays: map[[2]*link]*oneWay{},
	}
}

// joint is the place of a link in one layer.
type joint struct {
	domain *domain // nil if the link is in no domain
	// root leads to the link that represents all links that the stitches of a generation
	// connect.
	root       *link
	generation uint32
}

// in returns the link's joint in a layer, and allocates it if necessary.
func (l *link) in(y layer) *joint {
	if l.joints == nil {
		l.joints = &[layers]joint{}
	}
	return &l.joints[y]
}

// domain returns the link's domain in a layer; nil if it is in none.
func (l *link) domain(y layer) *domain {
	if l.joints == nil {
		return nil
	}
	return l.joints[y].domain
}

// abroad is what is known of one MAC where several nodes may meet it.
type abroad struct {
	holders []*verdict.Interface // on links that may reach beyond their node
	claims  []*holding           // that entered by an uplink
}

// meets tells whether a frame of an interface may enter another node.
func meets(i *verdict.Interface) bool {
	return i.MAC != "" && !i.MAC.Shared() && i.Link != nil && i.Link.Kind != verdict.PointToPoint
}

// showing tells whether a claim may show that links are one.
func (h *holding) showing() bool {
	return h.mac != nil && h.link != nil && h.port.rec.Uplink && !h.Weak() && !h.MAC.Shared()
}

func (s *store) abroadOf(mac verdict.MAC) *abroad {
	a := s.macs[mac]
	if a == nil {
		a = &abroad{}
		s.macs[mac] = a
	}
	return a
}

func (s *store) dropAbroad(mac verdict.MAC, a *abroad) {
	if len(a.holders) == 0 && len(a.claims) == 0 {
		delete(s.macs, mac)
	}
}

// listAbroad enters an interface, and has looked at what other nodes saw of it.
func (s *store) listAbroad(rec *verdict.Interface) {
	s.touchNeighbours(rec)
	if !meets(rec) {
		return
	}
	a := s.abroadOf(rec.MAC)
	a.holders = append(a.holders, rec)
	s.sightings = append(s.sightings, a.claims...)
	s.touchAll(a.claims)
}

// touchNeighbours has the addresses judged again that somebody on the interface's domain claims
// for its hardware address.
func (s *store) touchNeighbours(rec *verdict.Interface) {
	if rec.MAC == "" || rec.Link == nil || rec.Link.Domain == nil {
		return
	}
	d := s.named[rec.Link.Domain]
	if d == nil {
		return // it ends, and all of its links are looked at
	}
	for _, l := range d.links {
		if hw := l.node.hardware.get(rec.MAC); hw != nil {
			s.touchAll(hw.claims)
		}
	}
}

func (s *store) unlistAbroad(rec *verdict.Interface) {
	s.touchNeighbours(rec)
	if !meets(rec) {
		return
	}
	a := s.macs[rec.MAC]
	if a == nil {
		return
	}
	if at := slices.Index(a.holders, rec); at >= 0 {
		a.holders = slices.Delete(a.holders, at, at+1)
	}
	if len(a.holders) > 0 { // what was of several may be plain now
		s.sightings = append(s.sightings, a.claims...)
	}
	s.touchAll(a.claims)
	s.dropAbroad(rec.MAC, a)
}

// listSighting enters a claim that entered by an uplink; atAbroad is its place plus one.
func (s *store) listSighting(h *holding) {
	if h.mac == nil || !h.port.rec.Uplink || h.MAC.Shared() || h.atAbroad != 0 {
		return
	}
	a := s.abroadOf(h.MAC)
	a.claims = append(a.claims, h)
	h.atAbroad = int32(len(a.claims))
}

func (s *store) unlistSighting(h *holding) {
	if h.atAbroad == 0 {
		return
	}
	a := s.macs[h.MAC]
	a.claims = unlistAt(a.claims, h.atAbroad-1, func(h *holding, at int32) { h.atAbroad = at + 1 })
	h.atAbroad = 0
	s.dropAbroad(h.MAC, a)
}

// mergeLinks joins links that new sightings show to be one.
func (s *store) mergeLinks() {
	for len(s.sightings) > 0 {
		sightings := s.sightings
		s.sightings = nil
		for _, h := range sightings {
			if !h.ended && h.showing() {
				s.look(h)
			}
		}
	}
}

// look joins the link that a claim was seen on with the link of its sender, if the hardware
// address identifies the sender.
func (s *store) look(h *holding) {
	a := s.macs[h.MAC]
	if a == nil || len(a.holders) == 0 || h.Seen.Add(s.generationTime()) <= s.clock() {
		return
	}
	seen := h.Node()
	first := a.holders[0]
	for _, i := range a.holders {
		if n := i.Namespace.Node; n == seen || n != first.Namespace.Node && i.Namespace.ID != first.Namespace.ID {
			return // our own, or that of several
		}
	}
	for _, n := range nodesOf(a.holders) {
		if home := s.homeOf(a.holders, n, h); home != nil {
			s.sighted(stitch{entered: h.link, home: s.linkOf(home), mac: h.MAC, seen: h.Seen})
		}
	}
}

// nodesOf are the nodes that see the interfaces: agents on one kernel may see one
// namespace.
func nodesOf(interfaces []*verdict.Interface) (nodes []*verdict.Node) {
	for _, i := range interfaces {
		if n := i.Namespace.Node; !slices.Contains(nodes, n) {
			nodes = append(nodes, n)
		}
	}
	return nodes
}

// homeOf is the link of a node that the MAC of a sighting is on: the only one, or
// else the one where it has the address too; nil where that is not plain.
func (s *store) homeOf(holders []*verdict.Interface, n *verdict.Node, seen *holding) *verdict.Link {
	var all, exact []string
	var home, best *verdict.Link
	for _, i := range holders {
		if i.Namespace.Node != n {
			continue
		}
		if !slices.Contains(all, i.Link.Name) {
			all, home = append(all, i.Link.Name), i.Link
		}
		has := slices.ContainsFunc(seen.entry.holdings, func(h *holding) bool { return h.Kind == verdict.Assigned && h.Interface == i })
		if has && !slices.Contains(exact, i.Link.Name) {
			exact, best = append(exact, i.Link.Name), i.Link
		}
	}
	switch {
	case len(exact) == 1 && (len(all) == 1 || s.belongs(seen)):
		return best
	case len(exact) == 0 && len(all) == 1:
		return home
	}
	return nil
}

// belongs tells whether an address belongs on the link that it was seen on. Linux
// answers and asks on every link with the addresses of all (arp_ignore and
// arp_announce are 0), and VLANs have the MAC of their device: so that what was seen
// may be of another VLAN. It is not where it was announced, or where the node that
// saw it has an address of that subnet on the link.
func (s *store) belongs(seen *holding) bool {
	if seen.Kind == verdict.Announced {
		return true
	}
	for i := range s.nodeOf(seen).interfaces.all() {
		if i.link == seen.link && slices.ContainsFunc(i.holdings, func(h *holding) bool {
			return h.Kind == verdict.Assigned && netip.PrefixFrom(h.entry.addr, int(h.PrefixLength)).Contains(seen.entry.addr)
		}) {
			return true
		}
	}
	return false
}

// linkOf is the link of a record.
func (s *store) linkOf(rec *verdict.Link) *link {
	return s.nodes[idOf(rec.Node)].links.get(rec.Name)
}

func (s *store) generationTime() time.Duration { return generationOf * s.policy.StaleAfter }

// sighted records that a frame from one link entered another one.
func (s *store) sighted(st stitch) {
	s.stitch(bySight, st)
	key := [2]*link{st.entered, st.home}
	one := s.oneWays[key]
	if s.one(byProof, st.entered, st.home) {
		if one != nil && one.times < provenAfter {
			delete(s.oneWays, key) // other frames proved it
		}
		return
	}
	back := [2]*link{st.home, st.entered}
	if other := s.oneWays[back]; other != nil && other.generation == s.generation {
		delete(s.oneWays, key)
		delete(s.oneWays, back)
		st.back = other.mac
		s.stitch(byProof, st)
		return
	}
	if one == nil || one.generation+1 < s.generation {
		one = &oneWay{}
		s.oneWays[key] = one
	}
	one.mac, one.seen, one.generation = st.mac, max(one.seen, st.seen), s.generation
	if one.times < provenAfter && (one.times == 0 || one.seen >= one.counted.Add(s.policy.StaleAfter/(provenAfter-1))) {
		one.times, one.counted = one.times+1, one.seen
	}
	if one.times == provenAfter {
		s.stitch(byProof, st)
	}
}

// root returns the link that represents all links that the current generation connects in a
// layer.
func (s *store) root(y layer, l *link) *link {
	if j := l.in(y); j.root == nil || j.generation != s.generation {
		j.generation, j.root = s.generation, l
	}
	for j := l.in(y); j.root != l; j = l.in(y) {
		j.root = j.root.in(y).root
		l = j.root
	}
	return l
}

// one reports whether the current generation connects two links in a layer, and both are still
// in one domain. They are not if one of them ended and came back.
func (s *store) one(y layer, a, b *link) bool {
	return s.root(y, a) == s.root(y, b) && a.domain(y) != nil && a.domain(y) == b.domain(y)
}

// stitch joins two links in a layer.
func (s *store) stitch(y layer, st stitch) {
	if s.one(y, st.entered, st.home) {
		return
	}
	s.root(y, st.entered).in(y).root = s.root(y, st.home)
	s.present[y] = append(s.present[y], st)
	s.arm(&s.rotation, s.clock().Add(s.generationTime()))
	s.join(y, st.entered, st.home)
}

// join makes one domain of the domains of two links.
func (s *store) join(y layer, a, b *link) {
	switch {
	case a.domain(y) == nil && b.domain(y) == nil:
		s.newDomain(y, []*link{a, b})
		return
	case a.domain(y) == b.domain(y):
		return
	case a.domain(y) == nil:
		a, b = b, a
	case b.domain(y) != nil && len(a.domain(y).links) < len(b.domain(y).links):
		a, b = b, a
	}
	if b.domain(y) == nil {
		s.setDomain(b, y, a.domain(y))
		return
	}
	small := b.domain(y)
	s.endDomain(small)
	for _, l := range small.links {
		s.setDomain(l, y, a.domain(y))
	}
}

func (s *store) newDomain(y layer, links []*link) {
	d := &domain{layer: y, rec: &verdict.Domain{}}
	s.domains[y][d], s.named[d.rec] = struct{}{}, d
	first := slices.MinFunc(links, compareLinks)
	d.rec.Node, d.rec.Name = first.node.rec, first.rec.Name
	for _, l := range links {
		s.setDomain(l, y, d)
	}
}

func (s *store) endDomain(d *domain) {
	delete(s.domains[d.layer], d)
	delete(s.named, d.rec)
}

// nameDomain names a domain by the first of its links, and has the addresses judged again on all
// of them if that is another one.
func (s *store) nameDomain(d *domain) {
	first := slices.MinFunc(d.links, compareLinks)
	if d.rec.Node == first.node.rec && d.rec.Name == first.rec.Name {
		return
	}
	d.rec.Node, d.rec.Name = first.node.rec, first.rec.Name
	s.touchDomain(d)
}

// touchDomain has the addresses judged again that are claimed on a domain.
func (s *store) touchDomain(d *domain) {
	for _, l := range d.links {
		for i := range l.node.interfaces.all() {
			for _, h := range i.holdings {
				if i.link == l || h.link == l {
					s.touch(h.entry)
				}
			}
		}
	}
}

func compareLinks(a, b *link) int {
	return cmp.Or(
		strings.Compare(a.node.rec.Name, b.node.rec.Name), a.node.id.compare(b.node.id), strings.Compare(a.rec.Name, b.rec.Name))
}

// setDomain moves a link to a domain of a layer; a nil d removes it from its domain.
func (s *store) setDomain(l *link, y layer, d *domain) {
	l.in(y).domain = d
	if d != nil {
		d.links = append(d.links, l)
		s.nameDomain(d)
	}
	s.replaceLink(l.node, l, l.placed())
}

// placed returns the link's record with its domains.
func (l *link) placed() *verdict.Link {
	next := *l.rec
	next.Domain, next.Proven = nil, nil
	if d := l.domain(bySight); d != nil {
		next.Domain = d.rec
	}
	if d := l.domain(byProof); d != nil {
		next.Proven = d.rec
	}
	return &next
}

// leaveDomains removes a link that ends from its domains. Other links that it connected stay
// connected until a generation is over, because they did not change.
func (s *store) leaveDomains(l *link) {
	if l.joints == nil {
		return
	}
	for y := range layers {
		d := l.domain(y)
		if d == nil {
			continue
		}
		l.in(y).domain = nil
		l.rec = l.placed()
		d.links = slices.DeleteFunc(d.links, func(other *link) bool { return other == l })
		if len(d.links) > 1 {
			s.nameDomain(d)
			continue
		}
		last := d.links[0]
		d.links = nil
		s.endDomain(d)
		s.setDomain(last, y, nil)
	}
}

// rotate begins a generation. Links separate if only stitches of the generation before the
// previous one connected them.
func (s *store) rotate() {
	s.generation++
	maps.DeleteFunc(s.oneWays, func(key [2]*link, one *oneWay) bool {
		return one.generation+1 < s.generation || key[0].ended() || key[1].ended()
	})
	again := len(s.oneWays) > 0
	for y := range layers {
		s.previous[y], s.present[y] = s.present[y], nil
		again = again || len(s.previous[y]) > 0
		s.separate(y)
	}
	if again {
		s.arm(&s.rotation, s.clock().Add(s.generationTime()))
	}
}

// ended reports whether the node no longer has the link.
func (l *link) ended() bool { return l.node.links.get(l.rec.Name) != l }

// separate splits the domains of a layer into the sets of links that the previous generation
// connects.
func (s *store) separate(y layer) {
	above := map[*link]*link{}
	root := func(l *link) *link {
		for above[l] != nil {
			if next := above[above[l]]; next != nil {
				above[l] = next // half the way for who comes next
			}
			l = above[l]
		}
		return l
	}
	for _, st := range s.previous[y] {
		if a, b := root(st.entered), root(st.home); a != b {
			above[a] = b
		}
	}
	for _, d := range slices.Collect(maps.Keys(s.domains[y])) {
		parts := map[*link][]*link{}
		var largest *link
		for _, l := range d.links {
			r := root(l)
			parts[r] = append(parts[r], l)
		}
		for r, part := range parts {
			if largest == nil || len(part) > len(parts[largest]) ||
				len(part) == len(parts[largest]) && compareLinks(slices.MinFunc(part, compareLinks), slices.MinFunc(parts[largest], compareLinks)) < 0 {
				largest = r
			}
		}
		if len(parts) > 1 {
			s.split(d, parts, largest)
		}
	}
}

// split leaves a domain its largest part and makes others of the rest.
func (s *store) split(d *domain, parts map[*link][]*link, largest *link) {
	for r, part := range parts {
		switch {
		case r != largest && len(part) > 1:
			s.newDomain(d.layer, part)
		case r != largest || len(part) == 1:
			s.setDomain(part[0], d.layer, nil)
		}
	}
	if len(parts[largest]) == 1 {
		s.endDomain(d)
		return
	}
	d.links = parts[largest]
	s.nameDomain(d)
}

// stitchesOf returns how the links of the claims' domains are known to be one.
func (s *store) stitchesOf(claims []*verdict.Claim) (all []verdict.Stitch) {
	var domains []*verdict.Domain
	for _, c := range claims {
		for _, l := range []*verdict.Link{c.Link, c.Interface.Link} {
			if l != nil && l.Domain != nil && !slices.Contains(domains, l.Domain) {
				domains = append(domains, l.Domain)
				all = append(all, s.stitches(l.Domain)...)
			}
		}
	}
	return all
}

// stitches returns how the links of a domain are known to be one.
func (s *store) stitches(d *verdict.Domain) []verdict.Stitch {
	var found []verdict.Stitch
	known := map[[2]*link]bool{}
	add := func(y layer, st stitch) {
		a, b := st.entered.rec, st.home.rec
		if a.Domain != d || b.Domain != d || y == bySight && a.Proven != nil && a.Proven == b.Proven {
			return
		}
		proof := verdict.OneWay
		if y == byProof {
			proof = verdict.Proven
		}
		if st.back != "" && compareLinks(st.entered, st.home) > 0 { // a fixed order, whichever frame came last
			st.entered, st.home, st.mac, st.back = st.home, st.entered, st.back, st.mac
		}
		if pair := [2]*link{st.entered, st.home}; !known[pair] {
			known[pair] = true
			found = append(found, verdict.Stitch{
				Entered: st.entered.rec, Home: st.home.rec, MAC: st.mac, Back: st.back, Seen: st.seen, Proof: proof,
			})
		}
	}
	for y := range layers {
		for _, st := range slices.Concat(s.present[y], s.previous[y]) {
			add(y, st)
		}
	}
	slices.SortFunc(found, func(a, b verdict.Stitch) int {
		return cmp.Or(strings.Compare(a.Entered.Node.Name, b.Entered.Node.Name), strings.Compare(a.Entered.Name, b.Entered.Name),
			strings.Compare(a.Home.Node.Name, b.Home.Node.Name), strings.Compare(a.Home.Name, b.Home.Name))
	})
	return found
}
