package kube

import (
	"encoding/binary"
	"math/big"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// usable returns a prefix without its first and last address, unless it has only these.
func usable(p netip.Prefix) verdict.Range {
	r := verdict.RangeOf(p)
	if p.Addr().BitLen()-p.Bits() > 1 {
		r.First, r.Last = r.First.Next(), r.Last.Prev()
	}
	return r
}

// without returns the ranges without the addresses of less.
func without(ranges []verdict.Range, less verdict.Range) (rest []verdict.Range) {
	for _, r := range ranges {
		if !r.Overlaps(less) {
			rest = append(rest, r)
			continue
		}
		if r.First.Less(less.First) {
			rest = append(rest, verdict.Range{First: r.First, Last: less.First.Prev()})
		}
		if less.Last.Less(r.Last) {
			rest = append(rest, verdict.Range{First: less.Last.Next(), Last: r.Last})
		}
	}
	return rest
}

// union returns the addresses of all ranges, sorted and without overlaps.
func union(ranges []verdict.Range) []verdict.Range {
	slices.SortFunc(ranges, func(a, b verdict.Range) int { return a.First.Compare(b.First) })
	var all []verdict.Range
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

// plus returns the address at an offset; false if the result is not an address.
func plus(a netip.Addr, offset uint64) (netip.Addr, bool) {
	if a.Is4() {
		b := a.As4()
		sum := uint64(binary.BigEndian.Uint32(b[:])) + offset
		if offset > 1<<32 || sum >= 1<<32 {
			return netip.Addr{}, false
		}
		binary.BigEndian.PutUint32(b[:], uint32(sum))
		return netip.AddrFrom4(b), true
	}
	b := a.As16()
	low := binary.BigEndian.Uint64(b[8:])
	high := binary.BigEndian.Uint64(b[:8])
	if low+offset < low {
		if high++; high == 0 {
			return netip.Addr{}, false
		}
	}
	binary.BigEndian.PutUint64(b[8:], low+offset)
	binary.BigEndian.PutUint64(b[:8], high)
	return netip.AddrFrom16(b), true
}

// offsetFrom is plus for an offset in text form. Offsets in IPv6 ranges may need more than 64
// bits.
func offsetFrom(a netip.Addr, offset string) (netip.Addr, bool) {
	if n, err := strconv.ParseUint(offset, 10, 64); err == nil {
		return plus(a, n)
	}
	const most = 39 // digits of a 128-bit number
	if offset == "" || len(offset) > most || strings.Trim(offset, "0123456789") != "" {
		return netip.Addr{}, false
	}
	n, _ := new(big.Int).SetString(offset, 10)
	if n.Add(n, new(big.Int).SetBytes(a.AsSlice())); n.BitLen() > a.BitLen() {
		return netip.Addr{}, false
	}
	return netip.AddrFromSlice(n.FillBytes(a.AsSlice()))
}
