package explain

import (
	"fmt"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// againstWords has the words for each kind of fact that rules a cause out.
var againstWords = map[verdict.FactKind]func(*wording, verdict.Fact) string{
	verdict.NotPodsThere: func(w *wording, f verdict.Fact) string {
		if len(f.Owners) == 1 {
			return fmt.Sprintf("the Kubernetes API has %s, which has not ended", w.name(f.Owners[0]))
		}
		return fmt.Sprintf("the Kubernetes API has %s, and none of them has ended", list(w.names(f.Owners)))
	},
	verdict.NotOneLink: func(w *wording, _ verdict.Fact) string {
		return w.all() + " are on no link in common that is known: an address cannot move from one to the other"
	},
	verdict.NotGuest: func(w *wording, f verdict.Fact) string { return guestText(w.owner(f.Owners[0])) },
	verdict.NotVirtualRouter: func(w *wording, f verdict.Fact) string {
		return w.mac(f.Owners[0]) + " is a virtual router's hardware address (VRRP or CARP): whoever is the master has it"
	},
	verdict.NotResponder: func(w *wording, f verdict.Fact) string {
		return fmt.Sprintf("%s is the hardware address with which %s answers for others", w.mac(f.Owners[0]), f.Text)
	},
	verdict.NotUncoveredHolder: func(w *wording, f verdict.Fact) string {
		return fmt.Sprintf("%s has it for %s, where no agent is heard from: the device with MAC %s may be that", poolTitle(f.Pool), holderName(f.Records[0].Holder), w.mac(f.Owners[0]))
	},
	verdict.NotTunnel: func(_ *wording, f verdict.Fact) string {
		return fmt.Sprintf("%s of node %s is no tunnel device", f.Device, f.Nodes[0])
	},
	verdict.NotByHandDevice: func(_ *wording, f verdict.Fact) string {
		return f.Device + " has its address from what made it: docker, podman or libvirt"
	},
	verdict.NotGiverKnown: func(w *wording, f verdict.Fact) string {
		return fmt.Sprintf("who gave it to %s is not known: no CNI result and no container runtime tells, and no IPAM has it for the other one alone", w.name(f.Owners[0]))
	},
	verdict.NotByHand: func(w *wording, f verdict.Fact) string {
		return fmt.Sprintf("it was given to %s: nobody set it by hand", list(w.names(f.Owners)))
	},
	verdict.NotCalico: func(_ *wording, f verdict.Fact) string {
		return fmt.Sprintf("/var/lib/calico/nodename on node %s says %s, but no IPPool of Calico has the address", f.Nodes[0], f.Text)
	},
	verdict.NotElsewhere: func(_ *wording, f verdict.Fact) string {
		s := fmt.Sprintf("as far as is remembered, %s never had it for another node or pod than its holder's", poolTitle(f.Pool))
		if len(f.Nodes) > 0 {
			s += "; /var/lib/calico/nodename is right on " + list(f.Nodes)
		}
		return s
	},
	verdict.NotByNode: func(_ *wording, f verdict.Fact) string {
		return poolTitle(f.Pool) + " gives addresses for the whole cluster, and not by node"
	},
	verdict.NotInPodCIDRs: func(_ *wording, f verdict.Fact) string {
		if len(f.Nodes) == 0 {
			return "it is in the range of pods of another node than these"
		}
		return fmt.Sprintf("it is in the range of pods of node %s only, and not of node %s", f.Nodes[0], f.Nodes[1])
	},
	verdict.NotRangeOf: func(w *wording, f verdict.Fact) string {
		return fmt.Sprintf("no range of node %s is known that %s has it from", w.node(f.Owners[0]), w.name(f.Owners[0]))
	},
	verdict.NotRangesOf: func(_ *wording, f verdict.Fact) string {
		return fmt.Sprintf("no ranges are known that nodes %s and %s give addresses of pods from", f.Nodes[0], f.Nodes[1])
	},
	verdict.NotGivenToBoth: func(*wording, verdict.Fact) string {
		return "no CNI network is known to have given it to both"
	},
	verdict.NotTwoNetworks: func(_ *wording, f verdict.Fact) string { return "network " + f.Network + " gave it to both" },
	verdict.NotTwoBridges:  func(_ *wording, f verdict.Fact) string { return "both are on bridge " + f.Device },
	verdict.NotTwoPools: func(_ *wording, f verdict.Fact) string {
		return poolTitle(f.Pool) + " gives the addresses of both networks"
	},
	verdict.NotGivenTwice: func(w *wording, f verdict.Fact) string {
		return fmt.Sprintf("%s gave it to %s alone, as far as is known", poolTitle(f.Pool), w.name(f.Owners[0]))
	},
	verdict.NotRead: func(_ *wording, f verdict.Fact) string {
		return fmt.Sprintf("the records of %s are still being read", poolTitle(f.Pool))
	},
	verdict.NotReadable: func(_ *wording, f verdict.Fact) string {
		return fmt.Sprintf("the records of %s cannot be read now%s", poolTitle(f.Pool), after(": ", f.Text))
	},
	verdict.NotLost: func(w *wording, f verdict.Fact) string {
		return fmt.Sprintf("%s has it for %s", poolTitle(f.Pool), list(w.names(f.Owners)))
	},
	verdict.NotYetFree: func(w *wording, f verdict.Fact) string {
		return w.name(f.Owners[0]) + " is being deleted: plugins free an address before they take it away"
	},
	verdict.NotRecorded: func(_ *wording, f verdict.Fact) string {
		because := ""
		if f.Network != "" {
			because = fmt.Sprintf("both were given it by one network (%s), as when IPAM forgets; but ", f.Network)
		}
		return because + "no IPAM records of " + nodesText(f.Nodes) + " are known that have it"
	},
}

// against returns the words for a fact that rules a cause out.
func (w *wording) against(f verdict.Fact) string {
	if words := againstWords[f.Kind]; words != nil {
		return words(w, f)
	}
	return ""
}

// Exclusion says why an owner is not compared with others, as a clause; it is empty for an
// owner that is. All are the owners of the address.
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
		return "it is declared as shared on purpose (" + e.Reason + ")"
	case verdict.RuleLoopbackOrDummy:
		return "the address is on a loopback or dummy device, where service and anycast addresses stand on purpose"
	case verdict.RuleReachableVia:
		return proxyText(e)
	case verdict.RulePrivateLink:
		return "the address is on a link inside this network namespace that does not lead to the node"
	case verdict.RuleStale:
		return "known only from the wire, and not seen there for " + w.policy.StaleAfter.String()
	case verdict.RuleMACCloned:
		return "its frames carry " + e.MAC.String() + ", the hardware address of another owner on the link (finding " + verdict.FindingMACCloned + ")"
	case verdict.RuleWeakSource:
		return "known only from frames whose Ethernet source is not the hardware address they claim it for, or which no host can have"
	case verdict.RuleAddressSpoofed:
		return fmt.Sprintf("its frames on %s claim the address, but its kernel does not have it on an interface that leads there, and that of %s does (finding %s)",
			e.Port, list(w.names(e.Victims)), verdict.FindingAddressSpoofed)
	case verdict.RuleHandedOver:
		return fmt.Sprintf("its kernel does not have the address, and others claimed it since, but it did not for %s: it has handed it over", e.Quiet)
	}
	return "known only from a neighbour table, which shows what others believe"
}

// proxyText says how an owner is known to answer for the addresses of others.
func proxyText(e *verdict.Exclusion) string {
	const via = "the address is reachable via it"
	switch e.Proxy {
	case verdict.ByPlugin:
		return fmt.Sprintf("%s is the hardware address with which %s answers for others: %s", e.MAC, e.MAC.Responder(), via)
	case verdict.ByNoOverride:
		return "it advertises the address without the Override flag, as a proxy does (NDP proxy): " + via
	case verdict.ByManyAddresses:
		return fmt.Sprintf("it answers for %d addresses or more, and never announced or used them: %s (a router with proxy ARP or NDP)", verdict.ManyAnswers, via)
	case verdict.ByOwnMAC:
		return "it answers for the address with a hardware address of its own, but its kernel does not have it: " + via + " (proxy ARP or NDP)"
	}
	return "it answers for what several owners have, and never announced or used any of it: " + via + " (a router with proxy ARP or NDP)"
}
