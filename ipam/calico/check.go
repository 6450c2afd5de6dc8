package calico

import (
	"fmt"
	"slices"

	"github.com/ipwitness/ipwitness/ipam"
)

// findings are the results of a check. An inconsistency is reported when the next check finds it
// again.
type findings struct {
	handles map[uint64]bool
	bound   map[ipam.Key]bool
}

// check looks for inconsistencies. An inconsistency counts only if it lasts, because Calico writes
// handles, blocks and affinities one after the other.
func (r *reader) check() {
	found := findings{handles: r.lostHandles(), bound: r.strayAffinities()}
	lasting := make(map[string]string)
	for at := range found.bound {
		if r.found.bound[at] {
			a := r.affinities.Records[at]
			pool := r.poolOf(at, a.prefix)
			text := fmt.Sprintf("the block %s of Calico is bound to node %s, which does not exist: `calicoctl ipam check` lists such blocks, and Calico's kube-controllers should free them", a.prefix, a.node)
			if before := lasting[pool]; before == "" || text < before {
				lasting[pool] = text
			}
		}
	}
	lost := 0
	for pair := range found.handles {
		if r.found.handles[pair] {
			lost++
		}
	}
	names := r.Pools()
	if lost > 0 && len(names) > 0 && lasting[names[0]] == "" {
		lasting[names[0]] = fmt.Sprintf("%d IPAMHandles of Calico count addresses of blocks that do not have them: `calicoctl ipam check` lists them", lost)
	}
	r.found = found
	before := r.lasting
	r.lasting = lasting
	for _, name := range names {
		if before[name] != lasting[name] {
			r.publishPool(name)
		}
	}
}

// lostHandles returns the handles that name a block in which they have no address.
func (r *reader) lostHandles() map[uint64]bool {
	if !r.listed() {
		return nil
	}
	had := make(map[uint64]struct{}, len(r.handles.blocks))
	for _, block := range r.blocks.Records {
		if block.bad {
			return nil
		}
		for i := range block.allocations {
			had[block.allocations[i].handle] = struct{}{}
		}
	}
	lost := make(map[uint64]bool)
	for _, named := range r.handles.blocks {
		for _, pair := range named {
			if _, ok := had[pair]; pair != 0 && !ok {
				lost[pair] = true
			}
		}
	}
	return lost
}

// strayAffinities returns the affinities whose node does not exist.
func (r *reader) strayAffinities() map[ipam.Key]bool {
	if !r.listed() {
		return nil
	}
	stray := make(map[ipam.Key]bool)
	for at, a := range r.affinities.Records {
		if a.problem != "" {
			continue
		}
		if has, known := r.HasNode(a.node); known && !has {
			stray[at] = true
		}
	}
	return stray
}

// listed reports whether all resources that the checks compare are followed.
func (r *reader) listed() bool {
	return !slices.ContainsFunc(r.resources, func(resource *ipam.Resource) bool { return resource != r.reserving && !resource.Followed })
}
