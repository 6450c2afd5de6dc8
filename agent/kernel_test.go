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

	"github.com/ipwitness/ipwitness/agent/rtnetlink"
	"github.com/ipwitness/ipwitness/agent/table"
	"github.com/ipwitness/ipwitness/agent/table/tabletest"
	"github.com/ipwitness/ipwitness/bpf"
	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
)

// fakeKernel answers requests from tables. nsid -> interface -> addresses.
type fakeKernel map[int32]*fakeNamespace

type fakeNamespace struct {
	link  map[int32]rtnetlink.Link
	addrs map[int32][]rtnetlink.Address
	pvids map[int32]uint16
	// routes holds the routes of the namespace, by destination.
	routes map[netip.Addr][]rtnetlink.Hop
}

func (f fakeKernel) namespace(nsid int32) (*fakeNamespace, error) {
	if ns, ok := f[nsid]; ok {
		return ns, nil
	}
	return nil, fmt.Errorf("nsid %d: %w", nsid, rtnetlink.ErrNamespaceGone)
}

func (f fakeKernel) Links(nsid int32) (out []rtnetlink.Link, err error) {
	ns, err := f.namespace(nsid)
	if err != nil {
		return nil, err
	}
	for _, l := range ns.link {
		out = append(out, l)
	}
	return out, nil
}

func (f fakeKernel) Link(nsid, index int32) (rtnetlink.Link, error) {
	ns, err := f.namespace(nsid)
	if err != nil {
		return rtnetlink.Link{}, err
	}
	l, ok := ns.link[index]
	if !ok {
		return rtnetlink.Link{}, unix.ENODEV
	}
	return l, nil
}

func (f fakeKernel) Addresses(nsid, index int32) (out []rtnetlink.Address, err error) {
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

func (f fakeKernel) NSIDs() (out []int32, err error) {
	for id := range f {
		if id != rtnetlink.NoNSID {
			out = append(out, id)
		}
	}
	return out, nil
}

func (f fakeKernel) PVIDs() (map[int32]uint16, error) { return f[rtnetlink.NoNSID].pvids, nil }

func (f fakeKernel) Route(addr netip.Addr) ([]rtnetlink.Hop, error) {
	return f[rtnetlink.NoNSID].routes[addr], nil
}

// put makes an interface with addresses.
func (f fakeKernel) put(nsid int32, l rtnetlink.Link, addrs ...string) {
	if f[nsid] == nil {
		f[nsid] = &fakeNamespace{link: map[int32]rtnetlink.Link{}, addrs: map[int32][]rtnetlink.Address{}}
	}
	f[nsid].link[l.Index] = l
	f[nsid].addrs[l.Index] = nil
	for _, a := range addrs {
		f[nsid].addrs[l.Index] = append(f[nsid].addrs[l.Index], address(l.Index, a))
	}
}

func address(index int32, prefix string) rtnetlink.Address {
	p := netip.MustParsePrefix(prefix)
	return rtnetlink.Address{Index: index, Addr: p.Addr(), PrefixLength: uint8(p.Bits())}
}

const (
	testNSID = 77 // our own id in our own table
	up       = unix.IFF_UP
)

// hostVeth and podVeth are the two ends of one pair.
func hostVeth(index int32, nsid int32) rtnetlink.Link {
	return rtnetlink.Link{Index: index, Name: fmt.Sprintf("veth%d", index), Kind: "veth", MAC: fmt.Sprintf("host%02d", index), ARPHRD: unix.ARPHRD_ETHER, Flags: up, Lower: 2, LowerNSID: nsid}
}

func podVeth(host int32) rtnetlink.Link {
	return rtnetlink.Link{Index: 2, Name: "eth0", Kind: "veth", MAC: fmt.Sprintf("pods%02d", host), ARPHRD: unix.ARPHRD_ETHER, Flags: up, Lower: host, LowerNSID: testNSID}
}

func newTestKernel(t testing.TB, f fakeKernel) *kernel {
	t.Helper()
	if f[rtnetlink.NoNSID] == nil {
		f.put(rtnetlink.NoNSID, rtnetlink.Link{Index: 1, Name: "lo", Flags: up | unix.IFF_LOOPBACK})
	}
	f[testNSID] = f[rtnetlink.NoNSID]
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
	f.put(rtnetlink.NoNSID, hostVeth(10, 5))
	f.put(5, podVeth(10))
	k := newTestKernel(t, f)
	wantClaims(t, k, "")

	k.handle(&rtnetlink.Message{Type: unix.RTM_NEWADDR, NSID: 5, Address: address(2, "10.244.0.2/24")})
	wantClaims(t, k, "10.244.0.2 ASSIGNED 2/2")
	k.handle(&rtnetlink.Message{Type: unix.RTM_DELADDR, NSID: 5, Address: address(2, "10.244.0.2/24")})
	wantClaims(t, k, "")
}

func TestDeathOfANamespaceEndsItsClaimsWithoutADeladdr(t *testing.T) {
	for name, end := range map[string]func(*kernel, fakeKernel){
		"by RTM_DELNSID": func(k *kernel, f fakeKernel) {
			delete(f, 5)
			k.handle(&rtnetlink.Message{Type: unix.RTM_DELNSID, NSID: rtnetlink.NoNSID, ID: 5})
		},
		"by RTM_DELLINK of the host's veth": func(k *kernel, f fakeKernel) {
			delete(f, 5)
			k.handle(&rtnetlink.Message{Type: unix.RTM_DELLINK, NSID: rtnetlink.NoNSID, Link: hostVeth(10, 5)})
		},
		"by a listing after lost events": func(k *kernel, f fakeKernel) {
			delete(f, 5)
			if err := k.list(); err != nil {
				panic(err)
			}
		},
		"by an answer to a request": func(k *kernel, f fakeKernel) {
			delete(f, 5)
			k.handle(&rtnetlink.Message{Type: unix.RTM_NEWADDR, NSID: 5, Address: address(9, "10.244.0.3/24")})
		},
		"by reading it again": func(k *kernel, f fakeKernel) {
			delete(f, 5)
			k.reread([]netip.Addr{netip.MustParseAddr("10.244.0.2")})
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := fakeKernel{}
			f.put(rtnetlink.NoNSID, hostVeth(10, 5))
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
	f.put(rtnetlink.NoNSID, hostVeth(10, 5))
	f.put(5, podVeth(10), "10.244.0.2/24")
	k := newTestKernel(t, f)
	k.adopt(5, 4026532000, true)

	f.put(rtnetlink.NoNSID, hostVeth(11, 5))
	f.put(5, podVeth(11), "10.244.0.3/24")
	k.handle(&rtnetlink.Message{Type: unix.RTM_DELNSID, NSID: rtnetlink.NoNSID, ID: 5})
	wantClaims(t, k, "10.244.0.3 ASSIGNED 3/2") // of the new one, already
	if k.known(4026532000) {
		t.Error("the inode of a dead namespace is still known")
	}
	k.handle(&rtnetlink.Message{Type: unix.RTM_NEWNSID, NSID: rtnetlink.NoNSID, ID: 5})
	k.adopt(5, 4026532000, true)
	wantClaims(t, k, "10.244.0.3 ASSIGNED 3/2")
	if got := k.table.Namespaces.Get(3).GetNetns(); got != "4026532000" {
		t.Errorf("inode of the new namespace: got %q", got)
	}
}

func TestEndOfANamespaceToldAfterItsIDWasReusedDoesNotEndTheNewOne(t *testing.T) {
	f := fakeKernel{}
	f.put(rtnetlink.NoNSID, hostVeth(10, 5))
	f.put(5, podVeth(10), "10.244.0.2/24")
	k := newTestKernel(t, f)

	f.put(rtnetlink.NoNSID, hostVeth(11, 5))
	f.put(5, podVeth(11), "10.244.0.3/24")
	k.handle(&rtnetlink.Message{Type: unix.RTM_NEWNSID, NSID: rtnetlink.NoNSID, ID: 5})
	wantClaims(t, k, "10.244.0.3 ASSIGNED 3/2")
	k.handle(&rtnetlink.Message{Type: unix.RTM_DELNSID, NSID: rtnetlink.NoNSID, ID: 5})
	wantClaims(t, k, "10.244.0.3 ASSIGNED 3/2")

	// The file of a third one is found before anything is told of it.
	k.adopt(5, 4026532000, true)
	f.put(rtnetlink.NoNSID, hostVeth(12, 5))
	f.put(5, podVeth(12), "10.244.0.4/24")
	k.adopt(5, 4026532001, true)
	wantClaims(t, k, "10.244.0.4 ASSIGNED 4/2")
}

func TestNamespaceIDsOfOtherTablesAreIgnored(t *testing.T) {
	f := fakeKernel{}
	f.put(rtnetlink.NoNSID, hostVeth(10, 5))
	f.put(5, podVeth(10), "10.244.0.2/24")
	k := newTestKernel(t, f)
	// The pod's own table lost its id 5: that is not our id 5.
	k.handle(&rtnetlink.Message{Type: unix.RTM_DELNSID, NSID: 5, ID: 5})
	wantClaims(t, k, "10.244.0.2 ASSIGNED 2/2")
}

func TestMessagesWithOurOwnIDAreAboutUs(t *testing.T) {
	f := fakeKernel{}
	eth0 := rtnetlink.Link{Index: 2, Name: "eth0", ARPHRD: unix.ARPHRD_ETHER, Flags: up, LowerNSID: rtnetlink.NoNSID}
	f.put(rtnetlink.NoNSID, eth0)
	k := newTestKernel(t, f)
	k.handle(&rtnetlink.Message{Type: unix.RTM_NEWADDR, NSID: testNSID, Address: address(2, "192.0.2.1/24")})
	wantClaims(t, k, "192.0.2.1 ASSIGNED 1/2")
}

func TestForeignNamespaceIsNotOursUntilAVethOfOursIsInIt(t *testing.T) {
	f := fakeKernel{}
	stranger := podVeth(10)
	stranger.LowerNSID = 6 // its peer is on another node of this machine
	f.put(5, stranger, "10.244.0.2/24")
	k := newTestKernel(t, f)
	wantClaims(t, k, "")

	f.put(rtnetlink.NoNSID, hostVeth(10, 5))
	f.put(5, podVeth(10), "10.244.0.2/24")
	k.handle(&rtnetlink.Message{Type: unix.RTM_NEWLINK, NSID: rtnetlink.NoNSID, Link: hostVeth(10, 5)})
	numbered := podVeth(10)
	numbered.LowerNSID = 1 // by the pod's own table
	k.handle(&rtnetlink.Message{Type: unix.RTM_NEWLINK, NSID: 5, Link: numbered})
	wantClaims(t, k, "10.244.0.2 ASSIGNED 2/2")

	f.put(5, stranger, "10.244.0.2/24")
	delete(f[rtnetlink.NoNSID].link, 10)
	k.handle(&rtnetlink.Message{Type: unix.RTM_DELLINK, NSID: rtnetlink.NoNSID, Link: hostVeth(10, 5)})
	wantClaims(t, k, "")
}

func TestAddressIsClaimedWhileItsInterfaceIsUpAndItIsUsable(t *testing.T) {
	f := fakeKernel{}
	f.put(rtnetlink.NoNSID, hostVeth(10, 5))
	f.put(5, podVeth(10), "10.244.0.2/24")
	k := newTestKernel(t, f)

	down := podVeth(10)
	down.Flags = 0
	f[5].link[2] = down
	k.handle(&rtnetlink.Message{Type: unix.RTM_NEWLINK, NSID: 5, Link: down})
	wantClaims(t, k, "")
	f[5].link[2] = podVeth(10)
	k.handle(&rtnetlink.Message{Type: unix.RTM_NEWLINK, NSID: 5, Link: podVeth(10)})
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
		v6.Flags = step.flags
		k.handle(&rtnetlink.Message{Type: unix.RTM_NEWADDR, NSID: 5, Address: v6})
		wantClaims(t, k, step.want)
	}
	k.handle(&rtnetlink.Message{Type: unix.RTM_NEWADDR, NSID: 5, Address: address(2, "127.0.0.2/8")})
	wantClaims(t, k, "10.244.0.2 ASSIGNED 2/2, 2001:db8::2 DAD_FAILED 2/2")
}

func TestAddressWithTwoPrefixLengthsIsOneClaim(t *testing.T) {
	f := fakeKernel{}
	f.put(rtnetlink.NoNSID, hostVeth(10, 5))
	f.put(5, podVeth(10), "10.244.0.2/24")
	k := newTestKernel(t, f)
	k.handle(&rtnetlink.Message{Type: unix.RTM_NEWADDR, NSID: 5, Address: address(2, "10.244.0.2/32")})
	wantClaims(t, k, "10.244.0.2 ASSIGNED 2/2")
	k.handle(&rtnetlink.Message{Type: unix.RTM_DELADDR, NSID: 5, Address: address(2, "10.244.0.2/24")})
	wantClaims(t, k, "10.244.0.2 ASSIGNED 2/2")
	k.handle(&rtnetlink.Message{Type: unix.RTM_DELADDR, NSID: 5, Address: address(2, "10.244.0.2/32")})
	wantClaims(t, k, "")
}

func TestHolderWithTwoPeersIsOneClaimUntilBothAreGone(t *testing.T) {
	f := fakeKernel{}
	f.put(rtnetlink.NoNSID, hostVeth(10, 5))
	f.put(5, podVeth(10))
	k := newTestKernel(t, f)
	for _, typ := range []uint16{unix.RTM_NEWADDR, unix.RTM_DELADDR} {
		for i, peer := range []string{"10.244.0.3", "10.244.0.4"} {
			a := address(2, "10.244.0.2/32")
			a.Peer = netip.MustParseAddr(peer)
			k.handle(&rtnetlink.Message{Type: typ, NSID: 5, Address: a})
			if typ == unix.RTM_NEWADDR || i == 0 {
				wantClaims(t, k, "10.244.0.2 ASSIGNED 2/2")
			}
		}
	}
	wantClaims(t, k, "")
}

func TestNamespaceThatIsOursAgainAtOnceIsANewRecord(t *testing.T) {
	f := fakeKernel{}
	f.put(rtnetlink.NoNSID, hostVeth(10, 5))
	f.put(5, podVeth(10), "10.244.0.2/24")
	k := newTestKernel(t, f)
	r := tabletest.Follow(k.table)
	// CNI DEL and ADD in one sandbox, before the reporter takes anything.
	delete(f[rtnetlink.NoNSID].link, 10)
	delete(f[5].link, 2)
	k.handle(&rtnetlink.Message{Type: unix.RTM_DELLINK, NSID: rtnetlink.NoNSID, Link: hostVeth(10, 5)})
	f.put(rtnetlink.NoNSID, hostVeth(11, 5))
	f.put(5, podVeth(11), "10.244.0.3/24")
	k.handle(&rtnetlink.Message{Type: unix.RTM_NEWLINK, NSID: rtnetlink.NoNSID, Link: hostVeth(11, 5)})
	k.handle(&rtnetlink.Message{Type: unix.RTM_NEWADDR, NSID: 5, Address: address(2, "10.244.0.3/24")})
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
	f.put(rtnetlink.NoNSID, hostVeth(10, 5))
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
	f.put(rtnetlink.NoNSID, hostVeth(10, 5))
	f.put(5, podVeth(10), "10.244.0.2/24")
	k := newTestKernel(t, f)

	f.put(5, podVeth(10), "10.244.0.9/24")
	f.put(rtnetlink.NoNSID, hostVeth(11, 6))
	f.put(6, podVeth(11), "10.244.0.3/24")
	if err := k.list(); err != nil {
		t.Fatal(err)
	}
	wantClaims(t, k, "10.244.0.3 ASSIGNED 3/2, 10.244.0.9 ASSIGNED 2/2")
}

func TestFrameThatWasSentBeforeItsHolderGaveTheAddressUpIsDropped(t *testing.T) {
	f := fakeKernel{}
	f.put(rtnetlink.NoNSID, hostVeth(10, 5))
	f.put(5, podVeth(10), "10.244.0.2/24")
	k := newTestKernel(t, f)
	var forgotten []table.ClaimKey
	k.claimEnded = func(keys []table.ClaimKey) { forgotten = append(forgotten, keys...) }
	frame := bpf.Event{Ktime: monotonic(t), Ifindex: 10, Kind: bpf.Used, Addr: netip.MustParseAddr("10.244.0.2"), SHA: bpf.MAC([]byte("pods10")), Frames: 1}

	k.frame(&frame)
	wantClaims(t, k, "10.244.0.2 ASSIGNED 2/2, 10.244.0.2 USED 1/10")
	k.handle(&rtnetlink.Message{Type: unix.RTM_DELADDR, NSID: 5, Address: address(2, "10.244.0.2/24")})
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
	f.put(rtnetlink.NoNSID, hostVeth(10, 5))
	f.put(5, podVeth(10))
	k := newTestKernel(t, f)
	frame := bpf.Event{Ktime: monotonic(t), Ifindex: 10, Kind: bpf.Announced, Addr: netip.MustParseAddr("10.244.0.7"), Frames: 1}
	k.frame(&frame)
	wantClaims(t, k, "10.244.0.7 ANNOUNCED 1/10")
	k.handle(&rtnetlink.Message{Type: unix.RTM_DELLINK, NSID: rtnetlink.NoNSID, Link: hostVeth(10, 5)})
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
	foreign.LowerNSID = 0 // ours, in the numbering of the pod
	for name, resolve := range map[string]func(*kernel){
		"our end tells": func(k *kernel) {
			k.handle(&rtnetlink.Message{Type: unix.RTM_NEWLINK, NSID: rtnetlink.NoNSID, Link: hostVeth(10, 5)})
		},
		"an address depends on it": func(k *kernel) {
			k.handle(&rtnetlink.Message{Type: unix.RTM_NEWADDR, NSID: 5, Address: address(2, "10.244.0.2/24")})
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := fakeKernel{}
			f.put(rtnetlink.NoNSID, rtnetlink.Link{Index: 1, Name: "lo", Flags: up | unix.IFF_LOOPBACK})
			f.put(5, rtnetlink.Link{Index: 1, Name: "lo", Flags: up | unix.IFF_LOOPBACK, LowerNSID: rtnetlink.NoNSID})
			k := newTestKernel(t, f)

			alone := hostVeth(10, rtnetlink.NoNSID)
			alone.Lower = 0 // as it is told before the pair is complete
			k.handle(&rtnetlink.Message{Type: unix.RTM_NEWLINK, NSID: rtnetlink.NoNSID, Link: alone})
			f.put(rtnetlink.NoNSID, hostVeth(10, 5))
			f.put(5, podVeth(10))
			k.handle(&rtnetlink.Message{Type: unix.RTM_NEWLINK, NSID: 5, Link: foreign})
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
	f.put(rtnetlink.NoNSID, hostVeth(10, 5))
	f.put(5, podVeth(10), "10.244.0.2/24")
	k := newTestKernel(t, f)
	k.adopt(5, 4000, true)
	k.setNames(map[uint64]*ipwitnessv1.Workload{4000: {Name: "pod1"}}, nil, nil)
	k.setNames(map[uint64]*ipwitnessv1.Workload{}, nil, nil)
	if got := k.table.Namespaces.Get(2).GetWorkload().GetName(); got != "pod1" {
		t.Errorf("name after its file is gone: got %q, want pod1", got)
	}
}
