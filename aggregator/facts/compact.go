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
	mark := func(id text) {
		if _, marked := now[id]; id != 0 && !marked {
			now[id] = 0
			bytes += stored(len(textAt(old, id)))
		}
	}
	t.eachText(mark, func(m *mac) {
		if m.form == unusualMAC {
			mark(m.text())
		}
	}, nil)
	t.texts.restart(len(now), bytes)
	for id := range now {
		now[id] = t.texts.put(textAt(old, id))
	}
	t.eachText(nil, func(m *mac) {
		if m.form == unusualMAC {
			m.setText(now[m.text()])
		}
	}, func(id *text) { *id = now[*id] })
}

// restart drops all texts and makes room for new ones.
func (t *texts) restart(count, bytes int) {
	t.arena.Reset()
	t.arena.Grow(bytes)
	t.byText, t.count = table{}, 0
	t.byText.resize(count, bytes > math.MaxUint16, nil)
	t.kept = count
}

// eachText calls functions for all texts and hardware addresses of records, to read or to change
// them.
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
			id := text(ns.number) //nolint:gosec // the number is a text
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
