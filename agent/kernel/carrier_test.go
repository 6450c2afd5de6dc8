package kernel

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ipwitness/ipwitness/agent/rtnetlink"
	"github.com/ipwitness/ipwitness/tests/agenttest"
)

// A link leads out of the node while one of its uplinks has a carrier. A link without uplinks has no carrier to lose.
func TestALinkLosesItsCarrierWithItsLastUplink(t *testing.T) {
	const plugged, unplugged = unix.IFF_UP | unix.IFF_LOWER_UP, unix.IFF_UP
	card := func(index int32, name string, flags uint32) rtnetlink.Link {
		return rtnetlink.Link{Index: index, Name: name, MAC: "card-" + name[3:], ARPHRD: unix.ARPHRD_ETHER, Flags: flags, LowerNSID: rtnetlink.NoNSID}
	}
	device := func(index int32, name, kind string, flags uint32) rtnetlink.Link {
		l := card(index, name, flags)
		l.Kind = kind
		return l
	}
	in := func(l rtnetlink.Link, kind string) rtnetlink.Link {
		l.Master, l.SlaveKind = 20, kind
		return l
	}
	for name, test := range map[string]struct {
		start, now []rtnetlink.Link
		link       string
		want       bool
	}{
		"a card":                          {nil, []rtnetlink.Link{card(2, "eth0", unplugged)}, "eth0", true},
		"a card without a cable at first": {[]rtnetlink.Link{card(2, "eth0", unplugged)}, nil, "eth0", true},
		"a VLAN of a card": {
			[]rtnetlink.Link{card(2, "eth0", plugged), {Index: 3, Name: "eth0.10", Kind: "vlan", Lower: 2, VLAN: 10, MAC: "card-0", ARPHRD: unix.ARPHRD_ETHER, Flags: plugged, LowerNSID: rtnetlink.NoNSID}},
			[]rtnetlink.Link{card(2, "eth0", unplugged)},
			"eth0.10", true,
		},
		"one slave of a bond": {
			[]rtnetlink.Link{device(20, "bond0", "bond", plugged), in(card(2, "eth0", plugged), "bond"), in(card(3, "eth1", plugged), "bond")},
			[]rtnetlink.Link{in(card(2, "eth0", unplugged), "bond")},
			"bond0", false,
		},
		"both slaves of a bond": {
			[]rtnetlink.Link{device(20, "bond0", "bond", plugged), in(card(2, "eth0", plugged), "bond"), in(card(3, "eth1", plugged), "bond")},
			[]rtnetlink.Link{in(card(2, "eth0", unplugged), "bond"), in(card(3, "eth1", unplugged), "bond")},
			"bond0", true,
		},
		"the uplink of a bridge with a tap": {
			[]rtnetlink.Link{device(20, "br0", "bridge", plugged), in(card(2, "eth0", plugged), "bridge"), in(device(3, "tap0", "tun", plugged), "bridge")},
			[]rtnetlink.Link{in(card(2, "eth0", unplugged), "bridge")},
			"br0", true,
		},
		"a bridge without ports": {
			[]rtnetlink.Link{device(20, "docker0", "bridge", plugged)}, []rtnetlink.Link{device(20, "docker0", "bridge", unplugged)}, "docker0", false,
		},
		"a tap": {
			[]rtnetlink.Link{device(20, "tap0", "tun", plugged)}, []rtnetlink.Link{device(20, "tap0", "tun", unplugged)}, "tap0", false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := agenttest.Fake{}
			if test.start == nil {
				test.start = []rtnetlink.Link{card(2, "eth0", plugged)}
			}
			for _, l := range test.start {
				f.Put(rtnetlink.NoNSID, l, "192.0.2.1"+string('0'+rune(l.Index%10))+"/24")
			}
			k := newTestKernel(t, f)
			change := func(l rtnetlink.Link) {
				k.Handle(&rtnetlink.Message{Type: unix.RTM_NEWLINK, NSID: rtnetlink.NoNSID, Link: l})
			}
			for _, l := range test.now {
				change(l)
			}
			if got := k.table.Links.Get(test.link).GetNoCarrier(); got != test.want {
				t.Errorf("got no carrier %v, want %v", got, test.want)
			}
			for _, l := range append(test.start, test.now...) {
				l.Flags = plugged
				change(l)
			}
			if l := k.table.Links.Get(test.link); l == nil || l.GetNoCarrier() {
				t.Errorf("got link %v, want one with a carrier again", l)
			}
		})
	}
}
