package dhcp

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"

	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/advice"
)

var dnsmasqRepair = Repair("dnsmasq", "Enlarge its range (dhcp-range), or shorten the lease time", "", excludeFromDnsmasq)

// excludeFromDnsmasq returns how to keep dnsmasq from leasing an address. A reservation without a client is for
// nobody, and dnsmasq leases a reserved address to no other client.
func excludeFromDnsmasq(p *ipam.Pool, node string, a netip.Addr) ipam.Exclusion {
	dir, file := filepath.Split(Path(p))
	switch {
	case strings.HasSuffix(file, ".status"):
		network := strings.TrimSuffix(filepath.Base(p.Config), ".conf")
		return ipam.Exclusion{
			How: "reserve it in libvirt's network",
			Step: advice.Say("Reserve %s in libvirt's network %s, so that it is leased to no client.", a, network).By(node,
				fmt.Sprintf("virsh net-update %s add ip-dhcp-host %s --live --config", advice.Quote(network), advice.Literal(fmt.Sprintf("<host name='reserved-%s' ip='%s'/>", strings.NewReplacer(".", "-", ":", "-").Replace(a.String()), a)))),
		}
	case strings.Contains(dir, "/networks/"):
		return ipam.Exclusion{
			How:  "set ipv4.address (ipv6.address) of the device of the instance that has it, or leave it out of ipv4.dhcp.ranges (ipv6.dhcp.ranges) of network " + filepath.Base(dir),
			Step: advice.Say("If an instance of LXD or Incus has %s, set ipv4.address (ipv6.address) of its network device to it. Otherwise leave the address out of ipv4.dhcp.ranges (ipv6.dhcp.ranges) of network %s.", a, filepath.Base(dir)),
		}
	}
	value := a.String()
	if a.Is6() {
		value = "[" + value + "]"
	}
	return ipam.Exclusion{
		How: "reserve it (dhcp-host) in its configuration",
		Step: advice.Say("Reserve %s on node %s, so that it is leased to no client, and restart dnsmasq: it keeps its leases.", a, node).By(node,
			fmt.Sprintf("echo 'dhcp-host=%s' > /etc/dnsmasq.d/reserved-%s && systemctl restart dnsmasq", value, a)),
	}
}
