package explain

import "github.com/ipwitness/ipwitness/aggregator/verdict"

// Finding returns the text of a finding. For a finding about one address, use is the current usage
// of its pool, or the zero value if it is not known.
func Finding(f *verdict.Finding, use verdict.PoolUse) FindingText {
	switch f.Kind {
	case verdict.FindingIPAMStateLost, verdict.FindingIPAMUnreadable, verdict.FindingPoolExhaustion:
		return poolFinding(f).readable()
	case verdict.FindingPodCIDROverlap, verdict.FindingRangesOverlap:
		return overlapFinding(f).readable()
	case verdict.FindingDuplicateNodeName:
		return namesakesFinding(f.Namesakes).readable()
	}
	return addressFinding(f, use).readable()
}

// addressFinding returns the text of a finding about one address.
func addressFinding(f *verdict.Finding, use verdict.PoolUse) FindingText {
	t := newFindingBuilder(f, use)
	switch f.Kind {
	case verdict.FindingInUseUnallocated:
		mismatch{t}.unallocated()
	case verdict.FindingBookedElsewhere:
		mismatch{t}.elsewhere()
	case verdict.FindingLeaked:
		mismatch{t}.leaked()
	case verdict.FindingDoubleAllocated:
		double{t}.build()
	case verdict.FindingIntendedNotObserved:
		buildIntended(t)
	case verdict.FindingAddressSpoofed:
		spoof{t}.address()
	case verdict.FindingMACCloned:
		spoof{t}.mac()
	case verdict.FindingSharedAddressAnswered:
		buildShared(t)
	case verdict.FindingReusedTooSoon:
		buildReused(t)
	case verdict.FindingVIPHeldElsewhere:
		buildHeldElsewhere(t)
	}
	return t.FindingText
}
