package ovn

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/ipwitness/ipwitness/ipam"
)

// kubeOVNReader reads the objects of Kube-OVN. Each Subnet is a pool, and each IP and Vip is an allocation
// from one of them.
type kubeOVNReader struct {
	ipam.Publisher
	subnets ipam.Mirror[*ipam.Object, subnet]
	ips     ledger
	vips    ledger
	// dirty has the subnets to publish again.
	dirty map[string]bool
}

// ledger has the objects of one kind that allocate addresses.
type ledger struct {
	ipam.Mirror[*ipam.Object, record]
	reader *kubeOVNReader
	kind   ipam.Kind
	// invalid has the objects of each subnet that have a problem, and unread those whose subnet is not
	// known.
	invalid map[string]map[ipam.Key]string
	unread  ipam.Unread
}

func newKubeOVN(p ipam.Publisher) *ipam.Objects {
	r := &kubeOVNReader{Publisher: p, dirty: make(map[string]bool)}
	r.subnets = ipam.Mirror[*ipam.Object, subnet]{
		Read:    readSubnet,
		Changed: func(at ipam.Key, _, _ *subnet) { r.dirty[at.Name] = true }, Settled: r.settle,
	}
	r.ips.init(r, IPs, readIP)
	r.vips.init(r, VIPs, readVIP)
	return &ipam.Objects{Resources: []*ipam.Resource{
		{Kind: Subnets, Role: ipam.Needed, Store: &r.subnets, Lost: "the address pools of Kube-OVN are unknown"},
		{Kind: IPs, Role: ipam.Needed, Store: &r.ips, Lost: "the allocations of Kube-OVN are unknown"},
		{Kind: VIPs, Store: &r.vips, Lost: "the virtual addresses that Kube-OVN reserves are unknown"},
	}}
}

func (l *ledger) init(r *kubeOVNReader, k ipam.Kind, read func(*ipam.Object) (ipam.Key, *record)) {
	l.reader, l.kind, l.invalid, l.unread = r, k, make(map[string]map[ipam.Key]string), ipam.Unread{Publisher: r.Publisher, Kind: k, Allocates: true}
	l.Mirror = ipam.Mirror[*ipam.Object, record]{
		Read:    read,
		Changed: l.changed, Settled: r.settle,
	}
}

// changed publishes the change of an object. One that cannot be read keeps its addresses: they may still
// be allocated.
func (l *ledger) changed(at ipam.Key, before, after *record) {
	r := l.reader
	if after != nil && after.bad && before != nil {
		problem := after.problem
		*after = *before
		after.problem, after.bad = problem, true
	}
	if after == nil || !after.bad {
		r.Use()
	}
	l.note(at, before, "")
	if after != nil {
		l.note(at, after, after.problem)
		for _, a := range after.addrs {
			r.Allocate(after.subnet, l.allocation(at, after, a), after.at)
		}
	}
	if before == nil {
		return
	}
	for _, a := range before.addrs {
		if after == nil || after.subnet != before.subnet || !slices.Contains(after.addrs, a) {
			r.Release(before.subnet, l.allocation(at, before, a))
		}
	}
}

// note records the problem of an object, or that it has none.
func (l *ledger) note(at ipam.Key, of *record, problem string) {
	if of != nil && of.subnet == "" {
		l.unread.Set(at, problem)
		return
	}
	if of == nil || l.invalid[of.subnet][at] == problem {
		return
	}
	l.reader.dirty[of.subnet] = true
	if problem == "" {
		if delete(l.invalid[of.subnet], at); len(l.invalid[of.subnet]) == 0 {
			delete(l.invalid, of.subnet)
		}
		return
	}
	if l.invalid[of.subnet] == nil {
		l.invalid[of.subnet] = make(map[ipam.Key]string)
	}
	l.invalid[of.subnet][at] = problem
}

// allocation returns the allocation to publish for an address of an object.
func (l *ledger) allocation(at ipam.Key, r *record, a netip.Addr) ipam.Allocation {
	return ipam.Allocation{
		Address: a, Node: r.node, Namespace: r.namespace, Pod: r.pod, Purpose: r.purpose, Kept: r.kept, Location: l.kind.Resource + " " + at.Name,
	}
}

// settle publishes the subnets that changed, and the allocations of new ones.
func (r *kubeOVNReader) settle() {
	added, gone := make(map[string]bool), make(map[string]bool)
	for name := range r.dirty {
		if s := r.subnets.Records[ipam.Key{Name: name}]; s == nil {
			gone[name] = r.Pool(name) != nil
		} else {
			added[name] = r.Pool(name) == nil
			r.publish(name, s)
		}
	}
	clear(r.dirty)
	for _, l := range []*ledger{&r.ips, &r.vips} {
		l.each(added, func(subnet string, al ipam.Allocation, at int64) { r.Allocate(subnet, al, at) })
		l.each(gone, func(subnet string, al ipam.Allocation, _ int64) { r.Release(subnet, al) })
	}
	for name := range gone {
		r.Drop(name)
	}
}

// each calls f for each allocation from subnets.
func (l *ledger) each(of map[string]bool, f func(subnet string, al ipam.Allocation, at int64)) {
	if !slices.Contains(slices.Collect(maps.Values(of)), true) {
		return
	}
	for at, r := range l.Records {
		for _, a := range r.addrs {
			if of[r.subnet] {
				f(r.subnet, l.allocation(at, r, a), r.at)
			}
		}
	}
}

// publish publishes a subnet.
func (r *kubeOVNReader) publish(name string, s *subnet) {
	next := ipam.Pool{
		Name: name, Served: ipam.Served{Realm: s.realm}, Ranges: s.ranges, Gateways: s.gateways, Config: "subnets " + name,
		Wiring: ipam.Wiring{Plugin: "kube-ovn"},
	}
	if last := r.Pool(name); s.bad && last != nil {
		next = *last
	}
	problem, bad := s.problem, s.bad
	for _, l := range []*ledger{&r.ips, &r.vips} {
		for at, other := range l.invalid[name] {
			if problem == "" || other < problem && !s.bad {
				problem = other
			}
			bad = bad || l.Records[at] != nil && l.Records[at].bad && len(l.Records[at].addrs) == 0
		}
	}
	r.Put(next, problem, bad)
}
