package calico

import (
	"fmt"
	"hash/maphash"
	"maps"
	"net/netip"
	"slices"
	"strings"

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
	var found findings
	if r.listed() {
		found.handles, found.bound = r.lostHandles(), make(map[ipam.Key]bool)
		for at, a := range r.affinities.Records {
			if has, known := r.HasNode(a.node); a.node != "" && known && !has {
				found.bound[at] = true
			}
		}
	}
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

// listed reports whether all resources that the checks compare are followed.
func (r *reader) listed() bool {
	return !slices.ContainsFunc(r.resources, func(resource *ipam.Resource) bool { return resource != r.reserving && !resource.Followed })
}

// handles is a store that has the blocks that IPAMHandles name. It holds hashes only, because there
// is one handle per pod.
type handles struct {
	seed maphash.Seed
	// blocks maps the hash of a handle's name to the hashes of (handle, block) for the first two
	// blocks that the handle names.
	blocks map[uint64][2]uint64
	unread *ipam.Unread
}

// handle is the reduced form of an IPAMHandle.
type handle struct {
	at    uint64 // hash of its name
	named [2]uint64
	// problem says why it or a block of it cannot be read, and then key identifies it.
	key     ipam.Key
	problem string
}

func (h *handles) hash(handle, block string) uint64 {
	return maphash.String(h.seed, strings.ToLower(handle)+" "+block) | 1
}

// Reduce implements ipam.Store.
func (h *handles) Reduce(object any) any {
	o, ok := object.(*ipam.Object)
	if !ok {
		return handle{}
	}
	r := handle{at: maphash.String(h.seed, o.Name), key: o.Key()}
	var spec struct {
		ID      string         `json:"handleID"`
		Block   map[string]int `json:"block"`
		Deleted bool           `json:"deleted"`
	}
	if err := ipam.Part(o.Spec, "spec", &spec); err != nil {
		r.problem = invalid(Handles, o, err.Error())
	}
	if spec.Deleted || r.problem != "" {
		return r
	}
	for i, block := range slices.Sorted(maps.Keys(spec.Block))[:min(len(spec.Block), 2)] {
		if prefix, err := netip.ParsePrefix(block); err != nil {
			r.problem = invalid(Handles, o, err.Error())
		} else if spec.Block[block] > 0 {
			r.named[i] = h.hash(spec.ID, prefix.Masked().String())
		}
	}
	return r
}

// Put implements ipam.Store.
func (h *handles) Put(reduced any) {
	r := reduced.(handle)
	if h.blocks[r.at] = r.named; r.named == [2]uint64{} {
		delete(h.blocks, r.at)
	}
	h.unread.Set(r.key, r.problem)
}

// Drop implements ipam.Store.
func (h *handles) Drop(reduced any) {
	r := reduced.(handle)
	delete(h.blocks, r.at)
	h.unread.Set(r.key, "")
}

// Replace implements ipam.Store.
func (h *handles) Replace(reduced []any, pause func()) {
	h.blocks = make(map[uint64][2]uint64, len(reduced))
	bad := make(map[ipam.Key]bool)
	for _, r := range reduced {
		bad[r.(handle).key] = r.(handle).problem != ""
	}
	h.unread.Keep(func(at ipam.Key) bool { return bad[at] })
	for _, r := range reduced {
		h.Put(r)
		pause()
	}
}
