package kube

import (
	"maps"
	"net/netip"
	"reflect"
	"slices"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
)

// readable returns an object as a store reads it.
func readable(o runtime.Object) any {
	if o, ok := o.(*object); ok {
		return &ipam.Object{
			Namespace: o.Namespace, Name: o.Name, Version: o.ResourceVersion, Created: o.CreationTimestamp.Time, Labels: o.Labels, Spec: o.Spec, Status: o.Status,
			Endpoints: o.Endpoints, EndpointsNamespace: o.EndpointsNamespace, AddressType: o.AddressType, Deleted: o.DeletionTimestamp != nil,
		}
	}
	return o
}

func (c *Cluster) put(into ipam.Store, o runtime.Object) {
	reduced := into.Reduce(readable(o))
	c.mu.Lock()
	into.Put(reduced)
	c.mu.Unlock()
	c.ring()
}

func (c *Cluster) drop(from ipam.Store, o runtime.Object) {
	reduced := from.Reduce(readable(o))
	c.mu.Lock()
	from.Drop(reduced)
	c.mu.Unlock()
	c.ring()
}

// item is a reduced object of a listing. It implements runtime.Object, which the items of a list
// must do.
type item struct{ reduced any }

// GetObjectKind implements runtime.Object.
func (*item) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

// DeepCopyObject implements runtime.Object. Items never change.
func (i *item) DeepCopyObject() runtime.Object { return i }

// reduce returns the part of an object that replace needs.
func reduce(into ipam.Store, o runtime.Object) *item { return &item{into.Reduce(readable(o))} }

// hold is the number of objects after which the lock is released, because the aggregator waits
// for it.
const hold = 512

// replace replaces the contents of a store with the items of a complete listing.
func (c *Cluster) replace(into ipam.Store, items []any) {
	reduced := make([]any, len(items))
	for i := range items {
		reduced[i] = items[i].(*item).reduced
	}
	n := 0
	c.mu.Lock()
	defer c.mu.Unlock()
	into.Replace(reduced, func() {
		if n++; n%hold == 0 {
			c.mu.Unlock()
			c.mu.Lock()
		}
	})
}

// An index has the records with each key. Most records have none.
type index[K comparable, R any] map[K]map[*R]bool

// move replaces the record of an object by the next one; nil for none.
func (x index[K, R]) move(before, after *R, keys func(*R) []K) {
	if before != nil {
		for _, k := range keys(before) {
			if delete(x[k], before); len(x[k]) == 0 {
				delete(x, k)
			}
		}
	}
	if after != nil {
		for _, k := range keys(after) {
			if x[k] == nil {
				x[k] = make(map[*R]bool)
			}
			x[k][after] = true
		}
	}
}

// given returns a key, unless it is the zero value.
func given[K comparable](key K) []K {
	if key == *new(K) {
		return nil
	}
	return []K{key}
}

// pending are the changes that the subscriber has not received yet. There is at most one for each object,
// because the subscriber may be busy for long, and needs only to know what has changed since.
type pending struct {
	// state and acknowledgements are those of Changes.
	state, acknowledgements bool
	pods                    map[PodKey]struct{}
	networks                map[netip.Prefix]struct{}
	nodes, related          map[string]struct{}
	addresses               map[netip.Addr]struct{}
	// ipam has the last change of each pool and allocation, at the position of the first one: a pool that the
	// subscriber does not know precedes its allocations. position has these positions.
	ipam     []IPAMChange
	position map[ipamKey]int
}

// ipamKey identifies a pool or, if it has an address, an allocation.
type ipamKey struct {
	ipam, pool string
	address    netip.Addr
	location   string
}

func newPending() pending {
	return pending{
		pods: make(map[PodKey]struct{}), networks: make(map[netip.Prefix]struct{}), nodes: make(map[string]struct{}), related: make(map[string]struct{}),
		addresses: make(map[netip.Addr]struct{}),
		position:  make(map[ipamKey]int),
	}
}

// ring wakes the receiver of a channel with room for one, unless that has been done already.
func ring(bell chan struct{}) {
	select {
	case bell <- struct{}{}:
	default:
	}
}

func (c *Cluster) ring() { ring(c.bell) }

func (p *pending) pod(o *verdict.PodObject) {
	p.pods[PodKey{o.Namespace, o.Name, o.UID}] = struct{}{}
}

func (c *Cluster) changeIPAM(change IPAMChange) {
	p := &c.pending
	var key ipamKey
	if change.Pool != nil {
		key = ipamKey{ipam: change.Pool.IPAM, pool: change.Pool.Name}
	} else {
		al := change.Allocation
		key = ipamKey{al.Pool.IPAM, al.Pool.Name, al.Address, al.Location}
	}
	at, queued := p.position[key]
	if !queued {
		at = len(p.ipam)
		p.position[key], p.ipam = at, append(p.ipam, change)
	}
	p.ipam[at] = change
	c.ring()
}

// relate queues a node for which Related may return something new.
func (p *pending) relate(node string) {
	if node != "" {
		p.related[node] = struct{}{}
	}
}

func (c *Cluster) take() (changes Changes, any bool) {
	c.mu.Lock()
	p := c.pending
	c.pending = newPending()
	records := c.unknown()
	if maps.Equal(records, c.records) {
		records = nil
	} else {
		c.records = records
	}
	c.mu.Unlock()
	removed := func(change IPAMChange) int {
		if change.Pool != nil && change.Gone {
			return 1 // after its allocations
		}
		return 0
	}
	slices.SortStableFunc(p.ipam, func(a, b IPAMChange) int { return removed(a) - removed(b) })
	changes = Changes{
		Pods: slices.Collect(maps.Keys(p.pods)), Networks: slices.Collect(maps.Keys(p.networks)), State: p.state,
		Nodes: slices.Sorted(maps.Keys(p.nodes)), Related: slices.Sorted(maps.Keys(p.related)), IPAM: p.ipam, Records: records, Acknowledgements: p.acknowledgements,
		Addresses: slices.Collect(maps.Keys(p.addresses)),
	}
	return changes, !reflect.ValueOf(changes).IsZero()
}
