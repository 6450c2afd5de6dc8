package kernel

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ipwitness/ipwitness/agent/rtnetlink"
	"github.com/ipwitness/ipwitness/agent/table"
	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/agenttest"
)

// neigh returns a message about an entry of the interface with index 2.
func neigh(nsid int32, addr, mac string, state uint16) *rtnetlink.Message {
	return &rtnetlink.Message{Type: unix.RTM_NEWNEIGH, NSID: nsid, Neighbour: rtnetlink.Neighbour{Index: 2, Addr: netip.MustParseAddr(addr), MAC: mac, State: state}}
}

// believing returns what a mirror says about beliefs: "address link MAC state count".
func believing(k *Mirror, now time.Time) string {
	k.compareBeliefs(now)
	var out []string
	for key, r := range k.table.Beliefs.All() {
		out = append(out, fmt.Sprintf("%s %s %s %s %d", key.Address, key.Link, key.MAC, r.GetState(), r.GetCount()))
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}

// bridgeOfPods returns a node with pods behind nsids 5, 6 and 7 on cni0, with the addresses .5, .6 and .7.
func bridgeOfPods() agenttest.Fake {
	f := answeringHost()
	for i, nsid := range []int32{6, 7} {
		port := agenttest.HostVeth(int32(30+i), nsid)
		port.Master, port.SlaveKind = 4, "bridge"
		f.Put(rtnetlink.NoNSID, port)
		f.Put(nsid, agenttest.PodVeth(int32(30+i)), fmt.Sprintf("10.244.0.%d/24", nsid))
	}
	return f
}

func TestBeliefsThatDifferArePublished(t *testing.T) {
	const right, wrong = unix.NUD_REACHABLE, "former"
	mac := agenttest.PodVeth(30).MAC // of the pod with 10.244.0.6
	for _, test := range []struct {
		name string
		do   func(k *Mirror)
		want string
	}{
		{"the MAC of the owner", func(k *Mirror) { k.HandleNeighbour(neigh(5, "10.244.0.6", mac, right)) }, ""},
		{"another MAC, in use", func(k *Mirror) { k.HandleNeighbour(neigh(5, "10.244.0.6", wrong, right)) }, "10.244.0.6 cni0 former IN_USE 1"},
		{"of two pods", func(k *Mirror) {
			k.HandleNeighbour(neigh(5, "10.244.0.6", wrong, unix.NUD_PERMANENT))
			k.HandleNeighbour(neigh(7, "10.244.0.6", wrong, unix.NUD_PROBE))
		}, "10.244.0.6 cni0 former IN_USE 2"},
		{"not used", func(k *Mirror) { k.HandleNeighbour(neigh(5, "10.244.0.6", wrong, unix.NUD_STALE)) }, ""},
		{"failed", func(k *Mirror) {
			k.HandleNeighbour(neigh(5, "10.244.0.6", wrong, right))
			k.HandleNeighbour(neigh(5, "10.244.0.6", wrong, unix.NUD_FAILED))
		}, ""},
		{"resolved again", func(k *Mirror) {
			k.HandleNeighbour(neigh(5, "10.244.0.6", wrong, right))
			k.HandleNeighbour(neigh(5, "10.244.0.6", mac, right))
		}, ""},
		{"of the owner itself", func(k *Mirror) { k.HandleNeighbour(neigh(6, "10.244.0.6", wrong, right)) }, ""},
		{"an address that nobody has", func(k *Mirror) { k.HandleNeighbour(neigh(5, "10.244.0.99", wrong, right)) }, ""},
		{"a LAN", func(k *Mirror) { k.HandleNeighbour(neigh(rtnetlink.NoNSID, "192.0.2.99", wrong, right)) }, "192.0.2.99 eth0 former IN_USE 1"},
		{"a LAN with a frame of it", func(k *Mirror) {
			k.AddFrame(wireKey(2, ipwitnessv1.Evidence_ANSWERED, "192.0.2.99", wrong), seenNow())
			k.HandleNeighbour(neigh(rtnetlink.NoNSID, "192.0.2.99", wrong, right))
		}, ""},
		{"from before the start", func(k *Mirror) {
			k.Adopt(5, 4005, false, false)
			k.ReadNeighbours(4005, "IP address       HW type     Flags       HW address            Mask     Device\n"+
				"10.244.0.6       0x1         0x6         66:6f:72:6d:65:72     *        eth0\n"+
				"10.244.0.7       0x1         0x2         66:6f:72:6d:65:72     *        eth0\n")
		}, "10.244.0.6 cni0 former PERMANENT 1"},
		{"an owner that has left, and the next one", func(k *Mirror) {
			k.HandleNeighbour(neigh(5, "10.244.0.6", mac, right))
			k.compareBeliefs(time.Now())
			k.Handle(&rtnetlink.Message{Type: unix.RTM_DELADDR, NSID: 6, Address: agenttest.Address(2, "10.244.0.6/24")})
			k.Handle(&rtnetlink.Message{Type: unix.RTM_NEWADDR, NSID: 7, Address: agenttest.Address(2, "10.244.0.6/24")})
		}, "10.244.0.6 cni0 " + mac + " IN_USE 1"},
		{"an owner with another MAC", func(k *Mirror) {
			k.HandleNeighbour(neigh(5, "10.244.0.6", mac, right))
			k.compareBeliefs(time.Now())
			changed := agenttest.PodVeth(30)
			changed.MAC = "another MAC"[:6]
			k.Handle(&rtnetlink.Message{Type: unix.RTM_NEWLINK, NSID: 6, Link: changed})
		}, "10.244.0.6 cni0 " + mac + " IN_USE 1"},
		{"a pod that has ended", func(k *Mirror) {
			k.HandleNeighbour(neigh(5, "10.244.0.6", wrong, right))
			k.compareBeliefs(time.Now())
			k.Handle(&rtnetlink.Message{Type: unix.RTM_DELLINK, NSID: 5, Link: rtnetlink.Link{Index: 2}})
		}, ""},
	} {
		k := newTestKernel(t, bridgeOfPods())
		test.do(k)
		if got := believing(k, time.Now()); got != test.want {
			t.Errorf("%s: got %q, want %q", test.name, got, test.want)
		}
	}
}

// A frame bears an entry out for a while, without a message about the entry.
func TestAFrameBearsAnEntryOutForAWhile(t *testing.T) {
	k := newTestKernel(t, bridgeOfPods())
	k.AddFrame(wireKey(2, ipwitnessv1.Evidence_ANSWERED, "192.0.2.99", "former"), seenNow())
	k.HandleNeighbour(neigh(rtnetlink.NoNSID, "192.0.2.99", "former", unix.NUD_REACHABLE))
	start := time.Now()
	for _, test := range []struct {
		after time.Duration
		want  string
	}{{0, ""}, {excusedFor / 2, ""}, {excusedFor + time.Second, "192.0.2.99 eth0 former IN_USE 1"}} {
		if got := believing(k, start.Add(test.after)); got != test.want {
			t.Errorf("after %s: got %q, want %q", test.after, got, test.want)
		}
	}
}

// What a node believes about the ends of a VXLAN device has the address to which its forwarding table sends the frames.
func TestABeliefThroughATunnelHasItsEnd(t *testing.T) {
	const broadcast = "\x00\x00\x00\x00\x00\x00"
	entry := func(mac, to string) rtnetlink.Neighbour {
		return rtnetlink.Neighbour{Index: 9, MAC: mac, Addr: netip.MustParseAddr(to)}
	}
	for _, test := range []struct {
		name    string
		change  func(l *rtnetlink.Link)
		entries []rtnetlink.Neighbour
		want    string
	}{
		{"an entry for the MAC", nil, []rtnetlink.Neighbour{entry("former", "192.0.2.12"), entry("others", "192.0.2.13")}, "192.0.2.12"},
		{"IPv6", nil, []rtnetlink.Neighbour{entry("former", "2001:db8::12")}, "2001:db8::12"},
		{"no entry for the MAC", nil, []rtnetlink.Neighbour{entry("others", "192.0.2.13")}, "invalid IP"},
		{"a remote for all", nil, []rtnetlink.Neighbour{entry(broadcast, "192.0.2.12"), entry("others", "192.0.2.13")}, "192.0.2.12"},
		{"several for all", nil, []rtnetlink.Neighbour{entry(broadcast, "192.0.2.12"), entry(broadcast, "192.0.2.13")}, "invalid IP"},
		{"no VXLAN device", func(l *rtnetlink.Link) { l.Kind = "gretap" }, []rtnetlink.Neighbour{entry("former", "192.0.2.12")}, "invalid IP"},
		{"of all tunnels", func(l *rtnetlink.Link) { l.Metadata = true }, []rtnetlink.Neighbour{entry("former", "192.0.2.12")}, "invalid IP"},
		{"a port of a bridge", func(l *rtnetlink.Link) { l.Master, l.SlaveKind = 4, "bridge" }, []rtnetlink.Neighbour{entry("former", "192.0.2.12")}, "invalid IP"},
	} {
		f := bridgeOfPods()
		device := rtnetlink.Link{Index: 9, Name: "flannel.1", Kind: "vxlan", MAC: "device", ARPHRD: unix.ARPHRD_ETHER, Flags: agenttest.Up, LowerNSID: rtnetlink.NoNSID, NoLearning: true}
		if test.change != nil {
			test.change(&device)
		}
		f.Put(rtnetlink.NoNSID, device, "10.244.1.0/32")
		f[rtnetlink.NoNSID].Tunnels = map[int32][]rtnetlink.Neighbour{9: test.entries}
		k := newTestKernel(t, f)
		m := neigh(rtnetlink.NoNSID, "10.244.2.0", "former", unix.NUD_PERMANENT)
		m.Neighbour.Index = 9
		k.HandleNeighbour(m)
		k.compareBeliefs(time.Now())
		found := false
		for _, r := range k.table.Beliefs.All() {
			to, _ := netip.AddrFromSlice(r.GetTunnel())
			if found = true; to.String() != test.want {
				t.Errorf("%s: got %s, want %s", test.name, to, test.want)
			}
		}
		if !found && device.Master == 0 {
			t.Errorf("%s: got no belief", test.name)
		}
	}
}

// The forwarding table is read again, and not for each comparison.
func TestTheEndOfATunnelFollowsTheForwardingTable(t *testing.T) {
	f := bridgeOfPods()
	f.Put(rtnetlink.NoNSID, rtnetlink.Link{Index: 9, Name: "flannel.1", Kind: "vxlan", ARPHRD: unix.ARPHRD_ETHER, Flags: agenttest.Up, LowerNSID: rtnetlink.NoNSID}, "10.244.1.0/32")
	k := newTestKernel(t, f)
	m := neigh(rtnetlink.NoNSID, "10.244.2.0", "former", unix.NUD_PERMANENT)
	m.Neighbour.Index = 9
	k.HandleNeighbour(m)
	start := time.Now()
	for _, test := range []struct {
		after  time.Duration
		to, is string
	}{{0, "192.0.2.12", "192.0.2.12"}, {answersEvery - 1, "192.0.2.13", "192.0.2.12"}, {answersEvery, "192.0.2.13", "192.0.2.13"}} {
		f[rtnetlink.NoNSID].Tunnels = map[int32][]rtnetlink.Neighbour{9: {{Index: 9, MAC: "former", Addr: netip.MustParseAddr(test.to)}}}
		k.compareBeliefs(start.Add(test.after))
		for _, r := range k.table.Beliefs.All() {
			if to, _ := netip.AddrFromSlice(r.GetTunnel()); to.String() != test.is {
				t.Errorf("after %s: got %s, want %s", test.after, to, test.is)
			}
		}
	}
}

// A frame of an owner on another node bears no entry out once that owner has given the address up.
func TestAFrameOfAnOwnerThatHasDepartedBearsNothingOut(t *testing.T) {
	const addr, stale = "192.0.2.99", "192.0.2.99 eth0 former IN_USE 1"
	departs := func(mac string) func(*Mirror) { return func(k *Mirror) { k.Departed(netip.MustParseAddr(addr), mac) } }
	believes := func(mac string) func(*Mirror) {
		return func(k *Mirror) { k.HandleNeighbour(neigh(rtnetlink.NoNSID, addr, mac, unix.NUD_REACHABLE)) }
	}
	sees := func(mac string) func(*Mirror) {
		return func(k *Mirror) { k.AddFrame(wireKey(2, ipwitnessv1.Evidence_ANNOUNCED, addr, mac), seenNow()) }
	}
	relays := func(mac string) func(*Mirror) {
		return func(k *Mirror) {
			key := wireKey(2, ipwitnessv1.Evidence_ANSWERED, addr, mac)
			key.Source = "access point"
			k.AddFrame(key, seenNow())
		}
	}
	for _, test := range []struct {
		name string
		then []func(k *Mirror)
		want string
	}{
		{"it has", []func(*Mirror){departs("former")}, stale},
		{"another one has", []func(*Mirror){departs("other")}, ""},
		{"the next owner announces itself", []func(*Mirror){sees("next"), believes("next"), departs("former")}, ""},
		{"the next owner announces itself later", []func(*Mirror){departs("former"), sees("next"), believes("next")}, ""},
		{"the next owner announces itself, but the entry is kept", []func(*Mirror){departs("former"), sees("next")}, stale},
		{"only another device says that it returns", []func(*Mirror){departs("former"), relays("former")}, stale},
		{"it returns", []func(*Mirror){departs("former"), sees("former")}, ""},
	} {
		k := newTestKernel(t, bridgeOfPods())
		var forgotten []table.ClaimKey
		k.ClaimEnded = func(keys []table.ClaimKey) { forgotten = append(forgotten, keys...) }
		sees("former")(k)
		believes("former")(k)
		if got := believing(k, time.Now()); got != "" {
			t.Fatalf("%s: got %q before, want nothing", test.name, got)
		}
		for _, do := range test.then {
			do(k)
		}
		if got := believing(k, time.Now()); got != test.want {
			t.Errorf("%s: got %q, want %q", test.name, got, test.want)
		}
		if test.name == "it has" && (len(forgotten) != 1 || forgotten[0].MAC != "former") {
			t.Errorf("got %v, want that the observer reports its next frame", forgotten)
		}
	}
}

// More entries than the limit are a problem, until there is room and the tables were read again.
func TestEntriesThatExceedTheLimitAreReadLater(t *testing.T) {
	k := newTestKernel(t, bridgeOfPods())
	fill := func(state uint16) {
		for i := range uint32(mostBelieved + 1) {
			m := neigh(5, "0.0.0.0", "former", state)
			m.Neighbour.Addr = netip.AddrFrom4([4]byte{10, byte(1 + i>>16), byte(i >> 8), byte(i)})
			k.HandleNeighbour(m)
		}
	}
	fill(unix.NUD_STALE)
	if room := k.compareBeliefs(time.Now()); room || k.BeliefsLeftOut() != mostBelieved {
		t.Errorf("got room %t and %d entries at most, want that some are left out", room, k.BeliefsLeftOut())
	}
	fill(unix.NUD_FAILED)
	if room := k.compareBeliefs(time.Now()); !room || k.BeliefsLeftOut() != mostBelieved {
		t.Errorf("got room %t and %d entries at most, want room, and that some were left out", room, k.BeliefsLeftOut())
	}
	if k.ListNeighbours(); k.BeliefsLeftOut() != 0 {
		t.Error("the problem lasts after the tables were read again")
	}
}

// An answer about an address has all entries, also those that are not published, except those of namespaces that have the address.
func TestAnAnswerHasAllEntriesForAnAddress(t *testing.T) {
	k := newTestKernel(t, bridgeOfPods())
	addr, mac := netip.MustParseAddr("10.244.0.6"), agenttest.PodVeth(30).MAC // of its pod
	on := func(nsid, index int32, addr, mac string, state uint16) {
		m := neigh(nsid, addr, mac, state)
		m.Neighbour.Index = index
		k.HandleNeighbour(m)
	}
	on(5, 2, "10.244.0.6", mac, unix.NUD_STALE)
	on(6, 2, "10.244.0.6", "former", unix.NUD_REACHABLE)
	on(7, 2, "10.244.0.6", mac, unix.NUD_REACHABLE)
	on(rtnetlink.NoNSID, 4, "10.244.0.6", "former", unix.NUD_PERMANENT)
	on(5, 2, "10.244.0.7", mac, unix.NUD_REACHABLE)
	got := k.Believed(addr)
	var all []string
	for _, r := range got.GetBeliefs() {
		all = append(all, fmt.Sprintf("%s %s %s %d %d", r.GetLink(), r.GetMac(), r.GetState(), r.GetCount(), len(r.GetHolders())))
	}
	slices.Sort(all)
	if want := []string{"cni0 former PERMANENT 1 1", "cni0 " + mac + " IN_USE 1 1", "cni0 " + mac + " OLD 1 1"}; !slices.Equal(all, want) {
		t.Errorf("got %q, want %q", all, want)
	}
	unread := got.GetUnread()
	k.Adopt(5, 4005, false, false)
	k.ReadNeighbours(4005, "")
	if got := k.Believed(addr); unread == 0 || got.GetUnread() != unread-1 || len(got.GetBeliefs()) != 2 || got.GetTruncated() || got.GetOwnOnly() {
		t.Errorf("got %v after one of %d unread tables was read, want one less, and only the entries of others", got, unread)
	}
	if got := k.Believed(netip.MustParseAddr("2001:db8::99")); got.GetUnread() != 0 || len(got.GetBeliefs()) != 0 {
		t.Errorf("got %v about an IPv6 address, want nothing", got)
	}
	k.OwnOnly = true
	for i := range int32(2 * mostAnswered) {
		k.Handle(&rtnetlink.Message{Type: unix.RTM_NEWLINK, NSID: rtnetlink.NoNSID, Link: rtnetlink.Link{
			Index: 100 + i, Name: fmt.Sprintf("lan%d", i), MAC: fmt.Sprintf("own%03d", i), ARPHRD: unix.ARPHRD_ETHER, Flags: agenttest.Up, LowerNSID: rtnetlink.NoNSID,
		}})
		on(rtnetlink.NoNSID, 100+i, "192.0.2.99", "former", unix.NUD_REACHABLE)
	}
	if got := k.Believed(netip.MustParseAddr("192.0.2.99")); len(got.GetBeliefs()) != mostAnswered || !got.GetTruncated() || !got.GetOwnOnly() {
		t.Errorf("got %d entries, truncated %t, own only %t, want %d, and that there are others", len(got.GetBeliefs()), got.GetTruncated(), got.GetOwnOnly(), mostAnswered)
	}
}

// A frame bears an entry out no longer when its sender has another MAC. That of another sender still does.
func TestAFrameWithAFormerMACBearsNothingOut(t *testing.T) {
	f := bridgeOfPods()
	k := newTestKernel(t, f)
	l := agenttest.PodVeth(30)
	for _, mac := range []string{l.MAC, "another"} {
		k.AddFrame(wireKey(2, ipwitnessv1.Evidence_ANSWERED, "10.244.0.6", mac), seenNow())
	}
	l.MAC = "moved!"
	k.Handle(&rtnetlink.Message{Type: unix.RTM_NEWLINK, NSID: 6, Link: l})
	var left []string
	for key := range k.table.WireClaimsTo(netip.MustParseAddr("10.244.0.6")) {
		left = append(left, key.MAC)
	}
	if len(left) != 1 || left[0] != "another" {
		t.Errorf("got frames with the MACs %q, want only that of another sender", left)
	}
}
