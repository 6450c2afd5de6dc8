// Package dnsmasq describes the DHCP server of dnsmasq: one that an administrator configured, and
// those of libvirt, LXD and Incus.
//
// The formats are those of dnsmasq 2.90 (src/lease.c, lease_update_file; src/option.c, read_opts), of
// libvirt's leaseshelper (src/network/leaseshelper.c) and of Incus
// (internal/server/dnsmasq/dnsmasq.go, shared/subprocess/proc.go), which LXD shares.
package dnsmasq

import (
	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/lease"
)

// Name is the name of dnsmasq in the API.
const Name = "dnsmasq"

// IPAM describes dnsmasq.
var IPAM = ipam.IPAM{
	Name: Name, Title: "dnsmasq",
	Traits:    lease.Traits,
	Files:     newSource,
	PoolTitle: func(p *ipam.Pool, node string) string { return lease.PoolTitle("dnsmasq", p, node) },
	Repair:    repair,
}
