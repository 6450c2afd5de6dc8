// Package calico describes Calico's IPAM, which keeps blocks of addresses in custom resources of
// the cluster.
package calico

import "github.com/ipwitness/ipwitness/ipam"

// Name is the name of Calico in the API.
const Name = "calico"

// IPAM describes Calico.
var IPAM = ipam.IPAM{
	Name: Name, Title: "Calico",
	NodeName:  newNameReader,
	PoolTitle: func(p *ipam.Pool, _ string) string { return "Calico (IPPool " + p.Name + ")" },
	Objects:   newObjects,
	Repair:    repair,
}
