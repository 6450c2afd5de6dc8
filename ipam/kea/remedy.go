package kea

import (
	"net/netip"

	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/advice"
	"github.com/ipwitness/ipwitness/ipam/lease"
)

var repair = ipam.Repair{
	Remedies: func(c ipam.Case, a ipam.Advisor) ipam.Remedies {
		return lease.Remedies(c, a, []advice.Action{exclude(c.Pool, c.Node, c.Address).Step})
	},
	Exclude:  exclude,
	Location: func(p *ipam.Pool, _ netip.Addr) string { return lease.Path(p) },
	Enlarge: func(*ipam.Pool) string {
		return "Enlarge its pools, or shorten valid-lifetime, so that leases of clients that are gone end sooner."
	},
	Access: func(p *ipam.Pool) string {
		return "Check whether the agent may read it: the agent needs " + lease.Path(p) + " of the node, whose directory only Kea's user can read on Debian (give the agent CAP_DAC_READ_SEARCH, or allow root by setfacl). In a container, mount /var/lib read-only with HostToContainer propagation."
	},
	Effects: ipam.Effects{
		Free:      "Kea has no lease and no reservation for it, and it is in a pool that Kea leases to any client.",
		Elsewhere: "When that client renews its lease or starts, it takes the address, too.",
	},
}

// exclude returns how to keep Kea from leasing an address.
func exclude(p *ipam.Pool, node string, a netip.Addr) ipam.Exclusion {
	return ipam.Exclusion{
		How: "reserve it in " + p.Config + " for the hardware address that has it, or leave it out of the pools",
		Step: advice.Say("In %s of node %s, add a reservation of %s for the hardware address that must have it (hw-address, ip-address), or split the pool so that it leaves the address out. Then have Kea read it (systemctl reload): it keeps its leases.",
			p.Config, node, a),
	}
}
