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

// DAD makes an Ethernet frame with a neighbour solicitation that asks whether an
// IPv6 address is free (RFC 4862, section 5.4.2): its source is unspecified.
func DAD(sha net.HardwareAddr, target netip.Addr) []byte {
	const icmpLen = 24
	addr := target.As16()
	group := append([]byte{0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff}, addr[13:]...)
	icmp := append([]byte{135, 0, 0, 0, 0, 0, 0, 0}, addr[:]...)

	// The sum over the pseudo-header (RFC 8200, section 8.1) and the message.
	sum := uint32(icmpLen + unix.IPPROTO_ICMPV6)
	for _, part := range [][]byte{group, icmp} {
		for i := 0; i < len(part); i += 2 {
			sum += uint32(part[i])<<8 | uint32(part[i+1])
		}
	}
	sum = sum&0xffff + sum>>16
	sum = ^(sum + sum>>16)
	icmp[2], icmp[3] = byte(sum>>8), byte(sum)

	f := append([]byte{0x33, 0x33}, group[12:]...)
	f = append(f, sha...)
	f = append(f, 0x86, 0xdd, 0x60, 0, 0, 0, 0, icmpLen, unix.IPPROTO_ICMPV6, 255)
	f = append(f, make([]byte, 16)...) // ::
	f = append(f, group...)
	return append(f, icmp...)
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
