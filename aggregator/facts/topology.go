package facts

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

const (
	// provenAfter is the number of sightings of frames in one direction that prove two links to be
	// one. The sightings must be at least a quarter of --stale-after apart, with at least one in
	// each generation. The proof thus takes at least --stale-after, and a burst of frames proves
	// nothing.
	provenAfter = 5
)

// A Layer is a level of evidence that links are one.
type Layer uint8

// The layers.
const (
	BySight Layer = iota
	ByProof
	BothWays
	layers
)

// A domain is a set of links of several nodes that are one in a layer.
type domain struct {
	layer Layer
	rec   *verdict.Domain
	links []*Link
}

// A Link is a link of a node that is, or was, in a domain.
type Link struct {
	Node *verdict.Node
	Name string
	// Ended is set by the owner of the topology if the node no longer has the link.
	Ended bool
	// joints are the positions of the link in each layer.
	joints [layers]joint
	// listens is what frames in one direction have shown; nil if they have shown nothing.
	listens *listening
	// receives is the generation after the one in which a frame entered the link last; 0 if none did.
	receives uint32
}

// listening is what frames in one direction have shown about the link that they entered.
type listening struct {
	// to is one of the links whose frames entered, until a generation has ended without them.
	to         *Link
	generation uint32
	// copies is the generation after the one in which the frames were copies; 0 if they never were.
	copies uint32
}

// A joint is the position of a link in one layer.
type joint struct {
	domain *domain // nil if the link is in no domain
	// root is the parent of the link in the union-find forest of a generation. Following it leads
	// to the representative of all connected links.
	root       *Link
	generation uint32
}

// A stitch is the evidence that two links are one: a frame with mac, a hardware address of home,
// entered the other link through an uplink. Back is the hardware address of a frame in the opposite
// direction; in the layer ByProof it is empty if the proof consists of repeated frames in one
// direction.
type stitch struct {
	entered, home *Link
	mac, back     verdict.MAC
	seen          verdict.Stamp
}

// oneWay counts the frames from one link that entered another one until they prove that the links
// are one.
type oneWay struct {
	mac  verdict.MAC
	seen verdict.Stamp
	// counted is when a frame was last counted; times is the number of counted frames.
	counted verdict.Stamp
	times   int
	// generation is the generation in which a frame was last seen.
	generation uint32
}

// A Topology records which links of different nodes are one broadcast domain. Use NewTopology.
//
// Links of several nodes become one domain when a frame that entered one of them through an uplink
// carried a hardware address that exactly one other node has. Such a frame is easy to forge, so
// links are joined in three layers. In the layer BySight, one frame is enough: conflicts across such
// a domain are only suspected. In the layer ByProof, frames must have entered in both directions,
// or repeatedly in one direction (provenAfter). A host that is on only one of two LANs cannot forge
// frames in both directions. In the layer BothWays, frames must have entered in both directions: behind
// a repeater that replaces hardware addresses, frames of the LAN enter a node again and again, but its
// own hardware address is never seen on the LAN.
//
// A mirror port of a switch (SPAN) receives copies of frames, and its own frames go nowhere. If it mirrors several VLANs, frames of
// links enter it that receive frames, but not those of each other, as they would on a LAN: then they prove nothing (copied).
//
// Each layer is a forest of stitches, so that a LAN of n nodes needs n stitches instead of one for
// each pair of nodes. Stitches age in generations. Each generation builds its own forest, and the
// domains are the links that the forests of the current and the previous generation connect. Links
// therefore separate when no frame has joined them for a whole generation. This also applies while
// a conflict depends on them: if the conflict still exists, its own frames join them again.
//
// A Topology is not safe for concurrent use. Its owner provides the lock.
type Topology struct {
	staleAfter time.Duration
	// changing is called before the domain of a link changes, with the links that it will share the
	// domain with.
	changing func(l *Link, with []*Link)
	// renaming is called before the domain of a link is renamed.
	renaming func(*Link)

	generation        uint32
	present, previous [layers][]stitch
	domains           [layers]map[*domain]struct{}
	// oneWays is keyed by the entered link and the link that has the hardware address.
	oneWays map[[2]*Link]*oneWay
	// due is when the generation ends; 0 if there is nothing to age.
	due verdict.Stamp
}

// NewTopology returns a topology without domains. It calls changing before the domain of a link changes,
// with the links that it will share the domain with, and renaming before the domain of a link is
// renamed.
func NewTopology(staleAfter time.Duration, changing func(l *Link, with []*Link), renaming func(*Link)) *Topology {
	return &Topology{
		staleAfter: staleAfter, changing: changing, renaming: renaming,
		domains: [layers]map[*domain]struct{}{{}, {}, {}},
		oneWays: map[[2]*Link]*oneWay{},
	}
}

// Generation returns the length of a generation. Frames that are older join no links.
func (t *Topology) Generation() time.Duration { return verdict.ProofLasts * t.staleAfter }

// Due returns when Rotate must be called; 0 for never.
func (t *Topology) Due() verdict.Stamp { return t.due }

// Domains returns the number of domains in a layer.
func (t *Topology) Domains(y Layer) int { return len(t.domains[y]) }

// Empty reports whether there are neither domains nor frames that may lead to one.
func (t *Topology) Empty() bool {
	return len(t.domains[BySight])+len(t.domains[ByProof])+len(t.oneWays) == 0
}

// Domain returns the domain of a link in a layer; nil if it is in none.
func (l *Link) Domain(y Layer) *verdict.Domain {
	if l == nil || l.joints[y].domain == nil {
		return nil
	}
	return l.joints[y].domain.rec
}

func (l *Link) domain(y Layer) *domain { return l.joints[y].domain }

// Sighted records that a frame from home entered another link.
func (t *Topology) Sighted(entered, home *Link, mac verdict.MAC, seen, now verdict.Stamp) {
	st := stitch{entered: entered, home: home, mac: mac, seen: seen}
	t.stitch(BySight, st, now)
	key := [2]*Link{entered, home}
	one := t.oneWays[key]
	if t.one(BothWays, entered, home) {
		if one != nil && one.times < provenAfter {
			delete(t.oneWays, key) // already proven by other frames
		}
		return
	}
	back := [2]*Link{home, entered}
	if other := t.oneWays[back]; other != nil && other.generation == t.generation {
		delete(t.oneWays, key)
		delete(t.oneWays, back)
		st.back = other.mac
		t.stitch(BothWays, st, now)
		t.stitch(ByProof, st, now)
		return
	}
	if one == nil || one.generation+1 < t.generation {
		one = &oneWay{}
		t.oneWays[key] = one
	}
	one.mac, one.seen, one.generation = mac, max(one.seen, seen), t.generation
	if one.times < provenAfter && (one.times == 0 || one.seen >= one.counted.Add(t.staleAfter/(provenAfter-1))) {
		one.times, one.counted = one.times+1, one.seen
	}
	if one.times == provenAfter && !t.copied(entered, home) {
		t.stitch(ByProof, st, now)
	}
}

// Received records that a frame entered a link through an uplink.
func (t *Topology) Received(l *Link) { l.receives = t.generation + 1 }

// copied reports whether the frames that enter a link are copies. Frames of its own have entered no other link. A link that receives
// nothing, because its agent cannot see frames, does not show that it is apart from another one.
func (t *Topology) copied(entered, home *Link) bool {
	recent := func(since uint32) bool { return since != 0 && since >= t.generation }
	if entered.listens == nil {
		entered.listens = &listening{}
	}
	is, d := entered.listens, home.domain(BothWays)
	switch {
	case is.to == nil || is.to.Ended || is.to == home || is.generation+1 < t.generation || !recent(is.to.receives):
		is.to, is.generation = home, t.generation
	case recent(home.receives) && (d == nil || d != is.to.domain(BothWays)):
		is.copies = t.generation + 1
	}
	return recent(is.copies) && entered.domain(BothWays) == nil
}

// root returns the representative of the links that the current generation connects to l in a
// layer.
func (t *Topology) root(y Layer, l *Link) *Link {
	if j := &l.joints[y]; j.root == nil || j.generation != t.generation {
		j.generation, j.root = t.generation, l
	}
	for j := &l.joints[y]; j.root != l; j = &l.joints[y] {
		j.root = j.root.joints[y].root
		l = j.root
	}
	return l
}

// one reports whether the current generation connects two links in a layer and both are still in
// one domain. A link that ended and came back is not.
func (t *Topology) one(y Layer, a, b *Link) bool {
	return t.root(y, a) == t.root(y, b) && a.domain(y) != nil && a.domain(y) == b.domain(y)
}

// stitch joins two links in a layer.
func (t *Topology) stitch(y Layer, st stitch, now verdict.Stamp) {
	if t.one(y, st.entered, st.home) {
		return
	}
	t.root(y, st.entered).joints[y].root = t.root(y, st.home)
	t.present[y] = append(t.present[y], st)
	t.age(now)
	t.join(y, st.entered, st.home)
}

// age schedules the end of the generation if it is not scheduled.
func (t *Topology) age(now verdict.Stamp) {
	if t.due == 0 {
		t.due = now.Add(t.Generation())
	}
}

// join merges the domains of two links.
func (t *Topology) join(y Layer, a, b *Link) {
	switch {
	case a.domain(y) == nil && b.domain(y) == nil:
		t.newDomain(y, []*Link{a, b})
		return
	case a.domain(y) == b.domain(y):
		return
	case a.domain(y) == nil:
		a, b = b, a
	case b.domain(y) != nil && len(a.domain(y).links) < len(b.domain(y).links):
		a, b = b, a
	}
	if b.domain(y) == nil {
		t.setDomain(b, y, a.domain(y))
		return
	}
	small := b.domain(y)
	delete(t.domains[y], small)
	for _, l := range small.links {
		t.setDomain(l, y, a.domain(y))
	}
}

func (t *Topology) newDomain(y Layer, links []*Link) {
	d := &domain{layer: y, rec: &verdict.Domain{}}
	t.domains[y][d] = struct{}{}
	first := slices.MinFunc(links, compare)
	d.rec.Node, d.rec.Name = first.Node, first.Name
	for _, l := range links {
		t.setDomain(l, y, d)
	}
}

// name names a domain after the first of its links. Callers are notified of all of its links if the
// name changes.
func (t *Topology) name(d *domain) {
	first := slices.MinFunc(d.links, compare)
	if d.rec.Node == first.Node && d.rec.Name == first.Name {
		return
	}
	for _, l := range d.links {
		t.renaming(l)
	}
	d.rec.Node, d.rec.Name = first.Node, first.Name
}

// Renaming must be called before the node of a link is renamed, and Renamed afterwards, because
// links are ordered by the names of their nodes.
func (t *Topology) Renaming(l *Link) {
	for y := range layers {
		if d := l.domain(y); d != nil {
			for _, other := range d.links {
				t.renaming(other)
			}
		}
	}
}

// Renamed updates the names of the domains of a link whose node was renamed.
func (t *Topology) Renamed(l *Link) {
	for y := range layers {
		if d := l.domain(y); d != nil {
			t.name(d)
		}
	}
}

// Links yields the links that share a domain with a link by sight.
func (l *Link) Links(yield func(*Link) bool) {
	if l == nil || l.domain(BySight) == nil {
		return
	}
	for _, other := range l.domain(BySight).links {
		if !yield(other) {
			return
		}
	}
}

func compare(a, b *Link) int {
	return cmp.Or(
		strings.Compare(a.Node.Name, b.Node.Name), strings.Compare(a.Node.Boot, b.Node.Boot), strings.Compare(a.Node.Netns, b.Node.Netns),
		strings.Compare(a.Node.Vouched, b.Node.Vouched), strings.Compare(a.Name, b.Name))
}

// setDomain moves a link to a domain of a layer; a nil d removes it from its domain.
func (t *Topology) setDomain(l *Link, y Layer, d *domain) {
	if d != nil {
		t.changing(l, d.links)
	} else {
		t.changing(l, nil)
	}
	l.joints[y].domain = d
	if d == nil {
		return
	}
	d.links = append(d.links, l)
	if compare(l, &Link{Node: d.rec.Node, Name: d.rec.Name}) < 0 {
		t.name(d)
	}
}

// Leave removes a link that has ended from its domains. The other links stay connected until the
// end of a generation, because nothing about them has changed.
func (t *Topology) Leave(l *Link) {
	for y := range layers {
		d := l.domain(y)
		if d == nil {
			continue
		}
		t.changing(l, nil)
		l.joints[y].domain = nil
		d.links = slices.DeleteFunc(d.links, func(other *Link) bool { return other == l })
		if len(d.links) > 1 {
			t.name(d)
			continue
		}
		last := d.links[0]
		d.links = nil
		delete(t.domains[y], d)
		t.setDomain(last, y, nil)
	}
}

// Rotate begins a new generation. Links separate if only stitches of the generation before the
// previous one connected them.
func (t *Topology) Rotate(now verdict.Stamp) {
	t.due = 0
	t.generation++
	maps.DeleteFunc(t.oneWays, func(key [2]*Link, one *oneWay) bool {
		return one.generation+1 < t.generation || key[0].Ended || key[1].Ended
	})
	again := len(t.oneWays) > 0
	for y := range layers {
		t.previous[y], t.present[y] = t.present[y], nil
		again = again || len(t.previous[y]) > 0
		t.separate(y)
	}
	if again {
		t.age(now)
	}
}

// separate splits the domains of a layer into the sets of links that the previous generation
// connects.
func (t *Topology) separate(y Layer) {
	root := func(l *Link) *Link {
		for j := &l.joints[y]; j.root != nil && j.root != l && j.generation+1 == t.generation; j = &l.joints[y] {
			l = j.root
		}
		return l
	}
	for _, d := range slices.Collect(maps.Keys(t.domains[y])) {
		parts := map[*Link][]*Link{}
		var largest *Link
		for _, l := range d.links {
			r := root(l)
			parts[r] = append(parts[r], l)
		}
		for r, part := range parts {
			if largest == nil || len(part) > len(parts[largest]) ||
				len(part) == len(parts[largest]) && compare(slices.MinFunc(part, compare), slices.MinFunc(parts[largest], compare)) < 0 {
				largest = r
			}
		}
		if len(parts) > 1 {
			t.split(d, parts, largest)
		}
	}
}

// split keeps the largest part in a domain and makes new domains of the other parts.
func (t *Topology) split(d *domain, parts map[*Link][]*Link, largest *Link) {
	for r, part := range parts {
		switch {
		case r != largest && len(part) > 1:
			t.newDomain(d.layer, part)
		case r != largest || len(part) == 1:
			t.setDomain(part[0], d.layer, nil)
		}
	}
	if len(parts[largest]) == 1 {
		delete(t.domains[d.layer], d)
		return
	}
	d.links = parts[largest]
	t.name(d)
}

// Stitches returns the evidence that the links of a domain are one. record returns the record of a
// link.
func (t *Topology) Stitches(d *verdict.Domain, record func(*Link) *verdict.Link) []verdict.Stitch {
	var found []verdict.Stitch
	seen := map[[2]*Link]bool{}
	add := func(y Layer, st stitch) {
		a, b := st.entered, st.home
		if a.Domain(BySight) != d || b.Domain(BySight) != d || y == BySight && a.domain(ByProof) != nil && a.domain(ByProof) == b.domain(ByProof) {
			return
		}
		proof := verdict.Proven
		if y == BySight {
			proof = verdict.OneWay
		}
		if st.back != "" && compare(a, b) > 0 { // a fixed order, independent of the order of frames
			a, b, st.mac, st.back = b, a, st.back, st.mac
		}
		if pair := [2]*Link{a, b}; !seen[pair] {
			seen[pair] = true
			found = append(found, verdict.Stitch{Entered: record(a), Home: record(b), MAC: st.mac, Back: st.back, Seen: st.seen, Proof: proof})
		}
	}
	for _, y := range []Layer{BySight, BothWays, ByProof} { // of two stitches of a pair, the one with both frames
		for _, st := range slices.Concat(t.present[y], t.previous[y]) {
			add(y, st)
		}
	}
	slices.SortFunc(found, func(a, b verdict.Stitch) int {
		return cmp.Or(strings.Compare(a.Entered.Node.Name, b.Entered.Node.Name), strings.Compare(a.Entered.Name, b.Entered.Name),
			strings.Compare(a.Home.Node.Name, b.Home.Node.Name), strings.Compare(a.Home.Name, b.Home.Name))
	})
	return found
}
