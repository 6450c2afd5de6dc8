// Package kea describes the DHCP servers of ISC Kea with leases in files (memfile).
//
// The formats are those of Kea 2.2: src/lib/dhcpsrv/csv_lease_file4.cc and csv_lease_file6.cc for the
// columns, memfile_lease_mgr.cc and src/bin/lfc/lfc_controller.cc for the files of the lease file
// cleanup, and the configuration in the Administrator Reference Manual.
package kea

import (
	"time"

	"github.com/ipwitness/ipwitness/ipam"
)

// Name is the name of Kea in the API.
const Name = "kea"

// IPAM describes Kea.
var IPAM = ipam.IPAM{
	Name: Name, Title: "Kea",
	Traits: ipam.Traits{
		Leases: true,
		// A client that releases its lease, or whose lease ends, removes the address a moment later.
		EndDelay: 10 * time.Second,
	},
	Files: newSource,
	PoolTitle: func(p *ipam.Pool, node string) string {
		if node == "" {
			return "Kea (" + p.Name + ")"
		}
		return "Kea on node " + node + " (" + p.Name + ")"
	},
	Repair: repair,
	Docs:   docs,
}
