package verdicttest

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// A Situation is a way in which a conflict arises, with its only cause.
type Situation struct {
	Name  string
	Build func(w *World)
	// Addr is the address; DefaultAddr if empty.
	Addr  string
	Cause string
	// Facts are the facts that the cause follows from. RuledOut are the facts that rule out other
	// causes. Both are in the format of Words.
	Facts, RuledOut []string
}

// DefaultAddr is the address of most situations.
const DefaultAddr = "10.244.1.5"

const (
	lost      = verdict.CauseIPAMStateLost
	twice     = verdict.CauseIPAMAllocatedTwice
	elsewhere = verdict.CauseIPAMBookedElsewhere
	overlap   = verdict.CausePodCIDROverlap
	networks  = verdict.CauseOverlappingNetworks
	static    = verdict.CauseStaticAddress
	tunnel    = verdict.CauseTunnelAddress
	outside   = verdict.CauseExternalDevice
	orphan    = verdict.CauseOrphanedSandbox
	replaced  = verdict.CauseReplacedNamespace
	split     = verdict.CauseSplitBrain
	unknown   = verdict.CauseUnknown
)

// Twins adds two pods of one node with the address, given by one network.
func Twins(w *World) (a, b *verdict.Claim) {
	a = w.Within("n1", "", "kindnet", Who("old"))
	w.After(time.Minute)
	return a, w.Within("n1", "", "kindnet", Who("new"))
}

// Sandbox adds a pod with the address on a bridge, given by a network, in a network stack outside of its kernel (gVisor). The
// claim is an answer of the pod.
func Sandbox(w *World, node, bridge, network string, of verdict.Workload) *verdict.Claim {
	ns := w.Namespace(node, uint32(len(w.Namespaces)+2), fmt.Sprint(100+len(w.Namespaces)), of)
	ns.Intended = w.Addr.String() + " cni-result eth0 " + network
	mac := "\x02\x00\x00\x00\x01" + string(rune(len(w.Namespaces)))
	_, port := w.Veth(ns, mac, w.Link(node, bridge, verdict.Bridge, true))
	c := w.Wire(port, mac)
	c.Kind = verdict.Answered
	return c
}

// Situations are examples of each cause, and of conflicts that only resemble it.
var Situations = slices.Concat(ofRecords, ofRanges, ofDevices, ofEngines, ofCopies)

// Guest adds a virtual machine with the address behind a pod's port.
func Guest(w *World, intended string) {
	ns := w.Namespace("n1", 9, "109", Who("launcher"))
	ns.Intended = intended
	l := w.Link("n1", "cni0", verdict.Bridge, true)
	w.Interface(ns, verdict.Interface{MAC: "lnchr0", Attachment: verdict.Peer, Link: l, HostInterface: "vm"})
	port := w.Interface(w.Host("n1"), verdict.Interface{Name: "vm", MAC: "hostvm", Attachment: verdict.Own, Link: l, Peer: 9})
	w.Wire(port, "\x02\x00\x00\x00\x00\x06")
}

// Judge returns the world and the conflict after the conflict has lasted for a while; nil if there
// is not exactly one conflict.
func (s *Situation) Judge() (*World, *verdict.Conflict) {
	w := New(cmp.Or(s.Addr, DefaultAddr))
	s.Build(w)
	var out verdict.Judgement
	for range 3 {
		out = w.Judge()
		w.After(time.Minute)
		for _, c := range w.Claims {
			w.Read(c)
			w.Seen(c)
		}
	}
	if len(out.Conflicts) != 1 {
		return w, nil
	}
	return w, &out.Conflicts[0]
}
