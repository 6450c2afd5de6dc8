package agent

import (
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ipwitness/ipwitness/agent/table"
	"github.com/ipwitness/ipwitness/agent/table/tabletest"
	"github.com/ipwitness/ipwitness/bpf"
	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// fakeKernel answers requests from tables. nsid -> interface -> addresses.
type fakeKernel map[int32]*fakeNamespace

type fakeNamespace struct {
	link  map[int32]linkMsg
	addrs map[int32][]addrMsg
	pvids map[int32]uint16
	// routes holds the routes of the namespace, by destination.
	routes map[netip.Addr][]hop
}

func (f fakeKernel) namespace(nsid int32) (*fakeNamespace, error) {
	if ns, ok := f[nsid]; ok {
		return ns, nil
	}
	return nil, fmt.Errorf("nsid %d: %w", nsid, errNamespaceGone)
}

func (f fakeKernel) links(nsid int32) (out []linkMsg, err error) {
	ns, err := f.namespace(nsid)
	if err != nil {
		return nil, err
	}
	for _, l := range ns.link {
		out = append(out, l)
	}
	return out, nil
}

func (f fakeKernel) link(nsid, index int32) (linkMsg, error) {
	ns, err := f.namespace(nsid)
	if err != nil {
		return linkMsg{}, err
	}
	l, ok := ns.link[index]
	if !ok {
		return linkMsg{}, unix.ENODEV
	}
	return l, nil
}

func (f fakeKernel) addrs(nsid, index int32) (out []addrMsg, err error) {
	ns, err := f.namespace(nsid)
	if err != nil {
		return nil, err
	}
	for i, addrs := range ns.addrs {
		if index == 0 || index == i {
			out = append(out, addrs...)
		}
	}
	return out, nil
}

func (f fakeKernel) nsids() (out []int32, err error) {
	for id := range f {
		if id != noNSID {
			out = append(out, id)
		}
	}
	return out, nil
}

func (f fakeKernel) pvids() (map[int32]uint16, error) { return f[noNSID].pvids, nil }

func (f fakeKernel) route(addr netip.Addr) ([]hop, error) { return f[noNSID].routes[addr], nil }

// put makes an interface with addresses.
func (f fakeKernel) put(nsid int32, l linkMsg, addrs ...string) {
	if f[nsid] == nil {
		f[nsid] = &fakeNamespace{link: map[int32]linkMsg{}, addrs: map[int32][]addrMsg{}}
	}
	f[nsid].link[l.index] = l
	f[nsid].addrs[l.index] = nil
	for _, a := range addrs {
		f[nsid].addrs[l.index] = append(f[nsid].addrs[l.index], address(l.index, a))
	}
}

func address(index int32, prefix string) addrMsg {
	p := netip.MustParsePrefix(prefix)
	return addrMsg{index: index, addr: p.Addr(), prefixLen: uint8(p.Bits())}
}

const (
	testNSID = 77 // our own id in our own table
	up       = unix.IFF_UP
)

// hostVeth and podVeth are the two ends of one pair.
func hostVeth(index int32, nsid int32) linkMsg {
	return linkMsg{index: index, name: fmt.Sprintf("veth%d", index), kind: "veth", mac: fmt.Sprintf("host%02d", index), arphrd: unix.ARPHRD_ETHER, flags: up, lower: 2, lowerNSID: nsid}
}

func podVeth(host int32) linkMsg {
	return linkMsg{index: 2, name: "eth0", kind: "veth", mac: fmt.Sprintf("pods%02d", host), arphrd: unix.ARPHRD_ETHER, flags: up, lower: host, lowerNSID: testNSID}
}

func newTestKernel(t testing.TB, f fakeKernel) *kernel {
	t.Helper()
	if f[noNSID] == nil {
		f.put(noNSID, linkMsg{index: 1, name: "lo", flags: up | unix.IFF_LOOPBACK})
	}
	f[testNSID] = f[noNSID]
	k := newKernel(slog.New(slog.DiscardHandler), table.New(), f, testNSID, 1, time.Unix(0, 0), "node1")
	if err := k.list(); err != nil {
		t.Fatal("list: ", err)
	}
	return k
}

// claims says what the table claims: "address kind namespace/interface".
func claims(k *kernel) string {
	var out []string
	for c := range k.table.Claims() {
		out = append(out, fmt.Sprintf("%s %s %d/%d", c.Address, c.Kind, c.At.Namespace, c.At.Index))
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}

func wantClaims(t *testing.T, k *kernel, want string) {
	t.Helper()
	if got := claims(k); got != want {
		t.Fatalf("claims: got %q, want %q", got, want)
	}
}

func TestAddressInAPodIsClaimedAsItIsAssigned(t *testing.T) {
	f := fakeKernel{}
	f.put(noNSID, hostVeth(10, 5))
	f.put(5, podVeth(10))
	k := newTestKernel(t, f)
	wantClaims(t, k, "")

	k.handle(&message{typ: unix.RTM_NEWADDR, nsid: 5, addr: address(2, "10.244.0.2/24")})
	wantClaims(t, k, "10.244.0.2 ASSIGNED 2/2")
	k.handle(&message{typ: unix.RTM_DELADDR, nsid: 5, addr: address(2, "10.244.0.2/24")})
	wantClaims(t, k, "")
}

func TestDeathOfANamespaceEndsItsClaimsWithoutADeladdr(t *testing.T) {
	for name, end := range map[string]func(*kernel, fakeKernel){
		"by RTM_DELNSID": func(k *kernel, f fakeKernel) {
			delete(f, 5)
			k.handle(&message{typ: unix.RTM_DELNSID, nsid: noNSID, id: 5})
		},
		"by RTM_DELLINK of the host's veth": func(k *kernel, f fakeKernel) {
			delete(f, 5)
			k.handle(&message{typ: unix.RTM_DELLINK, nsid: noNSID, link: hostVeth(10, 5)})
		},
		"by a listing after lost events": func(k *kernel, f fakeKernel) {
			delete(f, 5)
			if err := k.list(); err != nil {
				panic(err)
			}
		},
		"by an answer to a request": func(k *kernel, f fakeKernel) {
			delete(f, 5)
			k.handle(&message{typ: unix.RTM_NEWADDR, nsid: 5, addr: address(9, "10.244.0.3/24")})
		},
		"by reading it again": func(k *kernel, f fakeKernel) {
			delete(f, 5)
			k.reread([]netip.Addr{netip.MustParseAddr("10.244.0.2")})
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := fakeKernel{}
			f.put(noNSID, hostVeth(10, 5))
			f.put(5, podVeth(10), "10.244.0.2/24")
			k := newTestKernel(t, f)
			wantClaims(t, k, "10.244.0.2 ASSIGNED 2/2")
			end(k, f)
			wantClaims(t, k, "")
			if n := len(maps.Collect(k.table.Namespaces.All())); n != 1 {
				t.Errorf("namespaces in the table: got %d, want only our own", n)
			}
		})
	}
}

func TestNamespaceThatReusesIDAndInodeIsAnotherNamespace(t *testing.T) {
	f := fakeKernel{}
	f.put(noNSID, hostVeth(10, 5))
	f.put(5, podVeth(10), "10.244.0.2/24")
	k := newTestKernel(t, f)
	k.adopt(5, 4026532000, true)

	f.put(noNSID, hostVeth(11, 5))
	f.put(5, podVeth(11), "10.244.0.3/24")
	k.handle(&message{typ: unix.RTM_DELNSID, nsid: noNSID, id: 5})
	wantClaims(t, k, "10.244.0.3 ASSIGNED 3/2") // of the new one, already
	if k.known(4026532000) {
		t.Error("the inode of a dead namespace is still known")
	}
	k.handle(&message{typ: unix.RTM_NEWNSID, nsid: noNSID, id: 5})
	k.adopt(5, 4026532000, true)
	wantClaims(t, k, "10.244.0.3 ASSIGNED 3/2")
	if got := k.table.Namespaces.Get(3).GetNetns(); got != "4026532000" {
		t.Errorf("inode of the new namespace: got %q", got)
	}
}

func TestEndOfANamespaceToldAfterItsIDWasReusedDoesNotEndTheNewOne(t *testing.T) {
	f := fakeKernel{}
	f.put(noNSID, hostVeth(10, 5))
	f.put(5, podVeth(10), "10.244.0.2/24")
	k := newTestKernel(t, f)

	f.put(noNSID, hostVeth(11, 5))
	f.put(5, podVeth(11), "10.244.0.3/24")
	k.handle(&message{typ: unix.RTM_NEWNSID, nsid: noNSID, id: 5})
	wantClaims(t, k, "10.244.0.3 ASSIGNED 3/2")
	k.handle(&message{typ: unix.RTM_DELNSID, nsid: noNSID, id: 5})
	wantClaims(t, k, "10.244.0.3 ASSIGNED 3/2")

	// The file of a third one is found before anything is told of it.
	k.adopt(5, 4026532000, true)
	f.put(noNSID, hostVeth(12, 5))
	f.put(5, podVeth(12), "10.244.0.4/24")
	k.adopt(5, 4026532001, true)
	wantClaims(t, k, "10.244.0.4 ASSIGNED 4/2")
}

func TestNamespaceIDsOfOtherTablesAreIgnored(t *testing.T) {
	f := fakeKernel{}
	f.put(noNSID, hostVeth(10, 5))
	f.put(5, podVeth(10), "10.244.0.2/24")
	k := newTestKernel(t, f)
	// The pod's own table lost its id 5: that is not our id 5.
	k.handle(&message{typ: unix.RTM_DELNSID, nsid: 5, id: 5})
	wantClaims(t, k, "10.244.0.2 ASSIGNED 2/2")
}

func TestMessagesWithOurOwnIDAreAboutUs(t *testing.T) {
	f := fakeKernel{}
	eth0 := linkMsg{index: 2, name: "eth0", arphrd: unix.ARPHRD_ETHER, flags: up, lowerNSID: noNSID}
	f.put(noNSID, eth0)
	k := newTestKernel(t, f)
	k.handle(&message{typ: unix.RTM_NEWADDR, nsid: testNSID, addr: address(2, "192.0.2.1/24")})
	wantClaims(t, k, "192.0.2.1 ASSIGNED 1/2")
}

func TestForeignNamespaceIsNotOursUntilAVethOfOursIsInIt(t *testing.T) {
	f := fakeKernel{}
	stranger := podVeth(10)
	stranger.lowerNSID = 6 // its peer is on another node of this machine
	f.put(5, stranger, "10.244.0.2/24")
	k := newTestKernel(t, f)
	wantClaims(t, k, "")

	f.put(noNSID, hostVeth(10, 5))
	f.put(5, podVeth(10), "10.244.0.2/24")
	k.handle(&message{typ: unix.RTM_NEWLINK, nsid: noNSID, link: hostVeth(10, 5)})
	numbered := podVeth(10)
	numbered.lowerNSID = 1 // by the pod's own table
	k.handle(&message{typ: unix.RTM_NEWLINK, nsid: 5, link: numbered})
	wantClaims(t, k, "10.244.0.2 ASSIGNED 2/2")

	f.put(5, stranger, "10.244.0.2/24")
	delete(f[noNSID].link, 10)
	k.handle(&message{typ: unix.RTM_DELLINK, nsid: noNSID, link: hostVeth(10, 5)})
	wantClaims(t, k, "")
}

func TestAddressIsClaimedWhileItsInterfaceIsUpAndItIsUsable(t *testing.T) {
	f := fakeKernel{}
	f.put(noNSID, hostVeth(10, 5))
	f.put(5, podVeth(10), "10.244.0.2/24")
	k := newTestKernel(t, f)

	down := podVeth(10)
	down.flags = 0
	f[5].link[2] = down
	k.handle(&message{typ: unix.RTM_NEWLINK, nsid: 5, link: down})
	wantClaims(t, k, "")
	f[5].link[2] = podVeth(10)
	k.handle(&message{typ: unix.RTM_NEWLINK, nsid: 5, link: podVeth(10)})
	wantClaims(t, k, "10.244.0.2 ASSIGNED 2/2")

	v6 := address(2, "2001:db8::2/64")
	for _, step := range []struct {
		flags uint32
		want  string
	}{
		{unix.IFA_F_TENTATIVE, "10.244.0.2 ASSIGNED 2/2"},
		{unix.IFA_F_TENTATIVE | unix.IFA_F_OPTIMISTIC, "10.244.0.2 ASSIGNED 2/2, 2001:db8::2 ASSIGNED 2/2"},
		{0, "10.244.0.2 ASSIGNED 2/2, 2001:db8::2 ASSIGNED 2/2"},
		{unix.IFA_F_TENTATIVE | unix.IFA_F_DADFAILED, "10.244.0.2 ASSIGNED 2/2, 2001:db8::2 DAD_FAILED 2/2"},
	} {
		v6.flags = step.flags
		k.handle(&message{typ: unix.RTM_NEWADDR, nsid: 5, addr: v6})
		wantClaims(t, k, step.want)
	}
	k.handle(&message{typ: unix.RTM_NEWADDR, nsid: 5, addr: address(2, "127.0.0.2/8")})
	wantClaims(t, k, "10.244.0.2 ASSIGNED 2/2, 2001:db8::2 DAD_FAILED 2/2")
}

func TestAddressWithTwoPrefixLengthsIsOneClaim(t *testing.T) {
	f := fakeKernel{}
	f.put(noNSID, hostVeth(10, 5))
	f.put(5, podVeth(10), "10.244.0.2/24")
	k := newTestKernel(t, f)
	k.handle(&message{typ: unix.RTM_NEWADDR, nsid: 5, addr: address(2, "10.244.0.2/32")})
	wantClaims(t, k, "10.244.0.2 ASSIGNED 2/2")
	k.handle(&message{typ: unix.RTM_DELADDR, nsid: 5, addr: address(2, "10.244.0.2/24")})
	wantClaims(t, k, "10.244.0.2 ASSIGNED 2/2")
	k.handle(&message{typ: unix.RTM_DELADDR, nsid: 5, addr: address(2, "10.244.0.2/32")})
	wantClaims(t, k, "")
}

func TestHolderWithTwoPeersIsOneClaimUntilBothAreGone(t *testing.T) {
	f := fakeKernel{}
	f.put(noNSID, hostVeth(10, 5))
	f.put(5, podVeth(10))
	k := newTestKernel(t, f)
	for _, typ := range []uint16{unix.RTM_NEWADDR, unix.RTM_DELADDR} {
		for i, peer := range []string{"10.244.0.3", "10.244.0.4"} {
			a := address(2, "10.244.0.2/32")
			a.peer = netip.MustParseAddr(peer)
			k.handle(&message{typ: typ, nsid: 5, addr: a})
			if typ == unix.RTM_NEWADDR || i == 0 {
				wantClaims(t, k, "10.244.0.2 ASSIGNED 2/2")
			}
		}
	}
	wantClaims(t, k, "")
}

func TestNamespaceThatIsOursAgainAtOnceIsANewRecord(t *testing.T) {
	f := fakeKernel{}
	f.put(noNSID, hostVeth(10, 5))
	f.put(5, podVeth(10), "10.244.0.2/24")
	k := newTestKernel(t, f)
	r := tabletest.Follow(k.table)
	// CNI DEL and ADD in one sandbox, before the reporter takes anything.
	delete(f[noNSID].link, 10)
	delete(f[5].link, 2)
	k.handle(&message{typ: unix.RTM_DELLINK, nsid: noNSID, link: hostVeth(10, 5)})
	f.put(noNSID, hostVeth(11, 5))
	f.put(5, podVeth(11), "10.244.0.3/24")
	k.handle(&message{typ: unix.RTM_NEWLINK, nsid: noNSID, link: hostVeth(11, 5)})
	k.handle(&message{typ: unix.RTM_NEWADDR, nsid: 5, addr: address(2, "10.244.0.3/24")})
	m := r.Take(time.Now())
	ended := false
	for _, n := range m.GetNamespaces() {
		ended = ended || n.GetId() == 2 && n.GetGone()
	}
	if !ended {
		t.Errorf("the end of the first record was not told: %v", m.GetNamespaces())
	}
	wantClaims(t, k, "10.244.0.3 ASSIGNED 3/2")
}

func TestAddressThatIsGoneWhenItIsReadAgainIsClaimedNoMore(t *testing.T) {
	f := fakeKernel{}
	f.put(noNSID, hostVeth(10, 5))
	f.put(5, podVeth(10), "10.244.0.2/24", "10.244.0.3/24")
	k := newTestKernel(t, f)
	r := tabletest.Follow(k.table)

	f.put(5, podVeth(10), "10.244.0.3/24") // its RTM_DELADDR is still in the queue
	k.reread([]netip.Addr{netip.MustParseAddr("10.244.0.2"), netip.MustParseAddr("10.244.0.3")})
	wantClaims(t, k, "10.244.0.3 ASSIGNED 2/2")
	m := r.Take(time.Now())
	told := map[bool]string{}
	for _, c := range m.GetClaims() {
		addr, _ := netip.AddrFromSlice(c.GetAddress())
		told[c.GetGone()] += addr.String()
	}
	if told[true] != "10.244.0.2" || told[false] != "10.244.0.3" {
		t.Errorf("told: got %q gone and %q there, want 10.244.0.2 and 10.244.0.3", told[true], told[false])
	}
}

func TestLostEventsAreMadeUpByAListing(t *testing.T) {
	f := fakeKernel{}
	f.put(noNSID, hostVeth(10, 5))
	f.put(5, podVeth(10), "10.244.0.2/24")
	k := newTestKernel(t, f)

	f.put(5, podVeth(10), "10.244.0.9/24")
	f.put(noNSID, hostVeth(11, 6))
	f.put(6, podVeth(11), "10.244.0.3/24")
	if err := k.list(); err != nil {
		t.Fatal(err)
	}
	wantClaims(t, k, "10.244.0.3 ASSIGNED 3/2, 10.244.0.9 ASSIGNED 2/2")
}

func TestFrameThatWasSentBeforeItsHolderGaveTheAddressUpIsDropped(t *testing.T) {
	f := fakeKernel{}
	f.put(noNSID, hostVeth(10, 5))
	f.put(5, podVeth(10), "10.244.0.2/24")
	k := newTestKernel(t, f)
	var forgotten []table.ClaimKey
	k.claimEnded = func(keys []table.ClaimKey) { forgotten = append(forgotten, keys...) }
	frame := bpf.Event{Ktime: monotonic(t), Ifindex: 10, Kind: bpf.Used, Addr: netip.MustParseAddr("10.244.0.2"), SHA: bpf.MAC([]byte("pods10")), Frames: 1}

	k.frame(&frame)
	wantClaims(t, k, "10.244.0.2 ASSIGNED 2/2, 10.244.0.2 USED 1/10")
	k.handle(&message{typ: unix.RTM_DELADDR, nsid: 5, addr: address(2, "10.244.0.2/24")})
	wantClaims(t, k, "")
	if len(forgotten) != 1 || forgotten[0].Address != frame.Addr {
		t.Errorf("bindings that the observer is to forget: got %v", forgotten)
	}
	k.frame(&frame)
	wantClaims(t, k, "")
	frame.Ktime = monotonic(t)
	k.frame(&frame)
	wantClaims(t, k, "10.244.0.2 USED 1/10")

	frame.VLAN = 10
	k.frame(&frame)
	if k.table.Links.Get("veth10.10") == nil {
		t.Errorf("links after a frame of VLAN 10: got %v", maps.Collect(k.table.Links.All()))
	}
	k.expire(time.Now().Add(time.Second))
	wantClaims(t, k, "")
	if k.table.Links.Get("veth10.10") != nil || k.table.Links.Get("veth10") == nil {
		t.Errorf("links after its claims ended: got %v, want only veth10", maps.Collect(k.table.Links.All()))
	}
}

func TestFrameOfAPortThatEndedIsDropped(t *testing.T) {
	f := fakeKernel{}
	f.put(noNSID, hostVeth(10, 5))
	f.put(5, podVeth(10))
	k := newTestKernel(t, f)
	frame := bpf.Event{Ktime: monotonic(t), Ifindex: 10, Kind: bpf.Announced, Addr: netip.MustParseAddr("10.244.0.7"), Frames: 1}
	k.frame(&frame)
	wantClaims(t, k, "10.244.0.7 ANNOUNCED 1/10")
	k.handle(&message{typ: unix.RTM_DELLINK, nsid: noNSID, link: hostVeth(10, 5)})
	wantClaims(t, k, "")
	k.frame(&frame)
	wantClaims(t, k, "")
}

func monotonic(t testing.TB) time.Duration {
	t.Helper()
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		t.Fatal(err)
	}
	return time.Duration(ts.Nano())
}

func TestPeerThatOnlyAnotherTableNumbersIsResolvedByOurEndOrByAnAddress(t *testing.T) {
	foreign := podVeth(10)
	foreign.lowerNSID = 0 // ours, in the numbering of the pod
	for name, resolve := range map[string]func(*kernel){
		"our end tells": func(k *kernel) {
			k.handle(&message{typ: unix.RTM_NEWLINK, nsid: noNSID, link: hostVeth(10, 5)})
		},
		"an address depends on it": func(k *kernel) {
			k.handle(&message{typ: unix.RTM_NEWADDR, nsid: 5, addr: address(2, "10.244.0.2/24")})
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := fakeKernel{}
			f.put(noNSID, linkMsg{index: 1, name: "lo", flags: up | unix.IFF_LOOPBACK})
			f.put(5, linkMsg{index: 1, name: "lo", flags: up | unix.IFF_LOOPBACK, lowerNSID: noNSID})
			k := newTestKernel(t, f)

			alone := hostVeth(10, noNSID)
			alone.lower = 0 // as it is told before the pair is complete
			k.handle(&message{typ: unix.RTM_NEWLINK, nsid: noNSID, link: alone})
			f.put(noNSID, hostVeth(10, 5))
			f.put(5, podVeth(10))
			k.handle(&message{typ: unix.RTM_NEWLINK, nsid: 5, link: foreign})
			if n := len(maps.Collect(k.table.Namespaces.All())); n != 1 {
				t.Fatalf("namespaces before the peer is known: got %d, want only our own", n)
			}
			resolve(k)
			if r := k.table.Interfaces.Get(table.InterfaceKey{Namespace: 2, Index: 2}); r.GetAttachment() != ipwitnessv1.InterfaceRecord_PEER || r.GetHostInterface() != "veth10" {
				t.Errorf("interface of the pod: got %v, want the peer of veth10", r)
			}
		})
	}
}

func TestNameOfANamespaceOutlivesItsFile(t *testing.T) {
	f := fakeKernel{}
	f.put(noNSID, hostVeth(10, 5))
	f.put(5, podVeth(10), "10.244.0.2/24")
	k := newTestKernel(t, f)
	k.adopt(5, 4000, true)
	k.setNames(map[uint64]*ipwitnessv1.Workload{4000: {Name: "pod1"}}, nil, nil)
	k.setNames(map[uint64]*ipwitnessv1.Workload{}, nil, nil)
	if got := k.table.Namespaces.Get(2).GetWorkload().GetName(); got != "pod1" {
		t.Errorf("name after its file is gone: got %q, want pod1", got)
	}
}
