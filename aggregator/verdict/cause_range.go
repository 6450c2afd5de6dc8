package verdict

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
)

// Causes that lie in the ranges that addresses are given from.

// side is what one of two owners has the address from.
type side struct {
	// name is in words: a network, or a bridge.
	name string
	// network is a CNI network; empty for none.
	network string
	// ranges is what it gives addresses from; empty where that is not known.
	ranges string
	node   *Node
	pool   *Pool
	// device is the bridge; empty for none.
	device string
}

// String names the side and its range.
func (s side) String() string {
	if s.ranges == "" {
		return s.name
	}
	return s.name + " (" + s.ranges + ")"
}

// ownRange is the range of the node that an owner has the address from: by a pool of
// its own, the range of pods that Kubernetes gave it, or the prefix of a bridge whose
// ports a CNI network gave addresses.
func (q *inquiry) ownRange(o *Owner) (s side, ok bool) {
	s = side{name: "node " + o.Node.Name, node: o.Node}
	for _, p := range q.pools {
		if p.Node.Is(o.Node) && (p.Contains(q.c.Address) && q.gave(p, o) || q.bookedFor(p, o) == booked) {
			s.pool, s.ranges = p, rangesOf(p)
			return s, true
		}
	}
	if o.Kind() == Host { // the gateway of its pods
		for _, p := range q.in.node(o.Node).Pools {
			if i := o.Interface; p.Device == i.Name && i.bridge() && (p.Contains(q.c.Address) || slices.Contains(p.Gateways, q.c.Address)) {
				s.pool, s.ranges = p, rangesOf(p)
				return s, true
			}
		}
	}
	if prefix := q.prefixOf(o); o.network() != "" && prefix.IsValid() && q.c.Kind == NetworkScope {
		s.ranges, s.device = prefix.String(), o.Interface.Link.Name
		return s, true
	}
	return s, false
}

// prefixOf is the prefix of the bridge that an owner's interface is on: what the node
// has on it, or what a CNI network gave with the address. It is invalid where it is not
// known, or is that of a LAN.
func (q *inquiry) prefixOf(o *Owner) netip.Prefix {
	l := o.Interface.Link
	if o.Namespace == nil || l == nil || l.Kind != Bridge || l.Domain != nil {
		return netip.Prefix{}
	}
	for _, s := range q.in.node(o.Node).Subnets {
		if s.Interface.Name == l.Name && s.Interface.bridge() && s.Prefix.Contains(q.c.Address) && !s.Prefix.IsSingleIP() {
			if s.LAN {
				return netip.Prefix{}
			}
			return s.Prefix.Masked()
		}
	}
	for _, c := range o.Claims {
		if bits := int(c.PrefixLength); c.Counts() && l.Routed && o.network() != "" && c.Network == o.network() && bits > 0 && bits < q.c.Address.BitLen() {
			return netip.PrefixFrom(q.c.Address, bits).Masked()
		}
	}
	return netip.Prefix{}
}

// podCIDROverlap: two nodes give pods addresses of one range.
func (q *inquiry) podCIDROverlap() (r reason) {
	if !q.plain() {
		return reason{}
	}
	var excluded reason
	q.pairs(func(a, b *Owner) bool {
		if a.Node.Is(b.Node) || a.Namespace == nil || b.Namespace == nil || compareOwners(*a, *b) > 0 {
			return true
		}
		if p := q.widePool(a, b); p != nil {
			excluded = not("%s gives addresses for the whole cluster, and not by node", callPool(p))
			return true
		}
		kubernetes := q.in.node(a.Node).InPodCIDR && q.in.node(b.Node).InPodCIDR && q.podLike(a) && q.podLike(b)
		x, known := q.ownRange(a)
		y, both := q.ownRange(b)
		switch {
		case kubernetes, known && both:
		case q.in.InPodCIDR:
			excluded = not("it is in the range of pods of %s", q.rangeHolders(a.Node, b.Node))
			return true
		case known && !both || both && !known:
			other := b
			if both {
				other = a
			}
			excluded = open("no range of node %s is known that %s has it from", other.Node.Name, other.name())
			return true
		case q.given(a) && q.given(b):
			excluded = open("no ranges are known that nodes %s and %s give addresses of pods from", a.Node.Name, b.Node.Name)
			return true
		case q.pods():
			excluded = open("no CNI network is known to have given it to both")
			return true
		default:
			return true
		}
		r.nodes, r.kubernetes = []*Node{a.Node, b.Node}, kubernetes
		r.short = fmt.Sprintf("Nodes %s and %s give pods addresses of one range%s.", a.Node.Name, b.Node.Name, after(", ", common(x, y)))
		if kubernetes {
			r.fact("It is in the range of pods of node %s and in that of node %s (Node.spec.podCIDRs).", a.Node.Name, b.Node.Name)
		}
		for i, s := range []side{x, y} {
			o := []*Owner{a, b}[i]
			switch {
			case i == 0 && !known, i == 1 && !both:
				continue
			case s.pool != nil:
				r.pools = append(r.pools, s.pool)
				r.fact("%s gives addresses from %s.", callPool(s.pool), cmp.Or(s.ranges, "a range that has it"))
			default:
				r.fact("Pods on %s of node %s have addresses of %s.", s.device, s.node.Name, s.ranges)
			}
			r.networks = append(r.networks, s)
			if gift := q.gift(o); gift != "" {
				r.fact("%s", gift)
			}
		}
		return false
	})
	if !r.fits() {
		return excluded
	}
	return r
}

// rangeHolders names which of two nodes have the address in their range of pods.
func (q *inquiry) rangeHolders(a, b *Node) string {
	switch {
	case q.in.node(a).InPodCIDR:
		return fmt.Sprintf("node %s only, and not of node %s", a.Name, b.Name)
	case q.in.node(b).InPodCIDR:
		return fmt.Sprintf("node %s only, and not of node %s", b.Name, a.Name)
	}
	return "another node than these"
}

// widePool is a pool of the whole cluster that gave the address to one of two owners;
// nil for none.
func (q *inquiry) widePool(a, b *Owner) *Pool {
	for _, p := range q.pools {
		if p.Node == nil && (q.gave(p, a) || q.gave(p, b)) {
			return p
		}
	}
	return nil
}

// podLike tells whether an owner has the address as a pod has, or is where a node has
// it for its pods.
func (q *inquiry) podLike(o *Owner) bool {
	if o.Kind() == Host {
		return o.Assigned && o.Interface.bridge() && !MadeByEngine(o.Interface.Name) || o.Interface.portOfPod()
	}
	return o.Kind() == Pod && q.given(o)
}

// common is the range of two that is the narrower one, where it is in the other.
func common(a, b side) string {
	if a.ranges == b.ranges {
		return a.ranges
	}
	return ""
}

// origin is what an owner has the address from, on one node: a CNI network, or a bridge
// in whose prefix it is.
func (q *inquiry) origin(o *Owner) (s side, ok bool) {
	if o.Namespace == nil {
		return s, false
	}
	i := o.Interface
	s.node = o.Node
	if i.Link != nil && i.Link.Kind == Bridge {
		s.device = i.Link.Name
	}
	prefix := q.prefixOf(o)
	if prefix.IsValid() {
		s.ranges = prefix.String()
	}
	if n := o.network(); n != "" {
		s.name, s.network = "network "+n, n
		for _, p := range q.pools {
			if serves, _ := p.Serves(n); serves && q.gave(p, o) {
				s.pool = p
				s.ranges = cmp.Or(rangesOf(p), s.ranges)
			}
		}
		return s, true
	}
	if o.Kind() == Host && (!i.bridge() || !MadeByEngine(i.Name)) {
		return s, false // it is an address of its own, and no network's
	}
	s.name = "bridge " + s.device
	return s, s.device != "" && prefix.IsValid()
}

// overlappingNetworks: two networks that meet give addresses of one range.
func (q *inquiry) overlappingNetworks() (r reason) {
	if !q.plain() {
		return reason{}
	}
	var excluded reason
	q.pairs(func(a, b *Owner) bool {
		if compareOwners(*a, *b) > 0 || !a.Node.Is(b.Node) && q.c.Kind != LinkScope {
			return true
		}
		x, known := q.origin(a)
		y, both := q.origin(b)
		switch {
		case !known || !both:
			return true
		case x.name == y.name && a.network() != "":
			excluded = not("%s gave it to both", x.name)
			return true
		case x.network == "" && y.network == "" && x.name == y.name:
			return true // of neither is known who gave it
		case x.name == y.name, x.device != "" && x.device == y.device && (a.network() == "" || b.network() == ""):
			excluded = not("both are on bridge %s", x.device)
			return true
		case q.onePool(a, b) != nil:
			excluded = not("%s gives the addresses of both networks", callPool(q.onePool(a, b)))
			return true
		}
		r.networks, r.at = []side{x, y}, []*Owner{a, b}
		r.short = fmt.Sprintf("%s and %s have overlapping ranges%s.", capital(x.name), y.name, where(a, b))
		for k, s := range r.networks {
			o := []*Owner{a, b}[k]
			if gift := q.gift(o); gift != "" {
				r.fact("%s", gift)
			} else {
				r.fact("%s is on %s.", o.placed(), s.name)
			}
			if s.pool != nil {
				r.pools = append(r.pools, s.pool)
			}
			if s.ranges != "" {
				r.fact("%s has addresses of %s.", s.name, s.ranges)
			}
		}
		if a.Node.Is(b.Node) {
			r.fact("Node %s has both networks, and they meet there.", a.Node.Name)
		} else {
			r.fact("They meet on link %s.", q.c.Scope)
		}
		return false
	})
	if !r.fits() {
		return excluded
	}
	return r
}

func where(a, b *Owner) string {
	if a.Node.Is(b.Node) {
		return " on node " + a.Node.Name
	}
	return ""
}

// onePool is a pool that gave the address to both of two owners.
func (q *inquiry) onePool(a, b *Owner) *Pool {
	for _, p := range q.pools {
		if q.gave(p, a) && q.gave(p, b) {
			if served := slices.ContainsFunc(a.Networks(), func(n string) bool { ok, _ := p.Serves(n); return ok }); served {
				return p
			}
		}
	}
	return nil
}
