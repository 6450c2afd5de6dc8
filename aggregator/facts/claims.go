package facts

import (
	"net/netip"
	"slices"
	"sync/atomic"

	"github.com/ipwitness/ipwitness/aggregator/index"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// claimKey identifies a claim on an interface.
type claimKey struct {
	kind            verdict.Evidence
	mac             mac
	vlan, innerVLAN uint16
	noOverride      bool
	source          mac
}

// find returns the claim with a key on a port, among the claims to an address on the node; 0 if
// there is none.
func (t *tables) find(first, port uint32, key claimKey) uint32 {
	for c := range t.same(first) {
		one := t.claims.at(c)
		if one.port != port || one.kind != key.kind || (one.wire() == 0) != (key.mac.form == noMAC) {
			continue
		}
		if one.wire() == 0 {
			return c
		}
		w := t.wires.at(one.wire())
		if t.hardware.at(w.hardware).mac == key.mac && w.vlan == key.vlan && w.inner == key.innerVLAN && w.flags.has(noOverride) == key.noOverride && w.source == key.source {
			return c
		}
	}
	return 0
}

// history returns when and how often a claim was seen.
func (t *tables) history(c *claim) history {
	switch {
	case c.wire() != 0:
		return t.wires.at(c.wire()).history
	case c.more != 0:
		return *t.histories.at(c.more)
	}
	return c.once()
}

// once returns the history of a kernel claim that was reported only once.
func (c *claim) once() history { return history{last: c.first, mark: c.begun, count: 1} }

func (t *tables) setHistory(c *claim, h history) {
	switch {
	case c.wire() != 0:
		t.wires.at(c.wire()).history = h
	case h == c.once():
		if c.more != 0 {
			t.histories.remove(c.more)
			c.more = 0
		}
	case c.more != 0:
		*t.histories.at(c.more) = h
	default:
		c.more = t.histories.add(h)
	}
}

// addToIndexes adds a new claim to all indexes. linkName and prefix come from its record.
func (f *Facts) addToIndexes(n *Node, a index.Address, port uint32, key claimKey, linkName string, prefix uint8, now verdict.Stamp) uint32 {
	f.touch(a)
	next := claim{addr: a, port: port, kind: key.kind, prefix: prefix, begun: now}
	f.touchGuest(n, &next)
	if key.mac.form != noMAC {
		w := wire{source: key.source, vlan: key.vlan, inner: key.innerVLAN, hardware: n.named(key.mac)}
		w.flags.set(noOverride, key.noOverride)
		w.link = n.interfaces.at(port).link
		if linkName != "" {
			w.link = n.namedLink(linkName)
		}
		if w.link != 0 {
			n.links.at(w.link).users++
		}
		next.more = n.wires.add(w)
		n.wireClaims++
	}
	c := n.claims.add(next)

	// The index by port.
	enter(&n.interfaces.at(port).claims, c, n.claimLists)
	one := n.claims.at(c)
	// The index by address.
	others := f.Claimed(a)
	if others {
		one.alike = f.addresses.of(a, n.number)
	}
	f.addresses.set(a, refOf(n.number, c))
	// The index by MAC.
	if one.wire() != 0 {
		w := n.wires.at(one.wire())
		hw := n.hardware.at(w.hardware)
		enter(&hw.claims, c, n.wireLists)
		f.listNamed(n, w.hardware)
		if source := n.texts.macOf(w.source); source != "" {
			if n.sources == nil {
				n.sources = make(map[verdict.MAC][]uint32)
			}
			n.sources[source] = append(n.sources[source], c)
		}
	}
	f.addressed(n, c)
	if others || one.wire() != 0 {
		f.touchAnswers(n, c, 0)
	}
	if key.kind == verdict.Assigned {
		f.placeSightings(n, c)
		for k := range n.same(c) { // frames may come before the report of the kernel
			if at := n.claims.at(k).wire(); at != 0 {
				f.sawOwn(n, k, n.wires.at(at).seen)
			}
		}
	}
	return c
}

// removeFromIndexes removes a claim.
func (f *Facts) removeFromIndexes(n *Node, c uint32) {
	one := n.claims.at(c)
	f.touch(one.addr)
	f.touchGuest(n, one)
	f.addressed(n, c)
	f.touchAnswers(n, c, 1)
	setCharge(f, n, &one.cost, 0)

	leave(&n.interfaces.at(one.port).claims, c, n.claimLists)
	if first := f.addresses.of(one.addr, n.number); first != c {
		before := first
		for n.claims.at(before).alike != c {
			before = n.claims.at(before).alike
		}
		n.claims.at(before).alike = one.alike
	} else if one.alike != 0 {
		f.addresses.set(one.addr, refOf(n.number, one.alike))
	} else {
		f.addresses.remove(one.addr, n.number)
	}

	var l uint32
	if one.wire() != 0 {
		l = f.unlistWire(n, c)
	} else if one.more != 0 {
		n.histories.remove(one.more)
	}
	n.claims.remove(c)
	if l != 0 { // last, because dropLink may touch the claims on other links
		n.links.at(l).users--
		f.dropLink(n, l)
	}
}

// unlistWire removes a wire claim from the indexes by MAC. It returns the claim's link, which still
// counts the claim as a user; 0 if it has none.
func (f *Facts) unlistWire(n *Node, c uint32) (link uint32) {
	at := n.claims.at(c).wire()
	w := *n.wires.at(at)
	hw := n.hardware.at(w.hardware)
	leave(&hw.claims, c, n.wireLists)
	f.unlistNamed(n, w.hardware)
	if source := n.texts.macOf(w.source); source != "" {
		if n.sources[source] = slices.DeleteFunc(n.sources[source], func(other uint32) bool { return other == c }); len(n.sources[source]) == 0 {
			delete(n.sources, source)
		}
	}
	n.dropHardware(w.hardware)
	n.wireClaims--
	n.wires.remove(at)
	return w.link
}

// setPrefix sets the prefix length of a claim.
func (f *Facts) setPrefix(n *Node, c uint32, prefix uint8) {
	one := n.claims.at(c)
	if one.prefix == prefix {
		return
	}
	f.addressed(n, c) // before the change, for its current subnet
	one.prefix = prefix
	f.addressed(n, c)
}

// addressed notifies that a node, or one of its pods, has gained or lost an address.
func (f *Facts) addressed(n *Node, c uint32) {
	one := n.claims.at(c)
	at := n.interfaces.at(one.port)
	if one.wire() != 0 {
		f.notifySenders(n, at.peer(), n.hardware.at(n.wires.at(one.wire()).hardware).mac)
	}
	if one.kind != verdict.Assigned {
		return
	}
	if at.attachment == verdict.Own || one.network != 0 || at.alike != 0 || len(f.holders.more[at.mac.bytes]) > 0 {
		f.changes.ranges(n)
	}
	if ns := n.namespaces.at(at.namespace); ns.record != verdict.OwnRecord {
		f.changes.lacking(n, ns.record)
	} else {
		subnet := netip.PrefixFrom(one.addr.Addr(), int(one.prefix))
		f.touchDisputesWithin(n, []netip.Prefix{subnet}) // causes depend on the subnets that contain the address
	}
}

// notifySenders notifies that the namespaces that may have sent a frame may have gained or lost an
// intended address: the one behind the port through which the frame entered, and those with its
// MAC, on any node.
func (f *Facts) notifySenders(n *Node, behind uint32, m mac) {
	if behind != 0 {
		f.changes.lacking(n, behind)
	}
	for i := n.holder(m); i != 0; i = n.interfaces.at(i).alike {
		f.changes.lacking(n, n.namespaces.at(n.interfaces.at(i).namespace).record)
	}
	if m.form == sixBytes {
		for by, i := range f.holdersOf(m.bytes) {
			f.changes.lacking(by, by.namespaces.at(by.interfaces.at(i).namespace).record)
		}
	}
}

// moveClaimLink moves a wire claim to another link after its port has moved there.
func (f *Facts) moveClaimLink(n *Node, c uint32, linkName string) {
	one := n.claims.at(c)
	if one.wire() == 0 || linkName == "" {
		return
	}
	w := n.wires.at(one.wire())
	old := w.link
	if old != 0 && n.texts.get(n.links.at(old).name) == linkName {
		return
	}
	f.touch(one.addr)
	f.touchAnswers(n, c, 0) // its sender may be a proxy on the other link
	w.link = n.namedLink(linkName)
	n.links.at(w.link).users++
	if old != 0 {
		n.links.at(old).users--
		f.dropLink(n, old)
	}
}

// The values of wire.judged.
const (
	never uint32 = iota
	plainly
	otherwise
)

func (w *wire) isSettled() bool { return atomic.LoadUint32(&w.judged) == plainly }
func (w *wire) isNew() bool     { return atomic.LoadUint32(&w.judged) == never }

// Settle records that an address was judged. plain is set if it has one undisputed owner, in which
// case another sighting does not trigger a judgement. The caller holds the lock for reading, and no
// other goroutine judges the address.
func (f *Facts) Settle(a index.Address, plain bool) {
	is := otherwise
	if plain {
		is = plainly
	}
	for n, c := range f.claimsTo(a) {
		if at := n.claims.at(c).wire(); at != 0 {
			atomic.StoreUint32(&n.wires.at(at).judged, is)
		}
	}
}

// Expire deletes expired wire claims of an address that was judged only to find them. The item's
// batches then wait for the next judgement.
func (f *Facts) Expire(item *Item, claims []Ref) {
	b := newBatch()
	f.piece(b, func() {
		again := f.touch(item.Address)
		again.Before, again.Derived = item.Before, item.Derived
		again.Vanished = append(item.Vanished, again.Vanished...)
		again.At, again.Residence, again.Pods, again.Republish = item.At, item.Residence, item.Pods, item.Republish
		again.batches, item.batches = append(item.batches, again.batches...), nil
		now := f.now()
		for _, r := range claims {
			n := f.nodes[r.node()]
			if n == nil || !n.claims.has(r.index()) {
				continue
			}
			one := n.claims.at(r.index())
			if one.addr == item.Address && one.wire() != 0 && n.wires.at(one.wire()).seen.Add(2*f.Policy.StaleAfter) <= now {
				f.removeFromIndexes(n, r.index())
			}
		}
	})
	f.close(b)
}
