package facts

import (
	"time"

	"github.com/ipwitness/ipwitness/aggregator/index"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// When an owner loses an address on its own node, or an interface there its MAC, the sightings of
// other nodes end as well. A frame of that owner may still be on its way, in another agent or in the
// snapshot of an agent that reconnects, and must not bring the owner back or look like that of another
// device. Therefore, a tombstone records that a holder gave up an address or its MAC, for as long as a
// sighting counts.

const (
	// maxTombstones is the largest number of tombstones.
	maxTombstones = 65536
	// lateWithin is the tolerance for comparing a frame with the end of its sender's address. Their
	// messages come from two agents and take different times, so the frame may seem to be later
	// although it was sent before. The known lag of the observing agent's stream is added.
	lateWithin time.Duration = 100 * time.Millisecond
)

// tombstone is an address and the MAC of the holder that gave it up.
type tombstone struct {
	addr index.Address
	mac  verdict.MAC
}

// death is when a holder gave up its address or MAC, and the node that reported it. Reports of one node
// are in order.
type death struct {
	at   verdict.Stamp
	node *Node
	who  verdict.Who // of the holder; empty if it is not known
}

type burial struct {
	tombstone tombstone
	at        verdict.Stamp
}

// bury records that a holder with a MAC gave up an address or the MAC. late is how long ago its agent noticed.
func (f *Facts) bury(n *Node, addr index.Address, mac verdict.MAC, late time.Duration) {
	now := f.now()
	one, at := tombstone{addr, mac}, now.Add(-late)
	who := verdict.Who("")
	if d := f.tombstones[one]; d.node == n {
		who = d.who // frames of the holder end with its address
	}
	f.tombstones[one] = death{at: at, node: n, who: who}
	f.burials = append(f.burials, burial{one, at})
	for len(f.burials) > maxTombstones || f.burials[0].at.Add(f.Policy.StaleAfter) <= now {
		if old := f.burials[0]; f.tombstones[old.tombstone].at == old.at {
			delete(f.tombstones, old.tombstone)
		}
		f.burials = f.burials[1:]
		if len(f.burials) == 0 {
			f.burials = nil
			break
		}
	}
}

// departed tells the agent of a node that saw frames of a holder on another node that they say nothing any more.
func (n *Node) departed(addr index.Address, mac verdict.MAC) {
	if n.Peer != nil {
		n.Peer.Departed(addr.Addr(), mac)
	}
}

// isBuried reports whether a node's claim was seen before its sender gave the address or the MAC up.
func (f *Facts) isBuried(by *Node, addr index.Address, mac verdict.MAC, seen verdict.Stamp) bool {
	if len(f.tombstones) == 0 {
		return false
	}
	d, ok := f.tombstones[tombstone{addr, mac}]
	if !ok || d.node == by || d.at.Add(f.Policy.StaleAfter) <= f.now() {
		return false
	}
	late := lateWithin
	if by.Peer != nil {
		if lag, known := by.Peer.Lag(f.now()); known {
			late += lag
		}
	}
	return seen <= d.at.Add(late)
}
