package agent

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ipwitness/ipwitness/agent/form"
)

// linkMsg is what we read of RTM_NEWLINK and RTM_DELLINK (rtnetlink(7)).
type linkMsg struct {
	index     int32
	name      string
	kind      string // IFLA_INFO_KIND: veth, bridge, …; empty for hardware
	slaveKind string // IFLA_INFO_SLAVE_KIND: what its master is: bridge, bond, openvswitch, vrf
	mac       string // raw bytes
	arphrd    uint16
	flags     uint32
	lower     int32 // IFLA_LINK: veth peer, or lower device; 0 for none
	lowerNSID int32 // IFLA_LINK_NETNSID; noNSID where the lower device is in the same namespace
	master    int32
	vlan      uint16 // VLAN devices only
	filtering bool   // bridges only: by VLAN
	// defaultPVID is the VLAN that a bridge gives its new ports for untagged frames.
	defaultPVID uint16
}

// addrMsg is what we read of RTM_NEWADDR and RTM_DELADDR.
type addrMsg struct {
	index     int32
	addr      netip.Addr // IFA_LOCAL
	peer      netip.Addr // IFA_ADDRESS: on point-to-point addresses it is the peer
	prefixLen uint8
	flags     uint32
	created   time.Duration // IFA_CACHEINFO's cstamp: since boot, in steps of 10 ms
}

// A hop is one path of a route: an interface and, if there is one, the next hop on it.
type hop struct {
	index   int32
	gateway netip.Addr
}

// message is one message of the route family, with the namespace that it is about.
type message struct {
	typ  uint16
	nsid int32 // noNSID: our own
	link linkMsg
	addr addrMsg
	id   int32  // RTM_NEWNSID, RTM_DELNSID
	pvid uint16 // rtmNewPort
}

// rtmNewPort is our name for RTM_NEWLINK of the family AF_BRIDGE, which tells of
// a bridge or a port of one. Netlink has no such number.
const rtmNewPort uint16 = 0xffff

// parse reads one message of the listener and says whether it is of a type that we follow.
func (m *message) parse(typ uint16, nsid int32, data []byte) (known bool, err error) {
	*m = message{typ: typ, nsid: nsid}
	switch typ {
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		if len(data) > 0 && data[0] != unix.AF_UNSPEC {
			if data[0] != unix.AF_BRIDGE || typ != unix.RTM_NEWLINK {
				return false, nil // a port left its bridge: not the end of an interface
			}
			m.typ = rtmNewPort
			m.link.index, m.pvid, err = parsePort(data)
			return true, err
		}
		m.link, err = parseLink(data)
	case unix.RTM_NEWADDR, unix.RTM_DELADDR:
		m.addr, err = parseAddr(data)
	case unix.RTM_NEWNSID, unix.RTM_DELNSID:
		m.id, err = parseNSID(data)
	default:
		return false, nil
	}
	return true, err
}

// controlNSID reads the namespace that a message came from: noNSID for our own.
func controlNSID(oob []byte) int32 {
	for len(oob) >= unix.SizeofCmsghdr {
		h, data, rest, err := unix.ParseOneSocketControlMessage(oob)
		if err != nil {
			break
		}
		if h.Level == unix.SOL_NETLINK && h.Type == unix.NETLINK_LISTEN_ALL_NSID && len(data) >= 4 {
			return int32(binary.NativeEndian.Uint32(data))
		}
		oob = rest
	}
	return noNSID
}

// header is struct nlmsghdr without its length.
type header struct {
	typ, flags uint16
	seq        uint32
}

// messages walks the messages of one datagram and stops at the first that
// does not fit.
func messages(b []byte) func(yield func(header, []byte) bool) {
	return func(yield func(header, []byte) bool) {
		for len(b) >= unix.SizeofNlMsghdr {
			n := int(binary.NativeEndian.Uint32(b))
			if n < unix.SizeofNlMsghdr || n > len(b) {
				return
			}
			h := header{
				typ:   binary.NativeEndian.Uint16(b[4:]),
				flags: binary.NativeEndian.Uint16(b[6:]),
				seq:   binary.NativeEndian.Uint32(b[8:]),
			}
			if !yield(h, b[unix.SizeofNlMsghdr:n]) {
				return
			}
			b = b[min(align4(n), len(b)):]
		}
	}
}

// attributes walks the attributes (struct nlattr) of b and stops at the first
// that does not fit. Flag bits of the type are left out.
func attributes(b []byte) func(yield func(uint16, []byte) bool) {
	return func(yield func(uint16, []byte) bool) {
		for len(b) >= unix.SizeofNlAttr {
			n := int(binary.NativeEndian.Uint16(b))
			if n < unix.SizeofNlAttr || n > len(b) {
				return
			}
			if !yield(binary.NativeEndian.Uint16(b[2:])&nlaTypeMask, b[unix.SizeofNlAttr:n]) {
				return
			}
			b = b[min(align4(n), len(b)):]
		}
	}
}

func align4(n int) int { return (n + 3) &^ 3 }

// appendAttr appends an attribute of four bytes.
func appendAttr(b []byte, typ uint16, val uint32) []byte {
	b = binary.NativeEndian.AppendUint16(b, unix.SizeofNlAttr+4)
	b = binary.NativeEndian.AppendUint16(b, typ)
	return binary.NativeEndian.AppendUint32(b, val)
}

// u32 reads an attribute of four bytes; 0 for another length.
func u32(b []byte) uint32 {
	if len(b) != 4 {
		return 0
	}
	return binary.NativeEndian.Uint32(b)
}

// errShort says that a message ends before its header does.
var errShort = errors.New("message is too short")

// parseLink reads struct ifinfomsg and its attributes.
func parseLink(b []byte) (linkMsg, error) {
	if len(b) < unix.SizeofIfInfomsg {
		return linkMsg{}, fmt.Errorf("parse link: %w", errShort)
	}
	l := linkMsg{
		arphrd:    binary.NativeEndian.Uint16(b[2:]),
		index:     int32(binary.NativeEndian.Uint32(b[4:])),
		flags:     binary.NativeEndian.Uint32(b[8:]),
		lowerNSID: noNSID,
	}
	for typ, val := range attributes(b[unix.SizeofIfInfomsg:]) {
		switch typ {
		case unix.IFLA_IFNAME:
			l.name = form.Printable(unix.ByteSliceToString(val))
		case unix.IFLA_ADDRESS:
			l.mac = string(val)
		case unix.IFLA_LINK:
			l.lower = int32(u32(val))
		case unix.IFLA_LINK_NETNSID:
			if l.lowerNSID = int32(u32(val)); l.lowerNSID < 0 {
				l.lowerNSID = elsewhere
			}
		case unix.IFLA_MASTER:
			l.master = int32(u32(val))
		case unix.IFLA_LINKINFO:
			var data []byte
			for typ, val := range attributes(val) {
				switch typ {
				case unix.IFLA_INFO_KIND:
					l.kind = form.Printable(unix.ByteSliceToString(val))
				case unix.IFLA_INFO_SLAVE_KIND:
					l.slaveKind = form.Printable(unix.ByteSliceToString(val))
				case unix.IFLA_INFO_DATA:
					data = val
				}
			}
			for typ, val := range attributes(data) {
				switch {
				case l.kind == "vlan" && typ == iflaVLANID && len(val) == 2:
					l.vlan = binary.NativeEndian.Uint16(val)
				case l.kind == "bridge" && typ == iflaBridgeFiltering && len(val) == 1:
					l.filtering = val[0] != 0
				case l.kind == "bridge" && typ == iflaBridgeDefaultPVID && len(val) == 2:
					l.defaultPVID = binary.NativeEndian.Uint16(val)
				}
			}
		}
	}
	return l, nil
}

// parsePort reads which interface a message of the family AF_BRIDGE is about, and
// the VLAN that it gives untagged frames: 0 for none. The index is 0 where it is
// a network card that tells of the switch in itself, with no word on the bridge
// that it may be a port of (ndo_dflt_bridge_getlink in net/core/rtnetlink.c).
func parsePort(b []byte) (index int32, pvid uint16, err error) {
	if len(b) < unix.SizeofIfInfomsg {
		return 0, 0, fmt.Errorf("parse bridge port: %w", errShort)
	}
	index = int32(binary.NativeEndian.Uint32(b[4:]))
	for typ, val := range attributes(b[unix.SizeofIfInfomsg:]) {
		if typ != unix.IFLA_AF_SPEC {
			continue
		}
		for typ, val := range attributes(val) {
			if typ == iflaBridgeFlags && len(val) == 2 && binary.NativeEndian.Uint16(val)&bridgeFlagsSelf != 0 {
				return 0, 0, nil
			}
			// struct bridge_vlan_info: flags, vid.
			if typ == iflaBridgeVLANInfo && len(val) == 4 && binary.NativeEndian.Uint16(val)&bridgeVLANPVID != 0 {
				pvid = binary.NativeEndian.Uint16(val[2:])
			}
		}
	}
	return index, pvid, nil
}

// parseAddr reads struct ifaddrmsg and its attributes.
func parseAddr(b []byte) (addrMsg, error) {
	if len(b) < unix.SizeofIfAddrmsg {
		return addrMsg{}, fmt.Errorf("parse address: %w", errShort)
	}
	a := addrMsg{
		prefixLen: b[1],
		flags:     uint32(b[2]),
		index:     int32(binary.NativeEndian.Uint32(b[4:])),
	}
	var address, local netip.Addr
	for typ, val := range attributes(b[unix.SizeofIfAddrmsg:]) {
		switch typ {
		case unix.IFA_ADDRESS:
			address, _ = netip.AddrFromSlice(val)
		case unix.IFA_LOCAL:
			local, _ = netip.AddrFromSlice(val)
		case unix.IFA_FLAGS:
			a.flags = u32(val)
		case unix.IFA_CACHEINFO: // two lifetimes, then cstamp and tstamp
			if len(val) >= 16 {
				a.created = time.Duration(binary.NativeEndian.Uint32(val[8:])) * 10 * time.Millisecond
			}
		}
	}
	a.peer = address
	if a.addr = local; !local.IsValid() {
		a.addr = address
	}
	if !a.addr.IsValid() {
		return a, errors.New("parse address: no IFA_LOCAL and no IFA_ADDRESS")
	}
	return a, nil
}

// parseRoute returns the hops in a struct rtmsg and its attributes. It returns none for a
// route that is not unicast, such as the route of a local address.
func parseRoute(b []byte) ([]hop, error) {
	if len(b) < unix.SizeofRtMsg {
		return nil, fmt.Errorf("parse route: %w", errShort)
	}
	if b[7] != unix.RTN_UNICAST {
		return nil, nil
	}
	var one hop
	var out []hop
	for typ, val := range attributes(b[unix.SizeofRtMsg:]) {
		switch typ {
		case unix.RTA_OIF:
			one.index = int32(u32(val))
		case unix.RTA_MULTIPATH:
			// Each struct rtnexthop has attributes of its own.
			for len(val) >= unix.SizeofRtNexthop {
				n := int(binary.NativeEndian.Uint16(val))
				if n < unix.SizeofRtNexthop || n > len(val) {
					break
				}
				h := hop{index: int32(binary.NativeEndian.Uint32(val[4:]))}
				for typ, val := range attributes(val[unix.SizeofRtNexthop:n]) {
					h.setGateway(typ, val)
				}
				out = append(out, h)
				val = val[min(align4(n), len(val)):]
			}
		default:
			one.setGateway(typ, val)
		}
	}
	if one.index != 0 {
		out = append(out, one)
	}
	return out, nil
}

func (h *hop) setGateway(typ uint16, val []byte) {
	switch {
	case typ == unix.RTA_GATEWAY:
		h.gateway, _ = netip.AddrFromSlice(val)
	case typ == unix.RTA_VIA && len(val) > 2: // struct rtvia: a family, and an address of that family
		h.gateway, _ = netip.AddrFromSlice(val[2:])
	}
}

// parseNSID reads struct rtgenmsg and NETNSA_NSID.
func parseNSID(b []byte) (int32, error) {
	if len(b) < 4 {
		return noNSID, fmt.Errorf("parse namespace id: %w", errShort)
	}
	for typ, val := range attributes(b[4:]) {
		if typ == netnsaNSID {
			return int32(u32(val)), nil
		}
	}
	return noNSID, nil
}
