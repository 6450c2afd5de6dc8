package audit

import (
	"net/netip"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// Family is IPv4, IPv6 or Both.
type Family int

// The families.
const (
	IPv4 Family = iota
	IPv6
	Both
)

// FamilyOf returns the family of an address.
func FamilyOf(a netip.Addr) Family {
	if a.Is4() {
		return IPv4
	}
	return IPv6
}

// A Tally counts addresses by family.
type Tally [2]int

// Of returns the number of addresses of a family.
func (t Tally) Of(f Family) int {
	if f == Both {
		return t[IPv4] + t[IPv6]
	}
	return t[f]
}

// Scarce returns the family that limits a pool, and the number of its addresses. If the pool has
// addresses of both families, a pod gets one of each, and the fuller family is the limit.
func Scarce(p *verdict.Pool, allocated Tally) (Family, uint64) {
	v4, v6 := p.SizeOf(true), p.SizeOf(false)
	switch {
	case v4 == 0 || v6 == 0:
		return Both, p.Size()
	case float64(allocated[IPv6])/float64(v6) > float64(allocated[IPv4])/float64(v4):
		return IPv6, v6
	}
	return IPv4, v4
}

// Use returns how full a pool is.
func Use(p *verdict.Pool, allocated, leaked Tally, g *Growth, now verdict.Stamp) verdict.PoolUse {
	scarce, size := Scarce(p, allocated)
	use := verdict.PoolUse{Size: size, Allocated: uint64(allocated.Of(scarce)), Leaked: uint64(leaked.Of(scarce))}
	if scarce != Both {
		use.Family = [Both]string{"IPv4", "IPv6"}[scarce]
	}
	if rate := g.rate(now, allocated, scarce); rate > 0 && use.Size > use.Allocated {
		use.ExhaustedIn = float64(use.Size-use.Allocated) / rate
	}
	return use
}

// Growth has samples of a pool's use in the last day: the use at the end of each minute in which it
// changed, and at the end of each half hour if that was more than an hour ago. Between two samples, the
// use was that of the first one.
type Growth struct {
	samples []sample
}

// sample is the use of a pool from a time on. It is small because there may be many pools.
type sample struct {
	at        verdict.Stamp
	allocated [Both]uint32
}

// of returns the number of addresses of a family.
func (s sample) of(f Family) int { return Tally{int(s.allocated[IPv4]), int(s.allocated[IPv6])}.Of(f) }

const (
	// growthRange is the time that growth is measured in, and historyRange is the time that samples
	// are kept.
	growthRange, historyRange = time.Hour, 24 * time.Hour
	// fine and coarse are the distances of samples within growthRange, and before it.
	fine, coarse = time.Minute, 30 * time.Minute
)

// See records the use of the pool now.
func (g *Growth) See(now verdict.Stamp, allocated Tally) {
	s := sample{now, [Both]uint32{uint32(allocated[IPv4]), uint32(allocated[IPv6])}}
	switch n := len(g.samples); {
	case n > 0 && g.samples[n-1].allocated == s.allocated:
		return
	case n > 0 && together(g.samples[n-1].at, now, fine):
		g.samples[n-1] = s
		return
	}
	g.samples = append(g.samples, s)
	kept := g.samples[:0]
	for i, s := range g.samples {
		if i+1 < len(g.samples) {
			next, age := g.samples[i+1].at, now.Sub(g.samples[i+1].at)
			if age > historyRange || age > growthRange && together(s.at, next, coarse) {
				continue
			}
		}
		kept = append(kept, s)
	}
	g.samples = kept
}

// together reports whether two times are in the same interval of a length.
func together(a, b verdict.Stamp, length time.Duration) bool {
	return a/verdict.Stamp(length) == b/verdict.Stamp(length)
}

// Used is the number of addresses that are allocated from a time on.
type Used struct {
	At        verdict.Stamp
	Allocated uint64
}

// History returns the use of a pool in the last day, the oldest first, in addresses of the family that
// Use is about.
func (g *Growth) History(p *verdict.Pool, allocated Tally) []Used {
	scarce, _ := Scarce(p, allocated)
	out := make([]Used, 0, len(g.samples))
	for _, s := range g.samples {
		out = append(out, Used{s.at, uint64(s.of(scarce))})
	}
	return out
}

// rate returns the growth of a pool in the last hour in addresses of a family per second; 0 if it is
// not known.
func (g *Growth) rate(now verdict.Stamp, allocated Tally, family Family) float64 {
	if len(g.samples) == 0 {
		return 0
	}
	first := g.samples[0]
	for _, s := range g.samples {
		if now.Sub(s.at) <= growthRange {
			break
		}
		first = s
	}
	lasted, grown := min(now.Sub(first.at), growthRange), allocated.Of(family)-first.of(family)
	if lasted < time.Minute || grown <= 0 {
		return 0
	}
	return float64(grown) / lasted.Seconds()
}
