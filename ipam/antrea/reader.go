package antrea

import (
	"slices"

	"github.com/ipwitness/ipwitness/ipam"
)

// reader reads the IPPools of Antrea, which have their allocations in their status.
type reader struct {
	ipam.Publisher
	pools ipam.Mirror[*ipam.Object, pool]
}

func newObjects(p ipam.Publisher) *ipam.Objects {
	r := &reader{Publisher: p}
	r.pools = ipam.Mirror[*ipam.Object, pool]{
		Read:    readPool,
		Changed: r.changed,
	}
	return &ipam.Objects{Resources: []*ipam.Resource{{Kind: Pools, Role: ipam.Needed, Store: &r.pools, Lost: "the allocations of Antrea are unknown"}}}
}

// changed publishes the change of a pool.
func (r *reader) changed(at ipam.Key, before, after *pool) {
	name := at.Name
	var was, is []entry
	if before != nil {
		was = before.entries
	}
	if after != nil {
		next := ipam.Pool{
			Name: name, Served: ipam.Served{Realm: after.realm}, Ranges: after.ranges, Gateways: slices.Clone(after.gateway),
			Wiring: ipam.Wiring{Plugin: "antrea"}, Asked: true, Config: "ippools " + name,
		}
		if after.bad {
			after.entries = was // an unreadable pool does not prove that its allocations are gone
		}
		ipam.Publish(r, next, after.problem, after.bad)
		is = after.entries
	}
	if len(is) > 0 {
		r.Use()
	}
	ipam.Differences(was, is, compare, func(e *entry) { r.Allocate(name, e.allocation(name), 0) }, func(e *entry) { r.Release(name, e.allocation(name)) })
	if after == nil {
		r.Drop(name)
	}
}

// allocation returns the allocation to publish for an entry.
func (e *entry) allocation(pool string) ipam.Allocation {
	al := ipam.Allocation{
		Address: e.addr, Namespace: e.namespace, Pod: e.pod, ContainerID: e.container, Interface: e.iface, Kept: e.kept,
		Location: "ippools " + pool + " /status/ipAddresses",
	}
	if e.pod != "" {
		al.Location += " of " + e.namespace + "/" + e.pod
	}
	return al
}
