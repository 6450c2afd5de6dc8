package bpf

import (
	"fmt"
	"net"
	"net/netip"
	"time"
)

// Protocol is what a claim was made in.
type Protocol uint8

// The protocols.
const (
	// ARP is the protocol of RFC 826, for IPv4.
	ARP = Protocol(observeProtocolPROTOCOL_ARP)
	// NDP is neighbour discovery, RFC 4861, for IPv6.
	NDP = Protocol(observeProtocolPROTOCOL_NDP)
)

// String gives the protocol as metrics name it.
func (p Protocol) String() string {
	switch p {
	case ARP:
		return "arp"
	case NDP:
		return "ndp"
	}
	return fmt.Sprintf("Protocol(%d)", uint8(p))
}

// Kind is how an address was claimed on the wire.
type Kind uint8

// The kinds of evidence that a frame can be.
const (
	// Announced is a gratuitous ARP: a request for, or a reply with, the
	// sender's own address (RFC 5227, sections 1.1 and 3). Or a neighbour
	// advertisement that nobody solicited, which is also how an address is
	// defended against one who probes for it (RFC 4861, section 7.2.4).
	Announced = Kind(observeKindKIND_ANNOUNCED)
	// Answered is an ARP reply, or a solicited neighbour advertisement.
	Answered = Kind(observeKindKIND_ANSWERED)
	// Used is an ARP request for another address, or a neighbour solicitation:
	// the sender's own address.
	Used = Kind(observeKindKIND_USED)
)

// String gives the kind as the report names it, such as ANNOUNCED.
func (k Kind) String() string {
	switch k {
	case Announced:
		return "ANNOUNCED"
	case Answered:
		return "ANSWERED"
	case Used:
		return "USED"
	}
	return fmt.Sprintf("Kind(%d)", uint8(k))
}

// MAC is an Ethernet address.
type MAC [6]byte

// String gives the address as 02:00:5e:10:00:01.
func (m MAC) String() string {
	return net.HardwareAddr(m[:]).String()
}

// Event is one claim: SHA says to hold Addr.
type Event struct {
	// Ktime is when the frame came, on CLOCK_MONOTONIC.
	Ktime time.Duration
	// Ifindex is the interface that it entered, in that interface's namespace.
	Ifindex uint32
	// VLAN and InnerVLAN are the VIDs of the frame from the outside in,
	// without priority tags. 0 is none.
	VLAN, InnerVLAN uint16
	Protocol        Protocol
	Kind            Kind
	// NoOverride is a neighbour advertisement that asks not to replace what
	// its receivers know: that of a proxy, of one of many holders of an anycast
	// address, or of one whose address is not sure yet (RFC 4861, sections 4.4,
	// 7.2.7 and 7.2.8, RFC 4429, RFC 9131). It is told even if the same binding
	// was told with override in this period, and the other way round.
	NoOverride bool
	// Addr is never an IPv4-mapped IPv6 address.
	Addr netip.Addr
	// SHA is the holder's hardware address by the protocol, Source that of
	// the Ethernet frame. Where they differ somebody speaks for somebody else.
	SHA, Source MAC
	// Frames counts those of this binding since its last event, of whatever
	// kind, with this one.
	Frames uint32
}

// set takes the event over from the kernel.
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
