package agent

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ipwitness/ipwitness/agent/table"
	"github.com/ipwitness/ipwitness/bpf"
	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// TestLinksAreThoseOfAFreshListing changes the wiring of a host at random, and
// compares after each step with what a listing of it gives.
func TestLinksAreThoseOfAFreshListing(t *testing.T) {
	seeds := uint64(200)
	if testing.Short() {
		seeds = 20
	}
	for seed := range seeds {
		w := newWirings(t, seed)
		for step := 0; step < 60 && !t.Failed(); step++ {
			w.step()
			w.compare()
		}
		if t.Failed() {
			for _, line := range w.log {
				t.Log(line)
			}
			t.Fatalf("seed %d", seed)
		}
	}
}

// wirings is a host whose wiring changes.
type wirings struct {
	t      *testing.T
	r      *rand.Rand
	f      fakeKernel
	k      *kernel
	next   int32
	frames uint16
	names  map[uint64]*ipwitnessv1.Workload
	log    []string
}

func newWirings(t *testing.T, seed uint64) *wirings {
	t.Helper()
	f := fakeKernel{}
	bridge := func(l *linkMsg) { l.defaultPVID = 1 }
	for _, l := range []linkMsg{
		device(101, "eth0", "", nil), device(102, "eth1", "", nil), device(103, "bond0", "bond", nil),
		device(104, "br0", "bridge", bridge), device(105, "br1", "bridge", bridge),
	} {
		f.put(noNSID, l)
	}
	f[noNSID].pvids = map[int32]uint16{104: 1, 105: 1}
	return &wirings{t: t, r: rand.New(rand.NewPCG(seed, 0)), f: f, k: newTestKernel(t, f), next: 200, names: map[uint64]*ipwitnessv1.Workload{}}
}

func (w *wirings) own() map[int32]linkMsg { return w.f[noNSID].link }

// name gives one that no interface has; one may have had it.
func (w *wirings) name(kind string) string {
	for {
		name := fmt.Sprintf("%s%d", kind, w.r.IntN(100))
		if !slices.ContainsFunc(w.sorted(), func(l linkMsg) bool { return l.name == name }) {
			return name
		}
	}
}

// set makes an interface, or changes it.
func (w *wirings) set(l linkMsg) {
	w.log = append(w.log, fmt.Sprintf("new link %d %s %q: master %d, lower %d/%d, VLAN %d, filtering %v",
		l.index, l.name, l.kind, l.master, l.lower, l.lowerNSID, l.vlan, l.filtering))
	if _, ok := w.own()[l.index]; !ok {
		w.f.put(noNSID, l)
	}
	w.own()[l.index] = l
	w.k.handle(&message{typ: unix.RTM_NEWLINK, nsid: noNSID, link: l})
}

func (w *wirings) setPVID(index int32, pvid uint16) {
	w.log = append(w.log, fmt.Sprintf("PVID of %d is %d", index, pvid))
	w.f[noNSID].pvids[index] = pvid
	w.k.handle(&message{typ: rtmNewPort, nsid: noNSID, link: linkMsg{index: index}, pvid: pvid})
}

// remove deletes an interface as the kernel does: what is over it goes first, and
// its ports are let go.
func (w *wirings) remove(index int32) {
	l, ok := w.own()[index]
	if !ok {
		return
	}
	for _, o := range w.sorted() {
		if o.lowerNSID == noNSID && o.lower == index && o.kind != "veth" {
			w.remove(o.index)
		}
	}
	for _, o := range w.sorted() {
		if o.master == index {
			w.enslave(o, 0)
		}
	}
	w.log = append(w.log, fmt.Sprintf("delete link %d", index))
	delete(w.f[noNSID].pvids, index)
	for _, a := range w.f[noNSID].addrs[index] {
		w.k.handle(&message{typ: unix.RTM_DELADDR, nsid: noNSID, addr: a})
	}
	delete(w.f[noNSID].addrs, index)
	inside := l.kind == "veth" && l.lowerNSID != noNSID
	if inside {
		delete(w.f, l.lowerNSID)
	}
	delete(w.own(), index)
	w.k.handle(&message{typ: unix.RTM_DELLINK, nsid: noNSID, link: l})
	if inside {
		w.k.handle(&message{typ: unix.RTM_DELNSID, nsid: noNSID, id: l.lowerNSID})
	} else if l.kind == "veth" {
		w.remove(l.lower)
	}
}

func (w *wirings) sorted() (out []linkMsg) {
	for _, l := range w.own() {
		out = append(out, l)
	}
	slices.SortFunc(out, func(a, b linkMsg) int { return cmp.Compare(a.index, b.index) })
	return out
}

// pick gives one of the interfaces of some kinds; none has index 0.
func (w *wirings) pick(kinds ...string) (l linkMsg) {
	some := slices.DeleteFunc(w.sorted(), func(l linkMsg) bool { return l.name == "lo" || !slices.Contains(kinds, l.kind) })
	if len(some) > 0 {
		l = some[w.r.IntN(len(some))]
	}
	return l
}

func (w *wirings) enslave(l linkMsg, master int32) {
	m := w.own()[master]
	l.master, l.slaveKind = master, m.kind
	delete(w.f[noNSID].pvids, l.index)
	if m.kind == "bridge" {
		w.f[noNSID].pvids[l.index] = m.defaultPVID
	}
	w.set(l)
	if m.kind == "bridge" {
		w.setPVID(l.index, m.defaultPVID)
	}
}

// over says whether an interface is, at some distance, made over another one.
func (w *wirings) over(l linkMsg, index int32) bool {
	for l.kind == "vlan" {
		if l = w.own()[l.lower]; l.index == index || l.master == index {
			return true
		}
	}
	return false
}

// step is one change.
func (w *wirings) step() {
	w.next += 2
	i := w.next
	switch w.r.IntN(16) {
	case 0:
		w.f[noNSID].pvids[i] = 1
		w.set(device(i, w.name("br"), "bridge", func(l *linkMsg) { l.defaultPVID, l.filtering = 1, w.r.IntN(3) == 0 }))
	case 1:
		if b := w.pick("bridge"); b.index != 0 {
			b.filtering = !b.filtering
			w.set(b)
		}
	case 2, 3:
		l, m := w.pick("", "veth", "vlan", "bond"), w.pick("bridge", "bond")
		switch {
		case l.index == 0 || m.index == 0:
		case l.master != 0:
			w.enslave(l, 0)
		case m.kind == "bond" && (l.kind == "bond" || l.kind == "vlan") || w.over(l, m.index):
		default:
			w.enslave(l, m.index)
		}
	case 4:
		if l := w.pick("", "veth", "bond", "bridge"); l.kind == "bridge" || w.own()[l.master].kind == "bridge" {
			w.setPVID(l.index, uint16(w.r.IntN(3)*10))
		}
	case 5, 6:
		l, vid := w.pick("", "veth", "bond", "bridge", "vlan"), uint16(10*(1+w.r.IntN(2)))
		taken := slices.ContainsFunc(w.sorted(), func(o linkMsg) bool { return o.kind == "vlan" && o.lower == l.index && o.vlan == vid })
		if l.index != 0 && !taken && w.own()[l.lower].kind != "vlan" {
			w.set(device(i, w.name("vlan"), "vlan", func(v *linkMsg) { v.lower, v.vlan = l.index, vid }))
		}
	case 7:
		if l := w.pick("", "bond", "vlan"); l.index != 0 {
			w.set(device(i, w.name("macvlan"), "macvlan", func(m *linkMsg) { m.lower = l.index }))
		}
	case 8: // the peer is told first, before its other end is there
		w.f.put(noNSID, device(i, w.name("in"), "veth", func(l *linkMsg) { l.lower = i + 1 }))
		w.set(device(i+1, w.name("in"), "veth", func(l *linkMsg) { l.lower = i }))
		w.set(w.own()[i])
	case 9:
		w.f.put(1000+i, podVeth(i), fmt.Sprintf("10.0.%d.%d/16", i/250, i%250+1))
		w.f.put(noNSID, hostVeth(i, 1000+i))
		w.k.handle(&message{typ: unix.RTM_NEWNSID, nsid: noNSID, id: 1000 + i})
		w.set(hostVeth(i, 1000+i))
		w.k.adopt(1000+i, inodeOf(1000+i), false)
	case 10:
		switch l := w.pick("vlan", "veth", "bridge", "macvlan", "bond", ""); {
		case l.index == 0:
		case w.r.IntN(2) == 0:
			l.name = w.name("new")
			w.set(l)
		case l.kind != "":
			w.remove(l.index)
		}
	case 11:
		w.address(w.pick("vlan", "veth", "bridge", ""), []string{"192.0.2.1/24", "192.0.2.1/32", "198.51.100.1/24"}[w.r.IntN(3)])
	case 12, 13, 14:
		if nsid := w.other(); nsid != 0 {
			w.inside(nsid, i)
		}
	case 15:
		if nsid := w.other(); nsid != 0 {
			w.log = append(w.log, fmt.Sprintf("nsid %d is told who it is", nsid))
			kind := []ipwitnessv1.Workload_Kind{ipwitnessv1.Workload_POD, ipwitnessv1.Workload_CONTAINER}[w.r.IntN(2)]
			w.names[inodeOf(nsid)] = &ipwitnessv1.Workload{Kind: kind, Name: "some"}
			w.k.setNames(maps.Clone(w.names), nil, nil)
		}
	}
	if l := w.pick("", "veth"); l.index != 0 {
		vlan := uint16(w.r.IntN(3) * 10)
		w.frame(l.index, vlan, min(vlan, uint16(w.r.IntN(3)*10)))
	}
}

// inodeOf is the inode of another namespace.
func inodeOf(nsid int32) uint64 { return uint64(10000 + nsid) }

// other gives one of the other namespaces; 0 for none.
func (w *wirings) other() int32 {
	var all []int32
	for nsid := range w.f {
		if nsid != noNSID && nsid != testNSID {
			all = append(all, nsid)
		}
	}
	if len(all) == 0 {
		return 0
	}
	slices.Sort(all)
	return all[w.r.IntN(len(all))]
}

// inside changes what the other end of a pair is a port of: with a bridge, and
// hardware or another pair in that, it is a switch.
func (w *wirings) inside(nsid, i int32) {
	const bridge = 9
	ns := w.f[nsid]
	ports := slices.Sorted(maps.Keys(ns.link))
	l := ns.link[ports[w.r.IntN(len(ports))]]
	switch {
	case w.r.IntN(3) == 0 && len(ports) < 4:
		l = linkMsg{index: i, name: fmt.Sprintf("port%d", i), mac: "port", arphrd: unix.ARPHRD_ETHER, flags: up, master: bridge, lowerNSID: noNSID}
		if w.r.IntN(3) == 0 {
			l.kind = "tun"
		}
	case l.index != 2 && w.r.IntN(3) == 0:
		w.log = append(w.log, fmt.Sprintf("delete link %d of nsid %d", l.index, nsid))
		delete(ns.link, l.index)
		delete(ns.addrs, l.index)
		w.k.handle(&message{typ: unix.RTM_DELLINK, nsid: nsid, link: l})
		return
	case l.master == 0:
		l.master = bridge
	default:
		l.master = 0
	}
	w.log = append(w.log, fmt.Sprintf("link %d %q of nsid %d: master %d", l.index, l.kind, nsid, l.master))
	ns.link[l.index] = l
	if l.index == 2 {
		l.lowerNSID = 0 // by the numbers of that namespace
	}
	w.k.handle(&message{typ: unix.RTM_NEWLINK, nsid: nsid, link: l})
}

// address gives an interface an address, or takes it away.
func (w *wirings) address(l linkMsg, prefix string) {
	if l.index == 0 {
		return
	}
	w.log = append(w.log, fmt.Sprintf("address %s of %d comes or goes", prefix, l.index))
	typ, a := uint16(unix.RTM_NEWADDR), address(l.index, prefix)
	if on := w.f[noNSID].addrs[l.index]; slices.Contains(on, a) {
		typ, w.f[noNSID].addrs[l.index] = unix.RTM_DELADDR, slices.DeleteFunc(on, func(have addrMsg) bool { return have == a })
	} else {
		w.f[noNSID].addrs[l.index] = append(on, a)
	}
	w.k.handle(&message{typ: typ, nsid: noNSID, addr: a})
}

// frame has a stranger announce an address by an interface.
func (w *wirings) frame(index int32, vlan, inner uint16) {
	w.frames++
	w.log = append(w.log, fmt.Sprintf("frame by %d with VLANs %d and %d", index, vlan, inner))
	w.k.frame(&bpf.Event{
		Ktime: monotonic(w.t), Ifindex: uint32(index), VLAN: vlan, InnerVLAN: inner, Kind: bpf.Announced,
		Addr: address(2, "10.0.0.9/24").addr, SHA: bpf.MAC{2, 0, 0, 0, byte(w.frames >> 8), byte(w.frames)},
	})
}

// compare checks that what was followed is what a listing gives.
func (w *wirings) compare() {
	w.t.Helper()
	fresh := newTestKernel(w.t, w.f)
	for nsid := range w.f {
		if nsid != noNSID && nsid != testNSID {
			fresh.adopt(nsid, inodeOf(nsid), false)
		}
	}
	fresh.setNames(maps.Clone(w.names), nil, nil)
	for _, ns := range fresh.all() {
		followed := w.k.own
		if ns != fresh.own {
			followed = w.k.byNSID[ns.nsid]
		}
		for index, l := range ns.links {
			got, want := followed.links[index].published.GetLink(), l.published.GetLink()
			if got != want {
				w.t.Errorf("%s of nsid %d: got link %q, want %q", l.name, ns.nsid, got, want)
			}
			if got, want := followed.links[index].published.GetUplink(), l.published.GetUplink(); got != want {
				w.t.Errorf("%s of nsid %d: got uplink %v, want %v", l.name, ns.nsid, got, want)
			}
			if want != "" && w.k.table.Links.Get(want) == nil {
				w.t.Errorf("%s of nsid %d: its link %q has no record", l.name, ns.nsid, want)
			}
		}
	}
	for name, want := range fresh.table.Links.All() {
		if got := w.k.table.Links.Get(name); got.GetKind() != want.GetKind() || got.GetRouted() != want.GetRouted() {
			w.t.Errorf("link %s: got %v, want %v", name, got, want)
		}
	}
	for name, d := range w.k.domains {
		if w.k.own.links[d.base.index] != d.base || w.k.table.Links.Get(name) == nil {
			w.t.Errorf("link %s: its device or its record is gone", name)
		}
	}
	for c, v := range w.k.table.Claims() {
		if !table.IsWire(c.Kind) {
			continue
		}
		port := w.k.own.links[c.At.Index]
		if want := w.k.domainOf(port, tagsOf(c.VLAN, c.InnerVLAN)...).name; v.Link != want {
			w.t.Errorf("claim by %s with VLANs %d and %d: got link %q, want %q", port.name, c.VLAN, c.InnerVLAN, v.Link, want)
		}
	}
}
