// Package antrea describes the IPAM of Antrea (AntreaIPAM), which allocates addresses from IPPools to
// the pods that ask for one by an annotation, and to secondary networks. All other pods get addresses
// from host-local.
//
// The format of the objects is that of Antrea 2.4 (pkg/apis/crd/v1beta1/types.go).
package antrea

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"github.com/ipwitness/ipwitness/ipam"
)

// IPAM describes Antrea.
var IPAM = ipam.IPAM{
	Name: "antrea", Title: "Antrea",
	PoolKind: Pools.Name,
	Objects:  newObjects,
	Repair:   ipam.Repair{Texts: ipam.ReadTexts("antrea/remedies.txt")},
}

// Pools are the IPPools of Antrea.
var Pools = ipam.Kind{Group: "crd.antrea.io", Version: "v1beta1", Resource: "ippools", Name: "IPPool"}

// pool is the record of an IPPool. Its realm is the VLAN of the pool, if it has one.
type pool = ipam.ListedPool[entry]

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
	p := &pool{Pool: ipam.Pool{Name: o.Name, Wiring: ipam.Wiring{Plugin: "antrea"}, Asked: true, Config: "ippools " + o.Name}}
	invalid := func(bad bool, what string) (ipam.Key, *pool) {
		p.Problem, p.Bad = fmt.Sprintf("IPPool %s of Antrea is invalid: %s", o.Name, ipam.Shorten(what)), bad
		return o.Key(), p
	}
	if err := o.Decode(&spec, &status); err != nil {
		return invalid(true, err.Error())
	}
	if spec.SubnetInfo.VLAN != 0 {
		p.Realm = "vlan " + strconv.Itoa(spec.SubnetInfo.VLAN)
	}
	if a, err := netip.ParseAddr(spec.SubnetInfo.Gateway); err == nil {
		p.Gateways = append(p.Gateways, a.Unmap())
	}
	for _, r := range spec.IPRanges {
		text := cmp.Or(r.CIDR, r.Start+"-"+r.End)
		parsed, err := ipam.ParseRange(text, "-")
		if err != nil {
			return invalid(true, "its ipRanges: "+err.Error())
		}
		if r.CIDR != "" {
			parsed = ipam.Usable(parsed.Prefix())
		}
		p.Ranges = append(p.Ranges, parsed)
	}
	p.Ranges = ipam.Union(p.Ranges)
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
		p.Entries = append(p.Entries, e)
	}
	slices.SortFunc(p.Entries, func(a, b entry) int { return compare(&a, &b) })
	p.Entries = slices.Clip(p.Entries)
	return o.Key(), p
}

func newObjects(p ipam.Publisher) *ipam.Objects {
	pools := &ipam.Mirror[*ipam.Object, pool]{
		Read:    readPool,
		Changed: func(_ ipam.Key, before, after *pool) { ipam.PublishListed(p, before, after, compare, allocation) },
	}
	return &ipam.Objects{Resources: []*ipam.Resource{{Kind: Pools, Role: ipam.Needed, Store: pools, Lost: "the allocations of Antrea are unknown"}}}
}

func allocation(pool string, e *entry) ipam.Allocation {
	al := ipam.Allocation{
		Address: e.addr, Namespace: e.namespace, Pod: e.pod, ContainerID: e.container, Interface: e.iface, Kept: e.kept,
		Location: "ippools " + pool + " /status/ipAddresses",
	}
	if e.pod != "" {
		al.Location += " of " + e.namespace + "/" + e.pod
	}
	return al
}
