// Package kernel mirrors the network namespaces, interfaces and addresses of this machine, and
// determines which broadcast domain (link) each interface is on.
//
// It does not contain sources of names, the decoding of observed frames, or streams.
package kernel

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ipwitness/ipwitness/agent/rtnetlink"
	"github.com/ipwitness/ipwitness/agent/table"

	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// Requests sends the rtnetlink requests of a Mirror. Tests use a fake.
type Requests interface {
	Links(nsid int32) ([]rtnetlink.Link, error)
	Link(nsid, index int32) (rtnetlink.Link, error)
	Addresses(nsid, index int32) ([]rtnetlink.Address, error)
	NSIDs() ([]int32, error)
	VLANs() (map[int32]rtnetlink.VLANs, error)
	Route(addr netip.Addr) ([]rtnetlink.Hop, error)
	RouteFrom(index int32, from, addr netip.Addr) ([]rtnetlink.Hop, error)
	LocalRoutes() ([]rtnetlink.Route, error)
	HostRoutes() ([]rtnetlink.Route, error)
	UnmarkedTables() ([]uint32, error)
	Proxied() ([]rtnetlink.Neighbour, error)
	Neighbours(index int32) ([]rtnetlink.Neighbour, error)
	Forwarding() ([]rtnetlink.Neighbour, error)
	Resolved() ([]rtnetlink.Neighbour, error)
	Tunnels(index int32) ([]rtnetlink.Neighbour, error)
	Settings(iface string) rtnetlink.Settings
	FiltersARP() (bool, error)
}

// A Mirror mirrors the namespaces, interfaces and addresses of this machine, as reported by
// rtnetlink, and keeps the table equal to the mirror. It does not judge claims.
//
// It has three layers, each of which only calls the ones below: the topology has the state,
// the publisher writes it to the table, and the Mirror itself follows changes.
type Mirror struct {
	publisher
	log *slog.Logger

	mu       sync.Mutex // protects everything except for hooks
	req      Requests
	reusable map[uint64]bool // inodes of namespaces that ended since BeginNames
	again    chan struct{}   // holds one token while everything has to be listed again
	answers  answers
	// OwnOnly is set, before any method is called, if the kernel does not report changes in other namespaces.
	OwnOnly bool
}

// Watch sets the functions that are called when ports have changed and when wire claims have ended.
func (k *Mirror) Watch(ports func(), ended func([]table.ClaimKey)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.PortsChanged, k.ClaimEnded = ports, ended
}

// hooks are called with the kernel locked. They are set before any method is called, or by Watch.
type hooks struct {
	PortsChanged func()                   // one of our own interfaces was added, removed or changed
	Unnamed      func()                   // a namespace with an unknown inode was found
	CompareAgain func(time.Duration)      // SetNames is to be called again after the given time
	Incomplete   func()                   // something could not be read; by default, ListAgain lists it
	ClaimEnded   func(k []table.ClaimKey) // wire claims ended
}

// A publisher writes the topology to the table.
type publisher struct {
	topology
	hooks
	table *table.Table
	host  *ipwitnessv1.Workload

	boot      time.Time // the wall time at which the clock of IFA_CACHEINFO was 0
	networks  map[uint64]Networks
	intended  map[uint64]Intended
	domains   map[string]domain              // those with a LinkRecord in the table, by name
	contested map[netip.Addr][]rtnetlink.Hop // contested addresses with the node's own route
	ended     map[holding]time.Time
	tenures   map[post]tenure
	holders   map[netip.Addr][]held // interfaces with a published address
	beliefs   beliefs
	swept     time.Time // when ended and tenures were last cleaned up
}

// A topology has the namespaces and the connections between their interfaces. It changes
// nothing but itself.
type topology struct {
	ownNSID int32 // the id of our own namespace in our own table, which some messages about us have
	own     *namespace
	byNSID  map[int32]*namespace // without our own
	inodes  map[uint64]*namespace
	names   map[uint64]*ipwitnessv1.Workload // by inode
	nextID  uint32
	nextGen uint64
	// attached holds the interfaces of other namespaces by the index of our own
	// interface that is their peer or lower device.
	attached   map[int32]map[*link]*namespace
	cards      map[*link]*namespace // network cards in other namespaces
	bridges    map[*link]struct{}   // bridges in other namespaces
	wiring     *wiring              // nil if it must be computed
	linksEnded bool                 // since beliefs were last compared
	// nested has the links of interfaces at bridges in other namespaces. They must be computed again if
	// rewired is set.
	nested   map[*link]domain
	rewired  bool
	overlays map[uint64]string // networks over several nodes, by the inode of the namespace of their bridge
}

// namespace is one network namespace.
type namespace struct {
	id            uint32
	gen           uint64 // distinguishes two namespaces with one nsid or inode
	nsid          int32
	inode         uint64 // 0 if unknown
	first         time.Time
	links         map[int32]*link
	published     bool
	nested        bool                           // it is at a nested bridge of this node
	unprivileged  bool                           // it belongs to a user namespace other than ours
	missing       map[InterfaceAddress]time.Time // intended addresses that it lacks, and since when
	intended      []*ipwitnessv1.Intended        // those missing addresses that are published
	resolved      bool                           // its neighbour table was read
	awaitsNewNSID bool                           // we assigned its nsid, and RTM_NEWNSID is still expected
}

// link is one interface.
type link struct {
	rtnetlink.Link
	gen   uint64 // distinguishes two interfaces with one index
	in    *namespace
	gone  bool
	vlans rtnetlink.VLANs // bridges of our own namespace and their ports: the VLANs of frames without a tag
	// tunnelsSet is when the observer was last told the tunnels of the interface; zero if it has none.
	tunnelsSet time.Time
	port       *link     // cards in other namespaces: our own uplink that frames of the card have entered; nil if there were none
	heard      time.Time // cards in other namespaces: when the last frame entered that uplink
	mixed      bool      // interfaces of our own namespace: isMixed, when the last frame was seen there
	pvlan      bool      // interfaces of our own namespace: Settings.PVLAN, when answers were last determined
	lan        bool      // interfaces of our own namespace: an address with a LAN prefix is published
	wasLAN     bool      // interfaces of our own namespace: they had such an address since the start
	addrs      addresses
	published  *ipwitnessv1.InterfaceRecord
	place      place                                // where it was when published was made
	claims     map[table.ClaimKey]rtnetlink.Address // published claims
	// since is when the link began to use an address that it had without using it, because it was down, without a
	// carrier for long, or in another domain, or detection of duplicates had not ended; zero while it does not.
	since map[netip.Addr]time.Time
	// unplugged is when the link lost its carrier; zero while it has one.
	unplugged time.Time
	// refused are addresses that were deleted because detection of duplicates failed: by the kernel, or by
	// a program (yields).
	refused map[netip.Addr]rtnetlink.Address
}

// holding is an address and the MAC of the interface that had the address.
type holding struct {
	addr netip.Addr
	mac  string
}

// post is an address of an interface at a place, and tenure is when the claim to it began and ended. An interface that
// has the address again there within restartsWithin was restarted, and has held it since the tenure began.
type (
	post struct {
		addr  netip.Addr
		gen   uint64 // of the link
		place string
	}
	tenure struct{ began, ended time.Time }
)

// restartsWithin is how soon an interface has its addresses again after ifdown and ifup, a restart of the service that
// manages networks, or a change of its port.
const restartsWithin = 30 * time.Second

// A frame may be reported after the end of its sender, but less than latestFrame later. If
// there are more than keptEnds ends and tenures, older ones are dropped.
const (
	latestFrame = 5 * time.Second
	keptEnds    = 1024
)

// addresses has the addresses of one interface. The kernel also distinguishes them by prefix
// length and peer.
type addresses map[netip.Addr][]rtnetlink.Address

func (a addresses) set(m rtnetlink.Address) {
	a.remove(m)
	a[m.Addr] = append(a[m.Addr], m)
}

func (a addresses) remove(m rtnetlink.Address) {
	rest := slices.DeleteFunc(a[m.Addr], func(have rtnetlink.Address) bool {
		return have.PrefixLength == m.PrefixLength && have.Peer == m.Peer
	})
	if a[m.Addr] = rest; len(rest) == 0 {
		delete(a, m.Addr)
	}
}

// New returns an empty mirror of the namespaces that req can read. ownNSID and ownInode
// identify our own namespace, boot is the wall time at which the
// clock of the kernel's stamps of addresses was 0, and node is its name.
func New(log *slog.Logger, t *table.Table, req Requests, ownNSID int32, ownInode uint64, boot time.Time, node string) *Mirror {
	again := make(chan struct{}, 1)
	own := &namespace{id: table.OwnNamespace, nsid: rtnetlink.NoNSID, inode: ownInode, first: time.Now(), links: map[int32]*link{}}
	return &Mirror{
		log:      log,
		req:      req,
		reusable: map[uint64]bool{},
		again:    again,
		answers:  answers{changed: make(chan struct{}, 1), published: map[table.ClaimKey]table.Claim{}},
		publisher: publisher{
			topology: topology{
				ownNSID:  ownNSID,
				own:      own,
				byNSID:   map[int32]*namespace{},
				inodes:   map[uint64]*namespace{ownInode: own},
				names:    map[uint64]*ipwitnessv1.Workload{},
				nextID:   table.OwnNamespace,
				attached: map[int32]map[*link]*namespace{}, cards: map[*link]*namespace{}, bridges: map[*link]struct{}{},
			},
			hooks: hooks{
				PortsChanged: func() {},
				Unnamed:      func() {},
				CompareAgain: func(time.Duration) {},
				Incomplete:   func() { table.Poke(again) },
				ClaimEnded:   func([]table.ClaimKey) {},
			},
			table:    t,
			boot:     boot,
			host:     &ipwitnessv1.Workload{Kind: ipwitnessv1.Workload_HOST, Name: node, Source: "node"},
			networks: map[uint64]Networks{},
			intended: map[uint64]Intended{},
			domains:  map[string]domain{},
			ended:    map[holding]time.Time{},
			tenures:  map[post]tenure{},
			holders:  map[netip.Addr][]held{},
			beliefs:  newBeliefs(),

			contested: map[netip.Addr][]rtnetlink.Hop{},
		},
	}
}

// assigned returns the wall time of a stamp of the kernel, in the stamp's steps of 10 ms, at most
// now. Stamps begin again after 497 days: on a machine that runs for longer, it returns the last
// time that the stamp can mean if that is after the start of the agent, and otherwise zero, unknown.
func (p *publisher) assigned(created time.Duration, now time.Time) time.Time {
	const span = (1 << 32) * 10 * time.Millisecond
	at := p.boot.Add(created)
	at = at.Add(at.Round(10 * time.Millisecond).Sub(at)) // keeps the monotonic reading, which survives that the clock is set
	if again := now.Sub(at) / span; again > 0 {
		if at = at.Add(again * span); at.Before(p.own.first) {
			return time.Time{}
		}
	}
	if at.After(now) {
		return now
	}
	return at
}

// List reads everything again: at startup, and after messages were lost.
func (k *Mirror) List() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	var err error
	k.table.Update(func() {
		if err = k.listLocked(); err == nil {
			k.answer(time.Now())
		}
	})
	return err
}

func (k *Mirror) listLocked() error {
	now := time.Now()
	if err := k.load(k.own, now); err != nil {
		return err
	}
	ids, err := k.req.NSIDs()
	if err != nil {
		return err
	}
	living := map[int32]bool{}
	for _, id := range ids {
		living[id] = true
	}
	for id, ns := range k.byNSID {
		if !living[id] {
			k.end(ns, now)
		}
	}
	for _, id := range ids {
		if id == k.ownNSID {
			continue
		}
		if ns, ok := k.byNSID[id]; !ok {
			k.discover(id, now)
		} else {
			k.renew(ns, now)
		}
	}
	k.nest(now)
	return nil
}

// Handle handles one message of the listener.
func (k *Mirror) Handle(m *rtnetlink.Message) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := time.Now()
	k.table.Update(func() { k.apply(m, now) })
}

func (k *Mirror) apply(m *rtnetlink.Message, now time.Time) {
	defer k.nest(now)
	if m.NSID == k.ownNSID {
		m.NSID = rtnetlink.NoNSID
	}
	if m.Type == rtnetlink.Answering {
		if m.NSID == rtnetlink.NoNSID {
			table.Poke(k.answers.changed)
		}
		return
	}
	table.Poke(k.answers.changed)
	if m.Type == unix.RTM_NEWNSID || m.Type == unix.RTM_DELNSID {
		if m.NSID != rtnetlink.NoNSID || m.ID < 0 || m.ID == k.ownNSID {
			return // a message about another namespace's table, or about our own namespace
		}
		ns, known := k.byNSID[m.ID]
		switch {
		case known && m.Type == unix.RTM_NEWNSID && ns.awaitsNewNSID:
			ns.awaitsNewNSID = false
		case known:
			k.renew(ns, now)
		case m.Type == unix.RTM_NEWNSID:
			k.discover(m.ID, now)
		}
		return
	}

	ns := k.own
	if m.NSID != rtnetlink.NoNSID {
		var known bool
		if ns, known = k.byNSID[m.NSID]; !known {
			k.discover(m.NSID, now) // the list that this requests includes the change
			return
		}
	}
	switch m.Type {
	case rtnetlink.NewPort:
		if ns == k.own {
			k.setVLANs(m.Port.Index, m.Port.VLANs, now)
			if l := k.own.links[m.Port.Index]; l != nil && m.Port.Options != nil && l.PortOptions != *m.Port.Options {
				changed := l.Link
				changed.PortOptions = *m.Port.Options
				k.setLink(k.own, changed, now)
			}
		}
	case unix.RTM_NEWLINK:
		l := m.Link
		if ns != k.own {
			l = k.resolve(ns, l)
		}
		k.setLink(ns, l, now)
	case unix.RTM_DELLINK:
		k.removeLink(ns, m.Link.Index, now)
	case unix.RTM_NEWADDR:
		l, known := ns.links[m.Address.Index]
		if !known || l.LowerNSID == rtnetlink.Unresolved {
			info, err := k.req.Link(ns.nsid, m.Address.Index)
			if err != nil {
				k.fail(ns, err, now)
				return
			}
			k.setLink(ns, info, now)
			l = ns.links[m.Address.Index]
		}
		l.addrs.set(m.Address)
		k.addressChanged(ns, l, m.Address.Addr, now)
		for c := range l.claims {
			if c.Kind == ipwitnessv1.Evidence_DAD_FAILED { // this one may replace it
				k.publishAddress(ns, l, c.Address, now)
			}
		}
	case unix.RTM_DELADDR:
		if l, known := ns.links[m.Address.Index]; known {
			l.addrs.remove(m.Address)
			failed := m.Address.Flags&(unix.IFA_F_PERMANENT|unix.IFA_F_DADFAILED) == unix.IFA_F_DADFAILED
			if failed || k.yields(ns, l, m.Address, now) {
				k.refuse(ns, l, m.Address)
			}
			k.addressChanged(ns, l, m.Address.Addr, now)
		}
	}
}

const (
	// refusedFor is how long an address that was deleted because detection of duplicates failed is
	// reported. The kernel keeps only addresses without a lifetime.
	refusedFor = 10 * time.Minute
	// yieldsWithin is how soon after a claim of another host a DHCP client gives its address up (RFC 5227,
	// section 2.4): it answers the claim, and does not wait. A client that a person restarts later does so for
	// another reason.
	yieldsWithin = 2 * time.Second
	// A person may have deleted an address without a lifetime. A host that obeys RFC 5227 does so at the second claim
	// within defendInterval (its section 1.1): it does not wait for more than fewClaims, nor for yieldsAtOnce.
	defendInterval = 10 * time.Second
	yieldsAtOnce   = 500 * time.Millisecond
	fewClaims      = 3
)

// replaced reports whether the kernel or a DHCP client has chosen another address in place of one for which
// detection of duplicates failed: one of the same kind that is in use, and in the same prefix unless DHCP assigned
// it. It is later, except that the kernel tries a stable private address again with each router advertisement.
func (l *link) replaced(failed rtnetlink.Address) bool {
	const kind = unix.IFA_F_PERMANENT | unix.IFA_F_TEMPORARY | unix.IFA_F_STABLE_PRIVACY
	if failed.Flags&kind == unix.IFA_F_PERMANENT {
		return false // somebody has set it, and means this one
	}
	for addr, all := range l.addrs {
		for _, a := range all {
			later := a.Created > failed.Created || a.Flags&unix.IFA_F_STABLE_PRIVACY != 0
			if !later || addr == failed.Addr || a.PrefixLength != failed.PrefixLength || a.Flags&kind != failed.Flags&kind ||
				a.Flags&(unix.IFA_F_TENTATIVE|unix.IFA_F_DADFAILED) != 0 || addr.Is4() != failed.Addr.Is4() {
				continue
			}
			leased := addr.Is4() || a.PrefixLength == 128
			if leased || netip.PrefixFrom(addr, int(a.PrefixLength)).Masked().Contains(failed.Addr) {
				return true
			}
		}
	}
	return false
}

// yields reports whether a program gave up an IPv4 address because another host claims it on the same link
// (RFC 5227, section 2.4): it deleted the address before its lifetime had run out or, if it has none, at once after
// the second claim of a newcomer. Programs that move virtual addresses give them up for another reason: they set them
// beside that of the node, without a subnet, or with a preferred lifetime of 0 (kube-vip), which no DHCP client does.
func (k *Mirror) yields(ns *namespace, l *link, a rtnetlink.Address, now time.Time) bool {
	if !a.Addr.Is4() || a.Expired || a.Flags&unix.IFA_F_DEPRECATED != 0 || !l.Up() {
		return false
	}
	first, last, count := now, time.Time{}, uint32(0)
	for key, c := range k.table.WireClaimsTo(a.Addr) {
		if key.MAC == l.MAC || key.Source != "" || c.Link != l.published.GetLink() || k.ownMACs()[key.MAC] {
			continue
		}
		if count += c.Count; c.First.Before(first) {
			first = c.First
		}
		if c.Last.After(last) {
			last = c.Last
		}
	}
	if a.Flags&unix.IFA_F_PERMANENT == 0 {
		return now.Sub(last) < yieldsWithin
	}
	virtual := a.Flags&unix.IFA_F_SECONDARY != 0 || a.PrefixLength == 32 || k.vipProgram(ns) != ""
	newcomer := k.usedSince(l, a, now).Before(first) && now.Sub(first) < defendInterval
	return !virtual && newcomer && count > 1 && count <= fewClaims && now.Sub(last) < yieldsAtOnce
}

// vipProgram returns the program in a namespace that moves virtual addresses between nodes; empty if none was seen.
func (k *Mirror) vipProgram(ns *namespace) string {
	if ns == k.own {
		return k.table.Status().GetVipProgram()
	}
	return k.names[ns.inode].GetVipProgram()
}

// ownMACs returns the MAC addresses of our own interfaces.
func (k *Mirror) ownMACs() map[string]bool {
	macs := map[string]bool{}
	for _, l := range k.own.links {
		macs[l.MAC] = true
	}
	return macs
}

// refuse keeps a deleted address for a while, as one for which detection of duplicates has failed.
func (k *Mirror) refuse(ns *namespace, l *link, a rtnetlink.Address) {
	if l.refused == nil {
		l.refused = map[netip.Addr]rtnetlink.Address{}
	}
	l.refused[a.Addr] = a
	time.AfterFunc(refusedFor, func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		if l.refused[a.Addr] == a { // and not a later one
			delete(l.refused, a.Addr)
			if ns.links[l.Index] == l {
				k.table.Update(func() { k.publishAddress(ns, l, a.Addr, time.Now()) })
			}
		}
	})
}

// load lists the interfaces and addresses of a namespace, and makes the mirror equal to them.
func (k *Mirror) load(ns *namespace, now time.Time) error {
	links, err := k.req.Links(ns.nsid)
	if err != nil {
		return err
	}
	addrs, err := k.req.Addresses(ns.nsid, 0)
	if err != nil {
		return err
	}
	living := map[int32]bool{}
	for _, l := range links {
		living[l.Index] = true
	}
	for index := range ns.links {
		if !living[index] {
			k.removeLink(ns, index, now)
		}
	}
	for _, l := range links {
		if _, ok := ns.links[l.Index]; !ok {
			k.addLink(ns, l)
			continue
		}
		k.setLink(ns, l, now)
	}
	for _, l := range ns.links {
		clear(l.addrs)
	}
	for _, a := range addrs {
		if l, ok := ns.links[a.Index]; ok {
			l.addrs.set(a)
		}
	}
	if ns == k.own {
		k.readVLANs()
		k.wiring = nil
	}
	k.publishNamespace(ns, now)
	if ns == k.own {
		// The requests have assigned ids to peers that had none. RTM_NEWNSID reports them.
		k.publishAttached(nil, now)
	}
	return nil
}

// Reread reads the given addresses from the kernel again, for each interface on which the
// mirror has them. It returns false if some could not be read.
func (k *Mirror) Reread(addrs []netip.Addr) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := time.Now()
	asked := map[netip.Addr]bool{}
	for _, a := range addrs {
		asked[a] = true
	}
	complete := true
	k.table.Update(func() {
		for _, ns := range k.all() {
			for _, l := range ns.links {
				if ns != k.own && k.byNSID[ns.nsid] != ns {
					break // the namespace ended meanwhile
				}
				if !slices.ContainsFunc(addrs, func(a netip.Addr) bool { return l.addrs[a] != nil }) {
					continue
				}
				found, err := k.req.Addresses(ns.nsid, l.Index)
				if err != nil {
					complete = complete && errors.Is(err, rtnetlink.ErrNamespaceGone)
					k.fail(ns, err, now)
					continue
				}
				clear(l.addrs)
				for _, a := range found {
					l.addrs.set(a)
				}
				for c := range l.claims {
					if asked[c.Address] && l.addrs[c.Address] != nil {
						delete(l.claims, c) // publish them again, which also ends those that are gone
					}
				}
				k.publish(ns, l, now)
			}
		}
	})
	return complete
}

// ListEvery is how often everything is listed if changes are not received.
const ListEvery = 2 * time.Second

// ListAgain lists everything every two seconds until ctx ends. Unless always is set, it lists
// only if something could not be read.
func (k *Mirror) ListAgain(ctx context.Context, always bool) error {
	tick := time.NewTicker(ListEvery)
	defer tick.Stop()
	for {
		if !always {
			select {
			case <-ctx.Done():
				return nil
			case <-k.again:
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if err := k.List(); err != nil {
			k.log.Warn("cannot list addresses, trying again", "error", err)
			k.Incomplete()
		}
	}
}
