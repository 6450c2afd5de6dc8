package bpf

import (
	"encoding/binary"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// enterNamespace moves the test into its own network namespace. Its thread is never unlocked, so Go
// ends it with the test, and the namespace with it.
func enterNamespace(tb testing.TB) netns.NsHandle {
	tb.Helper()
	requireRoot(tb)
	runtime.LockOSThread()
	return newNamespace(tb)
}

// newNamespace creates another namespace and enters it. The caller must own its thread.
func newNamespace(tb testing.TB) netns.NsHandle {
	tb.Helper()
	ns, err := netns.New()
	if err != nil {
		tb.Fatal("create network namespace: ", err)
	}
	tb.Cleanup(func() { _ = ns.Close() })
	return ns
}

// cable is a veth pair from the test's namespace to a host in another one.
type cable struct {
	here     netlink.Link
	ifindex  int // of here
	peer     netns.NsHandle
	socket   int // raw, on the peer's end
	peerAddr unix.SockaddrLinklayer
}

// connect moves the test into a new namespace that has one end of a cable.
func connect(tb testing.TB) *cable {
	tb.Helper()
	requireRoot(tb)
	runtime.LockOSThread()
	c := &cable{peer: newNamespace(tb)}
	home := newNamespace(tb)
	must := func(what string, err error) {
		tb.Helper()
		if err != nil {
			tb.Fatalf("%s: %v", what, err)
		}
	}
	must("add veth pair", netlink.LinkAdd(&netlink.Veth{
		LinkAttrs:     netlink.LinkAttrs{Name: "eth0"},
		PeerName:      "eth0",
		PeerNamespace: netlink.NsFd(c.peer),
	}))
	var err error
	c.here, err = netlink.LinkByName("eth0")
	must("find eth0", err)
	c.ifindex = c.here.Attrs().Index
	must("set eth0 up", netlink.LinkSetUp(c.here))

	// The peer is set up last, because it can send immediately.
	must("enter peer's namespace", netns.Set(c.peer))
	peer, err := netlink.LinkByName("eth0")
	must("find peer's eth0", err)
	must("set peer's eth0 up", netlink.LinkSetUp(peer))
	c.socket, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(htons(unix.ETH_P_ARP)))
	must("open packet socket", err)
	tb.Cleanup(func() { _ = unix.Close(c.socket) })
	c.peerAddr = unix.SockaddrLinklayer{Ifindex: peer.Attrs().Index, Protocol: htons(unix.ETH_P_ARP)}
	must("bind packet socket", unix.Bind(c.socket, &c.peerAddr))
	timeout := unix.NsecToTimeval(int64(200 * time.Millisecond))
	must("set timeout", unix.SetsockoptTimeval(c.socket, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout))
	must("enter own namespace", netns.Set(home))
	return c
}

// peerLink returns the peer's end. It must be called in the peer's namespace.
func (c *cable) peerLink(tb testing.TB) netlink.Link {
	tb.Helper()
	l, err := netlink.LinkByIndex(c.peerAddr.Ifindex)
	if err != nil {
		tb.Fatal("find peer's eth0: ", err)
	}
	return l
}

// inPeer runs f in the peer's namespace.
func (c *cable) inPeer(tb testing.TB, f func()) {
	tb.Helper()
	home, err := netns.Get()
	if err != nil {
		tb.Fatal(err)
	}
	defer func() { _ = home.Close() }()
	if err := netns.Set(c.peer); err != nil {
		tb.Fatal("enter peer's namespace: ", err)
	}
	f()
	if err := netns.Set(home); err != nil {
		tb.Fatal("enter own namespace: ", err)
	}
}

// send sends a frame from the peer.
func (c *cable) send(tb testing.TB, frame []byte) {
	tb.Helper()
	if err := unix.Sendto(c.socket, frame, 0, &c.peerAddr); err != nil {
		tb.Fatal("send frame: ", err)
	}
}

// answers makes the peer send requests for an address of this end until it receives an answer.
func (c *cable) answers(tb testing.TB, spa, tpa netip.Addr) {
	tb.Helper()
	const tries = 300
	frame := make([]byte, 1514)
	for range tries {
		c.send(tb, request(macB, spa, tpa))
		n, _, err := unix.Recvfrom(c.socket, frame, 0)
		if err != nil {
			continue // timeout
		}
		if b, result := Decode(frame[:n], 0); result == ResultEvent && b.Kind == Answered && b.Addr == tpa {
			return
		}
	}
	tb.Errorf("got no answer of the kernel to %d ARP requests, want one", tries)
}

func htons(v uint16) uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, v))
}
