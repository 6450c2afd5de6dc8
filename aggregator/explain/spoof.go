package explain

import (
	"fmt"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam/advice"
)

// spoof builds the text of findings about frames with the addresses of others.
type spoof struct{ *findingBuilder }

// address describes frames from the port of one namespace that claim the address of another one.
func (t spoof) address() {
	s := t.f.Spoof
	victims := list(each(s.Victims, placed))
	t.Summary = fmt.Sprintf("%s claims %s on the wire, through port %s of node %s, but the address belongs to %s. Its neighbours may send traffic for the address to %s instead.",
		capital(sender(s)), t.f.Address, s.Port.Name, s.Port.Namespace.Node.Name, victims, macs(s.MACs))
	for i := range s.Victims {
		v := &s.Victims[i]
		t.State("The kernel of node %s reports that %s has %s.", v.Node.Name, placed(v), t.f.Address)
	}
	t.State("The kernel of %s does not have the address on an interface that leads to the node.", sender(s))
	t.State("Frames that entered through %s of node %s claim the address for %s: %s.", s.Port.Name, s.Port.Namespace.Node.Name, macs(s.MACs), times(s))
	t.exposed()
	t.Act(
		advice.Say("Decide whether %s intentionally answers for this address, as a router does. Ask its operator.", sender(s)).Or(
			advice.Either("it does", advice.Say("Declare it: start the aggregator with --router %s. This ends the finding.", advice.Quote(declaration(s)+"=REASON"))),
			advice.Either("it does not, or its purpose is unknown", t.cutOff("it claims an address of another workload")...),
		),
		advice.Say("The finding ends by itself when no such frame has been seen for 10 minutes.").By("", "ipwitness audit "+t.f.Address.String()),
	)
}

// mac describes frames from the port of one namespace that carry the hardware address of another
// one.
func (t spoof) mac() {
	s := t.f.Spoof
	v := &s.Victims[0]
	t.Summary = fmt.Sprintf("%s sends frames with MAC %s through port %s of node %s, but that MAC belongs to %s. A bridge then delivers the owner's traffic to this port.",
		capital(sender(s)), macs(s.MACs), s.Port.Name, s.Port.Namespace.Node.Name, placed(v))
	t.State("The kernel of node %s reports that %s has MAC %s.", v.Node.Name, placed(v), macs(s.MACs))
	t.State("No interface in %s has this MAC.", sender(s))
	t.State("Frames with this MAC entered through %s of node %s: %s. They claim %s.", s.Port.Name, s.Port.Namespace.Node.Name, times(s), addressList(s.Addresses))
	t.exposed()
	t.Act(t.cutOff("it sends frames with the MAC of another workload")...)
	t.Act(advice.Say("The finding ends by itself when no such frame has been seen for 10 minutes.").By("", "ipwitness audit --kind "+verdict.FindingMACCloned))
}

// sender returns the name of the namespace behind the port.
func sender(s *verdict.Spoof) string { return OwnerName(&s.Owner) }

// declaration returns the --router value that names the sender.
func declaration(s *verdict.Spoof) string {
	if namespace, name := s.Owner.Named(); namespace != "" {
		return namespace + "/" + name
	} else if name != "" {
		return name
	}
	return s.MACs[0].String()
}

// times formats the number of frames and when the first and the last one were seen.
func times(s *verdict.Spoof) string {
	return fmt.Sprintf("%s, first %s, last %s", plural(s.Count, "frame", "frames"), stampText(s.First), stampText(s.Last))
}

func macs(all []verdict.MAC) string {
	return list(each(all, func(m *verdict.MAC) string { return m.String() }))
}

// exposed adds the namespaces whose neighbour tables may be poisoned.
func (t spoof) exposed() {
	s := t.f.Spoof
	if len(s.Exposed) == 0 {
		return
	}
	names := each(s.Exposed, func(ns **verdict.Namespace) string { return NamespaceName(*ns) })
	t.State("Other namespaces on link %s, whose neighbour tables may be poisoned: %s.", linkName(s.Link), list(names))
}

// cutOff returns the steps that disconnect the sender without affecting the owner of the address.
func (t spoof) cutOff(why string) []advice.Action {
	s := t.f.Spoof
	node, port := s.Port.Namespace.Node.Name, advice.Quote(s.Port.Name)
	command := fmt.Sprintf(`[ "$(cat /sys/class/net/%s/ifindex)" = %d ] && ip link set dev %s down`, port, s.Port.Index, port)
	t.ByHand(node, command, "Disconnect %s: %s.", sender(s), why)
	steps := []advice.Action{advice.Say("Disconnect %s. Leave the owner of the address as it is.", sender(s)).By(node, command)}
	if t.f.Address.IsValid() {
		flush := "ip neigh flush to " + t.f.Address.String()
		steps = append(steps, advice.Say("Clear the neighbour entries that may be poisoned. Do the same in each pod on that link.").By(node, flush))
	}
	return append(steps, advice.Say("Find out which process in %s sends the frames. It needs CAP_NET_RAW or CAP_NET_ADMIN there.", sender(s)))
}
