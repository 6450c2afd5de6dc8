// This file describes the IPAM of Kube-OVN, whose controller keeps the allocations in memory and
// writes an IP object for each of them. Deleting the object frees the address. After a restart, the
// controller restores the allocations from the annotations of pods, and those of StatefulSets and
// virtual machines from their IP objects.
//
// The format of the objects is that of Kube-OVN 1.14 (pkg/apis/kubeovn/v1: ip.go, subnet.go, vip.go;
// pkg/controller: ip.go, init.go).

// Package ovn describes the IPAMs of the two networks of pods that are built on OVN: Kube-OVN and
// OVN-Kubernetes.
package ovn

import "github.com/ipwitness/ipwitness/ipam"

// KubeOVNName is the name of Kube-OVN in the API.
const KubeOVNName = "kube-ovn"

// KubeOVN describes Kube-OVN.
var KubeOVN = ipam.IPAM{
	Name: KubeOVNName, Title: "Kube-OVN",
	PoolTitle: func(p *ipam.Pool, _ string) string { return "Kube-OVN (Subnet " + p.Name + ")" },
	Objects:   newKubeOVN,
	Repair:    repair,
}
