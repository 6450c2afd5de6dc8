// This file describes the IPAM of OVN-Kubernetes, which records the addresses of pods in
// their annotations, and keeps those of virtual machines in IPAMClaims. Of the annotations, only
// addresses that several pods have in the default network are published.
//
// The format of the claims is that of k8snetworkplumbingwg/ipamclaims 0.5
// (pkg/crd/ipamclaims/v1alpha1/types.go).

package ovn

import "github.com/ipwitness/ipwitness/ipam"

// OVNKubernetesName is the name of OVN-Kubernetes in the API.
const OVNKubernetesName = "ovn-kubernetes"

// OVNKubernetes describes OVN-Kubernetes.
var OVNKubernetes = ipam.IPAM{
	Name: OVNKubernetesName, Title: "OVN-Kubernetes",
	PoolTitle: func(p *ipam.Pool, _ string) string { return "OVN-Kubernetes (network " + p.Name + ")" },
	Objects:   newOVNKubernetes,
}
