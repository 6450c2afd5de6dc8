// Package rtnetlink requests links, addresses, routes and ids of network namespaces from the
// kernel, and receives their changes (rtnetlink(7)).
//
// It has no state. Package kernel has the state that follows from messages.
package rtnetlink

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// NoNSID is the nsid of a namespace that has none in our table, such as our own
// (NETNSA_NSID_NOT_ASSIGNED in include/uapi/linux/net_namespace.h).
const NoNSID int32 = -1

// Elsewhere stands for the nsid of another namespace that has none because it is being
// destroyed.
const Elsewhere int32 = -2

// Unresolved stands for the nsid of a namespace that is only known by its nsid in the table of
// a third namespace.
const Unresolved int32 = -3

// Attributes that golang.org/x/sys does not name.
const (
	netnsaNSID = 1 // NETNSA_NSID
	netnsaFD   = 3 // NETNSA_FD

	iflaVLANID            = 1  // IFLA_VLAN_ID, in IFLA_INFO_DATA of a VLAN device
	iflaVXLANLearning     = 7  // IFLA_VXLAN_LEARNING, in IFLA_INFO_DATA of a VXLAN device
	iflaVXLANProxy        = 11 // IFLA_VXLAN_PROXY, likewise
	iflaVXLANMetadata     = 25 // IFLA_VXLAN_COLLECT_METADATA, likewise
	iflaGeneveMetadata    = 6  // IFLA_GENEVE_COLLECT_METADATA, in IFLA_INFO_DATA of a GENEVE device
	iflaGREMetadata       = 18 // IFLA_GRE_COLLECT_METADATA, in IFLA_INFO_DATA of gretap
	iflaBridgeFiltering   = 7  // IFLA_BR_VLAN_FILTERING, in IFLA_INFO_DATA of a bridge
	iflaBridgeDefaultPVID = 39 // IFLA_BR_VLAN_DEFAULT_PVID, likewise
	iflaPortMode          = 4  // IFLA_BRPORT_MODE (hairpin), in IFLA_INFO_SLAVE_DATA and IFLA_PROTINFO of a port of a bridge
	iflaPortLearning      = 8  // IFLA_BRPORT_LEARNING, likewise
	iflaPortVLANTunnel    = 29 // IFLA_BRPORT_VLAN_TUNNEL, likewise
	iflaPortNeighSuppress = 32 // IFLA_BRPORT_NEIGH_SUPPRESS, likewise
	iflaBridgeFlags       = 0  // IFLA_BRIDGE_FLAGS, in IFLA_AF_SPEC of the family AF_BRIDGE
	bridgeFlagsSelf       = 2  // BRIDGE_FLAGS_SELF
	iflaBridgeVLANInfo    = 2  // IFLA_BRIDGE_VLAN_INFO, likewise
	bridgeVLANPVID        = 2  // BRIDGE_VLAN_INFO_PVID
	bridgeVLANRangeEnd    = 16 // BRIDGE_VLAN_INFO_RANGE_END
	iflaBridgeTunnelInfo  = 3  // IFLA_BRIDGE_VLAN_TUNNEL_INFO, in IFLA_AF_SPEC of the family AF_BRIDGE
	iflaBridgeTunnelID    = 1  // IFLA_BRIDGE_VLAN_TUNNEL_ID, in IFLA_BRIDGE_VLAN_TUNNEL_INFO
	iflaBridgeTunnelVID   = 2  // IFLA_BRIDGE_VLAN_TUNNEL_VID, likewise
	iflaBridgeTunnelFlags = 3  // IFLA_BRIDGE_VLAN_TUNNEL_FLAGS, likewise

	requestToNew = unix.RTM_GETLINK - unix.RTM_NEWLINK // an answer to RTM_GETX has the type RTM_NEWX, two less

	vlanMask      = 0x0fff // VLAN_VID_MASK
	nlaTypeMask   = 0x3fff // NLA_TYPE_MASK: without the flags NESTED and NET_BYTEORDER
	rtextSkipStat = 1 << 3 // RTEXT_FILTER_SKIP_STATS: omit 200 bytes of counters
	rtextVLANs    = 1 << 2 // RTEXT_FILTER_BRVLAN_COMPRESSED: ranges of VLANs instead of each VLAN
)

// ErrNamespaceGone is returned for an nsid of a namespace that does not exist.
var ErrNamespaceGone = errors.New("network namespace is gone")

// A Conn sends requests in the network namespace of the thread that created it. It is not safe
// for concurrent use.
type Conn struct {
	fd  int
	seq uint32
	buf []byte // holds a request, and then each part of its answer
	// until is when to give an answer up; zero for never.
	until time.Time
}

// Dial opens a socket for requests. It fails if the kernel does not support strict checking.
// Such a kernel would ignore IFA_TARGET_NETNSID and answer with our own addresses.
func Dial() (*Conn, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open rtnetlink socket: %w", err)
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_GET_STRICT_CHK, 1); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("set NETLINK_GET_STRICT_CHK (needs Linux 4.20): %w", err)
	}
	_ = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 10})
	return &Conn{fd: fd, buf: make([]byte, 64<<10)}, nil
}

// Close closes the socket.
func (r *Conn) Close() { _ = unix.Close(r.fd) }

// errInterrupted is returned for a dump that a change interrupted.
var errInterrupted = errors.New("dump was interrupted by a change")

// do sends one request, and calls each for every message of the answer. The data is only valid until
// each returns. The package nl would clear 64 KiB for each part of an answer.
func (r *Conn) do(typ, flags uint16, body []byte, each func(typ uint16, data []byte)) error {
	r.seq++
	req := binary.NativeEndian.AppendUint32(r.buf[:0], uint32(unix.NLMSG_HDRLEN+len(body)))
	req = binary.NativeEndian.AppendUint16(req, typ)
	req = binary.NativeEndian.AppendUint16(req, unix.NLM_F_REQUEST|flags)
	req = binary.NativeEndian.AppendUint32(req, r.seq)
	req = append(binary.NativeEndian.AppendUint32(req, 0), body...)
	if _, err := unix.Write(r.fd, req); err != nil {
		return err
	}
	for interrupted := false; ; {
		if !r.until.IsZero() && time.Now().After(r.until) {
			return os.ErrDeadlineExceeded
		}
		n, from, err := unix.Recvfrom(r.fd, r.buf, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return err
		}
		if sa, ok := from.(*unix.SockaddrNetlink); !ok || sa.Pid != 0 {
			continue // not from the kernel
		}
		for h, data := range messages(r.buf[:n]) {
			if h.seq != r.seq {
				continue // of a request that was given up
			}
			interrupted = interrupted || h.flags&unix.NLM_F_DUMP_INTR != 0
			isEnd := h.typ == unix.NLMSG_DONE || h.typ == unix.NLMSG_ERROR
			switch {
			case isEnd && len(data) >= 4 && int32(u32(data[:4])) < 0:
				return unix.Errno(-int32(u32(data[:4])))
			case !isEnd:
				each(h.typ, data)
			}
			if isEnd || h.flags&unix.NLM_F_MULTI == 0 {
				if interrupted {
					return errInterrupted
				}
				return nil
			}
		}
	}
}

// get returns what parse makes of the only message of an answer; the zero value if there is none.
func get[T any](r *Conn, typ uint16, body []byte, parse func(data []byte) (T, error)) (out T, err error) {
	var invalid error
	err = r.do(typ, 0, body, func(_ uint16, data []byte) { out, invalid = parse(data) })
	return out, cmp.Or(err, invalid)
}

// list returns what parse makes of the messages of a dump. It repeats a dump that a change
// interrupted.
func list[T any](r *Conn, typ uint16, body []byte, parse func(data []byte) (T, error)) (out []T, err error) {
	var invalid error
	for range 16 {
		out, invalid = out[:0], nil
		err = r.do(typ, unix.NLM_F_DUMP, body, func(answer uint16, data []byte) {
			if answer != typ-requestToNew { // without IPv6, the kernel answers AF_INET6 with messages of other families
				return
			}
			one, failed := parse(data)
			out, invalid = append(out, one), cmp.Or(invalid, failed)
		})
		if !errors.Is(err, errInterrupted) {
			break
		}
	}
	return out, cmp.Or(err, invalid)
}

// listFamilies lists IPv4 and, unless the kernel lacks it, IPv6. It sets the family in the body.
func listFamilies[T any](r *Conn, typ uint16, body []byte, parse func(data []byte) (T, error)) (out []T, err error) {
	for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
		body[0] = family
		some, err := list(r, typ, body, parse)
		if family == unix.AF_INET6 && (errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EAFNOSUPPORT)) {
			break
		}
		if err != nil {
			return nil, err
		}
		out = append(out, some...)
	}
	return out, nil
}

// target appends the attribute that directs a request to another namespace.
func target(body []byte, attr uint16, nsid int32) []byte {
	if nsid == NoNSID {
		return body
	}
	return appendAttr(body, attr, uint32(nsid))
}

// Links lists the interfaces of a namespace.
func (r *Conn) Links(nsid int32) ([]Link, error) {
	body := make([]byte, unix.SizeofIfInfomsg)
	body = appendAttr(target(body, unix.IFLA_TARGET_NETNSID, nsid), unix.IFLA_EXT_MASK, rtextSkipStat)
	out, err := list(r, unix.RTM_GETLINK, body, parseLink)
	return out, namespaceError("list links", nsid, err)
}

// Link returns one interface of a namespace, or unix.ENODEV if there is none.
func (r *Conn) Link(nsid, index int32) (Link, error) {
	body := make([]byte, unix.SizeofIfInfomsg)
	binary.NativeEndian.PutUint32(body[4:], uint32(index))
	body = appendAttr(target(body, unix.IFLA_TARGET_NETNSID, nsid), unix.IFLA_EXT_MASK, rtextSkipStat)
	out, err := get(r, unix.RTM_GETLINK, body, parseLink)
	return out, namespaceError("get link", nsid, err)
}

// Addresses lists the IPv4 and IPv6 addresses of a namespace, or of one of its interfaces if
// index is not 0.
func (r *Conn) Addresses(nsid, index int32) ([]Address, error) {
	body := make([]byte, unix.SizeofIfAddrmsg)
	binary.NativeEndian.PutUint32(body[4:], uint32(index))
	out, err := listFamilies(r, unix.RTM_GETADDR, target(body, unix.IFA_TARGET_NETNSID, nsid), parseAddr)
	if errors.Is(err, unix.ENODEV) {
		return nil, nil // the interface is gone, and its addresses with it
	}
	return out, namespaceError("list addresses", nsid, err)
}

// VLANs returns the VLANs that each bridge in our own namespace, and each port of one, assigns to frames, by the
// index of the interface.
func (r *Conn) VLANs() (map[int32]VLANs, error) {
	body := make([]byte, unix.SizeofIfInfomsg)
	body[0] = unix.AF_BRIDGE
	body = appendAttr(body, unix.IFLA_EXT_MASK, rtextVLANs)
	ports, err := list(r, unix.RTM_GETLINK, body, parsePort)
	out := make(map[int32]VLANs, len(ports))
	for _, p := range ports {
		out[p.Index] = p.VLANs
	}
	return out, namespaceError("list VLANs of bridge ports", NoNSID, err)
}

// routeRequest returns the body of a request for the route that matches an address, and not for the result of
// the lookup.
func routeRequest(addr netip.Addr) []byte {
	body := make([]byte, unix.SizeofRtMsg)
	body[1] = uint8(addr.BitLen())
	flags := uint32(unix.RTM_F_FIB_MATCH)
	if addr.Is6() {
		body[0] = unix.AF_INET6
	} else {
		body[0] = unix.AF_INET
		flags |= unix.RTM_F_LOOKUP_TABLE // else IPv4 names the main table for all; IPv6 does not know the flag
	}
	binary.NativeEndian.PutUint32(body[8:], flags)
	return appendAddr(body, unix.RTA_DST, addr)
}

func appendAddr(body []byte, typ uint16, addr netip.Addr) []byte {
	raw := addr.AsSlice()
	body = binary.NativeEndian.AppendUint16(body, uint16(unix.SizeofRtAttr+len(raw)))
	return append(binary.NativeEndian.AppendUint16(body, typ), raw...)
}

// Route returns the hops to which the node's own routing tables send an address, or none
// if there is no route.
func (r *Conn) Route(addr netip.Addr) (hops []Hop, err error) {
	hops, err = get(r, unix.RTM_GETROUTE, routeRequest(addr), parseRoute)
	if errors.Is(err, unix.ENETUNREACH) || errors.Is(err, unix.EHOSTUNREACH) || errors.Is(err, unix.EAFNOSUPPORT) {
		return nil, nil
	}
	return hops, namespaceError("look up route", NoNSID, err)
}

// RouteFrom returns the hops to which the node sends a packet for an address that enters an interface
// from a neighbour, or none if it drops the packet, as with strict rp_filter or without forwarding. If
// index is 0, the node itself sends the packet from one of its addresses.
func (r *Conn) RouteFrom(index int32, from, addr netip.Addr) (hops []Hop, err error) {
	body := routeRequest(addr)
	if index != 0 {
		body = appendAttr(body, unix.RTA_IIF, uint32(index))
	}
	body[2] = uint8(from.BitLen())
	hops, err = get(r, unix.RTM_GETROUTE, appendAddr(body, unix.RTA_SRC, from), parseRoute)
	if errno := unix.Errno(0); errors.As(err, &errno) {
		return nil, nil // the kernel's reason to drop it
	}
	return hops, err
}

// LocalRoutes lists the routes of type local in all tables of our own namespace: the node takes packets for their
// prefixes as its own. Most of them are those of addresses.
func (r *Conn) LocalRoutes() ([]Route, error) { return r.routes(unix.RTN_LOCAL, unix.RTPROT_UNSPEC) }

// HostRoutes lists the routes of type unicast to single addresses in all tables of our own namespace, without those of
// routing daemons, which may be a million.
func (r *Conn) HostRoutes() (out []Route, err error) {
	for protocol := byte(unix.RTPROT_KERNEL); protocol <= lastStatic; protocol++ {
		some, err := r.routes(unix.RTN_UNICAST, protocol)
		if err != nil {
			return nil, err
		}
		out = append(out, slices.DeleteFunc(some, func(r Route) bool { return !r.IsSingleIP() })...)
	}
	return out, nil
}

// DefaultRoute returns the index of the interface of the first default route in the main table of our own namespace, in
// the order of the kernel: that of IPv4 with the lowest metric, or one of IPv6. It is 0 if there is none, or if the route
// has several hops.
func (r *Conn) DefaultRoute() (index int32, err error) {
	body := make([]byte, unix.SizeofRtMsg)
	body[4] = unix.RT_TABLE_MAIN
	all, err := listFamilies(r, unix.RTM_GETROUTE, body, parsePrefix)
	if i := slices.IndexFunc(all, func(r Route) bool { return r.Bits() == 0 && r.Table == unix.RT_TABLE_MAIN }); i >= 0 {
		index = all[i].Index
	}
	return index, namespaceError("list routes", NoNSID, err)
}

// lastStatic is the last of the protocols of routes that the kernel, a boot script or an administrator adds.
const lastStatic = unix.RTPROT_STATIC

// routes lists the routes of a type and, unless it is RTPROT_UNSPEC, of a protocol.
func (r *Conn) routes(typ, protocol byte) (out []Route, err error) {
	body := make([]byte, unix.SizeofRtMsg)
	body[5], body[7] = protocol, typ
	out, err = listFamilies(r, unix.RTM_GETROUTE, body, parsePrefix)
	return out, namespaceError("list routes", NoNSID, err)
}

// UnmarkedTables lists the tables of our own namespace that rules look up for packets without a mark (`ip rule`).
func (r *Conn) UnmarkedTables() ([]uint32, error) {
	out, err := listFamilies(r, unix.RTM_GETRULE, make([]byte, unix.SizeofRtMsg), parseRule)
	return out, namespaceError("list rules", NoNSID, err)
}

// Settings are how an interface answers requests for addresses that it does not have (net.ipv4.conf.* and
// net.ipv6.conf.*), as the kernel combines them with those of all interfaces.
type Settings struct {
	ARPIgnore int
	ARPFilter bool
	ProxyARP  bool
	PVLAN     bool // proxy_arp_pvlan: it answers for addresses that it has a route to by itself; and it forwards IPv4
	ProxyNDP  bool // and it forwards IPv6
}

// Settings returns the settings of an interface of our own namespace. A setting that cannot be read is 0,
// the kernel's default.
func (r *Conn) Settings(iface string) Settings {
	of := func(family, iface, name string) int {
		text, _ := os.ReadFile("/proc/sys/net/" + family + "/conf/" + iface + "/" + name)
		n, _ := strconv.Atoi(strings.TrimSpace(string(text)))
		return n
	}
	either := func(family, name string) bool { return of(family, "all", name)+of(family, iface, name) > 0 }
	return Settings{
		ARPIgnore: max(of("ipv4", "all", "arp_ignore"), of("ipv4", iface, "arp_ignore")), ARPFilter: either("ipv4", "arp_filter"),
		ProxyARP: either("ipv4", "proxy_arp"), PVLAN: either("ipv4", "proxy_arp_pvlan") && of("ipv4", iface, "forwarding") > 0,
		ProxyNDP: either("ipv6", "proxy_ndp") && of("ipv6", iface, "forwarding") > 0,
	}
}

// Proxied lists the addresses for which interfaces of our own namespace answer as a proxy (`ip neigh add
// proxy`). They have no MAC. Index 0 stands for all interfaces.
func (r *Conn) Proxied() (out []Neighbour, err error) {
	body := make([]byte, unix.SizeofNdMsg)
	body[10] = unix.NTF_PROXY
	out, err = listFamilies(r, unix.RTM_GETNEIGH, body, parseNeighbour)
	return out, namespaceError("list proxied addresses", NoNSID, err)
}

// Neighbours lists the neighbours in the table of an interface of our own namespace whose MAC is known. A VXLAN device
// answers requests for those that are connected by itself (arp_reduce in drivers/net/vxlan/vxlan_core.c).
func (r *Conn) Neighbours(index int32) (out []Neighbour, err error) {
	body := appendAttr(make([]byte, unix.SizeofNdMsg), unix.NDA_IFINDEX, uint32(index))
	out, err = list(r, unix.RTM_GETNEIGH, body, parseNeighbour)
	out = slices.DeleteFunc(out, func(n Neighbour) bool { return n.MAC == "" })
	return out, namespaceError("list neighbours", NoNSID, err)
}

// Resolved lists the entries of all neighbour tables of our own namespace.
func (r *Conn) Resolved() (out []Neighbour, err error) {
	out, err = listFamilies(r, unix.RTM_GETNEIGH, make([]byte, unix.SizeofNdMsg), parseNeighbour)
	return out, namespaceError("list neighbours", NoNSID, err)
}

// Forwarding lists the entries of the forwarding tables of the bridges of our own namespace: a MAC, and the index of the port
// behind which it is.
func (r *Conn) Forwarding() (out []Neighbour, err error) {
	body := make([]byte, unix.SizeofNdMsg)
	body[0] = unix.AF_BRIDGE
	out, err = list(r, unix.RTM_GETNEIGH, body, parseNeighbour)
	out = slices.DeleteFunc(out, func(n Neighbour) bool { return n.Bridge == 0 }) // of an interface itself, such as a VXLAN device
	return out, namespaceError("list forwarding tables", NoNSID, err)
}

// Tunnels lists the forwarding table of a VXLAN device of our own namespace: MACs, all zeros for those that have no entry, and the
// addresses to which their frames go. It leaves out entries with a port or a VNI of their own.
func (r *Conn) Tunnels(index int32) (out []Neighbour, err error) {
	body := make([]byte, unix.SizeofNdMsg)
	body[0] = unix.AF_BRIDGE
	binary.NativeEndian.PutUint32(body[4:], uint32(index))
	out, err = list(r, unix.RTM_GETNEIGH, body, parseTunnelled)
	out = slices.DeleteFunc(out, func(n Neighbour) bool { return n.Index != index || !n.Addr.IsValid() || n.Addr.IsUnspecified() })
	return out, namespaceError("list the forwarding table of a VXLAN device", NoNSID, err)
}

// FiltersARP reports whether a packet filter of our own namespace has rules about ARP, or about all frames:
// nftables' families arp, bridge and netdev, and the tables of arptables. Its rules are not evaluated.
func (r *Conn) FiltersARP() (bool, error) {
	names, unread := os.ReadFile("/proc/net/arp_tables_names")
	if errors.Is(unread, fs.ErrNotExist) { // a kernel without arptables, or that has not loaded it
		unread = nil
	}
	found := len(names) > 0
	for _, family := range []byte{unix.NFPROTO_ARP, unix.NFPROTO_BRIDGE, unix.NFPROTO_NETDEV} {
		req := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETRULE, unix.NLM_F_DUMP)
		req.AddRawData([]byte{family, unix.NFNETLINK_V0, 0, 0}) // struct nfgenmsg
		rules, err := req.Execute(unix.NETLINK_NETFILTER, 0)
		found = found || len(rules) > 0
		if !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.EPROTONOSUPPORT) { // a kernel without nftables, or without netfilter
			unread = errors.Join(unread, err)
		}
	}
	if found || unread == nil {
		return found, nil
	}
	return false, fmt.Errorf("read packet filters: %w", unread)
}

// NSIDs lists the ids of all namespaces in our table.
func (r *Conn) NSIDs() ([]int32, error) {
	out, err := list(r, unix.RTM_GETNSID, make([]byte, 4), parseNSID) // struct rtgenmsg, padded
	out = slices.DeleteFunc(out, func(id int32) bool { return id < 0 })
	return out, namespaceError("list namespace ids", NoNSID, err)
}

// NSIDOf returns the nsid of an open namespace in our table. If it has none, NSIDOf assigns
// one and returns true.
func (r *Conn) NSIDOf(fd int) (nsid int32, assigned bool, err error) {
	body := appendAttr(make([]byte, 4), netnsaFD, uint32(fd))
	if id, err := get(r, unix.RTM_GETNSID, body, parseNSID); err != nil || id >= 0 {
		return id, false, namespaceError("get namespace id", NoNSID, err)
	}
	auto := NoNSID // any free id
	// EEXIST: another process has assigned one in the meantime.
	err = r.do(unix.RTM_NEWNSID, unix.NLM_F_ACK, appendAttr(body, netnsaNSID, uint32(auto)), func(uint16, []byte) {})
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return NoNSID, false, namespaceError("assign namespace id", NoNSID, err)
	}
	assigned = err == nil
	nsid, err = get(r, unix.RTM_GETNSID, body, parseNSID)
	return nsid, assigned, namespaceError("get namespace id", NoNSID, err)
}

// namespaceError adds the request to an error. It returns ErrNamespaceGone if the nsid no
// longer refers to a namespace.
func namespaceError(what string, nsid int32, err error) error {
	switch {
	case err == nil:
		return nil
	case nsid != NoNSID && errors.Is(err, unix.EINVAL):
		return fmt.Errorf("%s of nsid %d: %w", what, nsid, ErrNamespaceGone)
	case nsid != NoNSID:
		return fmt.Errorf("%s of nsid %d: %w", what, nsid, err)
	}
	return fmt.Errorf("%s: %w", what, err)
}

// A Listener receives the changes of links, addresses and namespace ids in every namespace
// that has an nsid in our table.
type Listener struct {
	file *os.File
	rc   syscall.RawConn
	buf  []byte
	oob  []byte
	// rest is how long further messages are collected after the first one.
	rest time.Duration
}

// Listen subscribes to all namespaces, which needs CAP_NET_BROADCAST, or only to our own.
func Listen(everywhere bool) (*Listener, error) {
	return listen(everywhere, answeringRoutes(),
		unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_NSID,
		unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE, unix.RTNLGRP_IPV4_NETCONF)
}

// ListenNeighbours is like Listen for the neighbour tables. It has a socket of its own, because pods that talk to each
// other change thousands of entries per second: if these are lost, no address is. They are read ten times per second at most.
func ListenNeighbours(everywhere bool) (*Listener, error) {
	l, err := listen(everywhere, neighboursOnly(), unix.RTNLGRP_NEIGH)
	if err == nil {
		l.rest = 100 * time.Millisecond
	}
	return l, err
}

func listen(everywhere bool, filter *unix.SockFprog, groups ...int) (*Listener, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open rtnetlink socket: %w", err)
	}
	fail := func(what string, err error) (*Listener, error) {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	if everywhere {
		if err := unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_LISTEN_ALL_NSID, 1); err != nil {
			return fail("set NETLINK_LISTEN_ALL_NSID (needs CAP_NET_BROADCAST)", err)
		}
	}
	// The buffer must hold a burst of thousands of changes. If it overflows, the socket
	// returns ENOBUFS and everything is listed again.
	const room = 16 << 20
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, room) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, room)
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fail("bind rtnetlink socket", err)
	}
	if err := unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, filter); err != nil {
		return fail("filter rtnetlink socket", err)
	}
	for _, group := range groups {
		if err := unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, group); err != nil {
			return fail(fmt.Sprintf("join rtnetlink group %d", group), err)
		}
	}
	file := os.NewFile(uintptr(fd), "rtnetlink")
	rc, err := file.SyscallConn()
	if err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("watch rtnetlink socket: %w", err)
	}
	return &Listener{file: file, rc: rc, buf: make([]byte, 64<<10), oob: make([]byte, 256)}, nil
}

// answeringRoutes returns a filter that drops messages about other routes than those of type local, and those that
// HostRoutes lists, in the kernel: a router may change thousands of routes per second.
func answeringRoutes() *unix.SockFprog {
	typ := func(t uint16) uint32 { // as a load in network byte order returns it
		return uint32(binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, t)))
	}
	const rtmsg = unix.SizeofNlMsghdr
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_H | unix.BPF_ABS, K: 4}, // nlmsghdr.nlmsg_type
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: typ(unix.RTM_NEWROUTE), Jt: 1},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: typ(unix.RTM_DELROUTE), Jf: 7},
		{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: rtmsg + 7}, // rtm_type
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.RTN_LOCAL, Jt: 5},
		{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: rtmsg + 1},  // rtm_dst_len
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: 32, Jf: 2}, // only IPv4 is answered for because of a route
		{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: rtmsg + 5},  // rtm_protocol
		{Code: unix.BPF_JMP | unix.BPF_JGT | unix.BPF_K, K: lastStatic, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K},
		{Code: unix.BPF_RET | unix.BPF_K, K: 1<<32 - 1},
	}
	return &unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
}

// neighboursOnly returns a filter that drops messages about the forwarding tables of bridges, and about addresses that are
// being resolved, in the kernel.
func neighboursOnly() *unix.SockFprog {
	state := func(s uint16) uint32 {
		return uint32(binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, s)))
	}
	const ndmsg = unix.SizeofNlMsghdr
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: ndmsg}, // ndm_family
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.AF_INET, Jt: 1},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.AF_INET6, Jf: 3},
		{Code: unix.BPF_LD | unix.BPF_H | unix.BPF_ABS, K: ndmsg + 8}, // ndm_state
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: state(unix.NUD_INCOMPLETE), Jt: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: 1<<32 - 1},
		{Code: unix.BPF_RET | unix.BPF_K},
	}
	return &unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
}

// Close closes the socket.
func (l *Listener) Close() { _ = l.file.Close() }

// Run calls fn with every message until ctx ends. It calls lost after messages were lost
// (ENOBUFS), and malformed for each message that cannot be parsed.
func (l *Listener) Run(ctx context.Context, fn func(*Message), lost, malformed func()) error {
	stop := context.AfterFunc(ctx, func() { _ = l.file.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	var msg Message
	// After ENOBUFS, the socket accepts no new messages until its buffer is empty. The
	// buffered messages are older than the next list, so they must be read before it.
	draining := false
	for {
		var n, oobn int
		var from unix.Sockaddr
		var errno error
		waited := false
		err := l.rc.Read(func(fd uintptr) bool {
			if waited {
				time.Sleep(l.rest)
			}
			// Use recvmsg, because the nsid is in a control message, which recvfrom drops.
			n, oobn, _, from, errno = unix.Recvmsg(int(fd), l.buf, l.oob, 0)
			waited = true
			return draining || !errors.Is(errno, unix.EAGAIN) && !errors.Is(errno, unix.EINTR)
		})
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return fmt.Errorf("receive from rtnetlink: %w", err)
		case errors.Is(errno, unix.ENOBUFS):
			draining = true
			continue
		case errors.Is(errno, unix.EAGAIN): // while draining: the buffer is empty
			draining = false
			lost()
			continue
		case draining && (errno == nil || errors.Is(errno, unix.EINTR)):
			continue
		case errno != nil:
			return fmt.Errorf("receive from rtnetlink: %w", errno)
		}
		if sa, ok := from.(*unix.SockaddrNetlink); !ok || sa.Pid != 0 {
			continue
		}
		nsid := controlNSID(l.oob[:oobn])
		for h, data := range messages(l.buf[:n]) {
			known, err := msg.parse(h.typ, nsid, data)
			switch {
			case err != nil:
				malformed()
			case known:
				fn(&msg)
			}
		}
	}
}

// OwnNSID returns the nsid of our own namespace in our own table, and an error if other
// namespaces cannot be read by their nsid.
func (r *Conn) OwnNSID() (int32, error) {
	self, err := os.Open("/proc/self/ns/net")
	if err != nil {
		return Elsewhere, err
	}
	defer func() { _ = self.Close() }()
	id, _, err := r.NSIDOf(int(self.Fd()))
	if err == nil {
		_, err = r.Addresses(id, 0)
	}
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
		err = fmt.Errorf("%w: give this process CAP_NET_ADMIN", err)
	}
	if err != nil && id < 0 {
		id = Elsewhere
	}
	return id, err
}
