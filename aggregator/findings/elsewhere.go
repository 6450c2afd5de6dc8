package findings

import (
	"maps"
	"slices"
	"sync"

	"github.com/ipwitness/ipwitness/aggregator/facts"
	"github.com/ipwitness/ipwitness/aggregator/index"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// If replicas share the addresses, a finding may concern addresses that several of them serve. Each tells
// the others what its addresses add to such findings, so that all come to the same ones.

// A Hint is what an address adds to findings that concern several addresses.
type Hint struct {
	Pools  []PoolHint
	Clones []CloneHint
}

// A PoolHint says that an address is leaked or, if Leaked is not set, in use although the pool considers
// it free.
type PoolHint struct {
	Pool    facts.PoolID
	Leaked  bool
	Holders []Holder
}

// mostHolders is the number of holders and of clones that a hint has at most.
const mostHolders = 100

// A Holder is an interface whose kernel has an address, since a time by the clock of its node.
type Holder struct {
	Interface  facts.InterfaceID
	AssignedAt verdict.Stamp
}

// A CloneHint is a cloned hardware address in frames that claim an address. Sender is the record number of
// the namespace behind the port.
type CloneHint struct {
	Port, Victim facts.InterfaceID
	Sender       uint32
	MAC          verdict.MAC
	First, Last  verdict.Stamp
	Count        uint32
}

func (h *Hint) empty() bool { return len(h.Pools)+len(h.Clones) == 0 }

func (h *Hint) equal(other *Hint) bool {
	return slices.Equal(h.Clones, other.Clones) && slices.EqualFunc(h.Pools, other.Pools, func(a, b PoolHint) bool {
		return a.Pool == b.Pool && a.Leaked == b.Leaked && slices.Equal(a.Holders, b.Holders)
	})
}

// hints are what the addresses of this replica add; nil if replicas do not share the addresses.
type hints struct {
	mu sync.Mutex
	// own are the hints that are not empty. changed has the addresses that others have not been told of.
	own     map[index.Address]Hint
	changed map[index.Address]struct{}
	// leaving are the hints of partitions that this replica has given up, as long as they count.
	leaving map[index.Address]Hint
}

func newHints(sharing bool) *hints {
	if !sharing {
		return nil
	}
	return &hints{own: make(map[index.Address]Hint), changed: make(map[index.Address]struct{}), leaving: make(map[index.Address]Hint)}
}

// set changes the hint of an address.
func (h *hints) set(a index.Address, change func(*Hint)) {
	if h == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	one := h.own[a]
	if change(&one); one.empty() {
		delete(h.own, a)
	} else {
		h.own[a] = one
	}
	h.changed[a] = struct{}{}
}

// pool notes that an address is leaked or at risk, or that it is not any longer.
func (h *hints) pool(a index.Address, p *facts.Pool, leaked, there bool, owners []verdict.Owner) {
	if h == nil {
		return
	}
	id := p.ID()
	h.set(a, func(one *Hint) {
		// Messages may still have the old list.
		one.Pools = slices.DeleteFunc(slices.Clone(one.Pools), func(p PoolHint) bool { return p.Pool == id && p.Leaked == leaked })
		if there {
			one.Pools = append(one.Pools, PoolHint{id, leaked, holders(owners)})
		}
	})
}

func holders(owners []verdict.Owner) (all []Holder) {
	for i := range owners {
		if o := &owners[i]; o.Assigned && o.Interface != nil && o.Interface.Namespace != nil && len(all) < mostHolders {
			all = append(all, Holder{facts.InterfaceIDOf(o.Interface), o.AssignedAt()})
		}
	}
	return all
}

// clones notes the cloned hardware addresses in claims to an address.
func (h *hints) clones(a index.Address, found []verdict.Spoof) {
	h.set(a, func(one *Hint) {
		one.Clones = nil
		for i := range found[:min(len(found), mostHolders)] {
			s := &found[i]
			one.Clones = append(one.Clones, CloneHint{
				facts.InterfaceIDOf(s.Port), facts.InterfaceIDOf(s.Victims[0].Interface), s.Sender.Record, s.MACs[0], s.First, s.Last, s.Count,
			})
		}
	})
}

// ended forgets what addresses add to the findings about a pool that has ended.
func (h *hints) ended(p *facts.Pool) {
	if h == nil {
		return
	}
	id := p.ID()
	of := func(one PoolHint) bool { return one.Pool == id }
	h.mu.Lock()
	defer h.mu.Unlock()
	for a, one := range h.own {
		if !slices.ContainsFunc(one.Pools, of) {
			continue
		}
		one.Pools = slices.DeleteFunc(slices.Clone(one.Pools), of)
		if h.own[a] = one; one.empty() {
			delete(h.own, a)
		}
		h.changed[a] = struct{}{}
	}
}

// get returns the hint of an address. The caller holds h.mu.
func (h *hints) get(a index.Address) Hint {
	if one, own := h.own[a]; own {
		return one
	}
	return h.leaving[a]
}

// TakeHints returns the hints that have changed since the last call. An empty one means that the address adds
// nothing any longer.
func (f *Findings) TakeHints() map[index.Address]Hint {
	f.hints.mu.Lock()
	defer f.hints.mu.Unlock()
	out := make(map[index.Address]Hint, len(f.hints.changed))
	for a := range f.hints.changed {
		out[a] = f.hints.get(a)
	}
	clear(f.hints.changed)
	return out
}

// AllHints returns all hints.
func (f *Findings) AllHints() map[index.Address]Hint {
	f.hints.mu.Lock()
	defer f.hints.mu.Unlock()
	out := maps.Clone(f.hints.leaving)
	maps.Copy(out, f.hints.own)
	return out
}

// Told takes the hints of another replica. If all is set, it has no others.
func (f *Findings) Told(replica string, now map[index.Address]Hint, all bool) {
	f.facts.RLock()
	defer f.facts.RUnlock()
	f.telling.Lock()
	defer f.telling.Unlock()
	if all {
		for a, by := range f.told {
			if _, had := by[replica]; had && len(now[a].Pools)+len(now[a].Clones) == 0 {
				f.tell(a, replica, Hint{})
			}
		}
	}
	for a, h := range now {
		f.tell(a, replica, h)
	}
	f.Rested() // no address is queued because of that, so nothing else wakes the checks
}

// tell takes the hint of a replica about an address.
func (f *Findings) tell(a index.Address, replica string, now Hint) {
	by := f.told[a]
	if last, had := by[replica]; had == !now.empty() && last.equal(&now) && !f.unknown[a] {
		return
	}
	before := merged(by)
	switch {
	case !now.empty() && by == nil:
		f.told[a] = map[string]Hint{replica: now}
	case !now.empty():
		by[replica] = now
	default:
		if delete(by, replica); len(by) == 0 {
			delete(f.told, a)
		}
	}
	after := merged(f.told[a])
	f.Pools.tell(a, before.Pools, after.Pools)
	var clones []verdict.Spoof
	delete(f.unknown, a)
	for i := range after.Clones {
		if s, known := after.Clones[i].spoof(f.facts, a); known {
			clones = append(clones, s)
		} else {
			f.unknown[a] = true
		}
	}
	if len(before.Clones)+len(clones) > 0 {
		f.Clones.told(a, clones)
	}
}

// merged returns what some replicas tell of an address. While a partition is handed over, two of them do.
func merged(by map[string]Hint) (all Hint) {
	for _, name := range slices.Sorted(maps.Keys(by)) {
		for _, p := range by[name].Pools {
			if !slices.ContainsFunc(all.Pools, func(other PoolHint) bool { return other.Pool == p.Pool && other.Leaked == p.Leaked }) {
				all.Pools = append(all.Pools, p)
			}
		}
		for _, c := range by[name].Clones {
			if !slices.ContainsFunc(all.Clones, func(other CloneHint) bool { return other.Port == c.Port && other.MAC == c.MAC }) {
				all.Clones = append(all.Clones, c)
			}
		}
	}
	return all
}

// spoof makes the spoof that a hint describes, from what every replica knows of interfaces.
func (c *CloneHint) spoof(f *facts.Facts, a index.Address) (s verdict.Spoof, known bool) {
	port, victim := f.InterfaceAt(c.Port), f.InterfaceAt(c.Victim)
	if port == nil || victim == nil {
		return s, false // the sender repeats it
	}
	sender := f.Node(port.Namespace.Node).NamespaceOf(c.Sender)
	if sender == nil {
		return s, false
	}
	owner := func(ns *verdict.Namespace, i *verdict.Interface) verdict.Owner {
		return verdict.Owner{ID: ns.ID, Node: ns.Node, Namespace: ns, Interface: i, MAC: c.MAC, State: verdict.Live}
	}
	s = verdict.Spoof{
		Port: port, Sender: sender, Link: port.Link, Owner: owner(sender, port), Victims: []verdict.Owner{owner(victim.Namespace, victim)},
		First: c.First, Last: c.Last, Count: c.Count, MACs: []verdict.MAC{c.MAC},
	}
	s.Addresses = append(s.Addresses, a.Addr())
	return s, true
}

// owners makes the owners that a hint describes.
func (p *PoolHint) owners(f *facts.Facts) (all []verdict.Owner) {
	for _, h := range p.Holders {
		i := f.InterfaceAt(h.Interface)
		if i == nil {
			continue
		}
		ns := i.Namespace
		all = append(all, verdict.Owner{
			ID: ns.ID, Node: ns.Node, Namespace: ns, Interface: i, MAC: i.MAC, State: verdict.Live, Assigned: true, Pod: f.PodObject(ns),
			Claims: []*verdict.Claim{{Kind: verdict.Assigned, Interface: i, Times: verdict.Times{AssignedAt: h.AssignedAt}}},
		})
	}
	return all
}

// Drop forgets what was found about the addresses of partitions that another replica serves now. What they
// add to findings about several addresses counts until Dropped, in all replicas, because the new holder may
// not have told it yet.
func (f *Findings) Drop(lost facts.PartitionSet) {
	h := f.hints
	h.mu.Lock()
	for a, one := range h.own {
		if lost[a.Partition()] {
			h.leaving[a] = one
		}
	}
	leaving := maps.Clone(h.leaving)
	h.mu.Unlock()
	f.Told(self, leaving, true)
	f.Intended.drop(lost)
}

// Dropped forgets what Drop has kept.
func (f *Findings) Dropped() {
	h := f.hints
	h.mu.Lock()
	for a := range h.leaving {
		h.changed[a] = struct{}{}
	}
	clear(h.leaving)
	h.mu.Unlock()
	f.Told(self, nil, true)
}

// self stands for the name of this replica.
const self = ""
