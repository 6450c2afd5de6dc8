package facts

import (
	"net/netip"
	"slices"

	"github.com/ipwitness/ipwitness/aggregator/index"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// Subnets returns the addresses of a node itself, with their prefixes.
func (n *Node) Subnets() []verdict.Subnet {
	return n.subnets(func(netip.Prefix) bool { return true })
}

// subnets returns the addresses of a node itself for whose prefixes wanted returns true.
func (n *Node) subnets(wanted func(netip.Prefix) bool) (list []verdict.Subnet) {
	own := n.own()
	if own == 0 {
		return nil
	}
	for i := range n.inside(own) {
		one := n.interfaces.at(i)
		if one.attachment == verdict.Local || one.claims == 0 {
			continue
		}
		lan := false
		if n.texts.get(one.kind) == "bridge" {
			for port := range n.inside(own) {
				lan = lan || n.interfaces.at(port).link == one.link && n.leadsOut(port)
			}
		}
		var rec *verdict.Interface
		for c := range n.on(i) {
			claim := n.claims.at(c)
			subnet := netip.PrefixFrom(claim.addr.Addr(), int(claim.prefix))
			if claim.kind != verdict.Assigned || !wanted(subnet) {
				continue
			}
			if rec == nil {
				rec = n.record(i)
			}
			list = append(list, verdict.Subnet{Prefix: subnet, Interface: rec, LAN: lan})
		}
	}
	return list
}

// stitches returns the evidence that the links of the claims' domains are one.
func (b *Builder) stitches() (all []verdict.Stitch) {
	var domains []*verdict.Domain
	for _, c := range b.c.Claims {
		for _, l := range []*verdict.Link{c.Link, c.Interface.Link} {
			if l != nil && l.Domain != nil && !slices.Contains(domains, l.Domain) {
				domains = append(domains, l.Domain)
				all = append(all, b.facts.topology.Stitches(l.Domain, b.facts.linkRecord)...)
			}
		}
	}
	return all
}

// linkRecord returns the record of a link of the topology.
func (f *Facts) linkRecord(j *Link) *verdict.Link {
	n, l := f.linkOf(j)
	return n.fillLink(l, new(verdict.Link))
}

// Before returns the owners of an address before the changes that have not been judged, if these
// owners were derived. The caller holds the lock.
func (f *Facts) Before(a index.Address) (owners []verdict.Owner, derived bool) {
	return f.queue(a).before(a)
}
