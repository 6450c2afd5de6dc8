package agent

import (
	"errors"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ipwitness/ipwitness/agent/rtnetlink"
	"github.com/ipwitness/ipwitness/agent/table"
	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// requests is what kernel asks of rtnetlink; tests have a fake.
type requests interface {
	Links(nsid int32) ([]rtnetlink.Link, error)
	Link(nsid, index int32) (rtnetlink.Link, error)
	Addresses(nsid, index int32) ([]rtnetlink.Address, error)
	NSIDs() ([]int32, error)
	PVIDs() (map[int32]uint16, error)
	Route(addr netip.Addr) ([]rtnetlink.Hop, error)
}

// kernel mirrors what rtnetlink tells of the namespaces of this machine, and
// keeps the table's namespaces, links, interfaces and assigned claims equal to
// it. It makes no sense of claims: that is verdict's.
type kernel struct {
	log   *slog.Logger
	table *table.Table
	boot  time.Time // wall time at which IFA_CACHEINFO counts 0
	host  *ipwitnessv1.Workload

	mu         sync.Mutex
	req        requests
	ownNSID    int32 // our own id in our own table: some messages about us carry it
	own        *namespace
	byNSID     map[int32]*namespace // all but our own
	calibrated bool                 // boot is from an address whose beginning was heard
	inodes     map[uint64]*namespace
	names      map[uint64]*ipwitnessv1.Workload
	networks   map[uint64]networks
	meant      map[uint64]meant
	reusable   map[uint64]bool // inodes of namespaces that ended since names began to look
	nextID     uint32
	nextGen    uint64
	// attached has the interfaces of other namespaces by the index of our
	// interface that is their peer or lower device.
	attached map[int32]map[*link]*namespace
	domains  map[string]domain // those with a published LinkRecord, by its name
	wiring   *wiring           // nil: to be made
	ended    map[holding]time.Time
	swept    time.Time // when ended was last cleaned
	clock    frameClock

	portsChanged func()                   // an interface of our own came, went or changed
	unnamed      func()                   // a namespace was found whose inode is not known
	compareAgain func(time.Duration)      // names are to be set anew after a while
	incomplete   func()                   // something could not be read, and is to be listed again
	claimEnded   func(k []table.ClaimKey) // wire claims ended with their port
}

// namespace is one network namespace.
type namespace struct {
	id        uint32
	nsid      int32
	inode     uint64 // 0: not known
	first     time.Time
	links     map[int32]*link
	published bool
	missing   map[given]time.Time     // addresses that it is meant to have: since when no interface has them
	intended  []*ipwitnessv1.Intended // those of them that are published
	untold    bool                    // we gave it its nsid, and the RTM_NEWNSID is still to come
}

// link is one interface.
type link struct {
	rtnetlink.Link
	gen       uint64 // tells two interfaces with one index apart
	pvid      uint16 // our own bridges and their ports: the VLAN of untagged frames, 0 for none
	lan       bool   // our own: an address with the prefix of a LAN is published
	addrs     addresses
	published *ipwitnessv1.InterfaceRecord
	claims    map[table.ClaimKey]rtnetlink.Address // published ones
}

// holding is an address and the MAC address of the interface that had it.
type holding struct {
	addr netip.Addr
	mac  string
}

// A frame may be told after the end of its sender, but not this long after it;
// ends that are older are let go once there are many.
const (
	latestFrame = 5 * time.Second
	keptEnds    = 1024
)

// addresses are those of one interface. The kernel tells them apart by their
// prefix length and their peer, too.
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

func newKernel(log *slog.Logger, t *table.Table, req requests, ownNSID int32, ownInode uint64, boot time.Time, node string) *kernel {
	own := &namespace{id: table.OwnNamespace, nsid: rtnetlink.NoNSID, inode: ownInode, first: time.Now(), links: map[int32]*link{}}
	return &kernel{
		log:          log,
		table:        t,
		boot:         boot,
		host:         &ipwitnessv1.Workload{Kind: ipwitnessv1.Workload_HOST, Name: node, Source: "node"},
		req:          req,
		ownNSID:      ownNSID,
		own:          own,
		byNSID:       map[int32]*namespace{},
		inodes:       map[uint64]*namespace{ownInode: own},
		names:        map[uint64]*ipwitnessv1.Workload{},
		networks:     map[uint64]networks{},
		meant:        map[uint64]meant{},
		reusable:     map[uint64]bool{},
		nextID:       table.OwnNamespace,
		attached:     map[int32]map[*link]*namespace{},
		domains:      map[string]domain{},
		ended:        map[holding]time.Time{},
		portsChanged: func() {},
		unnamed:      func() {},
		compareAgain: func(time.Duration) {},
		incomplete:   func() {},
		claimEnded:   func([]table.ClaimKey) {},
	}
}

// bootTime is when the machine was started, by the wall clock.
func bootTime() time.Time {
	var ts unix.Timespec
	if unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) != nil {
		return time.Time{}
	}
	return time.Now().Add(-time.Duration(ts.Nano()))
}

// calibrate learns from an address that is new how IFA_CACHEINFO counts: in
// jiffies, which begin some tenths of a second off the monotonic clock. The
// least delay that was seen between the two tells best.
func (k *kernel) calibrate(created time.Duration, now time.Time) {
	const atMost = 2 * time.Second // off by more: it is no new address
	boot := now.Add(-created)
	off := boot.Sub(k.boot)
	if k.calibrated && off >= 0 || off.Abs() > atMost {
		return
	}
	k.boot, k.calibrated = boot, true
	if off.Abs() < 20*time.Millisecond {
		return
	}
	k.table.ShiftAssigned(off, now)
}

// list reads everything anew: at the start, and after messages were lost.
func (k *kernel) list() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	var err error
	k.table.Update(func() { err = k.listLocked() })
	return err
}

func (k *kernel) listLocked() error {
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
	return nil
}

// handle takes one message of the listener.
func (k *kernel) handle(m *rtnetlink.Message) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := time.Now()
	k.table.Update(func() { k.apply(m, now) })
}

func (k *kernel) apply(m *rtnetlink.Message, now time.Time) {
	if m.NSID == k.ownNSID {
		m.NSID = rtnetlink.NoNSID
	}
	if m.Type == unix.RTM_NEWNSID || m.Type == unix.RTM_DELNSID {
		if m.NSID != rtnetlink.NoNSID || m.ID < 0 || m.ID == k.ownNSID {
			return // another namespace's table, or ourselves
		}
		ns, known := k.byNSID[m.ID]
		switch {
		case known && m.Type == unix.RTM_NEWNSID && ns.untold:
			ns.untold = false
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
			k.discover(m.NSID, now) // lists what the message tells, too
			return
		}
	}
	switch m.Type {
	case rtnetlink.NewPort:
		if ns == k.own {
			k.setPVID(m.Link.Index, m.PVID, now)
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
		if _, known := l.addrs[m.Address.Addr]; !known && m.Address.Addr.Is4() {
			k.calibrate(m.Address.Created, now)
		}
		l.addrs.set(m.Address)
		k.addressChanged(ns, l, m.Address.Addr, now)
	case unix.RTM_DELADDR:
		if l, known := ns.links[m.Address.Index]; known {
			l.addrs.remove(m.Address)
			k.addressChanged(ns, l, m.Address.Addr, now)
		}
	}
}

// resolve makes a message about another namespace's interface say what an
// answer to us would. In a message IFLA_LINK_NETNSID is in the numbering of the
// namespace that it came from; in an answer, in ours. What cannot be known yet
// is left unresolved, until our end of the pair tells or an address depends on
// it: to ask at once would be to wait for the rtnl lock, which whoever makes
// the pod holds just now.
func (k *kernel) resolve(ns *namespace, m rtnetlink.Link) rtnetlink.Link {
	host, old := k.own.links[m.Lower], ns.links[m.Index]
	switch {
	case m.LowerNSID == rtnetlink.NoNSID: // the lower device is in its own namespace
	case host != nil && isPeer(host, ns, m):
		m.LowerNSID = k.ownNSID
	case old != nil && old.Kind == m.Kind && old.Lower == m.Lower && old.LowerNSID != rtnetlink.NoNSID:
		m.LowerNSID = old.LowerNSID // if our end had moved, our end would have told
	default:
		m.LowerNSID = rtnetlink.Unresolved
	}
	return m
}

// isPeer says whether our interface tells that its other end is m of ns.
func isPeer(host *link, ns *namespace, m rtnetlink.Link) bool {
	return isPair(m.Kind) && isPair(host.Kind) && host.LowerNSID == ns.nsid && host.Lower == m.Index && m.Lower == host.Index
}

// load lists the interfaces and addresses of a namespace and makes the mirror
// equal to them.
func (k *kernel) load(ns *namespace, now time.Time) error {
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
		k.readPVIDs()
		k.wiring = nil
	}
	k.publishNamespace(ns, now)
	if ns == k.own {
		// Peers that have no id yet got one by our asking, and are told by RTM_NEWNSID.
		k.publishAttached(nil, now)
	}
	return nil
}

func (k *kernel) addLink(ns *namespace, m rtnetlink.Link) *link {
	k.nextGen++
	l := &link{Link: m, gen: k.nextGen, addrs: addresses{}, claims: map[table.ClaimKey]rtnetlink.Address{}}
	ns.links[m.Index] = l
	k.join(ns, l)
	if ns == k.own {
		k.rewired(l)
	}
	return l
}

// rewired has the ports worked out anew, and the broadcast domains where others
// than that of our interface l may be affected.
func (k *kernel) rewired(l *link) {
	if k.carries(l) {
		k.wiring = nil
	}
	k.portsChanged()
}

// carries says that others may hang on one of our own interfaces, at whatever
// distance. Nothing does on our end of a pod's veth, of which there are hundreds.
func (k *kernel) carries(l *link) bool {
	return !isPair(l.Kind) || k.lowerOf(l) != nil
}

// join and part keep k.attached: which interfaces of other namespaces have
// their peer or lower device among ours.
func (k *kernel) join(ns *namespace, l *link) {
	if ns == k.own || l.LowerNSID != k.ownNSID {
		return
	}
	if k.attached[l.Lower] == nil {
		k.attached[l.Lower] = map[*link]*namespace{}
	}
	k.attached[l.Lower][l] = ns
}

func (k *kernel) part(l *link) {
	if delete(k.attached[l.Lower], l); len(k.attached[l.Lower]) == 0 {
		delete(k.attached, l.Lower)
	}
}

// setLink takes an interface as the kernel has it now.
func (k *kernel) setLink(ns *namespace, m rtnetlink.Link, now time.Time) {
	l, known := ns.links[m.Index]
	if !known {
		l = k.addLink(ns, m)
		if ns != k.own {
			// It may have come from another namespace with addresses, or with the
			// messages about them lost.
			if addrs, err := k.req.Addresses(ns.nsid, m.Index); err == nil {
				for _, a := range addrs {
					l.addrs.set(a)
				}
			}
		}
	} else if l.Link == m {
		return
	}
	old := l.Link
	carried := ns == k.own && k.carries(l)
	k.part(l)
	l.Link = m
	k.join(ns, l)

	if ns != k.own {
		if !ns.published || old.Lower != m.Lower || old.LowerNSID != m.LowerNSID {
			k.publishNamespace(ns, now) // it may have become ours, or ceased to be
		}
		k.publish(ns, l, now)
		if l.Master != 0 || old.Master != 0 {
			k.publishHostEnds(ns, now)
		}
		return
	}

	if known && sameWiring(old, m) {
		k.publish(ns, l, now)
		return
	}
	if carried = carried || k.carries(l); carried {
		k.wiring = nil
	}
	k.portsChanged()
	if known && old.Name != m.Name {
		k.dropDomains(m.Index, now)
	}
	if isPair(m.Kind) {
		k.resolvePeer(l, now)
	}
	switch bridge := k.own.links[m.Master]; {
	case m.Filtering: // the VLANs of all of its ports may be others now
		k.readPVIDs()
	case bridge != nil && bridge.Filtering && (!known || old.Master != m.Master):
		l.pvid = bridge.DefaultPVID // the kernel's doing, told after this
	}
	k.publish(ns, l, now)
	if carried || known && old.Name != m.Name {
		l = nil // everything
	}
	k.publishAttached(l, now)
}

// publishHostEnds publishes our ends of the pairs with a namespace again whose
// other ends are, or were, ports of bridges there: it may have become a switch,
// or be none.
func (k *kernel) publishHostEnds(ns *namespace, now time.Time) {
	for _, l := range ns.links {
		host := k.own.links[l.Lower]
		if host != nil && l.LowerNSID == k.ownNSID && (l.Master != 0 || host.published.GetUplink()) {
			k.publish(k.own, host, now)
		}
	}
}

// resolvePeer has the other end of our pair know it.
func (k *kernel) resolvePeer(l *link, now time.Time) {
	other := k.byNSID[l.LowerNSID]
	if other == nil || other.links[l.Lower] == nil {
		return
	}
	peer := other.links[l.Lower].Link
	switch {
	case peer.LowerNSID == k.ownNSID:
		return
	case isPeer(l, other, peer):
		peer.LowerNSID = k.ownNSID
	default: // our end came from elsewhere, by another index
		var err error
		if peer, err = k.req.Link(other.nsid, l.Lower); err != nil {
			k.fail(other, err, now)
			return
		}
	}
	k.setLink(other, peer, now)
}

// sameWiring says that two states of an interface put it on the same link.
func sameWiring(a, b rtnetlink.Link) bool {
	return a.Name == b.Name && a.Master == b.Master && a.SlaveKind == b.SlaveKind && a.Kind == b.Kind &&
		a.Lower == b.Lower && a.LowerNSID == b.LowerNSID && a.VLAN == b.VLAN &&
		a.Filtering == b.Filtering && a.DefaultPVID == b.DefaultPVID
}

// removeLink takes the end of an interface.
func (k *kernel) removeLink(ns *namespace, index int32, now time.Time) {
	l, known := ns.links[index]
	if !known {
		return
	}
	delete(ns.links, index)
	k.part(l)
	k.unpublish(ns, l, now)
	if ns != k.own {
		k.publishNamespace(ns, now)
		if host := k.own.links[l.Lower]; host != nil && l.LowerNSID == k.ownNSID {
			k.publish(k.own, host, now) // it has lost its peer
		}
		if l.Master != 0 {
			k.publishHostEnds(ns, now)
		}
		return
	}
	k.rewired(l)
	k.dropDomains(index, now)
	// Frames that entered by it say nothing any more.
	k.dropFrames(index, now)
	if k.carries(l) {
		k.publishAttached(nil, now)
	}
	// The other end went with it, or one of the two moved. A namespace that is
	// dying sends nothing of its own, so ask.
	for peer, other := range maps.Clone(k.attached[index]) {
		m, err := k.req.Link(other.nsid, peer.Index)
		switch {
		case err == nil:
			k.setLink(other, m, now)
		case errors.Is(err, unix.ENODEV):
			k.removeLink(other, peer.Index, now)
		default:
			k.fail(other, err, now)
		}
	}
}

// reread reads the addresses again from the kernel, wherever the mirror has
// them, so that what it says of them is of now. An interface that is gone has
// none any more. It gives false where some could not be read.
func (k *kernel) reread(addrs []netip.Addr) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := time.Now()
	asked := map[netip.Addr]bool{}
	for _, a := range addrs {
		asked[a] = true
	}
	type holder struct {
		ns *namespace
		l  *link
	}
	var holders []holder
	for _, ns := range k.all() {
		for _, l := range ns.links {
			if slices.ContainsFunc(addrs, func(a netip.Addr) bool { return l.addrs[a] != nil }) {
				holders = append(holders, holder{ns, l})
			}
		}
	}
	complete := true
	k.table.Update(func() {
		for _, h := range holders {
			if h.ns.links[h.l.Index] != h.l || (h.ns != k.own && k.byNSID[h.ns.nsid] != h.ns) {
				continue // ended while the holders before it were read
			}
			found, err := k.req.Addresses(h.ns.nsid, h.l.Index)
			if err != nil {
				complete = complete && errors.Is(err, rtnetlink.ErrNamespaceGone)
				k.fail(h.ns, err, now)
				continue
			}
			clear(h.l.addrs)
			for _, a := range found {
				h.l.addrs.set(a)
			}
			for c := range h.l.claims {
				if asked[c.Address] && h.l.addrs[c.Address] != nil {
					delete(h.l.claims, c) // say it again; publish ends those that are gone
				}
			}
			k.publish(h.ns, h.l, now)
		}
	})
	return complete
}
