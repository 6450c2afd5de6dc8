// Package vip describes the controllers that assign virtual addresses to nodes (kube-vip, MetalLB,
// EgressIP of OVN-Kubernetes), and virtual machines to pods (KubeVirt). No IPAM allocates these addresses.
package vip

import (
	"net/netip"

	"github.com/ipwitness/ipwitness/ipam"
)

// HostAnnotation is the annotation of a Service with the node that has its addresses.
const HostAnnotation = "kube-vip.io/vipHost"

// KubeVIP describes kube-vip.
var KubeVIP = ipam.IPAM{
	Name: "kube-vip", Title: "kube-vip",
	Traits: ipam.Traits{Assigns: true},
}

// Elected returns the assignments of addresses to the node that kube-vip has elected; none if it has elected none.
func Elected(node, purpose, location string, addresses []netip.Addr) (assigned []ipam.Allocation) {
	for _, a := range addresses {
		if node != "" {
			assigned = append(assigned, ipam.Allocation{Address: a, Node: node, Purpose: purpose, Location: location})
		}
	}
	return assigned
}
