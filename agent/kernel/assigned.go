package kernel

import (
	"maps"
	"net/netip"
)

// Networks maps the addresses of one namespace to the names of the networks that assigned
// them. It is never changed in place.
type Networks map[InterfaceAddress]string

// InterfaceAddress is an address of an interface inside a namespace. An empty interface means any.
type InterfaceAddress struct {
	Interface string
	Addr      netip.Addr
}

// With returns the union of two sets. If two networks assigned the same address, the name that
// sorts first counts. Any rule will do, as long as it is the same on all nodes.
func (n Networks) With(others Networks) Networks {
	if n == nil {
		return others
	}
	sum := maps.Clone(n)
	for g, name := range others {
		if have, ok := sum[g]; !ok || name < have {
			sum[g] = name
		}
	}
	return sum
}

// Keep returns the networks, and the previous ones for addresses that have none now.
func (n Networks) Keep(before Networks) Networks {
	copied := false
	for g, name := range before {
		if _, ok := n[g]; ok {
			continue
		}
		if !copied {
			if n, copied = maps.Clone(n), true; n == nil {
				n = Networks{}
			}
		}
		n[g] = name
	}
	return n
}

// Intended maps the addresses that a namespace is meant to have to the source that says so.
type Intended map[InterfaceAddress]string
