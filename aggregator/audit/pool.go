package audit

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
)

const (
	// nearlyFull is the share of allocated addresses from which a pool has a finding. halfFull is
	// that share for a pool that will be exhausted within soon.
	nearlyFull = 0.9
	halfFull   = 0.5
	soon       = time.Hour
	// lossGrace is how long after the loss of a record its address may still be assigned.
	lossGrace = time.Minute
	// maxAtRisk is the largest number of addresses that a finding lists.
	maxAtRisk = 1000
)

// A Risk is an address in use that a pool considers free, with its owners.
type Risk struct {
	Address netip.Addr
	Owners  []verdict.Owner
}

// Given is the use of a pool.
type Given struct {
	// Pool is an immutable copy.
	Pool *verdict.Pool
	Use  verdict.PoolUse
	// Allocated is the number of allocated addresses of both families.
	Allocated int
	// AtRisk are the addresses in use that the pool considers free.
	AtRisk []Risk
}

// PoolKinds returns the kinds of findings about pools.
func PoolKinds() []string {
	return []string{verdict.FindingIPAMStateLost, verdict.FindingIPAMUnreadable, verdict.FindingPoolExhaustion}
}

// PoolID returns the ID of the finding of a kind about a pool.
func PoolID(p *verdict.Policy, kind string, pool *verdict.Pool) string {
	return verdict.FindingID(p.Cluster, kind, pool.Subject())
}

// Pool returns the findings about a pool.
func Pool(p *verdict.Policy, g Given) (findings []verdict.Finding) {
	find := func(kind string, severity verdict.Severity, atRisk []verdict.Held) {
		findings = append(findings, verdict.Finding{
			ID: PoolID(p, kind, g.Pool), Kind: kind, Severity: severity, Pool: g.Pool, Stock: &verdict.Stock{Use: g.Use, AtRisk: atRisk},
		})
	}
	if Lost(g) {
		find(verdict.FindingIPAMStateLost, verdict.Critical, g.held())
	}
	if g.Pool.Problem != "" && g.Pool.State != ipam.Missing {
		find(verdict.FindingIPAMUnreadable, verdict.Warning, nil)
	}
	share := float64(g.Use.Allocated) / float64(max(g.Use.Size, 1))
	leases := g.Pool.Leases // its reservations are addresses outside of its ranges, too
	if g.Use.Size > 0 && !leases && (share >= nearlyFull || share >= halfFull && g.Use.ExhaustedIn > 0 && g.Use.ExhaustedIn < soon.Seconds()) {
		find(verdict.FindingPoolExhaustion, verdict.Warning, nil)
	}
	return findings
}

// Lost reports whether a pool lost all of its records while addresses of it are in use. The loss of
// a cluster-wide pool is not observed; it is inferred if the pool has no records and pods have
// several of its addresses. Addresses of nodes do not count, because no IPAM but DHCP allocated them, and
// Cilium's objects are not its records. The loss of a pool of a node counts if an owner had an address
// at that time, by the clock of the node: records of unused addresses may never come back, and later
// problems with other addresses have another cause. A pool of a node that has no records may never have had
// any, unless an owner has an address that the pool may have allocated: one from another network is recorded elsewhere.
func Lost(g Given) bool {
	used := func(by func(o *verdict.Owner) bool) (n int) {
		for _, r := range g.AtRisk {
			if slices.ContainsFunc(r.Owners, func(o verdict.Owner) bool { return o.Has() && by(&o) }) {
				n++
			}
		}
		return n
	}
	switch p := g.Pool; {
	case len(g.AtRisk) == 0, p.Services != "":
		return false
	case p.State == ipam.Missing && (p.Node == nil || p.Leases):
		return true
	case p.State == ipam.Missing:
		return used(func(o *verdict.Owner) bool {
			return o.Node.Is(p.Node) && o.Kind() != verdict.Host && (p.LostAt != 0 || p.MayServe(o))
		}) > 0
	case p.Node != nil:
		return p.LostAt != 0 && used(func(o *verdict.Owner) bool {
			return o.Node.Is(p.Node) && (p.Leases || o.Kind() != verdict.Host) && cmp.Or(o.AssignedAt(), o.FirstSeen()) <= p.LostAt.Add(lossGrace)
		}) > 0
	default:
		return !p.Mirrored && g.Allocated == 0 && used(func(o *verdict.Owner) bool { return o.Workload().Kind == verdict.Pod }) > 1
	}
}

// held returns the first addresses at risk, in order, with their owners.
func (g *Given) held() []verdict.Held {
	all := make([]verdict.Held, 0, len(g.AtRisk))
	for _, r := range g.AtRisk {
		h := verdict.Held{Address: r.Address}
		for i := range r.Owners {
			if o := &r.Owners[i]; o.Has() && (g.Pool.Node == nil || o.Node.Is(g.Pool.Node)) {
				h.Owner = o
				break
			}
		}
		all = append(all, h)
	}
	slices.SortFunc(all, func(a, b verdict.Held) int { return a.Address.Compare(b.Address) })
	return all[:min(len(all), maxAtRisk)]
}
