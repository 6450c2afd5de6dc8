// Package antrea describes the IPAM of Antrea (AntreaIPAM), which allocates addresses from IPPools to
// the pods that ask for one by an annotation, and to secondary networks. All other pods get addresses
// from host-local.
//
// The format of the objects is that of Antrea 2.4 (pkg/apis/crd/v1beta1/types.go).
package antrea

import (
	"cmp"
	_ "embed" // for the texts of remedies
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"github.com/ipwitness/ipwitness/ipam"
)

// Name is the name of Antrea in the API.
const Name = "antrea"

// IPAM describes Antrea.
var IPAM = ipam.IPAM{
	Name: Name, Title: "Antrea",
	PoolTitle: func(p *ipam.Pool, _ string) string { return "Antrea (IPPool " + p.Name + ")" },
	Objects:   newObjects,
	Repair:    ipam.Repair{Texts: ipam.ReadTexts(remedies)},
}

//go:embed remedies.txt
var remedies string

// Pools are the IPPools of Antrea.
var Pools = ipam.Kind{Group: "crd.antrea.io", Version: "v1beta1", Resource: "ippools", Name: "IPPool"}

// pool is the record of an IPPool.
type pool struct {
	ranges  []ipam.Range
	gateway []netip.Addr
	// realm is the VLAN of the pool; empty if it has none.
	realm   string
	entries []entry // sorted by compare
	// problem describes an inconsistency; bad means that the pool cannot be read because of it.
	problem string
	bad     bool
}

// entry is an allocation.
type entry struct {
	addr                             netip.Addr
	namespace, pod, container, iface string
	kept                             bool
}

// compare orders allocations by the address that identifies them. An address may be listed for two
// pods.
func compare(a, b *entry) int {
	return cmp.Or(a.addr.Compare(b.addr), cmp.Compare(a.namespace, b.namespace), cmp.Compare(a.pod, b.pod), cmp.Compare(a.iface, b.iface))
}

// readPool returns the record of an IPPool.
func readPool(o *ipam.Object) (ipam.Key, *pool) {
	var spec struct {
		IPRanges []struct {
			CIDR  string `json:"cidr"`
			Start string `json:"start"`
			End   string `json:"end"`
		} `json:"ipRanges"`
		SubnetInfo struct {
			Gateway string `json:"gateway"`
			VLAN    int    `json:"vlan"`
		} `json:"subnetInfo"`
	}
	var status struct {
		IPAddresses []struct {
			IPAddress string `json:"ipAddress"`
			Owner     struct {
				Pod struct {
					Name        string `json:"name"`
					Namespace   string `json:"namespace"`
					ContainerID string `json:"containerID"`
					IFName      string `json:"ifName"`
				} `json:"pod"`
				StatefulSet struct {
					Name      string `json:"name"`
					Namespace string `json:"namespace"`
					Index     int    `json:"index"`
				} `json:"statefulSet"`
			} `json:"owner"`
		} `json:"ipAddresses"`
	}
	p := &pool{}
	invalid := func(bad bool, what string) (ipam.Key, *pool) {
		p.problem, p.bad = fmt.Sprintf("IPPool %s of Antrea is invalid: %s", o.Name, ipam.Shorten(what)), bad
		return o.Key(), p
	}
	if err := o.Decode(&spec, &status); err != nil {
		return invalid(true, err.Error())
	}
	if spec.SubnetInfo.VLAN != 0 {
		p.realm = "vlan " + strconv.Itoa(spec.SubnetInfo.VLAN)
	}
	if a, err := netip.ParseAddr(spec.SubnetInfo.Gateway); err == nil {
		p.gateway = append(p.gateway, a.Unmap())
	}
	for _, r := range spec.IPRanges {
		text := r.CIDR
		if text == "" {
			text = r.Start + "-" + r.End
		}
		parsed, err := ipam.ParseRange(text, "-")
		if err != nil {
			return invalid(true, "its ipRanges: "+err.Error())
		}
		if r.CIDR != "" {
			parsed = ipam.Usable(parsed.Prefix())
		}
		p.ranges = append(p.ranges, parsed)
	}
	p.ranges = ipam.Union(p.ranges)
	for _, s := range status.IPAddresses {
		a, err := netip.ParseAddr(s.IPAddress)
		if err != nil {
			invalid(false, fmt.Sprintf("%q in /status/ipAddresses is not an address", s.IPAddress))
			continue
		}
		pod, set := s.Owner.Pod, s.Owner.StatefulSet
		e := entry{addr: a.Unmap(), namespace: ipam.Interned(pod.Namespace), pod: pod.Name, container: pod.ContainerID, iface: ipam.Interned(pod.IFName), kept: set.Name != ""}
		if e.kept {
			e.namespace, e.pod = ipam.Interned(set.Namespace), set.Name+"-"+strconv.Itoa(set.Index)
		}
		p.entries = append(p.entries, e)
	}
	slices.SortFunc(p.entries, func(a, b entry) int { return compare(&a, &b) })
	p.entries = slices.Clip(p.entries)
	return o.Key(), p
}

// reader reads the IPPools of Antrea, which have their allocations in their status.
type reader struct {
	ipam.Publisher
	pools ipam.Mirror[*ipam.Object, pool]
}

func newObjects(p ipam.Publisher) *ipam.Objects {
	r := &reader{Publisher: p}
	r.pools = ipam.Mirror[*ipam.Object, pool]{Read: readPool, Changed: r.changed}
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
