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

// Links of several nodes are one domain while frames show it: one that entered a
// link by an uplink, with a hardware address that one other node has, and that is
// not such that several have it by design. What shows it is kept as a forest, so
// that a LAN of n nodes costs n stitches and not n times n.
//
// A stitch ages out in generations. Each generation gathers a forest of its own;
// domains are what the present one and the one before hold together. So what no
// frame showed for a whole generation comes apart, unless a conflict depends on it.

// generationOf is how many times --stale-after a generation is.
const generationOf = 3

// domain is links of several nodes that are one.
type domain struct {
	rec   *verdict.Domain
	links []*link
}

// stitch is how two links are known to be one; without a MAC, it is a conflict
// that holds them together.
type stitch struct {
	entered, home *link
	mac           verdict.MAC
	seen          verdict.Stamp
}

// rotation is when the generation of stitches is over.
type rotation struct{ alarm alarm }

// seams are all stitches.
type seams struct {
	generation        uint32
	present, previous []stitch
	domains           map[*domain]struct{}
	rotation          rotation
	// sightings are claims that may show that links are one, and are not looked at yet.
	sightings []*holding
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
	if !meets(rec) {
		return
	}
	a := s.abroadOf(rec.MAC)
	a.holders = append(a.holders, rec)
	s.sightings = append(s.sightings, a.claims...)
	s.touchAll(a.claims)
}

func (s *store) unlistAbroad(rec *verdict.Interface) {
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

// Neighbours is for verdict.Tables.
func (s *store) Neighbours(l *verdict.Link, mac verdict.MAC) []*verdict.Interface {
	if l == nil || l.Domain == nil {
		return nil
	}
	a := s.macs[mac]
	if a == nil {
		return nil
	}
	var found []*verdict.Interface
	for _, i := range a.holders {
		if i.Namespace.Node != l.Node && i.Link.Domain == l.Domain {
			found = append(found, i)
		}
	}
	return found
}

// sew looks at what was seen since, and makes links one by it.
func (s *store) sew() {
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

// look makes the link that a claim was seen on one with that of its sender, where
// there is but one that it can be.
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
			s.stitch(h.link, s.linkOf(home), h.MAC, h.Seen)
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

// root is the link that stands for all that this generation holds together.
func (s *store) root(l *link) *link {
	if l.root == nil || l.generation != s.generation {
		l.generation, l.root = s.generation, l
	}
	for l.root != l {
		l.root = l.root.root
		l = l.root
	}
	return l
}

// stitch makes two links one.
func (s *store) stitch(entered, home *link, mac verdict.MAC, seen verdict.Stamp) {
	a, b := s.root(entered), s.root(home)
	if a == b && entered.domain != nil && entered.domain == home.domain {
		return // else one of them ended and came back
	}
	a.root = b
	s.present = append(s.present, stitch{entered, home, mac, seen})
	s.arm(&s.rotation, s.clock().Add(s.generationTime()))
	s.join(entered, home)
}

// join makes one domain of the domains of two links.
func (s *store) join(a, b *link) {
	switch {
	case a.domain == nil && b.domain == nil:
		s.newDomain([]*link{a, b})
		return
	case a.domain == b.domain:
		return
	case a.domain == nil:
		a, b = b, a
	case b.domain != nil && len(a.domain.links) < len(b.domain.links):
		a, b = b, a
	}
	if b.domain == nil {
		s.setDomain(b, a.domain)
		return
	}
	small := b.domain
	delete(s.domains, small)
	for _, l := range small.links {
		s.setDomain(l, a.domain)
	}
}

func (s *store) newDomain(links []*link) {
	d := &domain{rec: &verdict.Domain{}}
	s.domains[d] = struct{}{}
	d.name(links)
	for _, l := range links {
		s.setDomain(l, d)
	}
}

// name names a domain by the first of some links.
func (d *domain) name(links []*link) {
	first := slices.MinFunc(links, compareLinks)
	d.rec.Node, d.rec.Name = first.node.rec, first.rec.Name
}

func compareLinks(a, b *link) int {
	return cmp.Or(
		strings.Compare(a.node.rec.Name, b.node.rec.Name), a.node.id.compare(b.node.id), strings.Compare(a.rec.Name, b.rec.Name))
}

// setDomain puts a link into a domain, or takes it out of all.
func (s *store) setDomain(l *link, d *domain) {
	l.domain = d
	next := *l.rec
	next.Domain = nil
	if d != nil {
		d.links = append(d.links, l)
		d.name(append([]*link{l}, d.first()...))
		next.Domain = d.rec
	}
	s.replaceLink(l.node, l, &next)
}

// first is the link by which the domain is named, if it is still in it.
func (d *domain) first() []*link {
	for _, l := range d.links {
		if l.node.rec == d.rec.Node && l.rec.Name == d.rec.Name {
			return []*link{l}
		}
	}
	return nil
}

// leaveDomain takes a link that ends out of its domain. What it held together
// stays so until a generation is over: the others did not change.
func (s *store) leaveDomain(l *link) {
	d := l.domain
	if d == nil {
		return
	}
	l.domain = nil
	next := *l.rec
	next.Domain = nil
	l.rec = &next
	d.links = slices.DeleteFunc(d.links, func(other *link) bool { return other == l })
	if len(d.links) == 1 {
		last := d.links[0]
		d.links = nil
		delete(s.domains, d)
		s.setDomain(last, nil)
		return
	}
	d.name(d.links)
}

// rotate begins a generation: what only the one before the last had shown to be
// one comes apart.
func (s *store) rotate() {
	s.previous, s.present = s.present, nil
	s.generation++
	s.pin()
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
	for _, st := range s.previous {
		if a, b := root(st.entered), root(st.home); a != b {
			above[a] = b
		}
	}
	for _, d := range slices.Collect(maps.Keys(s.domains)) {
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
	if len(s.previous) > 0 {
		s.arm(&s.rotation, s.clock().Add(s.generationTime()))
	}
}

// split leaves a domain its largest part and makes others of the rest.
func (s *store) split(d *domain, parts map[*link][]*link, largest *link) {
	for r, part := range parts {
		switch {
		case r != largest && len(part) > 1:
			s.newDomain(part)
		case r != largest || len(part) == 1:
			s.setDomain(part[0], nil)
		}
	}
	if len(parts[largest]) == 1 {
		delete(s.domains, d)
		return
	}
	d.links = parts[largest]
	d.name(d.links)
}

// pin holds together what active conflicts depend on.
func (s *store) pin() {
	for id, e := range s.byID {
		c := e.conflict(id)
		if !c.Active() || c.Kind != verdict.LinkScope {
			continue
		}
		first := map[*domain]*link{}
		for _, h := range e.holdings {
			l := h.link
			if h.mac == nil {
				l = h.port.link
			}
			if l == nil || l.domain == nil {
				continue
			}
			if to := first[l.domain]; to == nil {
				first[l.domain] = l
			} else if to != l {
				s.previous = append(s.previous, stitch{entered: l, home: to, seen: s.clock()})
			}
		}
	}
}

// Stitches is for verdict.Tables.
func (s *store) Stitches(d *verdict.Domain) []verdict.Stitch {
	var found []verdict.Stitch
	known := map[[2]*link]bool{}
	for _, st := range slices.Concat(s.present, s.previous) {
		pair := [2]*link{st.entered, st.home}
		if known[pair] || st.entered.rec.Domain != d || st.home.rec.Domain != d {
			continue
		}
		known[pair] = true
		found = append(found, verdict.Stitch{Entered: st.entered.rec, Home: st.home.rec, MAC: st.mac, Seen: st.seen})
	}
	slices.SortFunc(found, func(a, b verdict.Stitch) int {
		return cmp.Or(strings.Compare(a.Entered.Node.Name, b.Entered.Node.Name), strings.Compare(a.Entered.Name, b.Entered.Name),
			strings.Compare(a.Home.Node.Name, b.Home.Node.Name), strings.Compare(a.Home.Name, b.Home.Name))
	})
	return found
}
