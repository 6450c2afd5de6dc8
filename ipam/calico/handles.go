package calico

import (
	"hash/maphash"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/ipwitness/ipwitness/ipam"
)

// handles is a store that has the blocks that IPAMHandles name. It holds hashes only, because there
// is one handle per pod.
type handles struct {
	seed maphash.Seed
	// blocks maps the hash of a handle's name to the hashes of (handle, block) for the first two
	// blocks that the handle names.
	blocks map[uint64][2]uint64
	// bad has the handles that cannot be read.
	bad ipam.Unread
}

// handle is the reduced form of an IPAMHandle.
type handle struct {
	at    uint64 // hash of its name
	named [2]uint64
	// problem says why it or a block of it cannot be read, and then key identifies it.
	key     ipam.Key
	problem string
}

// hash returns the hash of a handle and a block.
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
	h.bad.Set(r.key, r.problem)
}

// Drop implements ipam.Store.
func (h *handles) Drop(reduced any) {
	r := reduced.(handle)
	delete(h.blocks, r.at)
	h.bad.Set(r.key, "")
}

// Replace implements ipam.Store.
func (h *handles) Replace(reduced []any, pause func()) {
	blocks := make(map[uint64][2]uint64, len(reduced))
	bad := make(map[ipam.Key]string)
	for _, r := range reduced {
		r := r.(handle)
		if r.named != [2]uint64{} {
			blocks[r.at] = r.named
		}
		if r.problem != "" {
			bad[r.key] = r.problem
		}
		pause()
	}
	h.blocks = blocks
	h.bad.Replace(bad)
}
