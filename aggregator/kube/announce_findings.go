package kube

import (
	"strings"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// findingReasons are those of events about findings, while they last.
var findingReasons = map[string]string{
	verdict.FindingInUseUnallocated:      "AddressInUseUnallocated",
	verdict.FindingBookedElsewhere:       "AddressBookedElsewhere",
	verdict.FindingLeaked:                "AddressLeaked",
	verdict.FindingDoubleAllocated:       "AddressDoubleAllocated",
	verdict.FindingIntendedNotObserved:   "AddressNotObserved",
	verdict.FindingSharedAddressAnswered: "AddressSharedAnswered",
	verdict.FindingAddressSpoofed:        "AddressSpoofed",
	verdict.FindingMACCloned:             "MACCloned",
	verdict.FindingPodCIDROverlap:        "IPAMPodCIDROverlap",
	verdict.FindingRangesOverlap:         "IPAMRangesOverlap",
	verdict.FindingIPAMStateLost:         "IPAMStateLost",
	verdict.FindingIPAMUnreadable:        "IPAMUnreadable",
	verdict.FindingPoolExhaustion:        "IPAMPoolExhaustion",
	verdict.FindingDuplicateNodeName:     "DuplicateNodeName",
}

// findingReason is that of events about a kind of findings: of one without a name of
// its own it is made of the kind.
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

// AnnounceFinding has Events written about a finding, or that it is over: on the pods
// of those who hold the address and on the nodes concerned, of no more than
// maxFindingTargets. What is only good to know is not told. It may be called again and
// again for the same state, and only notes what is to be done.
func (c *Cluster) AnnounceFinding(finding *pb.Finding, over bool) {
	if c == nil || finding.GetSeverity() < pb.Finding_WARNING && !over {
		return
	}
	reason := findingReason(finding.GetKind())
	n := &announcement{
		id: finding.GetId(), address: finding.GetAddress(), reason: reason, over: reason + "Resolved", mark: findingNote, finding: true,
		resolved: over, detected: finding.GetDetectedAt().AsTime(), summary: finding.GetSummary(), runbook: finding.GetRunbook(),
	}
	n.first = firstOf(finding.GetRemedy())
	var about []target
	for _, o := range finding.GetOwners() {
		about = append(about, podOf(o))
	}
	for _, node := range finding.GetNodes() {
		about = append(about, target{node: node})
	}
	c.announcer.say(n, about)
}
