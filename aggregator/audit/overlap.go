package audit

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
)

// If two nodes, or two networks of one node, give pods addresses from overlapping ranges,
// duplicates occur although every IPAM works correctly.

// Other nodes must not allocate addresses in use either: a node that got another range may still have
// pods with addresses of its former range, and a node itself may have an address in the range of
// another one.

// A Subnet is an address of a node itself. Pods is set if pods with addresses from CNI are behind
// it.
type Subnet struct {
	verdict.Subnet
	Pods bool
}

// Sides returns the ranges from which a node gives its pods addresses: the pools of the networks
// that its pods use, and the prefixes of the node's own addresses with pods behind them. If
// prefixes overlap, it returns the widest one. It also returns addresses in use: those of pods that
// are outside of all these ranges, and those of the node on its LANs. networks has the addresses of the pods by
// network.
func Sides(n *verdict.Node, pools []*verdict.Pool, networks map[string][]netip.Addr, subnets []Subnet) (list []verdict.Side) {
	first := firstPool(pools)
	for _, p := range pools {
		_, used := networks[p.Network]
		if !p.Routed || !used && (len(networks) > 0 || p != first) {
			continue
		}
		for _, r := range p.Ranges {
			s := poolSide(n, p)
			s.Range, s.Unused = r, !used
			list = append(list, s)
		}
	}
	slices.SortFunc(subnets, func(a, b Subnet) int { // the widest first
		return cmp.Or(cmp.Compare(a.Prefix.Bits(), b.Prefix.Bits()), a.Prefix.Addr().Compare(b.Prefix.Addr()), cmp.Compare(a.Interface.Name, b.Interface.Name))
	})
	for _, sub := range subnets {
		a, r := sub.Prefix.Addr(), ipam.RangeOf(sub.Prefix)
		if sub.LAN || a.IsLinkLocalUnicast() || !sub.Pods ||
			slices.ContainsFunc(pools, func(p *verdict.Pool) bool { return slices.Contains(p.Gateways, a) }) ||
			slices.ContainsFunc(list, func(other verdict.Side) bool { return other.Range.Overlaps(r) }) {
			continue
		}
		list = append(list, verdict.Side{
			Node: n.Name, Agent: n, Range: r, Device: sub.Interface.Name, Prefixes: []netip.Prefix{sub.Prefix.Masked()}, Source: verdict.SideAddress,
			MadeByPlugin: slices.ContainsFunc(pools, sub.MadeFor),
		})
	}
	hold := func(a netip.Addr, network, device string) {
		if !slices.ContainsFunc(list, func(s verdict.Side) bool { return s.Range.Contains(a) }) {
			single := netip.PrefixFrom(a, a.BitLen())
			list = append(list, verdict.Side{
				Node: n.Name, Agent: n, Range: ipam.RangeOf(single), Network: network, Device: device, Prefixes: []netip.Prefix{single}, Source: verdict.SideHeld,
			})
		}
	}
	for _, p := range pools {
		if p.Routed && len(p.Ranges) > 0 { // otherwise it is not known which addresses are outside
			for _, a := range networks[p.Network] {
				hold(a, p.Network, "")
			}
		}
	}
	for _, sub := range subnets {
		if i := sub.Interface; (sub.LAN || i.Uplink || i.Kind == "vlan") && !sub.Prefix.Addr().IsLinkLocalUnicast() {
			hold(sub.Prefix.Addr(), "", i.Name)
		}
	}
	return list
}

// widest is the number of addresses of a range up to which it is plausible that all of them are assigned.
const widest = 1 << 24

// OnLANs returns the ranges from which a node gives its workloads addresses of LANs: those of pools whose devices are on
// them, as with macvlan. It also returns the node's own addresses there. lan returns the domain that a device
// of the node is proven to share with other nodes; nil if there is no proof.
func OnLANs(n *verdict.Node, pools []NodePool, subnets []Subnet, lan func(device string) *verdict.Domain) (list []verdict.Side) {
	for _, of := range pools {
		p := of.Pool
		if on := lan(p.Device); on != nil && AllocatesOnLAN(p) {
			ranges := p.Ranges
			for _, a := range p.Gateways { // never allocated
				ranges = ipam.Without(ranges, ipam.Range{First: a, Last: a})
			}
			for _, r := range ranges {
				s := poolSide(n, p)
				s.Range, s.LAN, s.Unused = r, on.Key(), !of.Used && p.Lost == 0 && p.State != ipam.Unreadable
				list = append(list, s)
			}
		}
	}
	for _, sub := range subnets {
		a := sub.Prefix.Addr()
		single := netip.PrefixFrom(a, a.BitLen())
		if on := lan(sub.Interface.Name); on != nil && !a.IsLinkLocalUnicast() {
			list = append(list, verdict.Side{
				Node: n.Name, Agent: n, Range: ipam.RangeOf(single), Device: sub.Interface.Name, Prefixes: []netip.Prefix{single}, Source: verdict.SideHeld, LAN: on.Key(),
			})
		}
	}
	return list
}

// AllocatesOnLAN reports whether a pool with a device on a LAN allocates addresses of that LAN.
func AllocatesOnLAN(p *verdict.Pool) bool {
	configured := p.Config != "" || p.Engine && p.State != ipam.Missing && (p.Plugin == "macvlan" || p.Plugin == "ipvlan")
	return configured && !p.Routed && !p.Leases
}

// firstPool returns the pool that a node without pods will use: container runtimes use the first
// configuration by file name.
func firstPool(pools []*verdict.Pool) (first *verdict.Pool) {
	for _, p := range pools {
		if p.Routed && !p.Engine && !verdict.MadeByEngine(p.Device) && p.Config != "" && (first == nil || p.Config < first.Config) {
			first = p
		}
	}
	return first
}

// NodeSpecSide returns a pod range that Kubernetes assigned to a node.
func NodeSpecSide(node string, p netip.Prefix) verdict.Side {
	return verdict.Side{Node: node, Range: ipam.RangeOf(p), Prefixes: []netip.Prefix{p}, Source: verdict.SideNodeSpec}
}

// ListedSide returns an address of a node without an agent.
func ListedSide(node string, a netip.Addr) verdict.Side {
	single := netip.PrefixFrom(a, a.BitLen())
	return verdict.Side{Node: node, Range: ipam.RangeOf(single), Prefixes: []netip.Prefix{single}, Source: verdict.SideHeld, Unused: true}
}

// NodePoolSides returns the ranges of a pool of the cluster for one node.
func NodePoolSides(p *verdict.Pool) (list []verdict.Side) {
	for _, r := range p.Ranges {
		list = append(list, verdict.Side{Node: p.Name, Range: r, Ranges: []ipam.Range{r}, Config: p.Config, Source: verdict.SideNodeObject, IPAM: p.IPAM, Grows: p.Grows})
	}
	return list
}

func poolSide(n *verdict.Node, p *verdict.Pool) verdict.Side {
	return verdict.Side{
		Node: n.Name, Agent: n, Network: p.Network, Config: p.Config, Device: p.Device, Ranges: p.Ranges, Source: verdict.SidePool, IPAM: p.IPAM,
	}
}

// SameSide reports whether two sides are equal.
func SameSide(a, b verdict.Side) bool {
	return a.Node == b.Node && a.Agent.Is(b.Agent) && a.Range == b.Range && a.Network == b.Network && a.Pool == b.Pool && a.Config == b.Config && a.Device == b.Device &&
		a.Source == b.Source && a.LAN == b.LAN && a.IPAM == b.IPAM && a.Grows == b.Grows && a.Unused == b.Unused && a.MadeByPlugin == b.MadeByPlugin && slices.Equal(a.Ranges, b.Ranges) && slices.Equal(a.Prefixes, b.Prefixes)
}

// oneNode reports whether two sides are of one node. Kubernetes and the agent may use different
// names for it, and it may have been renamed.
func oneNode(a, b *verdict.Side) bool {
	switch {
	case a.Node == b.Node:
		return true
	case a.Agent != nil && b.Agent != nil:
		return a.Agent.Boot == b.Agent.Boot && a.Agent.Netns == b.Agent.Netns
	case a.Agent != nil:
		return a.Agent.Called(b.Node)
	case b.Agent != nil:
		return b.Agent.Called(a.Node)
	}
	return false
}

// Ranges returns the findings about ranges of several nodes that overlap. It sorts the sides.
func Ranges(p *verdict.Policy, sides []verdict.Side) (findings []verdict.Finding) {
	slices.SortFunc(sides, func(a, b verdict.Side) int {
		return cmp.Or(a.LAN.Compare(b.LAN), a.Range.First.Compare(b.Range.First), b.Range.Last.Compare(a.Range.Last), cmp.Compare(a.Node, b.Node), cmp.Compare(a.Source, b.Source),
			cmp.Compare(a.Device, b.Device), cmp.Compare(a.Network, b.Network))
	})
	for len(sides) > 0 {
		// A group is a maximal run of ranges that overlap directly or through others.
		group, last := 1, sides[0].Range.Last
		for group < len(sides) && sides[group].LAN == sides[0].LAN && sides[group].Range.First.BitLen() == last.BitLen() && sides[group].Range.First.Compare(last) <= 0 {
			if sides[group].Range.Last.Compare(last) > 0 {
				last = sides[group].Range.Last
			}
			group++
		}
		if o, severity := overlapOf(p, sides[:group]); o != nil {
			subject := o.Range.First.String()
			if s := &o.Sides[0]; s.LAN != (verdict.LinkKey{}) { // several LANs may use one range
				subject += " " + s.Node + "/" + s.Device
			}
			findings = append(findings, verdict.Finding{
				ID:   verdict.FindingID(p.Cluster, verdict.FindingPodCIDROverlap, subject),
				Kind: verdict.FindingPodCIDROverlap, Severity: severity, Overlap: o,
			})
		}
		sides = sides[group:]
	}
	return findings
}

// Outside returns the findings about nodes that assign addresses outside of the ranges that Kubernetes has assigned to them,
// while other nodes with the same CNI network use theirs: Kubernetes may assign that range to another node. That is a
// warning if only one node is known to have such a network, and its range is one that Kubernetes could have assigned.
// Ranges that overlap with those of another node already are left to Ranges.
func Outside(p *verdict.Policy, sides []verdict.Side) (findings []verdict.Finding) {
	label := func(node string) string { // a node may have another name in Kubernetes, with or without a domain
		name, _, _ := strings.Cut(strings.ToLower(node), ".")
		return name
	}
	assigned := make(map[string][]*verdict.Side)
	for i := range sides {
		if s := &sides[i]; s.Source == verdict.SideNodeSpec {
			assigned[label(s.Node)] = append(assigned[label(s.Node)], s)
		}
	}
	following := make(map[string][]string) // the nodes that use their ranges, by network
	inOwn := make(map[string]bool)         // the nodes that use their ranges in any network
	var outside [][2]*verdict.Side
	for i := range sides {
		s := &sides[i]
		if s.Source != verdict.SidePool || s.LAN != (verdict.LinkKey{}) {
			continue
		}
		var own *verdict.Side
		inside := false
		for _, spec := range assigned[label(s.Node)] {
			if oneNode(s, spec) && spec.Range.First.BitLen() == s.Range.First.BitLen() {
				own, inside = spec, inside || spec.Range.Overlaps(s.Range)
			}
		}
		switch {
		case inside && s.Unused:
		case inside:
			following[s.Network], inOwn[s.Node] = append(following[s.Network], s.Node), true
		case own != nil:
			outside = append(outside, [2]*verdict.Side{s, own})
		}
	}
	for _, pair := range outside {
		s, severity := pair[0], verdict.Critical
		if s.Unused || p.DeclaresShared(s.Range) || slices.ContainsFunc(sides, func(other verdict.Side) bool { return collide(s, &other) && !listed(&other) }) {
			continue
		}
		if !slices.ContainsFunc(following[s.Network], func(node string) bool { return node != s.Node }) {
			severity = verdict.Warning
			others := slices.ContainsFunc(outside, func(o [2]*verdict.Side) bool { return o[0].Network == s.Network && o[0].Node != s.Node })
			if others || inOwn[s.Node] || len(following[s.Network]) > 0 || !assignable(s.Range, pair[1].Prefixes[0]) {
				continue // the plugin has ranges of its own
			}
		}
		findings = append(findings, verdict.Finding{
			ID:   verdict.FindingID(p.Cluster, verdict.FindingPodCIDROverlap, s.Node+" "+s.Range.First.String()),
			Kind: verdict.FindingPodCIDROverlap, Severity: severity,
			Overlap: &verdict.Overlap{Range: s.Range, Sides: [2]verdict.Side{*s, *pair[1]}, Nodes: []string{s.Node}},
		})
	}
	return findings
}

// assignable reports whether Kubernetes may assign a range to a node as it has assigned another one: it fills a prefix of the same
// length, and is near it, so that both are likely to be from the range of the cluster.
func assignable(r ipam.Range, assigned netip.Prefix) bool {
	near := 16
	if assigned.Addr().Is6() {
		near = 48
	}
	if assigned.Bits() <= near || assigned.IsSingleIP() {
		return false
	}
	cluster := netip.PrefixFrom(assigned.Addr(), near)
	whole, half := netip.PrefixFrom(r.First, assigned.Bits()), netip.PrefixFrom(r.First, assigned.Bits()+1)
	return cluster.Contains(r.First) && whole.Contains(r.Last) && !half.Contains(r.Last)
}

// collide reports whether two sides may lead to one address on two nodes. An address in use
// concerns only pools. Of ranges that nodes route, a pool without any pod concerns only nodes with pods.
func collide(a, b *verdict.Side) bool {
	inUse := func(s *verdict.Side) bool { return !s.Unused && s.Source != verdict.SideNodeSpec }
	switch {
	case oneNode(a, b), a.LAN != b.LAN, !a.Range.Overlaps(b.Range):
		return false
	case a.Source == verdict.SideHeld || b.Source == verdict.SideHeld:
		return a.Source == verdict.SidePool && a.Range.Size() <= widest || b.Source == verdict.SidePool && b.Range.Size() <= widest
	}
	return a.LAN != (verdict.LinkKey{}) || !a.Unused && !b.Unused || inUse(a) || inUse(b)
}

// listed reports whether a side is the address of a node according to the Kubernetes API alone, so that it may be left over.
func listed(s *verdict.Side) bool { return s.Source == verdict.SideHeld && s.Agent == nil }

// overlapOf returns the overlap in a group of sorted ranges, each of which overlaps an earlier one;
// nil if there is none. It prefers a pair of ranges to an address in a range, and leaves out what is declared as shared.
// The severity is WARNING as long as no address of a range that overlaps is in use, and for the address of a node without an agent.
func overlapOf(p *verdict.Policy, group []verdict.Side) (out *verdict.Overlap, severity verdict.Severity) {
	severity = verdict.Warning
	used := slices.ContainsFunc(group, func(s verdict.Side) bool { return !s.Unused })
	for i := range group {
		known := false
		for k := range i {
			a, b := &group[k], &group[i]
			if !collide(a, b) || p.DeclaresShared(a.Range.Common(b.Range)) {
				continue
			}
			if (!a.Unused || !b.Unused) && !listed(a) && !listed(b) {
				severity = verdict.Critical
			}
			if !known {
				known = true
				held := a.Source == verdict.SideHeld || b.Source == verdict.SideHeld
				if out == nil {
					out = &verdict.Overlap{}
				}
				if len(out.Nodes) == 0 || !held && out.Held() {
					out.Range, out.Sides = a.Range.Common(b.Range), [2]verdict.Side{*a, *b}
				}
				for _, name := range []string{a.Node, b.Node} {
					if at, there := slices.BinarySearch(out.Nodes, name); !there {
						out.Nodes = slices.Insert(out.Nodes, at, name)
					}
				}
			}
			if severity == verdict.Critical || !used {
				break // no other pair says more
			}
		}
	}
	return out, severity
}

// Divided returns the findings about pools of the cluster that give parts of the same ranges to nodes.
// It sorts the pools.
func Divided(p *verdict.Policy, pools []*verdict.Pool) (findings []verdict.Finding) {
	slices.SortFunc(pools, func(a, b *verdict.Pool) int { return cmp.Or(cmp.Compare(a.IPAM, b.IPAM), cmp.Compare(a.Name, b.Name)) })
	for i, a := range pools {
		for _, b := range pools[i+1:] {
			common, overlap := firstCommon(a.Divided, b.Divided)
			if !overlap || a.IPAM != b.IPAM || p.DeclaresShared(common) {
				continue
			}
			side := func(of *verdict.Pool) verdict.Side {
				return verdict.Side{Pool: of.Name, Range: common, Ranges: of.Divided, Config: of.Config, Source: verdict.SideDivided, IPAM: of.IPAM}
			}
			findings = append(findings, verdict.Finding{
				ID:   verdict.FindingID(p.Cluster, verdict.FindingRangesOverlap, a.IPAM+" "+a.Name+" "+b.Name),
				Kind: verdict.FindingRangesOverlap, Severity: verdict.Warning,
				Overlap: &verdict.Overlap{Range: common, Sides: [2]verdict.Side{side(a), side(b)}},
			})
		}
	}
	return findings
}

// firstCommon returns the first range that is in both lists.
func firstCommon(a, b []ipam.Range) (common ipam.Range, overlap bool) {
	for _, r := range a {
		for _, q := range b {
			if r.Overlaps(q) && (!overlap || r.Common(q).First.Less(common.First)) {
				common, overlap = r.Common(q), true
			}
		}
	}
	return common, overlap
}

// NodePool is a pool of a node, with the VRF of its device and whether it has allocated any
// address.
type NodePool struct {
	Pool *verdict.Pool
	VRF  string
	Used bool
}

// Networks returns the findings about networks of one node whose addresses overlap. Common addresses may be
// declared as shared.
func Networks(p *verdict.Policy, n *verdict.Node, pools []NodePool) (findings []verdict.Finding) {
	for i := range pools {
		for k := range pools[i+1:] {
			a, b := pools[i], pools[i+1+k]
			if !a.Pool.Competes(&b.Pool.Pool) || a.VRF != b.VRF {
				continue
			}
			if b.Pool.Network < a.Pool.Network {
				a, b = b, a
			}
			ra, rb := a.Pool.Overlap(&b.Pool.Pool)
			o := &verdict.Overlap{Range: ra.Common(rb), Sides: [2]verdict.Side{poolSide(n, a.Pool), poolSide(n, b.Pool)}, Nodes: []string{n.Name}}
			if p.DeclaresShared(o.Range) {
				continue
			}
			severity := verdict.Warning
			if !a.Used || !b.Used {
				severity = verdict.Info // one of them is not used
			}
			findings = append(findings, verdict.Finding{
				ID:   verdict.FindingID(p.Cluster, verdict.FindingRangesOverlap, n.Name+" "+a.Pool.Network+" "+b.Pool.Network),
				Kind: verdict.FindingRangesOverlap, Severity: severity, Overlap: o,
			})
		}
	}
	return findings
}

// auditSubnets checks whether the address has an owner on a LAN of a node and another one on a link inside of the node, and
// the node has subnets with the address on both: it sends packets for the address to one of the two only. Whether two links
// that lead out of the node are one LAN is not known. Packets for an IPv6 link-local address are sent on the link that the sender
// names; routes for 169.254.0.0/16 are as for any subnet.
func (a *addressAudit) auditSubnets() {
	if a.in.Address.Is6() && a.in.Address.IsLinkLocalUnicast() {
		return
	}
	for i := range a.in.Nodes {
		subnets := a.in.Nodes[i].Subnets
		for k := range subnets {
			for m := range subnets {
				in, out := &subnets[k], &subnets[m]
				if !in.Inside() || !out.Outside() || in.Prefix.IsSingleIP() || out.Prefix.IsSingleIP() || !in.Prefix.Contains(a.in.Address) || !out.Prefix.Contains(a.in.Address) || in.Interface.VRF != out.Interface.VRF {
					continue
				}
				o, r := a.neighbour(in), a.neighbour(out)
				if o == nil || r == nil || o.ID == r.ID || o.MAC == r.MAC {
					continue
				}
				n := in.Interface.Namespace.Node
				side := func(s *verdict.Subnet) verdict.Side {
					return verdict.Side{
						Node: n.Name, Agent: n, Range: ipam.RangeOf(s.Prefix), Device: s.Interface.Name, Prefixes: []netip.Prefix{s.Prefix.Masked()}, Source: verdict.SideAddress,
					}
				}
				sides := [2]verdict.Side{side(in), side(out)}
				a.record(verdict.Finding{
					Kind: verdict.FindingRangesOverlap, Severity: verdict.Warning, Owners: []verdict.Owner{*o, *r},
					Overlap: &verdict.Overlap{Range: sides[0].Range.Common(sides[1].Range), Sides: sides, Nodes: []string{n.Name}},
				}, n.Boot+" "+n.Netns+" "+in.Interface.Name+" "+out.Interface.Name+" ", a.policy.Settle)
			}
		}
	}
}

// neighbour returns the owner that has the address on the link of a subnet, other than the node itself; nil if there is none.
func (a *addressAudit) neighbour(s *verdict.Subnet) *verdict.Owner {
	for i := range a.judged.Owners {
		o := &a.judged.Owners[i]
		if !compared(o) || o.ID == s.Interface.Namespace.ID {
			continue
		}
		if on := o.On(s.Interface.Link, a.in.Now.Add(-a.policy.StaleAfter)); on != nil {
			if stale := on.Seen.Add(a.policy.StaleAfter); on.Wire() && stale > a.in.Now {
				a.again(stale)
			}
			return o
		}
	}
	return nil
}
