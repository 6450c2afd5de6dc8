package kernel

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ipwitness/ipwitness/agent/rtnetlink"
	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/agenttest"
)

// The userspace datapath of Open vSwitch makes its ports promiscuous, and creates a TAP device.
func TestPortsOfTheUserspaceDatapathOfOpenVSwitch(t *testing.T) {
	f := agenttest.Fake{}
	port := rtnetlink.Link{Index: 20, Name: "veth20", Kind: "veth", MAC: "veth20", Flags: agenttest.Up, Lower: 2, LowerNSID: 5}
	f.Put(rtnetlink.NoNSID, port)
	f.Put(5, agenttest.PodVeth(20))
	k := newTestKernel(t, f)
	tap := rtnetlink.Link{Index: 30, Name: "ovs-netdev", Kind: "tun", MAC: "netdev", LowerNSID: rtnetlink.NoNSID}
	set := func(l rtnetlink.Link) {
		f[rtnetlink.NoNSID].Links[l.Index] = l
		k.Handle(&rtnetlink.Message{Type: unix.RTM_NEWLINK, NSID: rtnetlink.NoNSID, Link: l})
	}
	want := func(when string, kind ipwitnessv1.LinkRecord_Kind) {
		t.Helper()
		if got := k.table.Links.Get("veth20").GetKind(); got != kind {
			t.Errorf("%s: got %s, want %s", when, got, kind)
		}
	}
	want("first", ipwitnessv1.LinkRecord_POINT_TO_POINT)
	set(tap)
	want("Open vSwitch has started", ipwitnessv1.LinkRecord_POINT_TO_POINT)
	port.Flags |= unix.IFF_PROMISC
	set(port)
	want("it is a port", ipwitnessv1.LinkRecord_OVS_PORT)
	port.Flags &^= unix.IFF_PROMISC
	set(port)
	want("it is no port any more", ipwitnessv1.LinkRecord_POINT_TO_POINT)
	port.Flags |= unix.IFF_PROMISC
	set(port)
	delete(f[rtnetlink.NoNSID].Links, tap.Index)
	k.Handle(&rtnetlink.Message{Type: unix.RTM_DELLINK, NSID: rtnetlink.NoNSID, Link: tap})
	want("a promiscuous interface without Open vSwitch", ipwitnessv1.LinkRecord_POINT_TO_POINT)
}

// The host bridge of Open vSwitch (br-ex) has the node's address and the MAC of the card under it: both are one link that leads out
// of the node. Internal ports with a MAC of their own, and pods, are links of their own.
func TestTheHostBridgeOfOpenVSwitchIsOnTheLinkOfItsCard(t *testing.T) {
	port := func(index int32, name, kind, slave, mac string) rtnetlink.Link {
		l := rtnetlink.Link{Index: index, Name: name, Kind: kind, SlaveKind: slave, MAC: mac, ARPHRD: unix.ARPHRD_ETHER, Flags: agenttest.Up, LowerNSID: rtnetlink.NoNSID}
		if slave != "" {
			l.Master = 10
		}
		return l
	}
	for _, test := range []struct {
		name  string
		links []rtnetlink.Link
		want  string // the links of br-ex and of frames that enter eth0
	}{
		{"br-ex", nil, "eth0 UPLINK, eth0 UPLINK"},
		{"another MAC", []rtnetlink.Link{port(11, "br-ex", "openvswitch", "", "bridge")}, "br-ex UPLINK, eth0 OVS_PORT"},
		{"two internal ports with the MAC", []rtnetlink.Link{port(12, "vlan10", "openvswitch", "", "card00")}, "br-ex UPLINK, eth0 OVS_PORT"},
		{"two cards with the MAC", []rtnetlink.Link{port(3, "eth1", "", "openvswitch", "card00")}, "br-ex UPLINK, eth0 OVS_PORT"},
		{"the MAC of a pod's port", []rtnetlink.Link{port(2, "eth0", "veth", "openvswitch", "card00")}, "br-ex UPLINK, eth0 OVS_PORT"},
	} {
		f := agenttest.Fake{}
		for _, l := range append([]rtnetlink.Link{port(10, "ovs-system", "openvswitch", "", "system"), port(2, "eth0", "", "openvswitch", "card00"), port(11, "br-ex", "openvswitch", "", "card00")}, test.links...) {
			f.Put(rtnetlink.NoNSID, l)
		}
		k := newTestKernel(t, f)
		got := ""
		for _, index := range []int32{11, 2} {
			d := k.domainOf(k.own.links[index])
			got += ", " + d.name + " " + d.kind.String()
		}
		if got != ", "+test.want {
			t.Errorf("%s: got links%s, want %s", test.name, got, test.want)
		}
	}
}
