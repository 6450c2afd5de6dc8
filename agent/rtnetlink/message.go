package rtnetlink

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Link has the fields in use of RTM_NEWLINK and RTM_DELLINK (rtnetlink(7)).
type Link struct {
	Index     int32
	Name      string
	Kind      string // IFLA_INFO_KIND: veth, bridge, …; empty for hardware
	SlaveKind string // IFLA_INFO_SLAVE_KIND, the kind of its master: bridge, bond, openvswitch, vrf
	MAC       string // raw bytes
	ARPHRD    uint16
	Flags     uint32
	Lower     int32 // IFLA_LINK: veth peer, or lower device; 0 if there is none
	LowerNSID int32 // IFLA_LINK_NETNSID; NoNSID if the lower device is in the same namespace
	Master    int32
	VLAN      uint16 // VLAN devices only
	Filtering bool   // bridges only: by VLAN
	// Proxy is set if a VXLAN device itself answers requests, from the neighbour table of its node.
	Proxy bool
	// NoLearning is set if a VXLAN device does not learn behind which node a MAC is.
	NoLearning bool
	// Metadata is set for a tunnel device that takes frames of all its tunnels (external, as those of Open vSwitch).
	Metadata bool
	// DefaultPVID is the VLAN for untagged frames that a bridge assigns to its new ports.
	DefaultPVID uint16
	// PortOptions are those of a port of a bridge.
	PortOptions
	// ProtoDown is set if a program keeps the interface from having a carrier, as the vrrpd of FRR
	// does while another router is master.
	ProtoDown bool
}

// PortOptions are options of a port of a bridge.
type PortOptions struct {
	// Hairpin is set if frames may leave through the port that they entered.
	Hairpin bool
	// Closed is set if the bridge learns no MACs from the port, or answers in its place for neighbours
	// behind it (NEIGH_SUPPRESS): a controller knows who is behind it, as that of an EVPN.
	Closed bool
	// Suppress is set if the bridge answers for neighbours behind the port (NEIGH_SUPPRESS).
	Suppress bool
	// VLANTunnel is set if the bridge takes the VLAN of a frame from the tunnel that it came through: one VXLAN device
	// serves many networks.
	VLANTunnel bool
}

// VLANs are those that a bridge, or a port of one, assigns to frames without a tag.
type VLANs struct {
	// PVID is the VLAN of frames that did not come through any of Tunnels; 0 if there is none.
	PVID uint16
	// Tunnels are the VLANs of frames that came through tunnels, by the identifiers of these (VNI).
	Tunnels map[uint32]uint16
}

// A BridgePort is what a message of the family AF_BRIDGE says about a bridge, or about a port of one.
type BridgePort struct {
	Index int32
	VLANs
	Options *PortOptions // nil for the bridge itself
}

// parsePortOptions parses the attributes of a port (IFLA_BRPORT_*).
func parsePortOptions(b []byte) (o PortOptions) {
	for typ, val := range attributes(b) {
		if len(val) != 1 {
			continue
		}
		switch typ {
		case iflaPortMode:
			o.Hairpin = val[0] != 0
		case iflaPortLearning:
			o.Closed = o.Closed || val[0] == 0
		case iflaPortVLANTunnel:
			o.VLANTunnel = val[0] != 0
		case iflaPortNeighSuppress:
			o.Suppress = val[0] != 0
			o.Closed = o.Closed || o.Suppress
		}
	}
	return o
}

// Up reports whether the interface is up, and no program has taken its carrier away. An interface that
// is not keeps its addresses. The kernel gives a macvlan device its carrier back when that of the lower
// device returns, and leaves ProtoDown set.
func (l *Link) Up() bool {
	return l.Flags&unix.IFF_UP != 0 && (!l.ProtoDown || l.Flags&unix.IFF_LOWER_UP != 0)
}

// Address has the fields in use of RTM_NEWADDR and RTM_DELADDR.
type Address struct {
	Index        int32
	Addr         netip.Addr // IFA_LOCAL
	Peer         netip.Addr // IFA_ADDRESS: the peer, if the address is a point-to-point address
	PrefixLength uint8      // 32 if the IPv4 address is not in the subnet of its peer
	Flags        uint32
	Scope        uint8         // RT_SCOPE_HOST if it is valid on its own host only
	Created      time.Duration // IFA_CACHEINFO's cstamp: time since boot, in steps of 10 ms
	Expired      bool          // its valid lifetime has run out, according to IFA_CACHEINFO
}

// HasPeer reports whether an IPv4 address is that of a point-to-point connection. The kernel deletes it only together with its
// peer, or without a prefix length (inet_rtm_deladdr in net/ipv4/devinet.c). It does not ask for the peers of IPv6 addresses.
func (a *Address) HasPeer() bool { return a.Addr.Is4() && a.Peer.Is4() && a.Peer != a.Addr }

// A Hop is one path of a route: an interface and, if the route has one, the gateway. Local is set for a route of type local,
// such as that of an address of the interface; Prefix and Table are then those of the route.
type Hop struct {
	Index   int32
	Gateway netip.Addr
	Local   bool
	Prefix  netip.Prefix
	Table   uint32
}

// A Route is a route to a prefix by an interface, in a routing table.
type Route struct {
	netip.Prefix
	Index int32
	Table uint32
}

// Neighbour is an entry of the neighbour table of an interface, or of the forwarding table of a bridge, which has no address;
// MAC is raw bytes.
type Neighbour struct {
	Index     int32
	Addr      netip.Addr
	MAC       string
	Connected bool  // it is known to be there now (NUD_CONNECTED)
	Valid     bool  // its MAC is known (NUD_VALID)
	Bridge    int32 // whose forwarding table has it
	State     uint16
	Proxied   bool // it is an address for which a node answers (`ip neigh add proxy`)
}

// A Message is one message of the route family, with the namespace that it concerns.
type Message struct {
	Type    uint16
	NSID    int32 // NoNSID for our own
	Link    Link
	Address Address
	ID      int32      // RTM_NEWNSID, RTM_DELNSID
	Port    BridgePort // NewPort
	// Neighbour is set for RTM_NEWNEIGH and RTM_DELNEIGH, of the families IPv4 and IPv6.
	Neighbour Neighbour
}

// NewPort is the type of RTM_NEWLINK messages of the family AF_BRIDGE, which concern a bridge
// or a port of one. Netlink does not use the number.
const NewPort uint16 = 0xffff

// Answering is the type of all messages after which the node may answer for other addresses than before: about
// local routes, routes to hosts, rules and the configuration of interfaces. Netlink does not use the number.
const Answering uint16 = 0xfffe

func (m *Message) parse(typ uint16, nsid int32, data []byte) (known bool, err error) {
	*m = Message{Type: typ, NSID: nsid}
	switch typ {
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		if len(data) > 0 && data[0] != unix.AF_UNSPEC {
			if data[0] != unix.AF_BRIDGE || typ != unix.RTM_NEWLINK {
				return false, nil // a port left its bridge, which is not the end of the interface
			}
			m.Type = NewPort
			m.Port, err = parsePort(data)
			return true, err
		}
		m.Link, err = parseLink(data)
	case unix.RTM_NEWADDR, unix.RTM_DELADDR:
		m.Address, err = parseAddr(data)
	case unix.RTM_NEWNSID, unix.RTM_DELNSID:
		m.ID, err = parseNSID(data)
	case unix.RTM_NEWNEIGH, unix.RTM_DELNEIGH:
		if len(data) > 0 && data[0] != unix.AF_INET && data[0] != unix.AF_INET6 {
			return false, nil // an entry of a bridge's forwarding table
		}
		m.Neighbour, err = parseNeighbour(data)
	case unix.RTM_NEWROUTE, unix.RTM_DELROUTE, unix.RTM_NEWRULE, unix.RTM_DELRULE, unix.RTM_NEWNETCONF:
		m.Type = Answering
	default:
		return false, nil
	}
	return true, err
}

// controlNSID returns the nsid of the namespace that a message came from, or NoNSID for our
// own.
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
	return NoNSID
}

// header has the fields in use of struct nlmsghdr.
type header struct {
	typ, flags uint16
	seq        uint32
}

// messages yields the messages in b, up to the first one that does not fit.
func messages(b []byte) func(yield func(header, []byte) bool) {
	return func(yield func(header, []byte) bool) {
		for len(b) >= unix.NLMSG_HDRLEN {
			n := int(binary.NativeEndian.Uint32(b))
			if n < unix.NLMSG_HDRLEN || n > len(b) {
				return
			}
			h := header{binary.NativeEndian.Uint16(b[4:]), binary.NativeEndian.Uint16(b[6:]), binary.NativeEndian.Uint32(b[8:])}
			if !yield(h, b[unix.NLMSG_HDRLEN:n]) {
				return
			}
			b = b[min(align4(n), len(b)):]
		}
	}
}

// attributes yields the attributes (struct nlattr) in b, up to the first one that does not
// fit. Flag bits of the type are removed.
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

func appendAttr(b []byte, typ uint16, val uint32) []byte {
	b = binary.NativeEndian.AppendUint16(b, unix.SizeofNlAttr+4)
	b = binary.NativeEndian.AppendUint16(b, typ)
	return binary.NativeEndian.AppendUint32(b, val)
}

// u32 returns the value of an attribute of four bytes, or 0 if it has another length.
func u32(b []byte) uint32 {
	if len(b) != 4 {
		return 0
	}
	return binary.NativeEndian.Uint32(b)
}

// errShort is returned for a message that ends within its header.
var errShort = errors.New("message is too short")

// parseLink parses struct ifinfomsg and its attributes.
func parseLink(b []byte) (Link, error) {
	if len(b) < unix.SizeofIfInfomsg {
		return Link{}, fmt.Errorf("parse link: %w", errShort)
	}
	l := Link{
		ARPHRD:    binary.NativeEndian.Uint16(b[2:]),
		Index:     int32(binary.NativeEndian.Uint32(b[4:])),
		Flags:     binary.NativeEndian.Uint32(b[8:]),
		LowerNSID: NoNSID,
	}
	for typ, val := range attributes(b[unix.SizeofIfInfomsg:]) {
		switch typ {
		case unix.IFLA_IFNAME:
			l.Name = strings.ToValidUTF8(unix.ByteSliceToString(val), "\uFFFD")
		case unix.IFLA_ADDRESS:
			l.MAC = string(val)
		case unix.IFLA_LINK:
			l.Lower = int32(u32(val))
		case unix.IFLA_LINK_NETNSID:
			if l.LowerNSID = int32(u32(val)); l.LowerNSID < 0 {
				l.LowerNSID = Elsewhere
			}
		case unix.IFLA_PROTO_DOWN:
			l.ProtoDown = len(val) == 1 && val[0] != 0
		case unix.IFLA_MASTER:
			l.Master = int32(u32(val))
		case unix.IFLA_LINKINFO:
			var data, slave []byte
			for typ, val := range attributes(val) {
				switch typ {
				case unix.IFLA_INFO_KIND:
					l.Kind = strings.ToValidUTF8(unix.ByteSliceToString(val), "\uFFFD")
				case unix.IFLA_INFO_SLAVE_KIND:
					l.SlaveKind = strings.ToValidUTF8(unix.ByteSliceToString(val), "\uFFFD")
				case unix.IFLA_INFO_DATA:
					data = val
				case unix.IFLA_INFO_SLAVE_DATA:
					slave = val
				}
			}
			for typ, val := range attributes(data) {
				switch {
				case l.Kind == "vlan" && typ == iflaVLANID && len(val) == 2:
					l.VLAN = binary.NativeEndian.Uint16(val)
				case l.Kind == "vxlan" && typ == iflaVXLANProxy && len(val) == 1:
					l.Proxy = val[0] != 0
				case l.Kind == "vxlan" && typ == iflaVXLANLearning && len(val) == 1:
					l.NoLearning = val[0] == 0
				case l.Kind == "vxlan" && typ == iflaVXLANMetadata && len(val) == 1:
					l.Metadata = val[0] != 0
				case l.Kind == "geneve" && typ == iflaGeneveMetadata, (l.Kind == "gretap" || l.Kind == "ip6gretap") && typ == iflaGREMetadata:
					l.Metadata = true
				case l.Kind == "bridge" && typ == iflaBridgeFiltering && len(val) == 1:
					l.Filtering = val[0] != 0
				case l.Kind == "bridge" && typ == iflaBridgeDefaultPVID && len(val) == 2:
					l.DefaultPVID = binary.NativeEndian.Uint16(val)
				}
			}
			if l.SlaveKind == "bridge" {
				l.PortOptions = parsePortOptions(slave)
			}
		}
	}
	return l, nil
}

// parsePort parses a message of the family AF_BRIDGE. The index is 0 if a network card describes its embedded
// switch, which says nothing about a bridge that the card is a port of (ndo_dflt_bridge_getlink in
// net/core/rtnetlink.c).
func parsePort(b []byte) (p BridgePort, err error) {
	if len(b) < unix.SizeofIfInfomsg {
		return p, fmt.Errorf("parse bridge port: %w", errShort)
	}
	p.Index = int32(binary.NativeEndian.Uint32(b[4:]))
	for typ, val := range attributes(b[unix.SizeofIfInfomsg:]) {
		if typ == unix.IFLA_PROTINFO {
			options := parsePortOptions(val)
			p.Options = &options
		}
		if typ != unix.IFLA_AF_SPEC {
			continue
		}
		var first tunnel // of a range
		for typ, val := range attributes(val) {
			switch {
			case typ == iflaBridgeFlags && len(val) == 2 && binary.NativeEndian.Uint16(val)&bridgeFlagsSelf != 0:
				return BridgePort{}, nil
			// struct bridge_vlan_info: flags, vid.
			case typ == iflaBridgeVLANInfo && len(val) == 4 && binary.NativeEndian.Uint16(val)&bridgeVLANPVID != 0:
				p.PVID = binary.NativeEndian.Uint16(val[2:])
			case typ == iflaBridgeTunnelInfo:
				last := parseTunnel(val)
				if last.flags&bridgeVLANRangeEnd == 0 {
					first = last
				}
				if p.Tunnels == nil {
					p.Tunnels = map[uint32]uint16{}
				}
				for i := first.vid; i != 0 && i <= last.vid; i++ {
					p.Tunnels[first.id+uint32(i-first.vid)] = i
				}
			}
		}
	}
	return p, nil
}

// tunnel is an entry of IFLA_BRIDGE_VLAN_TUNNEL_INFO: a tunnel and its VLAN, or the first or last one of a range.
type tunnel struct {
	id         uint32
	vid, flags uint16
}

func parseTunnel(b []byte) (t tunnel) {
	for typ, val := range attributes(b) {
		switch {
		case typ == iflaBridgeTunnelID:
			t.id = u32(val)
		case typ == iflaBridgeTunnelVID && len(val) == 2:
			t.vid = binary.NativeEndian.Uint16(val) & vlanMask
		case typ == iflaBridgeTunnelFlags && len(val) == 2:
			t.flags = binary.NativeEndian.Uint16(val)
		}
	}
	return t
}

// parseAddr parses struct ifaddrmsg and its attributes.
func parseAddr(b []byte) (Address, error) {
	if len(b) < unix.SizeofIfAddrmsg {
		return Address{}, fmt.Errorf("parse address: %w", errShort)
	}
	a := Address{
		PrefixLength: b[1],
		Flags:        uint32(b[2]),
		Scope:        b[3],
		Index:        int32(binary.NativeEndian.Uint32(b[4:])),
	}
	var address, local netip.Addr
	for typ, val := range attributes(b[unix.SizeofIfAddrmsg:]) {
		switch typ {
		case unix.IFA_ADDRESS:
			address, _ = netip.AddrFromSlice(val)
		case unix.IFA_LOCAL:
			local, _ = netip.AddrFromSlice(val)
		case unix.IFA_FLAGS:
			a.Flags = u32(val)
		case unix.IFA_CACHEINFO: // two lifetimes, then cstamp and tstamp
			if len(val) >= 16 {
				a.Expired = binary.NativeEndian.Uint32(val[4:]) == 0
				a.Created = time.Duration(binary.NativeEndian.Uint32(val[8:])) * 10 * time.Millisecond
			}
		}
	}
	a.Peer = address
	if a.Addr = local; !local.IsValid() {
		a.Addr = address
	}
	if !a.Addr.IsValid() {
		return a, errors.New("parse address: no IFA_LOCAL and no IFA_ADDRESS")
	}
	if a.HasPeer() && !netip.PrefixFrom(a.Peer, int(a.PrefixLength)).Masked().Contains(a.Addr) {
		a.PrefixLength = 32
	}
	return a, nil
}

// parseRoute returns the hops in a struct rtmsg and its attributes. It returns none if the
// route is neither unicast nor that of a local address.
func parseRoute(b []byte) ([]Hop, error) {
	if len(b) < unix.SizeofRtMsg {
		return nil, fmt.Errorf("parse route: %w", errShort)
	}
	local := b[7] == unix.RTN_LOCAL
	if b[7] != unix.RTN_UNICAST && !local {
		return nil, nil
	}
	one := Hop{Local: local}
	if local {
		route, err := parsePrefix(b)
		if err != nil {
			return nil, err
		}
		one.Prefix, one.Table = route.Prefix, route.Table
	}
	var out []Hop
	for typ, val := range attributes(b[unix.SizeofRtMsg:]) {
		switch typ {
		case unix.RTA_OIF:
			one.Index = int32(u32(val))
		case unix.RTA_MULTIPATH:
			// Each struct rtnexthop has attributes of its own.
			for len(val) >= unix.SizeofRtNexthop {
				n := int(binary.NativeEndian.Uint16(val))
				if n < unix.SizeofRtNexthop || n > len(val) {
					break
				}
				h := Hop{Index: int32(binary.NativeEndian.Uint32(val[4:]))}
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
	if one.Index != 0 {
		out = append(out, one)
	}
	return out, nil
}

// parsePrefix parses a struct rtmsg and its attributes.
func parsePrefix(b []byte) (r Route, err error) {
	if len(b) < unix.SizeofRtMsg {
		return r, fmt.Errorf("parse route: %w", errShort)
	}
	addr := netip.IPv4Unspecified()
	if b[0] == unix.AF_INET6 {
		addr = netip.IPv6Unspecified()
	}
	for typ, val := range attributes(b[unix.SizeofRtMsg:]) {
		switch typ {
		case unix.RTA_DST:
			addr, _ = netip.AddrFromSlice(val)
		case unix.RTA_OIF:
			r.Index = int32(u32(val))
		case unix.RTA_TABLE:
			r.Table = u32(val)
		}
	}
	r.Prefix = netip.PrefixFrom(addr, int(b[1]))
	return r, nil
}

// parseRule returns the table that a struct fib_rule_hdr and its attributes look up for packets without a mark; 0
// if there is none.
func parseRule(b []byte) (id uint32, err error) {
	const header, invert = 12, 2 // sizeof, FIB_RULE_INVERT
	if len(b) < header {
		return 0, fmt.Errorf("parse rule: %w", errShort)
	}
	marked := false
	for typ, val := range attributes(b[header:]) {
		switch typ {
		case unix.FRA_TABLE:
			id = u32(val)
		case unix.FRA_FWMARK:
			marked = true
		}
	}
	if marked && binary.NativeEndian.Uint32(b[8:])&invert == 0 {
		return 0, nil
	}
	return id, nil
}

// parseNeighbour parses a struct ndmsg and its attributes. The MAC is empty if it is not known.
func parseNeighbour(b []byte) (n Neighbour, err error) {
	const (
		connected = unix.NUD_PERMANENT | unix.NUD_NOARP | unix.NUD_REACHABLE // NUD_CONNECTED
		valid     = connected | unix.NUD_PROBE | unix.NUD_STALE | unix.NUD_DELAY
	)
	if len(b) < unix.SizeofNdMsg {
		return n, fmt.Errorf("parse neighbour: %w", errShort)
	}
	n.Index = int32(binary.NativeEndian.Uint32(b[4:]))
	n.State, n.Proxied = binary.NativeEndian.Uint16(b[8:]), b[10]&unix.NTF_PROXY != 0
	n.Connected, n.Valid = n.State&connected != 0, n.State&valid != 0
	for typ, val := range attributes(b[unix.SizeofNdMsg:]) {
		switch typ {
		case unix.NDA_DST:
			n.Addr, _ = netip.AddrFromSlice(val)
		case unix.NDA_LLADDR:
			n.MAC = string(val)
		case unix.NDA_MASTER:
			n.Bridge = int32(u32(val))
		}
	}
	return n, nil
}

// parseTunnelled parses an entry of the forwarding table of a VXLAN device. It has no address if its frames leave by a port, or
// with a VNI, that is not that of the device.
func parseTunnelled(b []byte) (n Neighbour, err error) {
	if n, err = parseNeighbour(b); err != nil {
		return n, err
	}
	for typ := range attributes(b[unix.SizeofNdMsg:]) {
		if typ == unix.NDA_PORT || typ == unix.NDA_VNI {
			n.Addr = netip.Addr{}
		}
	}
	return n, nil
}

func (h *Hop) setGateway(typ uint16, val []byte) {
	switch {
	case typ == unix.RTA_GATEWAY:
		h.Gateway, _ = netip.AddrFromSlice(val)
	case typ == unix.RTA_VIA && len(val) > 2: // struct rtvia: a family, and an address of that family
		h.Gateway, _ = netip.AddrFromSlice(val[2:])
	}
}

// parseNSID parses struct rtgenmsg and NETNSA_NSID.
func parseNSID(b []byte) (int32, error) {
	if len(b) < 4 {
		return NoNSID, fmt.Errorf("parse namespace id: %w", errShort)
	}
	for typ, val := range attributes(b[4:]) {
		if typ == netnsaNSID {
			return int32(u32(val)), nil
		}
	}
	return NoNSID, nil
}
