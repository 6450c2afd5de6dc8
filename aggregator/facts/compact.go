package facts

import (
	"math"

	pb "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

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
