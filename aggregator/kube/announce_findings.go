package kube

import (
	"strings"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// findingReasons are the reasons of events about findings that have not ended.
var findingReasons = map[string]string{
	verdict.FindingInUseUnallocated:      "AddressInUseUnallocated",
	verdict.FindingBookedElsewhere:       "AddressBookedElsewhere",
	verdict.FindingLeaked:                "AddressLeaked",
	verdict.FindingDoubleAllocated:       "AddressDoubleAllocated",
	verdict.FindingIntendedNotObserved:   "AddressNotObserved",
	verdict.FindingSharedAddressAnswered: "AddressSharedAnswered",
	verdict.FindingVIPHeldElsewhere:      "VIPHeldElsewhere",
	verdict.FindingReusedTooSoon:         "AddressReusedTooSoon",
	verdict.FindingAddressSpoofed:        "AddressSpoofed",
	verdict.FindingMACCloned:             "MACCloned",
	verdict.FindingPodCIDROverlap:        "IPAMPodCIDROverlap",
	verdict.FindingRangesOverlap:         "IPAMRangesOverlap",
	verdict.FindingIPAMStateLost:         "IPAMStateLost",
	verdict.FindingIPAMUnreadable:        "IPAMUnreadable",
	verdict.FindingPoolExhaustion:        "IPAMPoolExhaustion",
	verdict.FindingDuplicateNodeName:     "DuplicateNodeName",
}

// findingReason returns the reason of events about a kind of findings. A kind without an
// entry in findingReasons gets one derived from its name.
func findingReason(kind string) string {
	if reason := findingReasons[kind]; reason != "" {
		return reason
	}
	var b strings.Builder
	b.WriteString("IPAM")
	for word := range strings.SplitSeq(kind, "-") {
		if word != "" {
			b.WriteString(strings.ToUpper(word[:1]) + word[1:])
		}
	}
	return b.String()
}

// AnnounceFinding queues Events about a finding of at least WARNING, or about its end. The
// Events are about the pods that hold the address and the nodes concerned, at most
// maxFindingTargets. Repeating it for the same state has no effect.
func (c *Cluster) AnnounceFinding(finding *pb.Finding, over bool) {
	c.announceFinding(finding, over, false)
}

// RecallFinding is like AnnounceFinding, for a finding from before the start. It assumes that the Events
// about a finding that began earlier than lately were written then.
func (c *Cluster) RecallFinding(finding *pb.Finding) {
	c.announceFinding(finding, false, time.Since(finding.GetDetectedAt().AsTime()) > lately)
}

func (c *Cluster) announceFinding(finding *pb.Finding, over, before bool) {
	if c == nil || finding.GetSeverity() < pb.Finding_WARNING && !over {
		return
	}
	reason := findingReason(finding.GetKind())
	n := &announcement{
		id: finding.GetId(), address: finding.GetAddress(), reason: reason, over: reason + "Resolved", mark: findingNote, finding: true,
		resolved: over, detected: finding.GetDetectedAt().AsTime(), summary: finding.GetSummary(), runbook: finding.GetRunbook(),
		before: before,
	}
	n.first = firstOf(finding.GetRemedy())
	var about []target
	for _, o := range finding.GetOwners() {
		about = append(about, podOf(o))
	}
	for _, node := range finding.GetNodes() {
		about = append(about, target{node: node})
	}
	c.announcer.announce(n, about)
}
