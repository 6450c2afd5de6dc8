package agent

import (
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// domain is the broadcast domain that one of our own interfaces is on.
type domain struct {
	name string
	kind ipwitnessv1.LinkRecord_Kind
	base *link // the device that makes it: the bridge, the uplink, our end of the veth
}

// domainOf finds the broadcast domain of one of our own interfaces.
func (k *kernel) domainOf(l *link) domain {
	const deepest = 8 // eth0 in a bond in a bridge under a VLAN: nobody stacks more
	vlan := ""
	for range deepest {
		master := k.own.links[l.master]
		lower := k.own.links[l.lower]
		if l.lowerNSID != noNSID && l.lowerNSID != k.ownNSID {
			lower = nil // in another namespace
		}
		switch {
		case master != nil && master.kind == "bridge":
			l = master
			continue
		case master != nil && (master.kind == "bond" || master.kind == "team"):
			l = master
			continue
		case l.master != 0 && l.slaveKind == "openvswitch":
			return domain{l.name + vlan, ipwitnessv1.LinkRecord_OVS_PORT, l}
		case l.kind == "bridge":
			return domain{l.name + vlan, ipwitnessv1.LinkRecord_BRIDGE, l}
		case l.kind == "vlan" && lower != nil:
			// eth0.10 and VLAN 10 of eth0 are one.
			vlan = fmt.Sprintf(".%d%s", l.vlan, vlan)
			l = lower
			continue
		case isChild(l.kind) && lower != nil:
			l = lower
			continue
		case isPair(l.kind):
			if lower != nil { // both ends are ours
				if lower.master != 0 && l.master == 0 {
					l = lower
					continue
				}
				if lower.name < l.name {
					l = lower
				}
			}
			return domain{l.name + vlan, ipwitnessv1.LinkRecord_POINT_TO_POINT, l}
		}
		return domain{l.name + vlan, ipwitnessv1.LinkRecord_UPLINK, l}
	}
	return domain{l.name + vlan, ipwitnessv1.LinkRecord_UPLINK, l}
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
	return l.flags&unix.IFF_LOOPBACK != 0 || l.kind == "dummy"
}

// vrfOf names the VRF that one of our own interfaces, or its master, is in.
func (k *kernel) vrfOf(l *link) string {
	for range 4 {
		if l.kind == "vrf" {
			return l.name
		}
		if l = k.own.links[l.master]; l == nil {
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
		Index:      uint32(l.index),
		Name:       l.name,
		Kind:       l.kind,
		Mac:        []byte(l.mac),
		Attachment: ipwitnessv1.InterfaceRecord_PRIVATE,
	}
	if l.flags&unix.IFF_LOOPBACK != 0 || len(l.mac) != 6 {
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
	case l.lowerNSID != k.ownNSID:
		return r
	default:
		if r.Attachment = ipwitnessv1.InterfaceRecord_PEER; !isPair(l.kind) {
			r.Attachment = ipwitnessv1.InterfaceRecord_LOWER
		}
		if host = k.own.links[l.lower]; host == nil {
			return r // our end is not told yet: this is published again then
		}
		r.HostInterface = host.name
	}
	d := k.domainOf(host)
	if ns != k.own && l.kind == "vlan" {
		d.name = fmt.Sprintf("%s.%d", d.name, l.vlan)
	}
	r.Link = d.name
	r.Vrf = k.vrfOf(host)
	k.putDomain(d, now)
	return r
}

// peerOf gives the record id of the namespace that has the other end of our
// veth; 0 for none.
func (k *kernel) peerOf(l *link) uint32 {
	if !isPair(l.kind) {
		return 0
	}
	if ns := k.byNSID[l.lowerNSID]; ns != nil {
		return ns.id
	}
	for _, ns := range k.attached[l.index] { // it moved there, untold to our end
		return ns.id
	}
	return 0
}

// isUplink says that frames which enter by our interface come from outside the
// node. Hardware does that; and a veth of a nested node (kind, a test lab),
// whose other end is a port of a switch, and which has an address and the
// prefix of a LAN here. A pod's veth has neither, or a host prefix.
func (k *kernel) isUplink(l *link, peer uint32) bool {
	if !isPair(l.kind) {
		return isPort(l) && l.kind != "tun"
	}
	if peer == 0 {
		return false
	}
	for p, ns := range k.attached[l.index] {
		if ns.id != peer || p.master == 0 {
			continue
		}
		for addr, entries := range l.addrs {
			for _, a := range entries {
				if int(a.prefixLen) < addr.BitLen() && !addr.IsLinkLocalUnicast() {
					return true
				}
			}
		}
	}
	return false
}

// putDomain puts the record of a broadcast domain.
func (k *kernel) putDomain(d domain, now time.Time) {
	r := &ipwitnessv1.LinkRecord{Name: d.name, Kind: d.kind, Routed: d.kind == ipwitnessv1.LinkRecord_BRIDGE && hasUnicast(d.base)}
	if old, ok := k.table.links.live[d.name]; !ok || !proto.Equal(old, r) {
		k.table.links.put(d.name, r, now)
	}
	k.domains[d.name] = d.base.index
}

// putLinkRecord puts the records of the domains that a bridge makes again,
// after its addresses may have changed.
func (k *kernel) putLinkRecord(bridge *link, now time.Time) {
	for name, index := range k.domains {
		if index == bridge.index {
			k.putDomain(domain{name, ipwitnessv1.LinkRecord_BRIDGE, bridge}, now)
		}
	}
}

// dropLinkRecords removes the records of the domains that a device made.
func (k *kernel) dropLinkRecords(index int32, now time.Time) {
	for name, base := range k.domains {
		if base == index {
			delete(k.domains, name)
			k.table.links.remove(name, now)
		}
	}
}

// leaveLink takes our interface off a broadcast domain: the domain ends if it
// made it, and frames that entered by it belong to another one from now on.
func (k *kernel) leaveLink(l *link, domain string, now time.Time) {
	if k.domains[domain] == l.index {
		delete(k.domains, domain)
		k.table.links.remove(domain, now)
	}
	k.dropFrames(l.index, now)
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
