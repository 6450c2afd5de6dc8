package explain

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// factWords has the words for each kind of fact.
var factWords = map[verdict.FactKind]func(*wording, verdict.Fact) string{
	// What a cause follows from.
	verdict.FactSandboxLeft: (*wording).sandboxLeft,
	verdict.FactOneMachine: func(w *wording, _ verdict.Fact) string {
		return fmt.Sprintf("%s run one virtual machine, and have had its address for longer than the %s that a migration may take.", w.all(), w.policy.MigrationGrace)
	},
	verdict.FactOneLink: func(w *wording, _ verdict.Fact) string {
		return w.all() + " are on one link, where an address can move from one to the other."
	},
	verdict.FactBeyondGrace: func(w *wording, _ verdict.Fact) string {
		return fmt.Sprintf("They have had it for longer than the %s that a hand-over may take.", w.policy.HandoverGrace)
	},
	verdict.FactFromOutside: func(w *wording, f verdict.Fact) string {
		return fmt.Sprintf("The device with MAC %s claims it in frames that enter the node from outside, by %s.", w.mac(f.Owners[0]), list(f.Devices))
	},
	verdict.FactForeignMAC: func(*wording, verdict.Fact) string {
		return "No node with an agent has that MAC on this link."
	},
	verdict.FactHolds: func(w *wording, f verdict.Fact) string {
		return w.placed(f.Owners[0]) + " has it" + witnessed(w.owner(f.Owners[0])) + "."
	},
	verdict.FactUncovered: func(*wording, verdict.Fact) string {
		return "Not known: whether every node has an agent that is heard from. If the MAC is that of a node without one, the device is that node, or what runs there."
	},
	verdict.FactTunnel: func(w *wording, f verdict.Fact) string {
		return fmt.Sprintf("Device %s of node %s is %s, and its kernel has the address on it.", f.Device, w.node(f.Owners[0]), tunnelName(f.Text))
	},
	verdict.FactPurpose: func(_ *wording, f verdict.Fact) string {
		return fmt.Sprintf("%s has it for %s.", poolTitle(f.Pool), holderName(f.Records[0].Holder))
	},
	verdict.FactBridgeOfPods: func(w *wording, f verdict.Fact) string {
		return fmt.Sprintf("Bridge %s of node %s connects pods, and its kernel has the address on it.", f.Device, w.node(f.Owners[0]))
	},

	// Who gave an owner the address.
	verdict.FactGivenByNetwork: func(w *wording, f verdict.Fact) string {
		return fmt.Sprintf("A CNI result says that network %s gave it to %s on node %s.", f.Network, w.name(f.Owners[0]), w.node(f.Owners[0]))
	},
	verdict.FactGivenByRuntime: func(w *wording, f verdict.Fact) string {
		return fmt.Sprintf("The container runtime says that it gave it to %s on node %s.", w.name(f.Owners[0]), w.node(f.Owners[0]))
	},
	verdict.FactMeant: func(w *wording, f verdict.Fact) string {
		return fmt.Sprintf("It was meant for %s on node %s (%s).", w.name(f.Owners[0]), w.node(f.Owners[0]), f.Text)
	},
	verdict.FactAllocated: func(w *wording, f verdict.Fact) string {
		return fmt.Sprintf("%s has it for %s on node %s.", poolTitle(f.Pool), w.name(f.Owners[0]), w.node(f.Owners[0]))
	},
	verdict.FactWasAllocated: func(w *wording, f verdict.Fact) string {
		return fmt.Sprintf("%s had it for %s on node %s.", poolTitle(f.Pool), w.name(f.Owners[0]), w.node(f.Owners[0]))
	},

	// Why it is known that nobody gave it to an owner.
	verdict.FactGuest: func(w *wording, f verdict.Fact) string {
		return guestText(w.owner(f.Owners[0])) + ". No CNI network gives addresses to it."
	},
	verdict.FactGuestOfOther: func(w *wording, f verdict.Fact) string {
		return fmt.Sprintf("%s. %s was given other addresses.", guestText(w.owner(f.Owners[0])), capital(w.name(f.Owners[0])))
	},
	verdict.FactNodeDevice: func(w *wording, f verdict.Fact) string {
		return fmt.Sprintf("It is on %s of node %s itself, and no CNI network gives addresses to that.", f.Device, w.node(f.Owners[0]))
	},
	verdict.FactNotListed: func(w *wording, f verdict.Fact) string {
		return fmt.Sprintf("Nobody gave it to %s: its addresses are %s, as the Kubernetes API says.", w.placed(f.Owners[0]), list(each(f.Addresses, addrText)))
	},
	verdict.FactNotInResult: func(w *wording, f verdict.Fact) string {
		return fmt.Sprintf("The CNI result of %s does not have it.", w.placed(f.Owners[0]))
	},
	verdict.FactAllocatedToOther: func(w *wording, f verdict.Fact) string {
		return fmt.Sprintf("IPAM has it for %s, and not for %s; no CNI result has it for that either.", w.name(f.Owners[1]), w.placed(f.Owners[0]))
	},

	// Ranges and records.
	verdict.FactPoolRange: func(_ *wording, f verdict.Fact) string {
		return fmt.Sprintf("%s gives addresses from %s.", poolTitle(f.Pool), cmp.Or(rangesText(f.Ranges), "a range that has it"))
	},
	verdict.FactInPodCIDR: func(*wording, verdict.Fact) string {
		return "It is in the range of pods of a node (Node.spec.podCIDRs)."
	},
	verdict.FactAllocatedElsewhere: func(w *wording, f verdict.Fact) string {
		return fmt.Sprintf("%s had it for %s while %s had it (known since %s).", poolTitle(f.Pool), holderName(f.Records[0].Holder), w.placed(f.Owners[0]), stampExact(f.At))
	},
	verdict.FactWrongNodename: func(w *wording, f verdict.Fact) string {
		return fmt.Sprintf("/var/lib/calico/nodename on node %s says %s: Calico books the addresses of its pods for that node.", w.node(f.Owners[0]), f.Text)
	},
	verdict.FactRecord: (*wording).record,
	verdict.FactInPodCIDRs: func(_ *wording, f verdict.Fact) string {
		return fmt.Sprintf("It is in the range of pods of node %s and in that of node %s (Node.spec.podCIDRs).", f.Nodes[0], f.Nodes[1])
	},
	verdict.FactBridgeRange: func(_ *wording, f verdict.Fact) string {
		return fmt.Sprintf("Pods on %s of node %s have addresses of %s.", f.Device, f.Nodes[0], rangesText(f.Ranges))
	},
	verdict.FactOnNetwork: func(w *wording, f verdict.Fact) string {
		return fmt.Sprintf("%s is on %s.", w.placed(f.Owners[0]), networkName(f.Network, f.Device))
	},
	verdict.FactNetworkRange: func(_ *wording, f verdict.Fact) string {
		return fmt.Sprintf("%s has addresses of %s.", networkName(f.Network, f.Device), rangesText(f.Ranges))
	},
	verdict.FactMeetOnNode: func(_ *wording, f verdict.Fact) string {
		return fmt.Sprintf("Node %s has both networks, and they meet there.", f.Nodes[0])
	},
	verdict.FactMeetOnLink: func(_ *wording, f verdict.Fact) string {
		return fmt.Sprintf("They meet on link %s.", f.Device)
	},
	verdict.FactNeverTwice: func(_ *wording, f verdict.Fact) string {
		return fmt.Sprintf("While its records are whole, %s gives no address of a network twice.", f.Pool.IPAM)
	},
	verdict.FactRecordsLost: func(_ *wording, f verdict.Fact) string {
		return fmt.Sprintf("All of its records were lost at %s%s.", stampExact(f.At), thereWere(f.Count))
	},
	verdict.FactRecordVanished: func(w *wording, f verdict.Fact) string {
		return fmt.Sprintf("Its record of %s vanished at %s.", w.name(f.Owners[0]), stampExact(f.At))
	},

	// What is to be seen where one looks.
	verdict.SeenPod: (*wording).pod,
	verdict.SeenNoRecords: func(_ *wording, f verdict.Fact) string {
		return fmt.Sprintf("No IPAM records of %s are known that may have it.", nodesText(f.Nodes))
	},
	verdict.SeenPodCIDRs: (*wording).podCIDRs,
}

// fact returns the words for a fact.
func (w *wording) fact(f verdict.Fact) string {
	if words := factWords[f.Kind]; words != nil {
		return capital(words(w, f))
	}
	return ""
}

// facts returns the words for facts.
func (w *wording) facts(all []verdict.Fact) []string {
	var words []string
	for _, f := range all {
		words = append(words, w.fact(f))
	}
	return words
}

// all names all owners.
func (w *wording) all() string { return list(each(w.owners, OwnerName)) }

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
		return fmt.Sprintf("The Kubernetes API has no %s: its sandbox on node %s was left behind.", exactly(o), o.Node.Name)
	}
	return fmt.Sprintf("%s has ended (%s), but its sandbox on node %s was left behind.", OwnerName(o), f.Text, o.Node.Name)
}

// witnessed says how it is known that an owner has the address.
func witnessed(o *verdict.Owner) string {
	switch {
	case o == nil:
		return ""
	case o.Assigned:
		return " by its kernel"
	case o.DADFailed():
		return ": its kernel was to have it"
	}
	return ", as its frames show"
}

// guestText says what claims the address from behind a port of a node.
func guestText(o *verdict.Owner) string {
	switch {
	case o == nil:
	case o.Guest() == verdict.TapGuest:
		return fmt.Sprintf("the device with MAC %s is behind %s of node %s, a tap: it is a virtual machine of that node", o.MAC, o.Claims[0].Interface.Name, o.Node.Name)
	case o.Guest() == verdict.PortGuest:
		return fmt.Sprintf("what has MAC %s enters by %s, the port of %s: it is behind that", o.MAC, witness(o.Claims[0]), OwnerName(o))
	}
	return unknownOwner
}

// tunnelName names a kind of tunnel.
func tunnelName(kind string) string {
	if kind == verdict.CiliumHost {
		return "the device by which Cilium reaches pods"
	}
	return "a tunnel device (" + kind + ")"
}

// thereWere says how many records were lost.
func thereWere(n uint32) string {
	switch n {
	case 0:
		return ""
	case 1:
		return " (there was one)"
	}
	return fmt.Sprintf(" (there were %d)", n)
}

// record says what a pool has of the address.
func (w *wording) record(f verdict.Fact) string {
	pool := poolTitle(f.Pool)
	switch {
	case f.State == verdict.PoolUnreadable:
		return fmt.Sprintf("the records of %s cannot be read%s.", pool, after(": ", f.Text))
	case f.State == verdict.PoolReading:
		return fmt.Sprintf("the records of %s are being read.", pool)
	case f.State == verdict.PoolMissing:
		return fmt.Sprintf("the records of %s are missing.", pool)
	case len(f.Records) == 0:
		return pool + " has no record of it."
	}
	alone, stale := "", ""
	if len(f.Records) == 1 && len(w.owners) > 1 {
		alone = " alone"
	}
	if f.State == verdict.PoolStale {
		stale = ", as far as it was heard from last"
	}
	words := each(f.Records, func(r *verdict.Record) string {
		whom := holderName(r.Holder)
		if r.Owner != "" {
			whom = w.name(r.Owner)
		}
		return whom + alone + after(" since ", stampExact(r.At))
	})
	return fmt.Sprintf("%s has it for %s%s.", pool, list(words), stale)
}

// pod says what the Kubernetes API has of an owner.
func (w *wording) pod(f verdict.Fact) string {
	o := w.owner(f.Owners[0])
	if o == nil || o.Pod == nil {
		return ""
	}
	p := o.Pod
	if p.Absent {
		return fmt.Sprintf("The Kubernetes API has no %s.", exactly(o))
	}
	s := fmt.Sprintf("%s: %s", OwnerName(o), cmp.Or(p.Phase, "of no phase"))
	if p.DeletionTimestamp != 0 {
		s += " and being deleted"
	}
	s += after(", on node ", p.Node)
	if len(p.IPs) == 0 {
		return s + ", without an address."
	}
	return s + fmt.Sprintf(", with %s.", list(each(p.IPs, addrText)))
}

// podCIDRs says whose ranges of pods the address is in.
func (w *wording) podCIDRs(f verdict.Fact) string {
	switch in := f.Nodes; {
	case len(in) == 0:
		return "The address is in the range of pods (Node.spec.podCIDRs) of another node than its owners'."
	case len(in) > 1:
		return fmt.Sprintf("The ranges of pods (Node.spec.podCIDRs) of %s overlap: each has the address.", list(in))
	case len(f.Others) == 0:
		return fmt.Sprintf("The address is in the range of pods (Node.spec.podCIDRs) of node %s.", in[0])
	}
	return fmt.Sprintf("The ranges of pods (Node.spec.podCIDRs) do not overlap here: the address is in that of node %s, and not in that of %s.", f.Nodes[0], list(f.Others))
}

// headline sums the cause of a conflict up in a sentence; it is empty if its rule does.
func (w *wording) headline(c *verdict.Conflict) string {
	f := c.Headline
	if f == nil {
		return ""
	}
	switch f.Kind {
	case verdict.FactSandboxLeft:
		return strings.Join(w.facts(c.Facts), " ")
	case verdict.HeadOutside:
		return capital(list(w.names(f.Owners))) + " is outside of all nodes that have an agent."
	case verdict.FactTunnel:
		return fmt.Sprintf("Device %s of node %s is %s, and %s has its address.", f.Device, w.node(f.Owners[0]), tunnelName(f.Text), w.name(f.Owners[1]))
	case verdict.HeadNotGiven:
		return fmt.Sprintf("No CNI network or IPAM gave it to %s, and it is an address of pods.", w.given(f.Owners[0]))
	case verdict.HeadNotGivenGateway:
		return fmt.Sprintf("No CNI network or IPAM gave it to %s, and it is the address of bridge %s, which connects pods.", w.given(f.Owners[0]), f.Device)
	case verdict.HeadAllocatedElsewhere:
		return fmt.Sprintf("IPAM had it for %s while %s had it, and freed it with that.", holderName(f.Records[0].Holder), w.placed(f.Owners[0]))
	case verdict.HeadWrongNodename:
		return fmt.Sprintf("Calico books the addresses of pods on node %s for node %s, and frees them with that.", w.node(f.Owners[0]), f.Text)
	case verdict.HeadOneRange:
		return fmt.Sprintf("Nodes %s and %s give pods addresses of one range%s.", f.Nodes[0], f.Nodes[1], after(", ", rangesText(f.Ranges)))
	case verdict.HeadNetworksOverlap:
		on := ""
		if len(f.Nodes) > 0 {
			on = " on node " + f.Nodes[0]
		}
		return fmt.Sprintf("%s and %s have overlapping ranges%s.", capital(sideName(c.Networks[0])), sideName(c.Networks[1]), on)
	case verdict.HeadRecordsLost:
		return fmt.Sprintf("Records of %s were lost: it gave the address twice.", poolShort(f.Pool))
	case verdict.HeadRecordLost:
		if len(f.Owners) > 0 {
			return fmt.Sprintf("The record that %s had for %s is lost, so it gave the address out again.", poolShort(f.Pool), list(w.names(f.Owners)))
		}
		return fmt.Sprintf("The record that %s had of it is lost, so it gave the address out again.", poolShort(f.Pool))
	}
	return ""
}

// given names an owner that was not given the address, or what is behind its port.
func (w *wording) given(id string) string {
	if o := w.owner(id); o != nil && o.Guest() == verdict.PortGuest {
		return "what is behind " + witness(o.Claims[0]) + ", the port of " + OwnerName(o)
	}
	return w.placed(id)
}

// sideName names what an owner has the address from.
func sideName(s verdict.Origin) string { return networkName(s.Network, s.Device) }
