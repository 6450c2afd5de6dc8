package dhcp

import (
	"net/netip"

	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/advice"
)

var keaRepair = Repair("Kea", "Enlarge its pools, or shorten valid-lifetime",
	", whose directory only Kea's user can read on Debian (give the agent CAP_DAC_READ_SEARCH, or allow root by setfacl)", excludeFromKea)

// excludeFromKea returns how to keep Kea from leasing an address.
func excludeFromKea(p *ipam.Pool, node string, a netip.Addr) ipam.Exclusion {
	return ipam.Exclusion{
		How: "reserve it in " + p.Config + " for the hardware address that has it, or leave it out of the pools",
		Step: advice.Say("In %s of node %s, add a reservation of %s for the hardware address that must have it (hw-address, ip-address), or split the pool so that it leaves the address out. Then have Kea read it (systemctl reload): it keeps its leases.",
			p.Config, node, a),
	}
}
