package explain

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/advice"
	"github.com/ipwitness/ipwitness/ipam/registry"
)

// side is one of two nodes or networks that assign addresses from the same range.
type side verdict.Side

// overlapFinding returns the text of an overlap: pod-cidr-overlap of two nodes, or ranges-overlap of
// two CNI networks of one node.
func overlapFinding(f *verdict.Finding) FindingText {
	kind, a, b := f.Kind, side(f.Overlap.Sides[0]), side(f.Overlap.Sides[1])
	common := a.common(b)
	if common == "" {
		common = "addresses"
	}
	var text FindingText
	for _, s := range []side{a, b} {
		text.Evidence = append(text.Evidence, s.evidence(kind))
	}
	if a.Source == verdict.SideDivided {
		text.Summary = fmt.Sprintf("%s and %s of %s both assign nodes ranges from %s: two nodes may get the same range, and then pods on both get the same address.",
			a.Pool, b.Pool, registry.Of(a.IPAM).Title, common)
		if divide := registry.Of(a.IPAM).DivideOthers; divide != nil {
			text.Remedy = []advice.Action{advice.Say("Decide which of the two should keep %s.", common).Or(
				advice.Either(a.Pool+" should keep it", divide(b.Config, common)...),
				advice.Either(b.Pool+" should keep it", divide(a.Config, common)...),
			)}
		}
		text.Fixes = []advice.Fix{{Manual: true, What: fmt.Sprintf("Give %s or %s a different range: %s is in both.", a.Pool, b.Pool, common)}}
		return text
	}
	if kind == verdict.FindingRangesOverlap {
		text.Summary = fmt.Sprintf("CNI networks %s and %s of node %s both assign %s: pods of one network get addresses that pods of the other network have.",
			a.Network, b.Network, a.Node, common)
		text.Remedy = []advice.Action{advice.Say("Find out which workloads use each of the two networks, and whether the networks are connected: ipwitness owners %s lists the owners of addresses in both ranges.", a.within(b)).Or(
			advice.Either("they are intentionally separate, without a route or bridge between them", advice.Say("Declare this to the aggregator: --shared CIDR=REASON, with a range that contains all of %s.", common)),
			advice.Either("no pod uses network "+a.Network, a.unused()),
			advice.Either("no pod uses network "+b.Network, b.unused()),
			advice.Either("both are used, and network "+a.Network+" should keep the range", b.renumbered()...),
			advice.Either("both are used, and network "+b.Network+" should keep the range", a.renumbered()...),
		)}
		text.Fixes = []advice.Fix{{
			Node: a.Node, Manual: true,
			What: fmt.Sprintf("Give %s or %s a different range: %s is in both (%s; %s).", a.Network, b.Network, common, cmp.Or(a.Config, a.from(kind)), cmp.Or(b.Config, b.from(kind))),
		}}
		return text
	}
	text.Summary = fmt.Sprintf("Nodes %s and %s both assign pods addresses from %s: sooner or later, pods on both nodes get the same address.", a.Node, b.Node, common)
	if n := len(f.Overlap.Nodes); n > 2 {
		text.Summary += fmt.Sprintf(" In total, %d nodes have overlapping ranges.", n)
	}
	rest := advice.Say("Find the pods on node %s that still have an address from the range of node %s, and restart them.", b.Node, a.Node).By("", "ipwitness owners "+a.within(b))
	ranges := b.nodeRanges()
	switch {
	case a.Source == verdict.SideNodeObject && b.Source == verdict.SideNodeObject && len(ranges.Reassign) > 0:
		text.Remedy = a.reassigned(b)
	case a.Source == verdict.SideNodeObject && b.Source == verdict.SideNodeObject:
		text.Remedy = append([]advice.Action{ranges.Check, advice.Cordon(plainName(b.Node))}, b.reregistered(ranges.Renewed)...)
		text.Remedy = append(text.Remedy, rest)
	default:
		text.Remedy = []advice.Action{
			advice.Say("Check which range each node has.").By("", "kubectl get nodes -o custom-columns=NAME:.metadata.name,CIDRS:.spec.podCIDRs"),
			advice.Cordon(plainName(b.Node)),
			advice.Say("Check which range the CNI plugin of each node really uses: on both nodes, run grep -r subnet /etc/cni/net.d").Or(
				advice.Either("Node.spec.podCIDRs of both nodes contain the range", b.reregistered("It gets a free range.")...),
				advice.Either("the CNI configuration of node "+a.Node+" contains the range, and its own Node.spec.podCIDRs is different", a.corrected()...),
				advice.Either("the CNI configuration of node "+b.Node+" contains the range, and its own Node.spec.podCIDRs is different", b.corrected()...),
			),
			advice.Uncordon(plainName(b.Node)), rest,
			advice.Say("Find out why two nodes got the same range: two controller managers with --allocate-node-cidrs, ranges assigned by hand, a node restored from a backup, or a configuration that came with a container runtime or a disk image."),
		}
	}
	text.Fixes = []advice.Fix{{
		Manual: true, Command: "kubectl cordon " + advice.Quote(plainName(b.Node)),
		What: fmt.Sprintf("Start no pods on node %s until its pod CIDR differs from the pod CIDR of node %s: %s is in both.", b.Node, a.Node, common),
	}}
	return text
}

// unused returns the action that removes the configuration of a network.
func (s side) unused() advice.Action {
	return advice.Say("On node %s, remove the configuration of network %s (%s): if there are several, container runtimes use the first one by file name.", s.Node, s.Network, cmp.Or(s.Config, s.from(verdict.FindingRangesOverlap)))
}

// renumbered returns the steps that give a network a different range.
func (s side) renumbered() []advice.Action {
	return []advice.Action{
		advice.Say("Give network %s a different range in its configuration (%s), on every node that has it.", s.Network, cmp.Or(s.Config, s.Network)),
		advice.Say("Restart the pods of network %s on node %s, one after the other: they keep their addresses until then.", s.Network, s.Node),
	}
}

// reregistered returns the steps that delete a node and register it again; gets says which range
// the node then gets.
func (s side) reregistered(gets string) []advice.Action {
	return []advice.Action{
		advice.Say("Node.spec.podCIDRs cannot be changed, so one of the node objects must be recreated. Drain node %s.", s.Node).By("", "kubectl drain --ignore-daemonsets --delete-emptydir-data "+advice.Argument(plainName(s.Node))),
		advice.Say("Delete the node in the API.").By("", "kubectl delete node "+advice.Argument(plainName(s.Node))),
		advice.Say("On node %s, restart the kubelet so that the node registers again. %s", s.Node, gets).By(s.Node, "systemctl restart kubelet"),
	}
}

// corrected returns the steps that correct the CNI configuration of a node.
func (s side) corrected() []advice.Action {
	return []advice.Action{
		advice.Say("On node %s, remove that configuration, or correct its range (%s).", s.Node, cmp.Or(s.Config, "/etc/cni/net.d")),
		advice.Say("Restart the pods of node %s that have addresses from that range, one after the other.", s.Node),
	}
}

// evidence describes the addresses that one side assigns, and the source of that information.
func (s side) evidence(kind string) string {
	who := "Node " + s.Node
	switch {
	case s.Source == verdict.SideDivided:
		return fmt.Sprintf("%s assigns nodes parts of %s, configured in %s.", s.Pool, s.text(), s.Config)
	case kind == verdict.FindingRangesOverlap:
		who = "Network " + s.Network
	}
	fact := who + " assigns " + cmp.Or(s.text(), "addresses")
	fact += " (" + s.from(kind) + ")"
	if s.Device != "" {
		fact += ", on " + s.Device
	}
	if s.Config != "" {
		fact += ", configured in " + s.Config
	}
	return fact + "."
}

// nodeRanges returns how the IPAM of the side assigns ranges to nodes.
func (s side) nodeRanges() ipam.NodeRanges {
	if s.Grows {
		return registry.Of(s.IPAM).GrowingRanges
	}
	return registry.Of(s.IPAM).NodeRanges
}

// reassigned returns the steps after which the IPAM has assigned another range to one of two nodes. It
// is not known in advance to which of them.
func (s side) reassigned(other side) []advice.Action {
	ranges := s.nodeRanges()
	steps := append([]advice.Action{ranges.Check, advice.Cordon(plainName(s.Node)), advice.Cordon(plainName(other.Node))}, ranges.Reassign...)
	return append(steps, advice.Say("Continue according to the result.").Or(
		advice.Either("node "+s.Node+" has another range", s.leftOver(other)),
		advice.Either("node "+other.Node+" has another range", other.leftOver(s)),
	), advice.Uncordon(plainName(s.Node)), advice.Uncordon(plainName(other.Node)))
}

// leftOver returns the action that restarts the pods of a node with addresses from the range that it had
// in common with another node, and has no more.
func (s side) leftOver(other side) advice.Action {
	return advice.Say("Restart the pods on node %s that still have an address from %s, one after the other.", s.Node, cmp.Or(s.common(other), "the old range")).By("", "ipwitness owners "+s.within(other)+" --node "+advice.Argument(s.Node))
}

// from names the source of the range.
func (s side) from(kind string) string {
	switch s.Source {
	case verdict.SideNodeSpec:
		return "Node.spec.podCIDRs"
	case verdict.SideNodeObject:
		return s.nodeRanges().Field
	case verdict.SideAddress:
		return "the address of " + s.Device
	}
	if kind == verdict.FindingPodCIDROverlap {
		return "the range configured for " + s.IPAM + " on that node"
	}
	return "the range configured for " + s.IPAM
}

// text lists the addresses that the side assigns.
func (s side) text() string {
	names := each(s.Prefixes, func(p *netip.Prefix) string { return p.String() })
	if len(names) == 0 {
		names = each(s.Ranges, func(r *ipam.Range) string { return r.String() })
	}
	if len(names) == 0 {
		return ""
	}
	return list(names)
}

// common lists the addresses that both sides assign.
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
		for _, r := range s.ranges() {
			for _, q := range other.ranges() {
				if r.Overlaps(q) {
					names = append(names, r.Common(q).String())
				}
			}
		}
	}
	slices.Sort(names)
	names = slices.Compact(names)
	if len(names) == 0 {
		return ""
	}
	return list(names)
}

// ranges returns the ranges that the side assigns from, including prefixes.
func (s side) ranges() []ipam.Range {
	out := slices.Clone(s.Ranges)
	for _, p := range s.Prefixes {
		out = append(out, ipam.RangeOf(p))
	}
	return out
}

// within returns a prefix that contains the first range that both sides assign from.
func (s side) within(other side) string {
	for _, r := range s.ranges() {
		for _, q := range other.ranges() {
			if r.Overlaps(q) {
				return r.Common(q).Prefix().String()
			}
		}
	}
	return "-o wide"
}
