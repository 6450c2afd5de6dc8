package verdicttest

import (
	"cmp"
	"slices"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// A Situation is how a conflict comes about, with the cause that it has and no other.
type Situation struct {
	Name  string
	Build func(w *World)
	// Addr is the address; DefaultAddr if it is empty.
	Addr  string
	Cause string
	// Facts are the facts that the cause follows from, RuledOut those that rule others out, as Words
	// has them.
	Facts, RuledOut []string
}

// DefaultAddr is the address of most situations.
const DefaultAddr = "10.244.1.5"

const (
	lost      = verdict.CauseIPAMStateLost
	elsewhere = verdict.CauseIPAMBookedElsewhere
	overlap   = verdict.CausePodCIDROverlap
	networks  = verdict.CauseOverlappingNetworks
	static    = verdict.CauseStaticAddress
	tunnel    = verdict.CauseTunnelAddress
	outside   = verdict.CauseExternalDevice
	orphan    = verdict.CauseOrphanedSandbox
	split     = verdict.CauseSplitBrain
	unknown   = verdict.CauseUnknown
)

// Twins are two pods of one node that one network gave the address.
func Twins(w *World) (a, b *verdict.Claim) {
	a = w.Within("n1", "", "kindnet", Who("old"))
	w.After(time.Minute)
	return a, w.Within("n1", "", "kindnet", Who("new"))
}

// Situations are each cause, and what only seems to be it.
var Situations = slices.Concat(ofRecords, ofRanges, ofDevices)

// Guest is a virtual machine behind a pod's port, which has the address.
func Guest(w *World, intended string) {
	ns := w.Namespace("n1", 9, "109", Who("launcher"))
	ns.Intended = intended
	l := w.Link("n1", "cni0", verdict.Bridge, true)
	w.Interface(ns, verdict.Interface{MAC: "lnchr0", Attachment: verdict.Peer, Link: l, HostInterface: "vm"})
	port := w.Interface(w.Host("n1"), verdict.Interface{Name: "vm", MAC: "hostvm", Attachment: verdict.Own, Link: l, Peer: 9})
	w.Wire(port, "\x02\x00\x00\x00\x00\x06")
}

// Judge returns the conflict of a situation once it has lasted for a while, and its world; nil if
// there is not exactly one.
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
