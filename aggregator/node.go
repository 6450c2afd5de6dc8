package aggregator

import (
	"slices"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// nodeID is the identity of a node; its name is a label. What its agent is vouched for
// is part of it: who says that it is on another one's machine is one more node, and
// keeps nobody out.
type nodeID struct{ boot, netns, vouched string }

func idOf(rec *verdict.Node) nodeID { return nodeID{rec.Boot, rec.Netns, rec.Vouched} }

// place is where a node says that it is; it is to be alone there.
func (id nodeID) place() nodeID { return nodeID{boot: id.boot, netns: id.netns} }

// node is one agent's tables, as far as it has reported them.
type node struct {
	id  nodeID
	rec *verdict.Node
	// name is what the agent calls itself; rec.Name may have more to it.
	name            string
	version, kernel string
	status          *pb.StatusRecord
	portCount       int // ports that the observer is attached to

	connectedAt, lastHeard verdict.Stamp
	// session is the open stream; nil while there is none.
	session *session
	alarm   alarm
	// alike is the next one that says that it is in the same place.
	alike *node
	// alsoCalled and alsoShown are the next ones that call themselves the same, and that
	// are shown by the same name.
	alsoCalled, alsoShown *node
	// shared tells of a silent node that another one had its name while both were
	// there: that one is not what it became.
	shared bool

	namespaces lookup[uint32, *namespace]
	interfaces lookup[ifaceKey, *iface]
	links      lookup[string, *link]
	// holders has the first of all interfaces with one MAC.
	holders  chains[verdict.MAC, *iface]
	hardware lookup[verdict.MAC, *hardware]
	// sources are the claims in frames that another hardware address sent, by that.
	sources map[verdict.MAC][]*holding
	// pools are what its own IPAM gives addresses from.
	pools []*pool
	// allocated is how many addresses those have given.
	allocated int
	// ranges are those of its pods, as far as overlaps are looked for.
	ranges []side
	// claims are all, wireClaims those that no kernel told of.
	claims, wireClaims int
	// excess is how many of the wire had no room since the last snapshot.
	excess int
	// corrected counts strings that were corrected since the last snapshot.
	corrected corrections
	// sweep counts snapshots: what the last one did not have is swept out.
	sweep uint32

	// account is the account that the node is charged to, used the charge of this node in
	// bytes.
	account *account
	used    int64
	// cost is the charge of the node's connection, statusCost the charge of its status.
	cost, statusCost int32
	// leftOut counts the records that did not fit into memory; saidIncomplete is set once that
	// is logged.
	leftOut        leftOut
	saidIncomplete bool
	refill         refill
}

type ifaceKey struct{ namespace, index uint32 }

// namespace, iface and link hold the present version of a record that itself
// never changes, and what hangs on it.
type namespace struct {
	rec    *verdict.Namespace
	ifaces []*iface
	// alike is the next one of the same pod.
	alike *namespace
	// together is the next one with the same container id.
	together *namespace
	// since is when it was first heard of, lacks are the findings that it has not what it
	// was meant to have.
	since verdict.Stamp
	lacks []verdict.Finding
	alarm alarm
	sweep uint32
	cost  int32
	ended bool
}

type iface struct {
	rec       *verdict.Interface
	namespace *namespace
	link      *link
	// alike is the next one with the same MAC.
	alike    *iface
	holdings []*holding
	sweep    uint32
	cost     int32
}

type link struct {
	node *node
	rec  *verdict.Link
	// joints are the link's places in the domains of each layer; nil for a link that never was
	// in one.
	joints *[layers]joint
	// users counts interfaces and wire claims on it.
	users int32
	sweep uint32
	cost  int32
	// known is false for a link that was only named so far.
	known bool
}

// hardware is one MAC on a node that claims of the wire name, or neighbour tables.
type hardware struct {
	mac    verdict.MAC
	claims []*holding
}

func newNode(id nodeID) *node {
	n := &node{id: id, account: &account{}, rec: &verdict.Node{Boot: id.boot, Netns: id.netns, Vouched: id.vouched, Unheard: true}}
	n.reset()
	return n
}

// reset forgets all records.
func (n *node) reset() {
	n.namespaces = newLookup(func(ns *namespace) uint32 { return ns.rec.Record })
	n.interfaces = newLookup(func(i *iface) ifaceKey { return ifaceKey{i.namespace.rec.Record, i.rec.Index} })
	n.links = newLookup(func(l *link) string { return l.rec.Name })
	n.holders = newChains(func(i *iface) verdict.MAC { return i.rec.MAC }, func(i *iface) **iface { return &i.alike })
	n.hardware = newLookup(func(hw *hardware) verdict.MAC { return hw.mac })
	n.sources = make(map[verdict.MAC][]*holding)
}

// named is the node's entry of a MAC that claims name, made where there is none.
func (n *node) named(mac verdict.MAC) *hardware {
	hw := n.hardware.get(mac)
	if hw == nil {
		hw = &hardware{mac: mac}
		n.hardware.put(hw)
	}
	return hw
}

func (n *node) dropHardware(hw *hardware) {
	if len(hw.claims) == 0 {
		n.hardware.remove(hw.mac)
	}
}

// link is the node's link of a name, made where it is not known yet.
func (n *node) link(name string) *link {
	l := n.links.get(name)
	if l == nil {
		l = &link{node: n, rec: &verdict.Link{Node: n.rec, Name: name}}
		n.links.put(l)
	}
	return l
}

func (s *store) dropLink(n *node, l *link) {
	if !l.known && l.users == 0 && n.links.get(l.rec.Name) == l {
		n.links.remove(l.rec.Name)
		s.leaveDomains(l)
	}
}

// setNamespace enters a namespace, or a new version of it.
func (s *store) setNamespace(n *node, rec verdict.Namespace) {
	ns := n.namespaces.get(rec.Record)
	// A namespace whose inode became known is the same one by a better id. Any
	// other id says that the number now means another one: a new epoch.
	if ns != nil && ns.rec.ID != rec.ID && ns.rec.ID != verdict.OwnerID(n.rec, rec.Record, "") {
		s.endNamespace(n, ns)
		ns = nil
	}
	switch {
	case ns == nil:
		kept := rec
		ns = &namespace{rec: &kept, since: s.clock()}
		n.namespaces.put(ns)
		s.listPod(ns)
		s.touchPorts(n, rec.Record)
		s.lack(ns)
	case *ns.rec != rec:
		s.unlistPod(ns)
		kept := rec
		ns.rec = &kept
		s.listPod(ns)
		for _, i := range ns.ifaces {
			next := *i.rec
			next.Namespace = ns.rec
			s.replaceInterface(n, i, &next)
		}
		s.touchPorts(n, rec.Record)
		s.lack(ns)
	}
	ns.sweep = n.sweep
}

// touchPorts has all looked at that entered by a namespace's own port.
func (s *store) touchPorts(n *node, record uint32) {
	for _, i := range n.ports(record) {
		s.touchAll(i.holdings)
	}
}

// ports are the node's ends of a namespace's interfaces.
func (n *node) ports(record uint32) []*iface {
	var ports []*iface
	if own := n.namespaces.get(verdict.OwnRecord); own != nil {
		for _, i := range own.ifaces {
			if i.rec.Peer == record {
				ports = append(ports, i)
			}
		}
	}
	return ports
}

// endNamespace ends a namespace with its interfaces and claims, and with what
// entered by its port: otherwise that would look like a stranger's for a moment.
func (s *store) endNamespace(n *node, ns *namespace) {
	for _, i := range slices.Clone(ns.ifaces) {
		s.endInterface(n, i)
	}
	if ns.rec.Record != verdict.OwnRecord {
		for _, port := range n.ports(ns.rec.Record) {
			for _, h := range slices.Clone(port.holdings) {
				if h.mac != nil {
					s.end(n, h)
				}
			}
		}
	}
	s.unlistPod(ns)
	s.endLacks(ns)
	s.charge(n, &ns.cost, 0, true)
	n.namespaces.remove(ns.rec.Record)
}

// setLink enters a link, or a new version of it.
func (s *store) setLink(n *node, rec verdict.Link) {
	l := n.link(rec.Name)
	l.known, l.sweep = true, n.sweep
	rec.Domain, rec.Proven = l.rec.Domain, l.rec.Proven
	if *l.rec != rec {
		kept := rec
		s.replaceLink(n, l, &kept)
	}
}

func (s *store) endLink(n *node, l *link) {
	l.known = false
	s.charge(n, &l.cost, 0, true)
	s.leaveDomains(l)
	if l.users > 0 {
		s.replaceLink(n, l, &verdict.Link{Node: n.rec, Name: l.rec.Name})
	}
	s.dropLink(n, l)
}

// replaceLink puts a new version of a link wherever the old one is used. That
// walks the node's tables: links seldom change once something is on them.
func (s *store) replaceLink(n *node, l *link, rec *verdict.Link) {
	l.rec = rec
	if l.users == 0 {
		return
	}
	for i := range n.interfaces.all() {
		if i.link == l {
			next := *i.rec
			next.Link = rec
			s.replaceInterface(n, i, &next)
		}
		for _, h := range i.holdings {
			if h.link == l {
				h.Link = rec
				s.touch(h.entry)
			}
		}
	}
}

// setInterface enters an interface, or a new version of it. The link is named
// apart, as rec cannot have it yet.
func (s *store) setInterface(n *node, ns *namespace, rec verdict.Interface, linkName string) {
	var l *link
	if linkName != "" {
		l = n.link(linkName)
		rec.Link = l.rec
	}
	rec.Namespace = ns.rec
	key := ifaceKey{rec.Namespace.Record, rec.Index}
	i := n.interfaces.get(key)
	if i == nil {
		i = &iface{namespace: ns, rec: &verdict.Interface{Index: rec.Index}}
		n.interfaces.put(i)
		ns.ifaces = append(ns.ifaces, i)
	}
	if i.link != l {
		if l != nil {
			l.users++
		}
		if i.link != nil {
			i.link.users--
			s.dropLink(n, i.link)
		}
		i.link = l
	}
	if *i.rec != rec {
		kept := rec // so that one that is known already takes no memory
		s.replaceInterface(n, i, &kept)
	}
	i.sweep = n.sweep
}

// replaceInterface puts a new version of an interface wherever the old one is
// used, and has all addresses looked at that are judged by it.
func (s *store) replaceInterface(n *node, i *iface, rec *verdict.Interface) {
	old := i.rec
	s.overlapped(n)
	if i.namespace.rec.Record == verdict.OwnRecord {
		s.touchDisputes(n)
	}
	s.lack(i.namespace)
	s.unlistHardware(n, i)
	i.rec = rec
	if rec.MAC != "" {
		n.holders.enter(i)
		s.touchNamed(n, rec.MAC)
		s.listAbroad(rec)
	}
	for _, h := range i.holdings {
		h.Interface = rec
		s.touch(h.entry)
		if old.Uplink != rec.Uplink {
			s.unlistSighting(h)
			s.listSighting(h)
			s.sightings = append(s.sightings, h)
		}
	}
}

func (s *store) unlistHardware(n *node, i *iface) {
	if i.rec.MAC == "" {
		return
	}
	n.holders.leave(i)
	s.touchNamed(n, i.rec.MAC)
	s.unlistAbroad(i.rec)
}

// touchNamed has all looked at that frames with a MAC claimed, or that a MAC sent.
func (s *store) touchNamed(n *node, mac verdict.MAC) {
	s.touchAll(n.sources[mac])
	if hw := n.hardware.get(mac); hw != nil {
		s.touchAll(hw.claims)
	}
}

// endInterface ends an interface with the claims on it.
func (s *store) endInterface(n *node, i *iface) {
	for _, h := range slices.Clone(i.holdings) {
		s.end(n, h)
	}
	s.unlistHardware(n, i)
	s.overlapped(n)
	if i.namespace.rec.Record == verdict.OwnRecord {
		s.touchDisputes(n)
	}
	if i.link != nil {
		i.link.users--
		s.dropLink(n, i.link)
	}
	s.charge(n, &i.cost, 0, true)
	if at := slices.Index(i.namespace.ifaces, i); at >= 0 {
		i.namespace.ifaces = slices.Delete(i.namespace.ifaces, at, at+1)
	}
	n.interfaces.remove(ifaceKey{i.namespace.rec.Record, i.rec.Index})
	s.lack(i.namespace)
}

// end ends one claim. When a kernel's word on a holding ends, so do the wire's
// sightings of that owner: nobody will take them back.
func (s *store) end(n *node, h *holding) {
	if h.ended {
		return // with its owner
	}
	s.unlist(n, h)
	s.touch(h.entry)
	if h.Kind != verdict.Assigned && h.Kind != verdict.DADFailed {
		return
	}
	id := h.Interface.Namespace.ID
	still, there := false, false // whether the holder has the address, and whether by that hardware address
	for _, other := range h.entry.holdings {
		if i := other.Interface; other.mac == nil && i.Namespace.ID == id {
			still, there = true, there || meets(i) && i.MAC == h.Interface.MAC
		}
	}
	if meets(h.Interface) && !there {
		s.bury(n, h.entry.addr, h.Interface.MAC)
	}
	if still {
		return
	}
	o := h.entry.owner(id)
	if o == nil {
		return
	}
	for _, sighting := range slices.Clone(h.entry.holdings) {
		if sighting.mac == nil || !slices.Contains(o.Claims, &sighting.Claim) {
			continue
		}
		if by := s.nodeOf(sighting); by != n || !s.sweeping || sighting.sweep != n.sweep {
			s.unlist(by, sighting)
			if by != n {
				s.bury(n, h.entry.addr, sighting.MAC)
			}
		}
	}
}

// list and unlist enter a claim and take it out, and have looked at what else
// depends on it.
func (s *store) list(n *node, h *holding) {
	n.list(h)
	s.addressed(n, h)
	s.lackOf(h)
	s.listSighting(h)
	s.touchAnswers(h)
}

func (s *store) unlist(n *node, h *holding) {
	if h.ended {
		return
	}
	h.ended = true
	s.unlistSighting(h)
	n.unlist(h)
	s.charge(n, &h.cost, 0, true)
	s.addressed(n, h)
	s.lackOf(h)
	if h.link != nil {
		s.dropLink(n, h.link)
	}
	s.touchAnswers(h)
}

// fewAnswers is up to how many claims of one MAC are looked at again after
// another one: who has more is known for a proxy, or for none.
const fewAnswers = 4 * verdict.ManyAnswers

// touchAnswers has the other addresses looked at that somebody answers for,
// after it answers for one more or less, or a kernel says who has that: both
// tell a proxy.
func (s *store) touchAnswers(h *holding) {
	if h.mac == nil {
		for _, other := range h.entry.holdings {
			if other.Kind == verdict.Answered && len(other.mac.claims) <= fewAnswers {
				s.touchAll(other.mac.claims)
			}
		}
		return
	}
	if len(h.mac.claims) <= fewAnswers { // one that is left may be no proxy's any more
		s.touchAll(h.mac.claims)
	}
}

// nodeOf is the node that a holding is of.
func (s *store) nodeOf(h *holding) *node {
	rec := h.Node()
	return s.nodes[idOf(rec)]
}

// sweepOut ends all that the snapshot did not have.
func (s *store) sweepOut(n *node) {
	var over []*holding
	for _, ns := range slices.Collect(n.namespaces.all()) {
		if ns.sweep != n.sweep {
			s.endNamespace(n, ns)
		}
	}
	for _, i := range slices.Collect(n.interfaces.all()) {
		if i.sweep != n.sweep {
			s.endInterface(n, i)
			continue
		}
		for _, h := range i.holdings {
			if h.sweep != n.sweep {
				over = append(over, h)
			}
		}
	}
	for _, h := range over {
		s.end(n, h)
	}
	for _, l := range slices.Collect(n.links.all()) {
		if l.known && l.sweep != n.sweep {
			s.endLink(n, l)
		}
	}
	s.sweepPools(n)
}
