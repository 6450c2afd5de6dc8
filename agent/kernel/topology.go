package kernel

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/ipwitness/ipwitness/agent/rtnetlink"
	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// domain is the broadcast domain of one of our own interfaces.
type domain struct {
	name string
	kind ipwitnessv1.LinkRecord_Kind
	base *link    // the device that forms the domain: a bridge, an uplink, our end of a veth
	tags []uint16 // VLAN tags on that device, the outermost first
}

// vlanOn is a VLAN of a device.
type vlanOn struct {
	index int32
	vid   uint16
}

// wiring has indexes for domainOf. It is recomputed after a change.
type wiring struct {
	vlans   map[vlanOn]*link // the VLAN devices
	patched map[int32]*link  // bridges that veth pairs connect, each with the bridge that names their domain
	netdev  bool             // Open vSwitch runs its userspace datapath
	routed  map[string]bool  // domains on which the node has an address; nil if it must be computed
}

// wired returns the wiring, which it computes if necessary.
func (t *topology) wired() *wiring {
	if t.wiring == nil {
		t.wiring = &wiring{vlans: map[vlanOn]*link{}, patched: map[int32]*link{}}
		for _, l := range t.own.links {
			if l.Kind == "vlan" && t.lowerOf(l) != nil {
				t.wiring.vlans[vlanOn{l.Lower, l.VLAN}] = l
			}
			t.patch(l)
			t.wiring.netdev = t.wiring.netdev || isNetdevDatapath(&l.Link)
		}
	}
	return t.wiring
}

// patch connects the bridges at both ends of a veth pair. It leaves out bridges that filter
// VLANs, because they may forward only some VLANs to each other.
func (t *topology) patch(l *link) {
	peer := t.lowerOf(l)
	if !isPair(l.Kind) || peer == nil {
		return
	}
	a, b := t.own.links[l.Master], t.own.links[peer.Master]
	if a == nil || b == nil || a == b || a.Kind != "bridge" || b.Kind != "bridge" || a.Filtering || b.Filtering {
		return
	}
	name := func(l *link) *link {
		if first := t.wiring.patched[l.Index]; first != nil {
			return first
		}
		return l
	}
	first, other := name(a), name(b)
	if other.Name < first.Name {
		first, other = other, first
	}
	for index, l := range t.wiring.patched {
		if l == other {
			t.wiring.patched[index] = first
		}
	}
	t.wiring.patched[other.Index], t.wiring.patched[first.Index] = first, first
}

// lowerOf returns the lower device, or the other end of the pair, of one of our own interfaces
// if that is also in our own namespace.
func (t *topology) lowerOf(l *link) *link {
	if l.LowerNSID != rtnetlink.NoNSID && l.LowerNSID != t.ownNSID {
		return nil
	}
	return t.own.links[l.Lower]
}

// domainOf returns the broadcast domain of frames that enter one of our own interfaces with
// the given VLAN tags, the outermost first. It follows them as the kernel does: a VLAN device
// takes the frames of its VLAN from its lower device before a bridge or bond receives them.
func (t *topology) domainOf(l *link, tags ...uint16) domain {
	const deepest = 8 // eth0 in a bond, below a VLAN in a bridge, needs fewer levels
	for range deepest {
		lower, master := t.lowerOf(l), t.own.links[l.Master]
		var over *link // the VLAN device that takes the frames
		if len(tags) > 0 {
			over = t.wired().vlans[vlanOn{l.Index, tags[0]}]
		}
		switch {
		case over != nil && isMaster(t.own.links[over.Master]):
			l, tags = over, tags[1:]
		case isChild(l.Kind) && lower != nil:
			l = lower
		case isPair(l.Kind) && lower != nil && l.Master == 0 && lower.Master != 0:
			l = lower // frames of one end enter at the other end
		case over != nil && isMaster(master):
			return t.newDomain(l, tags)
		case isMaster(master):
			if master.Filtering && len(tags) == 0 {
				if l.vlans.PVID == 0 {
					return t.newDomain(l, nil) // the bridge drops untagged frames at this port
				}
				tags = []uint16{l.vlans.PVID}
			}
			l = master
		case l.Kind == "vlan" && lower != nil:
			// eth0.10 and VLAN 10 of eth0 are the same.
			l, tags = lower, append([]uint16{l.VLAN}, tags...)
		case l.Kind == "bridge" && l.Filtering && len(tags) == 0 && l.vlans.PVID != 0:
			tags = []uint16{l.vlans.PVID}
		case l.Kind == "bridge" && t.wired().patched[l.Index] != nil:
			return t.newDomain(t.wired().patched[l.Index], tags)
		case isPair(l.Kind) && lower != nil && lower.Name < l.Name: // both ends are ours; the domain has the name that sorts first
			return t.newDomain(lower, tags)
		default:
			return t.newDomain(l, tags)
		}
	}
	return t.newDomain(l, tags)
}

// A place is what the cable of a veth is plugged into on the node: a bridge, or nothing, which is the end of the veth
// itself. It is zero for other interfaces and if it is not known.
type place struct {
	base *link
	name string
	vlan uint16 // if the bridge filters VLANs
}

// leftFor reports whether an interface was moved from a place to another one. A bridge with another name, or one that
// begins to filter VLANs, is none.
func (a place) leftFor(b place) bool {
	return a.base != nil && b.base != nil && (a.base != b.base && a.name != b.name || a.vlan != b.vlan && a.vlan != 0 && b.vlan != 0)
}

// placeOf returns the place of an interface in another namespace.
func (t *topology) placeOf(ns *namespace, l *link) place {
	host := t.own.links[l.Lower]
	if ns == t.own || l.LowerNSID != t.ownNSID || !isPair(l.Kind) || host == nil {
		return place{}
	}
	master := t.own.links[host.Master]
	switch {
	case host.Master != 0 && master == nil:
		return place{}
	case !isMaster(master) && !isOVSPort(&host.Link, t.wired().netdev):
		return place{base: host, name: host.Name}
	case master == nil: // a port of the userspace datapath of Open vSwitch
		return place{}
	case master.Filtering:
		return place{base: master, name: fmt.Sprintf("%s.%d", master.Name, host.vlans.PVID), vlan: host.vlans.PVID}
	}
	return place{base: master, name: master.Name}
}

// newDomain returns the domain that a device forms for a VLAN.
func (t *topology) newDomain(l *link, tags []uint16) domain {
	d := domain{name: l.Name, kind: ipwitnessv1.LinkRecord_UPLINK, base: l, tags: tags}
	switch {
	case l.Kind == "bridge":
		d.kind = ipwitnessv1.LinkRecord_BRIDGE
	case isOVSPort(&l.Link, t.wired().netdev):
		d.kind = ipwitnessv1.LinkRecord_OVS_PORT
	case isPair(l.Kind) && l.SlaveKind == "bridge" && len(tags) == 0:
		d.kind = ipwitnessv1.LinkRecord_BRIDGE // the bridge drops untagged frames here
	case isPair(l.Kind) && !t.isUplink(l, t.peerOf(l)):
		d.kind = ipwitnessv1.LinkRecord_POINT_TO_POINT
	}
	for _, vid := range tags {
		d.name = fmt.Sprintf("%s.%d", d.name, vid)
	}
	return d
}

// isMaster reports whether all ports of an interface are on one broadcast domain, unless it
// filters VLANs.
func isMaster(l *link) bool {
	return l != nil && (l.Kind == "bridge" || l.Kind == "bond" || l.Kind == "team")
}

// isPair reports whether interfaces of a kind come in pairs.
func isPair(kind string) bool { return kind == "veth" || kind == "netkit" }

// isChild reports whether interfaces of a kind share the link of their lower device.
func isChild(kind string) bool {
	switch kind {
	case "macvlan", "macvtap", "ipvlan", "ipvtap":
		return true
	}
	return false
}

// isLocal reports whether the addresses of an interface do not count as held.
func isLocal(l *link) bool {
	return l.Flags&unix.IFF_LOOPBACK != 0 || l.Kind == "dummy"
}

// isWithoutARP reports whether ARP is off on an Ethernet interface that could have it: arp_rcv and arp_send
// (net/ipv4/arp.c) drop all there, as on the device for the virtual address of a real server of LVS. ipvlan in mode l3 and
// netkit have no ARP by their kind, and those that they reach need none.
func isWithoutARP(l *link) bool {
	return l.Flags&unix.IFF_NOARP != 0 && l.ARPHRD == unix.ARPHRD_ETHER && l.Kind != "ipvlan" && l.Kind != "netkit"
}

// vrfOf returns the name of the VRF that one of our own interfaces, or its master, is in.
func (t *topology) vrfOf(l *link) string {
	for range 4 {
		if l.Kind == "vrf" {
			return l.Name
		}
		if l = t.own.links[l.Master]; l == nil {
			return ""
		}
	}
	return ""
}

// peerOf returns the record id of the namespace at the other end of our veth, or 0 if there is
// none.
func (t *topology) peerOf(l *link) uint32 {
	if !isPair(l.Kind) {
		return 0
	}
	if ns := t.byNSID[l.LowerNSID]; ns != nil {
		return ns.id
	}
	for _, ns := range t.attached[l.Index] { // it moved there without a message about our end
		return ns.id
	}
	return 0
}

// isUplink reports whether frames that enter through our interface come from outside the node.
// That is true for hardware. It is also true for the veth of a nested node (kind, a test lab):
// its other end is a switch port, and it has an address with a LAN prefix here, or had one since the
// start, before its DHCP lease ended, or is a port of a bridge that has one. A pod's veth has no address, or one
// with a host prefix. A bridge
// inside a pod or container, such as that of a virtual machine, does not count as a switch.
// And it is true for a port of a bridge whose other end is a port of Open vSwitch, as those of
// Weave and OpenStack: what is behind that switch is not known.
func (t *topology) isUplink(l *link, peer uint32) bool {
	if !isPair(l.Kind) {
		return isPort(l) && l.Kind != "tun"
	}
	if peer == 0 {
		other := t.lowerOf(l)
		return other != nil && isMaster(t.own.links[l.Master]) && isOVSPort(&other.Link, t.wired().netdev)
	}
	for p, ns := range t.attached[l.Index] {
		if ns.id != peer || p.Master == 0 || t.contained(ns) {
			continue
		}
		if hasPrefix(l) || l.wasLAN && l.Master == 0 || isMaster(t.own.links[l.Master]) && isSwitch(ns, p) && t.onLAN(t.domainOf(l)) {
			return true
		}
	}
	return false
}

// hasPrefix reports whether an interface has an address with a LAN prefix.
func hasPrefix(l *link) bool {
	for addr, entries := range l.addrs {
		for _, a := range entries {
			if int(a.PrefixLength) < addr.BitLen() && usable(addr) {
				return true
			}
		}
	}
	return false
}

// onLAN reports whether the node has an address with a LAN prefix on a domain.
func (t *topology) onLAN(d domain) bool {
	for _, l := range t.own.links {
		if hasPrefix(l) && t.domainOf(l).name == d.name {
			return true
		}
	}
	return false
}

// isSwitch reports whether the bridge of a port in another namespace has another port that
// leads out of that namespace.
func isSwitch(ns *namespace, port *link) bool {
	for _, l := range ns.links {
		if l != port && l.Master == port.Master && (l.Kind == "" || isPair(l.Kind) && l.LowerNSID != rtnetlink.NoNSID) {
			return true
		}
	}
	return false
}

// routes reports whether the node routes for the ports of a bridge: it has an address on the
// bridge, on a VLAN device over it, or behind a veth into it.
func (t *topology) routes(d domain) bool {
	if d.kind != ipwitnessv1.LinkRecord_BRIDGE {
		return false
	}
	w := t.wired()
	if w.routed == nil {
		w.routed = map[string]bool{}
		for _, l := range t.own.links {
			for addr := range l.addrs {
				if usable(addr) && !isMaster(t.own.links[l.Master]) {
					w.routed[t.domainOf(l).name] = true
					break
				}
			}
		}
	}
	return w.routed[d.name]
}

func tagsOf(vids ...uint16) (tags []uint16) {
	for _, vid := range vids {
		if vid != 0 {
			tags = append(tags, vid)
		}
	}
	return tags
}

// usable reports whether an address is a unicast address other than a link-local one, which all bridges have when
// they are up.
func usable(a netip.Addr) bool {
	return !a.IsLinkLocalUnicast() && !a.IsMulticast() && !a.IsLoopback() && !a.IsUnspecified()
}

// resolve translates the IFLA_LINK_NETNSID in a message about an interface of another
// namespace. In a notification, the nsid is from the table of that namespace, and in an answer
// it is from ours. If the namespace cannot be known yet, it stays unresolved until our end of
// the pair reports it or an address depends on it. A request would have to wait for the rtnl
// lock, which the process that creates the pod holds at that time.
func (t *topology) resolve(ns *namespace, m rtnetlink.Link) rtnetlink.Link {
	host, old := t.own.links[m.Lower], ns.links[m.Index]
	switch {
	case m.LowerNSID == rtnetlink.NoNSID: // the lower device is in the same namespace
	case host != nil && isPeer(host, ns, m):
		m.LowerNSID = t.ownNSID
	case old != nil && old.Kind == m.Kind && old.Lower == m.Lower && old.LowerNSID != rtnetlink.NoNSID:
		m.LowerNSID = old.LowerNSID // if our end had moved, there would be a message about it
	default:
		m.LowerNSID = rtnetlink.Unresolved
	}
	return m
}

// isPeer reports whether interface m of ns is the other end of our interface.
func isPeer(host *link, ns *namespace, m rtnetlink.Link) bool {
	return isPair(m.Kind) && isPair(host.Kind) && host.LowerNSID == ns.nsid && host.Lower == m.Index && m.Lower == host.Index
}

// carries reports whether the domains of other interfaces may depend on one of our own
// interfaces. No other domain depends on our end of a pod's veth, of which there are hundreds.
func (t *topology) carries(l *link) bool {
	return !isPair(l.Kind) || t.lowerOf(l) != nil
}

// join adds an interface to attached if its peer or lower device is one of our own interfaces.
func (t *topology) join(ns *namespace, l *link) {
	t.rewired = true
	if ns != t.own && isCard(&l.Link) {
		t.cards[l] = ns
	}
	if ns != t.own && l.Kind == "bridge" {
		t.bridges[l] = struct{}{}
	}
	if ns == t.own || l.LowerNSID != t.ownNSID {
		return
	}
	if t.attached[l.Lower] == nil {
		t.attached[l.Lower] = map[*link]*namespace{}
	}
	t.attached[l.Lower][l] = ns
}

// part removes an interface from attached.
func (t *topology) part(l *link) {
	t.rewired = true
	delete(t.cards, l)
	delete(t.bridges, l)
	if delete(t.attached[l.Lower], l); len(t.attached[l.Lower]) == 0 {
		delete(t.attached, l.Lower)
	}
}

// all returns every mirrored namespace.
func (t *topology) all() []*namespace {
	return append(slices.Collect(maps.Values(t.byNSID)), t.own)
}

// ours reports whether a namespace belongs to this node, that is, whether the peer or lower
// device of one of its interfaces is in our own namespace, it has a card on the LAN of one of our uplinks, or it is at a nested bridge of the node.
// The machine may have namespaces of other nodes.
func (t *topology) ours(ns *namespace) bool {
	if ns == t.own || ns.nested {
		return true
	}
	for _, l := range ns.links {
		if l.LowerNSID == t.ownNSID || l.port != nil {
			return true
		}
	}
	return false
}

// isCard reports whether an interface is a network card, which a program may have moved into another namespace. Devices that
// software has made have a kind.
func isCard(l *rtnetlink.Link) bool {
	return l.Kind == "" && l.LowerNSID == rtnetlink.NoNSID && l.Flags&unix.IFF_LOOPBACK == 0 && len(l.MAC) == 6
}

// isNetdevDatapath reports whether an interface is the TAP device that Open vSwitch creates for its
// userspace datapath.
func isNetdevDatapath(l *rtnetlink.Link) bool { return l.Name == "ovs-netdev" && l.Kind == "tun" }

// isOVSPort reports whether an interface of our own namespace is a port of Open vSwitch. In the
// kernel's datapath it has a master. The userspace datapath (netdev) leaves no other mark on a veth
// than that it sets the interface promiscuous. Programs that capture frames do not set this flag.
func isOVSPort(l *rtnetlink.Link, netdev bool) bool {
	if l.Master != 0 {
		return l.SlaveKind == "openvswitch"
	}
	return netdev && isPair(l.Kind) && l.Flags&unix.IFF_PROMISC != 0
}

// OVSPorts returns the names of those of a host's interfaces that are ports of Open vSwitch.
func OVSPorts(links []rtnetlink.Link) (ports []string) {
	netdev := slices.ContainsFunc(links, func(l rtnetlink.Link) bool { return isNetdevDatapath(&l) })
	for i := range links {
		if isOVSPort(&links[i], netdev) {
			ports = append(ports, links[i].Name)
		}
	}
	return ports
}
