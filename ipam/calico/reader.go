package calico

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/ipwitness/ipwitness/ipam"
)

// reader reads the objects of Calico. Calico divides the ranges of its IPPools into blocks
// (IPAMBlock), which nodes claim one by one (BlockAffinity). A block lists its addresses, each with
// an index into the block's list of owner attributes. Addresses in the ranges of an IPReservation are only allocated on
// request. All these objects are cluster-scoped.
type reader struct {
	ipam.Publisher
	pools        ipam.Mirror[*ipam.Object, pool]
	blocks       ipam.Mirror[*ipam.Object, block]
	affinities   ipam.Mirror[*ipam.Object, affinity]
	reservations ipam.Mirror[*ipam.Object, reservation]
	resources    []*ipam.Resource
	// pooling and reserving are the resources of pools and reservations.
	pooling, reserving *ipam.Resource
	// in maps each published block to the pool it was published in. problems has the problems of
	// inconsistent blocks, by pool and block.
	in       map[ipam.Key]string
	problems map[string]map[ipam.Key]string
	// regroup means that blocks may have moved to other pools.
	regroup bool
	// bound are the affinities to missing nodes that the last check found, and lasting describes those that two
	// consecutive checks found, by pool.
	bound   map[ipam.Key]bool
	lasting map[string]string
}

func newObjects(p ipam.Publisher) *ipam.Objects {
	r := &reader{Publisher: p, in: make(map[ipam.Key]string), problems: make(map[string]map[ipam.Key]string)}
	r.pools = ipam.Mirror[*ipam.Object, pool]{
		Read:    readPool,
		Changed: func(ipam.Key, *pool, *pool) { r.regroup = true }, Settled: r.settle,
	}
	r.blocks = ipam.Mirror[*ipam.Object, block]{Read: readBlock, Changed: r.blockChanged, Settled: r.settle}
	r.affinities = ipam.Mirror[*ipam.Object, affinity]{Parse: readAffinity, Unread: &ipam.Unread{Publisher: p, Kind: Affinities}}
	r.reservations = ipam.Mirror[*ipam.Object, reservation]{
		Parse: readReservation, Unread: &ipam.Unread{Publisher: p, Kind: Reservations},
		Changed: func(ipam.Key, *reservation, *reservation) { r.regroup = true }, Settled: r.settle,
	}
	r.pooling = &ipam.Resource{Kind: Pools, Role: ipam.Needed, Store: &r.pools, Lost: "the address pools of Calico are unknown"}
	r.reserving = &ipam.Resource{Kind: Reservations, Role: ipam.Extra, Store: &r.reservations, Lost: "addresses that Calico reserves (IPReservation) count as allocatable"}
	r.resources = []*ipam.Resource{
		r.pooling,
		{Kind: Blocks, Role: ipam.Needed, Store: &r.blocks, Lost: "the allocations of Calico are unknown"},
		{Kind: Affinities, Role: ipam.Extra, Store: &r.affinities, Lost: "Calico blocks of deleted nodes are not detected"},
		r.reserving,
	}
	all := append(slices.Clip(r.resources), &ipam.Resource{ // without those that the checks compare
		Kind: Advertised, Role: ipam.Extra, Lost: "addresses in use in the ranges of load balancers that Calico advertises are not detected",
		Store: ipam.NewServiceRanges(p, Advertised, ipam.Ingress, readAdvertised, nil),
	})
	// Newer versions of Calico have the same objects in another group. Like Calico itself (UsingV3CRDs in
	// libcalico-go/lib/backend/k8s), ipwitness uses it only if crd.projectcalico.org is not served at all. Otherwise Calico's
	// own API server serves this group, from the objects of crd.projectcalico.org.
	for _, resource := range all {
		k := resource.Kind
		resource.Alternative = ipam.Kind{Group: "projectcalico.org", Version: "v3", Resource: k.Resource, Name: k.Name}
	}
	return &ipam.Objects{Resources: all, Settle: func() { r.regroup = true; r.settle() }, Check: r.check}
}

// decided reports whether the set of pools and reservations is known, or cannot be known.
func (r *reader) decided() bool { return r.pooling.Decided && r.reserving.Decided }

// poolOf returns the pool of a block: the most specific IPPool that contains it, or the block itself
// if no pool does.
func (r *reader) poolOf(at ipam.Key, block netip.Prefix) string {
	if !block.IsValid() {
		return at.Name
	}
	name, bits := "", -1
	for at, p := range r.pools.Records {
		if p.prefix.IsValid() && p.prefix.Bits() > bits && p.prefix.Bits() <= block.Bits() && p.prefix.Contains(block.Addr()) {
			name, bits = at.Name, p.prefix.Bits()
		}
	}
	if name == "" {
		return block.String()
	}
	return name
}

// blockChanged publishes the changes of a block. Blocks wait until the pools are known.
func (r *reader) blockChanged(at ipam.Key, before, after *block) {
	pool, published := r.in[at]
	if !published && !r.decided() {
		return
	}
	if published && after != nil && after.bad {
		// Keep the published allocations: an unreadable block does not prove that they are gone.
		after.prefix, after.allocations = before.prefix, before.allocations
	}
	if after != nil && (!published || before.prefix != after.prefix) {
		if published {
			r.release(at, before)
		}
		r.enter(at, after)
		return
	}
	if after == nil {
		if published {
			r.release(at, before)
			if r.pools.Records[ipam.Key{Name: pool}] == nil {
				r.Drop(pool) // it was the pool of this block
			}
		}
		return
	}
	r.note(pool, at, after)
	ipam.Differences(before.allocations, after.allocations, func(a, b *allocation) int { return cmp.Compare(a.ordinal, b.ordinal) },
		func(al *allocation) { r.Allocate(pool, al.published(at, after.prefix), al.at) },
		func(al *allocation) { r.Release(pool, al.published(at, before.prefix)) })
}

// enter publishes a block. Its pool is published first.
func (r *reader) enter(at ipam.Key, is *block) {
	r.Use()
	pool := r.poolOf(at, is.prefix)
	r.in[at] = pool
	r.note(pool, at, is)
	if r.Pool(pool) == nil {
		r.publishPool(pool)
	}
	for i := range is.allocations {
		r.Allocate(pool, is.allocations[i].published(at, is.prefix), is.allocations[i].at)
	}
}

// release withdraws all allocations of a block.
func (r *reader) release(at ipam.Key, was *block) {
	pool := r.in[at]
	delete(r.in, at)
	for i := range was.allocations {
		r.Release(pool, was.allocations[i].published(at, was.prefix))
	}
	r.note(pool, at, nil)
}

// note records or clears the inconsistency of a block. A nil block clears it.
func (r *reader) note(pool string, at ipam.Key, is *block) {
	before, was := r.problems[pool][at]
	if is == nil || is.problem == "" {
		if was {
			delete(r.problems[pool], at)
			if len(r.problems[pool]) == 0 {
				delete(r.problems, pool)
			}
			r.publishPool(pool)
		}
		return
	}
	if was && before == is.problem {
		return
	}
	if r.problems[pool] == nil {
		r.problems[pool] = make(map[ipam.Key]string)
	}
	r.problems[pool][at] = is.problem
	r.publishPool(pool)
}

// publishPool publishes the current state of a pool.
func (r *reader) publishPool(name string) {
	next := ipam.Pool{Name: name, Wiring: ipam.Wiring{Plugin: "calico", Routed: true}, Config: "ippools " + name}
	problem, bad := r.lasting[name], false
	switch p := r.pools.Records[ipam.Key{Name: name}]; {
	case p == nil:
		next.Config = ""
	case p.problem != "":
		problem, bad = p.problem, true
		if last := r.Pool(name); last != nil {
			next = *last
		}
	case !p.disabled: // a disabled pool has nothing to allocate
		next.Ranges, next.Asked = []ipam.Range{ipam.RangeOf(p.prefix)}, p.asked
		if p.services {
			next.Services = ipam.Ingress
		}
		for _, reservation := range r.reservations.Records {
			for _, p := range reservation.prefixes {
				next.Ranges = ipam.Without(next.Ranges, ipam.RangeOf(p))
			}
		}
	}
	for _, at := range slices.SortedFunc(maps.Keys(r.problems[name]), func(a, b ipam.Key) int { return cmp.Compare(a.Name, b.Name) }) {
		problem = cmp.Or(problem, r.problems[name][at])
		if is := r.blocks.Records[at]; is != nil && is.bad && !bad {
			problem, bad = is.problem, true
		}
	}
	r.Put(next, problem, bad)
}

// settle moves blocks to other pools after the pools changed.
func (r *reader) settle() {
	if !r.regroup || !r.decided() {
		return
	}
	r.regroup = false
	for at := range r.pools.Records {
		r.publishPool(at.Name)
	}
	for at, is := range r.blocks.Records {
		pool, published := r.in[at]
		if published && pool == r.poolOf(at, is.prefix) {
			continue
		}
		if published {
			r.release(at, is)
		}
		r.enter(at, is)
	}
	used := make(map[string]bool, len(r.in))
	for _, pool := range r.in {
		used[pool] = true
	}
	for _, name := range r.Pools() {
		if r.pools.Records[ipam.Key{Name: name}] == nil && !used[name] && !strings.HasPrefix(name, Advertised.Name+" ") {
			r.Drop(name)
		}
	}
}

func (al *allocation) published(at ipam.Key, block netip.Prefix) ipam.Allocation {
	addr, _ := ipam.Plus(block.Addr(), uint64(al.ordinal)) //nolint:gosec // not negative
	return ipam.Allocation{
		Address: addr, Node: al.node, Namespace: al.namespace, Pod: al.pod, ContainerID: al.container, Purpose: al.purpose,
		Location: "ipamblocks " + at.Name + " /spec/allocations/" + strconv.Itoa(int(al.ordinal)),
	}
}
