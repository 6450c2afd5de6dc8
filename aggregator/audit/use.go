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

// Growth has samples of a pool's use in the last hour, at least one minute apart.
type Growth struct {
	samples []sample
}

type sample struct {
	at        verdict.Stamp
	allocated Tally
}

// See records the use of the pool before a change.
func (g *Growth) See(now verdict.Stamp, allocated Tally) {
	if n := len(g.samples); n > 0 && now.Sub(g.samples[n-1].at) < time.Minute {
		return
	}
	g.samples = append(g.samples, sample{now, allocated})
	for len(g.samples) > 1 && now.Sub(g.samples[1].at) > time.Hour {
		g.samples = g.samples[1:]
	}
}

// rate returns the growth of a pool in addresses of a family per second; 0 if it is not known.
func (g *Growth) rate(now verdict.Stamp, allocated Tally, family Family) float64 {
	if len(g.samples) == 0 {
		return 0
	}
	first := g.samples[0]
	for _, s := range g.samples {
		if now.Sub(s.at) <= time.Hour {
			break
		}
		first = s
	}
	lasted, grown := now.Sub(first.at), allocated.Of(family)-first.allocated.Of(family)
	if lasted < time.Minute || grown <= 0 {
		return 0
	}
	return float64(grown) / lasted.Seconds()
}
