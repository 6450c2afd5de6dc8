package model_test

import (
	"cmp"
	"net/netip"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/audit"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// lateFindings are the kinds of findings that the aggregator computes some time after a change, and
// not at every change. They are compared only after a sufficient time without changes.
var lateFindings = []string{
	verdict.FindingIPAMStateLost, verdict.FindingIPAMUnreadable, verdict.FindingPoolExhaustion, verdict.FindingPodCIDROverlap, verdict.FindingRangesOverlap,
}

// lateAfter is the longest such delay.
const lateAfter = 301 * time.Millisecond

// nearlyFull is the used share of a pool from which exhaustion is reported. lostWithin is the
// longest time between the record of a lost allocation and the assignment of its address.
const (
	nearlyFull = 0.9
	lostWithin = time.Minute
)

// namesakes returns the existing nodes with a name, if there are several. A connected node
// certainly exists if it reported after the last of them connected; otherwise it is checked first.
func (r *reference) namesakes(name string) (found []*node) {
	var live []*node
	var newest verdict.Stamp
	for _, n := range r.nodes {
		if n.name == name && n.live() {
			live = append(live, n)
			newest = max(newest, n.connected)
		}
	}
	for _, n := range live {
		s := n.session
		switch {
		case n.sure, !s.agent.mute.Load(), s.heard >= newest:
			found = append(found, n)
		default:
			s.asked = min(s.asked, r.now)
		}
	}
	for _, n := range live {
		n.sure = len(found) > 1 && slices.Contains(found, n)
	}
	if len(found) < 2 {
		return nil
	}
	return found
}

// publish records since when findings have been reported.
func (r *reference) publish() {
	for _, n := range r.nodes {
		for _, ns := range n.namespaces {
			if !n.rec.Unheard { // findings of a disconnected node are kept
				ns.lacks = r.lacks(n, ns)
			}
		}
	}
	found := map[string]bool{}
	for _, f := range r.findings() {
		found[f.GetId()] = true
		if r.since[f.GetId()] == 0 {
			r.since[f.GetId()] = r.now
		}
	}
	for id := range r.since {
		if !found[id] {
			delete(r.since, id)
		}
	}
}

// findings returns all findings except the late ones.
func (r *reference) findings() (list []*pb.Finding) {
	for _, a := range r.addresses() {
		for i := range r.of(a).found {
			if f := &r.of(a).found[i]; !f.Waiting {
				list = append(list, r.findingProto(f))
			}
		}
	}
	list = append(list, r.clones()...)
	for _, n := range r.nodes {
		for _, ns := range n.namespaces {
			for i := range ns.lacks {
				list = append(list, r.findingProto(&ns.lacks[i]))
			}
		}
		if same := r.namesakes(n.name); same != nil && same[0] == n {
			f := &pb.Finding{
				Id: verdict.FindingID(r.policy.Cluster, verdict.FindingDuplicateNodeName, n.name), Kind: verdict.FindingDuplicateNodeName,
				Severity: pb.Finding_WARNING,
			}
			for _, other := range same {
				f.Nodes = append(f.Nodes, other.rec.Name)
			}
			slices.Sort(f.GetNodes())
			list = append(list, f)
		}
	}
	return list
}

// clones returns the findings about MACs that enter by ports of namespaces to which they do not
// belong. There is one finding for each MAC, with all addresses claimed by it.
func (r *reference) clones() (list []*pb.Finding) {
	for _, a := range r.addresses() {
		for i := range r.of(a).clones {
			f := audit.Clone(&r.policy, &r.of(a).clones[i])
			at := slices.IndexFunc(list, func(other *pb.Finding) bool { return other.GetId() == f.ID })
			if at < 0 {
				at = len(list)
				list = append(list, r.findingProto(&f))
			}
			list[at].Addresses = append(list[at].Addresses, a.String())
		}
	}
	return list
}

// lacks returns the findings about intended addresses that a namespace does not have.
func (r *reference) lacks(n *node, ns *namespace) (list []verdict.Finding) {
	var inside *iface
	for _, i := range n.interfaces {
		local := func(i *iface) int {
			if i.rec.Attachment == verdict.Local {
				return 1
			}
			return 0
		}
		if i.namespace == ns && (inside == nil || cmp.Or(local(i)-local(inside), cmp.Compare(i.rec.Index, inside.rec.Index)) < 0) {
			inside = i
		}
	}
	if inside == nil || ns.rec.Record == verdict.OwnRecord || ns.rec.Who.Workload().VirtualMachine != "" {
		return nil
	}
	rec := inside.rec
	rec.Namespace = ns.rec
	o := verdict.Owner{ID: ns.rec.ID, Node: n.rec, Namespace: ns.rec, Interface: &rec, MAC: rec.MAC, State: verdict.Live}
	for _, missing := range r.lacking(&o) {
		a := netip.MustParseAddr(missing.GetAddress())
		list = append(list, verdict.Finding{
			ID:   verdict.FindingID(r.policy.Cluster, verdict.FindingIntendedNotObserved, ns.rec.ID+" "+a.String()),
			Kind: verdict.FindingIntendedNotObserved, Severity: verdict.Warning, Address: a, Owners: []verdict.Owner{o},
		})
	}
	return list
}

// late returns the late findings.
func (r *reference) late() (list []*pb.Finding) {
	var sides []side
	for _, n := range r.nodes {
		for i, p := range n.pools {
			list = append(list, r.poolFindings(n, p)...)
			for _, other := range n.pools[i+1:] {
				list = append(list, r.compareNetworks(n, p, other)...)
			}
		}
		if !n.rec.TimedOut {
			sides = append(sides, n.sides(r.world())...)
		}
	}
	for i := range sides {
		if p := sides[i].pool; p != nil {
			sides[i].unused = r.poolProto(p.rec).GetAllocated() == 0 && p.rec.Lost == 0 && p.rec.State != ipam.Unreadable
		}
	}
	return append(list, r.compareSides(slices.DeleteFunc(sides, r.allocatedOnLAN))...)
}

// allocatedOnLAN reports whether a node has an address from a pool of its LAN.
func (r *reference) allocatedOnLAN(s side) bool {
	m := r.memory[s.First]
	return s.held && s.lan != nil && m != nil && slices.ContainsFunc(m.allocations, func(al *allocation) bool {
		p := al.pool
		return p.node.lan(p.rec.Device) == s.lan && !p.rec.Routed && p.rec.Config != "" && p.rec.Contains(s.First)
	})
}

// poolFindings returns the findings about a pool itself.
func (r *reference) poolFindings(n *node, p *pool) (list []*pb.Finding) {
	add := func(kind string, severity pb.Finding_Severity, addresses []string) {
		list = append(list, &pb.Finding{
			Id: verdict.FindingID(r.policy.Cluster, kind, p.rec.Subject()), Kind: kind, Severity: severity, Pool: r.poolProto(p.rec),
			Nodes: []string{n.rec.Name}, Addresses: addresses,
		})
	}
	var risky []string
	lost := false
	for _, a := range r.addresses() {
		m := r.of(a)
		if !slices.ContainsFunc(m.found, func(f verdict.Finding) bool {
			return f.Kind == verdict.FindingInUseUnallocated && f.Pool == p.rec && !f.Waiting
		}) {
			continue
		}
		risky = append(risky, a.String())
		for i := range m.owners {
			o := &m.owners[i]
			if !o.Has() || o.Node != n.rec || o.Kind() == verdict.Host {
				continue // the pool has not allocated it
			}
			outlived := p.rec.LostAt != 0 && (p.rec.State == ipam.Missing || cmp.Or(o.AssignedAt(), o.FirstSeen()) <= p.rec.LostAt.Add(lostWithin))
			of := o.Networks()
			never := p.rec.State == ipam.Missing && (len(of) == 0 || slices.Contains(of, p.rec.Network))
			lost = lost || outlived || never
		}
	}
	if lost {
		add(verdict.FindingIPAMStateLost, pb.Finding_CRITICAL, risky)
	}
	if p.rec.Problem != "" && p.rec.State != ipam.Missing {
		add(verdict.FindingIPAMUnreadable, pb.Finding_WARNING, nil)
	}
	if use := r.poolProto(p.rec); use.GetSize() > 0 && float64(use.GetAllocated())/float64(use.GetSize()) >= nearlyFull {
		add(verdict.FindingPoolExhaustion, pb.Finding_WARNING, nil)
	}
	return list
}

// compareNetworks returns findings about addresses that two networks of a node share.
func (r *reference) compareNetworks(n *node, a, b *pool) []*pb.Finding {
	vrf := func(device string) string {
		for _, i := range n.interfaces {
			if i.namespace.rec.Record == verdict.OwnRecord && device != "" && i.rec.Name == device {
				return i.rec.VRF
			}
		}
		return ""
	}
	if !a.rec.Competes(&b.rec.Pool) || vrf(a.rec.Device) != vrf(b.rec.Device) {
		return nil
	}
	if b.rec.Network < a.rec.Network {
		a, b = b, a
	}
	ra, rb := a.rec.Overlap(&b.rec.Pool)
	if r.policy.DeclaresShared(ra.Common(rb)) {
		return nil
	}
	f := &pb.Finding{
		Id:   verdict.FindingID(r.policy.Cluster, verdict.FindingRangesOverlap, n.rec.Name+" "+a.rec.Network+" "+b.rec.Network),
		Kind: verdict.FindingRangesOverlap, Severity: pb.Finding_WARNING, Nodes: []string{n.rec.Name}, Address: ra.Common(rb).String(),
	}
	if r.poolProto(a.rec).GetAllocated() == 0 || r.poolProto(b.rec).GetAllocated() == 0 {
		f.Severity = pb.Finding_INFO
	}
	return []*pb.Finding{f}
}

// A side is a range from which a node allocates the addresses of pods.
type side struct {
	node *node
	ipam.Range
	from         string
	held, unused bool
	// lan is the domain on which the addresses are, by device; nil if they are routed.
	lan    *domain
	device string
	pool   *pool // on a LAN
}

// sides returns the ranges from which a node allocates the addresses of pods.
func (n *node) sides(w *world) (list []side) {
	byCNI := func(c *claim) bool {
		return c.Kind == verdict.Assigned && c.Network != "" && c.port.rec.Name == verdict.FirstInterface &&
			c.port.namespace.rec.Record != verdict.OwnRecord && c.port.namespace.rec.Who.Kind() == verdict.Pod
	}
	for _, p := range n.pools {
		if used := slices.ContainsFunc(n.claims, func(c *claim) bool { return byCNI(c) && c.Network == p.rec.Network }); p.rec.Routed && (used || n.unusedPool(byCNI) == p) {
			for _, g := range p.rec.Ranges {
				list = append(list, side{node: n, Range: g, from: "the configured ranges of host-local there", unused: !used})
			}
		}
	}
	podsBehind := func(record uint32) bool {
		return slices.ContainsFunc(n.claims, func(c *claim) bool {
			return byCNI(c) && c.port.namespace.rec.Record == record && c.port.rec.Attachment == verdict.Peer
		})
	}
	widestFirst := func(a, b verdict.Subnet) int { return a.Prefix.Bits() - b.Prefix.Bits() }
	for _, sub := range slices.SortedFunc(slices.Values(n.subnets(w)), widestFirst) {
		i, covered := sub.Interface, ipam.RangeOf(sub.Prefix)
		behind := i.Peer != 0 && podsBehind(i.Peer)
		if i.Peer == 0 && i.Kind == "bridge" && i.Link != nil {
			behind = slices.ContainsFunc(n.interfaces, func(port *iface) bool {
				return port.namespace.rec.Record == verdict.OwnRecord && port.link != nil && port.link.name == i.Link.Name && port.rec.Peer != 0 && podsBehind(port.rec.Peer)
			})
		}
		gateway := slices.ContainsFunc(n.pools, func(p *pool) bool { return slices.Contains(p.rec.Gateways, sub.Prefix.Addr()) })
		if sub.LAN || sub.Prefix.Addr().IsLinkLocalUnicast() || gateway || !behind ||
			slices.ContainsFunc(list, func(other side) bool { return other.Overlaps(covered) }) {
			continue
		}
		list = append(list, side{node: n, Range: covered, from: "the address of " + i.Name + " there"})
	}
	outside := func(a netip.Addr) {
		if !slices.ContainsFunc(list, func(s side) bool { return s.Contains(a) }) {
			list = append(list, side{node: n, Range: ipam.Range{First: a, Last: a}, from: "in use", held: true})
		}
	}
	for _, c := range n.claims {
		served := slices.ContainsFunc(n.pools, func(p *pool) bool { return p.rec.Routed && len(p.rec.Ranges) > 0 && p.rec.Network == c.Network })
		if byCNI(c) && served {
			outside(c.addr)
		}
	}
	for _, sub := range n.subnets(w) {
		if i := sub.Interface; (sub.LAN || i.Uplink || i.Kind == "vlan") && !sub.Prefix.Addr().IsLinkLocalUnicast() {
			outside(sub.Prefix.Addr())
		}
	}
	return append(list, n.onLANs(w)...)
}

// onLANs returns the ranges from which a node allocates addresses of LANs, and its own addresses there.
func (n *node) onLANs(w *world) (list []side) {
	for _, p := range n.pools {
		on, ranges := n.lan(p.rec.Device), p.rec.Ranges
		if on == nil || p.rec.Routed || p.rec.Config == "" {
			continue
		}
		for _, a := range p.rec.Gateways {
			ranges = ipam.Without(ranges, ipam.Range{First: a, Last: a})
		}
		for _, g := range ranges {
			list = append(list, side{node: n, Range: g, from: "a range of the LAN", lan: on, device: p.rec.Device, pool: p})
		}
	}
	for _, sub := range n.subnets(w) {
		if a, on := sub.Prefix.Addr(), n.lan(sub.Interface.Name); on != nil && !a.IsLinkLocalUnicast() {
			list = append(list, side{node: n, Range: ipam.Range{First: a, Last: a}, from: "in use", held: true, lan: on, device: sub.Interface.Name})
		}
	}
	return list
}

// lan returns the domain of a device of the node; nil if it is on no LAN.
func (n *node) lan(device string) *domain {
	i := slices.IndexFunc(n.interfaces, func(i *iface) bool {
		return i.namespace.rec.Record == verdict.OwnRecord && i.rec.Name == device && i.link != nil
	})
	if i < 0 || device == "" {
		return nil
	}
	return n.interfaces[i].link.domain[byProof]
}

// unusedPool returns the pool that the first pod of a node will use; nil if the node has pods.
func (n *node) unusedPool(byCNI func(c *claim) bool) (first *pool) {
	if slices.ContainsFunc(n.claims, byCNI) {
		return nil
	}
	for _, p := range n.pools {
		if p.rec.Routed && p.rec.Config != "" && !verdict.MadeByEngine(p.rec.Device) && (first == nil || path.Base(p.rec.Config) < path.Base(first.rec.Config)) {
			first = p
		}
	}
	return first
}

// compareSides returns findings about ranges of different nodes that overlap, where they meet.
func (r *reference) compareSides(all []side) (list []*pb.Finding) {
	byLAN := map[*domain][]side{}
	for _, s := range all {
		byLAN[s.lan] = append(byLAN[s.lan], s)
	}
	for _, some := range byLAN {
		list = append(list, r.compareMeeting(some)...)
	}
	return list
}

func (r *reference) compareMeeting(all []side) (list []*pb.Finding) {
	slices.SortFunc(all, func(a, b side) int {
		return cmp.Or(a.First.Compare(b.First), b.Last.Compare(a.Last), strings.Compare(a.node.rec.Name, b.node.rec.Name), strings.Compare(a.from, b.from), strings.Compare(a.device, b.device))
	})
	same := func(a, b side) bool {
		return a.node == b.node || a.node.rec.Name == b.node.rec.Name || a.held && b.held || a.lan == nil && a.unused && b.unused ||
			a.held && strings.HasPrefix(b.from, "the address") || b.held && strings.HasPrefix(a.from, "the address")
	}
	for len(all) > 0 {
		group, last := 1, all[0].Last
		for group < len(all) && all[group].First.BitLen() == last.BitLen() && all[group].First.Compare(last) <= 0 {
			if all[group].Last.Compare(last) > 0 {
				last = all[group].Last
			}
			group++
		}
		var common *ipam.Range
		var nodes []string
		held, subject, severity := false, "", pb.Finding_WARNING
		for i, b := range all[:group] {
			first := true
			for _, a := range all[:i] {
				if same(a, b) || !a.Overlaps(b.Range) || r.policy.DeclaresShared(a.Common(b.Range)) {
					continue
				}
				if !a.unused || !b.unused {
					severity = pb.Finding_CRITICAL
				}
				if !first {
					continue
				}
				first = false
				if common == nil || held && !a.held && !b.held {
					both := a.Common(b.Range)
					common, held = &both, a.held || b.held
					if subject = both.First.String(); a.lan != nil {
						subject += " " + a.node.rec.Name + "/" + a.device
					}
				}
				nodes = append(nodes, a.node.rec.Name, b.node.rec.Name)
			}
		}
		if common != nil {
			slices.Sort(nodes)
			list = append(list, &pb.Finding{
				Id: verdict.FindingID(r.policy.Cluster, verdict.FindingPodCIDROverlap, subject), Kind: verdict.FindingPodCIDROverlap,
				Severity: severity, Address: common.String(), Nodes: slices.Compact(nodes),
			})
		}
		all = all[group:]
	}
	return list
}
