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

// domain is the broadcast domain that one of our own interfaces is on.
type domain struct {
	name string
	kind ipwitnessv1.LinkRecord_Kind
	base *link    // the device that makes it: the bridge, the uplink, our end of the veth
	tags []uint16 // the VLANs on it, from the outside in
}

// vlanOn is a VLAN of a device.
type vlanOn struct {
	index int32
	vid   uint16
}

// wiring is what domainOf needs to look up: it is made anew after a change.
type wiring struct {
	vlans   map[vlanOn]*link // the VLAN devices
	patched map[int32]*link  // bridges that veth pairs join to others: the one that names them all
	routed  map[string]bool  // domains on which the node has an address; nil: to be made
}

// wired gives the wiring.
func (t *topology) wired() *wiring {
	if t.wiring == nil {
		t.wiring = &wiring{vlans: map[vlanOn]*link{}, patched: map[int32]*link{}}
		for _, l := range t.own.links {
			if l.Kind == "vlan" && t.lowerOf(l) != nil {
				t.wiring.vlans[vlanOn{l.Lower, l.VLAN}] = l
			}
			t.patch(l)
		}
	}
	return t.wiring
}

// patch joins the bridges that a veth pair connects. What a bridge that filters
// VLANs lets through is another question for each of them: it is not joined.
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

// lowerOf gives the lower device, or the other end of the pair, of one of our
// own interfaces where it is our own, too.
func (t *topology) lowerOf(l *link) *link {
	if l.LowerNSID != rtnetlink.NoNSID && l.LowerNSID != t.ownNSID {
		return nil
	}
	return t.own.links[l.Lower]
}

// domainOf finds the broadcast domain that frames with these VLAN tags, from
// the outside in, are on when they pass one of our own interfaces. It follows
// them as the kernel does: a VLAN device takes the frames of its VLAN off its
// lower device before a bridge or a bond gets them.
func (t *topology) domainOf(l *link, tags ...uint16) domain {
	const deepest = 8 // eth0 in a bond under a VLAN in a bridge: nobody stacks more
	for range deepest {
		lower, master := t.lowerOf(l), t.own.links[l.Master]
		over := t.vlanOver(l, tags)
		switch {
		case over != nil && isMaster(t.own.links[over.Master]):
			l, tags = over, tags[1:]
		case isChild(l.Kind) && lower != nil:
			l = lower
		case isPair(l.Kind) && lower != nil && l.Master == 0 && lower.Master != 0:
			l = lower // its frames go in by the other end
		case over != nil && isMaster(master):
			return t.newDomain(l, tags)
		case isMaster(master):
			if master.Filtering && len(tags) == 0 {
				if l.pvid == 0 {
					return t.newDomain(l, nil) // the bridge lets no untagged frames in here
				}
				tags = []uint16{l.pvid}
			}
			l = master
		case l.Kind == "vlan" && lower != nil:
			// eth0.10 and VLAN 10 of eth0 are one.
			l, tags = lower, append([]uint16{l.VLAN}, tags...)
		case l.Kind == "bridge" && l.Filtering && len(tags) == 0 && l.pvid != 0:
			tags = []uint16{l.pvid}
		case l.Kind == "bridge" && t.wired().patched[l.Index] != nil:
			return t.newDomain(t.wired().patched[l.Index], tags)
		case isPair(l.Kind) && lower != nil && lower.Name < l.Name: // both ends are ours
			return t.newDomain(lower, tags)
		default:
			return t.newDomain(l, tags)
		}
	}
	return t.newDomain(l, tags)
}

// newDomain is the domain that a device makes for a VLAN.
func (t *topology) newDomain(l *link, tags []uint16) domain {
	d := domain{name: l.Name, kind: ipwitnessv1.LinkRecord_UPLINK, base: l, tags: tags}
	switch {
	case l.Kind == "bridge":
		d.kind = ipwitnessv1.LinkRecord_BRIDGE
	case l.Master != 0 && l.SlaveKind == "openvswitch":
		d.kind = ipwitnessv1.LinkRecord_OVS_PORT
	case isPair(l.Kind) && l.SlaveKind == "bridge" && len(tags) == 0:
		d.kind = ipwitnessv1.LinkRecord_BRIDGE // which lets nothing in here: nobody routes to it
	case isPair(l.Kind) && !t.isUplink(l, t.peerOf(l)):
		d.kind = ipwitnessv1.LinkRecord_POINT_TO_POINT
	}
	for _, vid := range tags {
		d.name = fmt.Sprintf("%s.%d", d.name, vid)
	}
	return d
}

// vlanOver gives the VLAN device that takes frames with these tags off one of
// our own interfaces; nil for none.
func (t *topology) vlanOver(l *link, tags []uint16) *link {
	if len(tags) == 0 {
		return nil
	}
	return t.wired().vlans[vlanOn{l.Index, tags[0]}]
}

// isMaster says that an interface is one of a kind whose ports are all on one
// broadcast domain, so far as it does not filter VLANs.
func isMaster(l *link) bool {
	return l != nil && (l.Kind == "bridge" || l.Kind == "bond" || l.Kind == "team")
}

// isPair says that interfaces of the kind come in pairs.
func isPair(kind string) bool { return kind == "veth" || kind == "netkit" }

// isChild says that interfaces of the kind share the link of their lower device.
func isChild(kind string) bool {
	switch kind {
	case "macvlan", "macvtap", "ipvlan", "ipvtap":
		return true
	}
	return false
}

// isLocal says that addresses on the interface make no owner.
func isLocal(l *link) bool {
	return l.Flags&unix.IFF_LOOPBACK != 0 || l.Kind == "dummy"
}

// vrfOf names the VRF that one of our own interfaces, or its master, is in.
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

// peerOf gives the record id of the namespace that has the other end of our
// veth; 0 for none.
func (t *topology) peerOf(l *link) uint32 {
	if !isPair(l.Kind) {
		return 0
	}
	if ns := t.byNSID[l.LowerNSID]; ns != nil {
		return ns.id
	}
	for _, ns := range t.attached[l.Index] { // it moved there, untold to our end
		return ns.id
	}
	return 0
}

// isUplink says that frames which enter by our interface come from outside the
// node. Hardware does that; and a veth of a nested node (kind, a test lab),
// whose other end is a port of a switch, and which has an address and the
// prefix of a LAN here, or is a port of a bridge that has. A pod's veth has
// neither, or a host prefix. A bridge inside a pod, for a virtual machine say, is
// no switch, as far as it can be told.
func (t *topology) isUplink(l *link, peer uint32) bool {
	if !isPair(l.Kind) {
		return isPort(l) && l.Kind != "tun"
	}
	if peer == 0 {
		return false
	}
	for p, ns := range t.attached[l.Index] {
		if ns.id != peer || p.Master == 0 || t.names[ns.inode].GetKind() == ipwitnessv1.Workload_POD {
			continue
		}
		if hasPrefix(l) || isMaster(t.own.links[l.Master]) && isSwitch(ns, p) && t.onLAN(t.domainOf(l)) {
			return true
		}
	}
	return false
}

// hasPrefix says that an interface has an address with the prefix of a LAN.
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

// onLAN says that the node has an address with the prefix of a LAN on a domain.
func (t *topology) onLAN(d domain) bool {
	for _, l := range t.own.links {
		if hasPrefix(l) && t.domainOf(l).name == d.name {
			return true
		}
	}
	return false
}

// isSwitch says that the bridge of a port in another namespace leads out of that
// namespace by another port, too.
func isSwitch(ns *namespace, port *link) bool {
	for _, l := range ns.links {
		if l != port && l.Master == port.Master && (l.Kind == "" || isPair(l.Kind) && l.LowerNSID != rtnetlink.NoNSID) {
			return true
		}
	}
	return false
}

// routes says whether the node routes for the ports of a bridge: it has an
// address on the bridge, on a VLAN device over it, or behind a veth into it.
func (t *topology) routes(d domain) bool {
	if d.kind != ipwitnessv1.LinkRecord_BRIDGE {
		return false
	}
	w := t.wired()
	if w.routed == nil {
		w.routed = map[string]bool{}
		for _, l := range t.own.links {
			if hasUnicast(l) && !isMaster(t.own.links[l.Master]) {
				w.routed[t.domainOf(l).name] = true
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

// hasUnicast says that an interface has a unicast address that is not
// link-local. Every bridge that is up has an fe80 address: that does not count.
func hasUnicast(l *link) bool {
	for addr := range l.addrs {
		if usable(addr) {
			return true
		}
	}
	return false
}

func usable(a netip.Addr) bool {
	return !a.IsLinkLocalUnicast() && !a.IsMulticast() && !a.IsLoopback() && !a.IsUnspecified()
}

// resolve makes a message about another namespace's interface say what an
// answer to us would. In a message IFLA_LINK_NETNSID is in the numbering of the
// namespace that it came from; in an answer, in ours. What cannot be known yet
// is left unresolved, until our end of the pair tells or an address depends on
// it: to ask at once would be to wait for the rtnl lock, which whoever makes
// the pod holds just now.
func (t *topology) resolve(ns *namespace, m rtnetlink.Link) rtnetlink.Link {
	host, old := t.own.links[m.Lower], ns.links[m.Index]
	switch {
	case m.LowerNSID == rtnetlink.NoNSID: // the lower device is in its own namespace
	case host != nil && isPeer(host, ns, m):
		m.LowerNSID = t.ownNSID
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

// carries says that others may hang on one of our own interfaces, at whatever
// distance. Nothing does on our end of a pod's veth, of which there are hundreds.
func (t *topology) carries(l *link) bool {
	return !isPair(l.Kind) || t.lowerOf(l) != nil
}

// join and part keep k.attached: which interfaces of other namespaces have
// their peer or lower device among ours.
func (t *topology) join(ns *namespace, l *link) {
	if ns == t.own || l.LowerNSID != t.ownNSID {
		return
	}
	if t.attached[l.Lower] == nil {
		t.attached[l.Lower] = map[*link]*namespace{}
	}
	t.attached[l.Lower][l] = ns
}

func (t *topology) part(l *link) {
	if delete(t.attached[l.Lower], l); len(t.attached[l.Lower]) == 0 {
		delete(t.attached, l.Lower)
	}
}

// all gives every mirrored namespace.
func (t *topology) all() []*namespace {
	return append(slices.Collect(maps.Values(t.byNSID)), t.own)
}

// ours says whether a namespace belongs to this node: one of its interfaces
// has its peer or lower device in our own namespace. Any other namespace of
// the machine is somebody else's.
func (t *topology) ours(ns *namespace) bool {
	if ns == t.own {
		return true
	}
	for _, l := range ns.links {
		if l.LowerNSID == t.ownNSID {
			return true
		}
	}
	return false
}
