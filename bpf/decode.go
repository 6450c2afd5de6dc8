package bpf

import (
	"encoding/binary"
	"fmt"
	"net/netip"
)

// Result is what became of a frame. Where the name of a counter is wanted,
// String gives it.
type Result uint8

// The results. Decode gives all but ResultKnown and ResultLost, which take a
// memory and a ring.
const (
	// ResultNone is a frame of none of our protocols, or under more VLANs than
	// two. It is not counted.
	ResultNone = Result(observeResultRESULT_NONE)
	// ResultEvent is a claim that is told.
	ResultEvent = Result(observeResultRESULT_EVENT)
	// ResultKnown is a claim that was told before.
	ResultKnown = Result(observeResultRESULT_KNOWN)
	// ResultProbe asks whether an address is free (RFC 5227, section 2.1.1):
	// nothing is claimed yet.
	ResultProbe = Result(observeResultRESULT_PROBE)
	// ResultMalformed is ARP that is cut off, or not for IPv4 over Ethernet.
	ResultMalformed = Result(observeResultRESULT_MALFORMED)
	// ResultInvalid is a sender that no host can be: no MAC or a group's, a
	// loopback, multicast, class E or broadcast address, or none in a reply.
	ResultInvalid = Result(observeResultRESULT_INVALID)
	// ResultOther is ARP that is neither request nor reply.
	ResultOther = Result(observeResultRESULT_OTHER)
	// ResultLost is a claim for which the ring had no room. It is not noted as
	// told, so the next one like it is.
	ResultLost = Result(observeResultRESULT_LOST)

	results = Result(observeResultRESULTS)
)

// String gives the result as metrics name it, such as malformed.
func (r Result) String() string {
	switch r {
	case ResultNone:
		return "none"
	case ResultEvent:
		return "event"
	case ResultKnown:
		return "known"
	case ResultProbe:
		return "probe"
	case ResultMalformed:
		return "malformed"
	case ResultInvalid:
		return "invalid"
	case ResultOther:
		return "other"
	case ResultLost:
		return "lost"
	}
	return fmt.Sprintf("Result(%d)", uint8(r))
}

// Binding is what one frame claims: the fields of the same names in Event.
type Binding struct {
	VLAN, InnerVLAN uint16
	Protocol        Protocol
	Kind            Kind
	Addr            netip.Addr
	SHA, Source     MAC
}

const (
	ethernetLen = 14
	vlanTagLen  = 4
	arpLen      = 28

	etherTypeIPv4  = 0x0800
	etherTypeARP   = 0x0806
	etherType8021Q = 0x8100
	etherType8021A = 0x88a8

	arpEthernet = 1
	arpRequest  = 1
	arpReply    = 2

	maxFrameTags = 2
)

// Decode reads an Ethernet frame as observe.c does, so that frames from
// elsewhere mean the same. offloadedVLAN is the VID of a tag that was taken out
// of the frame, 0 for none. The Binding is zero unless the Result is
// ResultEvent.
func Decode(frame []byte, offloadedVLAN uint16) (Binding, Result) {
	if len(frame) < ethernetLen {
		return Binding{}, ResultNone
	}
	var b Binding
	b.addVLAN(offloadedVLAN)
	etherType, rest := binary.BigEndian.Uint16(frame[12:]), frame[ethernetLen:]
	for range maxFrameTags {
		if etherType != etherType8021Q && etherType != etherType8021A {
			break
		}
		if len(rest) < vlanTagLen || !b.addVLAN(binary.BigEndian.Uint16(rest)) {
			return Binding{}, ResultNone
		}
		etherType, rest = binary.BigEndian.Uint16(rest[2:]), rest[vlanTagLen:]
	}
	if etherType != etherTypeARP {
		return Binding{}, ResultNone
	}
	if result := b.readARP(rest); result != ResultEvent {
		return Binding{}, result
	}
	b.Source = MAC(frame[6:12])
	return b, ResultEvent
}

// addVLAN notes one more VLAN, from the outside in. A priority tag is none. It
// gives false when there is no place left.
func (b *Binding) addVLAN(tci uint16) bool {
	switch vid := tci & 0x0fff; {
	case vid == 0:
	case b.VLAN == 0:
		b.VLAN = vid
	case b.InnerVLAN == 0:
		b.InnerVLAN = vid
	default:
		return false
	}
	return true
}

// readARP classifies by RFC 826 and RFC 5227.
func (b *Binding) readARP(arp []byte) Result {
	if len(arp) < arpLen ||
		binary.BigEndian.Uint16(arp[0:]) != arpEthernet ||
		binary.BigEndian.Uint16(arp[2:]) != etherTypeIPv4 ||
		arp[4] != 6 || arp[5] != 4 {
		return ResultMalformed
	}
	op := binary.BigEndian.Uint16(arp[6:])
	if op != arpRequest && op != arpReply {
		return ResultOther
	}

	sha, spa, tpa := MAC(arp[8:14]), [4]byte(arp[14:18]), [4]byte(arp[24:28])
	switch {
	case sha == MAC{}, sha[0]&1 != 0:
		return ResultInvalid
	case spa[0] == 127, spa[0] >= 224:
		return ResultInvalid
	case spa == [4]byte{} && op == arpRequest:
		return ResultProbe
	case spa == [4]byte{}:
		return ResultInvalid
	}

	b.Protocol = ARP
	b.SHA = sha
	b.Addr = netip.AddrFrom4(spa)
	switch {
	case spa == tpa:
		b.Kind = Announced
	case op == arpReply:
		b.Kind = Answered
	default:
		b.Kind = Used
	}
	return ResultEvent
}
