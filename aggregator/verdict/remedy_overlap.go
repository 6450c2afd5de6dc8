package verdict

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Side is one of two that give addresses of one range.
type Side struct {
	Node, Network string
	// Config is where it is configured, Device the bridge or the like that it serves.
	Config, Device string
	Ranges         []Range
	Prefixes       []netip.Prefix
	// From is where it is known from, in words.
	From string
}

// TellOverlap puts an overlap into words: pod-cidr-overlap of two nodes, or
// ranges-overlap of two CNI networks of one node.
func TellOverlap(kind string, a, b Side) Told {
	common := a.common(b)
	if common == "" {
		common = "addresses"
	}
	var told Told
	for _, s := range []Side{a, b} {
		told.Evidence = append(told.Evidence, s.evidence(kind))
	}
	if kind == FindingRangesOverlap {
		told.Summary = fmt.Sprintf("CNI networks %s and %s of node %s both give %s: pods of the one get addresses that pods of the other have.",
			a.Network, b.Network, a.Node, common)
		told.Advice = []string{
			fmt.Sprintf("Decide which of the two keeps the range. Give the other one another in its configuration (%s or %s), on every node that has it.",
				cmp.Or(a.Config, a.Network), cmp.Or(b.Config, b.Network)),
			fmt.Sprintf("Restart the pods of that network on node %s, one after the other: they keep their addresses until then.", a.Node),
			"If the two never meet (no route and no bridge between them, on purpose), declare it: --shared CIDR=REASON.",
			"If one of the two is a leftover that no pod uses, remove its configuration: of several, container runtimes take the first by file name.",
		}
		told.Fixes = []Fix{{
			Node: a.Node, Manual: true,
			What: fmt.Sprintf("Give %s or %s another range: %s is in both (%s; %s).", a.Network, b.Network, common, cmp.Or(a.Config, a.From), cmp.Or(b.Config, b.From)),
		}}
		return told.readable()
	}
	told.Summary = fmt.Sprintf("Nodes %s and %s both give pods addresses of %s: sooner or later a pod of the one has the address of a pod of the other.", a.Node, b.Node, common)
	told.Advice = []string{
		"See which range each node has, and which its CNI plugin really uses: kubectl get nodes -o custom-columns=NAME:.metadata.name,CIDRS:.spec.podCIDRs; on the node: grep -r subnet /etc/cni/net.d",
		fmt.Sprintf("Start no pods on node %s meanwhile: kubectl cordon %s", b.Node, quote(b.Node)),
		"If a node's CNI configuration has the range written in (a default of the container runtime as 10-containerd-net.conflist, a cloned disk), remove or correct that file, and restart the pods of the node.",
		fmt.Sprintf("If Node.spec.podCIDR itself is the same: it cannot be changed. Make one of the nodes anew: kubectl drain %s --ignore-daemonsets --delete-emptydir-data; kubectl delete node %s; on it: systemctl restart kubelet. It registers again, and gets a range that is free.",
			quote(b.Node), quote(b.Node)),
		"See why two nodes could get one range: two controller managers with --allocate-node-cidrs, ranges assigned by hand, a node restored from a backup.",
		"Restart the pods of that node that still have addresses of the other's range: ipwitness owners " + a.within(b),
	}
	if strings.HasPrefix(a.Config, "ciliumnodes ") && strings.HasPrefix(b.Config, "ciliumnodes ") {
		told.Advice = []string{
			"See which range Cilium's operator has given to each node: kubectl get ciliumnodes.cilium.io -o custom-columns=NAME:.metadata.name,CIDRS:.spec.ipam.podCIDRs; its log says when.",
			told.Advice[1],
			fmt.Sprintf("Make one of the nodes anew: kubectl drain %s --ignore-daemonsets --delete-emptydir-data; kubectl delete node %s; on it: systemctl restart kubelet. Its CiliumNode goes with it, and the next one gets a range that is free.",
				quote(b.Node), quote(b.Node)),
			told.Advice[5],
		}
	}
	told.Fixes = []Fix{{
		Manual: true, Command: "kubectl cordon " + quote(b.Node),
		What: fmt.Sprintf("Start no pods on node %s until its range of pods is another than that of node %s: %s is in both.", b.Node, a.Node, common),
	}}
	return told.readable()
}

// evidence says what one side gives, and where that is known from.
func (s Side) evidence(kind string) string {
	who := "Node " + s.Node
	if kind == FindingRangesOverlap {
		who = "Network " + s.Network
	}
	gives := s.text()
	if gives != "" {
		gives = " " + gives
	}
	fact := who + " gives" + gives
	if s.From != "" {
		fact += " (" + s.From + ")"
	}
	if s.Device != "" {
		fact += ", on " + s.Device
	}
	if s.Config != "" {
		fact += ", configured in " + s.Config
	}
	return fact + "."
}

// text is what the side gives.
func (s Side) text() string {
	names := each(s.Prefixes, func(p *netip.Prefix) string { return p.String() })
	if len(names) == 0 {
		names = each(s.Ranges, func(r *Range) string { return r.String() })
	}
	if len(names) == 0 {
		return ""
	}
	return list(names)
}

// common is what both sides give.
func (s Side) common(other Side) string {
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
func (s Side) ranges() []Range {
	out := slices.Clone(s.Ranges)
	for _, p := range s.Prefixes {
		out = append(out, RangeOf(p))
	}
	return out
}

// within is a prefix that has the first range that both sides give.
func (s Side) within(other Side) string {
	for _, r := range s.ranges() {
		for _, q := range other.ranges() {
			if r.Overlaps(q) {
				return r.Common(q).Prefix().String()
			}
		}
	}
	return "-o wide"
}
