package aggregator

import (
	"net/netip"
	"slices"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// shardCount is in how many parts the address table can be walked, so that a
// walk never holds the lock for long.
const shardCount = 256

// table is all that is known, by address.
type table struct {
	shards [shardCount]lookup[netip.Addr, *entry]
}

func newTable() (t table) {
	for i := range t.shards {
		t.shards[i] = newLookup(func(e *entry) netip.Addr { return e.addr })
	}
	return t
}

// entry is one address: who claims it, and what was judged of it.
type entry struct {
	addr netip.Addr
	// holdings are what kernels say, then what the wire shows, which may be much.
	holdings []*holding
	// owners are those of the last judgement, in order.
	owners []verdict.Owner
	// dispute is nil for most.
	dispute *dispute
	// booking is nil where no IPAM that is read knows of the address.
	booking *booking
	alarm   alarm
}

// dispute is what there is of an address that several claim, or did.
type dispute struct {
	// conflicts are the latest of each id: active, or resolved and kept.
	conflicts []verdict.Conflict
	// told are the nodes that watch the address more closely; nil for none.
	told map[*node]struct{}
}

// conflicts are those of the dispute.
func (e *entry) conflicts() []verdict.Conflict {
	if e.dispute == nil {
		return nil
	}
	return e.dispute.conflicts
}

// memories returns what the next judgement needs to know about the conflicts.
func (e *entry) memories() (all []verdict.Memory) {
	for i := range e.conflicts() {
		all = append(all, e.dispute.conflicts[i].Memory())
	}
	return all
}

// disputed is the entry's dispute, made where there is none.
func (e *entry) disputed() *dispute {
	if e.dispute == nil {
		e.dispute = &dispute{}
	}
	return e.dispute
}

// settle forgets a dispute of which nothing is left.
func (e *entry) settle() {
	if d := e.dispute; d != nil && len(d.conflicts) == 0 && d.told == nil {
		e.dispute = nil
	}
}

// holding is one claim in the table, and where it is listed.
type holding struct {
	verdict.Claim
	entry *entry
	port  *iface
	// Of the wire only.
	link *link
	mac  *hardware

	// The places in the lists that it is in; atAbroad is one more, 0 for none.
	atPort, atMAC, atAbroad int32
	// sweep is the last snapshot that had it.
	sweep uint32
	cost  int32
	// ended tells that it is in no list any more.
	ended bool
}

func (t *table) shard(a netip.Addr) *lookup[netip.Addr, *entry] {
	b := a.As16()
	return &t.shards[b[15]^b[14]*31^b[13]*17^b[7]]
}

func (t *table) get(a netip.Addr) *entry { return t.shard(a).get(a) }

// enter is the entry of an address, made where there is none.
func (t *table) enter(a netip.Addr) *entry {
	shard := t.shard(a)
	if e := shard.get(a); e != nil {
		return e
	}
	e := &entry{addr: a}
	shard.put(e)
	return e
}

// drop forgets an entry that says nothing any more.
func (t *table) drop(e *entry) {
	if shard := t.shard(e.addr); len(e.holdings) == 0 && e.dispute == nil && e.booking == nil && len(e.owners) == 0 && shard.get(e.addr) == e {
		shard.remove(e.addr)
	}
}

// conflict is the entry's conflict with an id, nil for none.
func (e *entry) conflict(id string) *verdict.Conflict {
	conflicts := e.conflicts()
	for i := range conflicts {
		if conflicts[i].ID == id {
			return &conflicts[i]
		}
	}
	return nil
}

// plain tells whether one owner is there and nothing is in dispute: that the wire
// shows it once more changes nothing then. Its alarm rings for nothing.
func (e *entry) plain() bool {
	return len(e.owners) == 1 && e.owners[0].State == verdict.Live && e.owners[0].Excluded == nil && e.dispute == nil
}

// owner is the entry's owner with an id, nil for none.
func (e *entry) owner(id string) *verdict.Owner {
	for i := range e.owners {
		if e.owners[i].ID == id {
			return &e.owners[i]
		}
	}
	return nil
}

// claimKey is what makes a claim on one interface the same claim.
type claimKey struct {
	kind            verdict.Evidence
	mac             verdict.MAC
	vlan, innerVLAN uint16
	noOverride      bool
	source          verdict.MAC
}

func (h *holding) key() claimKey {
	return claimKey{h.Kind, h.MAC, h.VLAN, h.InnerVLAN, h.NoOverride, h.Source}
}

// find is the holding of an address by a key on an interface, nil for none.
// It looks where there is less to look through.
func (e *entry) find(port *iface, key claimKey) *holding {
	if len(port.holdings) < len(e.holdings) {
		for _, h := range port.holdings {
			if h.entry == e && h.key() == key {
				return h
			}
		}
		return nil
	}
	for _, h := range e.holdings {
		if h.port == port && h.key() == key {
			return h
		}
	}
	return nil
}

// list enters a new holding wherever it is looked for.
func (n *node) list(h *holding) {
	h.atPort = int32(len(h.port.holdings))
	h.port.holdings = append(h.port.holdings, h)
	if h.Wire() || h.Kind == verdict.Believed {
		h.mac = n.named(h.MAC)
		h.atMAC = int32(len(h.mac.claims))
		h.mac.claims = append(h.mac.claims, h)
		n.wireClaims++
		if h.link != nil {
			h.link.users++
		}
		h.entry.holdings = append(h.entry.holdings, h)
	} else {
		h.entry.holdings = slices.Insert(h.entry.holdings, 0, h)
	}
	n.claims++
}

// unlist takes a holding out of all lists.
func (n *node) unlist(h *holding) {
	e := h.entry
	i := slices.Index(e.holdings, h)
	if i < 0 {
		return
	}
	e.holdings = slices.Delete(e.holdings, i, i+1)
	if len(e.holdings) == 0 {
		e.holdings = nil
	}
	h.port.holdings = unlistAt(h.port.holdings, h.atPort, func(h *holding, at int32) { h.atPort = at })
	if h.mac != nil {
		h.mac.claims = unlistAt(h.mac.claims, h.atMAC, func(h *holding, at int32) { h.atMAC = at })
		n.wireClaims--
		n.dropHardware(h.mac)
		if h.link != nil {
			h.link.users--
		}
	}
	n.claims--
}

// unlistAt takes out one holding and puts the last one in its place.
func unlistAt(list []*holding, at int32, moved func(*holding, int32)) []*holding {
	last := len(list) - 1
	list[at] = list[last]
	moved(list[at], at)
	list[last] = nil
	return list[:last]
}
