package netlab

import (
	"fmt"
	"net"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"
)

// ARP returns a broadcast Ethernet frame with an ARP packet (RFC 826).
func ARP(op uint16, sha net.HardwareAddr, spa, tpa netip.Addr) []byte {
	f := append([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, sha...)
	f = append(f, 0x08, 0x06, 0, 1, 0x08, 0, 6, 4, byte(op>>8), byte(op))
	f = append(f, sha...)
	f = append(f, spa.AsSlice()...)
	f = append(f, 0, 0, 0, 0, 0, 0)
	return append(f, tpa.AsSlice()...)
}

// DAD returns an Ethernet frame with the neighbour solicitation of duplicate address detection (RFC
// 4862, section 5.4.2), whose source is unspecified.
func DAD(sha net.HardwareAddr, target netip.Addr) []byte {
	const icmpLen = 24
	addr := target.As16()
	group := append([]byte{0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff}, addr[13:]...)
	icmp := append([]byte{135, 0, 0, 0, 0, 0, 0, 0}, addr[:]...)

	checksum(icmp, group)

	f := append([]byte{0x33, 0x33}, group[12:]...)
	f = append(f, sha...)
	f = append(f, 0x86, 0xdd, 0x60, 0, 0, 0, 0, icmpLen, unix.IPPROTO_ICMPV6, 255)
	f = append(f, make([]byte, 16)...) // ::
	f = append(f, group...)
	return append(f, icmp...)
}

// checksum sets the checksum of an ICMPv6 message of an even length. It covers the
// pseudo-header with the two addresses (RFC 8200, section 8.1) and the message.
func checksum(icmp []byte, addrs ...[]byte) {
	sum := uint32(len(icmp) + unix.IPPROTO_ICMPV6)
	for _, part := range append(addrs, icmp) {
		for i := 0; i < len(part); i += 2 {
			sum += uint32(part[i])<<8 | uint32(part[i+1])
		}
	}
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	icmp[2], icmp[3] = byte(^sum>>8), byte(^sum)
}

// Forged is a forged answer that tells one host the hardware address of another.
type Forged struct {
	// To and Source are the addresses of the Ethernet frame, SHA is the claimed hardware
	// address of Addr.
	To, Source, SHA net.HardwareAddr
	// Addr is the claimed address, Asker the address of the host that receives the answer.
	Addr, Asker netip.Addr
	// HardwareType is the hardware type in ARP; 0 means Ethernet.
	HardwareType byte
	// PriorityTags is the number of VLAN tags with VID 0.
	PriorityTags int
	// VLANs are the VIDs of further tags.
	VLANs []uint16
	// Extensions and Options are the numbers of headers and options without meaning that
	// precede NDP and its link-layer address option.
	Extensions, Options int
	// NoOverride clears the Override flag.
	NoOverride bool
}

// Frame returns the answer as an Ethernet frame: ARP for an IPv4 address, NDP for an
// IPv6 address.
func (a Forged) Frame() []byte {
	f := slices.Concat(a.To, a.Source)
	for range a.PriorityTags {
		f = append(f, 0x81, 0, 0, 0)
	}
	for _, vid := range a.VLANs {
		f = append(f, 0x81, 0, byte(vid>>8), byte(vid))
	}
	if a.Addr.Is4() {
		f = append(f, 0x08, 0x06, 0, max(a.HardwareType, 1), 0x08, 0, 6, 4, 0, 2)
		return slices.Concat(f, a.SHA, a.Addr.AsSlice(), a.To, a.Asker.AsSlice())
	}
	flags := byte(0x60) // the Solicited and Override flags
	if a.NoOverride {
		flags = 0x40
	}
	icmp := append([]byte{136, 0, 0, 0, flags, 0, 0, 0}, a.Addr.AsSlice()...)
	for range a.Options {
		icmp = append(icmp, 253, 1, 0, 0, 0, 0, 0, 0) // option for experiments (RFC 4727)
	}
	icmp = append(append(icmp, 2, 1), a.SHA...)
	checksum(icmp, a.Addr.AsSlice(), a.Asker.AsSlice())

	const destinationOptions = 60
	next := byte(unix.IPPROTO_ICMPV6)
	var headers []byte
	for range a.Extensions {
		headers = slices.Concat([]byte{next, 0, 1, 4, 0, 0, 0, 0}, headers) // padding
		next = destinationOptions
	}
	n := len(headers) + len(icmp)
	f = append(f, 0x86, 0xdd, 0x60, 0, 0, 0, byte(n>>8), byte(n), next, 255)
	return slices.Concat(f, a.Addr.AsSlice(), a.Asker.AsSlice(), headers, icmp)
}

// Send sends frames on an interface of the calling thread's namespace. Call it inside Do.
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
