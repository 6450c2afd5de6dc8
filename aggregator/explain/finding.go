package explain

import "github.com/ipwitness/ipwitness/aggregator/verdict"

// Finding returns the text of a finding. For a finding about one address, use is the current usage
// of its pool, or the zero value if it is not known.
func Finding(f *verdict.Finding, use verdict.PoolUse) Told {
	switch f.Kind {
	case verdict.FindingIPAMStateLost, verdict.FindingIPAMUnreadable, verdict.FindingPoolExhaustion:
		return tellPool(f).readable()
	case verdict.FindingPodCIDROverlap, verdict.FindingRangesOverlap:
		return tellOverlap(f).readable()
	case verdict.FindingDuplicateNodeName:
		return tellNamesakes(f.Namesakes).readable()
	}
	return tellAddress(f, use).readable()
}

// tellAddress returns the text of a finding about one address.
func tellAddress(f *verdict.Finding, use verdict.PoolUse) Told {
	t := newTelling(f, use)
	switch f.Kind {
	case verdict.FindingInUseUnallocated:
		mismatch{t}.unallocated()
	case verdict.FindingBookedElsewhere:
		mismatch{t}.elsewhere()
	case verdict.FindingLeaked:
		mismatch{t}.leaked()
	case verdict.FindingDoubleAllocated:
		double{t}.tell()
	case verdict.FindingIntendedNotObserved:
		tellIntended(t)
	case verdict.FindingAddressSpoofed:
		spoof{t}.address()
	case verdict.FindingMACCloned:
		spoof{t}.mac()
	case verdict.FindingSharedAddressAnswered:
		tellShared(t)
	}
	return t.Told
}
