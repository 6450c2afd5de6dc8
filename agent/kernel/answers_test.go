package kernel

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ipwitness/ipwitness/agent/rtnetlink"
	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/agenttest"
)

// answering returns what a mirror says the node answers for: "address interface: answer filter interface".
func answering(k *Mirror) string {
	var out []string
	for key, c := range k.table.Claims() {
		if key.Kind == ipwitnessv1.Evidence_WOULD_ANSWER {
			line := fmt.Sprintf("%s %s: %s ", key.Address, k.own.links[key.At.Index].Name, c.Answer)
			if c.Filter != 0 {
				line += c.Filter.String() + " "
			}
			if c.PrefixLength != 0 {
				line += fmt.Sprintf("/%d ", c.PrefixLength)
			}
			out = append(out, line+c.Name)
		}
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}

// answeringHost returns a node with a LAN on eth0, a bridge with a pod, and a pod behind a veth alone.
func answeringHost() agenttest.Fake {
	f := agenttest.Fake{}
	own := func(index int32, name, kind string, addrs ...string) {
		f.Put(rtnetlink.NoNSID, rtnetlink.Link{Index: index, Name: name, Kind: kind, MAC: fmt.Sprintf("own%03d", index), ARPHRD: unix.ARPHRD_ETHER, Flags: agenttest.Up, LowerNSID: rtnetlink.NoNSID}, addrs...)
	}
	f.Put(rtnetlink.NoNSID, rtnetlink.Link{Index: 1, Name: "lo", Flags: agenttest.Up | unix.IFF_LOOPBACK, LowerNSID: rtnetlink.NoNSID}, "127.0.0.1/8")
	own(2, "eth0", "", "192.0.2.11/24", "2001:db8::11/64")
	own(4, "cni0", "bridge", "10.244.0.1/24")
	port := agenttest.HostVeth(20, 5)
	port.Master, port.SlaveKind = 4, "bridge"
	f.Put(rtnetlink.NoNSID, port)
	f.Put(5, agenttest.PodVeth(20), "10.244.0.5/24")
	f.Put(rtnetlink.NoNSID, agenttest.HostVeth(21, 6), "10.8.0.1/32")
	f.Put(6, agenttest.PodVeth(21), "10.8.0.2/32")
	f[rtnetlink.NoNSID].Routes = map[netip.Addr][]rtnetlink.Hop{}
	return f
}

func TestTheNodeAnswersForAddressesThatAreNotOnTheLink(t *testing.T) {
	device := func(f agenttest.Fake, name, kind string, addrs ...string) {
		f.Put(rtnetlink.NoNSID, rtnetlink.Link{Index: 9, Name: name, Kind: kind, ARPHRD: unix.ARPHRD_ETHER, Flags: agenttest.Up, LowerNSID: rtnetlink.NoNSID}, addrs...)
	}
	route := func(f agenttest.Fake, addr string, hop rtnetlink.Hop) {
		f[rtnetlink.NoNSID].Routes[netip.MustParseAddr(addr)] = []rtnetlink.Hop{hop}
	}
	host := func(f agenttest.Fake, addr string, index int32) {
		f[rtnetlink.NoNSID].Hosts = []rtnetlink.Route{{Prefix: netip.PrefixFrom(netip.MustParseAddr(addr), netip.MustParseAddr(addr).BitLen()), Index: index}}
		route(f, addr, rtnetlink.Hop{Index: index})
	}
	local := func(f agenttest.Fake, prefix string, index int32) {
		f[rtnetlink.NoNSID].Local = append(f[rtnetlink.NoNSID].Local, rtnetlink.Route{Prefix: netip.MustParsePrefix(prefix), Index: index, Table: unix.RT_TABLE_LOCAL})
	}
	quiet := func(f agenttest.Fake) {
		eth0 := f[rtnetlink.NoNSID].Links[2]
		eth0.Flags |= unix.IFF_NOARP
		f[rtnetlink.NoNSID].Links[2] = eth0
	}
	// macvlan puts an address of the LAN on a device on eth0.
	macvlan := func(f agenttest.Fake, flags uint32) {
		f.Put(rtnetlink.NoNSID, rtnetlink.Link{
			Index: 9, Name: "vip0", Kind: "macvlan", MAC: "own009", Lower: 2, ARPHRD: unix.ARPHRD_ETHER, Flags: agenttest.Up | flags, LowerNSID: rtnetlink.NoNSID,
		}, "192.0.2.12/32")
	}
	// bridged gives a pod on cni0 another address, and cni0 a proxy entry for it.
	bridged := func(f agenttest.Fake, addr string) {
		f.Put(5, agenttest.PodVeth(20), fmt.Sprintf("%s/%d", addr, netip.MustParseAddr(addr).BitLen()))
		f[rtnetlink.NoNSID].Proxied = []rtnetlink.Neighbour{{Index: 4, Addr: netip.MustParseAddr(addr)}}
		route(f, addr, rtnetlink.Hop{Index: 4})
	}
	// vxlan connects the pods of cni0 to other nodes by a device that answers in their place for one address.
	vxlan := func(f agenttest.Fake, addr, mac string) {
		f.Put(rtnetlink.NoNSID, rtnetlink.Link{
			Index: 9, Name: "vx10", Kind: "vxlan", Proxy: true, Master: 4, SlaveKind: "bridge", ARPHRD: unix.ARPHRD_ETHER, Flags: agenttest.Up, LowerNSID: rtnetlink.NoNSID,
		})
		f[rtnetlink.NoNSID].Neighbours = map[int32][]rtnetlink.Neighbour{9: {{Addr: netip.MustParseAddr(addr), MAC: mac, Connected: true}}}
	}
	// suppressing connects them by a device behind which the bridge has one MAC, and answers for neighbours.
	suppressing := func(f agenttest.Fake, addr, mac, behind string) {
		vxlan(f, addr, mac)
		vx := f[rtnetlink.NoNSID].Links[9]
		vx.Proxy, vx.PortOptions = false, rtnetlink.PortOptions{Suppress: true, Closed: true}
		f[rtnetlink.NoNSID].Links[9] = vx
		f[rtnetlink.NoNSID].Neighbours = map[int32][]rtnetlink.Neighbour{4: {{Addr: netip.MustParseAddr(addr), MAC: mac, Valid: true}}}
		f[rtnetlink.NoNSID].Forwarding = []rtnetlink.Neighbour{
			{Index: 9, MAC: behind, Bridge: 4}, {Index: 20, MAC: agenttest.PodVeth(20).MAC, Bridge: 4}, {Index: 20, MAC: "local", Bridge: 4}, {Index: 9, MAC: "another", Bridge: 5},
		}
	}
	// ipvlan puts an address of the LAN on a pod's device on eth0, and a proxy entry and a route for it on the node.
	ipvlan := func(f agenttest.Fake, addr string, flags uint32) {
		f.Put(7, rtnetlink.Link{
			Index: 2, Name: "eth0", Kind: "ipvlan", MAC: "own002", Lower: 2, ARPHRD: unix.ARPHRD_ETHER, Flags: agenttest.Up | flags, LowerNSID: agenttest.OwnNSID,
		}, fmt.Sprintf("%s/%d", addr, netip.MustParseAddr(addr).BitLen()))
		f.Own()
		f[rtnetlink.NoNSID].Proxied = []rtnetlink.Neighbour{{Index: 2, Addr: netip.MustParseAddr(addr)}}
		f[rtnetlink.NoNSID].Settings = map[string]rtnetlink.Settings{"eth0": {ProxyNDP: true}}
		route(f, addr, rtnetlink.Hop{Index: 1})
	}
	// virtual puts an address of the LAN on lo, and sets arp_ignore.
	virtual := func(scope uint8, ignore int) func(agenttest.Fake) {
		return func(f agenttest.Fake) {
			f.Put(rtnetlink.NoNSID, f[rtnetlink.NoNSID].Links[1], "127.0.0.1/8", "192.0.2.12/32")
			f[rtnetlink.NoNSID].Addresses[1][1].Scope = scope
			f[rtnetlink.NoNSID].Settings = map[string]rtnetlink.Settings{"eth0": {ARPIgnore: ignore}}
			route(f, "192.0.2.12", rtnetlink.Hop{Index: 1, Local: true})
		}
	}
	for _, test := range []struct {
		name  string
		host  func(f agenttest.Fake)
		frame string // an address that a frame from eth0 claims; "used" if it is a request
		want  string
	}{
		{"only its own addresses", func(agenttest.Fake) {}, "192.0.2.50", ""},
		{"an address of the LAN on a dummy device", func(f agenttest.Fake) {
			device(f, "kube-ipvs0", "dummy", "192.0.2.12/32", "10.96.0.1/32")
			route(f, "192.0.2.12", rtnetlink.Hop{Index: 9, Local: true})
		}, "", "192.0.2.12 eth0: ADDRESS kube-ipvs0"},
		{"an address of scope host", virtual(unix.RT_SCOPE_HOST, 0), "", "192.0.2.12 eth0: ADDRESS lo"},
		{"one, and arp_ignore is 3", virtual(unix.RT_SCOPE_HOST, 3), "", ""},
		{"one of scope link, and arp_ignore is 3", virtual(unix.RT_SCOPE_LINK, 3), "", "192.0.2.12 eth0: ADDRESS lo"},
		{"an address of no LAN on a loopback device", func(f agenttest.Fake) {
			f.Put(rtnetlink.NoNSID, f[rtnetlink.NoNSID].Links[1], "127.0.0.1/8", "203.0.113.5/32", "2001:db8:1::5/128")
			route(f, "203.0.113.5", rtnetlink.Hop{Index: 1, Local: true})
		}, "", "203.0.113.5 eth0: ADDRESS lo"},
		{"an address of a Service that is of no LAN", func(f agenttest.Fake) {
			device(f, "kube-ipvs0", "dummy", "10.96.0.1/32")
			route(f, "10.96.0.1", rtnetlink.Hop{Index: 9, Local: true})
		}, "", ""},
		{"an address of no LAN on another bridge", func(f agenttest.Fake) {
			device(f, "docker0", "bridge", "172.17.0.1/16")
			route(f, "172.17.0.1", rtnetlink.Hop{Index: 9, Local: true})
		}, "", ""},
		{"the same, with strict ARP", func(f agenttest.Fake) {
			device(f, "kube-ipvs0", "dummy", "192.0.2.12/32")
			route(f, "192.0.2.12", rtnetlink.Hop{Index: 9, Local: true})
			f[rtnetlink.NoNSID].Settings = map[string]rtnetlink.Settings{"eth0": {ARPIgnore: 1}}
		}, "192.0.2.12", ""},
		{"the same, by a table that the node does not look up", func(f agenttest.Fake) {
			device(f, "kube-ipvs0", "dummy", "192.0.2.12/32")
		}, "192.0.2.12", ""},
		{"an IPv6 address of the LAN on a dummy device", func(f agenttest.Fake) {
			device(f, "kube-ipvs0", "dummy", "2001:db8::12/128")
			route(f, "2001:db8::12", rtnetlink.Hop{Index: 9, Local: true})
		}, "", ""},
		{"a bridge in the range of the LAN", func(f agenttest.Fake) {
			device(f, "docker0", "bridge", "192.0.2.1/24")
			route(f, "192.0.2.1", rtnetlink.Hop{Index: 9, Local: true})
			route(f, "192.0.2.11", rtnetlink.Hop{Index: 2, Local: true})
		}, "192.0.2.1", "192.0.2.1 eth0: ADDRESS docker0"},
		{"another host used the address of its bridge", func(f agenttest.Fake) {
			device(f, "docker0", "bridge", "172.17.0.1/16")
			route(f, "172.17.0.1", rtnetlink.Hop{Index: 9, Local: true})
		}, "172.17.0.1 used", ""},
		{"another host has the address on the LAN", func(f agenttest.Fake) {
			device(f, "docker0", "bridge", "172.17.0.1/16")
			route(f, "172.17.0.1", rtnetlink.Hop{Index: 9, Local: true})
		}, "172.17.0.1", "172.17.0.1 eth0: ADDRESS docker0"},
		{"another host uses the address of a bridge in the range of the LAN", func(f agenttest.Fake) {
			device(f, "docker0", "bridge", "192.0.2.1/24")
			route(f, "192.0.2.1", rtnetlink.Hop{Index: 9, Local: true})
			route(f, "192.0.2.11", rtnetlink.Hop{Index: 2, Local: true})
		}, "192.0.2.1 used", "192.0.2.1 eth0: ADDRESS docker0"},
		{"an address that a frame shows on the LAN", func(f agenttest.Fake) {
			device(f, "dummy0", "dummy", "203.0.113.5/32")
			route(f, "203.0.113.5", rtnetlink.Hop{Index: 9, Local: true})
		}, "203.0.113.5", "203.0.113.5 eth0: ADDRESS dummy0"},
		{"local routes for pods", func(f agenttest.Fake) {
			local(f, "10.244.0.0/29", 4)
			local(f, "10.8.0.0/24", 2)
			local(f, "0.0.0.0/0", 1) // in a table for marked packets
			route(f, "10.244.0.5", rtnetlink.Hop{Index: 4, Local: true})
			route(f, "10.8.0.2", rtnetlink.Hop{Index: 2, Local: true})
		}, "", "10.244.0.5 cni0: ROUTE /29 cni0, 10.8.0.2 veth21: ROUTE /24 eth0"},
		{"local routes that lose against others", func(f agenttest.Fake) {
			local(f, "10.8.0.0/24", 2)
			route(f, "10.8.0.2", rtnetlink.Hop{Index: 21})
		}, "", ""},
		{"a local route for a machine of the LAN, which it does not answer for", func(f agenttest.Fake) {
			local(f, "192.0.2.48/29", 2)
			route(f, "192.0.2.50", rtnetlink.Hop{Index: 2, Local: true})
			f[rtnetlink.NoNSID].Settings = map[string]rtnetlink.Settings{"eth0": {ARPIgnore: 3}}
		}, "192.0.2.50", ""},
		{"a local route for addresses of the LAN that no frame shows", func(f agenttest.Fake) {
			local(f, "192.0.2.48/28", 2)
			local(f, "198.51.100.9/32", 2)
			for _, addr := range []string{"192.0.2.50", "192.0.2.63", "192.0.2.64", "198.51.100.9"} {
				route(f, addr, rtnetlink.Hop{Index: 2, Local: true})
			}
		}, "", "192.0.2.50 eth0: ROUTE /28 eth0, 192.0.2.63 eth0: ROUTE /28 eth0"},
		{"a local route for many addresses of the LAN", func(f agenttest.Fake) {
			local(f, "192.0.2.64/27", 2)
			route(f, "192.0.2.70", rtnetlink.Hop{Index: 2, Local: true})
		}, "", ""},
		{"a local route for a machine of the LAN and those beside it", func(f agenttest.Fake) {
			local(f, "192.0.2.48/29", 1)
			route(f, "192.0.2.50", rtnetlink.Hop{Index: 1, Local: true})
		}, "192.0.2.50", "192.0.2.50 eth0: ROUTE /29 lo"},
		{"a local route for a machine of the LAN, on a card with an address alone", func(f agenttest.Fake) {
			f.Put(rtnetlink.NoNSID, f[rtnetlink.NoNSID].Links[2], "192.0.2.11/32")
			local(f, "192.0.2.0/24", 1)
			route(f, "192.0.2.50", rtnetlink.Hop{Index: 1, Local: true})
			f[rtnetlink.NoNSID].Neighbours = map[int32][]rtnetlink.Neighbour{2: {{Addr: netip.MustParseAddr("203.0.113.1"), MAC: "router"}}}
		}, "192.0.2.50", "192.0.2.50 eth0: ROUTE /24 lo"},
		{"a local default route that a rule looks up for packets without a mark", func(f agenttest.Fake) {
			f[rtnetlink.NoNSID].Local = []rtnetlink.Route{{Prefix: netip.MustParsePrefix("0.0.0.0/0"), Index: 1, Table: 100}}
			f[rtnetlink.NoNSID].Unmarked = []uint32{255, 100}
			route(f, "192.0.2.50", rtnetlink.Hop{Index: 1, Local: true})
		}, "192.0.2.50", "192.0.2.50 eth0: RULE lo"},
		{"a local default route in the main table", func(f agenttest.Fake) {
			f[rtnetlink.NoNSID].Local = []rtnetlink.Route{{Prefix: netip.MustParsePrefix("0.0.0.0/0"), Index: 1, Table: unix.RT_TABLE_MAIN}}
			f[rtnetlink.NoNSID].Unmarked = []uint32{255, 254, 253}
			route(f, "192.0.2.50", rtnetlink.Hop{Index: 1, Local: true})
		}, "192.0.2.50", "192.0.2.50 eth0: ROUTE lo"},
		{"a local route, and a longer one in a table for marked packets", func(f agenttest.Fake) {
			f[rtnetlink.NoNSID].Local = []rtnetlink.Route{
				{Prefix: netip.MustParsePrefix("192.0.2.48/29"), Index: 1, Table: unix.RT_TABLE_LOCAL}, {Prefix: netip.MustParsePrefix("192.0.2.50/32"), Index: 2, Table: 100},
			}
			route(f, "192.0.2.50", rtnetlink.Hop{Index: 1, Local: true, Prefix: netip.MustParsePrefix("192.0.2.48/29"), Table: unix.RT_TABLE_LOCAL})
		}, "192.0.2.50", "192.0.2.50 eth0: ROUTE /29 lo"},
		{"a local route in the table of a VRF", func(f agenttest.Fake) {
			device(f, "blue", "vrf")
			eth0 := f[rtnetlink.NoNSID].Links[2]
			eth0.Master, eth0.SlaveKind = 9, "vrf"
			f[rtnetlink.NoNSID].Links[2] = eth0
			f[rtnetlink.NoNSID].Local = []rtnetlink.Route{{Prefix: netip.MustParsePrefix("192.0.2.48/29"), Index: 2, Table: 10}}
			route(f, "192.0.2.50", rtnetlink.Hop{Index: 2, Local: true})
		}, "192.0.2.50", "192.0.2.50 eth0: ROUTE /29 eth0"},
		{"a local default route for marked packets, and one for others", func(f agenttest.Fake) {
			f[rtnetlink.NoNSID].Local = []rtnetlink.Route{{Prefix: netip.MustParsePrefix("0.0.0.0/0"), Index: 1, Table: 100}}
			f[rtnetlink.NoNSID].Unmarked = []uint32{255, 254, 253}
			route(f, "192.0.2.50", rtnetlink.Hop{Index: 1, Local: true})
		}, "192.0.2.50", ""},
		{"a dummy device, and a card that sends no ARP", func(f agenttest.Fake) {
			device(f, "kube-ipvs0", "dummy", "192.0.2.12/32")
			route(f, "192.0.2.12", rtnetlink.Hop{Index: 9, Local: true})
			quiet(f)
		}, "192.0.2.12", ""},
		{"an address of the LAN on a device on the card that sends no ARP", func(f agenttest.Fake) {
			macvlan(f, unix.IFF_NOARP)
			route(f, "192.0.2.12", rtnetlink.Hop{Index: 9, Local: true})
		}, "192.0.2.12", "192.0.2.12 eth0: ADDRESS vip0"},
		{"the same, and the card answers for its own addresses alone", func(f agenttest.Fake) {
			macvlan(f, unix.IFF_NOARP)
			route(f, "192.0.2.12", rtnetlink.Hop{Index: 9, Local: true})
			f[rtnetlink.NoNSID].Settings = map[string]rtnetlink.Settings{"eth0": {ARPIgnore: 1}}
		}, "192.0.2.12", ""},
		{"the same, with ARP", func(f agenttest.Fake) {
			macvlan(f, 0)
			route(f, "192.0.2.12", rtnetlink.Hop{Index: 9, Local: true})
		}, "192.0.2.12", ""},
		{"an IPv6 proxy entry on a card that sends no ARP", func(f agenttest.Fake) {
			f[rtnetlink.NoNSID].Proxied = []rtnetlink.Neighbour{{Index: 2, Addr: netip.MustParseAddr("2001:db8::50")}}
			f[rtnetlink.NoNSID].Settings = map[string]rtnetlink.Settings{"eth0": {ProxyNDP: true}}
			quiet(f)
		}, "2001:db8::50", "2001:db8::50 eth0: PROXY_ENTRY "},
		{"proxy_arp on a LAN that its routes do not know", func(f agenttest.Fake) {
			route(f, "198.51.100.9", rtnetlink.Hop{Index: 4})
			f[rtnetlink.NoNSID].Settings = map[string]rtnetlink.Settings{"eth0": {ProxyARP: true}}
		}, "198.51.100.9", "198.51.100.9 eth0: PROXY_ARP cni0"},
		{"proxy_arp on a LAN that its routes know", func(f agenttest.Fake) {
			route(f, "192.0.2.50", rtnetlink.Hop{Index: 2})
			f[rtnetlink.NoNSID].Settings = map[string]rtnetlink.Settings{"eth0": {ProxyARP: true}, "cni0": {ProxyARP: true}}
		}, "192.0.2.50", ""},
		{"arp_filter, and the route to the neighbours is by the interface", func(f agenttest.Fake) {
			device(f, "kube-ipvs0", "dummy", "192.0.2.12/32")
			route(f, "192.0.2.12", rtnetlink.Hop{Index: 9, Local: true})
			for _, asker := range []string{"192.0.2.1", "192.0.2.128", "192.0.2.254"} {
				route(f, asker, rtnetlink.Hop{Index: 2})
			}
			f[rtnetlink.NoNSID].Settings = map[string]rtnetlink.Settings{"eth0": {ARPFilter: true}}
		}, "", "192.0.2.12 eth0: ADDRESS kube-ipvs0"},
		{"arp_filter, and the route to the neighbours is by another interface", func(f agenttest.Fake) {
			device(f, "kube-ipvs0", "dummy", "192.0.2.12/32")
			route(f, "192.0.2.12", rtnetlink.Hop{Index: 9, Local: true})
			for _, asker := range []string{"192.0.2.1", "192.0.2.128", "192.0.2.254"} {
				route(f, asker, rtnetlink.Hop{Index: 4})
			}
			f[rtnetlink.NoNSID].Settings = map[string]rtnetlink.Settings{"eth0": {ARPFilter: true}}
		}, "", ""},
		{"a packet filter with rules about ARP", func(f agenttest.Fake) {
			device(f, "kube-ipvs0", "dummy", "192.0.2.12/32")
			route(f, "192.0.2.12", rtnetlink.Hop{Index: 9, Local: true})
			f[rtnetlink.NoNSID].Filters = true
		}, "", "192.0.2.12 eth0: ADDRESS RULES kube-ipvs0"},
		{"packet filters that cannot be read", func(f agenttest.Fake) {
			device(f, "kube-ipvs0", "dummy", "192.0.2.12/32")
			route(f, "192.0.2.12", rtnetlink.Hop{Index: 9, Local: true})
			local(f, "10.8.0.0/24", 2)
			route(f, "10.8.0.2", rtnetlink.Hop{Index: 2, Local: true})
			f[rtnetlink.NoNSID].Unread = unix.EPERM
		}, "", "10.8.0.2 veth21: ROUTE /24 eth0, 192.0.2.12 eth0: ADDRESS UNREADABLE kube-ipvs0"},
		{"a proxy entry for a host of the LAN", func(f agenttest.Fake) {
			route(f, "198.51.100.9", rtnetlink.Hop{Index: 4})
			f[rtnetlink.NoNSID].Proxied = []rtnetlink.Neighbour{{Index: 2, Addr: netip.MustParseAddr("198.51.100.9")}}
		}, "198.51.100.9", "198.51.100.9 eth0: PROXY_ENTRY cni0"},
		{"a proxy entry on another interface", func(f agenttest.Fake) {
			route(f, "198.51.100.9", rtnetlink.Hop{Index: 21})
			f[rtnetlink.NoNSID].Proxied = []rtnetlink.Neighbour{{Index: 4, Addr: netip.MustParseAddr("198.51.100.9")}}
		}, "198.51.100.9", "198.51.100.9 cni0: PROXY_ENTRY veth21"},
		{"a proxy entry for what its routes send back", func(f agenttest.Fake) {
			route(f, "198.51.100.9", rtnetlink.Hop{Index: 2})
			f[rtnetlink.NoNSID].Proxied = []rtnetlink.Neighbour{{Index: 2, Addr: netip.MustParseAddr("198.51.100.9")}}
		}, "198.51.100.9", ""},
		{"a proxy entry for ipvlan in mode l3s", func(f agenttest.Fake) { ipvlan(f, "192.0.2.50", unix.IFF_NOARP) }, "", ""},
		{"the same, with a local route", func(f agenttest.Fake) {
			ipvlan(f, "192.0.2.50", unix.IFF_NOARP)
			local(f, "192.0.2.50/32", 2)
			route(f, "192.0.2.50", rtnetlink.Hop{Index: 2, Local: true})
		}, "", ""},
		{"an IPv6 proxy entry for ipvlan in mode l3s", func(f agenttest.Fake) { ipvlan(f, "2001:db8::50", unix.IFF_NOARP) }, "", ""},
		{"a proxy entry for ipvlan in mode l2", func(f agenttest.Fake) { ipvlan(f, "192.0.2.50", 0) }, "", "192.0.2.50 eth0: PROXY_ENTRY lo"},
		{"an IPv6 proxy entry for ipvlan in mode l2", func(f agenttest.Fake) { ipvlan(f, "2001:db8::50", 0) }, "", "2001:db8::50 eth0: PROXY_ENTRY lo"},
		{"a proxy entry for another address than that of ipvlan in mode l3s", func(f agenttest.Fake) {
			ipvlan(f, "192.0.2.51", unix.IFF_NOARP)
			f[rtnetlink.NoNSID].Proxied[0].Addr = netip.MustParseAddr("192.0.2.50")
			route(f, "192.0.2.50", rtnetlink.Hop{Index: 1})
		}, "", "192.0.2.50 eth0: PROXY_ENTRY lo"},
		{"an IPv6 proxy entry", func(f agenttest.Fake) {
			f[rtnetlink.NoNSID].Proxied = []rtnetlink.Neighbour{{Index: 2, Addr: netip.MustParseAddr("2001:db8::50")}}
			f[rtnetlink.NoNSID].Settings = map[string]rtnetlink.Settings{"eth0": {ProxyNDP: true}}
		}, "2001:db8::50", "2001:db8::50 eth0: PROXY_ENTRY "},
		{"an IPv6 proxy entry for a host behind the node", func(f agenttest.Fake) {
			host(f, "2001:db8::50", 21)
			f[rtnetlink.NoNSID].Proxied = []rtnetlink.Neighbour{{Index: 2, Addr: netip.MustParseAddr("2001:db8::50")}}
			f[rtnetlink.NoNSID].Settings = map[string]rtnetlink.Settings{"eth0": {ProxyNDP: true}}
		}, "", "2001:db8::50 eth0: PROXY_ENTRY /128 veth21"},
		{"proxy_arp for a host behind the node that no frame shows", func(f agenttest.Fake) {
			host(f, "192.0.2.50", 21)
			f[rtnetlink.NoNSID].Settings = map[string]rtnetlink.Settings{"eth0": {ProxyARP: true}}
		}, "", "192.0.2.50 eth0: PROXY_ARP /32 veth21"},
		{"proxy_arp, and the kernel takes another route than that of the host", func(f agenttest.Fake) {
			host(f, "192.0.2.50", 21)
			route(f, "192.0.2.50", rtnetlink.Hop{Index: 2})
			f[rtnetlink.NoNSID].Settings = map[string]rtnetlink.Settings{"eth0": {ProxyARP: true}}
		}, "", ""},
		{"a host behind the node without proxy_arp on the LAN", func(f agenttest.Fake) {
			host(f, "192.0.2.50", 21)
			f[rtnetlink.NoNSID].Settings = map[string]rtnetlink.Settings{"cni0": {ProxyARP: true}}
		}, "", ""},
		{"a VXLAN device with an outdated neighbour", func(f agenttest.Fake) { vxlan(f, "10.244.0.5", "former") }, "", "10.244.0.5 vx10: NEIGHBOUR vx10"},
		{"a VXLAN device with a neighbour on the node", func(f agenttest.Fake) { vxlan(f, "10.244.0.5", agenttest.PodVeth(20).MAC) }, "", ""},
		{"a VXLAN device with a neighbour of which nothing is seen", func(f agenttest.Fake) { vxlan(f, "10.244.0.9", "former") }, "", ""},
		{"a VXLAN device with the address of a pod on another link", func(f agenttest.Fake) { vxlan(f, "10.8.0.2", "former") }, "", ""},
		{"a bridge that answers for an outdated neighbour", func(f agenttest.Fake) { suppressing(f, "10.244.0.5", "former", "former") }, "", "10.244.0.5 cni0: NEIGHBOUR cni0"},
		{"a bridge with the neighbour that is there", func(f agenttest.Fake) { suppressing(f, "10.244.0.5", agenttest.PodVeth(20).MAC, "former") }, "", ""},
		{"a bridge with a neighbour that it does not forward to", func(f agenttest.Fake) { suppressing(f, "10.244.0.5", "former", "other") }, "", ""},
		{"a bridge with a neighbour that another one forwards to", func(f agenttest.Fake) { suppressing(f, "10.244.0.5", "another", "other") }, "", ""},
		{"a bridge with a neighbour behind a port that it does not answer for", func(f agenttest.Fake) { suppressing(f, "10.244.0.5", "local", "former") }, "", ""},
		{"an IPv6 proxy entry on the bridge of a pod", func(f agenttest.Fake) {
			bridged(f, "fd00:9::9")
			f[rtnetlink.NoNSID].Settings = map[string]rtnetlink.Settings{"cni0": {ProxyNDP: true}}
		}, "", "fd00:9::9 cni0: PROXY_ENTRY cni0"},
		{"the same, without proxy_ndp", func(f agenttest.Fake) { bridged(f, "fd00:9::9") }, "", ""},
		{"an IPv4 proxy entry on the bridge of a pod", func(f agenttest.Fake) { bridged(f, "10.244.0.9") }, "", ""},
		{"an IPv6 proxy entry without proxy_ndp", func(f agenttest.Fake) {
			f[rtnetlink.NoNSID].Proxied = []rtnetlink.Neighbour{{Index: 2, Addr: netip.MustParseAddr("2001:db8::50")}}
		}, "2001:db8::50", ""},
	} {
		f := answeringHost()
		test.host(f)
		k := newTestKernel(t, f)
		if test.frame != "" {
			kind := ipwitnessv1.Evidence_ANNOUNCED
			addr, used := strings.CutSuffix(test.frame, " used")
			if used {
				kind = ipwitnessv1.Evidence_USED
			}
			k.AddFrame(wireKey(2, kind, addr, "machin"), seenNow())
			if err := k.List(); err != nil {
				t.Fatal(err)
			}
		}
		if got := answering(k); got != test.want {
			t.Errorf("%s: got %q, want %q", test.name, got, test.want)
		}
		f[rtnetlink.NoNSID].Unlisted = unix.ENOBUFS
		k.table.Update(func() { k.answer(seenNow().Last) })
		if got := answering(k); got != test.want {
			t.Errorf("%s: got %q after lists that failed, want %q", test.name, got, test.want)
		}
		f[rtnetlink.NoNSID].Unlisted = nil
		k.Handle(&rtnetlink.Message{Type: unix.RTM_DELLINK, NSID: rtnetlink.NoNSID, Link: k.own.links[2].Link})
		if got := answering(k); strings.Contains(got, "eth0:") {
			t.Errorf("%s: got %q without eth0", test.name, got)
		}
	}
}

// That a card answers by proxy_arp_pvlan is in its record, and no answer is foretold: on a LAN of isolated ports, it is right.
func TestProxyARPOfPrivateVLANsIsReported(t *testing.T) {
	f := answeringHost()
	k := newTestKernel(t, f)
	for name, settings := range map[string]map[string]rtnetlink.Settings{"set": {"eth0": {PVLAN: true}}, "of another card": {"cni0": {PVLAN: true}}, "unset": nil} {
		f[rtnetlink.NoNSID].Settings = settings
		f[rtnetlink.NoNSID].Routes[netip.MustParseAddr("192.0.2.50")] = []rtnetlink.Hop{{Index: 2}}
		k.AddFrame(wireKey(2, ipwitnessv1.Evidence_ANNOUNCED, "192.0.2.50", "machin"), seenNow())
		k.table.Update(func() { k.answer(seenNow().Last) })
		if got, want := k.own.links[2].published.GetProxyArpPvlan(), name == "set"; got != want {
			t.Errorf("%s: the record of eth0 has %t, want %t", name, got, want)
		}
		if got := answering(k); got != "" {
			t.Errorf("%s: got %q, want nothing foretold", name, got)
		}
	}
}

// dumps counts the dumps of the forwarding tables, of which the kernel makes one of all bridges.
type dumps struct {
	agenttest.Fake
	count int
}

func (d *dumps) Forwarding() ([]rtnetlink.Neighbour, error) {
	d.count++
	return d.Fake.Forwarding()
}

func TestForwardingTablesAreDumpedOnceForAllBridges(t *testing.T) {
	f := answeringHost()
	neighbours := map[int32][]rtnetlink.Neighbour{}
	for _, bridge := range []int32{30, 40} {
		f.Put(rtnetlink.NoNSID, rtnetlink.Link{Index: bridge, Name: fmt.Sprint("br", bridge), Kind: "bridge", ARPHRD: unix.ARPHRD_ETHER, Flags: agenttest.Up, LowerNSID: rtnetlink.NoNSID})
		f.Put(rtnetlink.NoNSID, rtnetlink.Link{
			Index: bridge + 1, Name: fmt.Sprint("vx", bridge), Kind: "vxlan", Master: bridge, SlaveKind: "bridge", ARPHRD: unix.ARPHRD_ETHER, Flags: agenttest.Up,
			LowerNSID: rtnetlink.NoNSID, PortOptions: rtnetlink.PortOptions{Suppress: true, Closed: true},
		})
		neighbours[bridge] = []rtnetlink.Neighbour{{Addr: netip.MustParseAddr("10.244.0.5"), MAC: "former", Valid: true}}
	}
	f[rtnetlink.NoNSID].Neighbours = neighbours
	k := newTestKernel(t, f)
	d := &dumps{Fake: f}
	k.req = d
	for want := 1; want <= 2; want++ {
		k.table.Update(func() { k.answer(seenNow().Last) })
		if d.count != want {
			t.Errorf("got %d dumps in %d passes, want one in each", d.count, want)
		}
	}
}

// Messages about routes and settings are followed; those of other namespaces do not matter.
func TestAnswersFollowMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := answeringHost()
		k := newTestKernel(t, f)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- k.FollowAnswers(ctx) }()
		pass := func(d time.Duration) {
			time.Sleep(d)
			synctest.Wait()
		}
		pass(time.Second)
		k.mu.Lock()
		f[rtnetlink.NoNSID].Local = []rtnetlink.Route{{Prefix: netip.MustParsePrefix("10.244.0.0/29"), Index: 4, Table: unix.RT_TABLE_LOCAL}}
		f[rtnetlink.NoNSID].Routes[netip.MustParseAddr("10.244.0.5")] = []rtnetlink.Hop{{Index: 4, Local: true}}
		k.mu.Unlock()
		k.Handle(&rtnetlink.Message{Type: rtnetlink.Answering, NSID: 5})
		pass(time.Second)
		if got := answering(k); got != "" {
			t.Errorf("after a message about another namespace: got %q", got)
		}
		k.Handle(&rtnetlink.Message{Type: rtnetlink.Answering, NSID: rtnetlink.NoNSID})
		pass(answersAfter)
		if got, want := answering(k), "10.244.0.5 cni0: ROUTE /29 cni0"; got != want {
			t.Errorf("after a message: got %q, want %q", got, want)
		}
		k.mu.Lock()
		clear(f[rtnetlink.NoNSID].Routes)
		k.mu.Unlock()
		pass(answersEvery + answersAfter)
		if got := answering(k); got != "" {
			t.Errorf("after %s without the route: got %q", answersEvery, got)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("got %v after cancel, want nil", err)
		}
	})
}

// slow takes a while to list routes.
type slow struct {
	agenttest.Fake
	takes time.Duration
	began []time.Time
}

func (s *slow) LocalRoutes() ([]rtnetlink.Route, error) {
	s.began = append(s.began, time.Now())
	time.Sleep(s.takes)
	return nil, nil
}

func TestAnswersOfABusyNodeTakeAPercent(t *testing.T) {
	for takes, want := range map[time.Duration]time.Duration{time.Millisecond: answersAfter, 60 * time.Millisecond: 6 * time.Second, time.Second: 10 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			k := newTestKernel(t, answeringHost())
			s := &slow{Fake: answeringHost(), takes: takes}
			k.req = s
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- k.FollowAnswers(ctx) }()
			k.answers.changed <- struct{}{}
			k.answers.changed <- struct{}{}
			time.Sleep(time.Minute)
			cancel()
			if err := <-ended; err != nil || len(s.began) < 2 {
				t.Fatalf("got %v and %d passes, want two", err, len(s.began))
			}
			if got := s.began[1].Sub(s.began[0]) - takes; got != want {
				t.Errorf("after a pass of %s: got another %s later, want %s", takes, got, want)
			}
		})
	}
}
