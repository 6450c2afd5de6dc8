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
