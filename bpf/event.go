package bpf

import (
	"net"
	"net/netip"
	"time"
)

// Protocol is the protocol of a claim.
type Protocol uint8

// The protocols.
const (
	// ARP is the protocol of RFC 826, for IPv4.
	ARP = Protocol(observeProtocolPROTOCOL_ARP)
	// NDP is neighbour discovery, RFC 4861, for IPv6.
	NDP = Protocol(observeProtocolPROTOCOL_NDP)
)

// String returns the name of the protocol in metrics.
func (p Protocol) String() string {
	if p == NDP {
		return "ndp"
	}
	return "arp"
}

// Kind is the way in which a frame claims an address.
type Kind uint8

// The kinds of claims.
const (
	// Announced is a gratuitous ARP: a request or reply whose target is the sender's own address
	// (RFC 5227, sections 1.1 and 3). It is also an unsolicited neighbour advertisement, including
	// one that defends an address against a probe (RFC 4861, section 7.2.4).
	Announced = Kind(observeKindKIND_ANNOUNCED)
	// Answered is an ARP reply, or a solicited neighbour advertisement.
	Answered = Kind(observeKindKIND_ANSWERED)
	// Used is an ARP request for another address, or a neighbour solicitation. The claim is for the
	// sender's own address.
	Used = Kind(observeKindKIND_USED)
)

// MAC is an Ethernet address.
type MAC [6]byte

// String returns the address in the form 02:00:5e:10:00:01.
func (m MAC) String() string {
	return net.HardwareAddr(m[:]).String()
}

// Event is one claim: the holder of SHA claims Addr.
type Event struct {
	// Ktime is the time at which the frame arrived, on CLOCK_MONOTONIC.
	Ktime time.Duration
	// Ifindex is the index of the interface on which the frame arrived, in the namespace of that
	// interface.
	Ifindex uint32
	// VLAN and InnerVLAN are the outer and inner VIDs of the frame, without priority tags; 0 means
	// none.
	VLAN, InnerVLAN uint16
	Protocol        Protocol
	Kind            Kind
	// NoOverride is set for a neighbour advertisement without the Override flag, as sent by
	// proxies, by holders of anycast addresses, and for optimistic addresses (RFC 4861, sections
	// 4.4, 7.2.7 and 7.2.8, RFC 4429, RFC 9131). Claims with and without it are reported
	// independently of each other.
	NoOverride bool
	// Addr is never an IPv4-mapped IPv6 address.
	Addr netip.Addr
	// SHA is the holder's hardware address in the ARP or NDP message, and Source is the source
	// address of the Ethernet frame. If they differ, the sender claims the address on behalf of
	// another host.
	SHA, Source MAC
	// Frames is the number of frames of this binding since its last event of any kind, including
	// this frame.
	Frames uint32
}

// set converts an event of the kernel.
func (ev *Event) set(raw *observeEvent) {
	*ev = Event{
		Ktime:      time.Duration(raw.Ktime),
		Ifindex:    raw.Ifindex,
		VLAN:       raw.Vlan,
		InnerVLAN:  raw.InnerVlan,
		Protocol:   Protocol(raw.Protocol),
		Kind:       Kind(raw.Kind),
		NoOverride: raw.NoOverride != 0,
		Addr:       netip.AddrFrom16(raw.Addr).Unmap(),
		SHA:        raw.Sha,
		Source:     raw.Source,
		Frames:     raw.Frames,
	}
}
