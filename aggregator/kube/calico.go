package kube

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	"github.com/ipwitness/ipwitness/ipam"
	"github.com/ipwitness/ipwitness/ipam/calico"
)

// calicoObjects reads Calico's IPAM. Calico divides the ranges of its IPPools into blocks
// (IPAMBlock), which nodes claim one by one (BlockAffinity). A block lists its addresses, each
// with an index into the block's list of owner attributes. An IPAMHandle counts the addresses
// that one owner has in each block. Addresses in the ranges of an IPReservation are only
// allocated on request. All these objects are cluster-scoped.
type calicoObjects struct {
	*publisher
	pools        mirror[calicoPool]
	blocks       mirror[calicoBlock]
	affinities   mirror[calicoAffinity]
	reservations mirror[calicoReservation]
	handles      calicoHandleCounts

	pooling, reserving *source
	// in maps each published block to the pool it was published in. odd has the problems of
	// inconsistent blocks, by pool and block.
	in  map[key]string
	odd map[string]map[key]string
	// regroup means that blocks may have moved to other pools.
	regroup bool
	// lasting has the inconsistencies that two consecutive checks found, by pool.
	lasting map[string]string
	checks  calicoChecks
	// names interns strings that occur often. Only the feed of blocks uses it.
	names interned
}

// calicoPool is the record of an IPPool.
type calicoPool struct {
	prefix   netip.Prefix
	disabled bool
	// asked means that only pods that request the pool by name get addresses from it.
	asked bool
	odd   string // why the pool cannot be read
}

// calicoBlock is the record of an IPAMBlock.
type calicoBlock struct {
	prefix   netip.Prefix
	bookings []calicoBooking // by ordinal
	// odd describes an inconsistency; bad means that the block cannot be read because of it.
	odd string
	bad bool
}

// calicoBooking is an allocated address of a block and its owner.
type calicoBooking struct {
	ordinal                                  int32
	at                                       verdict.Stamp
	node, namespace, pod, container, purpose string
	// handle is a hash of the handle and the block; 0 if the allocation has no handle.
	handle uint64
}

func newCalico(c *Cluster) *publisher {
	k := &calicoObjects{in: make(map[key]string), odd: make(map[string]map[key]string), lasting: make(map[string]string)}
	k.pools = mirror[calicoPool]{
		cluster: c, records: make(map[key]*calicoPool), read: readCalicoPool,
		same:    func(a, b *calicoPool) bool { return *a == *b },
		changed: func(key, *calicoPool, *calicoPool) { k.regroup = true }, settled: k.settle,
	}
	k.blocks = mirror[calicoBlock]{
		cluster: c, records: make(map[key]*calicoBlock), read: k.readBlock,
		same: func(a, b *calicoBlock) bool {
			return a.prefix == b.prefix && a.odd == b.odd && a.bad == b.bad && slices.Equal(a.bookings, b.bookings)
		},
		changed: k.blockChanged, settled: k.settle,
	}
	k.affinities = mirror[calicoAffinity]{
		cluster: c, records: make(map[key]*calicoAffinity), read: readCalicoAffinity,
		same:    func(a, b *calicoAffinity) bool { return *a == *b },
		changed: func(key, *calicoAffinity, *calicoAffinity) {},
	}
	k.reservations = mirror[calicoReservation]{
		cluster: c, records: make(map[key]*calicoReservation), read: readCalicoReservation,
		same:    func(a, b *calicoReservation) bool { return slices.Equal(a.prefixes, b.prefixes) },
		changed: func(key, *calicoReservation, *calicoReservation) { k.regroup = true }, settled: k.settle,
	}
	k.handles = newCalicoHandleCounts(c)
	k.pooling = newSource(c, calicoPools, &k.pools, "which addresses Calico gives is not known")
	blocks := newSource(c, calicoBlocks, &k.blocks, "what Calico has given is not known")
	k.pooling.needed, blocks.needed = true, true
	affinities := newSource(c, calicoAffinities, &k.affinities, "blocks of Calico that are bound to nodes which do not exist are not known")
	handles := newSource(c, calicoHandles, &k.handles, "handles of Calico that no block has are not known")
	k.reserving = newSource(c, calicoReservations, &k.reservations, "addresses that Calico keeps back (IPReservation) count as those that it gives")
	affinities.extra, handles.extra, k.reserving.extra = true, true, true
	k.publisher = newIPAM(c, calico.Name, k.pooling, blocks, affinities, handles, k.reserving)
	k.publisher.settle = func() { k.regroup = true; k.settle() }
	k.publisher.check = k.check
	return k.publisher
}

// readCalicoPool returns the record of an IPPool.
func readCalicoPool(o runtime.Object) (key, *calicoPool) {
	pool, ok := o.(*object)
	if !ok {
		return key{}, nil
	}
	at := key{name: pool.Name}
	var spec struct {
		CIDR     string `json:"cidr"`
		Disabled bool   `json:"disabled"`
		Nodes    string `json:"nodeSelector"`
		Mode     string `json:"assignmentMode"`
	}
	if err := part(pool.Spec, "spec", &spec); err != nil {
		return at, &calicoPool{odd: fmt.Sprintf("the IPPool %s of Calico is odd: %s", at.name, shorten(err.Error()))}
	}
	prefix, err := netip.ParsePrefix(spec.CIDR)
	if err != nil {
		return at, &calicoPool{odd: fmt.Sprintf("the IPPool %s of Calico is odd: its cidr %q is none", at.name, shorten(spec.CIDR))}
	}
	asked := strings.ReplaceAll(spec.Nodes, " ", "") == "!all()" || spec.Mode == "Manual"
	return at, &calicoPool{prefix: prefix.Masked(), disabled: spec.Disabled, asked: asked}
}

// calicoReservation is the record of an IPReservation.
type calicoReservation struct{ prefixes []netip.Prefix }

// readCalicoReservation returns the record of an IPReservation: its ranges and addresses.
func readCalicoReservation(o runtime.Object) (key, *calicoReservation) {
	reservation, ok := o.(*object)
	if !ok {
		return key{}, nil
	}
	at := key{name: reservation.Name}
	var spec struct {
		CIDRs []string `json:"reservedCIDRs"`
	}
	if part(reservation.Spec, "spec", &spec) != nil {
		return at, nil // Calico cannot read it either
	}
	r := &calicoReservation{}
	for _, text := range spec.CIDRs {
		if p, err := netip.ParsePrefix(text); err == nil {
			r.prefixes = append(r.prefixes, p.Masked())
		} else if a, err := netip.ParseAddr(text); err == nil {
			r.prefixes = append(r.prefixes, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	return at, r
}

// decided reports whether the set of pools and reservations is known, or cannot be known.
func (k *calicoObjects) decided() bool { return k.pooling.decided() && k.reserving.decided() }

// readBlock returns the record of an IPAMBlock.
func (k *calicoObjects) readBlock(o runtime.Object) (key, *calicoBlock) {
	block, ok := o.(*object)
	if !ok {
		return key{}, nil
	}
	at := key{name: block.Name}
	var spec struct {
		CIDR        string            `json:"cidr"`
		Deleted     bool              `json:"deleted"`
		Allocations []*int            `json:"allocations"`
		Attributes  []calicoAttribute `json:"attributes"`
	}
	r := &calicoBlock{}
	if err := part(block.Spec, "spec", &spec); err != nil {
		r.odd, r.bad, r.prefix = oddBlock(at, err.Error()), true, prefixOfBlock(at.name)
		return at, r
	}
	if spec.Deleted {
		return at, nil // Calico marks a block as deleted before it deletes the object
	}
	prefix, err := netip.ParsePrefix(spec.CIDR)
	if err != nil {
		r.odd, r.bad, r.prefix = oddBlock(at, fmt.Sprintf("its cidr %q is none", spec.CIDR)), true, prefixOfBlock(at.name)
		return at, r
	}
	r.prefix = prefix.Masked()
	n := 0
	for _, index := range spec.Allocations {
		if index != nil {
			n++
		}
	}
	r.bookings = make([]calicoBooking, 0, n)
	for ordinal, index := range spec.Allocations {
		if index == nil {
			continue
		}
		if addr, fits := ipam.Plus(r.prefix.Addr(), uint64(ordinal)); !fits || !r.prefix.Contains(addr) { //nolint:gosec // not negative
			r.odd = oddBlock(at, fmt.Sprintf("it has %d addresses, and /spec/allocations has %d", ipam.RangeOf(r.prefix).Size(), len(spec.Allocations)))
			break
		}
		b := calicoBooking{ordinal: int32(ordinal)} //nolint:gosec // no object has so many
		if *index < 0 || *index >= len(spec.Attributes) {
			r.odd = cmp.Or(r.odd, oddBlock(at, fmt.Sprintf("/spec/allocations/%d names attributes %d of %d: who has that address is not known", ordinal, *index, len(spec.Attributes))))
		} else if !k.own(&b, &spec.Attributes[*index], r.prefix) {
			continue
		}
		r.bookings = append(r.bookings, b)
	}
	return at, r
}

// calicoAttribute describes the owner of an address.
type calicoAttribute struct {
	Handle    string            `json:"handle_id"`
	Owner     map[string]string `json:"secondary"`
	Alternate map[string]string `json:"alternate"`
}

// oddBlock returns the description of an inconsistent block.
func oddBlock(at key, what string) string {
	return fmt.Sprintf("the IPAMBlock %s of Calico is odd: %s; `calicoctl ipam check` may tell more", at.name, shorten(what))
}

// prefixOfBlock returns the range of a block, parsed from a name such as 10-244-0-64-26.
func prefixOfBlock(name string) netip.Prefix {
	i := strings.LastIndexByte(name, '-')
	if i < 0 {
		return netip.Prefix{}
	}
	for _, by := range []string{".", ":"} {
		if p, err := netip.ParsePrefix(strings.ReplaceAll(name[:i], "-", by) + "/" + name[i+1:]); err == nil {
			return p.Masked()
		}
	}
	return netip.Prefix{}
}

// calicoPurposes describes addresses that Calico allocates for other purposes than pods, by
// attribute type.
var calicoPurposes = map[string]string{
	"ipipTunnelAddress": "IP-in-IP tunnel", "vxlanTunnelAddress": "VXLAN tunnel", "vxlanV6TunnelAddress": "VXLAN tunnel",
	"wireguardTunnelAddress": "WireGuard tunnel", "wireguardV6TunnelAddress": "WireGuard tunnel",
}

// calicoReserved is the handle of the addresses that Windows reserves.
const calicoReserved = "windows-reserved-ipam-handle"

// own sets the owner of an address. It returns false if the address is reserved and cannot
// have an owner.
func (k *calicoObjects) own(b *calicoBooking, a *calicoAttribute, block netip.Prefix) bool {
	handle, _, _ := strings.Cut(a.Handle, "\r") // some Calico releases wrote more after a carriage return
	if strings.EqualFold(handle, calicoReserved) {
		return false
	}
	b.node = k.names.of(a.Owner["node"])
	if handle != "" {
		b.handle = k.handles.hash(handle, block.String())
	}
	switch kind := a.Owner["type"]; {
	case a.Owner["pod"] != "":
		b.namespace = k.names.of(a.Owner["namespace"])
		if b.pod = a.Owner["pod"]; len(a.Alternate) > 0 {
			b.pod, b.node = "", "" // during a live migration, two pods on two nodes have the address
		}
		// The handle of a virtual machine ends with its name, not with a container ID.
		if id := handle[strings.LastIndexByte(handle, '.')+1:]; isHex(id) {
			b.container = strings.Clone(id)
		}
	case calicoPurposes[kind] != "":
		b.purpose = calicoPurposes[kind]
	case a.Owner["service"] != "":
		b.purpose, b.node = k.names.of("load balancer of Service "+a.Owner["namespace"]+"/"+a.Owner["service"]), ""
	case kind != "":
		b.purpose = k.names.of(plain(kind))
	}
	b.at = calicoTime(a.Owner["timestamp"])
	return true
}

// isHex reports whether a text can be a container ID.
func isHex(id string) bool {
	return len(id) >= 12 && strings.Trim(id, "0123456789abcdef") == ""
}

// calicoTime parses an allocation time in the format of Go's time.Time.String.
func calicoTime(text string) verdict.Stamp {
	text, _, _ = strings.Cut(text, " m=")
	at, err := time.Parse("2006-01-02 15:04:05.999999999 -0700 MST", text)
	if err != nil {
		return 0
	}
	return verdict.At(at)
}

// poolOf returns the pool of a block: the most specific IPPool that contains it, or the block
// itself if no pool does.
func (k *calicoObjects) poolOf(at key, block netip.Prefix) string {
	if !block.IsValid() {
		return at.name
	}
	name, bits := "", -1
	for at, p := range k.pools.records {
		if p.prefix.IsValid() && p.prefix.Bits() > bits && p.prefix.Bits() <= block.Bits() && p.prefix.Contains(block.Addr()) {
			name, bits = at.name, p.prefix.Bits()
		}
	}
	if name == "" {
		return block.String()
	}
	return name
}

// blockChanged publishes the changes of a block. Blocks wait until the pools are known. The
// caller holds mu.
func (k *calicoObjects) blockChanged(at key, before, after *calicoBlock) {
	pool, told := k.in[at]
	if !told && !k.decided() {
		return
	}
	if told && after != nil && after.bad {
		// Keep the published allocations: an unreadable block does not prove that they are
		// gone.
		after.prefix, after.bookings = before.prefix, before.bookings
	}
	if after != nil && (!told || before.prefix != after.prefix) {
		if told {
			k.takeBlockBack(at, before)
		}
		k.enter(at, after)
		return
	}
	if after == nil {
		if told {
			k.takeBlockBack(at, before)
			k.endEmpty(pool)
		}
		return
	}
	k.note(pool, at, after)
	was, is := before.bookings, after.bookings
	for len(was) > 0 || len(is) > 0 {
		switch {
		case len(is) == 0 || len(was) > 0 && was[0].ordinal < is[0].ordinal:
			k.allocate(pool, was[0].allocation(at, before.prefix), true)
			was = was[1:]
		case len(was) == 0 || was[0].ordinal > is[0].ordinal:
			k.allocate(pool, is[0].allocation(at, after.prefix), false)
			is = is[1:]
		default:
			if was[0] != is[0] {
				k.allocate(pool, is[0].allocation(at, after.prefix), false)
			}
			was, is = was[1:], is[1:]
		}
	}
}

// enter publishes a block. Its pool is published first.
func (k *calicoObjects) enter(at key, block *calicoBlock) {
	k.use()
	pool := k.poolOf(at, block.prefix)
	k.in[at] = pool
	k.note(pool, at, block)
	if k.publisher.pools[pool] == nil {
		k.tellPool(pool)
	}
	for i := range block.bookings {
		k.allocate(pool, block.bookings[i].allocation(at, block.prefix), false)
	}
}

// takeBlockBack withdraws all allocations of a block.
func (k *calicoObjects) takeBlockBack(at key, block *calicoBlock) {
	pool := k.in[at]
	delete(k.in, at)
	for i := range block.bookings {
		k.allocate(pool, block.bookings[i].allocation(at, block.prefix), true)
	}
	k.note(pool, at, nil)
}

// endEmpty drops the pool of a deleted block if that pool is not an IPPool.
func (k *calicoObjects) endEmpty(pool string) {
	if k.pools.records[key{name: pool}] == nil {
		k.drop(pool)
	}
}

// note records or clears the inconsistency of a block. A nil block clears it.
func (k *calicoObjects) note(pool string, at key, block *calicoBlock) {
	before, was := k.odd[pool][at]
	if block == nil || block.odd == "" {
		if was {
			delete(k.odd[pool], at)
			if len(k.odd[pool]) == 0 {
				delete(k.odd, pool)
			}
			k.tellPool(pool)
		}
		return
	}
	if was && before == block.odd {
		return
	}
	if k.odd[pool] == nil {
		k.odd[pool] = make(map[key]string)
	}
	k.odd[pool][at] = block.odd
	k.tellPool(pool)
}

// tellPool publishes the current state of a pool.
func (k *calicoObjects) tellPool(name string) {
	next := verdict.Pool{Pool: ipam.Pool{Name: name, Wiring: ipam.Wiring{Plugin: "calico", Routed: true}, Config: "ippools " + name}}
	odd, bad := k.lasting[name], false
	switch r := k.pools.records[key{name: name}]; {
	case r == nil:
		next.Config = ""
	case r.odd != "":
		odd, bad = r.odd, true
		if p := k.publisher.pools[name]; p != nil {
			next = *p.told
		}
	case !r.disabled: // a disabled pool has nothing to allocate
		next.Ranges, next.Asked = []ipam.Range{ipam.RangeOf(r.prefix)}, r.asked
		for _, reservation := range k.reservations.records {
			for _, p := range reservation.prefixes {
				next.Ranges = ipam.Without(next.Ranges, ipam.RangeOf(p))
			}
		}
	}
	for _, at := range slices.SortedFunc(maps.Keys(k.odd[name]), func(a, b key) int { return cmp.Compare(a.name, b.name) }) {
		odd = cmp.Or(odd, k.odd[name][at])
		if block := k.blocks.records[at]; block != nil && block.bad && !bad {
			odd, bad = block.odd, true
		}
	}
	k.put(next, odd, bad)
}

// settle moves blocks to other pools after the pools changed. The caller holds mu.
func (k *calicoObjects) settle() {
	if !k.regroup || !k.decided() {
		return
	}
	k.regroup = false
	for at := range k.pools.records {
		k.tellPool(at.name)
	}
	for at, block := range k.blocks.records {
		pool, told := k.in[at]
		if told && pool == k.poolOf(at, block.prefix) {
			continue
		}
		if told {
			k.takeBlockBack(at, block)
		}
		k.enter(at, block)
	}
	used := make(map[string]bool, len(k.publisher.pools))
	for _, pool := range k.in {
		used[pool] = true
	}
	for _, name := range slices.Sorted(maps.Keys(k.publisher.pools)) {
		if k.pools.records[key{name: name}] == nil && !used[name] {
			k.drop(name)
		}
	}
}

// allocation returns the allocation to publish for an address of a block.
func (b *calicoBooking) allocation(at key, block netip.Prefix) verdict.Allocation {
	addr, _ := ipam.Plus(block.Addr(), uint64(b.ordinal)) //nolint:gosec // not negative
	return verdict.Allocation{
		Allocation: ipam.Allocation{
			Address: addr, Node: b.node, Namespace: b.namespace, Pod: b.pod, ContainerID: b.container, Purpose: b.purpose,
			Location: "ipamblocks " + at.name + " /spec/allocations/" + strconv.Itoa(int(b.ordinal)),
		}, AllocatedAt: b.at,
	}
}
