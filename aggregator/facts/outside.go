package facts

import "github.com/ipwitness/ipwitness/aggregator/verdict"

// A frame with a MAC of a node may enter the node itself, because its LAN returns the frames of the node (a loop, a bridge port
// in hairpin mode, the backup slave of a bond), or because a machine outside has the MAC, too. A LAN that returns frames
// also returns those with the addresses of the node. If none has entered the node for --stale-after, a machine
// outside has sent the frame.

// hasOwnMAC reports whether a claim is a frame that entered the node from outside with a MAC of the node.
func (n *Node) hasOwnMAC(c uint32) bool {
	one := n.claims.at(c)
	if one.wire() == 0 || one.kind == verdict.Believed || !n.interfaces.at(one.port).flags.has(uplink) {
		return false
	}
	m := n.hardware.at(n.wires.at(one.wire()).hardware).mac
	return m.identifiesOne() && n.holder(m) != 0
}

// isFromOutside reports whether a machine outside has sent a frame with a MAC of the node. Announcements and answers do not
// count, because programs send them for addresses that the kernel does not have. Nothing is known of the addresses of
// a node before its first snapshot is complete, or if the agent does not see all of them.
func (n *Node) isFromOutside(c uint32) bool {
	one := n.claims.at(c)
	return one.kind == verdict.Used && n.Rec.Listed != 0 && n.wires.at(one.wire()).seen > n.outsideAfter && n.hasOwnMAC(c) && !n.Blind()
}

// sawOwn handles a frame that a node has seen, if it has a MAC of the node. before is when the node had seen it before.
func (f *Facts) sawOwn(n *Node, c uint32, before verdict.Stamp) {
	if !n.hasOwnMAC(c) {
		return
	}
	one := n.claims.at(c)
	w := n.wires.at(one.wire())
	left := f.tombstones[tombstone{one.addr, n.texts.macOf(n.hardware.at(w.hardware).mac)}]
	late := left.node == n && w.seen <= left.at.Add(f.Policy.HandoverGrace) && left.at.Add(f.Policy.StaleAfter) > f.now()
	switch {
	case late || f.assignedOn(n, one.addr):
		f.returned(n, w.seen)
	case before <= n.outsideAfter && n.outsideAfter < w.seen:
		f.touch(one.addr)
	}
}

// returned records that the LAN of a node has returned a frame of the node.
func (f *Facts) returned(n *Node, seen verdict.Stamp) {
	before, after := n.outsideAfter, seen.Add(f.Policy.StaleAfter)
	if after <= before {
		return
	}
	if n.outsideAfter = after; before > f.now() {
		return // no frame has counted as one from outside
	}
	for i := range n.interfaces.all {
		if m := n.interfaces.at(i).mac; m.identifiesOne() {
			if hw := n.hardwareOf(m); hw != 0 {
				f.touchBy(n, hw)
			}
		}
	}
}
