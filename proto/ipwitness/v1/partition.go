package ipwitnessv1

import (
	"encoding/binary"
	"net/netip"
)

// Partitions is the number of partitions that replicas of an aggregator share.
const Partitions = 256

// Partition returns the number of the partition that has an address. It never changes, because several
// processes share the partitions.
func Partition(a netip.Addr) int {
	a = a.Unmap().WithZone("")
	if a.Is4() {
		b := a.As4()
		return PartitionOf(0, uint64(binary.BigEndian.Uint32(b[:])))
	}
	b := a.As16()
	hi, lo := binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])
	if hi == 0 && lo < 0xffff<<32 {
		lo += 1 << 32 // the numbers below are those of IPv4 addresses
	}
	return PartitionOf(hi, lo)
}

// PartitionOf returns the number of the partition that has an address, which is given as a number of 128
// bits: an IPv4 address as its own number, and an IPv6 address below ::ffff:0:0 shifted up by 2^32.
func PartitionOf(hi, lo uint64) int {
	const multiplier = 0x9e3779b97f4a7c15 // the golden ratio, which spreads neighbouring addresses evenly
	h := (hi ^ hi>>32) * multiplier
	h = (h ^ h>>29 ^ lo) * multiplier
	return int((h ^ h>>32) * multiplier >> 56) //nolint:gosec // 8 bits
}

// Serves reports whether partitions contain one of them. Unset partitions contain all.
func (x *PartitionSet) Serves(partition int) bool {
	if x == nil {
		return true
	}
	set := x.GetServed()
	return partition/8 < len(set) && set[partition/8]&(1<<(partition%8)) != 0
}
