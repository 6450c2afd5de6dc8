package agent

import (
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

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
func (k *kernel) wired() *wiring {
	if k.wiring == nil {
		k.wiring = &wiring{vlans: map[vlanOn]*link{}, patched: map[int32]*link{}}
		for _, l := range k.own.links {
			if l.Kind == "vlan" && k.lowerOf(l) != nil {
				k.wiring.vlans[vlanOn{l.Lower, l.VLAN}] = l
			}
			k.patch(l)
		}
	}
	return k.wiring
}

// patch joins the bridges that a veth pair connects. What a bridge that filters
// VLANs lets through is another question for each of them: it is not joined.
func (k *kernel) patch(l *link) {
	peer := k.lowerOf(l)
	if !isPair(l.Kind) || peer == nil {
		return
	}
	a, b := k.own.links[l.Master], k.own.links[peer.Master]
	if a == nil || b == nil || a == b || a.Kind != "bridge" || b.Kind != "bridge" || a.Filtering || b.Filtering {
		return
	}
	name := func(l *link) *link {
		if first := k.wiring.patched[l.Index]; first != nil {
			return first
		}
		return l
	}
	first, other := name(a), name(b)
	if other.Name < first.Name {
		first, other = other, first
	}
	for index, l := range k.wiring.patched {
		if l == other {
			k.wiring.patched[index] = first
		}
	}
	k.wiring.patched[other.Index], k.wiring.patched[first.Index] = first, first
}

// lowerOf gives the lower device, or the other end of the pair, of one of our
// own interfaces where it is our own, too.
func (k *kernel) lowerOf(l *link) *link {
	if l.LowerNSID != rtnetlink.NoNSID && l.LowerNSID != k.ownNSID {
		return nil
	}
	return k.own.links[l.Lower]
}

// domainOf finds the broadcast domain that frames with these VLAN tags, from
// the outside in, are on when they pass one of our own interfaces. It follows
// them as the kernel does: a VLAN device takes the frames of its VLAN off its
// lower device before a bridge or a bond gets them.
func (k *kernel) domainOf(l *link, tags ...uint16) domain {
	const deepest = 8 // eth0 in a bond under a VLAN in a bridge: nobody stacks more
	for range deepest {
		lower, master := k.lowerOf(l), k.own.links[l.Master]
		over := k.vlanOver(l, tags)
		switch {
		case over != nil && isMaster(k.own.links[over.Master]):
			l, tags = over, tags[1:]
		case isChild(l.Kind) && lower != nil:
			l = lower
		case isPair(l.Kind) && lower != nil && l.Master == 0 && lower.Master != 0:
			l = lower // its frames go in by the other end
		case over != nil && isMaster(master):
			return k.newDomain(l, tags)
		case isMaster(master):
			if master.Filtering && len(tags) == 0 {
				if l.pvid == 0 {
					return k.newDomain(l, nil) // the bridge lets no untagged frames in here
				}
				tags = []uint16{l.pvid}
			}
			l = master
		case l.Kind == "vlan" && lower != nil:
			// eth0.10 and VLAN 10 of eth0 are one.
			l, tags = lower, append([]uint16{l.VLAN}, tags...)
		case l.Kind == "bridge" && l.Filtering && len(tags) == 0 && l.pvid != 0:
			tags = []uint16{l.pvid}
		case l.Kind == "bridge" && k.wired().patched[l.Index] != nil:
			return k.newDomain(k.wired().patched[l.Index], tags)
		case isPair(l.Kind) && lower != nil && lower.Name < l.Name: // both ends are ours
			return k.newDomain(lower, tags)
		default:
			return k.newDomain(l, tags)
		}
	}
	return k.newDomain(l, tags)
}

// newDomain is the domain that a device makes for a VLAN.
func (k *kernel) newDomain(l *link, tags []uint16) domain {
	d := domain{name: l.Name, kind: ipwitnessv1.LinkRecord_UPLINK, base: l, tags: tags}
	switch {
	case l.Kind == "bridge":
		d.kind = ipwitnessv1.LinkRecord_BRIDGE
	case l.Master != 0 && l.SlaveKind == "openvswitch":
		d.kind = ipwitnessv1.LinkRecord_OVS_PORT
	case isPair(l.Kind) && l.SlaveKind == "bridge" && len(tags) == 0:
		d.kind = ipwitnessv1.LinkRecord_BRIDGE // which lets nothing in here: nobody routes to it
	case isPair(l.Kind) && !k.isUplink(l, k.peerOf(l)):
		d.kind = ipwitnessv1.LinkRecord_POINT_TO_POINT
	}
	for _, vid := range tags {
		d.name = fmt.Sprintf("%s.%d", d.name, vid)
	}
	return d
}

// vlanOver gives the VLAN device that takes frames with these tags off one of
// our own interfaces; nil for none.
func (k *kernel) vlanOver(l *link, tags []uint16) *link {
	if len(tags) == 0 {
		return nil
	}
	return k.wired().vlans[vlanOn{l.Index, tags[0]}]
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

// setPVID takes in which VLAN a bridge, or a port of one, puts untagged frames.
func (k *kernel) setPVID(index int32, pvid uint16, now time.Time) {
	l := k.own.links[index]
	if l == nil || l.pvid == pvid {
		return
	}
	l.pvid = pvid
	k.wiring = nil
	if bridge := k.own.links[l.Master]; l.Filtering || bridge != nil && bridge.Filtering {
		k.publish(k.own, l, now)
		k.publishAttached(nil, now)
	}
}

// readPVIDs reads in which VLANs bridges put untagged frames, where one filters
// by VLAN.
func (k *kernel) readPVIDs() {
	filtering := false
	for _, l := range k.own.links {
		filtering = filtering || l.Filtering
	}
	if !filtering {
		return
	}
	pvids, err := k.req.PVIDs()
	if err != nil {
		k.log.Warn("cannot read the VLANs of bridge ports", "error", err)
		k.incomplete()
		return
	}
	for index, l := range k.own.links {
		l.pvid = pvids[index]
	}
	k.wiring = nil
}

// vrfOf names the VRF that one of our own interfaces, or its master, is in.
func (k *kernel) vrfOf(l *link) string {
	for range 4 {
		if l.Kind == "vrf" {
			return l.Name
		}
		if l = k.own.links[l.Master]; l == nil {
			return ""
		}
	}
	return ""
}

// interfaceRecord says where an interface stands, and puts the record of the
// link that it is on.
func (k *kernel) interfaceRecord(ns *namespace, l *link, now time.Time) *ipwitnessv1.InterfaceRecord {
	r := &ipwitnessv1.InterfaceRecord{
		Namespace:  ns.id,
		Index:      uint32(l.Index),
		Name:       l.Name,
		Kind:       l.Kind,
		Mac:        []byte(l.MAC),
		Attachment: ipwitnessv1.InterfaceRecord_PRIVATE,
	}
	if l.Flags&unix.IFF_LOOPBACK != 0 || len(l.MAC) != 6 {
		r.Mac = nil
	}
	host := l // our own interface that decides the link
	switch {
	case isLocal(l):
		r.Attachment = ipwitnessv1.InterfaceRecord_LOCAL
		return r
	case ns == k.own:
		r.Attachment = ipwitnessv1.InterfaceRecord_OWN
		r.PeerNamespace = k.peerOf(l)
		r.Uplink = k.isUplink(l, r.PeerNamespace)
	case l.LowerNSID != k.ownNSID:
		return r
	default:
		if r.Attachment = ipwitnessv1.InterfaceRecord_PEER; !isPair(l.Kind) {
			r.Attachment = ipwitnessv1.InterfaceRecord_LOWER
		}
		if host = k.own.links[l.Lower]; host == nil {
			return r // our end is not told yet: this is published again then
		}
		r.HostInterface = host.Name
	}
	d := k.domainOf(host)
	if ns != k.own && l.Kind == "vlan" {
		d = k.domainOf(host, l.VLAN)
	}
	r.Link = d.name
	r.Vrf = k.vrfOf(host)
	k.putDomain(d, now)
	return r
}

// peerOf gives the record id of the namespace that has the other end of our
// veth; 0 for none.
func (k *kernel) peerOf(l *link) uint32 {
	if !isPair(l.Kind) {
		return 0
	}
	if ns := k.byNSID[l.LowerNSID]; ns != nil {
		return ns.id
	}
	for _, ns := range k.attached[l.Index] { // it moved there, untold to our end
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
func (k *kernel) isUplink(l *link, peer uint32) bool {
	if !isPair(l.Kind) {
		return isPort(l) && l.Kind != "tun"
	}
	if peer == 0 {
		return false
	}
	for p, ns := range k.attached[l.Index] {
		if ns.id != peer || p.Master == 0 || k.names[ns.inode].GetKind() == ipwitnessv1.Workload_POD {
			continue
		}
		if hasPrefix(l) || isMaster(k.own.links[l.Master]) && isSwitch(ns, p) && k.onLAN(k.domainOf(l)) {
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
func (k *kernel) onLAN(d domain) bool {
	for _, l := range k.own.links {
		if hasPrefix(l) && k.domainOf(l).name == d.name {
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

// putDomain puts the record of a broadcast domain.
func (k *kernel) putDomain(d domain, now time.Time) {
	if old, ok := k.domains[d.name]; ok && old.base == d.base && old.kind == d.kind {
		return
	}
	k.domains[d.name] = d
	k.publishDomain(d, now)
}

// putTagged puts again what VLANs our interface makes: they are of its kind.
func (k *kernel) putTagged(l *link, now time.Time) {
	for _, d := range k.domains {
		if d.base == l && len(d.tags) > 0 {
			k.putDomain(k.newDomain(l, d.tags), now)
		}
	}
}

// publishDomain says whether there was anything new to tell.
func (k *kernel) publishDomain(d domain, now time.Time) bool {
	r := &ipwitnessv1.LinkRecord{Name: d.name, Kind: d.kind, Routed: k.routes(d)}
	if old := k.table.Links.Get(d.name); old != nil && proto.Equal(old, r) {
		return false
	}
	k.table.Links.Put(d.name, r, now)
	return true
}

// routes says whether the node routes for the ports of a bridge: it has an
// address on the bridge, on a VLAN device over it, or behind a veth into it.
func (k *kernel) routes(d domain) bool {
	if d.kind != ipwitnessv1.LinkRecord_BRIDGE {
		return false
	}
	w := k.wired()
	if w.routed == nil {
		w.routed = map[string]bool{}
		for _, l := range k.own.links {
			if hasUnicast(l) && !isMaster(k.own.links[l.Master]) {
				w.routed[k.domainOf(l).name] = true
			}
		}
	}
	return w.routed[d.name]
}

// addressed publishes the domain of one of our own interfaces again: its
// addresses decide whether the node routes for it, and what its ports are.
func (k *kernel) addressed(l *link, now time.Time) {
	d := k.domainOf(l)
	if lan := hasPrefix(l); lan != l.lan {
		if l.lan = lan; isMaster(d.base) {
			defer k.publishAttached(nil, now) // its ports may be uplinks now, or none
		}
	}
	if _, ok := k.domains[d.name]; !ok {
		return
	}
	k.domains[d.name] = d
	if k.publishDomain(d, now) {
		k.publishAttached(d.base, now)
	}
}

// dropDomains ends the domains that a device made.
func (k *kernel) dropDomains(index int32, now time.Time) {
	for _, d := range k.domains {
		if d.base.Index == index {
			k.dropDomain(d.name, now)
		}
	}
}

func (k *kernel) dropDomain(name string, now time.Time) {
	delete(k.domains, name)
	k.table.Links.Remove(name, now)
}

// leaveLink takes our interface off a broadcast domain: the domain ends if it
// made it, and frames that entered by it belong to another one from now on.
func (k *kernel) leaveLink(l *link, name string, now time.Time) {
	if d, ok := k.domains[name]; ok && d.base == l {
		k.dropDomain(name, now)
	} else if ok {
		k.publishDomain(d, now) // it may have been the node's leg in it
	}
	k.dropFrames(l.Index, now)
}

// redirected ends the wire claims of our interface p, or of all if p is nil, if a frame
// like theirs would be on another link now.
func (k *kernel) redirected(p *link, now time.Time) {
	ports := k.table.WirePorts()
	if p != nil {
		ports = []int32{p.Index}
	}
	for _, index := range ports {
		stays := map[[2]uint16]string{}
		port := k.own.links[index]
		for key, c := range k.table.WireClaims(index) {
			vids := [2]uint16{key.VLAN, key.InnerVLAN}
			if _, ok := stays[vids]; !ok {
				stays[vids] = k.domainOf(port, tagsOf(vids[0], vids[1])...).name
			}
			if c.Link != stays[vids] {
				k.dropFrames(index, now)
				break
			}
		}
	}
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
