package ipam

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/big"
	"math/bits"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	netutils "k8s.io/utils/net"
)

// A Range is all addresses from First to Last.
type Range struct{ First, Last netip.Addr }

// Contains reports whether an address is in the range.
func (r Range) Contains(a netip.Addr) bool {
	return r.First.BitLen() == a.BitLen() && r.First.Compare(a) <= 0 && a.Compare(r.Last) <= 0
}

// Overlaps reports whether two ranges have an address in common.
func (r Range) Overlaps(other Range) bool {
	return r.First.BitLen() == other.First.BitLen() && r.First.Compare(other.Last) <= 0 && other.First.Compare(r.Last) <= 0
}

// Common returns the addresses that two overlapping ranges have in common.
func (r Range) Common(other Range) Range {
	if r.First.Less(other.First) {
		r.First = other.First
	}
	if other.Last.Less(r.Last) {
		r.Last = other.Last
	}
	return r
}

// Size returns the number of addresses in the range; the largest uint64 if there are more.
func (r Range) Size() uint64 {
	if n := distance(r.First, r.Last); n.IsUint64() && n.Uint64() < math.MaxUint64 {
		return n.Uint64() + 1
	}
	return math.MaxUint64
}

// distance returns how far an address is above another one.
func distance(from, to netip.Addr) *big.Int {
	n := new(big.Int).SetBytes(to.AsSlice())
	return n.Sub(n, new(big.Int).SetBytes(from.AsSlice()))
}

// String returns the range as a prefix if it is one, or as FIRST-LAST.
func (r Range) String() string {
	if p := r.Prefix(); RangeOf(p) == r {
		return p.String()
	}
	return r.First.String() + "-" + r.Last.String()
}

// RangeOf returns the range of all addresses of a prefix.
func RangeOf(p netip.Prefix) Range {
	last := p.Addr().AsSlice()
	for bit := p.Bits(); bit < 8*len(last); bit++ {
		last[bit/8] |= 1 << (7 - bit%8)
	}
	end, _ := netip.AddrFromSlice(last)
	return Range{First: p.Masked().Addr(), Last: end}
}

// ParseRange parses an address, a CIDR, or the first and the last address with a separator between
// them.
func ParseRange(text, separator string) (Range, error) {
	if p, err := netip.ParsePrefix(text); err == nil {
		return RangeOf(p), nil
	}
	first, last, ok := strings.Cut(text, separator)
	if !ok {
		last = first
	}
	var r Range
	var err error
	if r.First, err = netip.ParseAddr(first); err != nil {
		return Range{}, fmt.Errorf("%q is neither an address nor a range", Shorten(text))
	}
	if r.Last, err = netip.ParseAddr(last); err != nil || r.First.BitLen() != r.Last.BitLen() || r.Last.Less(r.First) {
		return Range{}, fmt.Errorf("%q is not a range", Shorten(text))
	}
	return r, nil
}

// Prefix returns the smallest prefix that contains the range.
func (r Range) Prefix() netip.Prefix {
	first, last := r.First.AsSlice(), r.Last.AsSlice()
	same := 0
	for i := range first {
		if x := first[i] ^ last[i]; x != 0 {
			same += bits.LeadingZeros8(x)
			break
		}
		same += 8
	}
	return netip.PrefixFrom(r.First, same).Masked()
}

// OffsetOf returns the distance of an address from the base in decimal; false if the address is below the base, of
// another family, or too far for an int64.
func OffsetOf(base, a netip.Addr) (offset string, ok bool) {
	if base.BitLen() != a.BitLen() || !a.IsValid() || a.Less(base) {
		return "", false
	}
	n := distance(base, a)
	return n.String(), n.IsInt64()
}

// Usable returns a prefix without its first and last address, unless it has only these.
func Usable(p netip.Prefix) Range {
	r := RangeOf(p)
	if p.Addr().BitLen()-p.Bits() > 1 {
		r.First, r.Last = r.First.Next(), r.Last.Prev()
	}
	return r
}

// Without returns the ranges without the addresses of less.
func Without(ranges []Range, less Range) (rest []Range) {
	for _, r := range ranges {
		if !r.Overlaps(less) {
			rest = append(rest, r)
			continue
		}
		if r.First.Less(less.First) {
			rest = append(rest, Range{First: r.First, Last: less.First.Prev()})
		}
		if less.Last.Less(r.Last) {
			rest = append(rest, Range{First: less.Last.Next(), Last: r.Last})
		}
	}
	return rest
}

// Union returns the addresses of all ranges, sorted and without overlaps.
func Union(ranges []Range) []Range {
	slices.SortFunc(ranges, func(a, b Range) int { return a.First.Compare(b.First) })
	var all []Range
	for _, r := range ranges {
		if n := len(all); n > 0 && all[n-1].First.BitLen() == r.First.BitLen() && (r.First.Compare(all[n-1].Last) <= 0 || all[n-1].Last.Next() == r.First) {
			if all[n-1].Last.Less(r.Last) {
				all[n-1].Last = r.Last
			}
			continue
		}
		all = append(all, r)
	}
	return all
}

// ParseAddress parses an address as Kubernetes does: in IPv4, leading zeros have no meaning ("010" is 10), and an
// IPv4-mapped address is IPv4.
func ParseAddress(text string) (netip.Addr, error) {
	a, ok := netip.AddrFromSlice(netutils.ParseIPSloppy(text))
	if !ok {
		return netip.Addr{}, fmt.Errorf("%q is not an address", Shorten(text))
	}
	return a.Unmap(), nil
}

// Contain reports whether one of the ranges that Union returned contains an address.
func Contain(sorted []Range, a netip.Addr) bool {
	i, found := slices.BinarySearchFunc(sorted, a, func(r Range, a netip.Addr) int { return r.First.Compare(a) })
	return found || i > 0 && a.Compare(sorted[i-1].Last) <= 0
}

// Plus returns the address at an offset; false if the result is not an address of the same family.
func Plus(a netip.Addr, offset uint64) (netip.Addr, bool) {
	b := a.As16() // IPv4 follows ::ffff:0:0, which a carry changes
	low, carry := bits.Add64(binary.BigEndian.Uint64(b[8:]), offset, 0)
	high, overflow := bits.Add64(binary.BigEndian.Uint64(b[:8]), 0, carry)
	binary.BigEndian.PutUint64(b[8:], low)
	binary.BigEndian.PutUint64(b[:8], high)
	sum := netip.AddrFrom16(b)
	if a.Is4() {
		sum = sum.Unmap()
	}
	if overflow != 0 || sum.Is4() != a.Is4() {
		return netip.Addr{}, false
	}
	return sum, true
}

// OffsetFrom is Plus for an offset in text form, which must fit into an int64.
func OffsetFrom(a netip.Addr, offset string) (netip.Addr, bool) {
	n, err := strconv.ParseInt(offset, 10, 64)
	if err != nil || n < 0 {
		return netip.Addr{}, false
	}
	return Plus(a, uint64(n))
}
