package bpf

import (
	"fmt"
	"net"
	"net/netip"
	"time"
)

// Protocol is what a claim was made in.
type Protocol uint8

// ARP is the protocol of RFC 826.
const ARP = Protocol(observeProtocolPROTOCOL_ARP)

// String gives the protocol as metrics name it.
func (p Protocol) String() string {
	if p == ARP {
		return "arp"
	}
	return fmt.Sprintf("Protocol(%d)", uint8(p))
}

// Kind is how an address was claimed on the wire.
type Kind uint8

// The kinds of evidence that a frame can be (RFC 5227, sections 1.1 and 3, for the first).
const (
	// Announced is a gratuitous ARP: a request for, or a reply with, the
	// sender's own address.
	Announced = Kind(observeKindKIND_ANNOUNCED)
	// Answered is an ARP reply.
	Answered = Kind(observeKindKIND_ANSWERED)
	// Used is an ARP request for another address.
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
	// Addr is never an IPv4-mapped IPv6 address.
	Addr netip.Addr
	// SHA is the sender's hardware address by the protocol, Source that of
	// the Ethernet frame. Where they differ somebody speaks for somebody else.
	SHA, Source MAC
	// Frames counts those of this binding since its last event, of whatever
	// kind, with this one.
	Frames uint32
}

// set takes the event over from the kernel.
func (ev *Event) set(raw *observeEvent) {
	*ev = Event{
		Ktime:     time.Duration(raw.Ktime),
		Ifindex:   raw.Ifindex,
		VLAN:      raw.Vlan,
		InnerVLAN: raw.InnerVlan,
		Protocol:  Protocol(raw.Protocol),
		Kind:      Kind(raw.Kind),
		Addr:      netip.AddrFrom16(raw.Addr).Unmap(),
		SHA:       raw.Sha,
		Source:    raw.Source,
		Frames:    raw.Frames,
	}
}
