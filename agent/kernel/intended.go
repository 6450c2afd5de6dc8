package kernel

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/ipwitness/ipwitness/agent/table"
	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// intendedAfter is how long an address must be missing before that is reported. Usually an
// address is set before a source reports it as intended, but duplicate address detection
// delays a new IPv6 address by two seconds. A namespace that ends loses its addresses first.
const intendedAfter = 5 * time.Second

// mostIntended limits the missing addresses that are reported for a namespace. It is more than
// any pod has.
const mostIntended = 64

// compareIntended compares the intended addresses of a namespace with the actual ones, and
// publishes those that have been missing for long enough.
func (p *publisher) compareIntended(ns *namespace, now time.Time) {
	intended := p.intended[ns.inode]
	if ns == p.own || !ns.published || len(intended) == 0 && len(ns.missing) == 0 {
		return
	}
	var missing []*ipwitnessv1.Intended
	for g := range ns.missing {
		if intended[g] == "" || ns.has(g.Addr) {
			delete(ns.missing, g)
		}
	}
	for g, source := range intended {
		if ns.has(g.Addr) {
			continue
		}
		since, ok := ns.missing[g]
		if !ok {
			if ns.missing == nil {
				ns.missing = map[InterfaceAddress]time.Time{}
			}
			since, ns.missing[g] = now, now
		}
		if wait := intendedAfter - now.Sub(since); wait > 0 {
			p.CompareAgain(wait)
			continue
		}
		missing = append(missing, &ipwitnessv1.Intended{
			Address: g.Addr.String(), Source: source, Interface: g.Interface, Network: p.networks[ns.inode].of(g).Name,
		})
	}
	slices.SortFunc(missing, func(a, b *ipwitnessv1.Intended) int {
		return cmp.Or(cmp.Compare(a.GetAddress(), b.GetAddress()), cmp.Compare(a.GetInterface(), b.GetInterface()))
	})
	missing = missing[:min(len(missing), mostIntended)]
	if slices.EqualFunc(missing, ns.intended, func(a, b *ipwitnessv1.Intended) bool { return proto.Equal(a, b) }) {
		return
	}
	ns.intended = missing
	p.putNamespace(ns, now)
}

// has reports whether an interface of the namespace has an address, in any state.
func (ns *namespace) has(addr netip.Addr) bool {
	for _, l := range ns.links {
		if l.addrs[addr] != nil {
			return true
		}
	}
	return false
}

// Networks maps the addresses of one namespace to the networks that assigned them. It is never changed in
// place.
type Networks map[InterfaceAddress]table.Network

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
	for g, network := range others {
		if have, ok := sum[g]; !ok || network.Name < have.Name {
			sum[g] = network
		}
	}
	return sum
}

// Keep returns the networks, and the previous ones for addresses that have none now.
func (n Networks) Keep(before Networks) Networks {
	copied := false
	for g, network := range before {
		if _, ok := n[g]; ok {
			continue
		}
		if !copied {
			if n, copied = maps.Clone(n), true; n == nil {
				n = Networks{}
			}
		}
		n[g] = network
	}
	return n
}

// of returns the network that assigned an address of an interface.
func (n Networks) of(g InterfaceAddress) table.Network {
	return cmp.Or(n[g], n[InterfaceAddress{Addr: g.Addr}])
}

// Intended maps the addresses that a namespace is meant to have to the source that says so.
type Intended map[InterfaceAddress]string
