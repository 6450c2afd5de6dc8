package kernel

import (
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// interfaceRecord returns the record of an interface, and puts the record of its link.
func (p *publisher) interfaceRecord(ns *namespace, l *link, now time.Time) *ipwitnessv1.InterfaceRecord {
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
	host := l // the interface of our own namespace that determines the link
	switch {
	case isLocal(l):
		r.Attachment = ipwitnessv1.InterfaceRecord_LOCAL
		return r
	case ns == p.own:
		r.Attachment = ipwitnessv1.InterfaceRecord_OWN
		r.PeerNamespace = p.peerOf(l)
		r.Uplink = p.isUplink(l, r.PeerNamespace)
		r.NoArp, r.ProxyArpPvlan = isWithoutARP(l), l.pvlan
	case l.port != nil && p.own.links[l.port.Index] == l.port && l.port.published.GetUplink():
		r.Attachment, host = ipwitnessv1.InterfaceRecord_LOWER, l.port
	case l.LowerNSID != p.ownNSID:
		if d, ok := p.nested[l]; ok {
			r.Attachment, r.Link = ipwitnessv1.InterfaceRecord_INNER, d.name
			p.putDomain(d, now)
		}
		return r
	default:
		if r.Attachment = ipwitnessv1.InterfaceRecord_PEER; !isPair(l.Kind) {
			r.Attachment = ipwitnessv1.InterfaceRecord_LOWER
		}
		if host = p.own.links[l.Lower]; host == nil {
			return r // our end is not known yet; the record is published again once it is
		}
		r.HostInterface, r.Hairpin = host.Name, host.Hairpin
	}
	d := p.domainOf(host)
	if ns != p.own && l.Kind == "vlan" {
		d = p.domainOf(host, l.VLAN)
	}
	r.Link = d.name
	r.Vrf = p.vrfOf(host)
	p.putDomain(d, now)
	return r
}

// putDomain puts the record of a broadcast domain.
func (p *publisher) putDomain(d domain, now time.Time) {
	if old, ok := p.domains[d.name]; ok && old.base == d.base && old.kind == d.kind {
		return
	}
	p.domains[d.name] = d
	p.publishDomain(d, now)
}

// publishDomain puts the record of a domain if it has changed.
func (p *publisher) publishDomain(d domain, now time.Time) {
	r := &ipwitnessv1.LinkRecord{Name: d.name, Kind: d.kind, Routed: p.routes(d), Distributed: p.distributed(d), NoCarrier: p.cutOff(d)}
	if old := p.table.Links.Get(d.name); old == nil || !proto.Equal(old, r) {
		p.table.Links.Put(d.name, r, now)
	}
}

// distributed reports whether a bridge is part of a network over several nodes whose controller tells
// each bridge where MACs are: one of its ports is a VXLAN device that does not learn, or from which the
// bridge does not learn, or in whose place it answers.
func (p *publisher) distributed(d domain) bool {
	if d.kind != ipwitnessv1.LinkRecord_BRIDGE || p.own.links[d.base.Index] != d.base {
		return false
	}
	for _, l := range p.own.links {
		if l.Master == d.base.Index && l.Kind == "vxlan" && (l.Closed || l.NoLearning) {
			return true
		}
	}
	return false
}

// cutOff reports whether a domain does not lead out of the node because no uplink has a carrier. A bond, or a bridge with
// several uplinks, leads out while one of them has.
func (p *publisher) cutOff(d domain) (none bool) {
	if d.kind == ipwitnessv1.LinkRecord_POINT_TO_POINT {
		return false // there are hundreds of them
	}
	for _, l := range p.own.links {
		if l.published.GetUplink() && p.domainOf(l).base == d.base {
			if none = !l.unplugged.IsZero(); !none {
				return false
			}
		}
	}
	return none
}

// carrierChanged publishes the domains that one of our own interfaces is in.
func (p *publisher) carrierChanged(l *link, now time.Time) {
	base := p.domainOf(l).base
	for _, d := range p.domains {
		if d.base == base {
			p.publishDomain(d, now)
		}
	}
}

// addressed publishes the domain of one of our own interfaces again, because its addresses
// determine whether the node routes for the domain, and whether its ports are uplinks.
func (p *publisher) addressed(l *link, now time.Time) {
	d := p.domainOf(l)
	if lan := hasPrefix(l); lan != l.lan {
		l.wasLAN = l.wasLAN || lan
		if l.lan = lan; isMaster(d.base) {
			defer p.publishAttached(nil, now) // its ports may have become uplinks, or ceased to be
		}
	}
	if _, ok := p.domains[d.name]; ok {
		p.publishDomain(d, now)
	}
}

// dropDomains ends the domains that a device formed.
func (p *publisher) dropDomains(base *link, now time.Time) {
	for _, d := range p.domains {
		if d.base == base {
			p.dropDomain(d.name, now)
		}
	}
}

func (p *publisher) dropDomain(name string, now time.Time) {
	delete(p.domains, name)
	p.table.Links.Remove(name, now)
}

// redirected ends the wire claims of our port, or of all ports if changed is nil, if their
// frames would be on another link now.
func (p *publisher) redirected(changed *link, now time.Time) {
	ports := p.table.WirePorts()
	if changed != nil {
		ports = []int32{changed.Index}
	}
	for _, index := range ports {
		stays := map[[2]uint16]string{}
		port := p.own.links[index]
		if port.mixed != p.isMixed(port) {
			p.dropFrames(index, now)
			continue
		}
		for key, c := range p.table.WireClaims(index) {
			vids := [2]uint16{key.VLAN, key.InnerVLAN}
			if _, ok := stays[vids]; !ok {
				stays[vids] = p.domainOf(port, tagsOf(vids[0], vids[1])...).name
			}
			if c.Link != stays[vids] {
				p.dropFrames(index, now)
				break
			}
		}
	}
}
