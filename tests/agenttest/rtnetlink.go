// Package agenttest has what the tests of several packages of the agent need: a fake of rtnetlink, a /proc
// directory, and what a table has.
package agenttest

import (
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/ipwitness/ipwitness/agent/rtnetlink"
)

// A Fake answers rtnetlink requests from the namespaces in it, by nsid.
type Fake map[int32]*Namespace

// A Namespace is a network namespace of a Fake. Interfaces and addresses are by index of the
// interface.
type Namespace struct {
	Links     map[int32]rtnetlink.Link
	Addresses map[int32][]rtnetlink.Address
	VLANs     map[int32]rtnetlink.VLANs
	// Routes holds the routes of the namespace, by destination.
	Routes map[netip.Addr][]rtnetlink.Hop
	Local  []rtnetlink.Route
	Hosts  []rtnetlink.Route
	// Unmarked are the tables that rules look up for packets without a mark.
	Unmarked []uint32
	// Settings are those of interfaces, by name.
	Settings   map[string]rtnetlink.Settings
	Proxied    []rtnetlink.Neighbour
	Neighbours map[int32][]rtnetlink.Neighbour
	Forwarding []rtnetlink.Neighbour
	Resolved   []rtnetlink.Neighbour
	Tunnels    map[int32][]rtnetlink.Neighbour
	Filters    bool  // there are rules about ARP
	Unread     error // of reading the packet filters
	Unlisted   error // of listing rules, routes to single addresses, and proxied addresses
}

func (f Fake) namespace(nsid int32) (*Namespace, error) {
	if ns, ok := f[nsid]; ok {
		return ns, nil
	}
	return nil, fmt.Errorf("nsid %d: %w", nsid, rtnetlink.ErrNamespaceGone)
}

// Links lists the interfaces of a namespace.
func (f Fake) Links(nsid int32) (out []rtnetlink.Link, err error) {
	ns, err := f.namespace(nsid)
	if err != nil {
		return nil, err
	}
	for _, l := range ns.Links {
		out = append(out, l)
	}
	return out, nil
}

// Link returns one interface of a namespace.
func (f Fake) Link(nsid, index int32) (rtnetlink.Link, error) {
	ns, err := f.namespace(nsid)
	if err != nil {
		return rtnetlink.Link{}, err
	}
	l, ok := ns.Links[index]
	if !ok {
		return rtnetlink.Link{}, unix.ENODEV
	}
	return l, nil
}

// Addresses lists the addresses of a namespace, or of one interface if index is not 0.
func (f Fake) Addresses(nsid, index int32) (out []rtnetlink.Address, err error) {
	ns, err := f.namespace(nsid)
	if err != nil {
		return nil, err
	}
	for i, addrs := range ns.Addresses {
		if index == 0 || index == i {
			out = append(out, addrs...)
		}
	}
	return out, nil
}

// NSIDs lists the ids of all namespaces except for our own.
func (f Fake) NSIDs() (out []int32, err error) {
	for id := range f {
		if id != rtnetlink.NoNSID {
			out = append(out, id)
		}
	}
	return out, nil
}

// VLANs returns the VLANs of our own bridges and their ports.
func (f Fake) VLANs() (map[int32]rtnetlink.VLANs, error) { return f[rtnetlink.NoNSID].VLANs, nil }

// Route returns the route of our own namespace to an address. If it is of type local, it has the longest prefix of the local
// routes with the address, unless the test says more.
func (f Fake) Route(addr netip.Addr) ([]rtnetlink.Hop, error) {
	hops := slices.Clone(f[rtnetlink.NoNSID].Routes[addr])
	for i := range hops {
		if h := &hops[i]; h.Local && !h.Prefix.IsValid() {
			for _, r := range f[rtnetlink.NoNSID].Local {
				if r.Contains(addr) && r.Bits() >= h.Prefix.Bits() {
					h.Prefix, h.Table = r.Prefix, r.Table
				}
			}
		}
	}
	return hops, nil
}

// RouteFrom returns the route of our own namespace to an address; none for a packet that enters an interface from an
// address in one of the local routes.
func (f Fake) RouteFrom(index int32, from, addr netip.Addr) ([]rtnetlink.Hop, error) {
	if index != 0 && slices.ContainsFunc(f[rtnetlink.NoNSID].Local, func(r rtnetlink.Route) bool { return r.Bits() > 0 && r.Contains(from) }) {
		return nil, nil
	}
	return f.Route(addr)
}

// UnmarkedTables lists the tables that rules of our own namespace look up for packets without a mark.
func (f Fake) UnmarkedTables() ([]uint32, error) {
	return unless(f[rtnetlink.NoNSID].Unlisted, f[rtnetlink.NoNSID].Unmarked)
}

// unless returns an error, or else a list.
func unless[T any](err error, list []T) ([]T, error) {
	if err != nil {
		return nil, err
	}
	return list, nil
}

// LocalRoutes returns the local routes of our own namespace.
func (f Fake) LocalRoutes() ([]rtnetlink.Route, error) { return f[rtnetlink.NoNSID].Local, nil }

// HostRoutes returns the routes of our own namespace to single addresses.
func (f Fake) HostRoutes() ([]rtnetlink.Route, error) {
	return unless(f[rtnetlink.NoNSID].Unlisted, f[rtnetlink.NoNSID].Hosts)
}

// Settings returns the settings of an interface of our own namespace.
func (f Fake) Settings(iface string) rtnetlink.Settings { return f[rtnetlink.NoNSID].Settings[iface] }

// Forwarding returns the entries of the forwarding tables of the bridges of our own namespace.
func (f Fake) Forwarding() ([]rtnetlink.Neighbour, error) { return f[rtnetlink.NoNSID].Forwarding, nil }

// Resolved returns the neighbour tables of our own namespace.
func (f Fake) Resolved() ([]rtnetlink.Neighbour, error) { return f[rtnetlink.NoNSID].Resolved, nil }

// Tunnels returns the forwarding table of a VXLAN device of our own namespace.
func (f Fake) Tunnels(index int32) ([]rtnetlink.Neighbour, error) {
	return f[rtnetlink.NoNSID].Tunnels[index], nil
}

// Neighbours returns the neighbours of an interface of our own namespace.
func (f Fake) Neighbours(index int32) ([]rtnetlink.Neighbour, error) {
	return f[rtnetlink.NoNSID].Neighbours[index], nil
}

// Proxied returns the addresses that our own namespace answers for as a proxy.
func (f Fake) Proxied() ([]rtnetlink.Neighbour, error) {
	return unless(f[rtnetlink.NoNSID].Unlisted, f[rtnetlink.NoNSID].Proxied)
}

// FiltersARP reports whether our own namespace has rules about ARP.
func (f Fake) FiltersARP() (bool, error) {
	return f[rtnetlink.NoNSID].Filters, f[rtnetlink.NoNSID].Unread
}

// Put adds or replaces an interface with its addresses.
func (f Fake) Put(nsid int32, l rtnetlink.Link, addrs ...string) {
	if f[nsid] == nil {
		f[nsid] = &Namespace{Links: map[int32]rtnetlink.Link{}, Addresses: map[int32][]rtnetlink.Address{}}
	}
	f[nsid].Links[l.Index] = l
	f[nsid].Addresses[l.Index] = nil
	for _, a := range addrs {
		f[nsid].Addresses[l.Index] = append(f[nsid].Addresses[l.Index], Address(l.Index, a))
	}
}

// Own makes sure that our own namespace exists and that OwnNSID also finds it.
func (f Fake) Own() {
	if f[rtnetlink.NoNSID] == nil {
		f.Put(rtnetlink.NoNSID, rtnetlink.Link{Index: 1, Name: "lo", Flags: Up | unix.IFF_LOOPBACK})
	}
	f[OwnNSID] = f[rtnetlink.NoNSID]
}

// Address returns an address of an interface.
func Address(index int32, prefix string) rtnetlink.Address {
	p := netip.MustParsePrefix(prefix)
	return rtnetlink.Address{Index: index, Addr: p.Addr(), PrefixLength: uint8(p.Bits())}
}

const (
	// OwnNSID is our own id in our own table.
	OwnNSID = 77
	// Up is the flag of an interface that is up.
	Up = unix.IFF_UP
)

// HostVeth returns our end of a pair of veths whose other end is interface 2 of a namespace.
func HostVeth(index int32, nsid int32) rtnetlink.Link {
	return rtnetlink.Link{
		Index: index, Name: fmt.Sprintf("veth%d", index), Kind: "veth", MAC: fmt.Sprintf("host%02d", index),
		ARPHRD: unix.ARPHRD_ETHER, Flags: Up, Lower: 2, LowerNSID: nsid,
	}
}

// PodVeth returns the other end of the pair.
func PodVeth(host int32) rtnetlink.Link {
	return rtnetlink.Link{
		Index: 2, Name: "eth0", Kind: "veth", MAC: fmt.Sprintf("pods%02d", host),
		ARPHRD: unix.ARPHRD_ETHER, Flags: Up, Lower: host, LowerNSID: OwnNSID,
	}
}
