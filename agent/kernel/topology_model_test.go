package kernel

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ipwitness/ipwitness/agent/rtnetlink"
	"github.com/ipwitness/ipwitness/agent/table"
	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/agenttest"
)

// TestLinksEqualThoseOfAFreshListing changes the wiring of a host at random. After each step, it
// compares the links with those of a fresh listing.
func TestLinksEqualThoseOfAFreshListing(t *testing.T) {
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
	f      agenttest.Fake
	k      *Mirror
	next   int32
	frames uint16
	names  map[uint64]*ipwitnessv1.Workload
	log    []string
}

func newWirings(t *testing.T, seed uint64) *wirings {
	t.Helper()
	f := agenttest.Fake{}
	bridge := func(l *rtnetlink.Link) { l.DefaultPVID = 1 }
	for _, l := range []rtnetlink.Link{
		device(101, "eth0", "", nil), device(102, "eth1", "", nil), device(103, "bond0", "bond", nil),
		device(104, "br0", "bridge", bridge), device(105, "br1", "bridge", bridge),
	} {
		f.Put(rtnetlink.NoNSID, l)
	}
	f[rtnetlink.NoNSID].VLANs = map[int32]rtnetlink.VLANs{104: {PVID: 1}, 105: {PVID: 1}}
	return &wirings{t: t, r: rand.New(rand.NewPCG(seed, 0)), f: f, k: newTestKernel(t, f), next: 200, names: map[uint64]*ipwitnessv1.Workload{}}
}

func (w *wirings) own() map[int32]rtnetlink.Link { return w.f[rtnetlink.NoNSID].Links }

// name returns a name that no interface has. A former interface may have had it.
func (w *wirings) name(kind string) string {
	for {
		name := fmt.Sprintf("%s%d", kind, w.r.IntN(100))
		if !slices.ContainsFunc(w.sorted(), func(l rtnetlink.Link) bool { return l.Name == name }) {
			return name
		}
	}
}

// set creates or changes an interface.
func (w *wirings) set(l rtnetlink.Link) {
	w.log = append(w.log, fmt.Sprintf("new link %d %s %q: master %d, lower %d/%d, VLAN %d, filtering %v",
		l.Index, l.Name, l.Kind, l.Master, l.Lower, l.LowerNSID, l.VLAN, l.Filtering))
	if _, ok := w.own()[l.Index]; !ok {
		w.f.Put(rtnetlink.NoNSID, l)
	}
	w.own()[l.Index] = l
	w.k.Handle(&rtnetlink.Message{Type: unix.RTM_NEWLINK, NSID: rtnetlink.NoNSID, Link: l})
}

func (w *wirings) setPVID(index int32, pvid uint16) {
	w.log = append(w.log, fmt.Sprintf("PVID of %d is %d", index, pvid))
	w.f[rtnetlink.NoNSID].VLANs[index] = rtnetlink.VLANs{PVID: pvid}
	w.k.Handle(&rtnetlink.Message{Type: rtnetlink.NewPort, NSID: rtnetlink.NoNSID, Port: rtnetlink.BridgePort{Index: index, VLANs: rtnetlink.VLANs{PVID: pvid}}})
}

// remove deletes an interface as the kernel does: interfaces above it are deleted first, and
// its ports are released.
func (w *wirings) remove(index int32) {
	l, ok := w.own()[index]
	if !ok {
		return
	}
	for _, o := range w.sorted() {
		if o.LowerNSID == rtnetlink.NoNSID && o.Lower == index && o.Kind != "veth" {
			w.remove(o.Index)
		}
	}
	for _, o := range w.sorted() {
		if o.Master == index {
			w.enslave(o, 0)
		}
	}
	w.log = append(w.log, fmt.Sprintf("delete link %d", index))
	delete(w.f[rtnetlink.NoNSID].VLANs, index)
	for _, a := range w.f[rtnetlink.NoNSID].Addresses[index] {
		w.k.Handle(&rtnetlink.Message{Type: unix.RTM_DELADDR, NSID: rtnetlink.NoNSID, Address: a})
	}
	delete(w.f[rtnetlink.NoNSID].Addresses, index)
	inside := l.Kind == "veth" && l.LowerNSID != rtnetlink.NoNSID
	if inside {
		delete(w.f, l.LowerNSID)
	}
	delete(w.own(), index)
	w.k.Handle(&rtnetlink.Message{Type: unix.RTM_DELLINK, NSID: rtnetlink.NoNSID, Link: l})
	if inside {
		w.k.Handle(&rtnetlink.Message{Type: unix.RTM_DELNSID, NSID: rtnetlink.NoNSID, ID: l.LowerNSID})
	} else if l.Kind == "veth" {
		w.remove(l.Lower)
	}
}

func (w *wirings) sorted() (out []rtnetlink.Link) {
	for _, l := range w.own() {
		out = append(out, l)
	}
	slices.SortFunc(out, func(a, b rtnetlink.Link) int { return cmp.Compare(a.Index, b.Index) })
	return out
}

// pick returns an interface of one of the given kinds, with index 0 if there is none.
func (w *wirings) pick(kinds ...string) (l rtnetlink.Link) {
	some := slices.DeleteFunc(w.sorted(), func(l rtnetlink.Link) bool { return l.Name == "lo" || !slices.Contains(kinds, l.Kind) })
	if len(some) > 0 {
		l = some[w.r.IntN(len(some))]
	}
	return l
}

func (w *wirings) enslave(l rtnetlink.Link, master int32) {
	m := w.own()[master]
	l.Master, l.SlaveKind = master, m.Kind
	delete(w.f[rtnetlink.NoNSID].VLANs, l.Index)
	if m.Kind == "bridge" {
		w.f[rtnetlink.NoNSID].VLANs[l.Index] = rtnetlink.VLANs{PVID: m.DefaultPVID}
	}
	w.set(l)
	if m.Kind == "bridge" {
		w.setPVID(l.Index, m.DefaultPVID)
	}
}

// over reports whether an interface is stacked, directly or indirectly, on another one.
func (w *wirings) over(l rtnetlink.Link, index int32) bool {
	for l.Kind == "vlan" {
		if l = w.own()[l.Lower]; l.Index == index || l.Master == index {
			return true
		}
	}
	return false
}

// step makes one change.
func (w *wirings) step() {
	w.next += 2
	i := w.next
	switch w.r.IntN(16) {
	case 0:
		w.f[rtnetlink.NoNSID].VLANs[i] = rtnetlink.VLANs{PVID: 1}
		w.set(device(i, w.name("br"), "bridge", func(l *rtnetlink.Link) { l.DefaultPVID, l.Filtering = 1, w.r.IntN(3) == 0 }))
	case 1:
		if b := w.pick("bridge"); b.Index != 0 {
			b.Filtering = !b.Filtering
			w.set(b)
		}
	case 2, 3:
		l, m := w.pick("", "veth", "vlan", "bond"), w.pick("bridge", "bond")
		switch {
		case l.Index == 0 || m.Index == 0:
		case l.Master != 0:
			w.enslave(l, 0)
		case m.Kind == "bond" && (l.Kind == "bond" || l.Kind == "vlan") || w.over(l, m.Index):
		default:
			w.enslave(l, m.Index)
		}
	case 4:
		if l := w.pick("", "veth", "bond", "bridge"); l.Kind == "bridge" || w.own()[l.Master].Kind == "bridge" {
			w.setPVID(l.Index, uint16(w.r.IntN(3)*10))
		}
	case 5, 6:
		l, vid := w.pick("", "veth", "bond", "bridge", "vlan"), uint16(10*(1+w.r.IntN(2)))
		taken := slices.ContainsFunc(w.sorted(), func(o rtnetlink.Link) bool { return o.Kind == "vlan" && o.Lower == l.Index && o.VLAN == vid })
		if l.Index != 0 && !taken && w.own()[l.Lower].Kind != "vlan" {
			w.set(device(i, w.name("vlan"), "vlan", func(v *rtnetlink.Link) { v.Lower, v.VLAN = l.Index, vid }))
		}
	case 7:
		if l := w.pick("", "bond", "vlan"); l.Index != 0 {
			w.set(device(i, w.name("macvlan"), "macvlan", func(m *rtnetlink.Link) { m.Lower = l.Index }))
		}
	case 8: // the peer is reported first, before its other end exists
		w.f.Put(rtnetlink.NoNSID, device(i, w.name("in"), "veth", func(l *rtnetlink.Link) { l.Lower = i + 1 }))
		w.set(device(i+1, w.name("in"), "veth", func(l *rtnetlink.Link) { l.Lower = i }))
		w.set(w.own()[i])
	case 9:
		w.f.Put(1000+i, agenttest.PodVeth(i), fmt.Sprintf("10.0.%d.%d/16", i/250, i%250+1))
		w.f.Put(rtnetlink.NoNSID, agenttest.HostVeth(i, 1000+i))
		w.k.Handle(&rtnetlink.Message{Type: unix.RTM_NEWNSID, NSID: rtnetlink.NoNSID, ID: 1000 + i})
		w.set(agenttest.HostVeth(i, 1000+i))
		w.k.Adopt(1000+i, inodeOf(1000+i), false, false)
	case 10:
		switch l := w.pick("vlan", "veth", "bridge", "macvlan", "bond", ""); {
		case l.Index == 0:
		case w.r.IntN(2) == 0:
			l.Name = w.name("new")
			w.set(l)
		case l.Kind != "":
			w.remove(l.Index)
		}
	case 11:
		w.address(w.pick("vlan", "veth", "bridge", ""), []string{"192.0.2.1/24", "192.0.2.1/32", "198.51.100.1/24"}[w.r.IntN(3)])
	case 12, 13, 14:
		if nsid := w.other(); nsid != 0 {
			w.inside(nsid, i)
		}
	case 15:
		if nsid := w.other(); nsid != 0 {
			w.log = append(w.log, fmt.Sprintf("nsid %d gets its name", nsid))
			kind := []ipwitnessv1.Workload_Kind{ipwitnessv1.Workload_POD, ipwitnessv1.Workload_CONTAINER}[w.r.IntN(2)]
			w.names[inodeOf(nsid)] = &ipwitnessv1.Workload{Kind: kind, Name: "some"}
			w.k.SetNames(maps.Clone(w.names), nil, nil, nil)
		}
	}
	if l := w.pick("", "veth"); l.Index != 0 {
		vlan := uint16(w.r.IntN(3) * 10)
		w.frame(l.Index, vlan, min(vlan, uint16(w.r.IntN(3)*10)))
	}
}

// inodeOf returns the inode of another namespace.
func inodeOf(nsid int32) uint64 { return uint64(10000 + nsid) }

// other returns one of the other namespaces; 0 if there is none.
func (w *wirings) other() int32 {
	var all []int32
	for nsid := range w.f {
		if nsid != rtnetlink.NoNSID && nsid != agenttest.OwnNSID {
			all = append(all, nsid)
		}
	}
	if len(all) == 0 {
		return 0
	}
	slices.Sort(all)
	return all[w.r.IntN(len(all))]
}

// inside changes the master of a pair's other end. A namespace with a bridge that also has
// hardware or another pair as port is a switch.
func (w *wirings) inside(nsid, i int32) {
	const bridge = 9
	ns := w.f[nsid]
	ports := slices.Sorted(maps.Keys(ns.Links))
	l := ns.Links[ports[w.r.IntN(len(ports))]]
	switch {
	case w.r.IntN(3) == 0 && len(ports) < 4:
		l = rtnetlink.Link{Index: i, Name: fmt.Sprintf("port%d", i), MAC: "port", ARPHRD: unix.ARPHRD_ETHER, Flags: agenttest.Up, Master: bridge, LowerNSID: rtnetlink.NoNSID}
		if w.r.IntN(3) == 0 {
			l.Kind = "tun"
		}
	case l.Index != 2 && w.r.IntN(3) == 0:
		w.log = append(w.log, fmt.Sprintf("delete link %d of nsid %d", l.Index, nsid))
		delete(ns.Links, l.Index)
		delete(ns.Addresses, l.Index)
		w.k.Handle(&rtnetlink.Message{Type: unix.RTM_DELLINK, NSID: nsid, Link: l})
		return
	case l.Master == 0:
		l.Master = bridge
	default:
		l.Master = 0
	}
	w.log = append(w.log, fmt.Sprintf("link %d %q of nsid %d: master %d", l.Index, l.Kind, nsid, l.Master))
	ns.Links[l.Index] = l
	if l.Index == 2 {
		l.LowerNSID = 0 // as numbered in that namespace
	}
	w.k.Handle(&rtnetlink.Message{Type: unix.RTM_NEWLINK, NSID: nsid, Link: l})
}

// address adds an address to an interface, or removes it.
func (w *wirings) address(l rtnetlink.Link, prefix string) {
	if l.Index == 0 {
		return
	}
	w.log = append(w.log, fmt.Sprintf("address %s of %d is added or removed", prefix, l.Index))
	typ, a := uint16(unix.RTM_NEWADDR), agenttest.Address(l.Index, prefix)
	if on := w.f[rtnetlink.NoNSID].Addresses[l.Index]; slices.Contains(on, a) {
		typ, w.f[rtnetlink.NoNSID].Addresses[l.Index] = unix.RTM_DELADDR, slices.DeleteFunc(on, func(have rtnetlink.Address) bool { return have == a })
	} else {
		w.f[rtnetlink.NoNSID].Addresses[l.Index] = append(on, a)
	}
	w.k.Handle(&rtnetlink.Message{Type: typ, NSID: rtnetlink.NoNSID, Address: a})
}

// frame lets an external device announce an address through an interface.
func (w *wirings) frame(index int32, vlan, inner uint16) {
	w.frames++
	w.log = append(w.log, fmt.Sprintf("frame by %d with VLANs %d and %d", index, vlan, inner))
	key := wireKey(index, ipwitnessv1.Evidence_ANNOUNCED, "10.0.0.9", string([]byte{2, 0, 0, 0, byte(w.frames >> 8), byte(w.frames)}))
	key.VLAN, key.InnerVLAN = vlan, inner
	w.k.AddFrame(key, seenNow())
}

// compare checks that the followed state equals a fresh listing.
func (w *wirings) compare() {
	w.t.Helper()
	fresh := newTestKernel(w.t, w.f)
	for nsid := range w.f {
		if nsid != rtnetlink.NoNSID && nsid != agenttest.OwnNSID {
			fresh.Adopt(nsid, inodeOf(nsid), false, false)
		}
	}
	fresh.SetNames(maps.Clone(w.names), nil, nil, nil)
	if got, want := state(w.k), state(fresh); !slices.Equal(got, want) {
		w.t.Errorf("followed state:\n%s\nwant that of a fresh listing:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	for _, ns := range fresh.all() {
		followed := w.k.own
		if ns != fresh.own {
			followed = w.k.byNSID[ns.nsid]
		}
		for index, l := range ns.links {
			got, want := followed.links[index].published.GetLink(), l.published.GetLink()
			if got != want {
				w.t.Errorf("%s of nsid %d: got link %q, want %q", l.Name, ns.nsid, got, want)
			}
			if got, want := followed.links[index].published.GetUplink(), l.published.GetUplink(); got != want {
				w.t.Errorf("%s of nsid %d: got uplink %v, want %v", l.Name, ns.nsid, got, want)
			}
			if want != "" && w.k.table.Links.Get(want) == nil {
				w.t.Errorf("%s of nsid %d: its link %q has no record", l.Name, ns.nsid, want)
			}
		}
	}
	for name, want := range fresh.table.Links.All() {
		if got := w.k.table.Links.Get(name); got.GetKind() != want.GetKind() || got.GetRouted() != want.GetRouted() {
			w.t.Errorf("link %s: got %v, want %v", name, got, want)
		}
	}
	for name, d := range w.k.domains {
		if w.k.own.links[d.base.Index] != d.base || w.k.table.Links.Get(name) == nil {
			w.t.Errorf("link %s: its device or its record is gone", name)
		}
	}
	for c, v := range w.k.table.Claims() {
		if !table.IsWire(c.Kind) {
			continue
		}
		port := w.k.own.links[c.At.Index]
		if want := w.k.domainOf(port, tagsOf(c.VLAN, c.InnerVLAN)...).name; v.Link != want {
			w.t.Errorf("claim by %s with VLANs %d and %d: got link %q, want %q", port.Name, c.VLAN, c.InnerVLAN, v.Link, want)
		}
	}
}

// state returns the ports, namespaces, interfaces and kernel claims of a mirror, without what
// differs between two mirrors of the same kernel.
func state(k *Mirror) (out []string) {
	for _, p := range k.Ports() {
		out = append(out, fmt.Sprintf("port %d %s", p.Index, p.Name))
	}
	nsids := map[uint32]int32{}
	for _, ns := range k.all() {
		if ns.published {
			nsids[ns.id] = ns.nsid
		}
	}
	for id, r := range k.table.Namespaces.All() {
		out = append(out, fmt.Sprintf("namespace %d: inode %s, %s", nsids[id], r.GetNetns(), r.GetWorkload()))
	}
	for _, r := range k.table.Interfaces.All() {
		out = append(out, fmt.Sprintf("interface %d/%d: %s %s %x %s on %s by %s in %s, peer %d, uplink %v",
			nsids[r.GetNamespace()], r.GetIndex(), r.GetName(), r.GetKind(), r.GetMac(), r.GetAttachment(), r.GetLink(), r.GetHostInterface(), r.GetVrf(),
			nsids[r.GetPeerNamespace()], r.GetUplink()))
	}
	for c, v := range k.table.Claims() {
		if !table.IsWire(c.Kind) {
			out = append(out, fmt.Sprintf("claim %d/%d: %s %s/%d", nsids[c.At.Namespace], c.At.Index, c.Kind, c.Address, v.PrefixLength))
		}
	}
	for index, all := range k.attached {
		out = append(out, fmt.Sprintf("attached to %d: %d", index, len(all)))
	}
	slices.Sort(out)
	return out
}
