package agent

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// requests is what kernel asks of rtnetlink; tests have a fake.
type requests interface {
	links(nsid int32) ([]linkMsg, error)
	link(nsid, index int32) (linkMsg, error)
	addrs(nsid, index int32) ([]addrMsg, error)
	nsids() ([]int32, error)
}

// kernel mirrors what rtnetlink tells of the namespaces of this machine, and
// keeps the table's namespaces, links, interfaces and assigned claims equal to
// it. It makes no sense of claims: that is verdict's.
type kernel struct {
	log   *slog.Logger
	table *table
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
	nextID     uint32
	nextGen    uint64
	// attached has the interfaces of other namespaces by the index of our
	// interface that is their peer or lower device.
	attached map[int32]map[*link]*namespace
	routed   map[string]int32 // published LinkRecord -> index of the device that makes it
	ended    map[holding]time.Time
	swept    time.Time // when ended was last cleaned

	portsChanged func()             // an interface of our own came, went or changed
	unnamed      func()             // a namespace was found whose inode is not known
	incomplete   func()             // something could not be read, and is to be listed again
	claimEnded   func(k []claimKey) // wire claims ended with their port
}

// namespace is one network namespace.
type namespace struct {
	id        uint32
	nsid      int32
	inode     uint64 // 0: not known
	first     time.Time
	links     map[int32]*link
	published bool
	untold    bool // we gave it its nsid, and the RTM_NEWNSID is still to come
}

// link is one interface.
type link struct {
	linkMsg
	gen       uint64 // tells two interfaces with one index apart
	addrs     addresses
	published *ipwitnessv1.InterfaceRecord
	claims    map[claimKey]addrMsg // published ones
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
type addresses map[netip.Addr][]addrMsg

func (a addresses) set(m addrMsg) {
	a.remove(m)
	a[m.addr] = append(a[m.addr], m)
}

func (a addresses) remove(m addrMsg) {
	rest := slices.DeleteFunc(a[m.addr], func(have addrMsg) bool {
		return have.prefixLen == m.prefixLen && have.peer == m.peer
	})
	if a[m.addr] = rest; len(rest) == 0 {
		delete(a, m.addr)
	}
}

func newKernel(log *slog.Logger, t *table, req requests, ownNSID int32, ownInode uint64, boot time.Time, node string) *kernel {
	own := &namespace{id: ownNamespace, nsid: noNSID, inode: ownInode, first: time.Now(), links: map[int32]*link{}}
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
		nextID:       ownNamespace,
		attached:     map[int32]map[*link]*namespace{},
		routed:       map[string]int32{},
		ended:        map[holding]time.Time{},
		portsChanged: func() {},
		unnamed:      func() {},
		incomplete:   func() {},
		claimEnded:   func([]claimKey) {},
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
	for key, c := range k.table.claims.live {
		if !c.assigned.IsZero() {
			c.assigned = c.assigned.Add(off)
			k.table.claims.mark(key, now)
		}
	}
}

// list reads everything anew: at the start, and after messages were lost.
func (k *kernel) list() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	var err error
	k.table.update(func() { err = k.listLocked() })
	return err
}

func (k *kernel) listLocked() error {
	now := time.Now()
	if err := k.load(k.own, now); err != nil {
		return err
	}
	ids, err := k.req.nsids()
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
func (k *kernel) handle(m *message) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := time.Now()
	k.table.update(func() { k.apply(m, now) })
}

func (k *kernel) apply(m *message, now time.Time) {
	if m.nsid == k.ownNSID {
		m.nsid = noNSID
	}
	if m.typ == unix.RTM_NEWNSID || m.typ == unix.RTM_DELNSID {
		if m.nsid != noNSID || m.id < 0 || m.id == k.ownNSID {
			return // another namespace's table, or ourselves
		}
		ns, known := k.byNSID[m.id]
		switch {
		case known && m.typ == unix.RTM_NEWNSID && ns.untold:
			ns.untold = false
		case known:
			k.renew(ns, now)
		case m.typ == unix.RTM_NEWNSID:
			k.discover(m.id, now)
		}
		return
	}

	ns := k.own
	if m.nsid != noNSID {
		var known bool
		if ns, known = k.byNSID[m.nsid]; !known {
			k.discover(m.nsid, now) // lists what the message tells, too
			return
		}
	}
	switch m.typ {
	case unix.RTM_NEWLINK:
		l := m.link
		if ns != k.own {
			l = k.resolve(ns, l)
		}
		k.setLink(ns, l, now)
	case unix.RTM_DELLINK:
		k.removeLink(ns, m.link.index, now)
	case unix.RTM_NEWADDR:
		l, known := ns.links[m.addr.index]
		if !known || l.lowerNSID == unresolved {
			info, err := k.req.link(ns.nsid, m.addr.index)
			if err != nil {
				k.fail(ns, err, now)
				return
			}
			k.setLink(ns, info, now)
			l = ns.links[m.addr.index]
		}
		if _, known := l.addrs[m.addr.addr]; !known && m.addr.addr.Is4() {
			k.calibrate(m.addr.created, now)
		}
		l.addrs.set(m.addr)
		k.addressChanged(ns, l, m.addr.addr, now)
	case unix.RTM_DELADDR:
		if l, known := ns.links[m.addr.index]; known {
			l.addrs.remove(m.addr)
			k.addressChanged(ns, l, m.addr.addr, now)
		}
	}
}

// resolve makes a message about another namespace's interface say what an
// answer to us would. In a message IFLA_LINK_NETNSID is in the numbering of the
// namespace that it came from; in an answer, in ours. What cannot be known yet
// is left unresolved, until our end of the pair tells or an address depends on
// it: to ask at once would be to wait for the rtnl lock, which whoever makes
// the pod holds just now.
func (k *kernel) resolve(ns *namespace, m linkMsg) linkMsg {
	host, old := k.own.links[m.lower], ns.links[m.index]
	switch {
	case m.lowerNSID == noNSID: // the lower device is in its own namespace
	case host != nil && isPeer(host, ns, m):
		m.lowerNSID = k.ownNSID
	case old != nil && old.kind == m.kind && old.lower == m.lower && old.lowerNSID != noNSID:
		m.lowerNSID = old.lowerNSID // if our end had moved, our end would have told
	default:
		m.lowerNSID = unresolved
	}
	return m
}

// isPeer says whether our interface tells that its other end is m of ns.
func isPeer(host *link, ns *namespace, m linkMsg) bool {
	return isPair(m.kind) && isPair(host.kind) && host.lowerNSID == ns.nsid && host.lower == m.index && m.lower == host.index
}

// discover takes up a namespace that got an nsid.
func (k *kernel) discover(nsid int32, now time.Time) *namespace {
	k.nextID++
	ns := &namespace{id: k.nextID, nsid: nsid, first: now, links: map[int32]*link{}}
	k.byNSID[nsid] = ns
	if err := k.load(ns, now); err != nil {
		k.fail(ns, err, now)
		return nil
	}
	if ns.inode == 0 {
		k.unnamed()
	}
	return ns
}

// renew looks again who has the nsid of a namespace that we mirror. The kernel
// frees an nsid before it tells so (unhash_nsid in net/core/net_namespace.c):
// the RTM_NEWNSID of the next namespace with it may come before the RTM_DELNSID
// of the last one, and neither says which of the two is there now.
func (k *kernel) renew(ns *namespace, now time.Time) {
	links, err := k.req.links(ns.nsid)
	if err != nil {
		k.fail(ns, err, now)
		return
	}
	for _, l := range links {
		// Indexes of our own interfaces are not reused, so a veth's peer tells for sure.
		if old, ok := ns.links[l.index]; ok && l.flags&unix.IFF_LOOPBACK == 0 &&
			old.mac == l.mac && old.kind == l.kind && old.lower == l.lower && old.lowerNSID == l.lowerNSID {
			if err := k.load(ns, now); err != nil {
				k.fail(ns, err, now)
			}
			return
		}
	}
	k.end(ns, now)
	k.discover(ns.nsid, now)
}

// load lists the interfaces and addresses of a namespace and makes the mirror
// equal to them.
func (k *kernel) load(ns *namespace, now time.Time) error {
	links, err := k.req.links(ns.nsid)
	if err != nil {
		return err
	}
	addrs, err := k.req.addrs(ns.nsid, 0)
	if err != nil {
		return err
	}
	living := map[int32]bool{}
	for _, l := range links {
		living[l.index] = true
	}
	for index := range ns.links {
		if !living[index] {
			k.removeLink(ns, index, now)
		}
	}
	for _, l := range links {
		if _, ok := ns.links[l.index]; !ok {
			k.addLink(ns, l)
			if ns == k.own {
				k.portsChanged()
			}
			continue
		}
		k.setLink(ns, l, now)
	}
	for _, l := range ns.links {
		clear(l.addrs)
	}
	for _, a := range addrs {
		if l, ok := ns.links[a.index]; ok {
			l.addrs.set(a)
		}
	}
	k.publishNamespace(ns, now)
	if ns == k.own {
		// Peers that have no id yet got one by our asking, and are told by RTM_NEWNSID.
		k.publishAttached(nil, now)
	}
	return nil
}

func (k *kernel) addLink(ns *namespace, m linkMsg) *link {
	k.nextGen++
	l := &link{linkMsg: m, gen: k.nextGen, addrs: addresses{}, claims: map[claimKey]addrMsg{}}
	ns.links[m.index] = l
	k.join(ns, l)
	return l
}

// join and part keep k.attached: which interfaces of other namespaces have
// their peer or lower device among ours.
func (k *kernel) join(ns *namespace, l *link) {
	if ns == k.own || l.lowerNSID != k.ownNSID {
		return
	}
	if k.attached[l.lower] == nil {
		k.attached[l.lower] = map[*link]*namespace{}
	}
	k.attached[l.lower][l] = ns
}

func (k *kernel) part(l *link) {
	if delete(k.attached[l.lower], l); len(k.attached[l.lower]) == 0 {
		delete(k.attached, l.lower)
	}
}

// setLink takes an interface as the kernel has it now.
func (k *kernel) setLink(ns *namespace, m linkMsg, now time.Time) {
	l, known := ns.links[m.index]
	if !known {
		l = k.addLink(ns, m)
		if ns != k.own {
			// It may have come from another namespace with addresses, or with the
			// messages about them lost.
			if addrs, err := k.req.addrs(ns.nsid, m.index); err == nil {
				for _, a := range addrs {
					l.addrs.set(a)
				}
			}
		}
	} else if l.linkMsg == m {
		return
	}
	old := l.linkMsg
	k.part(l)
	l.linkMsg = m
	k.join(ns, l)

	if ns != k.own {
		if !ns.published || old.lower != m.lower || old.lowerNSID != m.lowerNSID {
			k.publishNamespace(ns, now) // it may have become ours, or ceased to be
		}
		k.publish(ns, l, now)
		return
	}

	if known && sameWiring(old, m) {
		k.publish(ns, l, now)
		return
	}
	k.portsChanged()
	if known && old.name != m.name {
		k.dropLinkRecords(m.index, now)
	}
	if isPair(m.kind) {
		k.resolvePeer(l, now)
	}
	k.publish(ns, l, now)
	k.publishAttached(l, now)
}

// resolvePeer has the other end of our pair know it.
func (k *kernel) resolvePeer(l *link, now time.Time) {
	other := k.byNSID[l.lowerNSID]
	if other == nil || other.links[l.lower] == nil {
		return
	}
	peer := other.links[l.lower].linkMsg
	switch {
	case peer.lowerNSID == k.ownNSID:
		return
	case isPeer(l, other, peer):
		peer.lowerNSID = k.ownNSID
	default: // our end came from elsewhere, by another index
		var err error
		if peer, err = k.req.link(other.nsid, l.lower); err != nil {
			k.fail(other, err, now)
			return
		}
	}
	k.setLink(other, peer, now)
}

// sameWiring says that two states of an interface put it on the same link.
func sameWiring(a, b linkMsg) bool {
	return a.name == b.name && a.master == b.master && a.slaveKind == b.slaveKind && a.kind == b.kind &&
		a.lower == b.lower && a.lowerNSID == b.lowerNSID && a.vlan == b.vlan
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
		if host := k.own.links[l.lower]; host != nil && l.lowerNSID == k.ownNSID {
			k.publish(k.own, host, now) // it has lost its peer
		}
		return
	}
	k.dropLinkRecords(index, now)
	k.portsChanged()
	// Frames that entered by it say nothing any more.
	k.dropFrames(index, now)
	// The other end went with it, or one of the two moved. A namespace that is
	// dying sends nothing of its own, so ask.
	for peer, other := range maps.Clone(k.attached[index]) {
		m, err := k.req.link(other.nsid, peer.index)
		switch {
		case err == nil:
			k.setLink(other, m, now)
		case errors.Is(err, unix.ENODEV):
			k.removeLink(other, peer.index, now)
		default:
			k.fail(other, err, now)
		}
	}
}

// dropFrames ends the claims of frames that entered by our interface.
func (k *kernel) dropFrames(index int32, now time.Time) {
	k.claimEnded(k.table.dropPort(index, now))
}

// end takes the end of a namespace: everything in it ends, untold.
func (k *kernel) end(ns *namespace, now time.Time) {
	delete(k.byNSID, ns.nsid)
	if ns.inode != 0 && k.inodes[ns.inode] == ns {
		delete(k.inodes, ns.inode)
		delete(k.names, ns.inode)
	}
	k.retract(ns, now)
	for _, l := range ns.links {
		k.part(l)
	}
	k.unnamed() // its inode may be in use again
}

// retract takes a namespace out of the table. The end of the namespace's record
// is the end of all in it.
func (k *kernel) retract(ns *namespace, now time.Time) {
	if !ns.published {
		return
	}
	ns.published = false
	for _, l := range ns.links {
		k.unpublish(ns, l, now)
	}
	k.table.removeNamespace(ns.id, now)
	ns.id = 0 // the end of that record must be told, even where it is ours again at once
}

// fail takes an error of a request about a namespace.
func (k *kernel) fail(ns *namespace, err error, now time.Time) {
	switch {
	case ns == nil || errors.Is(err, unix.ENODEV):
	case errors.Is(err, errNamespaceGone):
		if k.byNSID[ns.nsid] == ns {
			k.end(ns, now)
		}
	default:
		k.log.Warn("cannot read network namespace", "nsid", ns.nsid, "error", err)
		k.incomplete()
	}
}

// adopt names the namespace with that nsid by its inode. assigned says that the
// nsid is new, so that its RTM_NEWNSID is still to be heard.
func (k *kernel) adopt(nsid int32, inode uint64, assigned bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if nsid == k.ownNSID {
		return
	}
	now := time.Now()
	k.table.update(func() {
		ns, known := k.byNSID[nsid]
		if known && ns.inode == inode {
			return
		}
		if known && ns.inode != 0 {
			k.end(ns, now) // the last holder of this nsid: its end is not told yet
			known = false
		}
		if !known {
			if ns = k.discover(nsid, now); ns == nil {
				return
			}
			ns.untold = assigned
		}
		ns.inode = inode
		k.inodes[inode] = ns
		if ns.published {
			k.putNamespace(ns, now)
		}
	})
}

// known says whether a namespace with that inode is mirrored, so that it need
// not be opened.
func (k *kernel) known(inode uint64) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	_, ok := k.inodes[inode]
	return ok
}

// anonymous says whether there is a namespace of ours whose inode is not known.
func (k *kernel) anonymous() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, ns := range k.byNSID {
		if ns.inode == 0 && ns.published {
			return true
		}
	}
	return false
}

// setNames takes who lives in which namespace, by inode. It keeps the map.
func (k *kernel) setNames(names map[uint64]*ipwitnessv1.Workload) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := time.Now()
	old := k.names
	k.names = names
	k.table.update(func() {
		for inode, ns := range k.inodes {
			if names[inode] == nil && old[inode] != nil {
				names[inode] = old[inode] // its file is gone, and it is not: the last name is the best
			}
			if ns.published && !proto.Equal(old[inode], names[inode]) {
				k.putNamespace(ns, now)
			}
		}
	})
}

// reread reads the addresses again from the kernel, wherever the mirror has
// them, so that what it says of them is of now. An interface that is gone has
// none any more.
func (k *kernel) reread(addrs []netip.Addr) {
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
	k.table.update(func() {
		for _, h := range holders {
			if h.ns.links[h.l.index] != h.l || (h.ns != k.own && k.byNSID[h.ns.nsid] != h.ns) {
				continue // ended while the holders before it were read
			}
			found, err := k.req.addrs(h.ns.nsid, h.l.index)
			if err != nil {
				k.fail(h.ns, err, now)
				continue
			}
			clear(h.l.addrs)
			for _, a := range found {
				h.l.addrs.set(a)
			}
			for c := range h.l.claims {
				if asked[c.addr] {
					delete(h.l.claims, c) // say it again
				}
			}
			k.publish(h.ns, h.l, now)
		}
	})
}

// all gives every mirrored namespace.
func (k *kernel) all() []*namespace {
	return append(slices.Collect(maps.Values(k.byNSID)), k.own)
}

// ours says whether a namespace belongs to this node: one of its interfaces
// has its peer or lower device in our own namespace. Any other namespace of
// the machine is somebody else's.
func (k *kernel) ours(ns *namespace) bool {
	if ns == k.own {
		return true
	}
	for _, l := range ns.links {
		if l.lowerNSID == k.ownNSID {
			return true
		}
	}
	return false
}

// publishNamespace puts or retracts a namespace, as it is ours or not.
func (k *kernel) publishNamespace(ns *namespace, now time.Time) {
	ours := k.ours(ns)
	switch {
	case !ours:
		k.retract(ns, now)
		return
	case !ns.published:
		if ns.published = true; ns.id == 0 {
			k.nextID++
			ns.id = k.nextID
		}
		k.putNamespace(ns, now)
		if ns.inode == 0 {
			k.unnamed()
		}
	}
	for _, l := range ns.links {
		k.publish(ns, l, now)
	}
}

func (k *kernel) putNamespace(ns *namespace, now time.Time) {
	r := &ipwitnessv1.NamespaceRecord{Id: ns.id, FirstSeen: timestamppb.New(ns.first), Workload: k.names[ns.inode]}
	if ns == k.own {
		r.Workload = k.host
	}
	if ns.inode != 0 {
		r.Netns = fmt.Sprint(ns.inode)
	}
	k.table.namespaces.put(ns.id, r, now)
}

// publishAttached publishes again what depends on our interface p: everything
// where p is nil.
func (k *kernel) publishAttached(p *link, now time.Time) {
	for _, l := range k.own.links {
		switch {
		case l == p:
		case p == nil, l.lower == p.index, l.master == p.index:
			k.publish(k.own, l, now)
		default:
			continue
		}
		for child, ns := range k.attached[l.index] {
			k.publish(ns, child, now)
		}
	}
}

// publish makes the table say of an interface and its addresses what the mirror says.
func (k *kernel) publish(ns *namespace, l *link, now time.Time) {
	if !ns.published {
		return
	}
	k.publishRecord(ns, l, now)
	for a := range l.addrs {
		k.publishAddress(ns, l, a, now)
	}
	for c := range l.claims {
		if l.addrs[c.addr] == nil {
			k.endClaim(ns, l, c, now)
		}
	}
}

// publishRecord makes the table say of an interface what the mirror says.
func (k *kernel) publishRecord(ns *namespace, l *link, now time.Time) {
	if r := k.interfaceRecord(ns, l, now); !proto.Equal(r, l.published) {
		if old := l.published.GetLink(); ns == k.own && old != "" && old != r.GetLink() {
			k.leaveLink(l, old, now)
		}
		l.published = r
		k.table.interfaces.put(interfaceKey{ns.id, l.index}, r, now)
		if ns != k.own && r.Attachment == ipwitnessv1.InterfaceRecord_PEER {
			// Our end of the pair says whose it is.
			if host := k.own.links[l.lower]; host != nil {
				k.publish(k.own, host, now)
			}
		}
	}
	if ns == k.own && l.kind == "bridge" {
		k.putLinkRecord(l, now) // its addresses decide whether the node routes for its ports
	}
}

// addressChanged publishes one address of an interface, and what else depends on it.
func (k *kernel) addressChanged(ns *namespace, l *link, addr netip.Addr, now time.Time) {
	if !ns.published {
		return
	}
	if ns == k.own {
		k.publishRecord(ns, l, now)
	}
	k.publishAddress(ns, l, addr, now)
}

// publishAddress makes the table say of one address what the mirror says.
func (k *kernel) publishAddress(ns *namespace, l *link, addr netip.Addr, now time.Time) {
	want := map[claimKey]addrMsg{}
	for _, a := range l.addrs[addr] {
		kind := ipwitnessv1.Evidence_ASSIGNED
		switch {
		case l.flags&unix.IFF_UP == 0: // addresses stay listed on interfaces that are down
			continue
		case a.addr.IsLoopback() || a.addr.IsMulticast():
			continue
		case a.flags&unix.IFA_F_DADFAILED != 0:
			kind = ipwitnessv1.Evidence_DAD_FAILED
		case a.flags&unix.IFA_F_TENTATIVE != 0 && a.flags&unix.IFA_F_OPTIMISTIC == 0:
			continue
		}
		c := claimKey{addr: a.addr, kind: kind, at: interfaceKey{ns.id, l.index}}
		if have, ok := want[c]; !ok || a.prefixLen < have.prefixLen {
			want[c] = a
		}
	}
	for _, kind := range []ipwitnessv1.Evidence_Kind{ipwitnessv1.Evidence_ASSIGNED, ipwitnessv1.Evidence_DAD_FAILED} {
		c := claimKey{addr: addr, kind: kind, at: interfaceKey{ns.id, l.index}}
		a, wanted := want[c]
		have, told := l.claims[c]
		switch {
		case told && !wanted:
			k.endClaim(ns, l, c, now)
		case wanted && (!told || have != a):
			l.claims[c] = a
			k.table.seen(c, claim{
				prefixLen: a.prefixLen,
				flags:     a.flags,
				assigned:  k.boot.Add(a.created).Round(10 * time.Millisecond),
				first:     now,
				last:      now,
				count:     1,
			}, now)
		}
	}
}

// unpublish takes an interface and its addresses out of the table.
func (k *kernel) unpublish(ns *namespace, l *link, now time.Time) {
	for c := range l.claims {
		k.endClaim(ns, l, c, now)
	}
	if l.published != nil {
		l.published = nil
		k.table.interfaces.remove(interfaceKey{ns.id, l.index}, now)
	}
}

// endClaim takes an address from its holder, and with it what the wire showed
// of the same holder: a frame that was sent before must not bring it back.
func (k *kernel) endClaim(ns *namespace, l *link, c claimKey, now time.Time) {
	delete(l.claims, c)
	k.table.claims.remove(c, now)
	if len(k.ended) > keptEnds && now.Sub(k.swept) > time.Second {
		k.swept = now
		maps.DeleteFunc(k.ended, func(_ holding, at time.Time) bool { return now.Sub(at) > latestFrame })
	}
	k.ended[holding{c.addr, l.mac}] = now
	k.claimEnded(k.table.dropFrames(c.addr, func(w claimKey) bool {
		return w.mac == l.mac || (ns != k.own && l.lowerNSID == k.ownNSID && isPair(l.kind) && w.at.index == l.lower)
	}, now))
}

// readInode gives the inode of the network namespace behind a path.
func readInode(path string) (uint64, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return 0, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	return st.Ino, nil
}
