package model_test

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// The lifetime of a generation of stitches, as a multiple of the stale time, and the number of
// frames in one direction that prove that two links are one.
const (
	generationOf = 3
	provenAfter  = 5
)

// The layers: links are joined because of a sighting, because of a proof, or because of frames in both
// directions.
const (
	bySight = iota
	byProof
	bothWays
	layers
)

// A lan records which links of different nodes are one. Links that are connected by stitches of the
// current and the previous generation are in one domain, until one of the links ends.
type lan struct {
	generation        int
	present, previous [layers][]stitch
	oneWays           map[[2]*link]*oneWay
	due               verdict.Stamp
	// sightings are claims that may show that links are one, and that have not been examined yet.
	sightings []*claim
}

type link struct {
	node   *node
	name   string
	known  bool
	kind   verdict.LinkKind
	routed bool
	lost   verdict.Stamp
	domain [layers]*domain
	sweep  int
}

// A domain is a set of links in one layer.
type domain struct{ links []*link }

type stitch struct{ entered, home *link }

type oneWay struct {
	seen, counted     verdict.Stamp
	times, generation int
}

func compareLinks(a, b *link) int {
	return cmp.Or(strings.Compare(a.node.rec.Name, b.node.rec.Name), strings.Compare(a.node.rec.Boot, b.node.rec.Boot),
		strings.Compare(a.node.rec.Netns, b.node.rec.Netns), strings.Compare(a.name, b.name))
}

// first returns the link after which a domain is named.
func (d *domain) first() *link { return slices.MinFunc(d.links, compareLinks) }

func (r *reference) generationTime() time.Duration { return generationOf * r.policy.StaleAfter }

// meets reports whether a frame of an interface may enter another node.
func (i *iface) meets() bool {
	return i.rec.MAC != "" && !i.rec.MAC.Shared() && i.link != nil && i.link.kind != verdict.PointToPoint
}

// reachingOthers returns the interfaces with a MAC whose frames may enter other nodes.
func (r *reference) reachingOthers(mac verdict.MAC) (found []*iface) {
	for _, n := range r.nodes {
		for _, i := range n.interfaces {
			if i.rec.MAC == mac && i.meets() {
				found = append(found, i)
			}
		}
	}
	return found
}

// change changes an interface, and has the sightings of its MAC examined again.
func (r *reference) change(i *iface, apply func()) {
	if mac := i.rec.MAC; i.meets() && len(r.reachingOthers(mac)) > 1 {
		r.lookAgain(mac)
	}
	apply()
	if i.meets() && slices.Contains(i.node.interfaces, i) {
		r.lookAgain(i.rec.MAC)
	}
}

// changeLink is like change, for all interfaces on a link.
func (r *reference) changeLink(l *link, apply func()) {
	var on []*iface
	for _, i := range l.node.interfaces {
		if i.link == l {
			on = append(on, i)
			r.change(i, func() {})
		}
	}
	apply()
	for _, i := range on {
		r.change(i, func() {})
	}
}

// lookAgain has the claims examined again that entered nodes with a MAC.
func (r *reference) lookAgain(mac verdict.MAC) {
	for _, n := range r.nodes {
		for _, c := range n.claims {
			if c.MAC == mac && c.wire() && c.port.rec.Uplink {
				r.lan.sightings = append(r.lan.sightings, c)
			}
		}
	}
}

// place has frames examined again whose MAC several interfaces have, after a kernel got an address: those that claim it with
// the MAC of its interface, and those on a link of the node itself that claim an address of its subnet.
func (r *reference) place(got *claim) {
	subnet := netip.PrefixFrom(got.addr, int(got.PrefixLength))
	for _, n := range r.nodes {
		for _, c := range n.claims {
			if !c.wire() || !c.port.rec.Uplink || len(r.reachingOthers(c.MAC)) < 2 {
				continue
			}
			here := n == got.node && got.port.rec.Attachment == verdict.Own && c.link != nil && c.link == got.port.link && subnet.Contains(c.addr)
			if here || c.addr == got.addr && c.MAC == got.port.rec.MAC {
				r.lan.sightings = append(r.lan.sightings, c)
			}
		}
	}
}

// merge joins links that new sightings show to be one.
func (r *reference) merge() {
	for len(r.lan.sightings) > 0 {
		sightings := r.lan.sightings
		r.lan.sightings = nil
		for _, c := range sightings {
			if !c.ended && c.wire() && c.link != nil && c.port.rec.Uplink && c.Source == "" && !c.MAC.Group() && !c.MAC.Shared() {
				r.look(c)
			}
		}
	}
}

// look joins the link on which a claim was seen with the link of its sender, if the MAC identifies
// the sender.
func (r *reference) look(c *claim) {
	holders := r.reachingOthers(c.MAC)
	if len(holders) == 0 || c.Seen.Add(r.generationTime()) <= r.now {
		return
	}
	if slices.ContainsFunc(holders, func(i *iface) bool {
		return i.node == c.node || i.node != holders[0].node && i.namespace.rec.ID != holders[0].namespace.rec.ID
	}) { // it is the node's own MAC, or one that several nodes have: only one of them may have the address, too
		sender := ""
		with := map[*node]bool{}
		for _, i := range holders {
			for _, a := range i.node.claims {
				if a.addr != c.addr || a.Kind != verdict.Assigned || a.port.rec.MAC != c.MAC || with[i.node] {
					continue
				}
				with[i.node] = true
				id := a.port.namespace.rec.ID
				if i.node == c.node || sender != "" && id != sender {
					return
				}
				sender = id
			}
		}
		holders = slices.DeleteFunc(holders, func(i *iface) bool { return !with[i.node] })
	}
	for _, n := range r.nodes {
		if home := r.homeOf(holders, n, c); home != nil {
			r.sighted(stitch{c.link, home}, c.Seen)
		}
	}
}

// homeOf returns the link of a node to which the MAC of a claim belongs: the only such link, or
// else the one that also has the address.
func (r *reference) homeOf(holders []*iface, n *node, seen *claim) *link {
	var all, exact []*link
	for _, i := range holders {
		if i.node != n {
			continue
		}
		if !slices.Contains(all, i.link) {
			all = append(all, i.link)
		}
		has := slices.ContainsFunc(n.claims, func(c *claim) bool { return c.addr == seen.addr && c.Kind == verdict.Assigned && c.port == i })
		if has && !slices.Contains(exact, i.link) {
			exact = append(exact, i.link)
		}
	}
	switch {
	case len(exact) == 1 && (len(all) == 1 || belongs(seen)):
		return exact[0]
	case len(exact) == 0 && len(all) == 1:
		return all[0]
	}
	return nil
}

// belongs reports whether an address belongs on the link that it was seen on.
func belongs(seen *claim) bool {
	return seen.Kind == verdict.Announced || slices.ContainsFunc(seen.node.claims, func(c *claim) bool {
		return c.Kind == verdict.Assigned && c.port.link == seen.link && netip.PrefixFrom(c.addr, int(c.PrefixLength)).Contains(seen.addr)
	})
}

// sighted records that a frame from one link entered by another link.
func (r *reference) sighted(st stitch, seen verdict.Stamp) {
	r.stitch(bySight, st)
	key, back := [2]*link{st.entered, st.home}, [2]*link{st.home, st.entered}
	one := r.lan.oneWays[key]
	if r.one(bothWays, st.entered, st.home) {
		if one != nil && one.times < provenAfter {
			delete(r.lan.oneWays, key)
		}
		return
	}
	if other := r.lan.oneWays[back]; other != nil && other.generation == r.lan.generation {
		delete(r.lan.oneWays, key)
		delete(r.lan.oneWays, back)
		r.stitch(bothWays, st)
		r.stitch(byProof, st)
		return
	}
	if one == nil || one.generation+1 < r.lan.generation {
		one = &oneWay{}
		r.lan.oneWays[key] = one
	}
	one.seen, one.generation = max(one.seen, seen), r.lan.generation
	if one.times < provenAfter && (one.times == 0 || one.seen >= one.counted.Add(r.policy.StaleAfter/(provenAfter-1))) {
		one.times, one.counted = one.times+1, one.seen
	}
	if one.times == provenAfter {
		r.stitch(byProof, st)
	}
}

// connected returns the links that stitches connect to a link.
func connected(l *link, stitches []stitch) []*link {
	found := []*link{l}
	for at := 0; at < len(found); at++ {
		for _, st := range stitches {
			if st.entered == found[at] && !slices.Contains(found, st.home) {
				found = append(found, st.home)
			}
			if st.home == found[at] && !slices.Contains(found, st.entered) {
				found = append(found, st.entered)
			}
		}
	}
	return found
}

// one reports whether stitches of the current generation connect two links of one domain.
func (r *reference) one(layer int, a, b *link) bool {
	return a.domain[layer] != nil && a.domain[layer] == b.domain[layer] && slices.Contains(connected(a, r.lan.present[layer]), b)
}

// stitch joins two links in a layer.
func (r *reference) stitch(layer int, st stitch) {
	if r.one(layer, st.entered, st.home) {
		return
	}
	r.lan.present[layer] = append(r.lan.present[layer], st)
	if r.lan.due == 0 {
		r.lan.due = r.now.Add(r.generationTime())
	}
	a, b := st.entered, st.home
	da, db := a.domain[layer], b.domain[layer]
	switch {
	case da == nil && db == nil:
		r.setDomain(layer, &domain{}, a, b)
	case da == db:
	case da == nil:
		r.setDomain(layer, db, a)
	case db == nil:
		r.setDomain(layer, da, b)
	case len(da.links) < len(db.links):
		r.setDomain(layer, db, da.links...)
	default:
		r.setDomain(layer, da, db.links...)
	}
}

// setDomain moves links to a domain; nil for none.
func (r *reference) setDomain(layer int, d *domain, links ...*link) {
	for _, l := range links {
		l.domain[layer] = d
		if d != nil {
			d.links = append(d.links, l)
		}
	}
}

// leaveDomains removes a link that ends from its domains.
func (r *reference) leaveDomains(l *link) {
	for layer, d := range l.domain {
		if d == nil {
			continue
		}
		l.domain[layer] = nil
		d.links = slices.DeleteFunc(d.links, func(other *link) bool { return other == l })
		if len(d.links) == 1 {
			r.setDomain(layer, nil, d.links...)
		}
	}
}

// rotate starts a new generation. Links that only older stitches connected are separated.
func (r *reference) rotate() {
	r.lan.due = 0
	r.lan.generation++
	again := false
	for key, one := range r.lan.oneWays {
		if one.generation+1 < r.lan.generation || key[0].ended() || key[1].ended() {
			delete(r.lan.oneWays, key)
		}
	}
	for layer := range layers {
		r.lan.previous[layer], r.lan.present[layer] = r.lan.present[layer], nil
		again = again || len(r.lan.previous[layer]) > 0
		r.separate(layer)
	}
	if again || len(r.lan.oneWays) > 0 {
		r.lan.due = r.now.Add(r.generationTime())
	}
}

func (l *link) ended() bool { return l.node.links[l.name] != l }

// separate splits the domains of a layer into the links that the previous generation connects.
func (r *reference) separate(layer int) {
	var domains []*domain
	for _, n := range r.nodes {
		for _, l := range n.links {
			if d := l.domain[layer]; d != nil && !slices.Contains(domains, d) {
				domains = append(domains, d)
			}
		}
	}
	for _, d := range domains {
		var parts [][]*link
		for _, l := range d.links {
			if slices.ContainsFunc(parts, func(part []*link) bool { return slices.Contains(part, l) }) {
				continue
			}
			reached := connected(l, r.lan.previous[layer])
			part := slices.DeleteFunc(slices.Clone(d.links), func(other *link) bool { return !slices.Contains(reached, other) })
			slices.SortFunc(part, compareLinks)
			parts = append(parts, part)
		}
		if len(parts) < 2 {
			continue
		}
		slices.SortFunc(parts, func(a, b []*link) int { return cmp.Or(len(b)-len(a), compareLinks(a[0], b[0])) })
		for i, part := range parts {
			switch {
			case len(part) == 1:
				r.setDomain(layer, nil, part...)
			case i == 0:
				d.links = part
			default:
				r.setDomain(layer, &domain{}, part...)
			}
		}
	}
}
