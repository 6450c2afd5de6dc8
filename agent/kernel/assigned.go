package kernel

import (
	"maps"
	"net/netip"
)

// Networks holds the names of the networks that assigned the addresses of one namespace. It
// is never changed in place.
type Networks map[InterfaceAddress]string

// InterfaceAddress is an address of an interface inside a namespace.
type InterfaceAddress struct {
	Interface string
	Addr      netip.Addr
}

// With returns the union of two sets. If two networks assigned the same address, the name
// that sorts first counts: any choice will do that all nodes make alike.
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

// Keep returns the networks, and those of before for addresses that have none now.
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

// Intended holds the addresses that a namespace is meant to have, each with the source that
// says so.
type Intended map[InterfaceAddress]string
