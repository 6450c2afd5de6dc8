// This file describes the egress addresses of OVN-Kubernetes. Its cluster manager assigns each
// of them to a node, which then answers for it. No IPAM allocates them.
//
// The format is that of k8s.ovn.org/v1 in go-controller/pkg/crd/egressip/v1/types.go of OVN-Kubernetes
// 1.1. It is the same in OpenShift 4.6 and newer.

package vip

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/ipwitness/ipwitness/ipam"
)

// EgressIPs are the objects that assign addresses to nodes.
var EgressIPs = ipam.Kind{Group: "k8s.ovn.org", Version: "v1", Resource: "egressips", Name: "EgressIP"}

// EgressIP describes the egress addresses of OVN-Kubernetes.
var EgressIP = ipam.IPAM{
	Name: "egressip", Title: "OVN-Kubernetes EgressIP",
	Traits:  ipam.Traits{Assigns: true},
	Pooled:  func(*ipam.Pool, string) string { return "OVN-Kubernetes (EgressIP)" },
	Objects: newEgressIPs,
	Repair:  ipam.Repair{Texts: ipam.ReadTexts("vip/egressip.txt")},
}

func newEgressIPs(p ipam.Publisher) *ipam.Objects {
	assigned := ipam.NewAssignments(p, EgressIPs.Resource)
	store := &ipam.Mirror[*ipam.Object, egressIP]{
		Read: readEgressIP,
		Changed: func(at ipam.Key, _, after *egressIP) {
			after = cmp.Or(after, &egressIP{})
			assigned.Set(at, after.assigned, after.problem)
		},
	}
	return &ipam.Objects{Resources: []*ipam.Resource{
		{Kind: EgressIPs, Role: ipam.Needed, Store: store, Lost: "the nodes that OVN-Kubernetes assigns egress addresses to are unknown"},
	}}
}

type egressIP struct {
	assigned []ipam.Allocation
	problem  string
}

// readEgressIP returns the record of an EgressIP; nil if it has no assigned address.
func readEgressIP(o *ipam.Object) (ipam.Key, *egressIP) {
	at := o.Key()
	var status struct {
		Items []struct {
			Node     string `json:"node"`
			EgressIP string `json:"egressIP"`
		} `json:"items"`
	}
	if err := o.Decode(nil, &status); err != nil {
		return at, &egressIP{problem: "EgressIP " + at.Name + ": " + ipam.Shorten(err.Error())}
	}
	r := &egressIP{}
	for _, item := range status.Items {
		a, err := netip.ParseAddr(item.EgressIP)
		if a = a.Unmap(); err != nil || item.Node == "" {
			r.problem = "EgressIP " + at.Name + ": an item of its status has no address or no node"
			continue
		}
		if !slices.ContainsFunc(r.assigned, func(al ipam.Allocation) bool { return al.Address == a }) {
			r.assigned = append(r.assigned, ipam.Allocation{
				Address: a, Node: item.Node, Purpose: "EgressIP " + at.Name, Location: EgressIPs.Resource + " " + at.Name + " /status/items",
			})
		}
	}
	if len(r.assigned) == 0 && r.problem == "" {
		return at, nil
	}
	return at, r
}
