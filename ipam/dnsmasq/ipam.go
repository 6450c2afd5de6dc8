// Package dnsmasq describes the DHCP server of dnsmasq: one that an administrator configured, and
// those of libvirt, LXD and Incus.
//
// The formats are those of dnsmasq 2.90 (src/lease.c, lease_update_file; src/option.c, read_opts), of
// libvirt's leaseshelper (src/network/leaseshelper.c) and of Incus
// (internal/server/dnsmasq/dnsmasq.go, shared/subprocess/proc.go), which LXD shares.
package dnsmasq

import (
	"time"

	"github.com/ipwitness/ipwitness/ipam"
)

// Name is the name of dnsmasq in the API.
const Name = "dnsmasq"

// IPAM describes dnsmasq.
var IPAM = ipam.IPAM{
	Name: Name, Title: "dnsmasq",
	Traits: ipam.Traits{
		Leases: true,
		// A client that releases its lease, or whose lease ends, removes the address a moment later.
		EndDelay: 10 * time.Second,
	},
	Files: newSource,
	PoolTitle: func(p *ipam.Pool, node string) string {
		if node == "" {
			return "dnsmasq (" + p.Name + ")"
		}
		return "dnsmasq on node " + node + " (" + p.Name + ")"
	},
	Repair: repair,
	Docs:   docs,
}
