package bpf

import (
	"encoding/binary"
	"net/netip"
)

// Binding is the claim in one frame. Its fields are those of the same names in Event.
type Binding struct {
	VLAN, InnerVLAN uint16
	Protocol        Protocol
	Kind            Kind
	NoOverride      bool
	Addr            netip.Addr
	SHA, Source     MAC
}

const (
	ethernetLen = 14
	vlanTagLen  = 4
	arpLen      = 28
	ipv6Len     = 40
	ndLen       = 24
	ndOptionLen = 8 // of the shortest

	etherTypeIPv4  = 0x0800
	etherTypeARP   = 0x0806
	etherTypeIPv6  = 0x86dd
	etherType8021Q = 0x8100
	etherType8021A = 0x88a8

	arpEthernet = 1
	arpIEEE802  = 6
	arpRequest  = 1
	arpReply    = 2

	protocolHopOpts = 0
	protocolRouting = 43
	protocolICMPv6  = 58
	protocolDstOpts = 60

	ndSolicitation  = 135
	ndAdvertisement = 136
	ndSolicited     = 0x40
	ndOverride      = 0x20
	ndSourceLLAddr  = 1
	ndTargetLLAddr  = 2
	ndHopLimit      = 255

	maxTags       = 512
	maxExtensions = 256
	maxNDOptions  = 256
)

// Decode parses an Ethernet frame as observe.c does: a fuzz test compares the two. offloadedVLAN is the VID of a tag that was
// removed from the frame, or 0. The Binding is zero unless the Result is ResultEvent.
func Decode(frame []byte, offloadedVLAN uint16) (Binding, Result) {
	if len(frame) < ethernetLen {
		return Binding{}, ResultNone
	}
	var b Binding
	b.addVLAN(offloadedVLAN)
	etherType, rest := binary.BigEndian.Uint16(frame[12:]), frame[ethernetLen:]
	more := false
	for range maxTags {
		if !isVLAN(etherType) {
			break
		}
		if len(rest) < vlanTagLen {
			return Binding{}, ResultNone
		}
		if !b.addVLAN(binary.BigEndian.Uint16(rest)) {
			more = true
		}
		etherType, rest = binary.BigEndian.Uint16(rest[2:]), rest[vlanTagLen:]
	}
	result := ResultNone
	switch {
	case isVLAN(etherType):
		return Binding{}, ResultUnparsedTags
	case etherType == etherTypeARP:
		result = b.readARP(rest)
	case etherType == etherTypeIPv6:
		result = b.readNDP(rest)
	}
	switch {
	case more && result == ResultEvent:
		return Binding{}, ResultUnparsedTags
	case more:
		return Binding{}, ResultNone
	case result != ResultEvent:
		return Binding{}, result
	}
	b.Source = MAC(frame[6:12])
	return b, ResultEvent
}

func isVLAN(etherType uint16) bool {
	return etherType == etherType8021Q || etherType == etherType8021A
}

// addVLAN adds a VLAN, from the outermost inwards. A priority tag does not count. It returns false
// for a third VLAN.
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

// readARP parses an ARP packet according to RFC 826 and RFC 5227.
func (b *Binding) readARP(arp []byte) Result {
	if len(arp) < arpLen ||
		binary.BigEndian.Uint16(arp[2:]) != etherTypeIPv4 ||
		arp[4] != 6 || arp[5] != 4 {
		return ResultMalformed
	}
	if hardware := binary.BigEndian.Uint16(arp[0:]); hardware != arpEthernet && hardware != arpIEEE802 {
		return ResultMalformed
	}
	op := binary.BigEndian.Uint16(arp[6:])
	if op != arpRequest && op != arpReply {
		return ResultOther
	}

	sha, spa, tpa := MAC(arp[8:14]), [4]byte(arp[14:18]), [4]byte(arp[24:28])
	switch {
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

// readNDP parses an IPv6 packet according to RFC 4861 and RFC 4862.
func (b *Binding) readNDP(packet []byte) Result {
	header, at := findICMPv6(packet)
	switch {
	case header != protocolICMPv6 && leadsToNDP(header):
		return ResultUnparsedExtensions
	case header != protocolICMPv6 || len(packet) <= at:
		return ResultNone
	}
	typ := packet[at]
	if typ != ndSolicitation && typ != ndAdvertisement {
		return ResultNone
	}
	end := ipv6Len + int(binary.BigEndian.Uint16(packet[4:]))
	if end > len(packet) || at+ndLen > end {
		return ResultMalformed
	}
	nd, options := packet[at:at+ndLen], packet[at+ndLen:end]

	hopLimit, code, flags := packet[7], nd[1], nd[4]
	source := netip.AddrFrom16([16]byte(packet[8:24]))
	destination := netip.AddrFrom16([16]byte(packet[24:40]))
	target := netip.AddrFrom16([16]byte(nd[8:24]))
	switch {
	case hopLimit != ndHopLimit, code != 0:
		return ResultInvalid
	case !isHostAddr(target):
		return ResultInvalid
	case !source.IsUnspecified() && !isHostAddr(source):
		return ResultInvalid
	}

	var lladdr []byte
	var walked Result
	if typ == ndSolicitation {
		if lladdr, walked = findOption(options, ndSourceLLAddr); walked != ResultEvent {
			return walked
		}
		switch {
		case source.IsUnspecified() && isSolicitedNode(destination) && lladdr == nil:
			return ResultProbe
		case source.IsUnspecified():
			return ResultInvalid
		}
		b.Kind, b.Addr = Used, source
	} else {
		solicited := flags&ndSolicited != 0
		if solicited && packet[24] == 0xff { // Addr.IsMulticast takes ::ffff:224.0.0.1 for IPv4
			return ResultInvalid
		}
		if lladdr, walked = findOption(options, ndTargetLLAddr); walked != ResultEvent {
			return walked
		}
		b.Kind, b.Addr, b.NoOverride = Announced, target, flags&ndOverride == 0
		if solicited {
			b.Kind = Answered
		}
	}
	switch {
	case lladdr == nil:
		return ResultOther
	case len(lladdr) != ndOptionLen:
		return ResultInvalid
	}
	b.Protocol = NDP
	b.SHA = MAC(lladdr[2:])
	return ResultEvent
}

// leadsToNDP reports whether a header is ICMPv6 or an extension header that may
// precede NDP.
func leadsToNDP(header byte) bool {
	switch header {
	case protocolICMPv6, protocolHopOpts, protocolRouting, protocolDstOpts:
		return true
	}
	return false
}

// findICMPv6 walks the extension headers that may precede NDP. It returns the
// protocol of the first other header and its offset in bytes. If there are more than
// maxExtensions, it returns the next of those extension headers.
func findICMPv6(packet []byte) (header byte, at int) {
	const none = 59 // RFC 8200, section 4.7
	if len(packet) < ipv6Len || packet[0]>>4 != 6 {
		return none, 0
	}
	header, at = packet[6], ipv6Len
	for i := range maxExtensions {
		switch {
		case header == protocolICMPv6:
			return header, at
		case !leadsToNDP(header), header == protocolHopOpts && i > 0, len(packet) < at+4:
			return none, at
		}
		extension := packet[at:]
		if header == protocolRouting && extension[3] != 0 { // segments left
			return none, at
		}
		header, at = extension[0], at+(int(extension[1])+1)*8
	}
	return header, at
}

// findOption walks all options and returns the first option of a type, or nil if
// there is none. The Result is ResultEvent if the lengths of the options add up.
func findOption(options []byte, typ byte) (found []byte, walked Result) {
	for range maxNDOptions {
		if len(options) < ndOptionLen {
			break
		}
		length := int(options[1]) * ndOptionLen
		if length == 0 || length > len(options) {
			return nil, ResultMalformed
		}
		if options[0] == typ && found == nil {
			found = options[:length]
		}
		options = options[length:]
	}
	switch {
	case len(options) == 0:
		return found, ResultEvent
	case len(options) >= ndOptionLen: // more options than findOption walks
		return nil, ResultUnparsedOptions
	}
	return nil, ResultMalformed
}

// isHostAddr reports whether a can be the address of one host.
func isHostAddr(a netip.Addr) bool {
	return !a.IsMulticast() && !a.IsUnspecified() && !a.IsLoopback() && !a.Is4In6()
}

// isSolicitedNode reports whether a is in ff02::1:ff00:0/104 (RFC 4291, section 2.7.1).
func isSolicitedNode(a netip.Addr) bool {
	b := a.As16()
	return [13]byte(b[:13]) == [13]byte{0: 0xff, 1: 0x02, 11: 0x01, 12: 0xff}
}
