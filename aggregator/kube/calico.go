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
)

// calico divides the ranges of its IPPools into blocks (IPAMBlock), which nodes take
// one by one (BlockAffinity). A block has a list of its addresses with the number of
// the attributes that say who has it, and an IPAMHandle counts the addresses of each
// who has some. An IPReservation has ranges that are given to nobody who does not ask
// for an address of them. All is of the whole cluster.
type calico struct {
	*ipam
	pools        mirror[calicoPool]
	blocks       mirror[calicoBlock]
	affinities   mirror[calicoAffinity]
	reservations mirror[calicoReservation]
	handles      calicoHandleCounts

	pooling, reserving *source
	// in are the pools that blocks were told in; odd are blocks of each pool that are.
	in  map[key]string
	odd map[string]map[key]string
	// regroup says that blocks may be of other pools than they were.
	regroup bool
	// lasting is what checks have found twice, by pool.
	lasting map[string]string
	checks  calicoChecks
	// names are strings that occur often. Only the feed of blocks uses it.
	names interned
}

// calicoPool is what is kept of an IPPool.
type calicoPool struct {
	prefix   netip.Prefix
	disabled bool
	// asked says that it gives addresses to pods that ask for it by its name only.
	asked bool
	odd   string // it cannot be read because of that
}

// calicoBlock is what is kept of an IPAMBlock.
type calicoBlock struct {
	prefix   netip.Prefix
	bookings []calicoBooking // by ordinal
	// odd says what is odd about it, bad that it cannot be read because of that.
	odd string
	bad bool
}

// calicoBooking is who has an address of a block.
type calicoBooking struct {
	ordinal                                  int32
	at                                       verdict.Stamp
	node, namespace, pod, container, purpose string
	// handle is a hash of whose it is and of the block; 0 for nobody's.
	handle uint64
}

func newCalico(c *Cluster) *ipam {
	k := &calico{in: make(map[key]string), odd: make(map[string]map[key]string), lasting: make(map[string]string)}
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
	k.ipam = newIPAM(c, verdict.Calico, k.pooling, blocks, affinities, handles, k.reserving)
	k.ipam.settle = func() { k.regroup = true; k.settle() }
	k.ipam.check = k.check
	return k.ipam
}

// readCalicoPool keeps of an IPPool what is used.
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

// calicoReservation is what is kept of an IPReservation.
type calicoReservation struct{ prefixes []netip.Prefix }

// readCalicoReservation keeps of an IPReservation what is used: its ranges and addresses.
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

// decided tells whether it is known what there is to give.
func (k *calico) decided() bool { return k.pooling.decided() && k.reserving.decided() }

// readBlock keeps of an IPAMBlock what is used.
func (k *calico) readBlock(o runtime.Object) (key, *calicoBlock) {
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
		return at, nil // Calico marks it so before it deletes it
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
		if addr, fits := plus(r.prefix.Addr(), uint64(ordinal)); !fits || !r.prefix.Contains(addr) { //nolint:gosec // not negative
			r.odd = oddBlock(at, fmt.Sprintf("it has %d addresses, and /spec/allocations has %d", verdict.RangeOf(r.prefix).Size(), len(spec.Allocations)))
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

// calicoAttribute says who has an address.
type calicoAttribute struct {
	Handle    string            `json:"handle_id"`
	Owner     map[string]string `json:"secondary"`
	Alternate map[string]string `json:"alternate"`
}

// oddBlock says what is odd about a block.
func oddBlock(at key, what string) string {
	return fmt.Sprintf("the IPAMBlock %s of Calico is odd: %s; `calicoctl ipam check` may tell more", at.name, shorten(what))
}

// prefixOfBlock is the range of a block by its name, as 10-244-0-64-26.
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

// What Calico keeps addresses for that are no pod's, by the attribute type.
var calicoPurposes = map[string]string{
	"ipipTunnelAddress": "IP-in-IP tunnel", "vxlanTunnelAddress": "VXLAN tunnel", "vxlanV6TunnelAddress": "VXLAN tunnel",
	"wireguardTunnelAddress": "WireGuard tunnel", "wireguardV6TunnelAddress": "WireGuard tunnel",
}

// calicoReserved is the handle of addresses that Windows needs for itself.
const calicoReserved = "windows-reserved-ipam-handle"

// own notes who has an address; false for nobody who could.
func (k *calico) own(b *calicoBooking, a *calicoAttribute, block netip.Prefix) bool {
	handle, _, _ := strings.Cut(a.Handle, "\r") // as some were written, once
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
			b.pod, b.node = "", "" // a virtual machine that moves is two pods on two nodes
		}
		// A virtual machine's handle has its name instead.
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

// isHex tells whether a text can be the id of a container.
func isHex(id string) bool {
	return len(id) >= 12 && strings.Trim(id, "0123456789abcdef") == ""
}

// calicoTime reads when an address was given, as Go prints it.
func calicoTime(text string) verdict.Stamp {
	text, _, _ = strings.Cut(text, " m=")
	at, err := time.Parse("2006-01-02 15:04:05.999999999 -0700 MST", text)
	if err != nil {
		return 0
	}
	return verdict.At(at)
}

// poolOf is the pool that a block is of: the IPPool that has it, or itself.
func (k *calico) poolOf(at key, block netip.Prefix) string {
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

// blockChanged tells what is new of a block: of one whose pools are not known yet
// later. It is called under mu.
func (k *calico) blockChanged(at key, before, after *calicoBlock) {
	pool, told := k.in[at]
	if !told && !k.decided() {
		return
	}
	if told && after != nil && after.bad {
		// What it had stays told: it is not known to be gone.
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

// enter tells of a block, and of its pool before that.
func (k *calico) enter(at key, block *calicoBlock) {
	k.use()
	pool := k.poolOf(at, block.prefix)
	k.in[at] = pool
	k.note(pool, at, block)
	if k.ipam.pools[pool] == nil {
		k.tellPool(pool)
	}
	for i := range block.bookings {
		k.allocate(pool, block.bookings[i].allocation(at, block.prefix), false)
	}
}

// takeBlockBack tells that all is gone that a block had given.
func (k *calico) takeBlockBack(at key, block *calicoBlock) {
	pool := k.in[at]
	delete(k.in, at)
	for i := range block.bookings {
		k.allocate(pool, block.bookings[i].allocation(at, block.prefix), true)
	}
	k.note(pool, at, nil)
}

// endEmpty has a pool go that is no IPPool, with its block.
func (k *calico) endEmpty(pool string) {
	if k.pools.records[key{name: pool}] == nil {
		k.drop(pool)
	}
}

// note notes what is odd about a block of a pool; with no block, nothing any more.
func (k *calico) note(pool string, at key, block *calicoBlock) {
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

// tellPool tells what is new of a pool.
func (k *calico) tellPool(name string) {
	next := verdict.Pool{Name: name, Wiring: verdict.Wiring{Plugin: "calico", Routed: true}, Config: "ippools " + name}
	odd, bad := k.lasting[name], false
	switch r := k.pools.records[key{name: name}]; {
	case r == nil:
		next.Config = ""
	case r.odd != "":
		odd, bad = r.odd, true
		if p := k.ipam.pools[name]; p != nil {
			next = *p.told
		}
	case !r.disabled: // one that is disabled gives nothing
		next.Ranges, next.Asked = []verdict.Range{verdict.RangeOf(r.prefix)}, r.asked
		for _, reservation := range k.reservations.records {
			for _, p := range reservation.prefixes {
				next.Ranges = without(next.Ranges, verdict.RangeOf(p))
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

// settle brings blocks to their pools, where those changed. It is called under mu.
func (k *calico) settle() {
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
	used := make(map[string]bool, len(k.ipam.pools))
	for _, pool := range k.in {
		used[pool] = true
	}
	for _, name := range slices.Sorted(maps.Keys(k.ipam.pools)) {
		if k.pools.records[key{name: name}] == nil && !used[name] {
			k.drop(name)
		}
	}
}

// allocation is what is told of an address of a block.
func (b *calicoBooking) allocation(at key, block netip.Prefix) verdict.Allocation {
	addr, _ := plus(block.Addr(), uint64(b.ordinal)) //nolint:gosec // not negative
	return verdict.Allocation{
		Address: addr, Node: b.node, Namespace: b.namespace, Pod: b.pod, ContainerID: b.container, Purpose: b.purpose, AllocatedAt: b.at,
		Location: "ipamblocks " + at.name + " /spec/allocations/" + strconv.Itoa(int(b.ordinal)),
	}
}
