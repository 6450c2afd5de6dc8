// This file describes the DHCP server of dnsmasq: one that an administrator configured, and
// those of libvirt, LXD and Incus.
//
// The formats are those of dnsmasq 2.90 (src/lease.c, lease_update_file; src/option.c, read_opts), of
// libvirt's leaseshelper (src/network/leaseshelper.c) and of Incus
// (internal/server/dnsmasq/dnsmasq.go, shared/subprocess/proc.go), which LXD shares.

package dhcp

import (
	"github.com/ipwitness/ipwitness/ipam"
)

// DnsmasqName is the name of dnsmasq in the API.
const DnsmasqName = "dnsmasq"

// Dnsmasq describes dnsmasq.
var Dnsmasq = ipam.IPAM{
	Name: DnsmasqName, Title: "dnsmasq",
	Traits:    Traits,
	Files:     newDnsmasq,
	PoolTitle: func(p *ipam.Pool, node string) string { return PoolTitle("dnsmasq", p, node) },
	Repair:    dnsmasqRepair,
}
