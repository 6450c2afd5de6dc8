// Package ovnkubernetes describes the IPAM of OVN-Kubernetes, which records the addresses of pods in
// their annotations, and keeps those of virtual machines in IPAMClaims. Of the annotations, only
// addresses that several pods have in the default network are published.
//
// The format of the claims is that of k8snetworkplumbingwg/ipamclaims 0.5
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
}
