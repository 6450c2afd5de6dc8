package kernel

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ipwitness/ipwitness/agent/rtnetlink"
	"github.com/ipwitness/ipwitness/agent/table"
	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/agenttest"
)

// flaky is a Fake whose requests are counted, and fail while an error is set.
type flaky struct {
	agenttest.Fake
	mu        sync.Mutex // held for a request
	requests  int
	links     error
	addresses error
	nsids     error
	vlans     error
	route     error
}

func (f *flaky) Links(nsid int32) ([]rtnetlink.Link, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.requests++
	if f.links != nil {
		return nil, f.links
	}
	return f.Fake.Links(nsid)
}

func (f *flaky) Link(nsid, index int32) (rtnetlink.Link, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.requests++
	if f.links != nil {
		return rtnetlink.Link{}, f.links
	}
	return f.Fake.Link(nsid, index)
}

func (f *flaky) Addresses(nsid, index int32) ([]rtnetlink.Address, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.requests++
	if f.addresses != nil {
		return nil, f.addresses
	}
	return f.Fake.Addresses(nsid, index)
}

func (f *flaky) NSIDs() ([]int32, error) {
	if f.nsids != nil {
		return nil, f.nsids
	}
	return f.Fake.NSIDs()
}

func (f *flaky) VLANs() (map[int32]rtnetlink.VLANs, error) {
	if f.vlans != nil {
		return nil, f.vlans
	}
	return f.Fake.VLANs()
}

func (f *flaky) Route(addr netip.Addr) ([]rtnetlink.Hop, error) {
	if f.route != nil {
		return nil, f.route
	}
	return f.Fake.Route(addr)
}

// newFlaky returns a mirror of a pod behind veth10, with nsid 5 and inode 4000.
func newFlaky(t *testing.T) (*flaky, *Mirror) {
	t.Helper()
	f := &flaky{Fake: agenttest.Fake{}}
	f.Put(rtnetlink.NoNSID, agenttest.HostVeth(10, 5))
	f.Put(5, agenttest.PodVeth(10), "10.244.0.2/24")
	f.Own()
	k := New(slog.New(slog.DiscardHandler), table.New(), f, agenttest.OwnNSID, 1, time.Unix(0, 0), "node1")
	if err := k.List(); err != nil {
		t.Fatal("list: ", err)
	}
	k.Adopt(5, 4000, false, false)
	return f, k
}

func own(typ uint16, l rtnetlink.Link) *rtnetlink.Message {
	return &rtnetlink.Message{Type: typ, NSID: rtnetlink.NoNSID, Link: l}
}

func TestMessageThatChangesNothingIsNotReported(t *testing.T) {
	f, k := newFlaky(t)
	bridge := device(4, "br0", "bridge", func(l *rtnetlink.Link) { l.Filtering, l.DefaultPVID = true, 1 })
	port := device(3, "eth0", "", inBridge(4))
	f.Fake[rtnetlink.NoNSID].VLANs = map[int32]rtnetlink.VLANs{3: {PVID: 1}, 4: {PVID: 1}}
	f.Put(rtnetlink.NoNSID, bridge, "192.0.2.1/24")
	f.Put(rtnetlink.NoNSID, port)
	if err := k.List(); err != nil {
		t.Fatal(err)
	}
	g := InterfaceAddress{"eth0", netip.MustParseAddr("10.244.0.2")}
	names := func() {
		k.SetNames(map[uint64]*ipwitnessv1.Workload{4000: {Name: "web-0"}, 1: {Name: "nobody"}}, map[uint64]Networks{4000: {g: {Name: "pods"}}}, map[uint64]Intended{4000: {g: "cri"}, 1: {g: "cri"}}, nil)
	}
	names()
	r := agenttest.Follow(k.table)
	ports := 0
	k.PortsChanged = func() { ports++ }
	for name, change := range map[string]func(){
		"listing":                  func() { _ = k.List() },
		"names":                    names,
		"adopted again":            func() { k.Adopt(5, 4000, true, false) },
		"own namespace is adopted": func() { k.Adopt(agenttest.OwnNSID, 7000, true, false) },
		"link of the host":         func() { k.Handle(own(unix.RTM_NEWLINK, port)) },
		"link of the pod":          func() { k.Handle(&rtnetlink.Message{Type: unix.RTM_NEWLINK, NSID: 5, Link: agenttest.PodVeth(10)}) },
		"address": func() {
			k.Handle(&rtnetlink.Message{Type: unix.RTM_NEWADDR, NSID: 5, Address: agenttest.Address(2, "10.244.0.2/24")})
		},
		"end of an unknown address": func() {
			k.Handle(&rtnetlink.Message{Type: unix.RTM_DELADDR, NSID: 5, Address: agenttest.Address(2, "10.9.9.9/24")})
		},
		"end of an address on nothing": func() {
			k.Handle(&rtnetlink.Message{Type: unix.RTM_DELADDR, NSID: 5, Address: agenttest.Address(9, "10.9.9.9/24")})
		},
		"end of an unknown link": func() { k.Handle(own(unix.RTM_DELLINK, device(99, "gone", "", nil))) },
		"PVID": func() {
			k.Handle(&rtnetlink.Message{Type: rtnetlink.NewPort, NSID: rtnetlink.NoNSID, Port: rtnetlink.BridgePort{Index: 3, VLANs: rtnetlink.VLANs{PVID: 1}}})
		},
		"PVID of an unknown port": func() {
			k.Handle(&rtnetlink.Message{Type: rtnetlink.NewPort, NSID: rtnetlink.NoNSID, Port: rtnetlink.BridgePort{Index: 99, VLANs: rtnetlink.VLANs{PVID: 1}}})
		},
		"PVID inside a pod": func() {
			k.Handle(&rtnetlink.Message{Type: rtnetlink.NewPort, NSID: 5, Port: rtnetlink.BridgePort{Index: 3, VLANs: rtnetlink.VLANs{PVID: 9}}})
		},
		"nsid that is known":     func() { k.Handle(&rtnetlink.Message{Type: unix.RTM_NEWNSID, NSID: rtnetlink.NoNSID, ID: 5}) },
		"end of an unknown nsid": func() { k.Handle(&rtnetlink.Message{Type: unix.RTM_DELNSID, NSID: rtnetlink.NoNSID, ID: 9}) },
		"our own nsid": func() {
			k.Handle(&rtnetlink.Message{Type: unix.RTM_NEWNSID, NSID: rtnetlink.NoNSID, ID: agenttest.OwnNSID})
		},
		"message without an nsid": func() { k.Handle(&rtnetlink.Message{Type: unix.RTM_NEWNSID, NSID: rtnetlink.NoNSID, ID: -1}) },
		"nsid of a pod's table":   func() { k.Handle(&rtnetlink.Message{Type: unix.RTM_NEWNSID, NSID: 5, ID: 9}) },
	} {
		unnamed := 0
		k.Unnamed = func() { unnamed++ }
		change()
		if unnamed != 0 {
			t.Errorf("%s: namespaces without a name are looked for", name)
		}
		m := r.Take(time.Now())
		for _, c := range m.GetClaims() {
			if name == "address" && len(m.GetClaims()) == 1 && !c.GetGone() {
				m = nil // an address that is assigned again counts as seen again
			}
		}
		if m != nil {
			t.Errorf("%s: got report %v, want none", name, m)
		}
		if ports != 0 {
			t.Errorf("%s: got the ports looked at, want not", name)
		}
		ports = 0
	}
	// A change that does not move the interface to another link changes no other port.
	port.MAC = "other1"
	k.Handle(own(unix.RTM_NEWLINK, port))
	if m := r.Take(time.Now()); ports != 0 || len(m.GetInterfaces()) != 1 || len(m.GetLinks()) != 0 {
		t.Errorf("another MAC: got report %v and the ports looked at %d times, want the interface only", m, ports)
	}
}

func TestPortsAreLookedAtWhenOneChanges(t *testing.T) {
	f, k := newFlaky(t)
	calls := 0
	k.PortsChanged = func() { calls++ }
	want := func(what string, change func(), names string) {
		t.Helper()
		calls = 0
		change()
		var got []string
		for _, p := range k.Ports() {
			got = append(got, p.Name)
		}
		if calls == 0 || strings.Join(got, " ") != names {
			t.Errorf("%s: got ports %v, looked at %d times, want %s", what, got, calls, names)
		}
	}
	l := device(3, "eth0", "", nil)
	want("new", func() { k.Handle(own(unix.RTM_NEWLINK, l)) }, "eth0 veth10")
	gen := k.Ports()[0].Gen
	l.Name = "eth1"
	want("renamed", func() { k.Handle(own(unix.RTM_NEWLINK, l)) }, "eth1 veth10")
	if k.Ports()[0].Gen != gen {
		t.Error("renamed interface: got another one")
	}
	want("gone", func() { k.Handle(own(unix.RTM_DELLINK, l)) }, "veth10")
	want("back", func() { k.Handle(own(unix.RTM_NEWLINK, l)) }, "eth1 veth10")
	if k.Ports()[0].Gen == gen {
		t.Error("interface with the index of a former one: got the same one")
	}
	for _, kind := range []string{"bridge", "bond", "team", "vlan", "vrf", "openvswitch", "ifb", "macvlan", "macvtap", "ipvlan", "ipvtap", "dummy"} {
		l.Kind = kind
		k.Handle(own(unix.RTM_NEWLINK, l))
		if got := k.Ports(); len(got) != 1 {
			t.Errorf("ports with a %s: got %v, want only the veth", kind, got)
		}
	}
	l.Kind, l.ARPHRD = "", unix.ARPHRD_TUNNEL
	k.Handle(own(unix.RTM_NEWLINK, l))
	if got := k.Ports(); len(got) != 1 {
		t.Errorf("ports with a tunnel: got %v, want only the veth", got)
	}
	list := func() {
		t.Helper()
		if err := k.List(); err != nil {
			t.Fatal(err)
		}
	}
	want("listed as gone, because its message was lost", list, "veth10")
	f.Put(rtnetlink.NoNSID, device(4, "eth2", "", nil))
	want("listed as new, because its message was lost", list, "eth2 veth10")
	calls = 0
	inPod := agenttest.PodVeth(10)
	inPod.Index, inPod.Lower = inPod.Index+1, 0
	f.Put(5, inPod)
	if list(); calls != 0 {
		t.Errorf("interface in a pod: got the ports looked at %d times, want not", calls)
	}
}

func TestNamespaceWithoutANameIsLookedFor(t *testing.T) {
	f, k := newFlaky(t)
	calls := 0
	k.Unnamed = func() { calls++ }
	want := func(what string, anonymous bool, change func()) {
		t.Helper()
		calls = 0
		change()
		if calls == 0 {
			t.Errorf("%s: names are not looked for", what)
		}
		if got := k.Anonymous(func(uint64) bool { return false }); got != anonymous {
			t.Errorf("%s: got namespaces without a name: %v, want %v", what, got, anonymous)
		}
	}
	k.SetNames(map[uint64]*ipwitnessv1.Workload{4000: {Name: "web-0"}}, map[uint64]Networks{}, nil, nil)
	if k.Anonymous(func(uint64) bool { return false }) {
		t.Error("named namespace: got anonymous")
	}
	f.Put(rtnetlink.NoNSID, agenttest.HostVeth(11, 0))
	f.Put(0, agenttest.PodVeth(11))
	want("new nsid", true, func() { k.Handle(&rtnetlink.Message{Type: unix.RTM_NEWNSID, NSID: rtnetlink.NoNSID, ID: 0}) })
	if !k.Anonymous(func(uint64) bool { return true }) {
		t.Error("namespace without a known inode: got not anonymous")
	}
	k.Adopt(0, 4001, false, false)
	if k.Anonymous(func(inode uint64) bool { return inode == 4001 }) || !k.Anonymous(func(inode uint64) bool { return inode == 4000 }) {
		t.Error("namespace with an inode: got anonymous or not whatever the caller knows")
	}
	ours := k.OurInodes()
	if len(ours) != 2 || ours[4000] == ours[4001] {
		t.Errorf("our namespaces: got %v, want two that differ", ours)
	}
	if k.OwnInode() != 1 {
		t.Errorf("own inode: got %d, want 1", k.OwnInode())
	}
	want("end of a namespace", false, func() {
		delete(f.Fake, 0)
		delete(f.Fake[rtnetlink.NoNSID].Links, 11)
		k.Handle(&rtnetlink.Message{Type: unix.RTM_DELNSID, NSID: rtnetlink.NoNSID, ID: 0})
	})
	f.Put(rtnetlink.NoNSID, agenttest.HostVeth(12, 0))
	f.Put(0, agenttest.PodVeth(12))
	want("next namespace with its nsid", true, func() {
		k.Handle(&rtnetlink.Message{Type: unix.RTM_NEWADDR, NSID: 0, Address: agenttest.Address(2, "10.0.0.9/24")})
	})
	k.Adopt(0, 4001, false, false)
	if got := k.OurInodes(); got[4001] == ours[4001] {
		t.Errorf("next namespace with the inode of a former one: got number %d of both", got[4001])
	}

	// A namespace of another node is not ours, and becomes ours later.
	stranger := agenttest.PodVeth(13)
	stranger.LowerNSID = 6
	f.Put(7, stranger)
	want("namespace of another node", true, func() { k.Handle(&rtnetlink.Message{Type: unix.RTM_NEWNSID, NSID: rtnetlink.NoNSID, ID: 7}) })
	k.Adopt(7, 4007, false, false)
	k.BeginNames()
	k.SetNames(map[uint64]*ipwitnessv1.Workload{4000: {Name: "web-0"}, 4001: {Name: "web-1"}}, map[uint64]Networks{4007: {InterfaceAddress{}: {Name: "x"}}}, map[uint64]Intended{4007: {InterfaceAddress{}: "x"}}, nil)
	if got := k.OurInodes(); len(got) != 2 || k.Anonymous(func(uint64) bool { return false }) {
		t.Errorf("our namespaces: got %v, want two with a name", got)
	}
	want("namespace becomes ours", true, func() {
		stranger.LowerNSID = agenttest.OwnNSID
		f.Put(rtnetlink.NoNSID, agenttest.HostVeth(13, 7))
		f.Put(7, stranger)
		k.Handle(own(unix.RTM_NEWLINK, agenttest.HostVeth(13, 7)))
		foreign := stranger
		foreign.LowerNSID = 0
		k.Handle(&rtnetlink.Message{Type: unix.RTM_NEWLINK, NSID: 7, Link: foreign})
	})
}

func TestWhatCannotBeReadIsListedAgain(t *testing.T) {
	busy := errors.New("busy")
	f, k := newFlaky(t)
	incomplete := 0
	k.Incomplete = func() { incomplete++ }
	want := func(what string, times int) {
		t.Helper()
		if (incomplete > 0) != (times > 0) {
			t.Errorf("%s: got %d requests to list again, want %d", what, incomplete, times)
		}
		incomplete = 0
	}
	f.links = busy
	if err := k.List(); !errors.Is(err, busy) {
		t.Errorf("list: got error %v, want %v", err, busy)
	}
	k.Handle(&rtnetlink.Message{Type: unix.RTM_NEWNSID, NSID: rtnetlink.NoNSID, ID: 8})
	want("new namespace", 1)
	k.Handle(&rtnetlink.Message{Type: unix.RTM_NEWNSID, NSID: rtnetlink.NoNSID, ID: 5})
	want("known namespace", 1)
	wantClaims(t, k, "10.244.0.2 ASSIGNED 2/2")
	k.Handle(&rtnetlink.Message{Type: unix.RTM_NEWADDR, NSID: 5, Address: agenttest.Address(9, "10.244.0.3/24")})
	want("address on an unknown interface", 1)
	f.links = unix.ENODEV
	k.Handle(&rtnetlink.Message{Type: unix.RTM_NEWADDR, NSID: 5, Address: agenttest.Address(9, "10.244.0.3/24")})
	want("address on an interface that is gone", 0)
	f.links, f.addresses = nil, busy
	if err := k.List(); !errors.Is(err, busy) {
		t.Errorf("list without addresses: got error %v, want %v", err, busy)
	}
	if k.Reread([]netip.Addr{netip.MustParseAddr("10.244.0.2")}) {
		t.Error("addresses that cannot be read again: got success")
	}
	want("addresses", 1)
	wantClaims(t, k, "10.244.0.2 ASSIGNED 2/2")
	f.addresses, f.nsids = nil, busy
	if err := k.List(); !errors.Is(err, busy) {
		t.Errorf("list without nsids: got error %v, want %v", err, busy)
	}
	f.nsids, f.vlans = nil, busy
	if err := k.List(); err != nil {
		t.Errorf("list without a bridge that filters: got error %v, want no request for VLANs", err)
	}
	want("no bridge", 0)
	bridge := device(4, "br0", "bridge", func(l *rtnetlink.Link) { l.Filtering = true })
	f.Put(rtnetlink.NoNSID, bridge)
	k.Handle(own(unix.RTM_NEWLINK, bridge))
	want("VLANs of bridges", 1)
	f.vlans = nil
	if err := k.List(); err != nil {
		t.Fatal(err)
	}
	want("everything can be read", 0)
	if !k.Reread([]netip.Addr{netip.MustParseAddr("10.244.0.2"), netip.MustParseAddr("10.99.0.1")}) {
		t.Error("addresses that can be read again: got no success")
	}
	f.addresses = rtnetlink.ErrNamespaceGone
	if !k.Reread([]netip.Addr{netip.MustParseAddr("10.244.0.2")}) {
		t.Error("addresses of a namespace that has ended: got no success, want that there is nothing left to read")
	}
	wantClaims(t, k, "")
}

func TestNSIDThatWeAssignedIsReportedOnlyOnce(t *testing.T) {
	f, k := newFlaky(t)
	f.Put(rtnetlink.NoNSID, agenttest.HostVeth(11, 6))
	f.Put(6, agenttest.PodVeth(11), "10.244.0.3/24")
	k.Adopt(6, 4001, true, false)
	wantClaims(t, k, "10.244.0.2 ASSIGNED 2/2, 10.244.0.3 ASSIGNED 3/2")
	for i, want := range []bool{false, true} {
		f.requests = 0
		k.Handle(&rtnetlink.Message{Type: unix.RTM_NEWNSID, NSID: rtnetlink.NoNSID, ID: 6})
		if got := f.requests > 0; got != want {
			t.Errorf("RTM_NEWNSID number %d: got the namespace read %v, want %v", i+1, got, want)
		}
	}
	f.requests = 0
	k.Adopt(6, 4001, true, false)
	k.Adopt(agenttest.OwnNSID, 1, true, false)
	if f.requests != 0 {
		t.Errorf("adopted again: got %d requests, want none", f.requests)
	}
	f.links = errors.New("busy")
	k.Adopt(9, 4009, true, false) // cannot be read, so that nothing is known of it
	if k.Known(4009) || !k.Known(4001) || k.Known(4010) {
		t.Error("known inodes: got another answer than 4001 only")
	}
}

func TestListingIsRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, k := newFlaky(t)
		for _, always := range []bool{false, true} {
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error)
			go func() { ended <- k.ListAgain(ctx, always) }()
			set := func(change func()) {
				f.mu.Lock()
				defer f.mu.Unlock()
				change()
			}
			lists := func(d time.Duration) bool {
				set(func() { f.requests = 0 })
				time.Sleep(d)
				synctest.Wait()
				return f.requests > 0
			}
			if got := lists(10 * ListEvery); got != always {
				t.Errorf("always %v: got listed %v without being wanted", always, got)
			}
			if !always {
				set(func() { f.links = errors.New("busy") })
				k.Incomplete()
				k.Incomplete()
				for i := range 3 {
					if !lists(ListEvery) {
						t.Errorf("attempt %d: got not listed again, though no attempt has succeeded", i+1)
					}
				}
				set(func() { f.links = nil })
				if !lists(ListEvery) || lists(10*ListEvery) {
					t.Error("wanted: got not listed, or listed after it has succeeded")
				}
			}
			cancel()
			if err := <-ended; err != nil {
				t.Errorf("always %v: got error %v", always, err)
			}
		}
	})
}

func TestTimeOfAnAddressIsThatOfTheKernelInStepsOf10ms(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := agenttest.Fake{}
		f.Put(rtnetlink.NoNSID, agenttest.HostVeth(10, 5))
		f.Put(5, agenttest.PodVeth(10))
		f[5].Addresses[2] = []rtnetlink.Address{{Index: 2, Addr: netip.MustParseAddr("10.244.0.2"), PrefixLength: 24, Created: 50 * time.Millisecond}}
		f.Own()
		boot := time.Now().Truncate(time.Second).Add(3*time.Millisecond - time.Hour)
		k := New(slog.New(slog.DiscardHandler), table.New(), f, agenttest.OwnNSID, 1, boot, "node1")
		if err := k.List(); err != nil {
			t.Fatal(err)
		}
		for _, v := range k.table.Claims() {
			if want := boot.Add(47 * time.Millisecond); !v.Assigned.Equal(want) {
				t.Errorf("time of the address: got %s, want %s", v.Assigned, want)
			}
		}
	})
}

func TestTimeOfAnAddressOnAMachineThatRunsForLongerThanStampsLast(t *testing.T) {
	const span = (1 << 32) * 10 * time.Millisecond // 497 days
	start := time.Date(2026, 3, 14, 13, 9, 26, 0, time.UTC)
	for _, test := range []struct {
		name          string
		up, created   time.Duration
		now, assigned time.Duration // after the start of the agent
		unknown       bool
	}{
		{"before the first end of the stamps", span - time.Hour, span - 2*time.Hour, 0, -time.Hour, false},
		{"new", span + time.Hour, time.Hour + time.Second, time.Second, time.Second, false},
		{"new, after the second end", 2*span + time.Hour, time.Hour + time.Second, time.Second, time.Second, false},
		{"old, or very old", span + time.Hour, 30 * time.Minute, 0, 0, true},
		{"old, and certainly so", span + time.Hour, 2 * time.Hour, 0, time.Hour - span, false},
		{"from the future: the clock of stamps is known to 10 ms", time.Hour, time.Hour + 10*time.Millisecond, 0, 0, false},
	} {
		p := publisher{topology: topology{own: &namespace{first: start}}, boot: start.Add(-test.up)}
		got := p.assigned(test.created, start.Add(test.now))
		if want := start.Add(test.assigned); got.IsZero() != test.unknown || !test.unknown && !got.Equal(want) {
			t.Errorf("%s: got %s, want %s (unknown: %v)", test.name, got, want, test.unknown)
		}
	}
}

func TestShortestPrefixOfAnAddressIsReported(t *testing.T) {
	for _, order := range [][]string{{"10.244.0.3/24", "10.244.0.3/32"}, {"10.244.0.3/32", "10.244.0.3/24"}} {
		_, k := newFlaky(t)
		for _, a := range order {
			k.Handle(&rtnetlink.Message{Type: unix.RTM_NEWADDR, NSID: 5, Address: agenttest.Address(2, a)})
		}
		for c, v := range k.table.Claims() {
			if v.PrefixLength != 24 {
				t.Errorf("prefix of %s after %v: got /%d, want /24", c.Address, order, v.PrefixLength)
			}
		}
	}
}

func TestEndOfAnAddressEndsTheFramesOfItsHolder(t *testing.T) {
	const addr = "10.244.0.2"
	f, k := newFlaky(t)
	f.Put(rtnetlink.NoNSID, device(3, "eth0", "", nil), addr+"/24")
	f.Put(6, rtnetlink.Link{Index: 2, Name: "net1", Kind: "macvlan", MAC: "maclan", ARPHRD: unix.ARPHRD_ETHER, Flags: agenttest.Up, Lower: 3, LowerNSID: agenttest.OwnNSID}, addr+"/24")
	if err := k.List(); err != nil {
		t.Fatal(err)
	}
	var forgotten int
	k.ClaimEnded = func(keys []table.ClaimKey) { forgotten += len(keys) }
	frames := []table.ClaimKey{
		wireKey(10, ipwitnessv1.Evidence_USED, addr, "pods10"), wireKey(10, ipwitnessv1.Evidence_USED, addr, "proxy1"),
		wireKey(3, ipwitnessv1.Evidence_USED, addr, "pods10"), wireKey(3, ipwitnessv1.Evidence_USED, addr, "maclan"), wireKey(3, ipwitnessv1.Evidence_USED, addr, "others"),
		wireKey(10, ipwitnessv1.Evidence_USED, "10.244.0.77", "pods10"),
	}
	remaining := func() string {
		var out []string
		for c := range k.table.Claims() {
			if table.IsWire(c.Kind) {
				out = append(out, fmt.Sprintf("%d/%s/%s", c.At.Index, c.MAC, c.Address.String()[len("10.244.0."):]))
			}
		}
		slices.Sort(out)
		return strings.Join(out, " ")
	}
	for _, c := range []struct {
		name string
		nsid int32
		at   int32
		want string
		ends int
	}{
		{"a pod with a veth", 5, 2, "10/pods10/77 3/maclan/2 3/others/2", 3},
		{"a pod with a MACVLAN", 6, 2, "10/pods10/2 10/pods10/77 10/proxy1/2 3/others/2 3/pods10/2", 1},
		{"the node", rtnetlink.NoNSID, 3, "10/pods10/2 10/pods10/77 10/proxy1/2 3/maclan/2 3/others/2 3/pods10/2", 0},
	} {
		for _, frame := range frames {
			k.AddFrame(frame, seenNow())
		}
		forgotten = 0
		k.Handle(&rtnetlink.Message{Type: unix.RTM_DELADDR, NSID: c.nsid, Address: agenttest.Address(c.at, addr+"/24")})
		if got := remaining(); got != c.want || forgotten != c.ends {
			t.Errorf("%s loses the address: got frames %q, %d ended, want %q and %d", c.name, got, forgotten, c.want, c.ends)
		}
		k.Handle(&rtnetlink.Message{Type: unix.RTM_NEWADDR, NSID: c.nsid, Address: agenttest.Address(c.at, addr+"/24")})
	}
}

func TestEndsAreRememberedForAsLongAsFramesMayBeLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, k := newFlaky(t)
		sent := seenNow()
		time.Sleep(time.Millisecond)
		lose := func(i int) {
			a := agenttest.Address(2, fmt.Sprintf("10.%d.%d.1/24", i/250, i%250))
			for _, typ := range []uint16{unix.RTM_NEWADDR, unix.RTM_DELADDR} {
				k.Handle(&rtnetlink.Message{Type: typ, NSID: 5, Address: a})
			}
		}
		for i := range keptEnds + 10 {
			lose(i)
		}
		if got := len(k.ended); got != keptEnds+10 {
			t.Errorf("ends at once: got %d, want all %d", got, keptEnds+10)
		}
		k.AddFrame(wireKey(10, ipwitnessv1.Evidence_USED, "10.0.3.1", "pods10"), sent)
		wantClaims(t, k, "10.244.0.2 ASSIGNED 2/2")
		time.Sleep(latestFrame)
		lose(5000) // the others may still be needed
		if got := len(k.ended); got != keptEnds+11 {
			t.Errorf("ends after %s: got %d, want all %d", latestFrame, got, keptEnds+11)
		}
		time.Sleep(time.Second) // not looked at more often
		lose(5001)
		if got := len(k.ended); got != keptEnds+12 {
			t.Errorf("ends a second later: got %d, want all %d", got, keptEnds+12)
		}
		time.Sleep(time.Millisecond)
		lose(5002)
		if got := len(k.ended); got != 3 {
			t.Errorf("ends after that: got %d, want the three new ones", got)
		}
	})
}

func TestFramesThatFindNoRoomAreForgottenByTheObserver(t *testing.T) {
	_, k := newFlaky(t)
	var forgotten []table.ClaimKey
	k.ClaimEnded = func(keys []table.ClaimKey) { forgotten = append(forgotten, keys...) }
	at := func(i int) table.ClaimKey {
		key := wireKey(10, ipwitnessv1.Evidence_USED, "10.1.0.1", "pods10")
		key.Address = netip.AddrFrom4([4]byte{10, 128 + byte(i>>16), byte(i >> 8), byte(i)})
		return key
	}
	const most = 65536 // claims of one port
	for i := range most {
		k.AddFrame(at(i), seenNow())
	}
	if len(forgotten) != 0 {
		t.Fatalf("forgotten before the port is full: got %d, want none", len(forgotten))
	}
	k.AddFrame(at(most), seenNow())
	if len(forgotten) != 1 || forgotten[0] != at(0) {
		t.Errorf("forgotten for the next one: got %v, want the oldest", forgotten)
	}
}

// A VXLAN device with proxy answers from the neighbour table of its node, also with MACs that nobody has.
func TestAnswersOfTheNodesOwnVXLANAreNobodys(t *testing.T) {
	for _, test := range []struct {
		proxy bool
		kind  ipwitnessv1.Evidence_Kind
		kept  bool
	}{
		{true, ipwitnessv1.Evidence_ANSWERED, false},
		{true, ipwitnessv1.Evidence_ANNOUNCED, true},
		{true, ipwitnessv1.Evidence_USED, true},
		{false, ipwitnessv1.Evidence_ANSWERED, true},
	} {
		_, k := newFlaky(t)
		k.own.links[10].Proxy = test.proxy
		frame := wireKey(10, test.kind, "10.244.0.9", "pods10")
		k.AddFrame(frame, seenNow())
		kept := false
		for c := range k.table.Claims() {
			kept = kept || c == frame
		}
		if kept != test.kept {
			t.Errorf("%s, proxy %v: got kept %v, want %v", test.kind, test.proxy, kept, test.kept)
		}
	}
}

func TestLinkOfAFrameLivesAsLongAsItsClaim(t *testing.T) {
	_, k := newFlaky(t)
	frame := wireKey(10, ipwitnessv1.Evidence_USED, "10.244.0.9", "pods10")
	frame.VLAN = 10
	k.AddFrame(frame, seenNow())
	k.Expire(time.Now().Add(-time.Minute))
	if k.table.Links.Get("veth10.10") == nil || k.table.Links.Get("veth10") == nil {
		t.Errorf("links with a claim: got %v, want veth10 and veth10.10", maps.Collect(k.table.Links.All()))
	}
}

func TestInterfaceThatLeavesItsOwnLinkEndsIt(t *testing.T) {
	f, k := newFlaky(t)
	bridge := device(4, "br0", "bridge", nil)
	f.Put(rtnetlink.NoNSID, bridge)
	k.Handle(own(unix.RTM_NEWLINK, bridge))
	frame := wireKey(10, ipwitnessv1.Evidence_USED, "10.244.0.9", "pods10")
	k.AddFrame(frame, seenNow())
	wantClaims(t, k, "10.244.0.2 ASSIGNED 2/2, 10.244.0.9 USED 1/10")
	l := agenttest.HostVeth(10, 5)
	l.Master, l.SlaveKind = 4, "bridge"
	k.Handle(own(unix.RTM_NEWLINK, l))
	if got := slices.Sorted(maps.Keys(maps.Collect(k.table.Links.All()))); !slices.Equal(got, []string{"br0"}) {
		t.Errorf("links: got %v, want br0 only", got)
	}
	wantClaims(t, k, "10.244.0.2 ASSIGNED 2/2")
}

func TestFramesOfAPortThatStaysOnItsLinkStay(t *testing.T) {
	f, k := newFlaky(t)
	eth0 := device(3, "eth0", "", nil)
	f.Put(rtnetlink.NoNSID, eth0)
	k.Handle(own(unix.RTM_NEWLINK, eth0))
	f.route = errors.New("busy")
	for _, port := range []int32{3, 10} {
		for _, vlan := range []uint16{0, 10} {
			frame := wireKey(port, ipwitnessv1.Evidence_USED, "10.244.0.9", "others")
			frame.VLAN = vlan
			k.AddFrame(frame, seenNow())
		}
	}
	for c, v := range k.table.Claims() {
		if v.Routed {
			t.Errorf("claim %v: got routed, though the route cannot be looked up", c)
		}
	}
	eth0.Name = "eth1"
	k.Handle(own(unix.RTM_NEWLINK, eth0))
	wantClaims(t, k, "10.244.0.2 ASSIGNED 2/2, 10.244.0.9 USED 1/10, 10.244.0.9 USED 1/10")
	if got := slices.Sorted(maps.Keys(maps.Collect(k.table.Links.All()))); !slices.Equal(got, []string{"eth1", "veth10", "veth10.10"}) {
		t.Errorf("links after eth0 was renamed: got %v, want no eth0 nor a VLAN of it", got)
	}
}

func TestListingFindsWhatChanged(t *testing.T) {
	f, k := newFlaky(t)
	eth0, eth1 := device(3, "eth0", "", nil), device(4, "eth1", "", nil)
	list := func(want string, links ...rtnetlink.Link) {
		t.Helper()
		for _, index := range []int32{3, 4} {
			delete(f.Fake[rtnetlink.NoNSID].Links, index)
		}
		for _, l := range links {
			f.Put(rtnetlink.NoNSID, l)
		}
		if err := k.List(); err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, p := range k.Ports() {
			names = append(names, p.Name)
		}
		if got := strings.Join(names, " "); got != want {
			t.Errorf("ports: got %q, want %q", got, want)
		}
	}
	list("eth0 eth1 veth10", eth0, eth1)
	eth0.Name = "lan0"
	list("lan0 veth10", eth0)
	list("veth10")
}

func TestEndOfAPodsInterfaceIsTheEndOfItsPair(t *testing.T) {
	f, k := newFlaky(t)
	if got := k.own.links[10].published.GetPeerNamespace(); got != 2 {
		t.Fatalf("namespace behind the pair: got %d, want 2", got)
	}
	delete(f.Fake[5].Links, 2)
	k.Handle(&rtnetlink.Message{Type: unix.RTM_DELLINK, NSID: 5, Link: agenttest.PodVeth(10)})
	if got := k.own.links[10].published.GetPeerNamespace(); got != 0 || len(k.attached) != 0 {
		t.Errorf("namespace behind the pair after its other end is gone: got %d, and %v attached, want none", got, k.attached)
	}
}

func TestPeerOfAMessageIsResolved(t *testing.T) {
	f, k := newFlaky(t)
	f.Put(rtnetlink.NoNSID, device(3, "eth0", "", nil))
	f.Put(rtnetlink.NoNSID, device(4, "eth1", "", nil))
	child := rtnetlink.Link{Index: 2, Name: "net1", Kind: "macvlan", MAC: "maclan", ARPHRD: unix.ARPHRD_ETHER, Flags: agenttest.Up, Lower: 3, LowerNSID: agenttest.OwnNSID}
	f.Put(6, child, "10.244.0.3/24")
	if err := k.List(); err != nil {
		t.Fatal(err)
	}
	const both = "10.244.0.2 ASSIGNED 2/2, 10.244.0.3 ASSIGNED 3/2"
	wantClaims(t, k, both)
	tell := func(nsid int32, l rtnetlink.Link) {
		k.Handle(&rtnetlink.Message{Type: unix.RTM_NEWLINK, NSID: nsid, Link: l})
	}
	// The message has the nsid of the other namespace's table.
	child.LowerNSID, child.Name = 0, "net2"
	tell(6, child)
	wantClaims(t, k, both)
	if r := k.table.Interfaces.Get(table.InterfaceKey{Namespace: 3, Index: 2}); r.GetName() != "net2" || r.GetLink() != "eth0" || r.GetAttachment() != ipwitnessv1.InterfaceRecord_LOWER {
		t.Errorf("renamed MACVLAN: got %v, want it on eth0", r)
	}
	// It may be on an interface of a third namespace with the index of one of ours.
	child.Lower = 4
	tell(6, child)
	if len(k.attached[3]) != 0 {
		t.Errorf("interfaces on eth0: got %v, want none", k.attached[3])
	}
	wantClaims(t, k, "10.244.0.2 ASSIGNED 2/2")
	// An address depends on it, so it is requested.
	f.Put(6, rtnetlink.Link{Index: 2, Name: "net2", Kind: "macvlan", MAC: "maclan", ARPHRD: unix.ARPHRD_ETHER, Flags: agenttest.Up, Lower: 4, LowerNSID: agenttest.OwnNSID}, "10.244.0.3/24")
	k.Handle(&rtnetlink.Message{Type: unix.RTM_NEWADDR, NSID: 6, Address: agenttest.Address(2, "10.244.0.3/24")})
	wantClaims(t, k, "10.244.0.2 ASSIGNED 2/2, 10.244.0.3 ASSIGNED 4/2")
	// A veth of a third namespace has the index of our end as its peer.
	other := agenttest.PodVeth(10)
	other.Index, other.LowerNSID = 3, 0
	tell(5, other)
	if r := k.table.Interfaces.Get(table.InterfaceKey{Namespace: 2, Index: 3}); r.GetAttachment() != ipwitnessv1.InterfaceRecord_PRIVATE {
		t.Errorf("veth whose index our end does not have as its peer: got %v, want private", r)
	}
	// A new interface comes with its addresses.
	moved := rtnetlink.Link{Index: 7, Name: "net7", Kind: "macvlan", MAC: "macla7", ARPHRD: unix.ARPHRD_ETHER, Flags: agenttest.Up, Lower: 3, LowerNSID: agenttest.OwnNSID}
	f.Put(5, moved, "10.244.0.7/24")
	tell(5, moved)
	k.Handle(&rtnetlink.Message{Type: unix.RTM_NEWADDR, NSID: 5, Address: agenttest.Address(7, "10.244.0.8/24")})
	wantClaims(t, k, "10.244.0.2 ASSIGNED 2/2, 10.244.0.3 ASSIGNED 4/2, 10.244.0.7 ASSIGNED 2/7, 10.244.0.8 ASSIGNED 2/7")
}

func TestEndOfAPairThatMovesHereIsRequested(t *testing.T) {
	f, k := newFlaky(t)
	// The veth of nsid 5 has its other end in a third namespace, from where it moves here and gets
	// another index.
	far := rtnetlink.Link{Index: 3, Name: "net3", Kind: "veth", MAC: "farfar", ARPHRD: unix.ARPHRD_ETHER, Flags: agenttest.Up, Lower: 40, LowerNSID: 8}
	f.Put(5, far, "10.244.0.3/24")
	if err := k.List(); err != nil {
		t.Fatal(err)
	}
	near := agenttest.HostVeth(41, 5)
	near.Lower = 3
	for _, fails := range []error{errors.New("busy"), nil} {
		f.links = fails
		incomplete := false
		k.Incomplete = func() { incomplete = true }
		f.Put(rtnetlink.NoNSID, near)
		far.Lower, far.LowerNSID = 41, agenttest.OwnNSID
		f.Put(5, far, "10.244.0.3/24")
		k.Handle(own(unix.RTM_NEWLINK, near))
		if incomplete != (fails != nil) {
			t.Errorf("request that ends with %v: got listed again %v", fails, incomplete)
		}
		if fails != nil {
			k.Handle(own(unix.RTM_DELLINK, near))
		}
	}
	if r := k.table.Interfaces.Get(table.InterfaceKey{Namespace: 2, Index: 3}); r.GetAttachment() != ipwitnessv1.InterfaceRecord_PEER || r.GetHostInterface() != "veth41" {
		t.Errorf("other end: got %v, want the peer of veth41", r)
	}
}

func TestMACIsReportedOnlyIfItIsOne(t *testing.T) {
	f := agenttest.Fake{}
	for _, l := range []rtnetlink.Link{
		device(1, "lo", "", func(l *rtnetlink.Link) { l.Flags |= unix.IFF_LOOPBACK }),
		device(2, "eth0", "", nil),
		device(3, "tunl0", "ipip", func(l *rtnetlink.Link) { l.MAC = "\x7f\x00\x00\x01" }),
	} {
		f.Put(rtnetlink.NoNSID, l)
	}
	k := newTestKernel(t, f)
	for index, want := range map[int32]int{1: 0, 2: 6, 3: 0} {
		if got := len(k.own.links[index].published.GetMac()); got != want {
			t.Errorf("MAC of %s: got %d bytes, want %d", k.own.links[index].Name, got, want)
		}
	}
	if got := k.table.Namespaces.Get(table.OwnNamespace).GetWorkload(); got.GetKind() != ipwitnessv1.Workload_HOST || got.GetName() != "node1" {
		t.Errorf("workload of our own namespace: got %v, want node1", got)
	}
}

func TestNetworksAreKeptForAddressesThatHaveNoneNow(t *testing.T) {
	g := func(ip string) InterfaceAddress { return InterfaceAddress{"eth0", netip.MustParseAddr(ip)} }
	now, before := Networks{g("10.0.0.1"): {Name: "new"}}, Networks{g("10.0.0.1"): {Name: "old"}, g("10.0.0.2"): {Name: "old"}, g("10.0.0.3"): {Name: "old"}}
	got := now.Keep(before)
	if want := (Networks{g("10.0.0.1"): {Name: "new"}, g("10.0.0.2"): {Name: "old"}, g("10.0.0.3"): {Name: "old"}}); !maps.Equal(got, want) || len(now) != 1 {
		t.Errorf("networks: got %v, want %v, and the first ones unchanged", got, want)
	}
	if got := Networks(nil).Keep(before); !maps.Equal(got, before) {
		t.Errorf("networks of before only: got %v, want %v", got, before)
	}
	if got := now.Keep(nil); !maps.Equal(got, now) {
		t.Errorf("new networks only: got %v, want %v", got, now)
	}
}

// A VXLAN device of which the bridge takes the VLANs from tunnels has frames of several networks.
func TestFramesOfSeveralTenantsAreOfTheVLANsOfTheirTunnels(t *testing.T) {
	f, k := newFlaky(t)
	bridge := func(filtering bool) rtnetlink.Link {
		return device(4, "br0", "bridge", func(l *rtnetlink.Link) { l.Filtering = filtering })
	}
	port := func(tunnels bool) rtnetlink.Link {
		return device(3, "vx0", "vxlan", func(l *rtnetlink.Link) {
			l.Master, l.SlaveKind, l.VLANTunnel = 4, "bridge", tunnels
		})
	}
	f.Put(rtnetlink.NoNSID, bridge(true))
	f.Put(rtnetlink.NoNSID, port(false))
	if err := k.List(); err != nil {
		t.Fatal(err)
	}
	links := func() (out []string) {
		for _, c := range k.table.WireClaims(3) {
			out = append(out, c.Link)
		}
		slices.Sort(out)
		return out
	}
	// want checks the links of the claims before and after two frames, one of them in VLAN 20.
	want := func(what, before, after string, tunnels map[uint32]uint16) {
		t.Helper()
		if got := fmt.Sprint(links()); got != before {
			t.Errorf("%s: got claims on links %s, want %s", what, got, before)
		}
		for _, vlan := range []uint16{0, 20} {
			now := time.Now()
			k.AddFrame(table.ClaimKey{
				Address: netip.MustParseAddr("10.1.0.5"), Kind: ipwitnessv1.Evidence_ANNOUNCED, MAC: "\x02\x00\x00\x00\x00\x05", VLAN: vlan,
				At: table.InterfaceKey{Namespace: table.OwnNamespace, Index: 3},
			}, table.Claim{First: now, Last: now, Count: 1})
		}
		ports := k.Ports()
		i := slices.IndexFunc(ports, func(p Port) bool { return p.Name == "vx0" })
		if got := fmt.Sprint(links()); got != after || i < 0 || !maps.Equal(ports[i].Tunnels, tunnels) {
			t.Errorf("%s: got claims on links %s after a frame, ports %+v; want %s and tunnels %v", what, got, ports, after, tunnels)
		}
	}
	set := func(options *rtnetlink.PortOptions, pvid uint16, tunnels map[uint32]uint16) {
		k.Handle(&rtnetlink.Message{Type: rtnetlink.NewPort, NSID: rtnetlink.NoNSID, Port: rtnetlink.BridgePort{
			Index: 3, VLANs: rtnetlink.VLANs{PVID: pvid, Tunnels: tunnels}, Options: options,
		}})
	}
	all := port(false)
	all.Metadata = true
	k.Handle(own(unix.RTM_NEWLINK, all))
	want("a VXLAN device of all networks, which nothing tells apart", "[]", "[]", nil)
	if ports := k.Ports(); !slices.ContainsFunc(ports, func(p Port) bool { return p.Name == "vx0" && p.Untold }) {
		t.Errorf("got ports %+v, want vx0 untold", ports)
	}
	k.Handle(own(unix.RTM_NEWLINK, port(false)))
	mixed := &rtnetlink.PortOptions{VLANTunnel: true}
	want("a VXLAN device of one network", "[]", "[br0.20 vx0]", nil)
	set(mixed, 0, nil)
	want("vlan_tunnel", "[]", "[br0.20]", nil)
	set(mixed, 0, map[uint32]uint16{10020: 20})
	want("a tunnel that the observer does not know", "[br0.20]", "[br0.20]", map[uint32]uint16{10020: 20})
	k.TunnelsSet(3, map[uint16]bool{20: true})
	want("a tunnel", "[]", "[br0.20]", map[uint32]uint16{10020: 20})
	k.AddFrame(table.ClaimKey{
		Address: netip.MustParseAddr("10.1.0.6"), Kind: ipwitnessv1.Evidence_ANNOUNCED, VLAN: 20, At: table.InterfaceKey{Namespace: table.OwnNamespace, Index: 3},
	}, table.Claim{First: time.Now().Add(-time.Hour), Last: time.Now().Add(-time.Hour), Count: 1})
	set(mixed, 5, map[uint32]uint16{10020: 20, 10030: 30})
	k.TunnelsSet(3, map[uint16]bool{30: true})
	want("another tunnel, and a VLAN for all others", "[br0.20]", "[br0.20 br0.5]", map[uint32]uint16{10020: 20, 10030: 30})
	k.TunnelsSet(3, nil)
	want("tunnels that stay", "[br0.20]", "[br0.20 br0.5]", map[uint32]uint16{10020: 20, 10030: 30})
	k.Handle(own(unix.RTM_NEWLINK, bridge(false)))
	want("the bridge ignores VLANs", "[]", "[br0 br0.20]", nil)
	k.Handle(own(unix.RTM_NEWLINK, bridge(true)))
	want("the bridge tells VLANs apart again", "[]", "[br0.20]", map[uint32]uint16{})
	all.VLANTunnel = true
	k.Handle(own(unix.RTM_NEWLINK, all))
	want("a VXLAN device of all networks with vlan_tunnel", "[br0.20]", "[br0.20]", map[uint32]uint16{})
	if slices.ContainsFunc(k.Ports(), func(p Port) bool { return p.Untold }) {
		t.Errorf("got ports %+v, want none untold", k.Ports())
	}
	k.Handle(own(unix.RTM_NEWLINK, port(false)))
	want("without vlan_tunnel", "[]", "[br0.20 vx0]", nil)
}
