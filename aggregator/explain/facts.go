package explain

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/registry"
)

// factWords formats each kind of fact.
var factWords = map[verdict.FactKind]func(*wording, verdict.Fact) string{
	// Facts from which a cause follows.
	verdict.FactSandboxLeft: (*wording).sandboxLeft,
	verdict.FactNamespaceReplaced: func(w *wording, f verdict.Fact) string {
		return fmt.Sprintf("%s got %s on node %s at %s. Its previous one, %s, still exists.", w.name(f.Owners[0]), w.netns(f.Owners[1]), w.node(f.Owners[0]), stampExact(f.At), w.netns(f.Owners[0]))
	},
	verdict.FactNamespaceUsed: func(w *wording, f verdict.Fact) string {
		return fmt.Sprintf("%s has process %s, the oldest one that is known.", capital(w.netns(f.Owners[0])), f.Text)
	},
	verdict.FactOneMachine: func(w *wording, _ verdict.Fact) string {
		return fmt.Sprintf("%s run one virtual machine, and have had its address for longer than the %s allowed for a migration.", w.all(), w.policy.MigrationGrace)
	},
	verdict.FactOneLink: func(w *wording, _ verdict.Fact) string {
		return w.all() + " are on one link, where an address can move between them."
	},
	verdict.FactBeyondGrace: func(w *wording, _ verdict.Fact) string {
		return fmt.Sprintf("All of them have had the address for longer than the %s allowed for a hand-over.", w.policy.HandoverGrace)
	},
	verdict.FactFromOutside: func(w *wording, f verdict.Fact) string {
		return fmt.Sprintf("The device with MAC %s claims the address in frames that enter the node from outside, on %s.", w.mac(f.Owners[0]), list(f.Devices))
	},
	verdict.FactForeignMAC: func(*wording, verdict.Fact) string {
		return "No node with an agent has this MAC on this link."
	},
	verdict.FactHolds: func(w *wording, f verdict.Fact) string {
		return w.placed(f.Owners[0]) + " " + holds(w.owner(f.Owners[0])) + "."
	},
	verdict.FactUncovered: func(*wording, verdict.Fact) string {
		return "There may be nodes without a connected agent. If the MAC belongs to one of them, the device is that node or a workload on it."
	},
	verdict.FactTunnel: func(w *wording, f verdict.Fact) string {
		return fmt.Sprintf("Device %s of node %s is %s, and the address is configured on it.", f.Device, w.node(f.Owners[0]), tunnelName(f.Text))
	},
	verdict.FactPurpose: func(_ *wording, f verdict.Fact) string {
		return fmt.Sprintf("%s has allocated the address to %s.", poolTitle(f.Pool), holderName(f.Records[0].Holder))
	},
	verdict.FactBridgeOfPods: func(w *wording, f verdict.Fact) string {
		return fmt.Sprintf("Bridge %s of node %s connects pods, and the address is configured on it.", f.Device, w.node(f.Owners[0]))
	},

	// The sources that assigned the address to an owner.
	verdict.FactGivenByNetwork: func(w *wording, f verdict.Fact) string {
		if engine, network, ok := ipam.CutEngine(f.Network); ok {
			return fmt.Sprintf("According to %s, its network %s assigned the address to %s on node %s.", engine, network, w.name(f.Owners[0]), w.node(f.Owners[0]))
		}
		return fmt.Sprintf("According to a CNI result, network %s assigned the address to %s on node %s.", f.Network, w.name(f.Owners[0]), w.node(f.Owners[0]))
	},
	verdict.FactGivenByRuntime: func(w *wording, f verdict.Fact) string {
		return fmt.Sprintf("The container runtime reports that it assigned the address to %s on node %s.", w.name(f.Owners[0]), w.node(f.Owners[0]))
	},
	verdict.FactMeant: func(w *wording, f verdict.Fact) string {
		return fmt.Sprintf("The address was intended for %s on node %s (source: %s).", w.name(f.Owners[0]), w.node(f.Owners[0]), f.Text)
	},
	verdict.FactAllocated: func(w *wording, f verdict.Fact) string {
		return fmt.Sprintf("%s has allocated the address to %s on node %s.", poolTitle(f.Pool), w.name(f.Owners[0]), w.node(f.Owners[0]))
	},
	verdict.FactWasAllocated: func(w *wording, f verdict.Fact) string {
		return fmt.Sprintf("%s had allocated the address to %s on node %s.", poolTitle(f.Pool), w.name(f.Owners[0]), w.node(f.Owners[0]))
	},

	// Evidence that nothing assigned the address to an owner.
	verdict.FactGuest: func(w *wording, f verdict.Fact) string {
		return guestText(w.owner(f.Owners[0])) + ". CNI networks do not assign addresses to it."
	},
	verdict.FactGuestOfOther: func(w *wording, f verdict.Fact) string {
		return fmt.Sprintf("%s. %s was assigned other addresses.", guestText(w.owner(f.Owners[0])), capital(w.name(f.Owners[0])))
	},
	verdict.FactNodeDevice: func(w *wording, f verdict.Fact) string {
		return fmt.Sprintf("The address is configured on %s of node %s itself, where no CNI network assigns addresses.", f.Device, w.node(f.Owners[0]))
	},
	verdict.FactNotListed: func(w *wording, f verdict.Fact) string {
		return fmt.Sprintf("The address was not assigned to %s: according to the Kubernetes API, it has %s.", w.placed(f.Owners[0]), list(each(f.Addresses, addrText)))
	},
	verdict.FactNotInResult: func(w *wording, f verdict.Fact) string {
		return fmt.Sprintf("The CNI result of %s does not contain the address.", w.placed(f.Owners[0]))
	},
	verdict.FactAllocatedToOther: func(w *wording, f verdict.Fact) string {
		return fmt.Sprintf("IPAM has allocated the address to %s, not to %s, and no CNI result contains it for the latter.", w.name(f.Owners[1]), w.placed(f.Owners[0]))
	},

	// Ranges and records.
	verdict.FactPoolRange: func(_ *wording, f verdict.Fact) string {
		return fmt.Sprintf("%s allocates addresses from %s.", poolTitle(f.Pool), cmp.Or(rangesText(f.Ranges), "a range that contains it"))
	},
	verdict.FactInPodCIDR: func(*wording, verdict.Fact) string {
		return "The address is in the pod CIDR of a node (Node.spec.podCIDRs)."
	},
	verdict.FactAllocatedElsewhere: func(w *wording, f verdict.Fact) string {
		return fmt.Sprintf("%s had allocated the address to %s while %s held it (known since %s).", poolTitle(f.Pool), holderName(f.Records[0].Holder), w.placed(f.Owners[0]), stampExact(f.At))
	},
	verdict.FactWrongNodeName: func(w *wording, f verdict.Fact) string {
		return fmt.Sprintf("%s, so %s allocates the addresses of its pods under that node name.", f.NodeName.On(w.node(f.Owners[0])), registry.NodeNamed().Title)
	},
	verdict.FactRecord: (*wording).record,
	verdict.FactInPodCIDRs: func(_ *wording, f verdict.Fact) string {
		return fmt.Sprintf("The address is in the pod CIDRs of both node %s and node %s (Node.spec.podCIDRs).", f.Nodes[0], f.Nodes[1])
	},
	verdict.FactBridgeRange: func(_ *wording, f verdict.Fact) string {
		return fmt.Sprintf("Pods on %s of node %s have addresses from %s.", f.Device, f.Nodes[0], rangesText(f.Ranges))
	},
	verdict.FactOnNetwork: func(w *wording, f verdict.Fact) string {
		return fmt.Sprintf("%s is attached to %s.", w.placed(f.Owners[0]), networkName(f.Network, f.Device))
	},
	verdict.FactNetworkRange: func(_ *wording, f verdict.Fact) string {
		return fmt.Sprintf("%s uses addresses from %s.", networkName(f.Network, f.Device), rangesText(f.Ranges))
	},
	verdict.FactMeetOnNode: func(_ *wording, f verdict.Fact) string {
		return fmt.Sprintf("Both networks are present on node %s and meet there.", f.Nodes[0])
	},
	verdict.FactMeetOnLink: func(_ *wording, f verdict.Fact) string {
		return fmt.Sprintf("The networks meet on link %s.", f.Device)
	},
	verdict.FactNeverTwice: func(_ *wording, f verdict.Fact) string {
		return fmt.Sprintf("As long as its records are complete, %s does not allocate an address of a network twice.", f.Pool.IPAM)
	},
	verdict.FactRecordsLost: func(_ *wording, f verdict.Fact) string {
		return fmt.Sprintf("All records of this IPAM were lost at %s%s.", stampExact(f.At), thereWere(f.Count))
	},
	verdict.FactRecordVanished: func(w *wording, f verdict.Fact) string {
		return fmt.Sprintf("Its record for %s disappeared at %s.", w.name(f.Owners[0]), stampExact(f.At))
	},

	// Answers to the steps of a manual diagnosis.
	verdict.SeenPod: (*wording).pod,
	verdict.SeenRoute: func(w *wording, f verdict.Fact) string {
		return fmt.Sprintf("Node %s sends packets for the address to %s: its own route leads there. %s %s reachable through the node.",
			w.node(f.Owners[0]), w.name(f.Owners[0]), capital(list(w.names(f.Owners[1:]))), isAre(len(f.Owners)-1)+" not")
	},
	verdict.SeenNoRecords: func(_ *wording, f verdict.Fact) string {
		return fmt.Sprintf("no known IPAM records of %s could contain the address.", nodesText(f.Nodes))
	},
	verdict.SeenPodCIDRs: (*wording).podCIDRs,
}

// fact returns the text of a fact.
func (w *wording) fact(f verdict.Fact) string {
	if words := factWords[f.Kind]; words != nil {
		return capital(words(w, f))
	}
	return ""
}

// facts returns the texts of facts.
func (w *wording) facts(all []verdict.Fact) []string {
	var words []string
	for _, f := range all {
		words = append(words, w.fact(f))
	}
	return words
}

// all names all owners.
func (w *wording) all() string { return list(each(w.owners, OwnerName)) }

// netns returns the name of an owner's network namespace.
func (w *wording) netns(id string) string {
	if o := w.owner(id); o != nil {
		return netnsName(o)
	}
	return unknownOwner
}

// mac returns the hardware address of an owner.
func (w *wording) mac(id string) string {
	if o := w.owner(id); o != nil {
		return o.MAC.String()
	}
	return "of " + unknownOwner
}

func (w *wording) sandboxLeft(f verdict.Fact) string {
	o := w.owner(f.Owners[0])
	switch {
	case o == nil:
		return "A sandbox was left behind."
	case f.Text == "":
		return fmt.Sprintf("%s does not exist in the Kubernetes API: its sandbox on node %s was left behind.", capital(exactly(o)), o.Node.Name)
	}
	return fmt.Sprintf("%s has ended (%s), but its sandbox on node %s was left behind.", OwnerName(o), f.Text, o.Node.Name)
}

// holds states that an owner has the address, and how that is known.
func holds(o *verdict.Owner) string {
	switch {
	case o == nil:
		return "had the address"
	case o.Assigned:
		return "has the address, according to its kernel"
	case o.DADFailed():
		return "tried to configure the address, according to its kernel"
	}
	return "has the address, as its frames show"
}

// guestText describes the device that claims the address from behind a port of a node.
func guestText(o *verdict.Owner) string {
	switch {
	case o == nil:
	case o.Guest() == verdict.TapGuest:
		return fmt.Sprintf("the device with MAC %s is behind tap device %s of node %s: it is a virtual machine on that node", o.MAC, o.Claims[0].Interface.Name, o.Node.Name)
	case o.Guest() == verdict.PortGuest:
		return fmt.Sprintf("the device with MAC %s is behind %s, the port of %s", o.MAC, witness(o.Claims[0]), OwnerName(o))
	}
	return unknownOwner
}

// tunnelName names a kind of tunnel.
func tunnelName(kind string) string {
	if m := registry.WithPodDevice(kind); m != nil {
		return "the device through which " + m.Title + " reaches pods"
	}
	return "a tunnel device (" + kind + ")"
}

// thereWere states how many records were lost.
func thereWere(n uint32) string {
	switch n {
	case 0:
		return ""
	case 1:
		return " (there was one)"
	}
	return fmt.Sprintf(" (there were %d)", n)
}

// record describes the record that a pool has of the address.
func (w *wording) record(f verdict.Fact) string {
	pool := poolTitle(f.Pool)
	switch {
	case f.State == ipam.Unreadable:
		return fmt.Sprintf("the records of %s cannot be read%s.", pool, after(": ", f.Text))
	case f.State == ipam.Reading:
		return fmt.Sprintf("the records of %s are being read.", pool)
	case f.State == ipam.Missing:
		return fmt.Sprintf("the records of %s are missing.", pool)
	case len(f.Records) == 0:
		return pool + " has no record of the address."
	}
	only, stale := "", ""
	if len(f.Records) == 1 && len(w.owners) > 1 {
		only = "only "
	}
	if f.State == ipam.Stale {
		stale = ", as of its last update"
	}
	words := each(f.Records, func(r *verdict.Record) string {
		whom := holderName(r.Holder)
		if r.Owner != "" {
			whom = w.name(r.Owner)
		}
		if at := stampExact(r.At); at != "" {
			return fmt.Sprintf("%s (since %s)", whom, at)
		}
		return whom
	})
	return fmt.Sprintf("%s has allocated the address %sto %s%s.", pool, only, list(words), stale)
}

// pod describes the pod object of an owner in the Kubernetes API.
func (w *wording) pod(f verdict.Fact) string {
	o := w.owner(f.Owners[0])
	if o == nil || o.Pod == nil {
		return ""
	}
	p := o.Pod
	if p.Absent {
		return fmt.Sprintf("%s does not exist in the Kubernetes API.", capital(exactly(o)))
	}
	s := fmt.Sprintf("%s: %s", OwnerName(o), cmp.Or(p.Phase, "without a phase"))
	if p.DeletionTimestamp != 0 {
		s += ", being deleted"
	}
	s += after(", on node ", p.Node)
	if len(p.IPs) == 0 {
		return s + ", without addresses."
	}
	return s + fmt.Sprintf(", with %s.", list(each(p.IPs, addrText)))
}

// podCIDRs states which nodes have the address in their pod CIDRs.
func (w *wording) podCIDRs(f verdict.Fact) string {
	switch in := f.Nodes; {
	case len(in) == 0:
		return "The address is in the pod CIDR (Node.spec.podCIDRs) of a node other than its owners' nodes."
	case len(in) > 1:
		return fmt.Sprintf("The pod CIDRs (Node.spec.podCIDRs) of nodes %s overlap: each contains the address.", list(in))
	case len(f.Others) == 0:
		return fmt.Sprintf("The address is in the pod CIDR (Node.spec.podCIDRs) of node %s.", in[0])
	}
	return fmt.Sprintf("The pod CIDRs (Node.spec.podCIDRs) do not overlap here: the address is in the pod CIDR of node %s, but not in the pod CIDR of %s.", f.Nodes[0], list(f.Others))
}

// headline returns the cause of a conflict as one sentence. It is empty if the rule of the
// conflict already says it.
func (w *wording) headline(c *verdict.Conflict) string {
	f := c.Headline
	if f == nil {
		return ""
	}
	switch f.Kind {
	case verdict.FactSandboxLeft:
		return strings.Join(w.facts(c.Facts), " ")
	case verdict.HeadNamespaceReplaced:
		return fmt.Sprintf("%s got a new network namespace, and a previous one still has the address.", capital(w.name(f.Owners[0])))
	case verdict.HeadOutside:
		return fmt.Sprintf("%s %s not on any node that has an agent.", capital(list(w.names(f.Owners))), isAre(len(f.Owners)))
	case verdict.FactTunnel:
		return fmt.Sprintf("Device %s of node %s is %s, and %s has the same address.", f.Device, w.node(f.Owners[0]), tunnelName(f.Text), w.name(f.Owners[1]))
	case verdict.HeadNotGiven:
		if registry.Of(f.Pool.IPAM).Leases {
			return fmt.Sprintf("No CNI network or IPAM assigned the address to %s, and DHCP leases it to others: %s.", w.given(f.Owners[0]), poolTitle(f.Pool))
		}
		if i := slices.IndexFunc(c.From, func(p *verdict.Pool) bool { return ipamOf(p).Engine }); i >= 0 {
			return fmt.Sprintf("%s did not give the address to %s, and allocates it to containers.", poolBegin(c.From[i]), w.given(f.Owners[0]))
		}
		return fmt.Sprintf("No CNI network or IPAM assigned the address to %s, and it is a pod address.", w.given(f.Owners[0]))
	case verdict.HeadNotGivenGateway:
		return fmt.Sprintf("No CNI network or IPAM assigned the address to %s, and it is the address of bridge %s, which connects pods.", w.given(f.Owners[0]), f.Device)
	case verdict.HeadAllocatedElsewhere:
		return fmt.Sprintf("IPAM had allocated the address to %s while %s held it, and freed the address together with that allocation.", holderName(f.Records[0].Holder), w.placed(f.Owners[0]))
	case verdict.HeadWrongNodeName:
		return fmt.Sprintf("%s allocates the addresses of pods on node %s under node name %s, and frees them while they are in use.", registry.NodeNamed().Title, w.node(f.Owners[0]), f.NodeName.Name)
	case verdict.HeadOneRange:
		return fmt.Sprintf("Nodes %s and %s assign their pods addresses from the same range%s.", f.Nodes[0], f.Nodes[1], after(", ", rangesText(f.Ranges)))
	case verdict.HeadNetworksOverlap:
		on := ""
		if len(f.Nodes) > 0 {
			on = " on node " + f.Nodes[0]
		}
		return fmt.Sprintf("%s and %s have overlapping ranges%s.", capital(sideName(c.Networks[0])), sideName(c.Networks[1]), on)
	case verdict.HeadRecordsLost:
		return fmt.Sprintf("Records of %s were lost, so it allocated the address twice.", poolShort(f.Pool))
	case verdict.HeadRecordLost:
		if len(f.Owners) > 0 {
			return fmt.Sprintf("The record that %s had for %s is lost, so it allocated the address again.", poolShort(f.Pool), list(w.names(f.Owners)))
		}
		return fmt.Sprintf("The record that %s had of the address is lost, so it allocated the address again.", poolShort(f.Pool))
	case verdict.HeadAllocatedTwice:
		return fmt.Sprintf("%s has allocated the address both to %s and to %s.", poolTitle(f.Pool), w.name(f.Owners[0]), w.name(f.Owners[1]))
	}
	return ""
}

// given names an owner that the address was not assigned to, or the device behind its port.
func (w *wording) given(id string) string {
	if o := w.owner(id); o != nil && o.Guest() == verdict.PortGuest {
		return "the device behind " + witness(o.Claims[0]) + ", the port of " + OwnerName(o)
	}
	return w.placed(id)
}

// sideName names the network or bridge that an owner has the address from.
func sideName(s verdict.Origin) string { return networkName(s.Network, s.Device) }
