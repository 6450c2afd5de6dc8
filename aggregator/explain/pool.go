package explain

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/advice"
	"github.com/ipwitness/ipwitness/ipam/registry"
)

func ipamOf(p *verdict.Pool) *ipam.IPAM { return registry.Of(p.IPAM) }

func textOf(p *verdict.Pool) advice.Filler {
	return ipamOf(p).Filler(ipam.Case{Pool: &p.Pool, Node: nodeOf(p)})
}

// nodeOf returns the name of the node that a pool belongs to; it is empty for a pool of the whole
// cluster.
func nodeOf(p *verdict.Pool) string { return p.Node.Key().Name }

// poolName returns the name of a pool for use in a sentence.
func poolName(p *verdict.Pool) string {
	switch m := ipamOf(p); {
	case p.IPAM == "":
		return "IPAM"
	case p.Unread != "":
		return m.Title + " (" + p.Unread + ")"
	case m.Name == "":
		return p.IPAM + " (" + p.Name + ")"
	default:
		return m.PoolTitle(&p.Pool, nodeOf(p))
	}
}

// poolBegin returns the name of a pool for the beginning of a sentence. Names of plugins stay in
// lower case.
func poolBegin(p *verdict.Pool) string {
	if m := ipamOf(p); m.Title == m.Name {
		return poolName(p)
	}
	return advice.Capital(poolName(p))
}

// poolNext says which workloads will get a free address of the pool. next names them, as in "the next pods".
func poolNext(p *verdict.Pool, next string) string {
	switch {
	case p.Node != nil:
		return next + " that start on that node"
	case ipamOf(p).Secondary:
		return next + " of that network, on any node"
	}
	return next + ", most likely on the same node"
}

// fullness describes the usage of a pool.
func fullness(u verdict.PoolUse, p *verdict.Pool) string {
	if u.Size == 0 {
		return fmt.Sprintf("%s has allocated %s.", poolBegin(p), plural(u.Allocated, "address", "addresses"))
	}
	share := fmt.Sprintf("%d %%", int(float64(u.Allocated)/float64(u.Size)*100))
	if u.Allocated > 0 && share == "0 %" {
		share = "less than 1 %"
	}
	s := fmt.Sprintf("%s has allocated %d of %s (%s)", poolBegin(p), u.Allocated, addressCount(u, u.Size), share)
	if u.Leaked > 0 {
		s += fmt.Sprintf(", %d of which no owner holds", u.Leaked)
	}
	if u.ExhaustedIn > 0 {
		s += fmt.Sprintf("; at the rate of the last hour, it will have none left in %s", secondsText(u.ExhaustedIn))
	}
	return s + "."
}

// addressCount formats a number of addresses of a pool.
func addressCount(u verdict.PoolUse, n uint64) string {
	of := ""
	if u.Family != "" {
		of = u.Family + " "
	}
	return plural(n, of+"address", of+"addresses")
}

// allocationName returns the name of the workload or purpose that an allocation is for.
func allocationName(al *verdict.Allocation) string {
	who := "an unknown owner"
	switch {
	case al.Purpose != "" && al.Node == "":
		who = "the " + al.Purpose
	case al.Purpose != "":
		who = "the node itself (" + al.Purpose + ")"
	case al.Pod != "":
		who = "pod " + al.Namespace + "/" + al.Pod
	case al.MAC != "":
		who = clientName(al.MAC, al.Hostname)
	case al.ContainerID != "":
		who = "container " + advice.ShortID(al.ContainerID)
		if al.Interface != "" {
			who += " (" + al.Interface + ")"
		}
	}
	return who + after(" on node ", al.Node)
}

// clientName returns the name of a DHCP client in a sentence.
func clientName(mac, hostname string) string {
	if hostname == "" {
		return "the DHCP client with MAC " + mac
	}
	return "the DHCP client with MAC " + mac + " (" + hostname + ")"
}

// allocationPlace says where an allocation is recorded.
func allocationPlace(al *verdict.Allocation) string {
	switch {
	case al.Location != "":
		return al.Location
	case al.Pool == nil:
		return "IPAM"
	}
	location := ipamOf(al.Pool).Text("location", ipam.Case{Pool: &al.Pool.Pool, Node: nodeOf(al.Pool), Address: al.Address})
	return cmp.Or(location, poolName(al.Pool))
}

// ofPool describes a finding about a whole pool.
func (t *findingBuilder) ofPool() {
	p, u, m := t.pool, t.use, textOf(t.pool)
	problem := strings.TrimSuffix(p.Problem, ".")
	switch {
	case t.f.Kind == verdict.FindingIPAMStateLost:
		t.stateLost()
	case t.f.Kind == verdict.FindingPoolExhaustion:
		left := ""
		if u.Size >= u.Allocated {
			left = addressCount(u, u.Size-u.Allocated) + " " + isAre(u.Size-u.Allocated)
		}
		t.add(t.f.Kind, "fullness", fullness(u, p), "full", when(u.Size > 0 && u.Allocated >= u.Size, "yes"), "left", left, "enlarge", m.Text("enlarge"),
			"ranges", when(len(p.Ranges) > 0, list(each(p.Ranges, rangeText))), "leaked", when(u.Leaked > 0, plural(u.Leaked, "address", "addresses")))
	case p.State == ipam.Known: // the records can be read but contain something invalid
		t.add("ipam-unreadable/partly", "problem", problem, "partial", when(p.Partial, "yes"), "check", m.Steps("check"))
	default:
		t.add(t.f.Kind, "unread", cmp.Or(p.Problem, "their format is unknown"), "stale", when(p.State == ipam.Stale, "yes"), "access", m.Text("access"))
	}
}

func rangeText(r *ipam.Range) string { return r.String() }

// mostNamed is the number of addresses that one sentence of the evidence names at most.
const mostNamed = 50

// stateLost describes a pool that has lost all of its records while its addresses are in use.
func (t *findingBuilder) stateLost() {
	p, node, m, atRisk := t.pool, nodeOf(t.pool), ipamOf(t.pool), t.f.Stock.AtRisk
	lost, at := "has no records", ""
	if p.Lost > 0 {
		lost = fmt.Sprintf("has lost all of its records (%d)", p.Lost)
	}
	if p.LostAt != 0 {
		at = stampText(p.LostAt)
	}
	kubernetes := plainName(node)
	for _, h := range atRisk {
		if h.Owner != nil && h.Owner.Pod != nil && h.Owner.Pod.Node != "" {
			kubernetes = h.Owner.Pod.Node
			break
		}
	}
	texts := m.Filler(ipam.Case{Pool: &p.Pool, Node: node, Holder: &ipam.Holder{Place: ipam.Place{KubernetesNode: kubernetes}}})
	var repair, uncordon []advice.Action
	backup := ""
	switch {
	case m.Rebuild:
		repair = scope{"node", node}.steps("plan")
	case node != "" && m.Has("empty"):
		repair = texts.Steps("empty")
	default:
		backup = texts.Text("backup")
	}
	pods := node == "" || slices.ContainsFunc(atRisk, func(h verdict.Held) bool { return h.Owner == nil || h.Owner.Kind() == verdict.Pod })
	next := "the next containers"
	if pods {
		next = "the next pods"
		if node != "" {
			uncordon = scope{"knode", kubernetes}.steps("uncordon")
		}
	}
	t.add(t.f.Kind, "lost", lost, "count", plural(len(atRisk), "address", "addresses"), "are", isAre(len(atRisk)),
		"addresses", each(atRisk, func(h *verdict.Held) string { return h.Address.String() }), "next", poolNext(p, next),
		"at", at, "problem", strings.TrimSuffix(p.Problem, "."), "node", node, "pods", when(pods, "yes"),
		"inuse", func() {
			for some := range slices.Chunk(atRisk, mostNamed) {
				t.State("In use: %s.", strings.Join(each(some, func(h *verdict.Held) string {
					if h.Owner == nil {
						return h.Address.String() + " by an unknown owner"
					}
					return h.Address.String() + " by " + OwnerName(h.Owner)
				}), ", "))
			}
		},
		"cordon", func() {
			if pods && node != "" {
				t.add("state-lost/cordon", "knode", kubernetes)
			}
		},
		"recreate", func() {
			if p.State == ipam.Missing {
				texts.Write(&t.Advice, "recreate")
			}
		},
		"rebuild", when(m.Rebuild, "yes"), "repair", repair, "backup", backup, "restart", when(repair == nil && backup == "", "yes"), "uncordon", uncordon, "search", texts.Text("search"))
}

// side is one of two nodes or networks that assign addresses from the same range.
type side verdict.Side

// listed reports whether the side is the address of a node without an agent.
func (s side) listed() bool { return s.Device == "" && s.Network == "" }

// overlap describes an overlap: of the ranges of two nodes, of two CNI networks of one node, or of two pools that
// give parts of their ranges to nodes.
func (t *findingBuilder) overlap() {
	f := t.f
	if f.Address.IsValid() {
		t.subnets()
		return
	}
	a, b := side(f.Overlap.Sides[0]), side(f.Overlap.Sides[1])
	if b.Source == verdict.SideHeld {
		a, b = b, a
	}
	m := registry.Of(a.IPAM)
	common := cmp.Or(a.common(b), "addresses")
	if f.Overlap.Held() {
		common = strings.TrimSuffix(strings.TrimSuffix(common, "/32"), "/128")
	}
	t.Evidence = []string{a.evidence(f.Kind), b.evidence(f.Kind)}
	values := []any{
		"a", a.Node, "b", b.Node, "anet", a.Network, "bnet", b.Network, "apool", a.Pool, "bpool", b.Pool, "title", m.Title, "common", common, "within", a.within(b),
		"aconfig", cmp.Or(a.Config, a.from(f.Kind)), "bconfig", cmp.Or(b.Config, b.from(f.Kind)), "afile", cmp.Or(a.Config, a.Network), "bfile", cmp.Or(b.Config, b.Network),
		"anetd", cmp.Or(a.Config, "/etc/cni/net.d"), "bnetd", cmp.Or(b.Config, "/etc/cni/net.d"), "knode", plainName(b.Node),
		"amade", when(a.MadeByPlugin, "yes"), "bmade", when(b.MadeByPlugin, "yes"),
		"abridge", when(a.Source == verdict.SideAddress, a.Device), "bbridge", when(b.Source == verdict.SideAddress, b.Device),
		"many", when(len(f.Overlap.Nodes) > 2, fmt.Sprint(len(f.Overlap.Nodes))),
	}
	switch {
	case f.Kind == verdict.FindingPodCIDROverlap && len(f.Overlap.Nodes) == 1:
		t.Evidence = t.Evidence[:1] // the text has the other one
		ranges := func(s side) string { return list(each(s.Prefixes, func(p *netip.Prefix) string { return p.String() })) }
		t.add("overlap/outside", append(values, "warning", when(t.f.Severity == verdict.Warning, "yes"), "used", list(each(a.Ranges, rangeText)), "assigned", ranges(b))...)
	case a.LAN != (verdict.LinkKey{}):
		key := "overlap/lan"
		if f.Overlap.Held() {
			key = "overlap/lan/held"
		}
		place := func(s side) string {
			return cmp.Or(s.Config, "network "+s.Network+" of "+registry.Of(s.IPAM).Title)
		}
		t.add(key, append(values, "device", a.Device, "bdevice", b.Device, "unused", when(a.Unused && b.Unused, "yes"), "aplace", place(a), "bplace", place(b))...)
	case f.Overlap.Held():
		t.add("overlap/held", append(values, "device", a.Device, "listed", when(a.listed(), "yes"), "own", when(a.Device != "" || a.listed(), "yes"))...)
	case a.Source == verdict.SideDivided:
		divide := func(s side) []advice.Action {
			return m.Filler(ipam.Case{Pool: &ipam.Pool{Config: s.Config}}, "common", common).Steps("divide")
		}
		t.add("overlap/divided", append(values, "divides", when(m.Has("divide"), "yes"), "dividea", divide(a), "divideb", divide(b))...)
	case f.Kind == verdict.FindingRangesOverlap:
		t.add("overlap/networks", append(values, "shared", when(a.Device == b.Device, a.Device))...)
	default:
		gets := "It gets a free range."
		objects := a.Source == verdict.SideNodeObject && b.Source == verdict.SideNodeObject
		var reassigned, check []advice.Action
		switch {
		case objects && len(b.ranges("reassign")) > 0:
			reassigned = a.reassigned(b)
		case objects:
			check, gets = b.ranges("check"), b.rangesText("renewed")
		}
		t.add("overlap/nodes", append(values, "usual", when(!objects, "yes"), "reassigns", when(reassigned != nil, "yes"), "reassigned", reassigned,
			"objects", when(check != nil, "yes"), "check", check, "reregistered", b.reregistered(gets))...)
	}
}

// subnets describes a node with overlapping subnets on two links, both of which have an owner of the address.
func (t *findingBuilder) subnets() {
	in, out := side(t.f.Overlap.Sides[0]), side(t.f.Overlap.Sides[1])
	var fix []advice.Action
	if engine := engineOf(in.Device); engine != "" {
		fix = scope{"node", in.Node, "device", in.Device}.steps("answered/" + engine)
	}
	t.add("overlap/subnets", "a", in.Node, "address", t.f.Address, "in", in.Device, "out", out.Device, "insubnet", in.Prefixes[0], "outsubnet", out.Prefixes[0],
		"inside", t.alike.naming(placed)(&t.f.Owners[0]), "outside", t.alike.naming(placed)(&t.f.Owners[1]), "cni", when(fix == nil, "yes"), "fix", fix)
}

// reregistered returns the steps that delete a node and register it again; gets says which range
// the node then gets.
func (s side) reregistered(gets string) []advice.Action {
	name := plainName(s.Node)
	return scope{"node", s.Node, "knode", name, "manifest", name + ".yaml", "gets", gets}.steps("reregister")
}

// reassigned returns the steps after which the IPAM has assigned another range to one of two nodes. It
// is not known in advance to which of them.
func (s side) reassigned(other side) []advice.Action {
	a, b := scope{"knode", plainName(s.Node)}, scope{"knode", plainName(other.Node)}
	return scope{
		"a", s.Node, "b", other.Node, "common", cmp.Or(s.common(other), "the old range"), "within", s.within(other), "bwithin", other.within(s),
		"before", slices.Concat(s.ranges("check"), a.steps("cordon"), b.steps("cordon")), "reassign", s.ranges("reassign"),
		"after", append(a.steps("uncordon"), b.steps("uncordon")...),
	}.steps("overlap/reassign")
}

// evidence describes the addresses that one side assigns, and the source of that information.
func (s side) evidence(kind string) string {
	names := each(s.Prefixes, func(p *netip.Prefix) string { return p.String() })
	if len(names) == 0 {
		names = each(s.Ranges, rangeText)
	}
	ranges := when(len(names) > 0, list(names))
	if s.Source == verdict.SideDivided {
		return Text("overlap/evidence/divided", "pool", s.Pool, "ranges", ranges, "config", s.Config)
	}
	if s.Source == verdict.SideHeld {
		return Text("overlap/evidence/held", "node", s.Node, "address", s.Range.First, "device", s.Device, "network", s.Network, "listed", when(s.listed(), "yes"))
	}
	who := "Node " + s.Node
	if kind == verdict.FindingRangesOverlap {
		who = "Network " + s.Network
	}
	return Text("overlap/evidence", "who", who, "ranges", cmp.Or(ranges, "addresses"), "from", s.from(kind), "device", after(", on ", s.Device), "config", after(", configured in ", s.Config))
}

// ranges returns steps about the ranges that the IPAM of the side assigns to nodes, and rangesText is the same for texts.
func (s side) ranges(key string) []advice.Action {
	return registry.Of(s.IPAM).Steps(s.rangesKey(key), ipam.Case{})
}

func (s side) rangesText(key string) string {
	return registry.Of(s.IPAM).Text(s.rangesKey(key), ipam.Case{})
}

func (s side) rangesKey(key string) string {
	if s.Grows {
		return "growing/" + key
	}
	return "ranges/" + key
}

// from names the source of the range.
func (s side) from(kind string) string {
	switch s.Source {
	case verdict.SideNodeSpec:
		return "Node.spec.podCIDRs"
	case verdict.SideNodeObject:
		return s.rangesText("field")
	case verdict.SideAddress:
		return "the address of " + s.Device
	}
	if kind == verdict.FindingPodCIDROverlap {
		return "the range configured for " + s.IPAM + " on that node"
	}
	return "the range configured for " + s.IPAM
}

// common lists the addresses that both sides assign; empty if none are known.
func (s side) common(other side) string {
	var names []string
	for _, p := range s.Prefixes {
		for _, q := range other.Prefixes {
			if p.Overlaps(q) {
				if p.Bits() < q.Bits() {
					p = q
				}
				names = append(names, p.Masked().String())
			}
		}
	}
	if len(names) == 0 {
		for _, r := range s.shared(other) {
			names = append(names, r.String())
		}
	}
	slices.Sort(names)
	names = slices.Compact(names)
	return when(len(names) > 0, list(names))
}

// shared returns the ranges that both sides assign from, including prefixes.
func (s side) shared(other side) (both []ipam.Range) {
	ranges := func(s side) []ipam.Range {
		all := slices.Clone(s.Ranges)
		for _, p := range s.Prefixes {
			all = append(all, ipam.RangeOf(p))
		}
		return all
	}
	for _, r := range ranges(s) {
		for _, q := range ranges(other) {
			if r.Overlaps(q) {
				both = append(both, r.Common(q))
			}
		}
	}
	return both
}

// within returns a prefix that contains the first range that both sides assign from.
func (s side) within(other side) string {
	if both := s.shared(other); len(both) > 0 {
		return both[0].Prefix().String()
	}
	return "-o wide"
}
