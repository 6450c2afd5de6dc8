package whereabouts

import (
	"cmp"
	"iter"
	"net/netip"
	"slices"
	"strings"

	"github.com/ipwitness/ipwitness/ipam"
)

// reader reads the objects of whereabouts. Whereabouts has one IPPool for each range, which lists
// allocations by their offset from the range's address, and, because ranges may overlap, one
// OverlappingRangeIPReservation for each allocated address. Both are in one namespace.
// NetworkAttachmentDefinitions configure the ranges.
//
// An address with only a reservation is not available either, so it is an allocation like those in
// the pool. If a pool and a reservation have an address for the same pod, that is one allocation
// with two locations.
type reader struct {
	ipam.Publisher
	pools        ipam.Mirror[*ipam.Object, pool]
	reservations ipam.Mirror[*ipam.Object, reservation]
	networks     ipam.Mirror[*ipam.Object, network]

	reserving, attaching *ipam.Resource
	// published has the published state of each pool, and index finds the pools of a network.
	published map[ipam.Key]*published
	index     map[realm]*realmPools
	// lost has the ranges of deleted pools that networks still use.
	lost map[ipam.Key]netip.Prefix
	// dirty has the pools to publish again. regroup means that all pools must be published
	// again, because the networks changed.
	dirty   map[ipam.Key]bool
	regroup bool
}

// published is the published state of a pool.
type published struct {
	name string // the pool's name
	base netip.Addr
	// network is the pool's network_name.
	network string
	prefix  netip.Prefix
	entries []entry // in order
	// reserved maps the names of reservations in the pool to their addresses.
	reserved map[string]netip.Addr
}

// entry is a published allocation.
type entry struct {
	addr netip.Addr
	// pooled means that the pool lists the allocation. reservation is the name of its
	// reservation, if it has one.
	pooled                bool
	reservation           string
	pod, container, iface string
}

func newObjects(p ipam.Publisher) *ipam.Objects {
	r := &reader{
		Publisher: p, published: make(map[ipam.Key]*published), lost: make(map[ipam.Key]netip.Prefix), dirty: make(map[ipam.Key]bool),
		reserving: &ipam.Resource{Kind: Reservations, Lost: "the allocations of whereabouts in overlapping ranges are unknown"},
		attaching: &ipam.Resource{Kind: Networks, Lost: "pods of one secondary or user-defined network are compared on common links only, and the networks of whereabouts and its excluded ranges are unknown"},
	}
	r.pools = ipam.Mirror[*ipam.Object, pool]{
		Read:    func(o *ipam.Object) (ipam.Key, *pool) { return o.Key(), readPool(o) },
		Changed: func(at ipam.Key, _, _ *pool) { r.dirty[at] = true }, Settled: r.settle,
	}
	r.reservations = ipam.Mirror[*ipam.Object, reservation]{
		Parse: readReservation, Unread: &ipam.Unread{Publisher: p, Kind: Reservations},
		Changed: r.reservationChanged, Settled: r.settle,
	}
	r.networks = ipam.Mirror[*ipam.Object, network]{
		Parse: readNetwork, Unread: &ipam.Unread{Publisher: p, Kind: Networks},
		Changed: func(at ipam.Key, before, after *network) {
			r.regroup = r.regroup || before.served() || after.served()
			r.DefinitionChanged(at)
		},
		Settled: r.settle,
	}
	pools := &ipam.Resource{Kind: Pools, Role: ipam.Needed, Store: &r.pools, Lost: "the allocations of whereabouts are unknown"}
	r.reserving.Store, r.attaching.Store = &r.reservations, &r.networks
	return &ipam.Objects{
		Resources: []*ipam.Resource{pools, r.reserving, r.attaching},
		Settle:    func() { r.regroup = true; r.settle() },
		Definition: func(at ipam.Key) *ipam.Definition {
			if n := r.networks.Records[at]; n != nil && n.Name != "" {
				return &n.Definition
			}
			return nil
		},
	}
}

func (r *reader) reservationChanged(at ipam.Key, _, after *reservation) {
	for pool, addr := range r.poolsOf(at) {
		if after == nil {
			delete(r.published[pool].reserved, at.Name)
		} else {
			r.published[pool].reserved[at.Name] = addr
		}
		r.dirty[pool] = true
	}
}

// realm identifies a network by namespace and network_name. realmPools has its pools by prefix, and
// the lengths of these prefixes.
type realm struct{ namespace, name string }

type realmPools struct {
	pools map[netip.Prefix][]ipam.Key
	bits  map[int]bool
}

// poolsOf returns the pools that a reservation may belong to, each with the reserved address.
// The name of a reservation is NETWORK-ADDRESS, and both parts may contain dashes.
func (r *reader) poolsOf(reservation ipam.Key) iter.Seq2[ipam.Key, netip.Addr] {
	return func(yield func(ipam.Key, netip.Addr) bool) {
		for end := 0; ; end++ {
			of := r.index[realm{reservation.Namespace, reservation.Name[:max(0, end-1)]}]
			if addr, ok := reservedAddress(reservation.Name[end:]); ok && of != nil {
				for bits := range of.bits {
					prefix, err := addr.Prefix(bits)
					if err != nil {
						continue
					}
					for _, at := range of.pools[prefix] {
						if r.published[at] != nil && !yield(at, addr) {
							return
						}
					}
				}
			}
			dash := strings.IndexByte(reservation.Name[end:], '-')
			if dash < 0 {
				return
			}
			end += dash
		}
	}
}

func reservedAddress(text string) (netip.Addr, bool) {
	addr, err := netip.ParseAddr(text)
	if err != nil {
		addr, err = netip.ParseAddr(strings.ReplaceAll(text, "-", ":"))
	}
	return addr, err == nil
}

// normalized returns an address or range in the form that whereabouts uses in names.
func normalized(text string) string {
	if strings.HasSuffix(text, ":") {
		text += "0"
	}
	return strings.NewReplacer(":", "-", "/", "-").Replace(text)
}

func (r *reader) settle() {
	if !r.reserving.Decided || !r.attaching.Decided {
		return // publish only once everything is listed
	}
	if r.regroup {
		r.regroup = false
		for at := range r.pools.Records {
			r.dirty[at] = true
		}
		for at := range r.lost {
			r.dirty[at] = true
		}
		r.group()
	}
	for at := range r.dirty {
		delete(r.dirty, at)
		r.publish(at)
	}
}

// group assigns pools to networks again, and reservations to the pools whose network changed.
func (r *reader) group() {
	moved := false
	for at, p := range r.pools.Records {
		if p.bad {
			continue
		}
		is := r.published[at]
		if is != nil && (is.base != p.base || is.prefix != p.prefix) {
			r.release(at, is)
			is = nil
		}
		network := r.networkOf(at, p)
		if is == nil {
			is = &published{name: at.Namespace + "/" + at.Name, base: p.base, prefix: p.prefix}
			r.published[at] = is
		} else if is.network == network {
			continue
		}
		is.network, is.reserved, moved = network, make(map[string]netip.Addr), true
	}
	if moved {
		r.reindex()
		for at := range r.reservations.Records {
			for pool, addr := range r.poolsOf(at) {
				r.published[pool].reserved[at.Name] = addr
			}
		}
	}
}

func (r *reader) reindex() {
	r.index = make(map[realm]*realmPools)
	for at, is := range r.published {
		of := r.index[realm{at.Namespace, is.network}]
		if of == nil {
			of = &realmPools{pools: make(map[netip.Prefix][]ipam.Key), bits: make(map[int]bool)}
			r.index[realm{at.Namespace, is.network}] = of
		}
		of.pools[is.prefix] = append(of.pools[is.prefix], at)
		of.bits[is.prefix.Bits()] = true
	}
}

// networkOf returns the network_name of a pool. If no network has the pool's range, it is derived
// from the pool's name, and then includes the node's name if each node has a slice of the range.
func (r *reader) networkOf(at ipam.Key, p *pool) string {
	if serving := r.serving(at.Name, p.prefix); len(serving) > 0 {
		return serving[0].network.network
	}
	rest, _ := strings.CutSuffix(at.Name, normalized(p.prefix.String()))
	return strings.TrimSuffix(rest, "-")
}

func (r *reader) publish(at ipam.Key) {
	p, is := r.pools.Records[at], r.published[at]
	name := at.Namespace + "/" + at.Name
	if p == nil {
		if is != nil {
			r.release(at, is)
			r.lost[at] = is.prefix
		}
		if last := r.Pool(name); last != nil && r.State() == ipam.Known && len(r.serving(at.Name, r.lost[at])) > 0 {
			r.Lose(*last, "IPPool "+name+" was deleted, but a NetworkAttachmentDefinition has its range: whereabouts will recreate it empty")
			return
		}
		delete(r.lost, at)
		r.Drop(name)
		return
	}
	delete(r.lost, at)
	r.Use() // whereabouts creates an IPPool for its first allocation
	if p.bad {
		// Keep the published allocations: an unreadable pool does not prove that they are gone.
		ipam.Publish(r, ipam.Pool{Name: name, Config: "ippools " + name}, p.problem, true)
		return
	}
	if is == nil || is.base != p.base || is.prefix != p.prefix {
		r.group()
		is = r.published[at]
	}
	r.Put(r.pool(at, p), p.problem, false)
	was := is.entries
	is.entries = r.entries(at, p, is)
	// An address whose allocation only moved was never free: Differences releases last.
	ipam.Differences(was, is.entries, compare,
		func(e *entry) { r.Allocate(name, is.allocation(e), 0) }, func(e *entry) { r.Release(name, is.allocation(e)) })
}

// release withdraws all allocations of a pool.
func (r *reader) release(at ipam.Key, is *published) {
	for i := range is.entries {
		r.Release(is.name, is.allocation(&is.entries[i]))
	}
	delete(r.published, at)
}

func (r *reader) entries(at ipam.Key, p *pool, is *published) []entry {
	all := make([]entry, 0, len(p.allocations))
	names := make(map[netip.Addr][]string, len(is.reserved)) // names of reservations; their form depends on the version of whereabouts
	for name, addr := range is.reserved {
		names[addr] = append(names[addr], name)
	}
	matched := make(map[string]bool)
	for i := range p.allocations {
		al := &p.allocations[i]
		e := entry{addr: al.addr, pooled: true, pod: al.pod, container: al.container, iface: al.iface}
		slices.Sort(names[e.addr])
		for _, reservation := range names[e.addr] {
			known := r.reservations.Records[ipam.Key{Namespace: at.Namespace, Name: reservation}]
			if known != nil && (known.pod == e.pod || e.pod == "" || known.container != "" && known.container == e.container) {
				e.reservation = reservation
				matched[reservation] = true
				break
			}
		}
		all = append(all, e)
	}
	for name, addr := range is.reserved {
		if known := r.reservations.Records[ipam.Key{Namespace: at.Namespace, Name: name}]; known != nil && !matched[name] {
			all = append(all, entry{addr: addr, reservation: name, pod: known.pod, container: known.container, iface: known.iface})
		}
	}
	slices.SortFunc(all, func(a, b entry) int { return compare(&a, &b) })
	return all
}

// compare orders allocations by the location that identifies them.
func compare(a, b *entry) int {
	pooled := func(e *entry) int {
		if e.pooled {
			return 1
		}
		return 0
	}
	return cmp.Or(a.addr.Compare(b.addr), cmp.Compare(pooled(a), pooled(b)), cmp.Compare(a.reservation, b.reservation))
}

func (is *published) allocation(e *entry) ipam.Allocation {
	al := ipam.Allocation{Address: e.addr, ContainerID: e.container, Interface: e.iface}
	al.Namespace, al.Pod, _ = strings.Cut(e.pod, "/")
	if al.Pod == "" {
		al.Namespace = ""
	}
	if e.pooled {
		offset, _ := ipam.OffsetOf(is.base, e.addr) // the address was parsed from an offset
		al.Location = "ippools " + is.name + " /spec/allocations/" + offset
	}
	if e.reservation != "" {
		if al.Location != "" {
			al.Location += "; "
		}
		namespace, _, _ := strings.Cut(is.name, "/")
		al.Location += "overlappingrangeipreservations " + namespace + "/" + e.reservation
	}
	return al
}

// servingRange is a network with one of its ranges.
type servingRange struct {
	at ipam.Key
	*network
	part *networkRange
}

// serving returns the networks with a range that has the addresses of a pool, in order.
func (r *reader) serving(pool string, prefix netip.Prefix) (all []servingRange) {
	for at, n := range r.networks.Records {
		for i := range n.ranges {
			if n.ranges[i].serves(n, pool, prefix) {
				all = append(all, servingRange{at, n, &n.ranges[i]})
			}
		}
	}
	slices.SortFunc(all, func(a, b servingRange) int {
		return cmp.Or(cmp.Compare(a.at.Namespace, b.at.Namespace), cmp.Compare(a.at.Name, b.at.Name))
	})
	return all
}

// pool returns the pool to publish for a record.
func (r *reader) pool(at ipam.Key, p *pool) ipam.Pool {
	name := at.Namespace + "/" + at.Name
	next := ipam.Pool{Name: name, Base: p.base, Config: "ippools " + name, Served: ipam.Served{Realm: r.networkOf(at, p)}}
	serving := r.serving(at.Name, p.prefix)
	if len(serving) == 0 {
		// Whereabouts never deletes an IPPool. A pool without allocations that no network uses is
		// left over.
		if len(p.allocations) > 0 || !r.attaching.Followed {
			next.Ranges = []ipam.Range{ipam.Usable(p.prefix)}
		}
		return next
	}
	first := serving[0]
	next.Config = "network-attachment-definitions " + first.at.Namespace + "/" + first.at.Name
	next.Plugin, next.Device = first.plugin, first.device
	for _, s := range serving {
		if !slices.Contains(next.Networks, s.Name) {
			next.Networks = append(next.Networks, s.Name)
		}
		if s.plugin != first.plugin {
			next.Plugin = ""
		}
		if s.device != first.device {
			next.Device = ""
		}
		next.Ranges = append(next.Ranges, s.part.given(p.prefix)...)
		for _, g := range s.gateways {
			if p.prefix.Contains(g) && !slices.Contains(next.Gateways, g) {
				next.Gateways = append(next.Gateways, g)
			}
		}
	}
	next.Ranges = ipam.Union(next.Ranges)
	if len(next.Networks) == 1 {
		next.Network, next.Networks = next.Networks[0], nil
	}
	return next
}
