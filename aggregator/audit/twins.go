package audit

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// A MACHolder is an interface with a hardware address, and its addresses without link-local ones.
type MACHolder struct {
	Interface *verdict.Interface
	Addresses []netip.Addr
}

// Twins returns the findings about one hardware address in several namespaces on one link: bridges and
// switches move it to and fro between their ports, so that all of them lose frames. VXLAN devices of one
// name, such as flannel.1, are taken for one link. Only namespaces with
// different addresses count. Those with a common address are in conflict about it, or share it by design,
// such as virtual routers and distributed gateways.
func Twins(p *verdict.Policy, mac verdict.MAC, all []MACHolder) (findings []verdict.Finding) {
	type place struct {
		namespace string
		link      verdict.LinkKey
	}
	seen, links := make(map[place]bool), make(map[verdict.LinkKey][]MACHolder)
	for _, h := range all {
		if mac.Group() || mac.Shared() && !mac.Virtual() || !h.counts(all) {
			continue
		}
		i := h.Interface
		at := place{i.Namespace.ID, i.Link.Key()}
		switch {
		case i.Link.Domain != nil:
			at.link = i.Link.Domain.Key()
		case i.Kind == "vxlan" && i.Attachment == verdict.Own && i.Link.Name == i.Name:
			at.link = verdict.LinkKey{Name: i.Name} // one overlay: its nodes know each other's MACs without a frame
		}
		if !seen[at] {
			seen[at] = true
			links[at.link] = append(links[at.link], h)
		}
	}
	for _, places := range links {
		slices.SortFunc(places, func(a, b MACHolder) int {
			x, y := a.Interface, b.Interface
			return cmp.Or(cmp.Compare(x.Namespace.Node.Name, y.Namespace.Node.Name), cmp.Compare(x.Namespace.ID, y.Namespace.ID), cmp.Compare(x.Link.Name, y.Link.Name))
		})
		first := places[0]
		owners, addresses, severity := []verdict.Owner{first.owner()}, slices.Clone(first.Addresses), verdict.Critical
		for _, h := range places[1:] {
			switch i := h.Interface; {
			case slices.ContainsFunc(h.Addresses, func(a netip.Addr) bool { return slices.Contains(addresses, a) }),
				slices.ContainsFunc(owners, func(o verdict.Owner) bool { return verdict.OneWorkload(o, h.owner()) }):
			default:
				owners, addresses = append(owners, h.owner()), append(addresses, h.Addresses...)
				if !first.Interface.Link.Is(i.Link) && !first.Interface.Link.Proven.Is(i.Link.Proven) {
					severity = verdict.Warning // anybody can send the frame that shows the links to be one
				}
			}
		}
		if len(owners) < 2 {
			continue
		}
		slices.SortFunc(addresses, netip.Addr.Compare)
		findings = append(findings, verdict.Finding{
			ID:   verdict.FindingID(p.Cluster, verdict.FindingMACCloned, mac.String()+" "+owners[0].ID),
			Kind: verdict.FindingMACCloned, Severity: severity, Owners: owners,
			Spoof: &verdict.Spoof{
				Port: first.Interface, Sender: first.Interface.Namespace, Link: first.Interface.Link, Owner: owners[0], Victims: owners[1:],
				MACs: []verdict.MAC{mac}, Addresses: slices.Compact(addresses),
			},
		})
	}
	return findings
}

// counts reports whether frames with the hardware address come from the interface. Those of a macvtap
// device come from its guest. ipvlan and passthru devices have the hardware address of their node's.
func (h MACHolder) counts(all []MACHolder) bool {
	i := h.Interface
	return len(h.Addresses) > 0 && i.Link != nil && (!i.Link.Distributed || i.Attachment != verdict.Own) && i.Kind != "macvtap" && (i.Attachment == verdict.Own || i.Attachment == verdict.Peer || i.Attachment == verdict.Inner ||
		i.Attachment == verdict.Lower && !slices.ContainsFunc(all, func(o MACHolder) bool {
			return o.Interface.Attachment == verdict.Own && o.Interface.Namespace.Node.Is(i.Namespace.Node)
		}))
}

func (h MACHolder) owner() verdict.Owner {
	i, state := h.Interface, verdict.Live
	if i.Namespace.Node.Unheard {
		state = verdict.Unheard
	}
	return verdict.Owner{ID: i.Namespace.ID, Node: i.Namespace.Node, Namespace: i.Namespace, Interface: i, MAC: i.MAC, State: state, Assigned: true}
}
