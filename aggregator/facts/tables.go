package facts

import (
	"math"
	"strconv"

	"github.com/ipwitness/ipwitness/aggregator/verdict"
	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

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

	byRecord, byIndex, byName table // indexes of namespaces, interfaces and links
	holders                   table // the first interface with each MAC
	byMAC                     table // index of hardware
	rare                      map[uint32]rare
	// sources has, by hardware address, the claims in frames sent by another hardware address than
	// the one in the claim.
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

// namespace returns the namespace with a record number; 0 if there is none.
func (t *tables) namespace(record uint32) uint32 {
	return t.byRecord.find(hashRecord(record), func(i uint32) bool { return t.namespaces.at(i).record == record })
}

// iface returns the interface with an index in the namespace with a record number; 0 if there is
// none.
func (t *tables) iface(record, index uint32) uint32 {
	return t.byIndex.find(hashIndex(record, index), func(i uint32) bool {
		f := t.interfaces.at(i)
		return f.index == index && t.namespaces.at(f.namespace).record == record
	})
}

// link returns the link with a name; 0 if there is none.
func (t *tables) link(name string) uint32 {
	return t.byName.find(hashText(name), func(i uint32) bool { return t.texts.get(t.links.at(i).name) == name })
}

// holder returns the first interface with a MAC, which leads to the others by alike; 0 if there is
// none.
func (t *tables) holder(m mac) uint32 {
	return t.holders.find(t.texts.hashMAC(m), func(i uint32) bool { return t.interfaces.at(i).mac == m })
}

// hardwareOf returns the entry of a MAC that is named by claims; 0 if there is none.
func (t *tables) hardwareOf(m mac) uint32 {
	return t.byMAC.find(t.texts.hashMAC(m), func(i uint32) bool { return t.hardware.at(i).mac == m })
}

// hardwareNamed is like hardwareOf for a MAC that need not be among the texts of the node.
func (t *tables) hardwareNamed(m verdict.MAC) uint32 {
	if len(m) == 6 {
		return t.hardwareOf(mac{[6]byte([]byte(m)), sixBytes})
	}
	id, _ := t.texts.find(string(m)) // no hardware address is the empty text
	var unusual mac
	unusual.setText(id)
	return t.hardwareOf(unusual)
}

// named returns the entry of a MAC, and adds it if necessary.
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

// enterHolder and leaveHolder add and remove an interface from the list of its MAC.
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
}

// inside yields the interfaces of a namespace. Interfaces may be removed during the iteration.
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

// on yields the claims on an interface. The yielded claim may be removed.
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

// mostAlone is the number of claims on a port from which it is no single machine's: a sender may make any number of them.
const mostAlone = 64

// alone reports whether all frames that entered through the port of a wire claim have its hardware address.
func (t *tables) alone(c uint32) bool {
	one := t.claims.at(c)
	mac, n := t.wires.at(one.wire()).hardware, 0
	for other := range t.on(one.port) {
		if n++; n == mostAlone {
			return false
		}
		if w := t.claims.at(other).wire(); w != 0 && t.wires.at(w).hardware != mac {
			return false
		}
	}
	return true
}

// by yields the claims with a MAC.
func (t *tables) by(hw uint32) func(yield func(uint32) bool) {
	return func(yield func(uint32) bool) {
		for c := t.hardware.at(hw).claims; c != 0; c = t.wires.at(t.claims.at(c).wire()).after {
			if !yield(c) {
				return
			}
		}
	}
}

// same yields the claims of this node to the same address. first must be the first of them.
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

// host returns the name of the peer of a veth on the host.
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

// setNetns stores the inode of a new namespace in the most compact form.
func (t *tables) setNetns(ns *namespace, netns string, epoch uint64) {
	ns.number = epoch
	if netns == "" {
		return
	}
	if n, _ := strconv.ParseUint(netns, 10, 64); strconv.FormatUint(n, 10) == netns {
		ns.number = n
		ns.flags.set(inode, true)
		return
	}
	ns.number = uint64(t.texts.put(netns))
	ns.flags.set(named, true)
}

// reserve makes room for the records of a snapshot's message, so that the tables need not grow step
// by step and leave garbage behind.
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
	const others = 8 // kinds and names of interfaces, and others
	t.texts.restart(namespaces+links+others, bytes+8*others)
}

// packedLength returns the approximate length of a packed workload. Hexadecimal IDs take half of
// their length.
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

// compact drops the texts that no record refers to.
func (t *tables) compact() {
	old := t.texts.arena.String()
	now := make(map[text]text, t.texts.count)
	bytes := 0
	t.eachText(func(id text) text {
		if _, marked := now[id]; id != 0 && !marked {
			now[id] = 0
			bytes += stored(len(textAt(old, id)))
		}
		return id
	})
	t.texts.restart(len(now), bytes)
	for id := range now {
		now[id] = t.texts.put(textAt(old, id))
	}
	t.eachText(func(id text) text { return now[id] })
}

// restart drops all texts and makes room for new ones.
func (t *texts) restart(count, bytes int) {
	t.arena.Reset()
	t.arena.Grow(bytes)
	t.byText, t.count = table{}, 0
	t.byText.resize(count, bytes > math.MaxUint16, nil)
	t.kept = count
}

// eachText replaces each text of a record, also those of unusual hardware addresses, by what replace returns.
func (t *tables) eachText(replace func(text) text) {
	texts := func(ids ...*text) {
		for _, id := range ids {
			*id = replace(*id)
		}
	}
	hardware := func(m *mac) {
		if m.form == unusualMAC {
			m.setText(replace(m.text()))
		}
	}
	for i := range t.namespaces.all {
		ns := t.namespaces.at(i)
		if ns.flags.has(named) {
			ns.number = uint64(replace(text(ns.number))) //nolint:gosec // the number is a text
		}
		texts(&ns.who, &ns.intended)
	}
	for i := range t.interfaces.all {
		f := t.interfaces.at(i)
		texts(&f.name, &f.kind)
		if f.flags.has(hosted) {
			f.far = uint32(replace(text(f.far)))
		}
		hardware(&f.mac)
	}
	for i, r := range t.rare {
		texts(&r.host, &r.vrf)
		t.rare[i] = r
	}
	for i := range t.links.all {
		texts(&t.links.at(i).name)
	}
	for i := range t.claims.all {
		texts(&t.claims.at(i).network)
	}
	for i := range t.wires.all {
		hardware(&t.wires.at(i).source)
	}
	for i := range t.hardware.all {
		hardware(&t.hardware.at(i).mac)
	}
}
