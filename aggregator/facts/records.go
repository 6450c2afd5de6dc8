package facts

import (
	"math"
	"strconv"

	"github.com/ipwitness/ipwitness/aggregator/index"
	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// Records have no pointers, so that the garbage collector does not scan them. They refer to each
// other by index.

// flags are the boolean properties of a record.
type flags uint8

func (f flags) has(one flags) bool { return f&one != 0 }

func (f *flags) set(one flags, is bool) {
	if is {
		*f |= one
	} else {
		*f &^= one
	}
}

// namespace is one network namespace.
type namespace struct {
	// number is the inode, the text that names it or, if it is not known, the epoch of the agent
	// that reported the namespace.
	number        uint64
	since         verdict.Stamp // when it was first heard of
	who, intended text
	record        uint32
	ifaces        uint32 // the first of its interfaces
	// alike and together are the next ones on this node with the same pod, and with the same
	// container id.
	alike, together uint32
	cost            int32
	sweep           uint8
	flags           flags
}

const (
	inode flags = 1 << iota // number is the inode
	named                   // number is the text that names the inode
)

// iface is one interface of a namespace.
type iface struct {
	namespace, index uint32
	link             uint32
	// far is the other end of a veth: the record of the namespace with the peer or, if hosted is
	// set, the text with the name of the peer on the host.
	far        uint32
	name, kind text
	mac        mac
	sweep      uint8
	// alike is the next interface with the same MAC; before and after are neighbours in the
	// namespace.
	lists
	claims     uint32 // the first one
	cost       uint16
	attachment verdict.Attachment
	flags      flags
}

// rare are the fields that few interfaces have. host is only here if the interface has a peer in
// another namespace, too.
type rare struct{ host, vrf text }

// lists are the links of a record in lists of its node: alike is the next record with the same key,
// before and after are the neighbours that belong to the same record.
type lists struct{ alike, before, after uint32 }

const (
	uplink flags = 1 << iota
	tapped
	hosted
)

// link is one broadcast domain as a node sees it.
type link struct {
	name  text
	users int32 // interfaces and wire claims on it
	cost  int32
	sweep uint8
	kind  verdict.LinkKind
	flags flags
}

const (
	routed flags = 1 << iota
	known        // false for a link that was only named so far
	joined       // the topology knows it
)

// claim is one way in which an address is held. There are more claims than other records, so rare
// fields are elsewhere.
type claim struct {
	addr index.Address
	// first and assigned are by the agent's clock.
	first, assigned, begun verdict.Stamp
	port                   uint32
	// more is the additional part: a wire of a wire claim, a history of a kernel claim.
	more uint32
	// before and after are the neighbours on the port; alike is the next claim to the address.
	lists
	network text
	cost    uint16
	flags   uint16 // the kernel uses 12 bits
	kind    verdict.Evidence
	prefix  uint8
	sweep   uint8
}

// wire returns the additional part of a wire claim; 0 for a kernel claim.
func (c *claim) wire() uint32 {
	if c.kind == verdict.Assigned || c.kind == verdict.DADFailed {
		return 0
	}
	return c.more
}

// history is what changes of a claim when it is seen again. A kernel claim has one only if it was:
// the kernel reports most addresses once.
type history struct {
	last  verdict.Stamp // by the agent's clock
	mark  verdict.Stamp // Read of a kernel claim, Before of a wire claim
	count uint32
}

// wire is the additional part of a wire claim.
type wire struct {
	history
	seen                    verdict.Stamp
	hardware, before, after uint32 // those of the hardware address
	link                    uint32
	vlan, inner             uint16
	source                  mac
	flags                   flags
	// judged says whether the address was judged with the claim, and whether it has one plain
	// owner, so that seeing the claim again changes nothing. It is only accessed atomically,
	// because it is set while others read it.
	judged uint32 //nolint:modernize // records are copied when a slab grows
}

const (
	noOverride flags = 1 << iota
	byNode           // the node itself routes the address to the port
)

// hardware is one MAC that claims of a node name.
type hardware struct {
	mac    mac
	claims uint32 // the first one
	count  uint32
}

// tables are the records of one node, and their indexes.
type tables struct {
	texts texts

	namespaces slab[namespace]
	interfaces slab[iface]
	links      slab[link]
	claims     slab[claim]
	wires      slab[wire]
	histories  slab[history] // of kernel claims
	hardware   slab[hardware]

	byRecord, byIndex, byName table // namespaces, interfaces and links
	holders                   table // the first of all interfaces with one MAC
	byMAC                     table // hardware
	rare                      map[uint32]rare
	// sources has the claims in frames that another hardware address sent, by that address.
	sources map[verdict.MAC][]uint32
}

func hashRecord(record uint32) uint64 { return hashNumbers(uint64(record), 1) }

func hashIndex(record, index uint32) uint64 { return hashNumbers(uint64(record), uint64(index)) }

func (t *tables) hashOfNamespace(i uint32) uint64 { return hashRecord(t.namespaces.at(i).record) }
func (t *tables) hashOfLink(i uint32) uint64      { return hashText(t.texts.get(t.links.at(i).name)) }
func (t *tables) hashOfHolder(i uint32) uint64    { return t.texts.hashMAC(t.interfaces.at(i).mac) }
func (t *tables) hashOfHardware(i uint32) uint64  { return t.texts.hashMAC(t.hardware.at(i).mac) }

func (t *tables) hashOfInterface(i uint32) uint64 {
	f := t.interfaces.at(i)
	return hashIndex(t.namespaces.at(f.namespace).record, f.index)
}

// namespace returns the namespace with the agent's number; 0 for none.
func (t *tables) namespace(record uint32) uint32 {
	return t.byRecord.find(hashRecord(record), func(i uint32) bool { return t.namespaces.at(i).record == record })
}

// iface returns the interface with an index of the namespace with the agent's number; 0 for none.
func (t *tables) iface(record, index uint32) uint32 {
	return t.byIndex.find(hashIndex(record, index), func(i uint32) bool {
		f := t.interfaces.at(i)
		return f.index == index && t.namespaces.at(f.namespace).record == record
	})
}

// link returns the link with a name; 0 for none.
func (t *tables) link(name string) uint32 {
	return t.byName.find(hashText(name), func(i uint32) bool { return t.texts.get(t.links.at(i).name) == name })
}

// holder returns the first interface with a MAC; the others are alike. 0 for none.
func (t *tables) holder(m mac) uint32 {
	return t.holders.find(t.texts.hashMAC(m), func(i uint32) bool { return t.interfaces.at(i).mac == m })
}

// hardwareOf returns the entry of a MAC that claims name; 0 for none.
func (t *tables) hardwareOf(m mac) uint32 {
	return t.byMAC.find(t.texts.hashMAC(m), func(i uint32) bool { return t.hardware.at(i).mac == m })
}

// hardwareNamed is hardwareOf for a MAC of another node.
func (t *tables) hardwareNamed(m verdict.MAC) uint32 {
	if len(m) == 6 {
		return t.hardwareOf(mac{[6]byte([]byte(m)), sixBytes})
	}
	id, there := t.texts.find(string(m))
	if !there {
		return 0
	}
	var odd mac
	odd.setText(id)
	return t.hardwareOf(odd)
}

// named is hardwareOf, but makes an entry if there is none.
func (t *tables) named(m mac) uint32 {
	if hw := t.hardwareOf(m); hw != 0 {
		return hw
	}
	hw := t.hardware.add(hardware{mac: m})
	t.byMAC.put(t.texts.hashMAC(m), hw, t.hashOfHardware)
	return hw
}

func (t *tables) dropHardware(hw uint32) {
	if t.hardware.at(hw).count == 0 {
		t.byMAC.remove(t.hashOfHardware(hw), hw, t.hashOfHardware)
		t.hardware.remove(hw)
	}
}

// enterHolder and leaveHolder list an interface by its MAC.
func (t *tables) enterHolder(i uint32) {
	f := t.interfaces.at(i)
	first := t.holder(f.mac)
	f.alike = first
	if hash := t.texts.hashMAC(f.mac); first != 0 {
		t.holders.replace(hash, first, i, t.hashOfHolder)
	} else {
		t.holders.put(hash, i, t.hashOfHolder)
	}
}

func (t *tables) leaveHolder(i uint32) {
	f := t.interfaces.at(i)
	hash := t.texts.hashMAC(f.mac)
	switch at := t.holder(f.mac); {
	case at != i:
		for t.interfaces.at(at).alike != i {
			at = t.interfaces.at(at).alike
		}
		t.interfaces.at(at).alike = f.alike
	case f.alike != 0:
		t.holders.replace(hash, i, f.alike, t.hashOfHolder)
	default:
		t.holders.remove(hash, i, t.hashOfHolder)
	}
	f.alike = 0
}

// inside yields the interfaces of a namespace. Interfaces may be removed meanwhile.
func (t *tables) inside(ns uint32) func(yield func(uint32) bool) {
	return func(yield func(uint32) bool) {
		for i := t.namespaces.at(ns).ifaces; i != 0; {
			next := t.interfaces.at(i).after
			if !yield(i) {
				return
			}
			i = next
		}
	}
}

// on yields the claims on an interface. The one that is yielded may be removed.
func (t *tables) on(i uint32) func(yield func(uint32) bool) {
	return func(yield func(uint32) bool) {
		for c := t.interfaces.at(i).claims; c != 0; {
			next := t.claims.at(c).after
			if !yield(c) {
				return
			}
			c = next
		}
	}
}

// by yields the claims that name a MAC.
func (t *tables) by(hw uint32) func(yield func(uint32) bool) {
	return func(yield func(uint32) bool) {
		for c := t.hardware.at(hw).claims; c != 0; c = t.wires.at(t.claims.at(c).wire()).after {
			if !yield(c) {
				return
			}
		}
	}
}

// same yields the claims of this node to the address of one of them, which must be the first.
func (t *tables) same(first uint32) func(yield func(uint32) bool) {
	return func(yield func(uint32) bool) {
		for c := first; c != 0; c = t.claims.at(c).alike {
			if !yield(c) {
				return
			}
		}
	}
}

// own returns the agent's own namespace; 0 if it is not known.
func (t *tables) own() uint32 { return t.namespace(verdict.OwnRecord) }

// peer returns the record of the namespace with the veth peer; 0 for none.
func (f *iface) peer() uint32 {
	if f.flags.has(hosted) {
		return 0
	}
	return f.far
}

// setFar sets the other end of a veth, and returns the name on the host if that finds no room.
func (f *iface) setFar(peer uint32, host text) (left text) {
	if host == 0 || peer != 0 {
		f.far = peer
		return host
	}
	f.far = uint32(host)
	f.flags.set(hosted, true)
	return 0
}

// host returns the name on the host of the peer of a veth.
func (t *tables) host(i uint32) string {
	if f := t.interfaces.at(i); f.flags.has(hosted) {
		return t.texts.get(text(f.far))
	}
	return t.texts.get(t.rare[i].host)
}

func (t *tables) vrf(i uint32) string { return t.texts.get(t.rare[i].vrf) }

func (t *tables) setRare(i uint32, r rare) {
	if r == (rare{}) {
		delete(t.rare, i)
		return
	}
	if t.rare == nil {
		t.rare = make(map[uint32]rare)
	}
	t.rare[i] = r
}

// ports yields the node's ends of a namespace's interfaces.
func (t *tables) ports(record uint32) (ports []uint32) {
	if own := t.own(); own != 0 {
		for i := range t.inside(own) {
			if t.interfaces.at(i).peer() == record {
				ports = append(ports, i)
			}
		}
	}
	return ports
}

// setNetns keeps the inode of a namespace, as compactly as possible.
func (t *tables) setNetns(ns *namespace, netns string, epoch uint64) {
	ns.number = epoch
	ns.flags.set(inode|named, false)
	if netns == "" {
		return
	}
	n, err := strconv.ParseUint(netns, 10, 64)
	if err == nil && strconv.FormatUint(n, 10) == netns {
		ns.number = n
		ns.flags.set(inode, true)
		return
	}
	ns.number = uint64(t.texts.put(netns))
	ns.flags.set(named, true)
}

// reserve makes room for what a message of a snapshot has, so that the tables need not grow step by
// step and leave garbage behind.
func (t *tables) reserve(m *pb.ReportRequest) {
	wires := 0
	for _, c := range m.GetClaims() {
		if !FromKernel(c) {
			wires++
		}
	}
	namespaces, links, interfaces := len(m.GetNamespaces()), len(m.GetLinks()), len(m.GetInterfaces())
	t.namespaces.reserve(namespaces)
	t.links.reserve(links)
	t.interfaces.reserve(interfaces)
	t.claims.reserve(len(m.GetClaims()))
	t.wires.reserve(wires)
	t.byRecord.reserve(namespaces, t.hashOfNamespace)
	t.byName.reserve(links, t.hashOfLink)
	t.byIndex.reserve(interfaces, t.hashOfInterface)
	t.holders.reserve(interfaces, t.hashOfHolder)
	if t.texts.count > 0 {
		return
	}
	bytes := 0
	for _, rec := range m.GetLinks() {
		bytes += stored(len(rec.GetName()))
	}
	for _, rec := range m.GetNamespaces() {
		bytes += stored(packedLength(rec.GetWorkload()))
	}
	const others = 8 // kinds and names of interfaces, and the like
	t.texts.restart(namespaces+links+others, bytes+8*others)
}

// packedLength returns about how long a workload is in the texts of its node: the ids in it, which
// are hexadecimal, take half as much there.
func packedLength(w *pb.Workload) int {
	const lengths = 10
	return lengths + len(w.GetNamespace()) + len(w.GetName()) + (len(w.GetUid())+len(w.GetContainerId()))/2 +
		len(w.GetSource()) + len(w.GetProcess()) + len(w.GetVirtualMachine())
}

// trim releases memory that a snapshot left unused, and drops unused texts.
func (t *tables) trim() {
	if t.texts.wasteful() || t.texts.spare() {
		t.compact()
	}
	t.byRecord.trim(t.hashOfNamespace)
	t.byIndex.trim(t.hashOfInterface)
	t.byName.trim(t.hashOfLink)
	t.holders.trim(t.hashOfHolder)
	t.byMAC.trim(t.hashOfHardware)
	t.namespaces.trim()
	t.interfaces.trim()
	t.links.trim()
	t.claims.trim()
	t.wires.trim()
	t.histories.trim()
	t.hardware.trim()
}

// compact drops the texts that no record has.
func (t *tables) compact() {
	old := t.texts.arena.String()
	now := make(map[text]text, t.texts.count)
	bytes := 0
	mark := func(id text) {
		if _, marked := now[id]; id != 0 && !marked {
			now[id] = 0
			bytes += stored(len(textAt(old, id)))
		}
	}
	t.eachText(mark, func(m *mac) {
		if m.form == oddMAC {
			mark(m.text())
		}
	}, nil)
	t.texts.restart(len(now), bytes)
	for id := range now {
		now[id] = t.texts.put(textAt(old, id))
	}
	t.eachText(nil, func(m *mac) {
		if m.form == oddMAC {
			m.setText(now[m.text()])
		}
	}, func(id *text) { *id = now[*id] })
}

// restart forgets all texts and makes room for others.
func (t *texts) restart(count, bytes int) {
	t.arena.Reset()
	t.arena.Grow(bytes)
	t.byText, t.count = table{}, 0
	t.byText.resize(count, bytes > math.MaxUint16, nil)
	t.kept = count
}

// eachText shows all texts and hardware addresses that records have, to look at or to change.
func (t *tables) eachText(see func(text), macs func(*mac), change func(*text)) {
	one := func(id *text) {
		if see != nil {
			see(*id)
		}
		if change != nil {
			change(id)
		}
	}
	for i := range t.namespaces.all {
		ns := t.namespaces.at(i)
		if ns.flags.has(named) {
			id := text(ns.number) //nolint:gosec // it was a text
			one(&id)
			ns.number = uint64(id)
		}
		one(&ns.who)
		one(&ns.intended)
	}
	for i := range t.interfaces.all {
		f := t.interfaces.at(i)
		one(&f.name)
		one(&f.kind)
		if f.flags.has(hosted) {
			id := text(f.far)
			one(&id)
			f.far = uint32(id)
		}
		macs(&f.mac)
	}
	for i, r := range t.rare {
		one(&r.host)
		one(&r.vrf)
		t.rare[i] = r
	}
	for i := range t.links.all {
		one(&t.links.at(i).name)
	}
	for i := range t.claims.all {
		one(&t.claims.at(i).network)
	}
	for i := range t.wires.all {
		macs(&t.wires.at(i).source)
	}
	for i := range t.hardware.all {
		macs(&t.hardware.at(i).mac)
	}
}
