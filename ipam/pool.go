// Package ipam describes the IPAMs that ipwitness reads. Each IPAM has a folder with everything
// that is particular to it: where its records are, how to parse them, the permissions that this
// takes, and how to correct them. Package registry lists the IPAMs.
//
// The packages in ipam know neither the agent nor the aggregator. The agent drives the sources that
// are files, and the aggregator those that are objects of the Kubernetes API.
package ipam

import (
	"math/bits"
	"net/netip"
	"slices"
)

// State is how far the allocations of a pool are known. The numbers are those of the API.
type State uint8

// The states of a pool.
const (
	Known      State = iota + 1 // all allocations are known, and changes are followed
	Reading                     // the allocations are being read
	Missing                     // the records are gone or never existed
	Unreadable                  // the records cannot be read
	Stale                       // the source is disconnected
)

// A Pool is the set of addresses that one IPAM allocates for one network.
type Pool struct {
	// IPAM is the name of the IPAM, as in IPAM.Name. Name identifies the pool among those of the
	// IPAM on a node, or among those of the cluster.
	IPAM, Name string
	// Traits are those of the IPAM. The aggregator sets them, so that a judgement needs no list of IPAMs.
	Traits
	Served
	// Ranges are the addresses that the pool allocates, without reserved ones.
	Ranges []Range
	// Divided are the ranges of a pool that gives parts of them to nodes. The parts are the ranges of
	// other pools, which allocate the addresses. A pool with Divided has no Ranges.
	Divided []Range
	// Services is set if Services get the addresses, and says in which field: ClusterIP or Ingress. It is empty for
	// pools whose addresses owners get.
	Services ServiceField
	// Gateways are addresses in the ranges that belong to the node or to a router.
	Gateways []netip.Addr
	// Server is the DHCP server that leased the addresses, and ClientID the client identifier that was sent to it in
	// hexadecimal digits, as their client has recorded both (RFC 2132, sections 9.7 and 9.14). They are invalid and
	// empty if it has not, and for pools of other IPAMs.
	Server   netip.Addr
	ClientID string
	State    State
	// Problem says why the records are not known. It is text for people.
	Problem string
	Wiring
	// Asked is set if the pool serves only pods that request it by name. Nodes with addresses in
	// its range then do not share a scope with it.
	Asked bool
	// Grows is set if the pool gets more addresses when few are left. Single is set if it has its
	// addresses one by one, such as those of a network interface of a cloud. They may move to another
	// node. A pool of the cluster with single addresses is that of the node with its name.
	Grows, Single bool
	// Unread is the kind of the objects that cannot be read. The pool stands for them, because their pools
	// are not known, and has no addresses. It is empty for other pools.
	Unread string
	// Partial is set if an object that cannot be read may have allocations of the pool. An address
	// without an allocation is then not known to be free.
	Partial bool
	// Config is where the pool is configured: a file or an object.
	Config string
	// Base is the address that offsets in the records count from (whereabouts).
	Base netip.Addr
}

// Contains reports whether the pool may allocate an address.
func (p *Pool) Contains(a netip.Addr) bool {
	for _, r := range p.Ranges {
		if r.Contains(a) {
			return !slices.Contains(p.Gateways, a)
		}
	}
	return false
}

// Size returns the number of addresses that the pool can allocate; 0 if it is not known or can
// grow.
func (p *Pool) Size() uint64 {
	return p.size(func(netip.Addr) bool { return true })
}

// SizeOf returns the number of addresses of one family that the pool can allocate.
func (p *Pool) SizeOf(v4 bool) uint64 {
	return p.size(func(a netip.Addr) bool { return a.Is4() == v4 })
}

func (p *Pool) size(counts func(netip.Addr) bool) (size uint64) {
	if p.Grows {
		return 0
	}
	for _, r := range p.Ranges {
		if !counts(r.First) {
			continue
		}
		sum, carry := bits.Add64(size, r.Size(), 0)
		if carry != 0 {
			return ^uint64(0)
		}
		size = sum
	}
	for _, g := range p.Gateways {
		for _, r := range p.Ranges {
			if counts(g) && r.Contains(g) && size > 0 && size < ^uint64(0) {
				size--
				break
			}
		}
	}
	return size
}

// Competes reports whether two pools of one node serve different networks, allocate the same
// addresses, and have addresses that share a scope.
func (p *Pool) Competes(other *Pool) bool {
	if p.Network == other.Network || p.Config == "" || other.Config == "" {
		return false
	}
	a, _ := p.Overlap(other)
	shared := p.Routed && other.Routed || p.Device != "" && p.Device == other.Device // a scope
	return shared && a.First.IsValid()
}

// Overlap returns the first two ranges of two pools that overlap; invalid ranges if there are none.
func (p *Pool) Overlap(other *Pool) (a, b Range) {
	for _, a := range p.Ranges {
		for _, b := range other.Ranges {
			if a.Overlaps(b) {
				return a, b
			}
		}
	}
	return Range{}, Range{}
}

// Served are the CNI networks that a pool serves.
type Served struct {
	// Network is the network that the pool serves; empty if it is not known or if Networks lists
	// several.
	Network  string
	Networks []string
	// Realm separates the networks of tenants, such as the network_name of whereabouts or a VPC of
	// Kube-OVN; empty for the usual network. Pools with different realms may allocate the same
	// address because their networks never meet.
	Realm string
}

// Serves reports whether the pool serves a CNI network. It returns unknown if it is not known which
// networks the pool serves.
func (s *Served) Serves(network string) (serves, unknown bool) {
	if slices.Contains(s.Networks, network) {
		return true, false
	}
	return s.Network == network && network != "", s.Network == "" && len(s.Networks) == 0
}

// Wiring is how the interfaces with a pool's addresses are connected.
type Wiring struct {
	// Plugin is the CNI plugin that uses the pool. Device is the bridge of its ports or the master
	// of its devices.
	Plugin, Device string
	// Routed is set if the node routes between the pool's addresses and its other networks, so that
	// they share a scope.
	Routed bool
}

// RoutesIPVLAN reports whether a node routes to the devices of a plugin in a mode, as with ipvlan in modes l3 and l3s:
// such devices do not answer ARP (Documentation/networking/ipvlan.rst of Linux).
func RoutesIPVLAN(plugin, mode string) bool {
	return plugin == "ipvlan" && (mode == "l3" || mode == "l3s")
}

// An Allocation is the record that an IPAM has of one address.
type Allocation struct {
	Address netip.Addr
	// Node is the name of the node that the address is allocated for, as Kubernetes or the IPAM
	// calls it; empty if the IPAM does not record it.
	Node string
	// Namespace and Pod are the pod that the address is allocated for. ContainerID and Interface
	// are the sandbox and its interface. All are as the IPAM records them.
	Namespace, Pod, ContainerID, Interface string
	// MAC is the hardware address of the DHCP client that the address is leased to, in lower case
	// with colons; empty if the record names none. Hostname is the name that the client has sent.
	// FormerMAC is the hardware address to which the address was leased before, if it was leased to
	// another one for the same client identifier; otherwise empty.
	MAC, FormerMAC, Hostname string
	// FixedIn is the file of the configuration that fixes the address for its holder, such as a reservation of a DHCP
	// server; empty if the IPAM has chosen the address. ReservedFor are the hardware addresses of the clients that the
	// reservation is for, with a space between; empty if it names none.
	FixedIn, ReservedFor string
	// Purpose is set if the address is not for a pod, such as the tunnel or router address of a
	// node. It is text for people: "VXLAN tunnel".
	Purpose string
	// Kept is set if the IPAM keeps the address for the pod while the pod does not exist, such as
	// for a pod of a StatefulSet or for a virtual machine. Pod may then be the name of the virtual
	// machine.
	Kept bool
	// Identity is the security identity by which the network enforces policies for packets of the address; 0 if the record
	// decides nothing about that.
	Identity uint32
	// Service is set if the address is that of a Service, so that nodes redirect its packets.
	Service *Redirect
	// Location is where the allocation is recorded: a file, or "KIND NAMESPACE/NAME" and a path in
	// the object, such as /spec/allocations/3.
	Location string
}

// SameHolder reports whether two allocations are for the same container.
func (al *Allocation) SameHolder(other *Allocation) bool {
	return al.ContainerID == other.ContainerID && al.Namespace == other.Namespace && al.Pod == other.Pod
}
