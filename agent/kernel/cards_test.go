package kernel

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ipwitness/ipwitness/agent/rtnetlink"
	"github.com/ipwitness/ipwitness/agent/table"
	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/agenttest"
)

// A card of the node is the only interface of a container, and on the LAN of eth0: its frames enter eth0. Other nodes on the
// machine, whose cards are veths to a switch, are none of our containers.
func TestCardsInOtherNamespaces(t *testing.T) {
	const addr, mac = "192.0.2.20", "card01"
	card := rtnetlink.Link{Index: 9, Name: "ens1", MAC: mac, Flags: agenttest.Up, LowerNSID: rtnetlink.NoNSID}
	down, veth := card, card
	down.Flags = 0
	veth.Kind, veth.Lower, veth.LowerNSID = "veth", 5, 99
	for _, test := range []struct {
		name        string
		card        rtnetlink.Link
		index       int32
		addr, mac   string
		vlan        uint16
		source      string
		want, after string // the link when the frame was seen, and when eth0 is gone
	}{
		{"a frame of the card", card, 2, addr, mac, 0, "", "eth0", ""},
		{"a frame of another card", card, 2, addr, "card02", 0, "", "none", "none"},
		{"a frame of a machine behind it", card, 2, "192.0.2.99", mac, 0, "", "none", "none"},
		{"a frame that another device sent", card, 2, addr, mac, 0, "card02", "none", "none"},
		{"a frame in a VLAN", card, 2, addr, mac, 7, "", "none", "none"},
		{"a frame from a pod", card, 20, addr, mac, 0, "", "none", "none"},
		{"a card that is down", down, 2, addr, mac, 0, "", "none", "none"},
		{"a veth to a namespace that is not known", veth, 2, addr, mac, 0, "", "none", "none"},
	} {
		f := answeringHost()
		f.Put(9, test.card, addr+"/24")
		k := newTestKernel(t, f)
		ns := k.byNSID[9]
		link := func() string {
			r := k.table.Interfaces.Get(table.InterfaceKey{Namespace: ns.id, Index: 9})
			if r == nil {
				return "none"
			}
			if lower := r.GetAttachment() == ipwitnessv1.InterfaceRecord_LOWER; lower != (r.GetLink() != "") {
				t.Errorf("%s: got %v, want it private without a link", test.name, r)
			}
			return r.GetLink()
		}
		if got := link(); got != "none" {
			t.Errorf("%s: got link %q before, want no record", test.name, got)
		}
		key := wireKey(test.index, ipwitnessv1.Evidence_USED, test.addr, test.mac)
		key.VLAN, key.Source = test.vlan, test.source
		k.AddFrame(key, seenNow())
		if got := link(); got != test.want {
			t.Errorf("%s: got link %q, want %q", test.name, got, test.want)
		}
		k.Handle(&rtnetlink.Message{Type: unix.RTM_DELLINK, NSID: rtnetlink.NoNSID, Link: k.own.links[2].Link})
		if got := link(); got != test.after {
			t.Errorf("%s: got link %q without eth0, want %q", test.name, got, test.after)
		}
	}
}

// Nothing tells where these interfaces of containers lead: to a program (pasta), or through another interface of the container.
func TestInterfacesOfContainersWithoutALink(t *testing.T) {
	pasta := rtnetlink.Link{Index: 9, Name: "eth0", Kind: "tun", MAC: "card01", Flags: agenttest.Up, LowerNSID: rtnetlink.NoNSID}
	tagged := rtnetlink.Link{Index: 9, Name: "eth0.10", Kind: "vlan", VLAN: 10, Lower: 2, MAC: "card01", Flags: agenttest.Up, LowerNSID: rtnetlink.NoNSID}
	for _, test := range []struct {
		name     string
		nsid     int32
		l        rtnetlink.Link
		reported bool
	}{
		{"the only interface of a container, which pasta serves", 9, pasta, false},
		{"one beside the veth of a pod", 5, pasta, true},
		{"a VLAN device on the veth of a pod", 5, tagged, true},
	} {
		f := answeringHost()
		f.Put(test.nsid, test.l, "192.0.2.20/24")
		k := newTestKernel(t, f)
		k.AddFrame(wireKey(2, ipwitnessv1.Evidence_USED, "192.0.2.20", "card01"), seenNow())
		r := k.table.Interfaces.Get(table.InterfaceKey{Namespace: k.byNSID[test.nsid].id, Index: 9})
		if reported := r != nil; reported != test.reported || reported && (r.GetAttachment() != ipwitnessv1.InterfaceRecord_PRIVATE || r.GetLink() != "") {
			t.Errorf("%s: got %v, want a private interface without a link %t", test.name, r, test.reported)
		}
	}
}
