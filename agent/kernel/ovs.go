package kernel

import (
	"slices"

	"golang.org/x/sys/unix"

	"github.com/ipwitness/ipwitness/agent/rtnetlink"
)

// isNetdevDatapath reports whether an interface is the TAP device that Open vSwitch creates for its
// userspace datapath.
func isNetdevDatapath(l *rtnetlink.Link) bool { return l.Name == "ovs-netdev" && l.Kind == "tun" }

// isOVSPort reports whether an interface of our own namespace is a port of Open vSwitch. In the
// kernel's datapath it has a master. The userspace datapath (netdev) leaves no other mark on a veth
// than that it sets the interface promiscuous. Programs that capture frames do not set this flag.
func isOVSPort(l *rtnetlink.Link, netdev bool) bool {
	if l.Master != 0 {
		return l.SlaveKind == "openvswitch"
	}
	return netdev && isPair(l.Kind) && l.Flags&unix.IFF_PROMISC != 0
}

// OVSPorts returns the names of those of a host's interfaces that are ports of Open vSwitch.
func OVSPorts(links []rtnetlink.Link) (ports []string) {
	netdev := slices.ContainsFunc(links, func(l rtnetlink.Link) bool { return isNetdevDatapath(&l) })
	for i := range links {
		if isOVSPort(&links[i], netdev) {
			ports = append(ports, links[i].Name)
		}
	}
	return ports
}
