package kernel

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
	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/agenttest"
)

func newTestKernel(t testing.TB, f agenttest.Fake) *Mirror {
	t.Helper()
	f.Own()
	k := New(slog.New(slog.DiscardHandler), table.New(), f, agenttest.OwnNSID, 1, time.Unix(0, 0), "node1")
	if err := k.List(); err != nil {
		t.Fatal("list: ", err)
	}
	return k
}

// wireKey returns the key of a claim by frames that entered through an interface.
func wireKey(index int32, kind ipwitnessv1.Evidence_Kind, addr, mac string) table.ClaimKey {
	return table.ClaimKey{
		Address: netip.MustParseAddr(addr), Kind: kind, At: table.InterfaceKey{Namespace: table.OwnNamespace, Index: index}, MAC: mac,
	}
}

// seenNow returns a claim by one frame that was seen now.
func seenNow() table.Claim {
	now := time.Now()
	return table.Claim{First: now, Last: now, Count: 1}
}

// claims returns the claims in the table: "address kind namespace/interface".
func claims(k *Mirror) string {
	var out []string
	for c := range k.table.Claims() {
		out = append(out, fmt.Sprintf("%s %s %d/%d", c.Address, c.Kind, c.At.Namespace, c.At.Index))
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}

func wantClaims(t *testing.T, k *Mirror, want string) {
	t.Helper()
	if got := claims(k); got != want {
		t.Fatalf("claims: got %q, want %q", got, want)
	}
}

func TestAddressInAPodIsClaimedAsItIsAssigned(t *testing.T) {
	f := agenttest.Fake{}
	f.Put(rtnetlink.NoNSID, agenttest.HostVeth(10, 5))
	f.Put(5, agenttest.PodVeth(10))
	k := newTestKernel(t, f)
	wantClaims(t, k, "")

	k.Handle(&rtnetlink.Message{Type: unix.RTM_NEWADDR, NSID: 5, Address: agenttest.Address(2, "10.244.0.2/24")})
	wantClaims(t, k, "10.244.0.2 ASSIGNED 2/2")
	k.Handle(&rtnetlink.Message{Type: unix.RTM_DELADDR, NSID: 5, Address: agenttest.Address(2, "10.244.0.2/24")})
	wantClaims(t, k, "")
}

func TestEndOfANamespaceEndsItsClaimsWithoutADeladdr(t *testing.T) {
	for name, end := range map[string]func(*Mirror, agenttest.Fake){
		"by RTM_DELNSID": func(k *Mirror, f agenttest.Fake) {
			delete(f, 5)
			k.Handle(&rtnetlink.Message{Type: unix.RTM_DELNSID, NSID: rtnetlink.NoNSID, ID: 5})
		},
		"by RTM_DELLINK of the host's veth": func(k *Mirror, f agenttest.Fake) {
			delete(f, 5)
			k.Handle(&rtnetlink.Message{Type: unix.RTM_DELLINK, NSID: rtnetlink.NoNSID, Link: agenttest.HostVeth(10, 5)})
		},
		"by a listing after lost events": func(k *Mirror, f agenttest.Fake) {
			delete(f, 5)
			if err := k.List(); err != nil {
				panic(err)
			}
		},
		"by an answer to a request": func(k *Mirror, f agenttest.Fake) {
			delete(f, 5)
			k.Handle(&rtnetlink.Message{Type: unix.RTM_NEWADDR, NSID: 5, Address: agenttest.Address(9, "10.244.0.3/24")})
		},
		"by reading it again": func(k *Mirror, f agenttest.Fake) {
			delete(f, 5)
			k.Reread([]netip.Addr{netip.MustParseAddr("10.244.0.2")})
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := agenttest.Fake{}
			f.Put(rtnetlink.NoNSID, agenttest.HostVeth(10, 5))
			f.Put(5, agenttest.PodVeth(10), "10.244.0.2/24")
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
	f := agenttest.Fake{}
	f.Put(rtnetlink.NoNSID, agenttest.HostVeth(10, 5))
	f.Put(5, agenttest.PodVeth(10), "10.244.0.2/24")
	k := newTestKernel(t, f)
	k.Adopt(5, 4026532000, true, false)

	f.Put(rtnetlink.NoNSID, agenttest.HostVeth(11, 5))
	f.Put(5, agenttest.PodVeth(11), "10.244.0.3/24")
	k.Handle(&rtnetlink.Message{Type: unix.RTM_DELNSID, NSID: rtnetlink.NoNSID, ID: 5})
	wantClaims(t, k, "10.244.0.3 ASSIGNED 3/2") // already of the new namespace
	if k.Known(4026532000) {
		t.Error("the inode of a dead namespace is still known")
	}
	k.Handle(&rtnetlink.Message{Type: unix.RTM_NEWNSID, NSID: rtnetlink.NoNSID, ID: 5})
	k.Adopt(5, 4026532000, true, false)
	wantClaims(t, k, "10.244.0.3 ASSIGNED 3/2")
	if got := k.table.Namespaces.Get(3).GetNetns(); got != "4026532000" {
		t.Errorf("inode of the new namespace: got %q", got)
	}
}

func TestLateEndOfANamespaceDoesNotEndTheNextWithItsID(t *testing.T) {
	f := agenttest.Fake{}
	f.Put(rtnetlink.NoNSID, agenttest.HostVeth(10, 5))
	f.Put(5, agenttest.PodVeth(10), "10.244.0.2/24")
	k := newTestKernel(t, f)

	f.Put(rtnetlink.NoNSID, agenttest.HostVeth(11, 5))
	f.Put(5, agenttest.PodVeth(11), "10.244.0.3/24")
	k.Handle(&rtnetlink.Message{Type: unix.RTM_NEWNSID, NSID: rtnetlink.NoNSID, ID: 5})
	wantClaims(t, k, "10.244.0.3 ASSIGNED 3/2")
	k.Handle(&rtnetlink.Message{Type: unix.RTM_DELNSID, NSID: rtnetlink.NoNSID, ID: 5})
	wantClaims(t, k, "10.244.0.3 ASSIGNED 3/2")

	// The file of a third namespace is found before there is a message about that namespace.
	k.Adopt(5, 4026532000, true, false)
	f.Put(rtnetlink.NoNSID, agenttest.HostVeth(12, 5))
	f.Put(5, agenttest.PodVeth(12), "10.244.0.4/24")
	k.Adopt(5, 4026532001, true, false)
	wantClaims(t, k, "10.244.0.4 ASSIGNED 4/2")
}

func TestNamespaceIDsOfOtherTablesAreIgnored(t *testing.T) {
	f := agenttest.Fake{}
	f.Put(rtnetlink.NoNSID, agenttest.HostVeth(10, 5))
	f.Put(5, agenttest.PodVeth(10), "10.244.0.2/24")
	k := newTestKernel(t, f)
	// The pod's own table lost its id 5, which is not our id 5.
	k.Handle(&rtnetlink.Message{Type: unix.RTM_DELNSID, NSID: 5, ID: 5})
	wantClaims(t, k, "10.244.0.2 ASSIGNED 2/2")
}

func TestMessagesWithOurOwnIDAreAboutUs(t *testing.T) {
	f := agenttest.Fake{}
	eth0 := rtnetlink.Link{Index: 2, Name: "eth0", ARPHRD: unix.ARPHRD_ETHER, Flags: agenttest.Up, LowerNSID: rtnetlink.NoNSID}
	f.Put(rtnetlink.NoNSID, eth0)
	k := newTestKernel(t, f)
	k.Handle(&rtnetlink.Message{Type: unix.RTM_NEWADDR, NSID: agenttest.OwnNSID, Address: agenttest.Address(2, "192.0.2.1/24")})
	wantClaims(t, k, "192.0.2.1 ASSIGNED 1/2")
}

func TestForeignNamespaceIsNotOursUntilAVethOfOursIsInIt(t *testing.T) {
	f := agenttest.Fake{}
	external := agenttest.PodVeth(10)
	external.LowerNSID = 6 // its peer belongs to another node on this machine
	f.Put(5, external, "10.244.0.2/24")
	k := newTestKernel(t, f)
	wantClaims(t, k, "")

	f.Put(rtnetlink.NoNSID, agenttest.HostVeth(10, 5))
	f.Put(5, agenttest.PodVeth(10), "10.244.0.2/24")
	k.Handle(&rtnetlink.Message{Type: unix.RTM_NEWLINK, NSID: rtnetlink.NoNSID, Link: agenttest.HostVeth(10, 5)})
	numbered := agenttest.PodVeth(10)
	numbered.LowerNSID = 1 // as numbered in the pod's own table
	k.Handle(&rtnetlink.Message{Type: unix.RTM_NEWLINK, NSID: 5, Link: numbered})
	wantClaims(t, k, "10.244.0.2 ASSIGNED 2/2")

	f.Put(5, external, "10.244.0.2/24")
	delete(f[rtnetlink.NoNSID].Links, 10)
	k.Handle(&rtnetlink.Message{Type: unix.RTM_DELLINK, NSID: rtnetlink.NoNSID, Link: agenttest.HostVeth(10, 5)})
	wantClaims(t, k, "")
}

func TestAddressIsClaimedWhileItsInterfaceIsUpAndItIsUsable(t *testing.T) {
	f := agenttest.Fake{}
	f.Put(rtnetlink.NoNSID, agenttest.HostVeth(10, 5))
	f.Put(5, agenttest.PodVeth(10), "10.244.0.2/24")
	k := newTestKernel(t, f)

	for _, step := range []struct {
		flags     uint32
		protoDown bool
		want      string
	}{
		{0, false, ""},
		{agenttest.Up, false, "10.244.0.2 ASSIGNED 2/2"},
		{agenttest.Up, true, ""}, // a backup router of FRR
		{agenttest.Up | unix.IFF_LOWER_UP, true, "10.244.0.2 ASSIGNED 2/2"},
		{unix.IFF_LOWER_UP, true, ""},
		{agenttest.Up | unix.IFF_LOWER_UP, false, "10.244.0.2 ASSIGNED 2/2"},
		{agenttest.Up, false, "10.244.0.2 ASSIGNED 2/2"}, // a cable was pulled
	} {
		eth0 := agenttest.PodVeth(10)
		eth0.Flags, eth0.ProtoDown = step.flags, step.protoDown
		f[5].Links[2] = eth0
		k.Handle(&rtnetlink.Message{Type: unix.RTM_NEWLINK, NSID: 5, Link: eth0})
		wantClaims(t, k, step.want)
	}

	v6 := agenttest.Address(2, "2001:db8::2/64")
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
		k.Handle(&rtnetlink.Message{Type: unix.RTM_NEWADDR, NSID: 5, Address: v6})
		wantClaims(t, k, step.want)
	}
	k.Handle(&rtnetlink.Message{Type: unix.RTM_NEWADDR, NSID: 5, Address: agenttest.Address(2, "127.0.0.2/8")})
	wantClaims(t, k, "10.244.0.2 ASSIGNED 2/2, 2001:db8::2 DAD_FAILED 2/2")
}

func TestAddressWithTwoPrefixLengthsIsOneClaim(t *testing.T) {
	f := agenttest.Fake{}
	f.Put(rtnetlink.NoNSID, agenttest.HostVeth(10, 5))
	f.Put(5, agenttest.PodVeth(10), "10.244.0.2/24")
	k := newTestKernel(t, f)
	k.Handle(&rtnetlink.Message{Type: unix.RTM_NEWADDR, NSID: 5, Address: agenttest.Address(2, "10.244.0.2/32")})
	wantClaims(t, k, "10.244.0.2 ASSIGNED 2/2")
	k.Handle(&rtnetlink.Message{Type: unix.RTM_DELADDR, NSID: 5, Address: agenttest.Address(2, "10.244.0.2/24")})
	wantClaims(t, k, "10.244.0.2 ASSIGNED 2/2")
	k.Handle(&rtnetlink.Message{Type: unix.RTM_DELADDR, NSID: 5, Address: agenttest.Address(2, "10.244.0.2/32")})
	wantClaims(t, k, "")
}

func TestHolderWithTwoPeersIsOneClaimUntilBothAreGone(t *testing.T) {
	f := agenttest.Fake{}
	f.Put(rtnetlink.NoNSID, agenttest.HostVeth(10, 5))
	f.Put(5, agenttest.PodVeth(10))
	k := newTestKernel(t, f)
	for _, typ := range []uint16{unix.RTM_NEWADDR, unix.RTM_DELADDR} {
		for i, peer := range []string{"10.244.0.3", "10.244.0.4"} {
			a := agenttest.Address(2, "10.244.0.2/32")
			a.Peer = netip.MustParseAddr(peer)
			k.Handle(&rtnetlink.Message{Type: typ, NSID: 5, Address: a})
			if typ == unix.RTM_NEWADDR || i == 0 {
				wantClaims(t, k, "10.244.0.2 ASSIGNED 2/2")
			}
		}
	}
	wantClaims(t, k, "")
}

func TestNamespaceThatIsOursAgainAtOnceIsANewRecord(t *testing.T) {
	f := agenttest.Fake{}
	f.Put(rtnetlink.NoNSID, agenttest.HostVeth(10, 5))
	f.Put(5, agenttest.PodVeth(10), "10.244.0.2/24")
	k := newTestKernel(t, f)
	r := agenttest.Follow(k.table)
	// CNI DEL and ADD in one sandbox, before the reporter takes any change.
	delete(f[rtnetlink.NoNSID].Links, 10)
	delete(f[5].Links, 2)
	k.Handle(&rtnetlink.Message{Type: unix.RTM_DELLINK, NSID: rtnetlink.NoNSID, Link: agenttest.HostVeth(10, 5)})
	f.Put(rtnetlink.NoNSID, agenttest.HostVeth(11, 5))
	f.Put(5, agenttest.PodVeth(11), "10.244.0.3/24")
	k.Handle(&rtnetlink.Message{Type: unix.RTM_NEWLINK, NSID: rtnetlink.NoNSID, Link: agenttest.HostVeth(11, 5)})
	k.Handle(&rtnetlink.Message{Type: unix.RTM_NEWADDR, NSID: 5, Address: agenttest.Address(2, "10.244.0.3/24")})
	m := r.Take(time.Now())
	ended := false
	for _, n := range m.GetNamespaces() {
		ended = ended || n.GetId() == 2 && n.GetGone()
	}
	if !ended {
		t.Errorf("the end of the first record was not sent: %v", m.GetNamespaces())
	}
	wantClaims(t, k, "10.244.0.3 ASSIGNED 3/2")
}

func TestAddressThatIsGoneOnRereadIsNoLongerClaimed(t *testing.T) {
	f := agenttest.Fake{}
	f.Put(rtnetlink.NoNSID, agenttest.HostVeth(10, 5))
	f.Put(5, agenttest.PodVeth(10), "10.244.0.2/24", "10.244.0.3/24")
	k := newTestKernel(t, f)
	r := agenttest.Follow(k.table)

	f.Put(5, agenttest.PodVeth(10), "10.244.0.3/24") // its RTM_DELADDR is still in the queue
	k.Reread([]netip.Addr{netip.MustParseAddr("10.244.0.2"), netip.MustParseAddr("10.244.0.3")})
	wantClaims(t, k, "10.244.0.3 ASSIGNED 2/2")
	m := r.Take(time.Now())
	sent := map[bool]string{}
	for _, c := range m.GetClaims() {
		addr, _ := netip.AddrFromSlice(c.GetAddress())
		sent[c.GetGone()] += addr.String()
	}
	if sent[true] != "10.244.0.2" || sent[false] != "10.244.0.3" {
		t.Errorf("changes: got %q removed and %q added, want 10.244.0.2 and 10.244.0.3", sent[true], sent[false])
	}
}

func TestListingRecoversLostEvents(t *testing.T) {
	f := agenttest.Fake{}
	f.Put(rtnetlink.NoNSID, agenttest.HostVeth(10, 5))
	f.Put(5, agenttest.PodVeth(10), "10.244.0.2/24")
	k := newTestKernel(t, f)

	f.Put(5, agenttest.PodVeth(10), "10.244.0.9/24")
	f.Put(rtnetlink.NoNSID, agenttest.HostVeth(11, 6))
	f.Put(6, agenttest.PodVeth(11), "10.244.0.3/24")
	if err := k.List(); err != nil {
		t.Fatal(err)
	}
	wantClaims(t, k, "10.244.0.3 ASSIGNED 3/2, 10.244.0.9 ASSIGNED 2/2")
}

func TestFrameFromBeforeTheEndOfItsHolderIsDropped(t *testing.T) {
	f := agenttest.Fake{}
	f.Put(rtnetlink.NoNSID, agenttest.HostVeth(10, 5))
	f.Put(5, agenttest.PodVeth(10), "10.244.0.2/24")
	k := newTestKernel(t, f)
	var forgotten []table.ClaimKey
	k.ClaimEnded = func(keys []table.ClaimKey) { forgotten = append(forgotten, keys...) }
	frame, sent := wireKey(10, ipwitnessv1.Evidence_USED, "10.244.0.2", "pods10"), seenNow()

	k.AddFrame(frame, sent)
	wantClaims(t, k, "10.244.0.2 ASSIGNED 2/2, 10.244.0.2 USED 1/10")
	k.Handle(&rtnetlink.Message{Type: unix.RTM_DELADDR, NSID: 5, Address: agenttest.Address(2, "10.244.0.2/24")})
	wantClaims(t, k, "")
	if len(forgotten) != 1 || forgotten[0] != frame {
		t.Errorf("bindings that the observer must forget: got %v", forgotten)
	}
	k.AddFrame(frame, sent)
	wantClaims(t, k, "")
	if len(forgotten) != 2 || forgotten[1] != frame {
		t.Errorf("bindings that the observer is to forget after the late frame: got %v", forgotten)
	}
	k.AddFrame(frame, seenNow())
	wantClaims(t, k, "10.244.0.2 USED 1/10")

	frame.VLAN = 10
	k.AddFrame(frame, seenNow())
	if k.table.Links.Get("veth10.10") == nil {
		t.Errorf("links after a frame of VLAN 10: got %v", maps.Collect(k.table.Links.All()))
	}
	k.Expire(time.Now().Add(time.Second))
	wantClaims(t, k, "")
	if k.table.Links.Get("veth10.10") != nil || k.table.Links.Get("veth10") == nil {
		t.Errorf("links after its claims ended: got %v, want only veth10", maps.Collect(k.table.Links.All()))
	}
}

func TestFrameOfAPortThatEndedIsDropped(t *testing.T) {
	f := agenttest.Fake{}
	f.Put(rtnetlink.NoNSID, agenttest.HostVeth(10, 5))
	f.Put(5, agenttest.PodVeth(10))
	k := newTestKernel(t, f)
	frame, sent := wireKey(10, ipwitnessv1.Evidence_ANNOUNCED, "10.244.0.7", "pods10"), seenNow()
	k.AddFrame(frame, sent)
	wantClaims(t, k, "10.244.0.7 ANNOUNCED 1/10")
	k.Handle(&rtnetlink.Message{Type: unix.RTM_DELLINK, NSID: rtnetlink.NoNSID, Link: agenttest.HostVeth(10, 5)})
	wantClaims(t, k, "")
	k.AddFrame(frame, sent)
	wantClaims(t, k, "")
}

func TestPeerThatOnlyAnotherTableNumbersIsResolvedByOurEndOrByAnAddress(t *testing.T) {
	foreign := agenttest.PodVeth(10)
	foreign.LowerNSID = 0 // our own namespace, as numbered in the pod's table
	for name, resolve := range map[string]func(*Mirror){
		"our end tells": func(k *Mirror) {
			k.Handle(&rtnetlink.Message{Type: unix.RTM_NEWLINK, NSID: rtnetlink.NoNSID, Link: agenttest.HostVeth(10, 5)})
		},
		"an address depends on it": func(k *Mirror) {
			k.Handle(&rtnetlink.Message{Type: unix.RTM_NEWADDR, NSID: 5, Address: agenttest.Address(2, "10.244.0.2/24")})
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := agenttest.Fake{}
			f.Put(rtnetlink.NoNSID, rtnetlink.Link{Index: 1, Name: "lo", Flags: agenttest.Up | unix.IFF_LOOPBACK})
			f.Put(5, rtnetlink.Link{Index: 1, Name: "lo", Flags: agenttest.Up | unix.IFF_LOOPBACK, LowerNSID: rtnetlink.NoNSID})
			k := newTestKernel(t, f)

			alone := agenttest.HostVeth(10, rtnetlink.NoNSID)
			alone.Lower = 0 // as reported before the pair is complete
			k.Handle(&rtnetlink.Message{Type: unix.RTM_NEWLINK, NSID: rtnetlink.NoNSID, Link: alone})
			f.Put(rtnetlink.NoNSID, agenttest.HostVeth(10, 5))
			f.Put(5, agenttest.PodVeth(10))
			k.Handle(&rtnetlink.Message{Type: unix.RTM_NEWLINK, NSID: 5, Link: foreign})
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
	f := agenttest.Fake{}
	f.Put(rtnetlink.NoNSID, agenttest.HostVeth(10, 5))
	f.Put(5, agenttest.PodVeth(10), "10.244.0.2/24")
	k := newTestKernel(t, f)
	k.Adopt(5, 4000, true, false)
	k.SetNames(map[uint64]*ipwitnessv1.Workload{4000: {Name: "pod1"}}, nil, nil, nil)
	k.SetNames(map[uint64]*ipwitnessv1.Workload{}, nil, nil, nil)
	if got := k.table.Namespaces.Get(2).GetWorkload().GetName(); got != "pod1" {
		t.Errorf("name after its file is gone: got %q, want pod1", got)
	}
}
