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

// Assignments publishes the nodes that kube-vip has elected.
type Assignments struct{ *ipam.Assignments }

// NewAssignments returns no assignments yet.
func NewAssignments(p ipam.Publisher) Assignments {
	return Assignments{ipam.NewAssignments(p, "addresses")}
}

// Service sets the node that has the addresses of a Service; empty for none.
func (s Assignments) Service(at ipam.Key, addresses []netip.Addr, node string) {
	s.set(at, addresses, node, "Service "+at.Namespace+"/"+at.Name, "services "+at.Namespace+"/"+at.Name+" /metadata/annotations/"+HostAnnotation)
}

// ControlPlane sets the node that has the addresses of the control plane, according to a Lease; empty
// for none.
func (s Assignments) ControlPlane(lease ipam.Key, addresses []netip.Addr, node string) {
	// The slash keeps the key apart from those of Services.
	s.set(ipam.Key{Namespace: "leases/" + lease.Namespace, Name: lease.Name}, addresses, node, "control plane", "leases "+lease.Namespace+"/"+lease.Name+" /spec/holderIdentity")
}

func (s Assignments) set(at ipam.Key, addresses []netip.Addr, node, purpose, location string) {
	var assigned []ipam.Allocation
	if node != "" {
		for _, a := range addresses {
			assigned = append(assigned, ipam.Allocation{Address: a, Node: node, Purpose: purpose, Location: location})
		}
	}
	s.Set(at, assigned, "")
}
