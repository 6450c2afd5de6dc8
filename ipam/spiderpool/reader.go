package spiderpool

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/ipwitness/ipwitness/ipam"
)

// reader reads the objects of Spiderpool. A SpiderIPPool has its allocations in its status, and
// Spiderpool gives out every address that is not there. A SpiderEndpoint adds the node of a pod, and
// whether the pod keeps its address. What only the endpoint has is not allocated.
type reader struct {
	ipam.Publisher
	pools     ipam.Mirror[*ipam.Object, pool]
	endpoints ipam.Mirror[*ipam.Object, endpoint]
}

func newObjects(p ipam.Publisher) *ipam.Objects {
	r := &reader{Publisher: p}
	r.pools = ipam.Mirror[*ipam.Object, pool]{
		Read:    readPool,
		Changed: func(_ ipam.Key, before, after *pool) { ipam.PublishListed(p, before, after, compare, r.allocation) },
	}
	r.endpoints = ipam.Mirror[*ipam.Object, endpoint]{Parse: readEndpoint, Unread: &ipam.Unread{Publisher: p, Kind: Endpoints}, Changed: r.endpointChanged}
	return &ipam.Objects{Resources: []*ipam.Resource{
		{Kind: Pools, Role: ipam.Needed, Store: &r.pools, Lost: "the allocations of Spiderpool are unknown"},
		{Kind: Endpoints, Role: ipam.Extra, Store: &r.endpoints, Lost: "which pods keep their addresses from Spiderpool is unknown"},
	}}
}

// endpointChanged publishes the allocations of a pod again.
func (r *reader) endpointChanged(at ipam.Key, before, after *endpoint) {
	pod := at.Namespace + "/" + at.Name
	for _, e := range []*endpoint{before, after} {
		if e == nil {
			continue
		}
		for _, p := range e.at {
			known := r.pools.Records[ipam.Key{Name: p.pool}]
			if known == nil {
				continue
			}
			if i, found := slices.BinarySearchFunc(known.Entries, p.addr, func(e entry, a netip.Addr) int { return e.addr.Compare(a) }); found && known.Entries[i].pod == pod {
				r.Allocate(p.pool, r.allocation(p.pool, &known.Entries[i]), 0)
			}
		}
	}
}

func (r *reader) allocation(pool string, e *entry) ipam.Allocation {
	al := ipam.Allocation{Address: e.addr, Interface: e.iface, Location: "spiderippools " + pool + " /status/allocatedIPs"}
	namespace, name, ok := strings.Cut(e.pod, "/")
	if !ok {
		return al
	}
	al.Namespace, al.Pod = namespace, name
	if known := r.endpoints.Records[ipam.Key{Namespace: namespace, Name: name}]; known != nil {
		al.Node, al.Kept = known.node, known.kept
	}
	return al
}
