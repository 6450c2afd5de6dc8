package index

import (
	"cmp"
	"encoding/binary"
	"net/netip"
)

// Partitions is the number of partitions of addresses. Each has one worker, which judges the addresses in it.
const Partitions = 256

// An Address is an IP address without a zone in 16 bytes without a pointer. Addresses compare as
// netip.Addr does: IPv4 addresses first, then IPv6 addresses. The zero Address is 0.0.0.0, which
// is the first one.
//
// IPv4 addresses use the numbers from 0. The IPv6 addresses below ::ffff:0:0 are shifted up by 2^32 to
// make room for them. They then use the numbers of ::ffff:0:0/96, which are free because these
// addresses are IPv4 addresses.
type Address struct{ hi, lo uint64 }

const (
	v4Count  = 1 << 32
	v4Mapped = 0xffff << 32 // the low half of ::ffff:0:0
)

// AddressOf returns a as an Address, without its zone. An IPv4 address in IPv6 notation is the
// IPv4 address.
func AddressOf(a netip.Addr) Address {
	b := a.As16()
	x := Address{binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])}
	switch {
	case x.hi != 0 || x.lo >= v4Mapped+v4Count:
	case x.lo >= v4Mapped:
		x.lo -= v4Mapped
	default:
		x.lo += v4Count
	}
	return x
}

// Addr returns the address as a netip.Addr.
func (x Address) Addr() netip.Addr {
	switch {
	case x.hi != 0 || x.lo >= v4Mapped+v4Count:
	case x.lo < v4Count:
		var b [4]byte
		binary.BigEndian.PutUint32(b[:], uint32(x.lo))
		return netip.AddrFrom4(b)
	default:
		x.lo -= v4Count
	}
	var b [16]byte
	binary.BigEndian.PutUint64(b[:8], x.hi)
	binary.BigEndian.PutUint64(b[8:], x.lo)
	return netip.AddrFrom16(b)
}

// Compare returns -1, 0 or +1 as netip.Addr.Compare does.
func (x Address) Compare(y Address) int {
	if c := cmp.Compare(x.hi, y.hi); c != 0 {
		return c
	}
	return cmp.Compare(x.lo, y.lo)
}

// Less reports whether x is before y.
func (x Address) Less(y Address) bool {
	return x.hi < y.hi || x.hi == y.hi && x.lo < y.lo
}

// Partition returns the number of the partition that has the address.
func (x Address) Partition() int {
	const multiplier = 0x9e3779b97f4a7c15 // the golden ratio, which spreads neighbouring addresses evenly
	h := (x.hi ^ x.hi>>32) * multiplier
	h = (h ^ h>>29 ^ x.lo) * multiplier
	return int((h ^ h>>32) * multiplier >> 56)
}

// Bytes returns the address as bytes, which have the same order as addresses.
func (x Address) Bytes() (b [16]byte) {
	binary.BigEndian.PutUint64(b[:8], x.hi)
	binary.BigEndian.PutUint64(b[8:], x.lo)
	return b
}

// AddressFrom returns the address whose Bytes are b.
func AddressFrom(b [16]byte) Address {
	return Address{binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])}
}
