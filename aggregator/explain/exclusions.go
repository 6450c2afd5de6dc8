package explain

import (
	"fmt"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam/registry"
)

// againstWords formats each kind of fact that rules a cause out.
var againstWords = map[verdict.FactKind]func(*wording, verdict.Fact) string{
	verdict.NotPodsThere: func(w *wording, f verdict.Fact) string {
		if len(f.Owners) == 1 {
			return fmt.Sprintf("%s exists in the Kubernetes API and has not ended", w.name(f.Owners[0]))
		}
		return fmt.Sprintf("%s exist in the Kubernetes API, and none of them has ended", list(w.names(f.Owners)))
	},
	verdict.NotOneLink: func(w *wording, _ verdict.Fact) string {
		return w.all() + " have no known link in common, so an address cannot move between them"
	},
	verdict.NotGuest: func(w *wording, f verdict.Fact) string { return guestText(w.owner(f.Owners[0])) },
	verdict.NotVirtualRouter: func(w *wording, f verdict.Fact) string {
		return w.mac(f.Owners[0]) + " is the hardware address of a virtual router (VRRP or CARP), which the current master uses"
	},
	verdict.NotResponder: func(w *wording, f verdict.Fact) string {
		return fmt.Sprintf("%s is the hardware address with which %s answers for other hosts", w.mac(f.Owners[0]), f.Text)
	},
	verdict.NotUncoveredHolder: func(w *wording, f verdict.Fact) string {
		return fmt.Sprintf("%s has allocated the address to %s, where no agent is connected: the device with MAC %s may be that holder", poolTitle(f.Pool), holderName(f.Records[0].Holder), w.mac(f.Owners[0]))
	},
	verdict.NotTunnel: func(_ *wording, f verdict.Fact) string {
		return fmt.Sprintf("%s of node %s is not a tunnel device", f.Device, f.Nodes[0])
	},
	verdict.NotByHandDevice: func(_ *wording, f verdict.Fact) string {
		return f.Device + " was created by docker, podman or libvirt, which also set its address"
	},
	verdict.NotGiverKnown: func(w *wording, f verdict.Fact) string {
		return fmt.Sprintf("the source of the address of %s is unknown: no CNI result or container runtime reports that it assigned the address, and no IPAM has allocated the address only to the other owner", w.name(f.Owners[0]))
	},
	verdict.NotByHand: func(w *wording, f verdict.Fact) string {
		return fmt.Sprintf("the address was assigned to %s and not set by hand", list(w.names(f.Owners)))
	},
	verdict.NotNodeNamed: func(_ *wording, f verdict.Fact) string {
		return fmt.Sprintf("%s, but the address is in no IPPool of %s", f.NodeName.On(f.Nodes[0]), registry.NodeNamed().Title)
	},
	verdict.NotElsewhere: func(_ *wording, f verdict.Fact) string {
		s := fmt.Sprintf("as far as ipwitness remembers, %s has never allocated the address to a node or pod other than the holder's", poolTitle(f.Pool))
		if len(f.Nodes) > 0 {
			s += "; the node name that " + registry.NodeNamed().Title + " uses is correct on " + list(f.Nodes)
		}
		return s
	},
	verdict.NotByNode: func(_ *wording, f verdict.Fact) string {
		return poolTitle(f.Pool) + " allocates addresses for the whole cluster, not per node"
	},
	verdict.NotInPodCIDRs: func(_ *wording, f verdict.Fact) string {
		if len(f.Nodes) == 0 {
			return "the address is in the pod CIDR of a different node"
		}
		return fmt.Sprintf("the address is only in the pod CIDR of node %s, not in the pod CIDR of node %s", f.Nodes[0], f.Nodes[1])
	},
	verdict.NotRangeOf: func(w *wording, f verdict.Fact) string {
		return fmt.Sprintf("no range of node %s is known from which %s could have the address", w.node(f.Owners[0]), w.name(f.Owners[0]))
	},
	verdict.NotRangesOf: func(_ *wording, f verdict.Fact) string {
		return fmt.Sprintf("the ranges from which nodes %s and %s assign pod addresses are unknown", f.Nodes[0], f.Nodes[1])
	},
	verdict.NotGivenToBoth: func(*wording, verdict.Fact) string {
		return "no CNI network is known to have assigned the address to both"
	},
	verdict.NotTwoNetworks: func(_ *wording, f verdict.Fact) string {
		return "network " + f.Network + " assigned the address to both"
	},
	verdict.NotTwoBridges: func(_ *wording, f verdict.Fact) string { return "both are on bridge " + f.Device },
	verdict.NotTwoPools: func(_ *wording, f verdict.Fact) string {
		return poolTitle(f.Pool) + " allocates the addresses of both networks"
	},
	verdict.NotGivenTwice: func(w *wording, f verdict.Fact) string {
		return fmt.Sprintf("%s allocated the address only to %s, as far as is known", poolTitle(f.Pool), w.name(f.Owners[0]))
	},
	verdict.NotRead: func(_ *wording, f verdict.Fact) string {
		return fmt.Sprintf("the records of %s are still being read", poolTitle(f.Pool))
	},
	verdict.NotReadable: func(_ *wording, f verdict.Fact) string {
		return fmt.Sprintf("the records of %s are currently unreadable%s", poolTitle(f.Pool), after(": ", f.Text))
	},
	verdict.NotLost: func(w *wording, f verdict.Fact) string {
		return fmt.Sprintf("%s has allocated the address to %s", poolTitle(f.Pool), list(w.names(f.Owners)))
	},
	verdict.NotYetFree: func(w *wording, f verdict.Fact) string {
		return w.name(f.Owners[0]) + " is being deleted, and plugins free an address before they remove it from the interface"
	},
	verdict.NotRecorded: func(_ *wording, f verdict.Fact) string {
		because := ""
		if f.Network != "" {
			because = fmt.Sprintf("one network (%s) assigned the address to both, which suggests lost IPAM records, but ", f.Network)
		}
		return because + "no known IPAM records of " + nodesText(f.Nodes) + " contain the address"
	},
}

// against returns the text of a fact that rules a cause out.
func (w *wording) against(f verdict.Fact) string {
	if words := againstWords[f.Kind]; words != nil {
		return words(w, f)
	}
	return ""
}

// Exclusion returns the reason, as a clause, why an owner is not compared with others. It is empty
// for an owner that is compared. The slice all contains the owners of the address.
func Exclusion(p *verdict.Policy, o *verdict.Owner, all []verdict.Owner) string {
	w := wording{policy: p, owners: all}
	return w.exclusion(o.Excluded)
}

// exclusion says why an owner is not compared.
func (w *wording) exclusion(e *verdict.Exclusion) string {
	if e == nil {
		return ""
	}
	switch e.Rule {
	case verdict.RuleDeclaredShared:
		return "it is declared as intentionally shared (" + e.Reason + ")"
	case verdict.RuleLoopbackOrDummy:
		return "the address is on a loopback or dummy device, where service and anycast addresses are expected"
	case verdict.RuleReachableVia:
		return proxyText(e)
	case verdict.RulePrivateLink:
		return "the address is on a link inside this network namespace that does not lead to the node"
	case verdict.RuleStale:
		return "it is known only from the wire and has not been seen there for " + w.policy.StaleAfter.String()
	case verdict.RuleMACCloned:
		return "its frames carry " + e.MAC.String() + ", the hardware address of another owner on the link (finding " + verdict.FindingMACCloned + ")"
	case verdict.RuleWeakSource:
		return "it is known only from frames that claim the address for a hardware address other than their Ethernet source, or for one that no host can have"
	case verdict.RuleAddressSpoofed:
		return fmt.Sprintf("its frames on %s claim the address, but its kernel does not have the address on an interface that leads there, while the kernel of %s does (finding %s)",
			e.Port, list(w.names(e.Victims)), verdict.FindingAddressSpoofed)
	case verdict.RuleHandedOver:
		return fmt.Sprintf("its kernel does not have the address, and it has not claimed the address for %s while others have: it has handed the address over", e.Quiet)
	}
	return "it is known only from a neighbour table, which does not show what the owner itself has"
}

// proxyText says how it is known that an owner answers for the addresses of others.
func proxyText(e *verdict.Exclusion) string {
	const via = "the address is reachable via it"
	switch e.Proxy {
	case verdict.ByPlugin:
		return fmt.Sprintf("%s is the hardware address with which %s answers for other hosts: %s", e.MAC, e.MAC.Responder(), via)
	case verdict.ByNoOverride:
		return "it advertises the address without the Override flag, as an NDP proxy does: " + via
	case verdict.ByManyAddresses:
		return fmt.Sprintf("it answers for at least %d addresses but has never announced or used them: %s (a router with proxy ARP or NDP)", verdict.ManyAnswers, via)
	case verdict.ByOwnMAC:
		return "it answers for the address with its own hardware address, but its kernel does not have the address: " + via + " (proxy ARP or NDP)"
	}
	return "it answers for addresses of several owners but has never announced or used any of them: " + via + " (a router with proxy ARP or NDP)"
}
