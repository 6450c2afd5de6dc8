// Package incident says which conflicts and findings have one cause, and counts them. OfConflict and OfFinding derive the
// incident of a member from typed facts, so that it is the same after a restart and on each replica. An Index
// adds the messages of members up.
package incident

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
)

// The classes of incidents whose members have different causes or kinds. The class of any other incident is the cause or kind of its
// members.
const (
	classRecordsLost    = "records-lost"
	classAllocatedTwice = "allocated-twice"
	classBookedFor      = "booked-for-others"
	classOrphans        = "orphans"
	classSpoofing       = "spoofing"
	classRanges         = "ranges"
	classOwners         = "owners"
)

// OfConflict returns the ID of the incident that a conflict belongs to. Its time is no part of it: an incident is as old as its first
// member, and a conflict that follows hours later from the same lost records belongs to it.
func OfConflict(cluster string, c *verdict.Conflict) string {
	class, subject := c.Cause, ""
	switch c.Cause {
	case verdict.CauseIPAMStateLost:
		class, subject = classRecordsLost, pools(c.From...)
	case verdict.CauseIPAMAllocatedTwice:
		class, subject = classAllocatedTwice, pools(c.From...)
	case verdict.CauseIPAMBookedElsewhere:
		class, subject = classBookedFor, bookedFor(wrong(c), c.From...)
	case verdict.CausePodCIDROverlap, verdict.CauseOverlappingNetworks:
		class, subject = classRanges, shared(c)
	case verdict.CauseOrphanedSandbox:
		class, subject = classOrphans, nodes(wrong(c))
	case verdict.CauseLeftoverNamespace, verdict.CauseReplacedNamespace:
		subject = nodes(wrong(c))
	case verdict.CauseSplitBrain:
		subject = nodes(c.Owners)
	}
	if subject == "" { // nothing is known to have broken but these owners
		class, subject = classOwners, owners(wrong(c))
	}
	return id(cluster, class, subject)
}

// OfFinding returns the ID of the incident that a finding belongs to.
func OfFinding(cluster string, f *verdict.Finding) string {
	class, subject := f.Kind, ""
	switch f.Kind {
	case verdict.FindingIPAMStateLost:
		class, subject = classRecordsLost, pools(f.Pool)
	case verdict.FindingInUseUnallocated:
		if subject = pools(f.Pool); vanished(f) {
			class = classRecordsLost
		}
	case verdict.FindingDoubleAllocated:
		class, subject = classAllocatedTwice, pools(f.Pool)
	case verdict.FindingBookedElsewhere:
		class, subject = classBookedFor, bookedFor(f.Owners[:min(len(f.Owners), 1)], f.Pool)
	case verdict.FindingLeaked, verdict.FindingIPAMUnreadable, verdict.FindingPoolExhaustion, verdict.FindingReusedTooSoon:
		subject = pools(f.Pool)
	case verdict.FindingPodCIDROverlap, verdict.FindingRangesOverlap:
		if o := f.Overlap; o != nil {
			class, subject = classRanges, o.Range.String()
			if a, b := o.Sides[0].Node, o.Sides[1].Node; a == b {
				subject += " " + a
			}
		}
	case verdict.FindingOrphanedSandbox:
		class, subject = classOrphans, nodes(f.Owners)
	case verdict.FindingAddressSpoofed, verdict.FindingMACCloned:
		if f.Spoof != nil && f.Spoof.Sender != nil {
			class, subject = classSpoofing, f.Spoof.Sender.ID
		}
	case verdict.FindingAnsweredByAnother, verdict.FindingVIPHeldElsewhere, verdict.FindingIntendedNotObserved:
		if len(f.Owners) > 0 && f.Pool == nil { // the first of them answers, has the address, or lacks it
			subject = owners(f.Owners[:1])
		}
	}
	if subject == "" {
		class, subject = "finding", f.ID
	}
	return id(cluster, class, subject)
}

func id(cluster, class, subject string) string {
	return verdict.FindingID(cluster, "incident "+class, subject)
}

// pools returns the subject of an accident of pools; empty if there are none.
func pools(all ...*verdict.Pool) string {
	var names []string
	for _, p := range all {
		if p != nil {
			names = append(names, p.Subject())
		}
	}
	return set(names)
}

// bookedFor returns the subject of records for others: a pool of the whole cluster may be wrong for one node.
func bookedFor(wrong []verdict.Owner, from ...*verdict.Pool) string {
	if subject := pools(from...); subject != "" {
		return subject + " " + nodes(wrong)
	}
	return ""
}

// lossGrace is how much later than the loss of all records of a pool an address may be configured of which the record was lost.
const lossGrace = 5 * time.Second

// vanished reports whether the IPAM had a record for the owner, and lost it.
func vanished(f *verdict.Finding) bool {
	if p := f.Pool; p != nil && p.LostAt != 0 && slices.ContainsFunc(f.Owners, func(o verdict.Owner) bool { return cmp.Or(o.AssignedAt(), o.FirstSeen()) <= p.LostAt.Add(lossGrace) }) {
		return true
	}
	return slices.ContainsFunc(f.Past, func(p verdict.Past) bool {
		return p.Kind == f.Kind && p.Allocation != nil && p.Ended == 0 && p.Allocation.Pool.Is(f.Pool) && (len(f.Owners) == 0 || p.Owner == f.Owners[0].ID)
	})
}

// wrong returns the owners that the cause says are wrong. If it does not say so, these are the two that had the address first: others
// come and go during a conflict.
func wrong(c *verdict.Conflict) (some []verdict.Owner) {
	for i := range c.Owners {
		if slices.Contains(c.Wrong, c.Owners[i].ID) {
			some = append(some, c.Owners[i])
		}
	}
	if len(some) > 0 {
		return some
	}
	if len(c.Order) > 1 && len(c.Owners) > 2 {
		return []verdict.Owner{c.Owners[c.Order[0]], c.Owners[c.Order[1]]}
	}
	return c.Owners
}

// shared returns the subject of a conflict of two ranges: what they have in common around the address, and the node if both
// are on one.
func shared(c *verdict.Conflict) string {
	var common ipam.Range
	for _, n := range c.Networks {
		i := slices.IndexFunc(n.Ranges.List, func(r ipam.Range) bool { return r.Contains(c.Address) })
		if i < 0 {
			return ""
		}
		r := n.Ranges.List[i]
		if !common.First.IsValid() {
			common = r
			continue
		}
		common = ipam.Range{First: later(common.First, r.First), Last: earlier(common.Last, r.Last)}
	}
	if len(c.Networks) < 2 {
		return ""
	}
	subject := common.String()
	if a, b := c.Networks[0].Node.Name, c.Networks[1].Node.Name; a == b {
		subject += " " + a
	}
	return subject
}

func later(a, b netip.Addr) netip.Addr {
	if a.Less(b) {
		return b
	}
	return a
}

func earlier(a, b netip.Addr) netip.Addr {
	if a.Less(b) {
		return a
	}
	return b
}

// nodes returns the names of the nodes of owners.
func nodes(all []verdict.Owner) string {
	var names []string
	for i := range all {
		names = append(names, all[i].Node.Name)
	}
	return set(names)
}

// owners returns what identifies the machines that own addresses: a machine with several addresses is one.
func owners(all []verdict.Owner) string {
	var names []string
	for i := range all {
		switch o := &all[i]; {
		case o.Namespace != nil:
			names = append(names, o.Namespace.ID)
		default:
			names = append(names, o.MAC.String())
		}
	}
	return set(names)
}

// set returns names as one text, in order and each once.
func set(names []string) string {
	slices.Sort(names)
	return strings.Join(slices.Compact(names), " ")
}
