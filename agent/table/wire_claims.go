package table

import (
	"iter"
	"maps"
	"net/netip"
	"slices"
	"time"
)

// Limits of wire claims in the table. The wire is the only source that anyone can fill. When
// there is no room for a new claim, the port with the most claims gives up an older one. Both
// refused and evicted claims are counted.
const (
	// maxWire is the number of bindings that the observer remembers.
	maxWire = 131072
	// maxPerPort is enough for the largest LAN behind an uplink.
	maxPerPort = 65536
	// maxImportantPerPort limits claims to important addresses. It keeps a port that makes up
	// MACs for other hosts' addresses from filling all the reserved room.
	maxImportantPerPort = 4096
	// portShare is the number of claims that a port may always have, however many others have.
	portShare = 256
	// maxPerAddress is enough claims to show that an address is in dispute. Further claims to
	// the address are refused.
	maxPerAddress = 256
	// addressShare is how many claims to an address a port may always have. Without it,
	// another link, such as that of another tenant, could use up the limit of the address.
	addressShare = 8
)

// A queueIndex is the index of one of a port's queues.
type queueIndex uint8

// The queues of a port, in the order in which their claims are evicted.
const (
	seenOnce queueIndex = iota
	seenAgain
	// Claims to important addresses are never evicted for claims to other addresses.
	importantOnce
	importantAgain
	queues
)

type portClaims struct {
	queues  [queues]queue
	leftOut uint64 // claims that were refused or evicted
}

// A queue has claims in the order of their last sightings.
type queue struct {
	oldest, newest *entry
	len            int
}

func (q *queue) add(c *entry) {
	c.older, c.newer = q.newest, nil
	if q.newest != nil {
		q.newest.newer = c
	} else {
		q.oldest = c
	}
	q.newest = c
	q.len++
}

func (q *queue) remove(c *entry) {
	if c.older != nil {
		c.older.newer = c.newer
	} else {
		q.oldest = c.newer
	}
	if c.newer != nil {
		c.newer.older = c.older
	} else {
		q.newest = c.older
	}
	c.older, c.newer = nil, nil
	q.len--
}

func (p *portClaims) count(first, last queueIndex) (n int) {
	for i := first; i <= last; i++ {
		n += p.queues[i].len
	}
	return n
}

// oldest returns the claim to evict first from the queues first to last, or nil
// if they are empty.
func (p *portClaims) oldest(first, last queueIndex) *entry {
	for i := first; i <= last; i++ {
		if c := p.queues[i].oldest; c != nil {
			return c
		}
	}
	return nil
}

// all yields all claims of the port. They may be removed during the iteration.
func (p *portClaims) all() iter.Seq[*entry] {
	return func(yield func(*entry) bool) {
		for i := range p.queues {
			for c := p.queues[i].oldest; c != nil; {
				next := c.newer
				if !yield(c) {
					return
				}
				c = next
			}
		}
	}
}

// port returns the claims of a port, creating an empty entry if there is none.
func (t *Table) port(index int32) *portClaims {
	p := t.byPort[index]
	if p == nil {
		p = &portClaims{}
		t.byPort[index] = p
	}
	return p
}

// enqueue puts a wire claim behind all claims with an earlier sighting.
func (t *Table) enqueue(c *entry) {
	p := t.port(c.key.At.Index)
	if c.older != nil || c.newer != nil || p.queues[c.inQueue].oldest == c {
		p.queues[c.inQueue].remove(c)
	}
	switch important := t.isImportant(c.key); {
	case important && c.seenAgain:
		c.inQueue = importantAgain
	case important:
		c.inQueue = importantOnce
	case c.seenAgain:
		c.inQueue = seenAgain
	default:
		c.inQueue = seenOnce
	}
	p.queues[c.inQueue].add(c)
}

// makeRoom reports whether the table accepts another wire claim. It returns the key of the
// claim that was evicted for it, if any.
func (t *Table) makeRoom(k ClaimKey, received time.Time) (room bool, evicted []ClaimKey) {
	p := t.port(k.At.Index)
	if len(t.byAddr[k.Address]) >= maxPerAddress {
		have := 0
		for _, c := range t.byAddr[k.Address] {
			if c.key.At == k.At {
				have++
			}
		}
		if have >= addressShare {
			p.leftOut++
			t.leftOut++
			return false, nil
		}
	}
	last := seenAgain
	if t.isImportant(k) {
		last = importantAgain
	}
	from := p
	first := seenOnce
	switch {
	case last == importantAgain && p.count(importantOnce, importantAgain) >= maxImportantPerPort:
		first = importantOnce
	case p.count(seenOnce, importantAgain) >= maxPerPort:
	case t.wire < maxWire:
		return true, nil
	default:
		if l := largest(t.byPort, seenOnce, seenAgain); l != nil {
			from = l
		} else if l := largest(t.byPort, importantOnce, importantAgain); l != nil && last == importantAgain {
			from = l
		}
	}
	t.leftOut++
	victim := from.oldest(first, last)
	if victim == nil {
		p.leftOut++
		return false, nil
	}
	from.leftOut++
	t.dropFrame(victim, received)
	return true, []ClaimKey{victim.key}
}

// largest returns the port with the most claims in the first queue, or in the last queue if no
// port has claims in the first. It skips ports with no more claims than their share, and
// returns nil if no port is left. A linear scan is fast enough: there are few ports, and
// largest runs at most once per new binding that the observer reports.
func largest(ports map[int32]*portClaims, first, last queueIndex) (largest *portClaims) {
	most := [2]int{-1, -1}
	for _, p := range ports {
		if p.count(first, last) <= portShare {
			continue
		}
		if n := [2]int{p.queues[first].len, p.queues[last].len}; n[0] > most[0] || n[0] == most[0] && n[1] > most[1] {
			largest, most = p, n
		}
	}
	return largest
}

// dropFrame removes one wire claim. The caller holds the lock.
func (t *Table) dropFrame(c *entry, received time.Time) {
	t.claims.Remove(c.key, received)
	t.wire--
	t.byPort[c.key.At.Index].queues[c.inQueue].remove(c)
	list := t.byAddr[c.key.Address]
	last := len(list) - 1
	list[c.atAddr] = list[last]
	list[c.atAddr].atAddr = c.atAddr
	list[last] = nil
	if t.byAddr[c.key.Address] = list[:last]; last == 0 {
		delete(t.byAddr, c.key.Address)
	}
}

// RemovePort removes a port and its wire claims. The caller holds the lock.
func (t *Table) RemovePort(index int32, received time.Time) (dropped []ClaimKey) {
	p := t.byPort[index]
	if p == nil {
		return nil
	}
	for c := range p.all() {
		dropped = append(dropped, c.key)
		t.dropFrame(c, received)
	}
	delete(t.byPort, index)
	return dropped
}

// RemoveOld removes the wire claims that were last seen before the given time, unless another frame of the same sender
// claimed the address since: a speaker that announced an address once, and answers for it, still claims it. The caller holds
// the lock.
func (t *Table) RemoveOld(before, received time.Time) (dropped []ClaimKey) {
	for _, p := range t.byPort {
		for c := range p.all() {
			claimedSince := func(other *entry) bool {
				if other.Last.Before(before) { // so are all after a flood
					return false
				}
				k := other.key
				k.Kind = c.key.Kind
				return k == c.key
			}
			if c.Last.Before(before) && !slices.ContainsFunc(t.byAddr[c.key.Address], claimedSince) {
				dropped = append(dropped, c.key)
				t.dropFrame(c, received)
			}
		}
	}
	return dropped
}

// WirePorts returns the ports that have or had wire claims. The caller holds the lock.
func (t *Table) WirePorts() []int32 { return slices.Collect(maps.Keys(t.byPort)) }

// WireClaims yields the wire claims of a port. They may be removed during the iteration.
// The caller holds the lock.
func (t *Table) WireClaims(index int32) iter.Seq2[ClaimKey, *Claim] {
	return func(yield func(ClaimKey, *Claim) bool) {
		p := t.byPort[index]
		if p == nil {
			return
		}
		for c := range p.all() {
			if !yield(c.key, &c.Claim) {
				return
			}
		}
	}
}

// LeftOut returns the number of wire claims that were left out, by port.
func (t *Table) LeftOut() map[int32]uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := map[int32]uint64{}
	for index, p := range t.byPort {
		if p.leftOut > 0 {
			out[index] = p.leftOut
		}
	}
	return out
}

// importance tracks the important addresses: addresses of a kernel or an allocation on this
// node, and contested addresses. The table and the observer reserve room for claims to them.
type importance struct {
	holders map[netip.Addr]int
	changed map[netip.Addr]struct{} // nil if there is no reader
	wake    func()                  // called when an address is added to changed
}

func (t *Table) isImportant(k ClaimKey) bool { return t.important.holders[k.Address] > 0 }

// ofKernelClaims returns a function that calls fn with the address of a claim unless it is a
// wire claim.
func ofKernelClaims(fn func(netip.Addr)) func(ClaimKey) {
	return func(k ClaimKey) {
		if !IsWire(k.Kind) {
			fn(k.Address)
		}
	}
}

// Contest makes an address important for as long as it is contested.
func (t *Table) Contest(addr netip.Addr, on bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if on {
		t.holdImportant(addr)
	} else {
		t.releaseImportant(addr)
	}
}

func (t *Table) holdImportant(addr netip.Addr) {
	if t.important.holders[addr]++; t.important.holders[addr] == 1 {
		t.importanceChanged(addr)
	}
}

func (t *Table) releaseImportant(addr netip.Addr) {
	if t.important.holders[addr]--; t.important.holders[addr] == 0 {
		delete(t.important.holders, addr)
		t.importanceChanged(addr)
	}
}

func (t *Table) importanceChanged(addr netip.Addr) {
	for _, c := range t.byAddr[addr] {
		t.enqueue(c)
	}
	if t.important.changed != nil {
		t.important.changed[addr] = struct{}{}
		t.important.wake()
	}
}

// FollowImportance registers wake to be called when the importance of an address
// changes.
func (t *Table) FollowImportance(wake func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.important.changed, t.important.wake = map[netip.Addr]struct{}{}, wake
	for addr := range t.important.holders {
		t.importanceChanged(addr)
	}
}

// TakeImportance returns the addresses whose importance changed since the last
// call, and whether they are important now.
func (t *Table) TakeImportance() map[netip.Addr]bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.important.changed) == 0 {
		return nil
	}
	out := make(map[netip.Addr]bool, len(t.important.changed))
	for addr := range t.important.changed {
		out[addr] = t.important.holders[addr] > 0
	}
	t.important.changed = map[netip.Addr]struct{}{}
	return out
}
