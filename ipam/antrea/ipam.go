// Package antrea describes the IPAM of Antrea (AntreaIPAM), which allocates addresses from IPPools to
// the pods that ask for one by an annotation, and to secondary networks. All other pods get addresses
// from host-local.
//
// The format of the objects is that of Antrea 2.4 (pkg/apis/crd/v1beta1/types.go).
package antrea

import "github.com/ipwitness/ipwitness/ipam"

// Name is the name of Antrea in the API.
const Name = "antrea"

// IPAM describes Antrea.
var IPAM = ipam.IPAM{
	Name: Name, Title: "Antrea",
	PoolTitle: func(p *ipam.Pool, _ string) string { return "Antrea (IPPool " + p.Name + ")" },
	Objects:   newObjects,
	Repair:    repair,
}
