package verdict

import "net/netip"

type Told struct {
	Summary          string
	Evidence, Advice []string
	Fixes            []Fix
}
type Side struct {
	Node, Network, Config, Device string
	Ranges                        []Range
	Prefixes                      []netip.Prefix
	From                          string
}

func (p *Policy) Tell(f *Finding, use PoolUse) Told { return Told{Summary: f.Kind} }
func TellPool(kind string, pool *Pool, use PoolUse, atRisk []netip.Addr, names []string) Told {
	return Told{Summary: kind}
}
func TellOverlap(kind string, a, b Side) Told { return Told{Summary: kind} }
