package facts

import (
	"net/netip"
	"slices"

	"github.com/ipwitness/ipwitness/aggregator/audit"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// CommonMACs returns the hardware addresses that several nodes have and that are not shared by design.
// The caller holds the lock.
func (f *Facts) CommonMACs() (macs []verdict.MAC) {
	for m := range f.holders.more {
		macs = append(macs, verdict.MAC(m[:]))
	}
	return macs
}

// CommonMACs returns the hardware addresses that several interfaces of the node have, and those of virtual
// routers, which other nodes may have. The caller holds the lock.
func (n *Node) CommonMACs() (macs []verdict.MAC) {
	for i := range n.interfaces.all {
		one := n.interfaces.at(i)
		if one.alike == 0 && one.mac.bytes[2] != 0x5e { // of virtual routers
			continue
		}
		if m := n.texts.macOf(one.mac); (m.Virtual() || one.alike != 0 && one.mac.identifiesOne()) && !slices.Contains(macs, m) {
			macs = append(macs, m)
		}
	}
	return macs
}

// WithMAC returns the interfaces with a hardware address, with their addresses. The caller holds the lock.
func (f *Facts) WithMAC(m verdict.MAC) (all []audit.MACHolder) {
	of := mac{[6]byte([]byte(m)), sixBytes}
	add := func(n *Node) {
		for i := n.holder(of); i != 0 && !n.Rec.TimedOut; i = n.interfaces.at(i).alike {
			var addresses []netip.Addr
			for c := range n.on(i) {
				if one := n.claims.at(c); one.kind == verdict.Assigned && !one.addr.Addr().IsLinkLocalUnicast() {
					addresses = append(addresses, one.addr.Addr())
				}
			}
			all = append(all, audit.MACHolder{Interface: n.record(i), Addresses: addresses})
		}
	}
	if m.Shared() { // they are not indexed
		f.Nodes(func(n *Node) bool { add(n); return true })
		return all
	}
	for r := range f.holders.all(of.bytes) {
		add(f.nodes[r.node()])
	}
	return all
}
