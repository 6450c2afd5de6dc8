package aggregator

import (
	"iter"
	"slices"

	"github.com/ipwitness/ipwitness/aggregator/index"
	"github.com/ipwitness/ipwitness/aggregator/kube"
	"github.com/ipwitness/ipwitness/aggregator/shard"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
)

// manyPods is a number of changed pods that only a listing reaches. A listing leaves much more unused
// memory behind than it takes.
const manyPods = 1000

// kubernetesChanged passes changes of the Kubernetes API to the rooms that they concern.
func (c *core) kubernetesChanged(what kube.Changes) {
	if what.State || len(what.Nodes) > 0 {
		c.coverage.Changed()
	}
	if len(what.Pods) > 0 {
		keys := make([]string, 0, 2*len(what.Pods))
		for _, p := range what.Pods {
			keys = append(keys, p.UID, p.Namespace+"/"+p.Name)
		}
		c.judge(c.facts.PodsChanged(keys))
	}
	if what.State || len(what.Nodes) > 0 {
		slices.Sort(what.Nodes)
		c.judge(c.facts.PodsOnChanged(func(node string) bool {
			_, moved := slices.BinarySearch(what.Nodes, node)
			return what.State || moved
		}))
	}
	if len(what.Networks) > 0 {
		var ranges []ipam.Range
		for _, p := range what.Networks {
			ranges = append(ranges, ipam.RangeOf(p))
		}
		c.judgeInside(ranges)
	}
	if len(what.Pods) >= manyPods {
		c.tidier.later()
	}
	if len(what.IPAM) > 0 {
		b, reach := c.facts.IPAMChanged(what.IPAM)
		c.judge(b)
		c.judgeInside(reach)
	}
	if len(what.Networks) > 0 || len(what.Nodes) > 0 {
		c.findings.Overlaps.Changed(nil)
	}
	if len(what.Related) > 0 {
		c.republish(what.Related)
	}
	if what.Acknowledgements {
		c.acknowledgements.Adopt()
	}
}

// judgeInside has the owners of the addresses in some ranges judged again.
func (c *core) judgeInside(ranges []ipam.Range) {
	for _, r := range merged(ranges) {
		var some []index.Address
		for p := range c.within(r) {
			if some = append(some, p.Address()); len(some) == judgedTogether {
				c.judge(c.facts.Touch(some))
				some = some[:0]
			}
		}
		c.judge(c.facts.Touch(some))
	}
}

// judgedTogether is the number of addresses of a range that are judged at a time.
const judgedTogether = 4096

// within yields the places of a range in order, as they were when it was called.
func (c *core) within(r ipam.Range) iter.Seq[shard.Place] {
	last := index.AddressOf(r.Last)
	return index.Until(c.shards.Places().From(shard.From(index.AddressOf(r.First))), func(p shard.Place) bool { return last.Less(p.Address()) })
}

// republish publishes again the conflicts that have an owner on one of the nodes.
func (c *core) republish(nodes []string) {
	told := make(map[string]bool, len(nodes))
	for _, n := range nodes {
		told[n] = true
	}
	var addrs []index.Address
	c.facts.RLock()
	for _, one := range c.shards.Conflicts.All() {
		if one.Active() && slices.ContainsFunc(one.Owners, func(o verdict.Owner) bool { return told[o.Node.Name] }) {
			addrs = append(addrs, index.AddressOf(one.Address))
		}
	}
	c.facts.RUnlock()
	c.judge(c.facts.Republish(addrs))
}

// merged returns the addresses of ranges, which may overlap, as ranges that neither overlap nor
// adjoin, in order. It changes the order of its argument.
func merged(ranges []ipam.Range) (all []ipam.Range) {
	slices.SortFunc(ranges, func(a, b ipam.Range) int { return a.First.Compare(b.First) })
	for _, r := range ranges {
		if n := len(all); n > 0 {
			if end := all[n-1].Last; r.First.Compare(end) <= 0 || r.First == end.Next() {
				if end.Less(r.Last) {
					all[n-1].Last = r.Last
				}
				continue
			}
		}
		all = append(all, r)
	}
	return all
}
