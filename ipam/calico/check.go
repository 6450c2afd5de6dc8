package calico

import (
	"fmt"
	"slices"

	"github.com/ipwitness/ipwitness/ipam"
)

// check looks for blocks that are bound to nodes that do not exist. A block counts only if the next check finds it
// again, because Calico writes blocks and affinities one after the other.
func (r *reader) check() {
	bound := make(map[ipam.Key]bool)
	missed := func(resource *ipam.Resource) bool { return resource != r.reserving && !resource.Followed }
	if !slices.ContainsFunc(r.resources, missed) {
		for at, a := range r.affinities.Records {
			if has, known := r.HasNode(a.node); a.node != "" && known && !has {
				bound[at] = true
			}
		}
	}
	lasting := make(map[string]string)
	for at := range bound {
		if r.bound[at] {
			a := r.affinities.Records[at]
			pool := r.poolOf(at, a.prefix)
			text := fmt.Sprintf("the block %s of Calico is bound to node %s, which does not exist: `calicoctl ipam check` lists such blocks, and Calico's kube-controllers should free them", a.prefix, a.node)
			if before := lasting[pool]; before == "" || text < before {
				lasting[pool] = text
			}
		}
	}
	before := r.lasting
	r.bound, r.lasting = bound, lasting
	for _, name := range r.Pools() {
		if before[name] != lasting[name] {
			r.publishPool(name)
		}
	}
}
