package explain

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// side is one of two that give addresses of one range.
type side verdict.Side

// tellOverlap puts an overlap into words: pod-cidr-overlap of two nodes, or ranges-overlap of two
// CNI networks of one node.
func tellOverlap(f *verdict.Finding) Told {
	kind, a, b := f.Kind, side(f.Overlap.Sides[0]), side(f.Overlap.Sides[1])
	common := a.common(b)
	if common == "" {
		common = "addresses"
	}
	var told Told
	for _, s := range []side{a, b} {
		told.Evidence = append(told.Evidence, s.evidence(kind))
	}
	if kind == verdict.FindingRangesOverlap {
		told.Summary = fmt.Sprintf("CNI networks %s and %s of node %s both give %s: pods of the one get addresses that pods of the other have.",
			a.Network, b.Network, a.Node, common)
		told.Remedy = []Action{say("See what uses each of the two networks, and whether they meet: ipwitness owners %s lists who has addresses of both.", a.within(b)).or(
			either("they never meet, on purpose: there is no route and no bridge between them", say("Declare it to the aggregator: --shared CIDR=REASON, with a range that has all of %s.", common)),
			either("no pod uses network "+a.Network, a.unused()),
			either("no pod uses network "+b.Network, b.unused()),
			either("both are used, and network "+a.Network+" is to keep the range", b.renumbered()...),
			either("both are used, and network "+b.Network+" is to keep the range", a.renumbered()...),
		)}
		told.Fixes = []Fix{{
			Node: a.Node, Manual: true,
			What: fmt.Sprintf("Give %s or %s another range: %s is in both (%s; %s).", a.Network, b.Network, common, cmp.Or(a.Config, a.from(kind)), cmp.Or(b.Config, b.from(kind))),
		}}
		return told
	}
	told.Summary = fmt.Sprintf("Nodes %s and %s both give pods addresses of %s: sooner or later a pod of the one has the address of a pod of the other.", a.Node, b.Node, common)
	if n := len(f.Overlap.Nodes); n > 2 {
		told.Summary += fmt.Sprintf(" In all, %d nodes have addresses in common.", n)
	}
	see := say("See which range each node has.").by("", "kubectl get nodes -o custom-columns=NAME:.metadata.name,CIDRS:.spec.podCIDRs")
	rest := say("See who on that node still has an address of the other's range, and restart those pods.").by("", "ipwitness owners "+a.within(b))
	if a.Source == verdict.SideCiliumNode && b.Source == verdict.SideCiliumNode {
		see = say("See which range Cilium's operator has given to each node; its log says when.").by("", "kubectl get ciliumnodes.cilium.io -o custom-columns=NAME:.metadata.name,CIDRS:.spec.ipam.podCIDRs")
		told.Remedy = append([]Action{see, cordoning(b.Node)}, b.anew("Its CiliumNode goes with it, and the next one gets a range that is free.")...)
		told.Remedy = append(told.Remedy, rest)
	} else {
		told.Remedy = []Action{
			see, cordoning(b.Node),
			say("See what each node's CNI plugin really uses: on both of them, grep -r subnet /etc/cni/net.d").or(
				either("Node.spec.podCIDRs of both nodes have the range", b.anew("It gets a range that is free.")...),
				either("the CNI configuration of node "+a.Node+" has it written in, and its own Node.spec.podCIDRs is another one", a.corrected()...),
				either("the CNI configuration of node "+b.Node+" has it written in, and its own Node.spec.podCIDRs is another one", b.corrected()...),
			),
			uncordoning(b.Node), rest,
			say("See why two nodes could get one range: two controller managers with --allocate-node-cidrs, ranges assigned by hand, a node restored from a backup, a configuration that a container runtime or an image of a disk brought along."),
		}
	}
	told.Fixes = []Fix{{
		Manual: true, Command: "kubectl cordon " + quote(b.Node),
		What: fmt.Sprintf("Start no pods on node %s until its range of pods is another than that of node %s: %s is in both.", b.Node, a.Node, common),
	}}
	return told
}

// unused returns the action that removes the configuration of a network.
func (s side) unused() Action {
	return say("On node %s, remove the configuration of network %s (%s): of several, container runtimes take the first by file name.", s.Node, s.Network, cmp.Or(s.Config, s.from(verdict.FindingRangesOverlap)))
}

// renumbered returns the steps that give a network another range.
func (s side) renumbered() []Action {
	return []Action{
		say("Give network %s another range in its configuration (%s), on every node that has it.", s.Network, cmp.Or(s.Config, s.Network)),
		say("Restart the pods of network %s on node %s, one after the other: they keep their addresses until then.", s.Network, s.Node),
	}
}

// anew returns the steps that delete a node and register it again. gets says which range it
// then gets.
func (s side) anew(gets string) []Action {
	return []Action{
		say("Node.spec.podCIDRs cannot be changed, so one of the nodes is to be made anew. Move the pods of node %s away.", s.Node).by("", "kubectl drain --ignore-daemonsets --delete-emptydir-data "+argument(s.Node)),
		say("Delete the node in the API.").by("", "kubectl delete node "+argument(s.Node)),
		say("On node %s, have it register again. %s", s.Node, gets).by(s.Node, "systemctl restart kubelet"),
	}
}

// corrected returns the steps that correct the CNI configuration of a node.
func (s side) corrected() []Action {
	return []Action{
		say("On node %s, remove that configuration, or correct its range (%s).", s.Node, cmp.Or(s.Config, "/etc/cni/net.d")),
		say("Restart the pods of node %s that have addresses of it, one after the other.", s.Node),
	}
}

// evidence says what one side gives, and where that is known from.
func (s side) evidence(kind string) string {
	who := "Node " + s.Node
	if kind == verdict.FindingRangesOverlap {
		who = "Network " + s.Network
	}
	gives := s.text()
	if gives != "" {
		gives = " " + gives
	}
	fact := who + " gives" + gives
	fact += " (" + s.from(kind) + ")"
	if s.Device != "" {
		fact += ", on " + s.Device
	}
	if s.Config != "" {
		fact += ", configured in " + s.Config
	}
	return fact + "."
}

// from says what tells the range.
func (s side) from(kind string) string {
	switch s.Source {
	case verdict.SideNodeSpec:
		return "Node.spec.podCIDRs"
	case verdict.SideCiliumNode:
		return "spec.ipam.podCIDRs of its CiliumNode"
	case verdict.SideAddress:
		return "the address of " + s.Device + " there"
	}
	if kind == verdict.FindingPodCIDROverlap {
		return "what " + s.IPAM + " there is told to give"
	}
	return "what " + s.IPAM + " is told to give"
}

// text is what the side gives.
func (s side) text() string {
	names := each(s.Prefixes, func(p *netip.Prefix) string { return p.String() })
	if len(names) == 0 {
		names = each(s.Ranges, func(r *verdict.Range) string { return r.String() })
	}
	if len(names) == 0 {
		return ""
	}
	return list(names)
}

// common is what both sides give.
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

// ranges are what the side gives, prefixes too.
func (s side) ranges() []verdict.Range {
	out := slices.Clone(s.Ranges)
	for _, p := range s.Prefixes {
		out = append(out, verdict.RangeOf(p))
	}
	return out
}

// within is a prefix that has the first range that both sides give.
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
