// This file describes the DHCP servers of ISC Kea with leases in files (memfile).
//
// The formats are those of Kea 2.2: src/lib/dhcpsrv/csv_lease_file4.cc and csv_lease_file6.cc for the
// columns, memfile_lease_mgr.cc and src/bin/lfc/lfc_controller.cc for the files of the lease file
// cleanup, and the configuration in the Administrator Reference Manual.

package dhcp

import (
	"github.com/ipwitness/ipwitness/ipam"
)

// KeaName is the name of Kea in the API.
const KeaName = "kea"

// Kea describes Kea.
var Kea = ipam.IPAM{
	Name: KeaName, Title: "Kea",
	Traits:    Traits,
	Files:     newKea,
	PoolTitle: func(p *ipam.Pool, node string) string { return PoolTitle("Kea", p, node) },
	Repair:    keaRepair,
}
