package model_test

import (
	"net/netip"
	"slices"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// A belief is an entry of neighbour tables that the claims of its node do not bear out.
type belief struct {
	*pb.BeliefRecord
	addr netip.Addr
}

func (r *reference) applyBelief(n *node, rec *pb.BeliefRecord) {
	addr, _ := netip.AddrFromSlice(rec.GetAddress())
	n.beliefs = slices.DeleteFunc(n.beliefs, func(b belief) bool { return beliefName(b.BeliefRecord) == beliefName(rec) })
	if !rec.GetGone() {
		n.beliefs = append(n.beliefs, belief{rec, addr})
	}
}

// beliefs returns the beliefs about an address.
func (r *reference) beliefs(w *world, a netip.Addr) (list []verdict.Belief) {
	for _, n := range r.nodes {
		for _, one := range n.beliefs {
			l := n.links[one.GetLink()]
			if one.addr != a || l == nil {
				continue
			}
			out := verdict.Belief{
				Link: w.linkOf(l), MAC: verdict.MAC(one.GetMac()), State: verdict.EntryState(one.GetState()), Count: one.GetCount(),
				Since: stamp(one.GetFirstSeen()), Inside: n.closed(l),
			}
			for _, h := range one.GetHolders() {
				if i := n.iface(h.GetNamespace(), h.GetIndex()); i != nil {
					out.Holders = append(out.Holders, w.interfaces[i])
				}
			}
			if len(out.Holders) == 0 {
				continue
			}
			for _, other := range n.beliefs {
				if other.GetLink() == one.GetLink() && string(other.GetMac()) == string(one.GetMac()) {
					out.Addresses++
				}
			}
			r.receivers(w, n, l, a, &out)
			if d, ok := r.tombstones[tomb{a, out.MAC}]; ok && r.now < d.at.Add(r.policy.StaleAfter) {
				out.Left = d.at
			}
			list = append(list, out)
		}
	}
	return list
}

// receivers adds the interfaces that have the hardware address.
func (r *reference) receivers(w *world, n *node, l *link, a netip.Addr, out *verdict.Belief) {
	for _, by := range r.nodes {
		for _, i := range by.interfaces {
			there := i.link == l
			if by != n {
				there = i.link != nil && l.domain[bySight] != nil && i.link.domain[bySight] == l.domain[bySight]
			}
			switch {
			case i.rec.MAC != out.MAC || by != n && !i.meets():
			case there:
				out.Receivers = append(out.Receivers, w.interfaces[i])
			case slices.ContainsFunc(by.claims, func(c *claim) bool {
				return c.addr == a && c.Kind == verdict.Assigned && c.port.namespace.rec.ID == i.namespace.rec.ID
			}):
				out.Cards = append(out.Cards, w.interfaces[i])
			}
		}
	}
}

// closed reports whether an agent sees all interfaces on a link.
func (n *node) closed(l *link) bool {
	return !n.blind && (l.kind == verdict.Bridge || l.kind == verdict.PointToPoint) &&
		!slices.ContainsFunc(n.interfaces, func(i *iface) bool { return i.link == l && (i.rec.Uplink || i.rec.Tap) })
}
