package judge

import (
	"slices"

	"github.com/ipwitness/ipwitness/aggregator/audit"
	"github.com/ipwitness/ipwitness/aggregator/facts"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
)

// compareMACs publishes the findings about hardware addresses that several namespaces on one link have, once
// they have had them for the settle time. It returns when to compare again; 0 for never.
func (o *Overlaps) compareMACs(nodes []*facts.Node) (again verdict.Stamp) {
	o.facts.RLock()
	defer o.facts.RUnlock()
	macs := o.facts.CommonMACs()
	for _, n := range nodes {
		macs = append(macs, o.macs[n]...)
	}
	slices.Sort(macs)
	begun, now := make(map[string]verdict.Stamp), o.facts.Clock()
	for _, mac := range slices.Compact(macs) {
		found := audit.Twins(o.facts.Policy, mac, o.facts.WithMAC(mac))
		for i := range found {
			f := &found[i]
			since, known := o.begun[f.ID]
			if !known {
				since = now
			}
			begun[f.ID] = since
			due := since.Add(o.facts.Policy.Settle)
			switch doubtful := slices.ContainsFunc(f.Owners, func(owner verdict.Owner) bool { return owner.State == verdict.Unheard }); {
			case o.set.Get(f.ID) != nil, now >= due && !doubtful:
				o.found[f.ID] = struct{}{}
				o.set.Publish(f)
			case !doubtful && (again == 0 || due < again): // a machine that was rebooted may be another node now
				again = due
			}
		}
	}
	o.begun = begun
	return again
}
