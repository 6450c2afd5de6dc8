package kube

import (
	"fmt"
	"hash/maphash"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
)

// calicoAffinity is the record of a BlockAffinity: the node that a block is bound to.
type calicoAffinity struct {
	node   string
	prefix netip.Prefix
}

// readCalicoAffinity returns the record of a BlockAffinity. The record is nil unless the block
// is bound to a node.
func readCalicoAffinity(o runtime.Object) (key, *calicoAffinity) {
	affinity, ok := o.(*object)
	if !ok {
		return key{}, nil
	}
	at := key{name: affinity.Name}
	var spec struct {
		Node    string `json:"node"`
		CIDR    string `json:"cidr"`
		Type    string `json:"type"`
		Deleted any    `json:"deleted"` // "true" or true
	}
	if part(affinity.Spec, "spec", &spec) != nil || fmt.Sprint(spec.Deleted) == "true" || spec.Type != "" && spec.Type != "host" {
		return at, nil
	}
	prefix, err := netip.ParsePrefix(spec.CIDR)
	if err != nil || spec.Node == "" {
		return at, nil
	}
	return at, &calicoAffinity{node: spec.Node, prefix: prefix.Masked()}
}

// calicoHandleCounts has the blocks that IPAMHandles name. It stores hashes only, because
// there is one handle per pod. The cluster's mu guards it.
type calicoHandleCounts struct {
	cluster *Cluster
	seed    maphash.Seed
	// blocks maps the hash of a handle's name to the hashes of (handle, block) for the first
	// two blocks that the handle names.
	blocks map[uint64][2]uint64
}

func newCalicoHandleCounts(c *Cluster) calicoHandleCounts {
	return calicoHandleCounts{cluster: c, seed: maphash.MakeSeed(), blocks: make(map[uint64][2]uint64)}
}

// hash returns the hash of a handle and a block.
func (h *calicoHandleCounts) hash(handle, block string) uint64 {
	return maphash.String(h.seed, strings.ToLower(handle)+" "+block) | 1
}

// read returns the hash of an IPAMHandle's name, and the hashes for the blocks that it names.
func (h *calicoHandleCounts) read(o runtime.Object) (uint64, [2]uint64) {
	var named [2]uint64
	handle, ok := o.(*object)
	if !ok {
		return 0, named
	}
	at := maphash.String(h.seed, handle.Name)
	var spec struct {
		ID      string         `json:"handleID"`
		Block   map[string]int `json:"block"`
		Deleted bool           `json:"deleted"`
	}
	if part(handle.Spec, "spec", &spec) != nil || spec.Deleted {
		return at, named
	}
	for i, block := range slices.Sorted(maps.Keys(spec.Block))[:min(len(spec.Block), 2)] {
		if prefix, err := netip.ParsePrefix(block); err == nil && spec.Block[block] > 0 {
			named[i] = h.hash(spec.ID, prefix.Masked().String())
		}
	}
	return at, named
}

func (h *calicoHandleCounts) put(o runtime.Object) {
	at, named := h.read(o)
	h.cluster.mu.Lock()
	defer h.cluster.mu.Unlock()
	if h.blocks[at] = named; named == [2]uint64{} {
		delete(h.blocks, at)
	}
}

func (h *calicoHandleCounts) drop(o runtime.Object) {
	at, _ := h.read(o)
	h.cluster.mu.Lock()
	defer h.cluster.mu.Unlock()
	delete(h.blocks, at)
}

// calicoHandle is the reduced form of an IPAMHandle in a listing.
type calicoHandle struct {
	reduced
	at    uint64
	named [2]uint64
}

// reduce implements sink.
func (h *calicoHandleCounts) reduce(o runtime.Object) runtime.Object {
	handle := &calicoHandle{}
	handle.at, handle.named = h.read(o)
	return handle
}

// replace implements sink.
func (h *calicoHandleCounts) replace(handles []any) {
	blocks := make(map[uint64][2]uint64, len(handles))
	for _, handle := range handles {
		if handle := handle.(*calicoHandle); handle.named != [2]uint64{} {
			blocks[handle.at] = handle.named
		}
	}
	h.cluster.mu.Lock()
	defer h.cluster.mu.Unlock()
	h.blocks = blocks
}

// calicoChecks has the results of the last check. An inconsistency is reported when the next
// check finds it again.
type calicoChecks struct {
	handles map[uint64]bool
	bound   map[key]bool
}

// check looks for inconsistencies. An inconsistency counts only if it lasts, because Calico
// writes handles, blocks and affinities one after the other. The caller holds mu.
func (k *calicoObjects) check() {
	found := calicoChecks{handles: k.lostHandles(), bound: k.boundToNobody()}
	lasting := make(map[string]string)
	for at := range found.bound {
		if k.checks.bound[at] {
			a := k.affinities.records[at]
			pool := k.poolOf(at, a.prefix)
			text := fmt.Sprintf("the block %s of Calico is bound to node %s, which does not exist: `calicoctl ipam check` finds such, and Calico's kube-controllers should free them", a.prefix, a.node)
			if before := lasting[pool]; before == "" || text < before {
				lasting[pool] = text
			}
		}
	}
	lost := 0
	for pair := range found.handles {
		if k.checks.handles[pair] {
			lost++
		}
	}
	if names := slices.Sorted(maps.Keys(k.publisher.pools)); lost > 0 && len(names) > 0 && lasting[names[0]] == "" {
		lasting[names[0]] = fmt.Sprintf("%d IPAMHandles of Calico count addresses of blocks that do not have them: `calicoctl ipam check` names them", lost)
	}
	k.checks = found
	before := k.lasting
	k.lasting = lasting
	for name := range k.publisher.pools {
		if before[name] != lasting[name] {
			k.tellPool(name)
		}
	}
}

// lostHandles returns the handles that name a block in which they have no address.
func (k *calicoObjects) lostHandles() map[uint64]bool {
	if !k.listed() {
		return nil
	}
	had := make(map[uint64]struct{}, len(k.handles.blocks))
	for _, block := range k.blocks.records {
		if block.bad {
			return nil
		}
		for i := range block.bookings {
			had[block.bookings[i].handle] = struct{}{}
		}
	}
	lost := make(map[uint64]bool)
	for _, named := range k.handles.blocks {
		for _, pair := range named {
			if _, ok := had[pair]; pair != 0 && !ok {
				lost[pair] = true
			}
		}
	}
	return lost
}

// boundToNobody returns the affinities whose node does not exist.
func (k *calicoObjects) boundToNobody() map[key]bool {
	if !k.listed() || !k.cluster.health.placed || len(k.cluster.nodes.records) == 0 {
		return nil
	}
	bound := make(map[key]bool)
	for at, a := range k.affinities.records {
		if k.cluster.nodes.of(a.node) == nil {
			bound[at] = true
		}
	}
	return bound
}

// listed reports whether all resources that the checks compare are followed.
func (k *calicoObjects) listed() bool {
	return !slices.ContainsFunc(k.sources, func(s *source) bool { return s != k.reserving && s.state != followed })
}
