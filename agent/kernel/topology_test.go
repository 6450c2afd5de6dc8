package kernel

import (
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ipwitness/ipwitness/agent/rtnetlink"
	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/agenttest"
)

func TestInterfacesAreOnTheLinkOfTheirLowestDevice(t *testing.T) {
	f := agenttest.Fake{}
	own := func(index int32, name, kind string, more func(*rtnetlink.Link), addrs ...string) {
		l := rtnetlink.Link{Index: index, Name: name, Kind: kind, MAC: fmt.Sprintf("own%03d", index), ARPHRD: unix.ARPHRD_ETHER, Flags: agenttest.Up, LowerNSID: rtnetlink.NoNSID}
		if more != nil {
			more(&l)
		}
		f.Put(rtnetlink.NoNSID, l, addrs...)
	}
	own(1, "lo", "", func(l *rtnetlink.Link) { l.Flags |= unix.IFF_LOOPBACK }, "10.96.0.1/32")
	own(2, "eth0", "", nil, "192.0.2.1/24")
	own(3, "eth0.10", "vlan", func(l *rtnetlink.Link) { l.Lower, l.VLAN = 2, 10 })
	own(4, "cni0", "bridge", nil, "10.244.0.1/24", "fe80::1/64")
	own(5, "br-iso", "bridge", nil, "fe80::1/64")
	own(6, "dummy0", "dummy", nil, "169.254.20.10/32")
	own(7, "bond0", "bond", nil)
	own(8, "eth1", "", func(l *rtnetlink.Link) { l.Master, l.SlaveKind = 7, "bond" })
	own(9, "blue", "vrf", nil)
	own(11, "eth0.20", "vlan", func(l *rtnetlink.Link) { l.Lower, l.VLAN = 2, 20 })
	own(12, "mv0", "macvlan", func(l *rtnetlink.Link) { l.Lower = 2 })
	own(13, "tun0", "tun", nil)
	own(20, "veth20", "veth", func(l *rtnetlink.Link) { l.Master, l.SlaveKind, l.Lower, l.LowerNSID = 4, "bridge", 2, 5 })
	own(21, "veth21", "veth", func(l *rtnetlink.Link) { l.Lower, l.LowerNSID, l.Master, l.SlaveKind = 2, 6, 9, "vrf" }, "10.0.0.1/32")
	own(22, "veth22", "veth", func(l *rtnetlink.Link) { l.Lower, l.LowerNSID, l.SlaveKind, l.Master = 2, 7, "openvswitch", 99 })
	own(23, "veth23", "veth", func(l *rtnetlink.Link) { l.Master, l.SlaveKind, l.Lower, l.LowerNSID = 5, "bridge", 2, 8 })
	own(24, "uplink", "veth", func(l *rtnetlink.Link) { l.Lower, l.LowerNSID = 2, 9 }, "198.51.100.2/24")
	pod := func(nsid int32, l rtnetlink.Link) { f.Put(nsid, l) }
	for nsid, host := range map[int32]int32{5: 20, 6: 21, 7: 22, 8: 23} {
		pod(nsid, agenttest.PodVeth(host))
	}
	switchPort := agenttest.PodVeth(24)
	switchPort.Master = 3 // a bridge in the other namespace
	pod(9, switchPort)
	pod(10, rtnetlink.Link{Index: 2, Name: "net1", Kind: "macvlan", MAC: "maclan", Flags: agenttest.Up, Lower: 2, LowerNSID: agenttest.OwnNSID})
	pod(10, rtnetlink.Link{Index: 3, Name: "net2", Kind: "vlan", VLAN: 30, MAC: "vlan30", Flags: agenttest.Up, Lower: 2, LowerNSID: agenttest.OwnNSID})
	pod(5, rtnetlink.Link{Index: 3, Name: "k6t-eth0", Kind: "bridge", MAC: "inside", Flags: agenttest.Up, LowerNSID: rtnetlink.NoNSID})
	k := newTestKernel(t, f)

	got := map[string]string{}
	byNS := map[uint32]int32{1: 0}
	for nsid, ns := range k.byNSID {
		byNS[ns.id] = nsid
	}
	for key, r := range k.table.Interfaces.All() {
		s := fmt.Sprintf("%s on %q", r.GetAttachment(), r.GetLink())
		if r.GetHostInterface() != "" {
			s += " by " + r.GetHostInterface()
		}
		if r.GetVrf() != "" {
			s += " in vrf " + r.GetVrf()
		}
		if r.GetUplink() {
			s += ", uplink"
		}
		got[fmt.Sprintf("%d/%s", byNS[key.Namespace], r.GetName())] = s
	}
	for name, want := range map[string]string{
		"0/lo":       `LOCAL on ""`,
		"0/dummy0":   `LOCAL on ""`,
		"0/eth0":     `OWN on "eth0", uplink`,
		"0/eth0.10":  `OWN on "eth0.10"`,
		"0/eth1":     `OWN on "bond0", uplink`,
		"0/cni0":     `OWN on "cni0"`,
		"0/veth20":   `OWN on "cni0"`,
		"5/eth0":     `PEER on "cni0" by veth20`,
		"5/k6t-eth0": `PRIVATE on ""`,
		"6/eth0":     `PEER on "veth21" by veth21 in vrf blue`,
		"7/eth0":     `PEER on "veth22" by veth22`,
		"8/eth0":     `PEER on "br-iso" by veth23`,
		"10/net1":    `LOWER on "eth0" by eth0`,
		"10/net2":    `LOWER on "eth0.30" by eth0`,
		"0/mv0":      `OWN on "eth0"`,
		"0/tun0":     `OWN on "tun0"`,
		"0/blue":     `OWN on "blue" in vrf blue`,
		"0/uplink":   `OWN on "uplink", uplink`,
		"0/veth21":   `OWN on "veth21" in vrf blue`,
	} {
		if got[name] != want {
			t.Errorf("%s: got %s, want %s", name, got[name], want)
		}
	}
	for name, want := range map[string]*ipwitnessv1.LinkRecord{
		"cni0":   {Kind: ipwitnessv1.LinkRecord_BRIDGE, Routed: true},
		"br-iso": {Kind: ipwitnessv1.LinkRecord_BRIDGE},
		"veth21": {Kind: ipwitnessv1.LinkRecord_POINT_TO_POINT},
		"veth22": {Kind: ipwitnessv1.LinkRecord_OVS_PORT},
		"eth0":   {Kind: ipwitnessv1.LinkRecord_UPLINK},
		"tun0":   {Kind: ipwitnessv1.LinkRecord_UPLINK},
		"uplink": {Kind: ipwitnessv1.LinkRecord_UPLINK},
	} {
		if got := k.table.Links.Get(name); got.GetKind() != want.GetKind() || got.GetRouted() != want.GetRouted() {
			t.Errorf("link %s: got %v, want %v", name, got, want)
		}
	}

	var ports []string
	for _, p := range k.Ports() {
		ports = append(ports, p.Name)
	}
	if got, want := strings.Join(ports, " "), "eth0 eth1 tun0 veth20 veth21 veth22 veth23 uplink"; got != want {
		t.Errorf("ports: got %s, want %s", got, want)
	}

	// The bridge gets an address, so the node routes for its ports from now on.
	k.Handle(&rtnetlink.Message{Type: unix.RTM_NEWADDR, NSID: rtnetlink.NoNSID, Address: agenttest.Address(5, "10.9.0.1/24")})
	if !k.table.Links.Get("br-iso").GetRouted() {
		t.Error("bridge with a unicast address: got a link that is not routed")
	}
	// A port leaves its bridge, so its pod is on a link of its own.
	left := f[rtnetlink.NoNSID].Links[20]
	left.Master, left.SlaveKind = 0, ""
	k.Handle(&rtnetlink.Message{Type: unix.RTM_NEWLINK, NSID: rtnetlink.NoNSID, Link: left})
	for key, r := range k.table.Interfaces.All() {
		if byNS[key.Namespace] == 5 && r.GetName() == "eth0" && r.GetLink() != "veth20" {
			t.Errorf("pod whose port left the bridge: got link %q, want veth20", r.GetLink())
		}
	}
}

// device returns an interface of our own namespace with usual properties.
func device(index int32, name, kind string, more func(*rtnetlink.Link)) rtnetlink.Link {
	l := rtnetlink.Link{Index: index, Name: name, Kind: kind, MAC: fmt.Sprintf("own%03d", index), ARPHRD: unix.ARPHRD_ETHER, Flags: agenttest.Up, LowerNSID: rtnetlink.NoNSID}
	if more != nil {
		more(&l)
	}
	return l
}

// inBridge makes an interface a port of a bridge.
func inBridge(master int32) func(*rtnetlink.Link) {
	return func(l *rtnetlink.Link) { l.Master, l.SlaveKind = master, "bridge" }
}

// wantLinks checks on which links our own interfaces are.
func wantLinks(t *testing.T, k *Mirror, want map[string]string) {
	t.Helper()
	for _, l := range k.own.links {
		if name, ok := want[l.Name]; ok && l.published.GetLink() != name {
			t.Errorf("%s: got link %q, want %q", l.Name, l.published.GetLink(), name)
		}
	}
}

func TestPeersAreTheTwoEndsOfAPair(t *testing.T) {
	for name, c := range map[string]struct {
		change func(host *link, ns *namespace, m *rtnetlink.Link)
		want   bool
	}{
		"as they are":               {func(*link, *namespace, *rtnetlink.Link) {}, true},
		"netkit":                    {func(host *link, _ *namespace, m *rtnetlink.Link) { host.Kind, m.Kind = "netkit", "netkit" }, true},
		"no pair there":             {func(_ *link, _ *namespace, m *rtnetlink.Link) { m.Kind = "macvlan" }, false},
		"no pair here":              {func(host *link, _ *namespace, _ *rtnetlink.Link) { host.Kind = "vlan" }, false},
		"no pair at all":            {func(host *link, _ *namespace, m *rtnetlink.Link) { host.Kind, m.Kind = "", "macvlan" }, false},
		"another namespace":         {func(_ *link, ns *namespace, _ *rtnetlink.Link) { ns.nsid = 6 }, false},
		"our end has another peer":  {func(host *link, _ *namespace, _ *rtnetlink.Link) { host.Lower = 3 }, false},
		"the other end has another": {func(_ *link, _ *namespace, m *rtnetlink.Link) { m.Lower = 11 }, false},
	} {
		host, ns, m := &link{Link: agenttest.HostVeth(10, 5)}, &namespace{nsid: 5}, agenttest.PodVeth(10)
		if c.change(host, ns, &m); isPeer(host, ns, m) != c.want {
			t.Errorf("%s: got peers %v, want %v", name, !c.want, c.want)
		}
	}
}

func TestPrefixOfALANIsShorterThanAnAddress(t *testing.T) {
	for prefix, want := range map[string]bool{
		"192.0.2.1/24": true, "192.0.2.1/31": true, "192.0.2.1/32": false, "2001:db8::1/64": true, "2001:db8::1/128": false, "fe80::1/64": false, "169.254.0.1/16": false, "127.0.0.1/8": false,
	} {
		l := &link{addrs: addresses{}}
		l.addrs.set(agenttest.Address(1, prefix))
		if got := hasPrefix(l); got != want {
			t.Errorf("%s: got a LAN prefix %v, want %v", prefix, got, want)
		}
	}
}

func TestBridgeIsASwitchIfAnotherPortLeadsOut(t *testing.T) {
	port := &link{Link: rtnetlink.Link{Index: 2, Kind: "veth", Master: 9, LowerNSID: 3}}
	for name, c := range map[string]struct {
		other rtnetlink.Link
		want  bool
	}{
		"hardware":                {rtnetlink.Link{Master: 9, LowerNSID: rtnetlink.NoNSID}, true},
		"hardware elsewhere":      {rtnetlink.Link{Master: 8, LowerNSID: rtnetlink.NoNSID}, false},
		"another veth":            {rtnetlink.Link{Kind: "veth", Master: 9, LowerNSID: 4}, true},
		"a veth of its own":       {rtnetlink.Link{Kind: "veth", Master: 9, LowerNSID: rtnetlink.NoNSID}, false},
		"a virtual machine":       {rtnetlink.Link{Kind: "tun", Master: 9, LowerNSID: rtnetlink.NoNSID}, false},
		"a VXLAN of another node": {rtnetlink.Link{Kind: "vxlan", Master: 9, LowerNSID: 4}, false},
	} {
		ns := &namespace{links: map[int32]*link{2: port, 3: {Link: c.other}}}
		if got := isSwitch(ns, port); got != c.want {
			t.Errorf("%s: got a switch %v, want %v", name, got, c.want)
		}
	}
	if isSwitch(&namespace{links: map[int32]*link{2: port}}, port) {
		t.Error("no other port: got a switch")
	}
}

func TestBridgesThatPairsConnectAreOneLink(t *testing.T) {
	// Two pairs connect two bridges each, and a third connects all four. The order in which they are
	// looked at is random.
	for range 20 {
		f := agenttest.Fake{}
		for index, name := range map[int32]string{2: "br-d", 3: "br-c", 4: "br-b", 5: "br-a"} {
			f.Put(rtnetlink.NoNSID, device(index, name, "bridge", nil))
		}
		for a, masters := range map[int32][2]int32{10: {2, 3}, 12: {4, 5}, 14: {2, 4}} {
			f.Put(rtnetlink.NoNSID, device(a, fmt.Sprintf("in%d", a), "veth", func(l *rtnetlink.Link) { l.Lower = a + 1; inBridge(masters[0])(l) }))
			f.Put(rtnetlink.NoNSID, device(a+1, fmt.Sprintf("in%d", a+1), "veth", func(l *rtnetlink.Link) { l.Lower = a; inBridge(masters[1])(l) }))
		}
		wantLinks(t, newTestKernel(t, f), map[string]string{"br-a": "br-a", "br-b": "br-a", "br-c": "br-a", "br-d": "br-a", "in10": "br-a"})
	}
}

// wantFrame checks the link of a frame that enters through an interface.
func wantFrame(t *testing.T, k *Mirror, index int32, want string, tags ...uint16) {
	t.Helper()
	if got := k.domainOf(k.own.links[index], tags...).name; got != want {
		t.Errorf("frame by %s with VLANs %v: got link %q, want %q", k.own.links[index].Name, tags, got, want)
	}
}

func TestBridgeThatFiltersVLANsIsOneLinkForEachVLAN(t *testing.T) {
	f := agenttest.Fake{}
	filtering := func(l *rtnetlink.Link) { l.Filtering, l.DefaultPVID = true, 1 }
	for _, l := range []rtnetlink.Link{
		device(1, "lo", "", func(l *rtnetlink.Link) { l.Flags |= unix.IFF_LOOPBACK }),
		device(4, "br0", "bridge", filtering),
		device(5, "eth0", "", inBridge(4)),
		device(6, "br0.10", "vlan", func(l *rtnetlink.Link) { l.Lower, l.VLAN = 4, 10 }),
	} {
		f.Put(rtnetlink.NoNSID, l)
	}
	for host, nsid := range map[int32]int32{20: 5, 21: 6, 22: 7} {
		l := agenttest.HostVeth(host, nsid)
		l.Master, l.SlaveKind = 4, "bridge"
		f.Put(rtnetlink.NoNSID, l)
		f.Put(nsid, agenttest.PodVeth(host), "10.0.0.5/24")
	}
	f[rtnetlink.NoNSID].VLANs = map[int32]rtnetlink.VLANs{4: {PVID: 1}, 5: {PVID: 1}, 20: {PVID: 10}, 21: {PVID: 20}}
	k := newTestKernel(t, f)

	wantLinks(t, k, map[string]string{
		"br0": "br0.1", "eth0": "br0.1", "br0.10": "br0.10", "veth20": "br0.10", "veth21": "br0.20", "veth22": "veth22",
	})
	wantFrame(t, k, 5, "br0.10", 10)
	wantFrame(t, k, 5, "br0.20.7", 20, 7)
	wantFrame(t, k, 20, "br0.10")
	wantFrame(t, k, 22, "veth22")
	for _, ns := range []int32{5, 6, 7} {
		pod := k.byNSID[ns]
		want := map[int32]string{5: "br0.10", 6: "br0.20", 7: "veth22"}[ns]
		if got := pod.links[2].published.GetLink(); got != want {
			t.Errorf("pod of nsid %d: got link %q, want %q", ns, got, want)
		}
	}

	// No frame reaches the node from a port without a VLAN.
	if got := k.table.Links.Get("veth22"); got.GetKind() != ipwitnessv1.LinkRecord_BRIDGE || got.GetRouted() {
		t.Errorf("link of a port without a VLAN: got %v, want a bridge that is not routed", got)
	}

	// The node has an address on VLAN 10, and routes for that VLAN only.
	k.Handle(&rtnetlink.Message{Type: unix.RTM_NEWADDR, NSID: rtnetlink.NoNSID, Address: agenttest.Address(6, "10.0.0.1/24")})
	for name, want := range map[string]bool{"br0.10": true, "br0.20": false, "br0.1": false} {
		if got := k.table.Links.Get(name); got == nil || got.GetRouted() != want {
			t.Errorf("link %s: got %v, want routed %v", name, got, want)
		}
	}

	// A port gets another VLAN for untagged frames. Its previous frames were on another link.
	k.AddFrame(wireKey(21, ipwitnessv1.Evidence_ANNOUNCED, "10.0.0.9", "others"), seenNow())
	k.Handle(&rtnetlink.Message{Type: rtnetlink.NewPort, NSID: rtnetlink.NoNSID, Port: rtnetlink.BridgePort{Index: 21, VLANs: rtnetlink.VLANs{PVID: 10}}})
	wantLinks(t, k, map[string]string{"veth21": "br0.10"})
	if got := k.byNSID[6].links[2].published.GetLink(); got != "br0.10" {
		t.Errorf("pod behind the port: got link %q, want br0.10", got)
	}
	if strings.Contains(claims(k), "10.0.0.9") {
		t.Errorf("claims: got %s, want none of the frame on VLAN 20", claims(k))
	}

	// The node's veth into the bridge moves to another VLAN.
	leg := device(31, "leg", "veth", func(l *rtnetlink.Link) { l.Lower = 32 })
	port := device(32, "legport", "veth", func(l *rtnetlink.Link) { l.Lower, l.Master, l.SlaveKind = 31, 4, "bridge" })
	for _, l := range []rtnetlink.Link{leg, port} {
		k.Handle(&rtnetlink.Message{Type: unix.RTM_NEWLINK, NSID: rtnetlink.NoNSID, Link: l})
	}
	k.Handle(&rtnetlink.Message{Type: rtnetlink.NewPort, NSID: rtnetlink.NoNSID, Port: rtnetlink.BridgePort{Index: 32, VLANs: rtnetlink.VLANs{PVID: 1}}})
	k.Handle(&rtnetlink.Message{Type: unix.RTM_NEWADDR, NSID: rtnetlink.NoNSID, Address: agenttest.Address(31, "10.9.0.1/24")})
	for _, vid := range []uint16{1, 20} {
		k.Handle(&rtnetlink.Message{Type: rtnetlink.NewPort, NSID: rtnetlink.NoNSID, Port: rtnetlink.BridgePort{Index: 32, VLANs: rtnetlink.VLANs{PVID: vid}}})
		k.Handle(&rtnetlink.Message{Type: rtnetlink.NewPort, NSID: rtnetlink.NoNSID, Port: rtnetlink.BridgePort{Index: 22, VLANs: rtnetlink.VLANs{PVID: 20}}}) // another port is on that VLAN
		for name, want := range map[string]bool{"br0.1": vid == 1, "br0.20": vid == 20} {
			if got := k.table.Links.Get(name); got.GetRouted() != want {
				t.Errorf("link %s with the node's leg in VLAN %d: got %v, want routed %v", name, vid, got, want)
			}
		}
	}
	for _, index := range []int32{31, 32} {
		k.Handle(&rtnetlink.Message{Type: unix.RTM_DELLINK, NSID: rtnetlink.NoNSID, Link: rtnetlink.Link{Index: index}})
	}

	// The bridge stops filtering, so all its ports are on one link.
	k.Handle(&rtnetlink.Message{Type: unix.RTM_NEWLINK, NSID: rtnetlink.NoNSID, Link: device(4, "br0", "bridge", nil)})
	wantLinks(t, k, map[string]string{"br0": "br0", "eth0": "br0", "br0.10": "br0.10", "veth20": "br0", "veth22": "br0"})

	// It filters again. The VLANs are read again, because no messages report them.
	k.Handle(&rtnetlink.Message{Type: unix.RTM_NEWLINK, NSID: rtnetlink.NoNSID, Link: device(4, "br0", "bridge", filtering)})
	wantLinks(t, k, map[string]string{"br0": "br0.1", "veth20": "br0.10"})

	// A new port has the bridge's default VLAN until a message reports another one.
	k.Handle(&rtnetlink.Message{Type: unix.RTM_NEWLINK, NSID: rtnetlink.NoNSID, Link: device(30, "eth1", "", inBridge(4))})
	wantLinks(t, k, map[string]string{"eth1": "br0.1"})
}

func TestVLANDeviceInABridgeTakesItsVLANThere(t *testing.T) {
	f := agenttest.Fake{}
	for _, l := range []rtnetlink.Link{
		device(2, "eth0", "", nil),
		device(3, "eth0.30", "vlan", func(l *rtnetlink.Link) { l.Lower, l.VLAN, l.Master, l.SlaveKind = 2, 30, 4, "bridge" }),
		device(4, "br30", "bridge", nil),
		device(5, "eth0.40", "vlan", func(l *rtnetlink.Link) { l.Lower, l.VLAN = 2, 40 }),
		device(6, "bond0", "bond", nil),
		device(7, "eth1", "", func(l *rtnetlink.Link) { l.Master, l.SlaveKind = 6, "bond" }),
		device(8, "bond0.50", "vlan", func(l *rtnetlink.Link) { l.Lower, l.VLAN, l.Master, l.SlaveKind = 6, 50, 9, "bridge" }),
		device(9, "br50", "bridge", nil),
	} {
		f.Put(rtnetlink.NoNSID, l)
	}
	k := newTestKernel(t, f)
	wantLinks(t, k, map[string]string{
		"eth0": "eth0", "eth0.30": "br30", "br30": "br30", "eth0.40": "eth0.40", "eth1": "bond0", "bond0.50": "br50",
	})
	wantFrame(t, k, 2, "eth0")
	wantFrame(t, k, 2, "br30", 30)
	wantFrame(t, k, 2, "br30.7", 30, 7)
	wantFrame(t, k, 2, "eth0.40", 40)
	wantFrame(t, k, 2, "eth0.99", 99)
	wantFrame(t, k, 7, "bond0")
	wantFrame(t, k, 7, "br50", 50)

	// eth0.30 leaves its bridge. The claims of its earlier frames end, because they were on
	// another link.
	key := wireKey(2, ipwitnessv1.Evidence_ANNOUNCED, "10.0.0.9", "others")
	key.VLAN = 30
	k.AddFrame(key, seenNow())
	wantClaims(t, k, "10.0.0.9 ANNOUNCED 1/2")
	k.Handle(&rtnetlink.Message{Type: unix.RTM_NEWLINK, NSID: rtnetlink.NoNSID, Link: device(3, "eth0.30", "vlan", func(l *rtnetlink.Link) { l.Lower, l.VLAN = 2, 30 })})
	wantFrame(t, k, 2, "eth0.30", 30)
	wantClaims(t, k, "")
}

func TestVethPairsInsideTheHost(t *testing.T) {
	f := agenttest.Fake{}
	pair := func(a, b, masterA, masterB int32) {
		for index, l := range map[int32][2]int32{a: {b, masterA}, b: {a, masterB}} {
			f.Put(rtnetlink.NoNSID, device(index, fmt.Sprintf("in%d", index), "veth", func(m *rtnetlink.Link) {
				m.Lower = l[0]
				if l[1] != 0 {
					inBridge(l[1])(m)
				}
			}))
		}
	}
	for index, name := range map[int32]string{2: "br-a", 3: "br-b", 4: "br-c", 5: "br-d"} {
		f.Put(rtnetlink.NoNSID, device(index, name, "bridge", nil))
	}
	pair(10, 11, 0, 0)
	pair(12, 13, 2, 0) // the node's address is behind a veth into br-a
	pair(14, 15, 3, 4) // br-b and br-c are connected
	k := newTestKernel(t, f)
	wantLinks(t, k, map[string]string{
		"in10": "in10", "in11": "in10", "in12": "br-a", "in13": "br-a", "br-a": "br-a",
		"in14": "br-b", "in15": "br-b", "br-b": "br-b", "br-c": "br-b", "br-d": "br-d",
	})
	k.Handle(&rtnetlink.Message{Type: unix.RTM_NEWADDR, NSID: rtnetlink.NoNSID, Address: agenttest.Address(13, "10.1.0.1/24")})
	if !k.table.Links.Get("br-a").GetRouted() {
		t.Error("bridge with the node's address behind a veth: got a link that is not routed")
	}
	for _, l := range k.own.links {
		if l.published.GetUplink() {
			t.Errorf("%s: got an uplink, want none: both ends of the pair are in our namespace", l.Name)
		}
	}

	// Another pair connects br-d to them, and then the first one is removed.
	pair(16, 17, 4, 5)
	for _, index := range []int32{16, 17} {
		k.Handle(&rtnetlink.Message{Type: unix.RTM_NEWLINK, NSID: rtnetlink.NoNSID, Link: f[rtnetlink.NoNSID].Links[index]})
	}
	wantLinks(t, k, map[string]string{"br-b": "br-b", "br-c": "br-b", "br-d": "br-b"})
	for _, index := range []int32{14, 15} {
		k.Handle(&rtnetlink.Message{Type: unix.RTM_DELLINK, NSID: rtnetlink.NoNSID, Link: f[rtnetlink.NoNSID].Links[index]})
	}
	wantLinks(t, k, map[string]string{"br-b": "br-b", "br-c": "br-c", "br-d": "br-c"})
}

func TestBridgeOfAnEVPNIsDistributedInAllVLANs(t *testing.T) {
	f := agenttest.Fake{}
	f.Put(rtnetlink.NoNSID, device(4, "br0", "bridge", func(l *rtnetlink.Link) { l.Filtering, l.DefaultPVID = true, 1 }))
	f.Put(rtnetlink.NoNSID, device(5, "vlan10", "vlan", func(l *rtnetlink.Link) { l.Lower, l.VLAN = 4, 10 }), "192.168.10.1/24")
	f[rtnetlink.NoNSID].VLANs = map[int32]rtnetlink.VLANs{4: {PVID: 1}}
	k := newTestKernel(t, f)
	want := func(when string, distributed bool) {
		t.Helper()
		if l := k.table.Links.Get("br0.10"); l.GetDistributed() != distributed || l == nil {
			t.Errorf("%s: got link %v, want distributed %v", when, l, distributed)
		}
	}
	port := func(change func(*rtnetlink.Link)) {
		k.Handle(&rtnetlink.Message{Type: unix.RTM_NEWLINK, NSID: rtnetlink.NoNSID, Link: device(6, "vx10", "vxlan", func(l *rtnetlink.Link) {
			l.Master, l.SlaveKind = 4, "bridge"
			change(l)
		})})
	}
	want("without a port", false)
	port(func(*rtnetlink.Link) {})
	want("a device that learns", false)
	port(func(l *rtnetlink.Link) { l.Closed = true })
	want("a port from which the bridge does not learn", true)
	port(func(*rtnetlink.Link) {})
	want("a device that learns again", false)
	port(func(l *rtnetlink.Link) { l.NoLearning = true })
	want("a device that does not learn", true)
}

func TestBridgeThatAPairConnectsToASwitch(t *testing.T) {
	f := agenttest.Fake{}
	f.Put(rtnetlink.NoNSID, device(4, "weave", "bridge", nil))
	f.Put(rtnetlink.NoNSID, device(5, "datapath", "openvswitch", nil))
	pod := agenttest.HostVeth(20, 5)
	pod.Master, pod.SlaveKind = 4, "bridge"
	f.Put(rtnetlink.NoNSID, pod)
	f.Put(5, agenttest.PodVeth(20), "10.32.0.2/12")
	end := func(index, other, master int32, name, slave string) rtnetlink.Link {
		return device(index, name, "veth", func(l *rtnetlink.Link) { l.Lower, l.Master, l.SlaveKind = other, master, slave })
	}
	f.Put(rtnetlink.NoNSID, end(10, 11, 4, "vethwe-bridge", "bridge"))
	f.Put(rtnetlink.NoNSID, end(11, 10, 0, "vethwe-datapath", ""))
	k := newTestKernel(t, f)
	want := func(when string, uplink bool) {
		t.Helper()
		for index, want := range map[int32]bool{10: uplink, 11: false, 20: false} {
			if l := k.own.links[index]; l.published.GetUplink() != want {
				t.Errorf("%s, %s: got uplink %v, want %v", when, l.Name, !want, want)
			}
		}
		wantLinks(t, k, map[string]string{"weave": "weave", "vethwe-bridge": "weave", "veth20": "weave"})
	}
	change := func(l rtnetlink.Link) {
		k.Handle(&rtnetlink.Message{Type: unix.RTM_NEWLINK, NSID: rtnetlink.NoNSID, Link: l})
	}
	want("an end that leads nowhere", false)
	change(end(11, 10, 5, "vethwe-datapath", "openvswitch"))
	want("a port of the switch", true)
	change(end(11, 10, 0, "vethwe-datapath", ""))
	want("removed from the switch", false)
}

func TestUplinkThatIsAPortOfABridge(t *testing.T) {
	f := agenttest.Fake{}
	f.Put(rtnetlink.NoNSID, device(4, "br-ext", "bridge", nil))
	for host, nsid := range map[int32]int32{20: 5, 21: 6} {
		l := agenttest.HostVeth(host, nsid)
		l.Master, l.SlaveKind = 4, "bridge"
		f.Put(rtnetlink.NoNSID, l)
		inside := agenttest.PodVeth(host)
		inside.Master = 9 // a bridge in the other namespace
		f.Put(nsid, inside)
	}
	// In one namespace the bridge is a switch. In the other it belongs to a virtual machine,
	// as KubeVirt sets it up.
	f.Put(5, rtnetlink.Link{Index: 3, Name: "port2", Kind: "veth", MAC: "switch", ARPHRD: unix.ARPHRD_ETHER, Flags: agenttest.Up, Master: 9, Lower: 2, LowerNSID: 8})
	f.Put(6, rtnetlink.Link{Index: 3, Name: "tap0", Kind: "tun", MAC: "taptap", ARPHRD: unix.ARPHRD_ETHER, Flags: agenttest.Up, Master: 9, LowerNSID: rtnetlink.NoNSID})
	k := newTestKernel(t, f)
	want := func(when string, first, second bool) {
		t.Helper()
		for index, want := range map[int32]bool{20: first, 21: second} {
			if got := k.own.links[index].published.GetUplink(); got != want {
				t.Errorf("%s, veth%d: got uplink %v, want %v", when, index, got, want)
			}
		}
	}
	want("without an address", false, false)
	k.Handle(&rtnetlink.Message{Type: unix.RTM_NEWADDR, NSID: rtnetlink.NoNSID, Address: agenttest.Address(4, "192.0.2.1/24")})
	want("with an address on the bridge", true, false)

	// The virtual machine's bridge becomes a switch: another of its ports leads out.
	k.Handle(&rtnetlink.Message{Type: unix.RTM_NEWLINK, NSID: 6, Link: rtnetlink.Link{Index: 4, Name: "eth1", MAC: "nicnic", ARPHRD: unix.ARPHRD_ETHER, Flags: agenttest.Up, Master: 9, LowerNSID: rtnetlink.NoNSID}})
	want("with hardware on the other bridge", true, true)

	// The namespace is named as a pod.
	k.Adopt(6, 4000, true, false)
	k.SetNames(map[uint64]*ipwitnessv1.Workload{4000: {Kind: ipwitnessv1.Workload_POD, Name: "launcher"}}, nil, nil, nil)
	want("named as a pod", true, false)
}

// The card of a nested node is one end of a veth. It loses its address when its DHCP lease ends, and does not become the port of
// what is behind it.
func TestCardOfANestedNodeIsAnUplinkWithoutAnAddress(t *testing.T) {
	f := agenttest.Fake{}
	f.Put(rtnetlink.NoNSID, device(4, "br0", "bridge", nil))
	card, never := agenttest.HostVeth(20, 5), agenttest.HostVeth(21, 5)
	card.Lower, never.Lower = 20, 21
	f.Put(rtnetlink.NoNSID, card, "192.0.2.14/24")
	f.Put(rtnetlink.NoNSID, never)
	for _, host := range []int32{20, 21} {
		inside := agenttest.PodVeth(host)
		inside.Index, inside.Master = host, 9 // a switch in the other namespace
		f.Put(5, inside)
	}
	k := newTestKernel(t, f)
	want := func(when string, uplink bool) {
		t.Helper()
		for index, want := range map[int32]bool{20: uplink, 21: false} {
			if got := k.own.links[index].published.GetUplink(); got != want {
				t.Errorf("%s, veth%d: got uplink %v, want %v", when, index, got, want)
			}
		}
	}
	want("with an address", true)
	k.Handle(&rtnetlink.Message{Type: unix.RTM_DELADDR, NSID: rtnetlink.NoNSID, Address: agenttest.Address(20, "192.0.2.14/24")})
	want("its lease has ended", true)
	card.Master, card.SlaveKind = 4, "bridge"
	k.Handle(&rtnetlink.Message{Type: unix.RTM_NEWLINK, NSID: rtnetlink.NoNSID, Link: card})
	want("in a bridge without an address", false)
}
