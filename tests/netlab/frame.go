package netlab

import (
	"fmt"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"
)

// ARP makes an Ethernet frame with an ARP packet (RFC 826) to everybody.
func ARP(op uint16, sha net.HardwareAddr, spa, tpa netip.Addr) []byte {
	f := append([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, sha...)
	f = append(f, 0x08, 0x06, 0, 1, 0x08, 0, 6, 4, byte(op>>8), byte(op))
	f = append(f, sha...)
	f = append(f, spa.AsSlice()...)
	f = append(f, 0, 0, 0, 0, 0, 0)
	return append(f, tpa.AsSlice()...)
}

// Send sends frames by an interface of the calling thread's namespace: call it
// inside Do.
func Send(ifname string, frames ...[]byte) error {
	i, err := net.InterfaceByName(ifname)
	if err != nil {
		return fmt.Errorf("find interface: %w", err)
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open packet socket: %w", err)
	}
	defer func() { _ = unix.Close(fd) }()
	for _, f := range frames {
		if err := unix.Sendto(fd, f, 0, &unix.SockaddrLinklayer{Ifindex: i.Index}); err != nil {
			return fmt.Errorf("send frame by %s: %w", ifname, err)
		}
	}
	return nil
}
