package kernel

import (
	"cmp"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ipwitness/ipwitness/agent/rtnetlink"
	"github.com/ipwitness/ipwitness/agent/table"
	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/agenttest"
)

func TestChoiceOfTwoNetworksIsTheSameOnAllNodes(t *testing.T) {
	g := InterfaceAddress{"eth0", netip.MustParseAddr("10.0.0.2")}
	a, b := Networks{g: {Name: "a"}}, Networks{g: {Name: "b"}}
	if got, same := a.With(b)[g], b.With(a)[g]; got.Name != "a" || same.Name != "a" {
		t.Errorf("networks: got %q and %q, want a", got.Name, same.Name)
	}
	if a[g].Name != "a" || b[g].Name != "b" {
		t.Error("what was added to has changed")
	}
	if got := Networks(nil).With(b)[g]; got.Name != "b" {
		t.Errorf("one network: got %q, want b", got.Name)
	}
}

func TestNetworkOfAnAddressFollowsTheResult(t *testing.T) {
	f := agenttest.Fake{}
	f.Put(rtnetlink.NoNSID, agenttest.HostVeth(10, 5))
	f.Put(5, agenttest.PodVeth(10), "10.0.0.2/24", "fd00::2/64", "10.0.0.9/24")
	k := newTestKernel(t, f)
	k.Adopt(5, 4000, true, false)
	r := agenttest.Follow(k.table)
	result := map[uint64]Networks{4000: {
		{"eth0", netip.MustParseAddr("10.0.0.2")}: {Name: "pods"},
		{"eth0", netip.MustParseAddr("fd00::2")}:  {Name: "pods"},
		{"eth1", netip.MustParseAddr("10.0.0.9")}: {Name: "pods"},
		{"eth0", netip.MustParseAddr("10.0.0.3")}: {Name: "pods"},
	}}
	give := func(by map[uint64]Networks) {
		k.SetNames(map[uint64]*ipwitnessv1.Workload{}, maps.Clone(by), map[uint64]Intended{}, nil)
	}

	give(result) // after the address
	wantNetworks(t, k.table, "10.0.0.2 ASSIGNED pods, 10.0.0.9 ASSIGNED , fd00::2 ASSIGNED pods")
	m := r.Take(time.Now())
	if len(m.GetClaims()) != 2 || m.GetClaims()[0].GetNetwork() != "pods" || m.GetClaims()[0].GetCount() != 1 {
		t.Errorf("changes: got %v, want two claims with their network, seen once", m.GetClaims())
	}
	give(result)
	if m := r.Take(time.Now()); m != nil {
		t.Errorf("after no change: got %v, want nothing", m)
	}
	k.Handle(&rtnetlink.Message{Type: unix.RTM_NEWADDR, NSID: 5, Address: agenttest.Address(2, "10.0.0.3/24")}) // before the address
	wantNetworks(t, k.table, "10.0.0.2 ASSIGNED pods, 10.0.0.3 ASSIGNED pods, 10.0.0.9 ASSIGNED , fd00::2 ASSIGNED pods")

	failed := agenttest.Address(2, "10.0.0.3/24")
	failed.Flags = unix.IFA_F_DADFAILED
	k.Handle(&rtnetlink.Message{Type: unix.RTM_NEWADDR, NSID: 5, Address: failed})
	wantNetworks(t, k.table, "10.0.0.2 ASSIGNED pods, 10.0.0.3 DAD_FAILED , 10.0.0.9 ASSIGNED , fd00::2 ASSIGNED pods")

	renamed := agenttest.PodVeth(10)
	renamed.Name = "eth1"
	k.Handle(&rtnetlink.Message{Type: unix.RTM_NEWLINK, NSID: 5, Link: renamed})
	wantNetworks(t, k.table, "10.0.0.2 ASSIGNED , 10.0.0.3 DAD_FAILED , 10.0.0.9 ASSIGNED pods, fd00::2 ASSIGNED ")

	// A namespace keeps its networks even if no source names them any more.
	give(map[uint64]Networks{4000: {{"eth1", netip.MustParseAddr("10.0.0.2")}: {Name: "other"}}})
	wantNetworks(t, k.table, "10.0.0.2 ASSIGNED other, 10.0.0.3 DAD_FAILED , 10.0.0.9 ASSIGNED pods, fd00::2 ASSIGNED ")
	give(map[uint64]Networks{})
	wantNetworks(t, k.table, "10.0.0.2 ASSIGNED other, 10.0.0.3 DAD_FAILED , 10.0.0.9 ASSIGNED pods, fd00::2 ASSIGNED ")
}

func TestNamespaceThatIsFoundLateHasItsNetwork(t *testing.T) {
	f := agenttest.Fake{}
	f.Put(rtnetlink.NoNSID, agenttest.HostVeth(10, 5))
	f.Put(5, agenttest.PodVeth(10), "10.0.0.2/24")
	k := newTestKernel(t, f)
	g := InterfaceAddress{"eth0", netip.MustParseAddr("10.0.0.2")}
	k.SetNames(map[uint64]*ipwitnessv1.Workload{4000: {Name: "web-0"}}, map[uint64]Networks{4000: {g: {Name: "pods"}}}, map[uint64]Intended{4000: {g: "cri"}}, nil)
	wantNetworks(t, k.table, "10.0.0.2 ASSIGNED ")
	k.Adopt(5, 4000, true, false)
	wantNetworks(t, k.table, "10.0.0.2 ASSIGNED pods")
	// Another namespace may get the inode next.
	k.Handle(&rtnetlink.Message{Type: unix.RTM_DELLINK, NSID: rtnetlink.NoNSID, Link: agenttest.HostVeth(10, 5)})
	delete(f, 5)
	k.Handle(&rtnetlink.Message{Type: unix.RTM_DELNSID, NSID: rtnetlink.NoNSID, ID: 5})
	if len(k.networks)+len(k.names)+len(k.intended) != 0 {
		t.Errorf("after the end of the namespace: got networks %v, names %v and intended addresses %v, want none", k.networks, k.names, k.intended)
	}
}

// intended returns the addresses that a namespace is reported to lack.
func intended(k *Mirror, inode uint64) string {
	var all []string
	for _, i := range k.table.Namespaces.Get(k.inodes[inode].id).GetIntended() {
		all = append(all, fmt.Sprint(i.GetAddress(), " ", i.GetInterface(), " by ", i.GetSource()))
	}
	return strings.Join(all, ", ")
}

func TestMissingIntendedAddressIsReportedAfterAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := agenttest.Fake{}
		f.Put(rtnetlink.NoNSID, agenttest.HostVeth(10, 5))
		f.Put(5, agenttest.PodVeth(10), "10.0.0.2/24")
		k := newTestKernel(t, f)
		k.Adopt(5, 4000, true, false)
		g := func(ip string) InterfaceAddress { return InterfaceAddress{"eth0", netip.MustParseAddr(ip)} }
		mean := Intended{g("10.0.0.2"): "cri", g("fd00::2"): "cni-result"}
		say := func(m Intended) {
			k.SetNames(map[uint64]*ipwitnessv1.Workload{4000: {Name: "web-0"}}, nil, map[uint64]Intended{4000: m}, nil)
		}
		var again []time.Duration
		k.CompareAgain = func(d time.Duration) { again = append(again, d) }
		want := func(when, want string) {
			t.Helper()
			if got := intended(k, 4000); got != want {
				t.Errorf("%s: got %q, want %q", when, got, want)
			}
		}
		add := func(ip string) {
			k.Handle(&rtnetlink.Message{Type: unix.RTM_NEWADDR, NSID: 5, Address: agenttest.Address(2, ip)})
		}
		remove := func(ip string) {
			k.Handle(&rtnetlink.Message{Type: unix.RTM_DELADDR, NSID: 5, Address: agenttest.Address(2, ip)})
		}
		say(mean)
		want("at once", "")
		if len(again) != 1 || again[0] != intendedAfter {
			t.Errorf("repeated searches: got %v, want one after %s", again, intendedAfter)
		}
		time.Sleep(intendedAfter - time.Second)
		say(mean)
		want("soon after", "")
		if len(again) != 2 || again[1] != time.Second {
			t.Errorf("repeated searches: got %v, want one more after the remaining second", again)
		}
		time.Sleep(time.Second)
		say(mean)
		want("later", "fd00::2 eth0 by cni-result")
		add("fd00::2/64")
		want("with the address", "")
		remove("10.0.0.2/24")
		remove("fd00::2/64") // the pod ends, and its addresses are removed first
		want("at the end", "")
		time.Sleep(intendedAfter)
		say(mean)
		want("where it does not end", "10.0.0.2 eth0 by cri, fd00::2 eth0 by cni-result")
		say(Intended{g("10.0.0.2"): "cri"})
		want("when one is not meant any more", "10.0.0.2 eth0 by cri")
		many := Intended{}
		for i := range 1000 {
			many[g(fmt.Sprintf("10.1.%d.%d", i/250, i%250))] = "cni-result"
		}
		say(many)
		time.Sleep(intendedAfter)
		say(many)
		if got := strings.Count(intended(k, 4000), "by"); got != mostIntended {
			t.Errorf("too many addresses: got %d, want %d", got, mostIntended)
		}
		say(nil)
		want("when none is", "")
	})
}

// wantNetworks compares the networks of all claims.
func wantNetworks(t *testing.T, tab *table.Table, want string) {
	t.Helper()
	if got := agenttest.Networks(tab); got != want {
		t.Errorf("networks: got %q, want %q", got, want)
	}
}

func TestNamesOfAnEndedNamespaceDoNotApplyToTheNext(t *testing.T) {
	f := agenttest.Fake{}
	f.Put(rtnetlink.NoNSID, agenttest.HostVeth(10, 5))
	f.Put(5, agenttest.PodVeth(10), "10.0.0.2/24")
	k := newTestKernel(t, f)
	k.Adopt(5, 4000, true, false)
	k.BeginNames()
	other := agenttest.PodVeth(10)
	other.MAC = "others"
	f.Put(5, other, "10.0.0.2/24")
	k.Handle(&rtnetlink.Message{Type: unix.RTM_NEWNSID, NSID: rtnetlink.NoNSID, ID: 5})
	k.Adopt(5, 4000, true, false) // the next namespace has the same inode
	if !k.Reused()[4000] {
		t.Error("inodes of namespaces that ended: got none, want 4000")
	}
	g := InterfaceAddress{"eth0", netip.MustParseAddr("10.0.0.2")}
	say := func() {
		k.SetNames(map[uint64]*ipwitnessv1.Workload{4000: {Name: "web-0"}}, map[uint64]Networks{4000: {g: {Name: "pods"}}}, map[uint64]Intended{4000: {g: "cri"}}, nil)
	}
	say()
	if got := agenttest.Workload(k.table, 4000); got != nil || len(k.networks)+len(k.intended) != 0 {
		t.Errorf("the next namespace: got workload %v, networks %v, intended addresses %v, want none", got, k.networks, k.intended)
	}
	k.BeginNames() // from now on, names are about the next namespace
	say()
	if got := agenttest.Workload(k.table, 4000).GetName(); got != "web-0" || len(k.networks) != 1 {
		t.Errorf("the next namespace, in the next search: got name %q and networks %v", got, k.networks)
	}
}

// claimed returns the claims that were reported, with their kinds and since when they count.
func claimed(m *ipwitnessv1.ReportRequest, start time.Time) string {
	var all []string
	for _, c := range m.GetClaims() {
		if c.GetGone() {
			continue
		}
		a, _ := netip.AddrFromSlice(c.GetAddress())
		all = append(all, fmt.Sprint(a, " ", c.GetKind(), " ", c.GetAssignedAt().AsTime().Sub(start).Round(time.Second)))
	}
	return strings.Join(all, ", ")
}

func TestTimeWithoutUsingAnAddressIsNoTenure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		f := agenttest.Fake{}
		f.Put(rtnetlink.NoNSID, agenttest.HostVeth(10, 5))
		down := agenttest.PodVeth(10)
		down.Flags &^= unix.IFF_UP
		f.Put(5, down, "fd00::2/64")
		k := New(slog.New(slog.DiscardHandler), table.New(), f, agenttest.OwnNSID, 1, start, "node1")
		if err := k.List(); err != nil {
			t.Fatal(err)
		}
		k.Adopt(5, 4000, true, false)
		r := agenttest.Follow(k.table)
		set := func(flags uint32, created time.Duration) {
			a := agenttest.Address(2, "fd00::2/64")
			a.Flags, a.Created = flags, created
			k.Handle(&rtnetlink.Message{Type: unix.RTM_NEWADDR, NSID: 5, Address: a})
		}
		up := func(flags uint32) {
			l := agenttest.PodVeth(10)
			l.Flags = flags
			k.Handle(&rtnetlink.Message{Type: unix.RTM_NEWLINK, NSID: 5, Link: l})
		}
		want := func(when, want string) {
			t.Helper()
			if got := claimed(r.Take(time.Now()), start); got != want {
				t.Errorf("%s: got %q, want %q", when, got, want)
			}
		}
		set(0, 0)
		time.Sleep(6 * time.Second)
		want("on a link that is down", "")
		up(unix.IFF_UP)
		want("when the link is up", "fd00::2 ASSIGNED 6s")
		time.Sleep(6 * time.Second)
		k.Reread([]netip.Addr{netip.MustParseAddr("fd00::2")})
		want("read again", "fd00::2 ASSIGNED 6s")
		up(0)
		time.Sleep(time.Second)
		up(unix.IFF_UP)
		want("when it is up again", "fd00::2 ASSIGNED 13s")
		k.Handle(&rtnetlink.Message{Type: unix.RTM_DELADDR, NSID: 5, Address: agenttest.Address(2, "fd00::2/64")})
		set(unix.IFA_F_TENTATIVE, 13*time.Second)
		time.Sleep(time.Second)
		set(0, 13*time.Second)
		want("after detection of duplicates, which is part of setting it", "fd00::2 ASSIGNED 13s")
	})
}

func TestAddressThatTheKernelDeletedAsADuplicateIsReportedForAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := agenttest.Fake{}
		f.Put(rtnetlink.NoNSID, agenttest.HostVeth(10, 5))
		f.Put(5, agenttest.PodVeth(10))
		k := newTestKernel(t, f)
		k.Adopt(5, 4000, true, false)
		change := func(typ uint16, flags uint32) {
			a := agenttest.Address(2, "fd00::2/64")
			a.Flags = flags
			k.Handle(&rtnetlink.Message{Type: typ, NSID: 5, Address: a})
		}
		want := func(when, want string) {
			t.Helper()
			if got, _, _ := strings.Cut(agenttest.Networks(k.table), " "); !strings.HasPrefix(agenttest.Networks(k.table), want) || want == "" && got != "" {
				t.Errorf("%s: got %q, want %q", when, agenttest.Networks(k.table), want)
			}
		}
		const failed = unix.IFA_F_DADFAILED | unix.IFA_F_TENTATIVE
		change(unix.RTM_NEWADDR, unix.IFA_F_TENTATIVE)
		change(unix.RTM_DELADDR, failed)
		want("deleted by the kernel", "fd00::2 DAD_FAILED")
		if err := k.List(); err != nil {
			t.Fatal(err)
		}
		want("listed", "fd00::2 DAD_FAILED")
		time.Sleep(refusedFor - time.Second)
		synctest.Wait()
		want("for a while", "fd00::2 DAD_FAILED")
		time.Sleep(time.Second)
		synctest.Wait()
		want("after a while", "")
		change(unix.RTM_DELADDR, failed)
		change(unix.RTM_NEWADDR, 0)
		want("set again", "fd00::2 ASSIGNED")
		change(unix.RTM_DELADDR, 0)
		want("deleted by a person", "")
		change(unix.RTM_NEWADDR, failed|unix.IFA_F_PERMANENT)
		change(unix.RTM_DELADDR, failed|unix.IFA_F_PERMANENT)
		want("a permanent one that a person deleted", "")

		link := func(flags uint32, mac byte) {
			l := agenttest.PodVeth(10)
			l.Flags, l.MAC = flags, string([]byte{2, 0, 0, 0, 0, mac})
			k.Handle(&rtnetlink.Message{Type: unix.RTM_NEWLINK, NSID: 5, Link: l})
		}
		link(unix.IFF_UP, 1)
		change(unix.RTM_DELADDR, failed)
		link(unix.IFF_UP, 2)
		want("the interface has another MAC", "")
		change(unix.RTM_DELADDR, failed)
		link(0, 2)
		link(unix.IFF_UP, 2)
		want("the interface was down", "")

		const private = unix.IFA_F_STABLE_PRIVACY
		later := func(address string, flags uint32) {
			a := agenttest.Address(2, address)
			a.Flags, a.Created = flags, time.Hour
			k.Handle(&rtnetlink.Message{Type: unix.RTM_NEWADDR, NSID: 5, Address: a})
		}
		change(unix.RTM_DELADDR, failed|private)
		for _, other := range []struct {
			address string
			flags   uint32
		}{{"fd01::9/64", private}, {"fd00::9/64", private | unix.IFA_F_TENTATIVE}, {"fd00::8/64", private | unix.IFA_F_TEMPORARY}, {"fd00::7/128", private}} {
			later(other.address, other.flags)
			want("not in place of it: "+other.address, "fd00::2 DAD_FAILED")
		}
		later("fd00::9/64", private)
		want("the kernel has chosen another one", "fd00::7 ASSIGNED")
		change(unix.RTM_NEWADDR, unix.IFA_F_TENTATIVE|private)
		change(unix.RTM_DELADDR, failed|private)
		want("the kernel has tried it again, because a router has sent an advertisement", "fd00::7 ASSIGNED")
		change(unix.RTM_NEWADDR, failed|unix.IFA_F_PERMANENT)
		later("fd00::a/64", unix.IFA_F_PERMANENT)
		want("a static address is no substitute for another one", "fd00::2 DAD_FAILED")
	})
}

// Programs set virtual addresses beside that of the node. The kernel flags those of IPv4.
func TestFurtherIPv6AddressesOfASubnet(t *testing.T) {
	const permanent = unix.IFA_F_PERMANENT
	f := agenttest.Fake{}
	f.Put(rtnetlink.NoNSID, rtnetlink.Link{Index: 2, Name: "eth0", MAC: "own002", Flags: unix.IFF_UP, ARPHRD: unix.ARPHRD_ETHER})
	k := newTestKernel(t, f)
	for i, set := range []struct {
		address string
		flags   uint32
		further bool
	}{
		{"fd00::aa/64", unix.IFA_F_MANAGETEMPADDR, false}, // from a router advertisement
		{"fd00::1/64", permanent, false},
		{"fe80::1/64", permanent, false},
		{"fe80::2/64", permanent, false},
		{"fd00::9/64", permanent, true},
		{"fd00::50/128", permanent, false},
		{"fd01::1/64", permanent, false},
		{"fd00::bb/64", 0, false},
		{"192.0.2.1/24", permanent, false},
		{"192.0.2.9/24", permanent, false},
	} {
		a := agenttest.Address(2, set.address)
		a.Flags, a.Created = set.flags, time.Duration(i+1)*time.Second
		k.Handle(&rtnetlink.Message{Type: unix.RTM_NEWADDR, NSID: rtnetlink.NoNSID, Address: a})
		if c := k.table.Claim(table.ClaimKey{Address: a.Addr, Kind: ipwitnessv1.Evidence_ASSIGNED, At: table.InterfaceKey{Namespace: table.OwnNamespace, Index: 2}}); c.Count == 0 || c.Flags&unix.IFA_F_SECONDARY != 0 != set.further {
			t.Errorf("%s: got flags %#x, want a further address %v", set.address, c.Flags, set.further)
		}
	}
	first := agenttest.Address(2, "fd00::1/64")
	first.Flags, first.Created = permanent, 2*time.Second
	k.Handle(&rtnetlink.Message{Type: unix.RTM_DELADDR, NSID: rtnetlink.NoNSID, Address: first})
	if c := k.table.Claim(table.ClaimKey{Address: netip.MustParseAddr("fd00::9"), Kind: ipwitnessv1.Evidence_ASSIGNED, At: table.InterfaceKey{Namespace: table.OwnNamespace, Index: 2}}); c.Flags&unix.IFA_F_SECONDARY != 0 {
		t.Error("got a further address, want the only one that is left")
	}
}

// A host gives its address up when another one claims it (RFC 5227, section 2.4): a DHCP client at a claim, and the
// program that set an address without a lifetime at the second claim of a newcomer.
func TestAddressThatWasGivenUpToAnotherHost(t *testing.T) {
	const static = unix.IFA_F_PERMANENT
	mine, others := string([]byte{2, 0, 0, 0, 0, 1}), string([]byte{2, 0, 0, 0, 0, 9})
	for name, c := range map[string]struct {
		flags   uint32
		expired bool
		claim   table.ClaimKey // of frames
		since   time.Duration  // since the last of them
		second  time.Duration  // from the first to the last one; 0 if there is one
		between uint32         // frames between them
		got     time.Duration  // since this host got the address; 0 for longer
		prefix  string
		program string // that moves virtual addresses
		want    string
	}{
		"another host claims it":              {claim: table.ClaimKey{MAC: others}, want: "DAD_FAILED"},
		"a person restarts the client":        {claim: table.ClaimKey{MAC: others}, since: yieldsWithin + time.Second},
		"kube-vip hands a virtual one over":   {flags: unix.IFA_F_DEPRECATED, claim: table.ClaimKey{MAC: others}},
		"its own frame":                       {claim: table.ClaimKey{MAC: mine}},
		"another host claimed it a while ago": {claim: table.ClaimKey{MAC: others}, since: time.Minute},
		"another host speaks for somebody":    {claim: table.ClaimKey{MAC: others, Source: mine}},
		"its lifetime has run out":            {expired: true, claim: table.ClaimKey{MAC: others}},
		"static, second claim":                {flags: static, claim: table.ClaimKey{MAC: others}, second: 2 * time.Second, want: "DAD_FAILED"},
		"static, first claim":                 {flags: static, claim: table.ClaimKey{MAC: others}},
		"static, the newcomer is this one":    {flags: static, claim: table.ClaimKey{MAC: others}, second: 2 * time.Second, got: time.Second},
		"static, own frames":                  {flags: static, claim: table.ClaimKey{MAC: mine}, second: 2 * time.Second},
		"static, a person deletes it":         {flags: static, claim: table.ClaimKey{MAC: others}, second: 2 * time.Second, since: 2 * time.Second},
		"static, the other one is no newcomer": {
			flags: static, claim: table.ClaimKey{MAC: others}, second: defendInterval,
		},
		"static, a person deletes it while the other one talks": {flags: static, claim: table.ClaimKey{MAC: others}, second: 5 * time.Second, between: 9},
		"a backup takes a virtual address over":                 {flags: static, claim: table.ClaimKey{MAC: others}, second: time.Second, program: "keepalived"},
		"a virtual address with a length of its own":            {flags: static, claim: table.ClaimKey{MAC: others}, second: time.Second, prefix: "192.0.2.7/32"},
		"a virtual address beside the one of the node":          {flags: static | unix.IFA_F_SECONDARY, claim: table.ClaimKey{MAC: others}, second: time.Second},
		"a lease on a node with a virtual address, claimed":     {claim: table.ClaimKey{MAC: others}, program: "keepalived", want: "DAD_FAILED"},
	} {
		f := agenttest.Fake{}
		f.Put(rtnetlink.NoNSID, rtnetlink.Link{Index: 2, Name: "eth0", MAC: mine, Flags: unix.IFF_UP, ARPHRD: unix.ARPHRD_ETHER})
		k := newTestKernel(t, f)
		k.table.Update(func() { k.table.SetStatus(&ipwitnessv1.StatusRecord{VipProgram: c.program}) })
		a := agenttest.Address(2, cmp.Or(c.prefix, "192.0.2.7/24"))
		a.Flags = c.flags
		if k.boot = time.Now().Add(-time.Hour); c.got != 0 {
			a.Created = time.Hour - c.got
		}
		k.Handle(&rtnetlink.Message{Type: unix.RTM_NEWADDR, NSID: rtnetlink.NoNSID, Address: a})
		c.claim.Address, c.claim.Kind, c.claim.At = a.Addr, ipwitnessv1.Evidence_ANNOUNCED, table.InterfaceKey{Namespace: table.OwnNamespace, Index: 2}
		last := time.Now().Add(-c.since)
		if c.second != 0 {
			at := last.Add(-c.second)
			k.AddFrame(c.claim, table.Claim{First: at, Last: at, Count: 1})
		}
		k.AddFrame(c.claim, table.Claim{First: last, Last: last, Count: 1 + c.between})
		a.Expired = c.expired
		k.Handle(&rtnetlink.Message{Type: unix.RTM_DELADDR, NSID: rtnetlink.NoNSID, Address: a})
		got := ""
		for key := range k.table.Claims() {
			if key.Kind == ipwitnessv1.Evidence_DAD_FAILED {
				got = key.Kind.String()
			}
		}
		if got != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}
