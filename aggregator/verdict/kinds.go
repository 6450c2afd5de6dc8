package verdict

// FindingKinds are all kinds of findings, those that matter most first.
func FindingKinds() []string {
	return []string{
		FindingAddressSpoofed, FindingMACCloned, FindingIPAMStateLost, FindingInUseUnallocated, FindingBookedElsewhere, FindingDoubleAllocated, FindingPodCIDROverlap,
		FindingRangesOverlap, FindingIPAMUnreadable, FindingIntendedNotObserved, FindingPoolExhaustion, FindingLeaked,
		FindingSharedAddressAnswered, FindingDuplicateNodeName,
	}
}
