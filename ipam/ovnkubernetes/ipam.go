// Package ovnkubernetes describes the addresses that OVN-Kubernetes keeps for virtual machines in
// IPAMClaims. Its other allocations are annotations of pods (k8s.ovn.org/pod-networks).
//
// The format of the objects is that of k8snetworkplumbingwg/ipamclaims 0.5
// (pkg/crd/ipamclaims/v1alpha1/types.go).
package ovnkubernetes

import "github.com/ipwitness/ipwitness/ipam"

// Name is the name of OVN-Kubernetes in the API.
const Name = "ovn-kubernetes"

// IPAM describes OVN-Kubernetes.
var IPAM = ipam.IPAM{
	Name: Name, Title: "OVN-Kubernetes",
	PoolTitle: func(p *ipam.Pool, _ string) string { return "OVN-Kubernetes (network " + p.Name + ")" },
	Objects:   newObjects,
	Docs:      docs,
}
