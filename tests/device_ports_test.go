package tests

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	ipwitnessv1 "github.com/ipwitness/ipwitness/proto/ipwitness/v1"
	"github.com/ipwitness/ipwitness/tests/netlab"
)

func TestDeviceNetkitIsAPair(t *testing.T) {
	t.Parallel()
	for name, mode := range map[string]netlink.NetkitMode{"l2": netlink.NETKIT_MODE_L2, "l3": netlink.NETKIT_MODE_L3} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newDeviceLab(t, "netkit")
			for _, pod := range []string{"a", "b"} {
				l.sh("ip netns add " + pod)
				p, err := l.Pod(pod)
				if err != nil {
					t.Fatal(err)
				}
				pair := &netlink.Netkit{
					LinkAttrs: netlink.LinkAttrs{Name: "nk" + pod}, Mode: mode,
					Policy: netlink.NETKIT_POLICY_FORWARD, PeerPolicy: netlink.NETKIT_POLICY_FORWARD,
				}
				pair.SetPeerAttrs(&netlink.LinkAttrs{Name: "eth0", Namespace: netlink.NsFd(p.Fd())})
				err = l.Do(func() error { return netlink.LinkAdd(pair) })
				p.Close()
				if err != nil {
					t.Fatal(err)
				}
				l.sh(fmt.Sprintf("ip link set nk%s up", pod), fmt.Sprintf("ip -n %s link set eth0 up", pod))
				l.assign(pod, "10.0.0.5/32")
			}
			c := l.awaitConflict("10.0.0.5", "NODE node1", "assigned-twice", nil)
			if got, want := ownerNames(c), "a | b"; got != want {
				t.Errorf("owners: got %s, want %s", got, want)
			}
			if mode == netlink.NETKIT_MODE_L2 {
				l.ports(2)
				l.shout("a", "eth0", "10.0.0.5")
				l.evidenceBy("10.0.0.5", ipwitnessv1.Evidence_ANNOUNCED, "nka")
			}
			l.sh("ip netns del a")
			l.awaitNoConflict("10.0.0.5")
			l.awaitOwners("10.0.0.5", 1)
		})
	}
}

func TestDeviceOpenVSwitchPortsAreLinksOfTheirOwn(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	if err := h.Do(func() error { return openvswitch("ovs-system") }); err != nil {
		lacks(t, "Open vSwitch", err)
	}
	l := startLab(t, h)
	for _, pod := range []string{"a", "b"} {
		l.pod(pod)
		if err := l.Do(func() error { return openvswitch("ovs-system", "v"+pod) }); err != nil {
			t.Fatal(err)
		}
		l.assign(pod, "10.0.0.5/24")
	}
	// Only flows decide which frames pass between the ports, and the agent cannot know them.
	l.awaitScopes("10.0.0.5", "LINK node1/va", "LINK node1/vb")
	l.ports(2)
	l.shout("a", "eth0", "10.0.0.5")
	l.evidenceBy("10.0.0.5", ipwitnessv1.Evidence_ANNOUNCED, "va")
	l.wantOnlyPlanted()
	if c := l.watch.find("10.0.0.5"); slices.ContainsFunc(c, func(c *ipwitnessv1.Conflict) bool { return c.GetConfirmedAt() != nil }) {
		t.Errorf("one address behind two ports of Open vSwitch: got %v, want no conflict", c)
	}

	// A network plugin gave the address to both as pods.
	for _, pod := range []string{"a", "b"} {
		l.given(pod, "ovn-kubernetes", "10.0.0.5")
	}
	l.wantConflict("10.0.0.5", ipwitnessv1.Conflict_CONFIRMED, "assigned-twice", "default/a | default/b", "NETWORK pods")
}

// ovsHeader is struct ovs_header: the index of a datapath.
type ovsHeader uint32

// Len implements nl.NetlinkRequestData.
func (ovsHeader) Len() int { return 4 }

// Serialize implements nl.NetlinkRequestData.
func (h ovsHeader) Serialize() []byte { return nl.Uint32Attr(uint32(h)) }

// openvswitch creates a datapath of the kernel's Open vSwitch, or adds interfaces to it, in the
// calling thread's namespace, as ovs-vswitchd does (include/uapi/linux/openvswitch.h).
func openvswitch(datapath string, ports ...string) error {
	const (
		newOne          = 1 // OVS_DP_CMD_NEW, OVS_VPORT_CMD_NEW
		dpName          = 1 // OVS_DP_ATTR_NAME
		dpUpcallPID     = 2 // OVS_DP_ATTR_UPCALL_PID
		portType        = 2 // OVS_VPORT_ATTR_TYPE
		portName        = 3 // OVS_VPORT_ATTR_NAME
		portUpcallPID   = 5 // OVS_VPORT_ATTR_UPCALL_PID
		portTypeNetdev  = 1 // OVS_VPORT_TYPE_NETDEV
		dpVersion       = 2 // OVS_DATAPATH_VERSION
		portVersion     = 1 // OVS_VPORT_VERSION
		ovsDropsMisses  = 0 // upcall port ID: drop frames that match no flow
		noDatapathIndex = 0
	)
	request := func(family string, version uint8, dp int, attrs ...*nl.RtAttr) error {
		f, err := netlink.GenlFamilyGet(family)
		if err != nil {
			return fmt.Errorf("find %s: %w", family, err)
		}
		req := nl.NewNetlinkRequest(int(f.ID), unix.NLM_F_ACK)
		req.AddData(&nl.Genlmsg{Command: newOne, Version: version})
		req.AddData(ovsHeader(dp))
		for _, a := range attrs {
			req.AddData(a)
		}
		_, err = req.Execute(unix.NETLINK_GENERIC, 0)
		return err
	}
	if len(ports) == 0 {
		return request("ovs_datapath", dpVersion, noDatapathIndex,
			nl.NewRtAttr(dpName, nl.ZeroTerminated(datapath)), nl.NewRtAttr(dpUpcallPID, nl.Uint32Attr(ovsDropsMisses)))
	}
	dp, err := net.InterfaceByName(datapath)
	if err != nil {
		return err
	}
	for _, port := range ports {
		err := request("ovs_vport", portVersion, dp.Index, nl.NewRtAttr(portType, nl.Uint32Attr(portTypeNetdev)),
			nl.NewRtAttr(portName, nl.ZeroTerminated(port)), nl.NewRtAttr(portUpcallPID, nl.Uint32Attr(ovsDropsMisses)))
		if err != nil {
			return fmt.Errorf("add port %s: %w", port, err)
		}
	}
	return nil
}

func TestDeviceTapOfAVirtualMachineOnARoutedBridge(t *testing.T) {
	t.Parallel()
	l := newDeviceLab(t, "tap")
	l.sh("ip link add virbr0 type bridge", "ip link set virbr0 up", "ip addr add 10.0.0.1/24 dev virbr0")
	l.pod("web")
	l.sh("ip link set vweb master virbr0")
	l.assign("web", "10.0.0.5/24")
	machine := l.tap("tap0")
	l.sh("ip link set tap0 master virbr0", "ip link set tap0 up")
	l.bridged(2)
	send := func(frame []byte) {
		if _, err := machine.Write(frame); err != nil {
			t.Fatal(err)
		}
	}
	send(claim("10.0.0.6"))
	l.awaitScopes("10.0.0.6", "NODE node1")
	c := l.awaitConflict("10.0.0.5", "NODE node1", "assigned-and-wire", func() { send(claim("10.0.0.5")) })
	if !strings.Contains(c.GetSummary(), externalMAC.String()) {
		t.Errorf("summary does not name the machine's MAC: %q", c.GetSummary())
	}
	// When the machine is turned off, its port disappears.
	if err := machine.Close(); err != nil {
		t.Fatal(err)
	}
	l.awaitNoConflict("10.0.0.5")
	l.awaitOwners("10.0.0.6", 0)
}

// Incident 62, canonical/lxd#15117: a virtual machine was copied, and its copy gets the same lease. No agent runs in them.
func TestIncidentTheCopyOfAVirtualMachineHasItsAddress(t *testing.T) {
	t.Parallel()
	const addr = "10.0.0.6"
	l := newDeviceLab(t, "tap")
	i := l.incident(62)
	l.sh("ip link add virbr0 type bridge", "ip link set virbr0 up", "ip addr add 10.0.0.1/24 dev virbr0")
	start := func(port string, mac byte, own string) (machine *os.File, silence func()) {
		machine = l.tap(port)
		l.sh("ip link set "+port+" master virbr0", "ip link set "+port+" up")
		a := netip.MustParseAddr(own)
		return machine, talks(t, func() { _, _ = machine.Write(netlab.ARP(1, net.HardwareAddr{0x52, 0x54, 0, 0, 0, mac}, a, a)) })
	}
	start("tap0", 1, addr)
	start("tap2", 3, "10.0.0.7") // a look-alike
	machine, silence := start("tap1", 2, addr)
	l.bridged(3)
	i.conflicted(addr, "unknown")
	l.wantConfirmed(addr)
	silence() // the copy is turned off, and with it goes its port
	if err := machine.Close(); err != nil {
		t.Fatal(err)
	}
	i.remedied()
}

// tap creates a tap device on the host and returns its other end, which a virtual machine would
// use. The device exists until that is closed.
func (l *lab) tap(name string) *os.File {
	l.t.Helper()
	var f *os.File
	err := l.Do(func() error {
		fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		f = os.NewFile(uintptr(fd), name)
		req, err := unix.NewIfreq(name)
		if err != nil {
			return err
		}
		req.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI)
		return unix.IoctlIfreq(fd, unix.TUNSETIFF, req)
	})
	if err != nil {
		l.t.Fatal("make tap device: ", err)
	}
	l.t.Cleanup(func() { _ = f.Close() })
	return f
}
