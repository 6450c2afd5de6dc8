package kube

import (
	"cmp"
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/whereabouts"
)

// whereaboutsObjects reads the IPAM of the same name. Whereabouts has one IPPool for each range,
// which lists allocations by their offset from the range's address, and, because ranges may
// overlap, one OverlappingRangeIPReservation for each allocated address. Both are in one
// namespace. NetworkAttachmentDefinitions configure the ranges.
//
// An address with only a reservation is not available either, so it is an allocation like
// those in the pool. If a pool and a reservation have an address for the same pod, that is one
// allocation with two locations.
type whereaboutsObjects struct {
	*publisher
	pools        mirror[wherePool]
	reservations mirror[whereReservation]
	networks     mirror[attachment]

	reserving, attaching *source
	// books has the published state of each pool, and index finds the books of a network.
	books map[key]*whereBook
	index map[whereNetwork]*whereRanges
	// lost has the ranges of deleted pools that networks still use.
	lost map[key]netip.Prefix
	// dirty has the pools to publish again. regroup means that all pools must be published
	// again, because the networks changed.
	dirty   map[key]bool
	regroup bool
	// interfaces interns interface names. Only the feed of pools uses it.
	interfaces interned
}

// wherePool is the record of an IPPool.
type wherePool struct {
	// base is the origin of the offsets: the address of the range as written.
	base     netip.Addr
	prefix   netip.Prefix
	bookings []whereBooking // by address
	// odd describes an inconsistency; bad means that the pool cannot be read because of it.
	odd string
	bad bool
}

// whereBooking is an allocation in a pool.
type whereBooking struct {
	addr                  netip.Addr
	pod, container, iface string // pod is NAMESPACE/NAME
}

// whereReservation is the record of an OverlappingRangeIPReservation.
type whereReservation struct{ pod, container, iface string }

// whereBook is the published state of a pool.
type whereBook struct {
	name string // the pool's name
	base netip.Addr
	// network is the pool's network_name.
	network string
	prefix  netip.Prefix
	entries []whereEntry // in order
	// reserved maps the names of reservations in the pool to their addresses.
	reserved map[string]netip.Addr
}

// whereEntry is a published allocation.
type whereEntry struct {
	addr netip.Addr
	// pooled means that the pool lists the allocation. reservation is the name of its
	// reservation, if it has one.
	pooled                bool
	reservation           string
	pod, container, iface string
}

func newWhereabouts(c *Cluster) *publisher {
	w := &whereaboutsObjects{books: make(map[key]*whereBook), lost: make(map[key]netip.Prefix), dirty: make(map[key]bool)}
	w.pools = mirror[wherePool]{
		cluster: c, records: make(map[key]*wherePool), read: w.readPool,
		same: func(a, b *wherePool) bool {
			return a.base == b.base && a.prefix == b.prefix && a.odd == b.odd && a.bad == b.bad && slices.Equal(a.bookings, b.bookings)
		},
		changed: func(at key, _, _ *wherePool) { w.dirty[at] = true },
		settled: w.settle,
	}
	w.reservations = mirror[whereReservation]{
		cluster: c, records: make(map[key]*whereReservation), read: w.readReservation,
		same:    func(a, b *whereReservation) bool { return *a == *b },
		changed: w.reservationChanged, settled: w.settle,
	}
	w.networks = mirror[attachment]{
		cluster: c, records: make(map[key]*attachment), read: readAttachment,
		same:    sameAttachment,
		changed: func(key, *attachment, *attachment) { w.regroup = true }, settled: w.settle,
	}
	pools := newSource(c, whereaboutsPools, &w.pools, "what whereabouts has given is not known")
	pools.needed = true
	w.reserving = newSource(c, whereaboutsReservations, &w.reservations, "what whereabouts has given in overlapping ranges is not known")
	w.attaching = newSource(c, attachmentDefinitions, &w.networks, "which networks whereabouts serves, and which parts of its ranges it leaves out, is not known")
	w.publisher = newIPAM(c, whereabouts.Name, pools, w.reserving, w.attaching)
	w.used = true
	w.publisher.settle = func() { w.regroup = true; w.settle() }
	return w.publisher
}

// readPool returns the record of an IPPool.
func (w *whereaboutsObjects) readPool(o runtime.Object) (key, *wherePool) {
	pool, ok := o.(*object)
	if !ok {
		return key{}, nil
	}
	at := key{pool.Namespace, pool.Name}
	r := &wherePool{}
	var spec struct {
		Range       string `json:"range"`
		Allocations map[string]struct {
			ID     string `json:"id"`
			PodRef string `json:"podref"`
			IfName string `json:"ifname"`
			Claim  string `json:"ipamclaimref"`
		} `json:"allocations"`
	}
	if err := part(pool.Spec, "spec", &spec); err != nil {
		r.odd, r.bad = w.oddPool(at, err.Error()), true
		return at, r
	}
	base, err := netip.ParsePrefix(spec.Range)
	if err != nil {
		r.odd, r.bad = w.oddPool(at, fmt.Sprintf("its range %q is none", shorten(spec.Range))), true
		return at, r
	}
	r.base, r.prefix = base.Addr(), base.Masked()
	for offset, a := range spec.Allocations {
		addr, fits := ipam.OffsetFrom(r.base, offset)
		if !fits || !r.prefix.Contains(addr) {
			if odd := w.oddPool(at, fmt.Sprintf("/spec/allocations/%s is no offset in %s: remove it", shorten(offset), r.prefix)); r.odd == "" || odd < r.odd {
				r.odd = odd
			}
			continue
		}
		b := whereBooking{addr: addr, pod: a.PodRef, container: a.ID, iface: w.interfaces.of(a.IfName)}
		if a.Claim != "" {
			// An IPAMClaim keeps the address after its pod ends, for the next pod.
			b = whereBooking{addr: addr}
		}
		r.bookings = append(r.bookings, b)
	}
	slices.SortFunc(r.bookings, func(a, b whereBooking) int { return a.addr.Compare(b.addr) })
	return at, r
}

// oddPool returns the description of an inconsistent pool.
func (w *whereaboutsObjects) oddPool(at key, what string) string {
	return fmt.Sprintf("the IPPool %s/%s of whereabouts is odd: %s", at.namespace, at.name, shorten(what))
}

// readReservation returns the record of an OverlappingRangeIPReservation.
func (w *whereaboutsObjects) readReservation(o runtime.Object) (key, *whereReservation) {
	reservation, ok := o.(*object)
	if !ok {
		return key{}, nil
	}
	var spec struct {
		ContainerID string `json:"containerid"`
		PodRef      string `json:"podref"`
		IfName      string `json:"ifname"`
	}
	at := key{reservation.Namespace, reservation.Name}
	if part(reservation.Spec, "spec", &spec) != nil {
		return at, &whereReservation{} // it reserves its address even if it cannot be read
	}
	return at, &whereReservation{pod: spec.PodRef, container: spec.ContainerID, iface: spec.IfName}
}

// reservationChanged marks the pools of a reservation as dirty. The caller holds mu.
func (w *whereaboutsObjects) reservationChanged(at key, before, after *whereReservation) {
	for pool, addr := range w.poolsOf(at) {
		if after == nil {
			delete(w.books[pool].reserved, at.name)
		} else {
			w.books[pool].reserved[at.name] = addr
		}
		w.dirty[pool] = true
	}
}

// whereNetwork identifies a network by namespace and network_name. whereRanges has its pools
// by prefix, and the lengths of these prefixes.
type whereNetwork struct{ namespace, name string }

type whereRanges struct {
	pools map[netip.Prefix][]key
	bits  map[int]bool
}

// poolsOf returns the pools that a reservation may belong to, each with the reserved address.
// The name of a reservation is NETWORK-ADDRESS, and both parts may contain dashes.
func (w *whereaboutsObjects) poolsOf(reservation key) iter.Seq2[key, netip.Addr] {
	return func(yield func(key, netip.Addr) bool) {
		for end := 0; ; end++ {
			of := w.index[whereNetwork{reservation.namespace, reservation.name[:max(0, end-1)]}]
			if addr, ok := reservedAddress(reservation.name[end:]); ok && of != nil {
				for bits := range of.bits {
					prefix, err := addr.Prefix(bits)
					if err != nil {
						continue
					}
					for _, at := range of.pools[prefix] {
						if w.books[at] != nil && !yield(at, addr) {
							return
						}
					}
				}
			}
			dash := strings.IndexByte(reservation.name[end:], '-')
			if dash < 0 {
				return
			}
			end += dash
		}
	}
}

// reservedAddress parses an address in the name of a reservation.
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

// settle publishes the dirty pools. The caller holds mu.
func (w *whereaboutsObjects) settle() {
	if !w.reserving.decided() || !w.attaching.decided() {
		return // publish only once everything is listed
	}
	if w.regroup {
		w.regroup = false
		for at := range w.pools.records {
			w.dirty[at] = true
		}
		for at := range w.lost {
			w.dirty[at] = true
		}
		w.group()
	}
	for at := range w.dirty {
		delete(w.dirty, at)
		w.tell(at)
	}
}

// group assigns pools to networks again, and reservations to the pools whose network changed.
func (w *whereaboutsObjects) group() {
	moved := false
	for at, r := range w.pools.records {
		if r.bad {
			continue
		}
		b := w.books[at]
		if b != nil && (b.base != r.base || b.prefix != r.prefix) {
			w.takeBack(at, b)
			b = nil
		}
		network := w.networkOf(at, r)
		if b == nil {
			b = &whereBook{name: at.namespace + "/" + at.name, base: r.base, prefix: r.prefix}
			w.books[at] = b
		} else if b.network == network {
			continue
		}
		b.network, b.reserved, moved = network, make(map[string]netip.Addr), true
	}
	if moved {
		w.reindex()
		for at := range w.reservations.records {
			for pool, addr := range w.poolsOf(at) {
				w.books[pool].reserved[at.name] = addr
			}
		}
	}
}

// reindex rebuilds the index of the pools.
func (w *whereaboutsObjects) reindex() {
	w.index = make(map[whereNetwork]*whereRanges)
	for at, b := range w.books {
		network := whereNetwork{at.namespace, b.network}
		of := w.index[network]
		if of == nil {
			of = &whereRanges{pools: make(map[netip.Prefix][]key), bits: make(map[int]bool)}
			w.index[network] = of
		}
		of.pools[b.prefix] = append(of.pools[b.prefix], at)
		of.bits[b.prefix.Bits()] = true
	}
}

// networkOf returns the network_name of a pool. If no network has the pool's range, it is
// derived from the pool's name, and then includes the node's name if each node has a slice of
// the range.
func (w *whereaboutsObjects) networkOf(at key, r *wherePool) string {
	for _, a := range w.networks.records {
		for _, s := range a.ranges {
			if s.serves(a, at.name, r.prefix) {
				return a.network
			}
		}
	}
	rest, _ := strings.CutSuffix(at.name, normalized(r.prefix.String()))
	return strings.TrimSuffix(rest, "-")
}

// tell publishes the changes of a pool. The caller holds mu.
func (w *whereaboutsObjects) tell(at key) {
	r, b := w.pools.records[at], w.books[at]
	name := at.namespace + "/" + at.name
	if r == nil {
		if b != nil {
			w.takeBack(at, b)
			w.lost[at] = b.prefix
		}
		if p := w.publisher.pools[name]; p != nil && w.state == ipam.Known && w.serves(at) {
			w.lose(*p.told, "IPPool "+name+" is gone, and a NetworkAttachmentDefinition has its range: whereabouts makes it anew, with nothing in it")
			return
		}
		delete(w.lost, at)
		w.drop(name)
		return
	}
	delete(w.lost, at)
	if r.bad {
		// Keep the published allocations: an unreadable pool does not prove that they are
		// gone.
		next := verdict.Pool{Pool: ipam.Pool{Name: name, Config: "ippools " + name}}
		if p := w.publisher.pools[name]; p != nil {
			next = *p.told
		}
		w.put(next, r.odd, true)
		return
	}
	if b == nil || b.base != r.base || b.prefix != r.prefix {
		w.group()
		b = w.books[at]
	}
	w.put(w.pool(at, r), r.odd, false)
	next := w.entries(at, r, b)
	was := b.entries
	b.entries = next
	var gone []whereEntry
	for len(was) > 0 || len(next) > 0 {
		switch {
		case len(next) == 0 || len(was) > 0 && was[0].compare(&next[0]) < 0:
			gone = append(gone, was[0])
			was = was[1:]
		case len(was) == 0 || was[0].compare(&next[0]) > 0:
			w.allocate(name, b.allocation(&next[0]), false)
			next = next[1:]
		default:
			if was[0] != next[0] {
				w.allocate(name, b.allocation(&next[0]), false)
			}
			was, next = was[1:], next[1:]
		}
	}
	for i := range gone { // after the additions: an address whose allocation only moved was never free
		w.allocate(name, b.allocation(&gone[i]), true)
	}
}

// serves reports whether a network has the range of a deleted pool.
func (w *whereaboutsObjects) serves(at key) bool {
	prefix, known := w.lost[at]
	for _, a := range w.networks.records {
		for i := range a.ranges {
			if known && a.ranges[i].serves(a, at.name, prefix) {
				return true
			}
		}
	}
	return false
}

// takeBack withdraws all allocations of a pool.
func (w *whereaboutsObjects) takeBack(at key, b *whereBook) {
	for i := range b.entries {
		w.allocate(b.name, b.allocation(&b.entries[i]), true)
	}
	delete(w.books, at)
}

// entries returns the current allocations of a pool, sorted.
func (w *whereaboutsObjects) entries(at key, r *wherePool, b *whereBook) []whereEntry {
	all := make([]whereEntry, 0, len(r.bookings))
	names := make(map[netip.Addr][]string, len(b.reserved)) // names of reservations; their form depends on the version of whereabouts
	for name, addr := range b.reserved {
		names[addr] = append(names[addr], name)
	}
	matched := make(map[string]bool)
	for i := range r.bookings {
		booking := &r.bookings[i]
		e := whereEntry{addr: booking.addr, pooled: true, pod: booking.pod, container: booking.container, iface: booking.iface}
		slices.Sort(names[e.addr])
		for _, reservation := range names[e.addr] {
			known := w.reservations.records[key{at.namespace, reservation}]
			if known != nil && (known.pod == e.pod || e.pod == "" || known.container != "" && known.container == e.container) {
				e.reservation = reservation
				matched[reservation] = true
				break
			}
		}
		all = append(all, e)
	}
	for name, addr := range b.reserved {
		if known := w.reservations.records[key{at.namespace, name}]; known != nil && !matched[name] {
			all = append(all, whereEntry{addr: addr, reservation: name, pod: known.pod, container: known.container, iface: known.iface})
		}
	}
	slices.SortFunc(all, func(a, b whereEntry) int { return a.compare(&b) })
	return all
}

// compare orders allocations by the location that identifies them.
func (e *whereEntry) compare(other *whereEntry) int {
	pooled := func(e *whereEntry) int {
		if e.pooled {
			return 1
		}
		return 0
	}
	return cmp.Or(e.addr.Compare(other.addr), cmp.Compare(pooled(e), pooled(other)), cmp.Compare(e.reservation, other.reservation))
}

// allocation returns the allocation to publish for an entry.
func (b *whereBook) allocation(e *whereEntry) verdict.Allocation {
	al := verdict.Allocation{Allocation: ipam.Allocation{Address: e.addr, ContainerID: e.container, Interface: e.iface}}
	al.Namespace, al.Pod, _ = strings.Cut(e.pod, "/")
	if al.Pod == "" {
		al.Namespace = ""
	}
	if e.pooled {
		offset, _ := ipam.OffsetOf(b.base, e.addr) // the address was parsed from an offset
		al.Location = "ippools " + b.name + " /spec/allocations/" + offset
	}
	if e.reservation != "" {
		if al.Location != "" {
			al.Location += "; "
		}
		namespace, _, _ := strings.Cut(b.name, "/")
		al.Location += "overlappingrangeipreservations " + namespace + "/" + e.reservation
	}
	return al
}

// pool returns the pool to publish for a record.
func (w *whereaboutsObjects) pool(at key, r *wherePool) verdict.Pool {
	name := at.namespace + "/" + at.name
	next := verdict.Pool{Pool: ipam.Pool{Name: name, Base: r.base, Config: "ippools " + name, Served: ipam.Served{Realm: w.networkOf(at, r)}}}
	var serving []attachmentOf
	for network, a := range w.networks.records {
		for i := range a.ranges {
			if a.ranges[i].serves(a, at.name, r.prefix) {
				serving = append(serving, attachmentOf{network, a, &a.ranges[i]})
			}
		}
	}
	if len(serving) == 0 {
		// Whereabouts never deletes an IPPool. A pool without allocations that no network uses
		// is left over.
		if len(r.bookings) > 0 || w.attaching.state != followed {
			next.Ranges = []ipam.Range{ipam.Usable(r.prefix)}
		}
		return next
	}
	slices.SortFunc(serving, func(a, b attachmentOf) int {
		return cmp.Or(cmp.Compare(a.at.namespace, b.at.namespace), cmp.Compare(a.at.name, b.at.name))
	})
	first := serving[0]
	next.Config = "network-attachment-definitions " + first.at.namespace + "/" + first.at.name
	next.Plugin, next.Device = first.plugin, first.device
	for _, s := range serving {
		if !slices.Contains(next.Networks, s.name) {
			next.Networks = append(next.Networks, s.name)
		}
		if s.plugin != first.plugin {
			next.Plugin = ""
		}
		if s.device != first.device {
			next.Device = ""
		}
		next.Ranges = append(next.Ranges, s.part.given(r.prefix)...)
		for _, g := range s.gateways {
			if r.prefix.Contains(g) && !slices.Contains(next.Gateways, g) {
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
