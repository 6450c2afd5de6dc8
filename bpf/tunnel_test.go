package bpf

import (
	"encoding/binary"
	"net"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
)

// A VXLAN device that serves many networks has frames without a tag. The bridge knows their VLANs by their tunnels.
func TestFramesOfTunnelsAreInTheVLANsOfTheirBridge(t *testing.T) {
	forEachMode(t, func(t *testing.T, attach func(*Observer, int) (*Attachment, error), _ Mode) {
		c := connect(t)
		o := newObserver(t)
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		inner := &netlink.Vxlan{LinkAttrs: netlink.LinkAttrs{Name: "vx0"}, FlowBased: true, Port: 4789}
		must(netlink.LinkAdd(inner))
		must(netlink.LinkSetUp(inner))
		vx, err := netlink.LinkByName("vx0")
		must(err)
		ifindex := vx.Attrs().Index
		a, err := attach(o, ifindex)
		attached(t, a, err)

		address := func(l netlink.Link, text string) {
			t.Helper()
			addr, err := netlink.ParseAddr(text)
			must(err)
			addr.Flags = 0x02 // IFA_F_NODAD
			must(netlink.AddrAdd(l, addr))
		}
		address(c.here, "198.51.100.1/24")
		address(c.here, "2001:db8::1/64")
		outer := map[string]net.Conn{}
		c.inPeer(t, func() {
			address(c.peerLink(t), "198.51.100.2/24")
			address(c.peerLink(t), "2001:db8::2/64")
			for _, to := range []string{"198.51.100.1:4789", "[2001:db8::1]:4789"} {
				outer[to], err = net.Dial("udp", to)
				must(err)
			}
		})
		n := byte(0)
		want := func(what string, vni uint32, tags []vlanTag, vlan uint16) {
			t.Helper()
			for to, conn := range outer {
				n++
				frame := arpFrame{op: 1, sha: MAC{0x02, 0, 0, 0, 0, n}, spa: netip.AddrFrom4([4]byte{10, 1, 0, n}), tpa: addrB, tags: tags}
				packet := binary.BigEndian.AppendUint32([]byte{0x08, 0, 0, 0}, vni<<8) // RFC 7348, section 5
				_, err := conn.Write(append(packet, frame.bytes()...))
				must(err)
				if ev := o.await(t); ev.Addr != frame.spa || ev.VLAN != vlan || ev.Ifindex != uint32(ifindex) {
					t.Errorf("%s, to %s: got %+v, want VLAN %d of %s", what, to, ev, vlan, frame.spa)
				}
			}
		}
		want("unknown tunnel", 10010, nil, 0)
		must(o.SetTunnels(ifindex, map[uint32]uint16{10010: 10, 10020: 20}))
		must(o.SetTunnels(ifindex+1, map[uint32]uint16{10030: 30}))
		want("first tunnel", 10010, nil, 10)
		want("second tunnel", 10020, nil, 20)
		want("tunnel of another port", 10030, nil, 0)
		want("frame with a tag", 10010, []vlanTag{{0x8100, 7}}, 7)
		must(o.SetTunnels(ifindex, map[uint32]uint16{10010: 11, 10040: 40}))
		want("changed tunnel", 10010, nil, 11)
		want("removed tunnel", 10020, nil, 0)
		want("new tunnel", 10040, nil, 40)
		must(o.SetTunnels(ifindex+1, nil))
		want("tunnel that stays", 10040, nil, 40)
		must(o.SetTunnels(ifindex, nil))
		want("no tunnel", 10040, nil, 0)
	})
}
