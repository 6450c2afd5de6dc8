package kernel

import (
	"context"
	"encoding/hex"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ipwitness/ipwitness/agent/rtnetlink"
	"github.com/ipwitness/ipwitness/agent/table"
	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// The neighbour table of a namespace says to which MAC it sends packets for an address: its belief. The kernel reports changes of
// all tables, but lists only our own. Most beliefs are those of the owners that the mirror has, and only the others are published.
const (
	// believedAfter is how long further changes of tables are awaited.
	believedAfter = 200 * time.Millisecond
	// updatedAfter is how soon the record of a belief may change again.
	updatedAfter = 2 * time.Second
	// excusedFor is how long a frame with the MAC of an entry bears the entry out. Agents see frames of one binding every 30 s.
	excusedFor = time.Minute
	// mostBelieved limits the entries of all tables.
	mostBelieved = 100_000
	// mostHolders limits the holders in a record, and mostAnswered and mostAnsweredHolders the records of an answer and
	// the holders in each.
	mostHolders, mostAnswered, mostAnsweredHolders = 8, 64, 32
)

// An entryUse is whether a kernel uses an entry, as far as that is known.
type entryUse uint8

const (
	unused    entryUse = iota // NUD_STALE; or not known, because /proc/PID/net/arp does not tell
	inUse                     // confirmed or used within the last minute
	permanent                 // set by a person or a program
)

// A believer is an interface whose neighbour table has an entry, and believed are those that have one MAC for an address.
type (
	believer struct {
		l   *link
		use entryUse
	}
	believed struct {
		mac string
		by  []believer
	}
)

// held is an address that an interface has.
type held struct {
	ns *namespace
	l  *link
}

// beliefs are the neighbour tables of all namespaces.
type beliefs struct {
	changed chan struct{} // holds one token while beliefs must be compared again

	waiting sync.Mutex // protects changes and leftOut
	changes map[entryKey]rtnetlink.Neighbour
	leftOut bool // entries that exceed a limit, since the tables were last read

	at        map[netip.Addr][]*believed
	count     int                                          // entries
	dirty     map[netip.Addr]bool                          // to be compared
	excused   []netip.Addr                                 // of entries that only frames bear out
	published map[netip.Addr]map[table.BeliefKey]time.Time // when each record was last changed
	tunnels   map[*link]forwarding
}

// forwarding is the forwarding table of a VXLAN device: the addresses to which frames for a MAC go.
type forwarding struct {
	read time.Time
	to   map[string][]netip.Addr
}

// entryKey identifies an entry by its namespace, interface and address.
type entryKey struct {
	nsid, index int32
	addr        netip.Addr
}

func newBeliefs() beliefs {
	return beliefs{
		changed: make(chan struct{}, 1), changes: map[entryKey]rtnetlink.Neighbour{}, at: map[netip.Addr][]*believed{}, dirty: map[netip.Addr]bool{},
		published: map[netip.Addr]map[table.BeliefKey]time.Time{}, tunnels: map[*link]forwarding{},
	}
}

// HandleNeighbour queues one message about a neighbour table.
func (k *Mirror) HandleNeighbour(m *rtnetlink.Message) {
	b, n := &k.beliefs, m.Neighbour
	if m.Type == unix.RTM_DELNEIGH {
		n.State = unix.NUD_NONE
	}
	at := entryKey{m.NSID, n.Index, n.Addr}
	b.waiting.Lock()
	defer b.waiting.Unlock()
	if _, known := b.changes[at]; !known && len(b.changes) >= mostBelieved {
		b.leftOut = true
		return
	}
	b.changes[at] = n
	table.Poke(b.changed)
}

// BeliefsLeftOut returns the number of entries that all neighbour tables may have, if they have more; otherwise 0.
func (k *Mirror) BeliefsLeftOut() int {
	k.beliefs.waiting.Lock()
	defer k.beliefs.waiting.Unlock()
	if k.beliefs.leftOut {
		return mostBelieved
	}
	return 0
}

// FollowBeliefs reads the neighbour tables, and publishes beliefs that differ from the claims of this node until ctx ends. It
// calls changed when BeliefsLeftOut has changed.
func (k *Mirror) FollowBeliefs(ctx context.Context, changed func()) error {
	k.ListNeighbours()
	leftOut := 0
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-k.beliefs.changed:
		case <-time.After(answersEvery): // frames have shown owners, or no longer do
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(believedAfter):
		}
		if room := k.compareBeliefs(time.Now()); room && leftOut > 0 {
			k.ListNeighbours()
		}
		if now := k.BeliefsLeftOut(); now != leftOut {
			leftOut = now
			changed()
		}
	}
}

// ListNeighbours reads our own neighbour tables, and has the others read again: at the start, and after messages were lost.
func (k *Mirror) ListNeighbours() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, ns := range k.byNSID {
		ns.resolved = false
	}
	k.beliefs.waiting.Lock()
	k.beliefs.leftOut = false
	k.beliefs.waiting.Unlock()
	entries, err := k.req.Resolved()
	if err != nil {
		k.log.Warn("cannot list neighbours, trying again", "error", err)
		return
	}
	k.replaceEntries(k.own, entries, func(rtnetlink.Neighbour) bool { return true })
	k.Unnamed() // which reads the tables of others
	table.Poke(k.beliefs.changed)
}

// WantsNeighbours reports whether the neighbour table of a namespace was not read yet.
func (k *Mirror) WantsNeighbours(inode uint64) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	ns := k.inodes[inode]
	return ns != nil && ns != k.own && !ns.resolved
}

// ReadNeighbours takes the IPv4 entries of a namespace from the text of /proc/PID/net/arp, which tells of none whether it is used.
// What messages have said about an entry counts if the MAC is the same.
func (k *Mirror) ReadNeighbours(inode uint64, arp string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	ns := k.inodes[inode]
	if ns == nil || ns == k.own {
		return
	}
	ns.resolved = true
	names := map[string]int32{}
	for index, l := range ns.links {
		names[l.Name] = index
	}
	var entries []rtnetlink.Neighbour
	for line := range strings.Lines(arp) {
		f := strings.Fields(line) // address, type of hardware, flags, MAC, mask, device
		if len(f) != 6 {
			continue
		}
		addr, err := netip.ParseAddr(f[0])
		mac, err1 := hex.DecodeString(strings.ReplaceAll(f[3], ":", ""))
		if err != nil || err1 != nil || names[f[5]] == 0 {
			continue // the title
		}
		n := rtnetlink.Neighbour{Index: names[f[5]], Addr: addr, MAC: string(mac)}
		switch f[2] {
		case "0x2": // ATF_COM
			n.State = unix.NUD_STALE
		case "0x6": // and ATF_PERM
			n.State = unix.NUD_PERMANENT
		default:
			continue
		}
		entries = append(entries, n)
	}
	k.replaceEntries(ns, entries, func(n rtnetlink.Neighbour) bool { return n.Addr.Is4() })
	table.Poke(k.beliefs.changed)
}

// replaceEntries replaces the entries of a namespace, as far as they are of a listed kind.
func (k *Mirror) replaceEntries(ns *namespace, entries []rtnetlink.Neighbour, listed func(rtnetlink.Neighbour) bool) {
	b := &k.beliefs
	type place struct {
		l    *link
		addr netip.Addr
	}
	is := map[place]rtnetlink.Neighbour{}
	for _, n := range entries {
		if l := ns.links[n.Index]; l != nil {
			is[place{l, n.Addr}] = n
		}
	}
	for addr, all := range b.at {
		if !listed(rtnetlink.Neighbour{Addr: addr}) {
			continue
		}
		for _, g := range all {
			for _, by := range slices.Clone(g.by) {
				if by.l.in != ns {
					continue
				}
				switch n, ok := is[place{by.l, addr}]; {
				case !ok:
					b.remove(by.l, addr)
				case n.MAC == g.mac && n.State == unix.NUD_STALE && by.use != permanent:
					delete(is, place{by.l, addr}) // the messages know better whether it is used
				}
			}
		}
	}
	for at, n := range is {
		b.set(at.l, n)
	}
}

// usedEntry returns whether an entry is used; ok is false for an entry that holds no belief.
func usedEntry(n rtnetlink.Neighbour) (use entryUse, ok bool) {
	switch {
	case n.State&unix.NUD_NOARP != 0, n.Proxied, n.MAC == "", !usable(n.Addr):
		return unused, false
	case n.State&unix.NUD_PERMANENT != 0:
		return permanent, true
	case n.State&(unix.NUD_REACHABLE|unix.NUD_DELAY|unix.NUD_PROBE) != 0:
		return inUse, true
	}
	return unused, n.State&unix.NUD_STALE != 0
}

// set records the state of an entry of an interface.
func (b *beliefs) set(l *link, n rtnetlink.Neighbour) {
	use, ok := usedEntry(n)
	if !ok {
		b.remove(l, n.Addr)
		return
	}
	i := slices.IndexFunc(b.at[n.Addr], func(g *believed) bool { return g.mac == n.MAC })
	if i >= 0 {
		g := b.at[n.Addr][i]
		if at := slices.IndexFunc(g.by, func(by believer) bool { return by.l == l }); at >= 0 {
			if g.by[at].use != use {
				g.by[at].use, b.dirty[n.Addr] = use, true
			}
			return
		}
	}
	b.remove(l, n.Addr) // another MAC
	if b.count >= mostBelieved {
		b.waiting.Lock()
		b.leftOut = true
		b.waiting.Unlock()
		return
	}
	b.count++
	b.dirty[n.Addr] = true
	if i = slices.IndexFunc(b.at[n.Addr], func(g *believed) bool { return g.mac == n.MAC }); i < 0 {
		i = len(b.at[n.Addr])
		b.at[n.Addr] = append(b.at[n.Addr], &believed{mac: n.MAC})
	}
	b.at[n.Addr][i].by = append(b.at[n.Addr][i].by, believer{l, use})
}

// remove removes the entry of an interface for an address.
func (b *beliefs) remove(l *link, addr netip.Addr) {
	b.drop(addr, func(by believer) bool { return by.l == l })
}

// drop removes entries for an address.
func (b *beliefs) drop(addr netip.Addr, match func(believer) bool) {
	all, before := b.at[addr], b.count
	for _, g := range all {
		n := len(g.by)
		g.by = slices.DeleteFunc(g.by, match)
		b.count -= n - len(g.by)
	}
	if b.count == before {
		return
	}
	b.dirty[addr] = true
	if all = slices.DeleteFunc(all, func(g *believed) bool { return len(g.by) == 0 }); len(all) == 0 {
		delete(b.at, addr)
	} else {
		b.at[addr] = all
	}
}

// compareBeliefs takes over the queued messages, and compares what has changed, and what is published, with the claims. It reports
// whether there is room for many more entries.
func (k *Mirror) compareBeliefs(now time.Time) (room bool) {
	b := &k.beliefs
	k.mu.Lock()
	defer k.mu.Unlock()
	k.takeChanges()
	for addr := range b.published {
		b.dirty[addr] = true
	}
	for _, addr := range b.excused {
		b.dirty[addr] = true
	}
	b.excused = b.excused[:0]
	room = b.count < mostBelieved/2
	if len(b.dirty) == 0 {
		return room
	}
	outside := map[string]bool{} // links with frames from outside of the node
	for _, l := range k.own.links {
		if l.published.GetUplink() {
			outside[l.published.GetLink()] = true
		}
	}
	k.table.Update(func() {
		for addr := range b.dirty {
			k.publishBeliefs(addr, outside, now)
		}
	})
	b.dirty = map[netip.Addr]bool{}
	return room
}

// takeChanges takes over the queued messages.
func (k *Mirror) takeChanges() {
	b := &k.beliefs
	b.waiting.Lock()
	changes := b.changes
	b.changes = map[entryKey]rtnetlink.Neighbour{}
	b.waiting.Unlock()
	for at, n := range changes {
		ns := k.own
		if at.nsid != rtnetlink.NoNSID && at.nsid != k.ownNSID {
			ns = k.byNSID[at.nsid]
		}
		if ns != nil && ns.links[at.index] != nil {
			b.set(ns.links[at.index], n)
		}
	}
	if k.linksEnded {
		k.linksEnded = false
		for addr := range b.at {
			b.drop(addr, func(by believer) bool { return by.l.gone })
		}
		maps.DeleteFunc(b.tunnels, func(l *link, _ forwarding) bool { return l.gone })
	}
}

// Believed returns all entries for an address: also those that are not used, and those that the claims bear out.
func (k *Mirror) Believed(addr netip.Addr) *ipwitnessv1.BeliefAnswer {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.takeChanges()
	out := &ipwitnessv1.BeliefAnswer{Truncated: k.BeliefsLeftOut() > 0, OwnOnly: k.OwnOnly}
	for _, ns := range k.byNSID {
		if addr.Is4() && !ns.resolved && slices.ContainsFunc(slices.Collect(maps.Values(ns.links)), func(l *link) bool { return l.published.GetLink() != "" }) {
			out.Unread++
		}
	}
	type group struct {
		link, mac string
		use       entryUse
	}
	records := map[group]*ipwitnessv1.BeliefRecord{}
	states := [...]ipwitnessv1.BeliefRecord_State{
		unused: ipwitnessv1.BeliefRecord_OLD, inUse: ipwitnessv1.BeliefRecord_IN_USE, permanent: ipwitnessv1.BeliefRecord_PERMANENT,
	}
	for _, g := range k.beliefs.at[addr] {
		for _, by := range g.by {
			at := group{by.l.published.GetLink(), g.mac, by.use}
			r := records[at]
			switch {
			case !k.sendsElsewhere(addr, by.l):
				continue
			case r == nil && len(records) == mostAnswered:
				out.Truncated = true
				continue
			case r == nil:
				r = &ipwitnessv1.BeliefRecord{
					Link: at.link, Address: addr.AsSlice(), Mac: []byte(g.mac), State: states[by.use], Tunnel: k.tunnelTo(by.l, g.mac, time.Now()).AsSlice(),
				}
				records[at] = r
				out.Beliefs = append(out.Beliefs, r)
			}
			addHolder(r, by.l, mostAnsweredHolders)
		}
	}
	return out
}

// sendsElsewhere reports whether an entry of an interface for an address matters: packets are sent neither from a private
// link, nor by a namespace that has the address itself, and claims tell of a table that others are answered from.
func (k *Mirror) sendsElsewhere(addr netip.Addr, l *link) bool {
	return l.published.GetLink() != "" && (l.in != k.own || !k.answersFrom(l)) && !slices.ContainsFunc(k.holders[addr], func(h held) bool { return h.ns == l.in })
}

// addHolder adds an interface to the holders of a belief.
func addHolder(r *ipwitnessv1.BeliefRecord, l *link, most int) {
	if r.Count++; len(r.GetHolders()) < most {
		r.Holders = append(r.Holders, &ipwitnessv1.BeliefRecord_Holder{Namespace: l.in.id, Index: uint32(l.Index)}) //nolint:gosec // an index is positive
	}
}

// publishBeliefs publishes the beliefs about an address that the claims of this node do not bear out. On a link without frames
// from outside, a belief matters only while somebody there has the address.
func (k *Mirror) publishBeliefs(addr netip.Addr, outside map[string]bool, now time.Time) {
	b := &k.beliefs
	want := map[table.BeliefKey]*ipwitnessv1.BeliefRecord{}
	for _, g := range b.at[addr] {
		differs := map[string]bool{} // by link
		slices.SortFunc(g.by, func(x, y believer) int { return int(x.l.gen) - int(y.l.gen) })
		for _, by := range g.by {
			name := by.l.published.GetLink()
			if by.use == unused || !k.sendsElsewhere(addr, by.l) {
				continue
			}
			if _, compared := differs[name]; !compared {
				differs[name] = !k.bearsOut(addr, g.mac, name, now) && (outside[name] || k.claimed(addr, name))
			}
			if !differs[name] {
				continue
			}
			key := table.BeliefKey{Link: name, Address: addr, MAC: g.mac}
			r := want[key]
			if r == nil {
				r = &ipwitnessv1.BeliefRecord{
					Link: name, Address: addr.AsSlice(), Mac: []byte(g.mac), State: ipwitnessv1.BeliefRecord_PERMANENT, FirstSeen: timestamppb.New(now),
					Tunnel: k.tunnelTo(by.l, g.mac, now).AsSlice(),
				}
				want[key] = r
			}
			if by.use == inUse {
				r.State = ipwitnessv1.BeliefRecord_IN_USE
			}
			addHolder(r, by.l, mostHolders)
		}
	}
	last := b.published[addr]
	for key := range last {
		if want[key] == nil {
			delete(last, key)
			k.table.Beliefs.Remove(key, now)
		}
	}
	for key, r := range want {
		if old := k.table.Beliefs.Get(key); old != nil {
			r.FirstSeen = old.GetFirstSeen()
			if proto.Equal(old, r) || now.Sub(last[key]) < updatedAfter {
				continue
			}
		}
		if last == nil {
			last = map[table.BeliefKey]time.Time{}
		}
		last[key] = now
		k.table.Beliefs.Put(key, r, now)
	}
	if b.published[addr] = last; len(last) == 0 {
		delete(b.published, addr)
	}
}

// bearsOut reports whether an owner of an address on this node has a MAC, on any of its interfaces, or frames on a link have shown
// lately that one has. The aggregator knows what was seen before, who has the address on other nodes, and whether frames that others
// send for a MAC may be right.
func (k *Mirror) bearsOut(addr netip.Addr, mac, link string, now time.Time) bool {
	for _, h := range k.holders[addr] {
		for l := range maps.Values(h.ns.links) {
			if l.MAC == mac {
				return true
			}
		}
	}
	for key, c := range k.table.WireClaimsTo(addr) {
		if c.Link == link && (key.MAC == mac && key.Source == "" || key.Source == mac) && c.Last.Add(excusedFor).After(now) {
			k.beliefs.excused = append(k.beliefs.excused, addr)
			return true
		}
	}
	return false
}

// tunnelTo returns the address to which an interface sends frames for a MAC through a tunnel; the zero Addr if it is no VXLAN
// device of our own namespace that is a link of its own, or if there is not exactly one such address. Frames for a MAC that is not
// in its forwarding table go to all default ones (IFLA_VXLAN_GROUP). The kernel does not tell us of changes: they are read again.
func (k *Mirror) tunnelTo(l *link, mac string, now time.Time) netip.Addr {
	if l.in != k.own || l.Kind != "vxlan" || l.Metadata || l.published.GetLink() != l.Name {
		return netip.Addr{}
	}
	f := k.beliefs.tunnels[l]
	if now.Sub(f.read) >= answersEvery {
		entries, err := k.req.Tunnels(l.Index)
		if err != nil {
			k.log.Debug("cannot list the forwarding table of a VXLAN device", "interface", l.Name, "error", err)
		}
		f = forwarding{now, map[string][]netip.Addr{}}
		for _, e := range entries {
			f.to[e.MAC] = append(f.to[e.MAC], e.Addr)
		}
		k.beliefs.tunnels[l] = f
	}
	to := f.to[mac]
	if len(to) == 0 {
		to = f.to["\x00\x00\x00\x00\x00\x00"]
	}
	if len(to) != 1 {
		return netip.Addr{}
	}
	return to[0].Unmap()
}

// answersFrom reports whether requests are answered from the neighbour table of one of our interfaces: see answersFromTable.
func (k *Mirror) answersFrom(l *link) bool {
	over := l.Index
	if l.Kind == "vlan" {
		over = l.Lower
	}
	for port := range maps.Values(k.own.links) {
		if port.Suppress && port.Master == over {
			return true
		}
	}
	return l.Proxy
}

// claimed reports whether an address is claimed on a link.
func (k *Mirror) claimed(addr netip.Addr, link string) bool {
	if slices.ContainsFunc(k.holders[addr], func(h held) bool { return h.l.published.GetLink() == link }) {
		return true
	}
	for _, c := range k.table.WireClaimsTo(addr) {
		if c.Link == link {
			return true
		}
	}
	return false
}

// holdsNow and holdsNoMore record that an interface has, or no longer has, an address.
func (p *publisher) holdsNow(ns *namespace, l *link, addr netip.Addr) {
	if !slices.Contains(p.holders[addr], held{ns, l}) {
		p.holders[addr] = append(p.holders[addr], held{ns, l})
		p.believe(addr)
	}
}

func (p *publisher) holdsNoMore(ns *namespace, l *link, addr netip.Addr) {
	left := slices.DeleteFunc(p.holders[addr], func(h held) bool { return h == held{ns, l} })
	if p.holders[addr] = left; len(left) == 0 {
		delete(p.holders, addr)
	}
	p.believe(addr)
}

// believe has the beliefs about an address compared again, if there are any.
func (p *publisher) believe(addr netip.Addr) {
	if p.beliefs.at[addr] != nil {
		p.beliefs.dirty[addr] = true
		table.Poke(p.beliefs.changed)
	}
}
