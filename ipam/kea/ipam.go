// Package kea describes the DHCP servers of ISC Kea with leases in files (memfile).
//
// The formats are those of Kea 2.2: src/lib/dhcpsrv/csv_lease_file4.cc and csv_lease_file6.cc for the
// columns, memfile_lease_mgr.cc and src/bin/lfc/lfc_controller.cc for the files of the lease file
// cleanup, and the configuration in the Administrator Reference Manual.
package kea

import (
	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/lease"
)

// Name is the name of Kea in the API.
const Name = "kea"

// IPAM describes Kea.
var IPAM = ipam.IPAM{
	Name: Name, Title: "Kea",
	Traits:    lease.Traits,
	Files:     newSource,
	PoolTitle: func(p *ipam.Pool, node string) string { return lease.PoolTitle("Kea", p, node) },
	Repair:    repair,
}
